// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive queues of QPs.
//!
//! A receive is a row of entries; where it has fewer than the queue's most, an entry without memory ends it. The doorbell
//! record is all that the device needs: there is no register.
//!
//! | module | what |
//! |---|---|
//! | `face` | what a queue of either kind offers: one receive, batches, C's lists |
//! | `producer` | room, state and publication of a QP's receive queue |
//! | `shared` | what its poster and the pollers of its completions share |
//! | `srq` | a shared receive queue |
//! | `srq_producer` | its list of elements, and publication |
//! | `srq_shared` | what its poster and the pollers of its completions share |

mod face;
mod producer;
mod shared;
pub mod srq;
mod srq_producer;
mod srq_shared;
#[cfg(test)]
mod tests;

pub use shared::RqShared;
pub use srq_shared::SrqShared;

use self::producer::RecvProducer;
use crate::memory::dbrec::DbWord;
use crate::qp::QpShared;
use core::fmt;
use std::sync::Arc;
use uverbs_core::attr::QpType;

/// What a receive queue is made with.
#[derive(Clone, Copy, Debug)]
pub struct RecvConfig {
    /// Transport. Raw packet QPs show their receives to the device from RTR on.
    pub qp_type: QpType,
    /// Receives that the queue takes.
    pub max_recv_wr: u32,
    /// Entries of a receive.
    pub max_recv_sge: u32,
    /// The device's longest message.
    pub max_msg_sz: u64,
}

/// Receives on their way to a QP's own queue.
pub type Batch<'q> = face::Batch<'q, RecvProducer>;

/// A receive queue.
pub type RecvQueue = face::Queue<RecvProducer, QpShared>;

impl RecvQueue {
    /// The receive queue of the QP behind `qp`, which has one: else `None`.
    #[must_use]
    pub fn new(config: &RecvConfig, qp: Arc<QpShared>, record: DbWord) -> Option<Self> {
        Some(Self { producer: RecvProducer::new(config, &qp, record)?, shared: qp })
    }

    /// How many receives it takes.
    #[must_use]
    pub fn max_recv_wr(&self) -> u32 {
        self.producer.max_post()
    }
}

impl fmt::Debug for RecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvQueue")
            .field("qp_num", &format_args!("{:#x}", self.shared.qp_num))
            .field("state", &self.shared.state())
            .field("producer", &self.producer)
            .finish()
    }
}
