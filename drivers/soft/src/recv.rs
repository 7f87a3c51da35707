// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive queues, of a QP or shared: for their poster they differ only in the state that is checked.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The
// encoder does not access that memory, so this module has no unsafe operation.

use crate::doorbell::FlushBell;
use crate::format::{Format, PostRing as _};
use crate::producer::{Producer, Receives};
use crate::shared::QpShared;
use crate::wqe;
use core::fmt;
use std::sync::Arc;
use uverbs_core::provider::batch::Cursor;
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue as RecvQueueTrait};
use uverbs_core::wr::{RecvWr, Sge};

/// A receive queue, which `B` flushes if [`Format::must_flush`] says so. The kernel reads the ring when a message arrives, so there is no
/// doorbell.
pub struct RecvQueue<F: Format, B> {
    ring: Producer<F, Receives>,
    max_sge: u32,
    bell: B,
}

impl<F: Format, B: FlushBell> RecvQueue<F, B> {
    /// The receive queue of the QP behind `shared`. A limit for which its slots have no room is lowered.
    ///
    /// # Errors
    /// [`PostError::Corrupt`] if the ring's contents make no sense.
    pub fn new(
        ring: F::RecvRing,
        max_sge: u32,
        shared: Arc<QpShared<F>>,
        bell: B,
    ) -> Result<Self, PostError> {
        let max_sge = max_sge.min(ring.slot_room().0);
        Ok(Self { ring: Producer::new(ring, shared)?, max_sge, bell })
    }

    /// A shared receive queue. It has no state: it is treated as a QP that always takes receives and never flushes.
    ///
    /// # Errors
    /// [`PostError::Corrupt`] if the ring's contents make no sense.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn new_shared(ring: F::RecvRing, max_sge: u32, bell: B) -> Result<Self, PostError> {
        use uverbs_core::attr::QpState;
        Self::new(ring, max_sge, Arc::new(QpShared::new(QpState::RTR)), bell)
    }

    /// The state that it shares with control calls.
    pub(crate) fn shared(&self) -> &Arc<QpShared<F>> {
        &self.ring.shared
    }

    /// The number of WRs that fit, at least the number requested.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.ring().capacity()
    }

    /// Entries of a WR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The object that flushes the queue.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// Replaces the ring by the one to which the kernel moved the receives. If that ring makes no sense, nothing changes.
    ///
    /// # Errors
    /// [`PostError::Corrupt`] as above.
    pub fn replace_ring(&mut self, ring: F::RecvRing) -> Result<(), PostError> {
        if ring.slot_room().0 < self.max_sge {
            return Err(PostError::Corrupt);
        }
        self.ring.replace_ring(ring)
    }

    /// Refuses all later posts: the kernel uses a ring that could not be mapped.
    pub(crate) fn lose_ring(&mut self) {
        self.ring.lose();
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&mut self) -> Cursor {
        self.ring.begin()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn push(&mut self, cursor: &mut Cursor, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let max_sge = self.max_sge;
        let mut slot = self.ring.slot(cursor)?;
        let data = wqe::put_sges(&mut slot, max_sge, F::TOO_LONG, sges)?;
        F::put_recv(&mut slot, wr_id, data);
        cursor.advance();
        Ok(())
    }

    /// Publishes the WRs before the cursor, if there was no error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        let bell = &self.bell;
        let flush = |word: StateWord| if F::must_flush(word) { flush(bell) } else { Ok(()) };
        self.ring.publish(cursor, |_, _| Ok(()), flush)
    }
}

#[cold]
fn flush<B: FlushBell>(bell: &B) -> Result<(), PostError> {
    bell.flush().map_err(PostError::Doorbell)
}

impl<F: Format, B: FlushBell> RecvQueueTrait for RecvQueue<F, B> {
    type Sge = Sge;
    type Batch<'q>
        = Batch<'q, F, B>
    where
        Self: 'q;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_, F, B> {
        let cursor = self.begin();
        Batch { queue: self, cursor }
    }

    /// The kernel takes receives of a shared queue in order, when messages arrive.
    fn untaken(&self) -> Option<(u32, u32)> {
        Some(self.ring.untaken())
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: `list` fulfils the contract of `RecvQueue::post_recv`, which is also that of `list::post_recv`.
        unsafe { crate::list::post_recv(self, list) }
    }
}

impl<F: Format, B: fmt::Debug> fmt::Debug for RecvQueue<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvQueue")
            .field("ring", self.ring.ring())
            .field("max_sge", &self.max_sge)
            .field("state", &self.ring.shared.state())
            .field("bell", &self.bell)
            .finish_non_exhaustive()
    }
}

/// A batch of receives.
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q, F: Format, B: FlushBell> {
    queue: &'q mut RecvQueue<F, B>,
    cursor: Cursor,
}

impl<F: Format, B: FlushBell> RecvBatch for Batch<'_, F, B> {
    type Sge = Sge;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        if let Err(error) = self.queue.push(&mut self.cursor, wr_id, sges) {
            self.cursor.latch(error);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        self.queue.publish(&self.cursor)
    }
}

impl<F: Format, B: FlushBell> fmt::Debug for Batch<'_, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}
