// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive queues, of a QP or shared: for their poster they differ only in the state that is checked.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The
// encoder does not access that memory, so this module has no unsafe operation.

use crate::doorbell::FlushBell;
use crate::producer::{Cursor, Producer, Receives};
use crate::queue::Ring;
use crate::shared::QpShared;
use crate::wqe;
use core::fmt;
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue as RecvQueueTrait};
use uverbs_core::wr::{RecvWr, Sge};
use uverbs_uapi::rxe::rxe_recv_wqe;

/// A receive queue, which `B` flushes in ERR.
pub struct RecvQueue<B> {
    ring: Producer<rxe_recv_wqe, Receives>,
    max_sge: u32,
    bell: B,
}

impl<B: FlushBell> RecvQueue<B> {
    /// The receive queue of the QP behind `shared`.
    ///
    /// # Errors
    /// [`PostError::Corrupt`] if the ring's indices make no sense.
    pub fn new(
        ring: Ring<rxe_recv_wqe>,
        max_sge: u32,
        shared: Arc<QpShared>,
        bell: B,
    ) -> Result<Self, PostError> {
        let room = u32::try_from(ring.tail() / 16).unwrap_or(u32::MAX);
        Ok(Self { ring: Producer::new(ring, shared)?, max_sge: max_sge.min(room), bell })
    }

    /// A shared receive queue. It has no state: it is treated as a QP that always takes receives and never flushes.
    ///
    /// # Errors
    /// [`PostError::Corrupt`] if the ring's indices make no sense.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn new_shared(ring: Ring<rxe_recv_wqe>, max_sge: u32, bell: B) -> Result<Self, PostError> {
        Self::new(ring, max_sge, Arc::new(QpShared::new(QpState::RTR)), bell)
    }

    /// The number of WRs that fit: a power of two minus one, at least the number requested.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.ring().capacity()
    }

    /// Entries of a WR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The object that flushes the queue.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// Replaces the ring by the one to which the kernel moved the receives.
    pub(crate) fn replace_ring(&mut self, ring: Ring<rxe_recv_wqe>) -> Result<(), PostError> {
        if ring.tail() / 16 < self.max_sge as usize {
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
        let (mut slot, next) = self.ring.slot(cursor)?;
        wqe::encode_recv(&mut slot, max_sge, wr_id, sges)?;
        cursor.at = next;
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn finish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        match cursor.error() {
            Some(error) => Err(error),
            None => self.publish(cursor),
        }
    }

    /// Publishes the WRs before the cursor. The kernel reads the ring when a message arrives, and once when the QP
    /// enters ERR; receives that are posted after that need a call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        let bell = &self.bell;
        let flush = |word: StateWord| if word.state() == QpState::ERR { flush(bell) } else { Ok(()) };
        self.ring.publish(cursor, |_| (), flush)
    }
}

#[cold]
fn flush<B: FlushBell>(bell: &B) -> Result<(), PostError> {
    bell.flush().map_err(PostError::Doorbell)
}

impl<B: FlushBell> RecvQueueTrait for RecvQueue<B> {
    type Sge = Sge;
    type Batch<'q>
        = Batch<'q, B>
    where
        Self: 'q;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_, B> {
        let cursor = self.begin();
        Batch { queue: self, cursor }
    }

    /// The kernel copies a receive of a shared queue when a message arrives, and then advances the index of the consumer
    /// (`get_srq_wqe()`).
    fn untaken(&self) -> Option<(u32, u32)> {
        let ring = self.ring.ring();
        let consumer = ring.consumer();
        Some((ring.producer().wrapping_sub(consumer) & ring.mask(), consumer))
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: `list` fulfils the contract of `RecvQueue::post_recv`, which is also that of `list::post_recv`.
        unsafe { crate::list::post_recv(self, list) }
    }
}

impl<B: fmt::Debug> fmt::Debug for RecvQueue<B> {
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
pub struct Batch<'q, B: FlushBell> {
    queue: &'q mut RecvQueue<B>,
    cursor: Cursor,
}

impl<B: FlushBell> RecvBatch for Batch<'_, B> {
    type Sge = Sge;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        if let Err(error) = self.queue.push(&mut self.cursor, wr_id, sges) {
            self.cursor.latch(error);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        self.queue.finish(&self.cursor)
    }
}

impl<B: FlushBell> fmt::Debug for Batch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}
