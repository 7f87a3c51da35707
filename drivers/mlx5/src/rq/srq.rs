// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues: their faces. The list of elements is in `srq_producer`.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting trait, whose `unsafe fn` carry a promise about the memory that WRs name.

use super::SrqShared;
use super::face::{self, Produce as _};
use super::srq_producer::SrqProducer;
use crate::memory::dbrec::DbWord;
use crate::wqe::Sge;
use core::fmt;
use std::sync::Arc;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::{BadWr, PostError, RecvQueue as RecvQueueTrait};
use uverbs_core::wr::RecvWr;

/// Receives on their way to a shared queue.
pub type Batch<'q> = face::Batch<'q, SrqProducer>;

/// A shared receive queue.
pub struct SharedRecvQueue {
    producer: SrqProducer,
    srq: Arc<SrqShared>,
}

impl SharedRecvQueue {
    /// A queue of `max_sge` entries to the receive, whose `access` nobody else uses. Writes the links, so it is made before
    /// the kernel is told of the memory, or before anything is posted.
    #[must_use]
    pub fn new(
        srq: Arc<SrqShared>,
        access: QueueAccess,
        max_sge: u32,
        max_msg_sz: u64,
        record: DbWord,
    ) -> Self {
        let producer = SrqProducer::new(Arc::clone(&srq), access, max_sge, max_msg_sz, record);
        Self { producer, srq }
    }

    /// How many receives it takes.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.srq.slots() - 1
    }

    /// What it shares with the pollers of its completions.
    #[must_use]
    pub fn shared(&self) -> &Arc<SrqShared> {
        &self.srq
    }

    /// The next element, the end of the list, and how many receives were posted. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn indices(&self) -> (u32, u32, u32) {
        self.producer.indices()
    }

    /// As if so many receives had been posted and completed.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn start_at(&mut self, head: u64) {
        self.producer.start_at(head);
    }
}

impl RecvQueueTrait for SharedRecvQueue {
    type Sge = Sge;
    type Batch<'q> = Batch<'q>;

    #[inline(always)]
    fn batch(&mut self) -> Batch<'_> {
        Batch::new(&mut self.producer)
    }

    #[inline(always)]
    unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.producer.post(wr_id, sges)
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: the caller's promise.
        unsafe { self.producer.post_list(list) }
    }
}

impl fmt::Debug for SharedRecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecvQueue")
            .field("srqn", &self.srq.srqn)
            .field("producer", &self.producer)
            .finish()
    }
}
