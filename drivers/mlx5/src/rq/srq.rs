// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues: construction and `Debug`. The list of elements is in `srq_producer`.

use super::face;
use super::srq_producer::SrqProducer;
use crate::memory::dbrec::DbWord;
use crate::shared::SrqShared;
use core::fmt;
use std::sync::Arc;
use uverbs_core::kernel::QueueAccess;

/// A batch of receives for a shared queue.
pub type Batch<'q> = face::Batch<'q, SrqProducer>;

/// A shared receive queue.
pub type SharedRecvQueue = face::Queue<SrqProducer, SrqShared>;

impl SharedRecvQueue {
    /// A queue for receives of up to `max_sge` entries. `access` must not be used by another queue. This writes the links,
    /// so it must be called before the kernel gets the memory, or before anything is posted.
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

    /// The maximum number of outstanding receives.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.shared.slots() - 1
    }

    /// The next element, the end of the list, and the number of receives that were posted. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn indices(&self) -> (u32, u32, u32) {
        self.producer.indices()
    }

    /// Changes the counts as if `head` receives had been posted and completed.
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
