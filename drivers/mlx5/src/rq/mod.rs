// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive queues of QPs.
//!
//! A receive is a row of entries; where it has fewer than the queue's most, an entry without memory ends it. The doorbell
//! record is all that the device needs: there is no register.
//!
//! | module | what |
//! |---|---|
//! | `producer` | room, state and publication of a QP's receive queue |
//! | `srq` | shared receive queues |
//! | `shared`, `srq_shared` | what pollers of the completions use |
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` carry a promise about the memory that WRs name, and
// walks C's lists.

mod producer;
mod shared;
pub mod srq;
mod srq_shared;
#[cfg(test)]
mod tests;

pub use shared::RqShared;
pub use srq_shared::SrqShared;

use self::producer::{Cursor, RecvProducer};
use crate::memory::dbrec::DbWord;
use crate::qp::QpShared;
use crate::wqe::Sge;
use core::fmt;
use std::sync::Arc;
use uverbs_core::attr::QpType;
use uverbs_core::provider::raw::slice_from_c;
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue as RecvQueueTrait};
use uverbs_core::wr::RecvWr;

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

/// A receive queue.
pub struct RecvQueue {
    producer: RecvProducer,
    qp: Arc<QpShared>,
}

impl RecvQueue {
    /// The receive queue of the QP behind `qp`, which has one: else `None`.
    #[must_use]
    pub fn new(config: &RecvConfig, qp: Arc<QpShared>, record: DbWord) -> Option<Self> {
        Some(Self { producer: RecvProducer::new(config, &qp, record)?, qp })
    }

    /// How many receives it takes.
    #[must_use]
    pub fn max_recv_wr(&self) -> u32 {
        self.producer.max_post()
    }

    /// What it shares with the pollers of its completions.
    #[must_use]
    pub fn shared(&self) -> &Arc<QpShared> {
        &self.qp
    }
}

impl RecvQueueTrait for RecvQueue {
    type Sge = Sge;
    type Batch<'q> = Batch<'q>;

    #[inline(always)]
    fn batch(&mut self) -> Batch<'_> {
        Batch { cursor: self.producer.begin(), producer: &mut self.producer }
    }

    #[inline(always)]
    unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.producer.post(wr_id, sges)
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        let Self { producer, .. } = self;
        let mut cursor = producer.begin();
        let result = {
            let max_sge = producer.max_sge();
            // SAFETY: the caller's promise about the list.
            unsafe {
                walk(list, max_sge, |wr| {
                    producer.reserve(&mut cursor)?;
                    wr.and_then(|(wr_id, sges)| producer.put(&mut cursor, wr_id, sges))
                })
            }
        };
        if producer.is_begun(&cursor) {
            // The queue was reset meanwhile: none of the list was posted.
            producer.complete(cursor).map_err(|error| BadWr { error, wr: list })?;
        }
        result
    }
}

/// Walks a list of receives to the first that can't be posted. `put` gets each one, or what is wrong with it.
///
/// # Safety
/// As [`uverbs_core::provider::RecvQueue::post_recv`].
#[inline(always)]
pub(crate) unsafe fn walk(
    list: *const RecvWr,
    max_sge: u32,
    mut put: impl FnMut(Result<(u64, &[uverbs_core::wr::Sge]), PostError>) -> Result<(), PostError>,
) -> Result<(), BadWr<RecvWr>> {
    if list.is_null() {
        return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
    }
    let mut next = list;
    // SAFETY: each node is NULL or valid, by the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() } {
        let sges = match usize::try_from(wr.num_sge) {
            Ok(num) if num <= max_sge as usize => {
                // SAFETY: NULL or valid, by the caller's promise.
                unsafe { slice_from_c(wr.sg_list, num) }.ok_or(PostError::InvalidArgument)
            }
            _ => Err(PostError::TooManySge),
        };
        if let Err(error) = put(sges.map(|sges| (wr.wr_id, sges))) {
            return Err(BadWr { error, wr: next });
        }
        next = wr.next;
    }
    Ok(())
}

impl fmt::Debug for RecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvQueue")
            .field("qp_num", &format_args!("{:#x}", self.qp.qp_num))
            .field("state", &self.qp.state())
            .field("producer", &self.producer)
            .finish()
    }
}

/// Receives on their way.
#[derive(Debug)]
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q> {
    cursor: Cursor,
    producer: &'q mut RecvProducer,
}

impl RecvBatch for Batch<'_> {
    type Sge = Sge;

    #[inline(always)]
    unsafe fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        let Self { cursor, producer } = self;
        if let Err(error) = producer.reserve(cursor).and_then(|()| producer.put(cursor, wr_id, sges)) {
            producer.latch(cursor, error);
        }
    }

    #[inline(always)]
    fn complete(self) -> Result<(), PostError> {
        self.producer.complete(self.cursor)
    }
}
