// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues: made and shown. The list of elements is in `srq_producer`.

use super::SrqShared;
use super::face;
use super::srq_producer::SrqProducer;
use crate::memory::dbrec::DbWord;
use core::fmt;
use std::sync::Arc;
use uverbs_core::kernel::QueueAccess;

/// Receives on their way to a shared queue.
pub type Batch<'q> = face::Batch<'q, SrqProducer>;

/// A shared receive queue.
pub type SharedRecvQueue = face::Queue<SrqProducer, SrqShared>;

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
        Self { producer, shared: srq }
    }

    /// How many receives it takes.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.shared.slots() - 1
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

impl fmt::Debug for SharedRecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecvQueue")
            .field("srqn", &self.shared.srqn)
            .field("producer", &self.producer)
            .finish()
    }
}
