// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive queues of QPs.
//!
//! A receive WQE is an array of scatter entries; if it has fewer than the queue's maximum, an entry without memory ends it.
//! A post publishes WQEs by the doorbell record only: receive queues have no doorbell register.
//!
//! | module | what |
//! |---|---|
//! | `face` | the interfaces of both kinds of queue: single receives, batches, C lists |
//! | `producer` | room, state and publication of a QP's receive queue |
//! | `srq` | a shared receive queue |
//! | `srq_producer` | the list of elements of a shared receive queue, and publication |

mod face;
mod producer;
pub mod srq;
mod srq_producer;
#[cfg(test)]
mod tests;

pub(crate) use srq_producer::close as close_srq;

use self::producer::RecvProducer;
use crate::memory::dbrec::DbWord;
use crate::shared::QpShared;
use core::fmt;
use std::sync::Arc;
use uverbs_core::attr::QpType;

/// The parameters of a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvConfig {
    /// Transport. Receives of raw packet QPs are published from RTR on.
    pub qp_type: QpType,
    /// The maximum number of outstanding receives.
    pub max_recv_wr: u32,
    /// The maximum number of entries of a receive.
    pub max_recv_sge: u32,
    /// The device's longest message, in bytes.
    pub max_msg_sz: u64,
}

/// A batch of receives for a QP's own queue.
pub type Batch<'q> = face::Batch<'q, RecvProducer>;

/// A receive queue.
pub type RecvQueue = face::Queue<RecvProducer, QpShared>;

impl RecvQueue {
    /// The receive queue of `qp`; `None` if it has none.
    #[must_use]
    pub fn new(config: &RecvConfig, qp: Arc<QpShared>, record: DbWord) -> Option<Self> {
        Some(Self { producer: RecvProducer::new(config, &qp, record)?, shared: qp })
    }

    /// The maximum number of outstanding receives.
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
