// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive queues, of a QP or shared: for their poster they differ only in the state that is checked.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The
// encoder does not access that memory, so this module has no unsafe operation.

use crate::producer::{Cursor, Producer, Receives};
use crate::queue::Ring;
use crate::shared::QpShared;
use crate::wqe;
use core::fmt;
use std::sync::Arc;
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue as RecvQueueTrait};
use uverbs_core::wr::{RecvWr, Sge};
use uverbs_uapi::siw::{SIW_MAX_SGE, SIW_WQE_VALID, siw_rqe};

/// A receive queue. The kernel reads the ring when a message arrives, so it needs no doorbell.
pub struct RecvQueue {
    ring: Producer<siw_rqe, Receives>,
    max_sge: u32,
}

impl RecvQueue {
    /// The receive queue of the QP behind `shared`.
    #[must_use]
    pub fn new(ring: Ring<siw_rqe>, max_sge: u32, shared: Arc<QpShared>) -> Self {
        Self { ring: Producer::new(ring, shared), max_sge: max_sge.min(SIW_MAX_SGE) }
    }

    /// The number of WRs that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.ring().slots()
    }

    /// Entries of a WR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&mut self) -> Cursor {
        self.ring.begin()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn push(&mut self, cursor: &mut Cursor, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let max_sge = self.max_sge;
        let mut slot = self.ring.slot(cursor)?;
        wqe::encode_recv(&mut slot, max_sge, wr_id, sges)?;
        self.ring.set_flags(cursor.at, SIW_WQE_VALID);
        cursor.at = cursor.at.wrapping_add(1);
        Ok(())
    }

    /// Publishes the WRs before the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        self.ring.publish(cursor, |_| Ok(()), || Ok(()))
    }
}

impl RecvQueueTrait for RecvQueue {
    type Sge = Sge;
    type Batch<'q>
        = Batch<'q>
    where
        Self: 'q;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_> {
        let cursor = self.begin();
        Batch { queue: self, cursor }
    }

    /// The kernel copies a receive of a shared queue when a message arrives, and then clears its flags (`siw_rqe_get()`).
    fn untaken(&self) -> Option<(u32, u32)> {
        Some(self.ring.untaken())
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: `list` fulfils the contract of `RecvQueue::post_recv`, which is also that of `list::post_recv`.
        unsafe { crate::list::post_recv(self, list) }
    }
}

impl fmt::Debug for RecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvQueue")
            .field("ring", self.ring.ring())
            .field("max_sge", &self.max_sge)
            .field("state", &self.ring.shared.state())
            .finish_non_exhaustive()
    }
}

/// A batch of receives.
#[must_use = "a batch that is dropped posts nothing"]
#[derive(Debug)]
pub struct Batch<'q> {
    queue: &'q mut RecvQueue,
    cursor: Cursor,
}

impl RecvBatch for Batch<'_> {
    type Sge = Sge;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        if let Err(error) = self.queue.push(&mut self.cursor, wr_id, sges) {
            self.cursor.latch(error);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        match self.cursor.error() {
            Some(error) => Err(error),
            None => self.queue.publish(&self.cursor),
        }
    }
}
