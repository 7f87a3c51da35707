// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posting receives: the calls that the receive queues of QPs, SRQs and work queues have in common (ibv_post_recv(3),
//! ibv_post_srq_recv(3)).
#![expect(unsafe_code)]
// UNSAFETY: the caller of a post guarantees that the memory stays valid; C's lists are raw pointers.

use crate::brief::brief;
use crate::label::{Label, Unposted, check};
use uverbs_core::provider::recv::{RecvBatch as _, RecvQueue as Engine};
use uverbs_core::provider::{BadWr, QueueError, raw};
use uverbs_core::sync::{Exclusive, Guard, LockError, Locked, Locking, Shared};
use uverbs_core::wr::RecvWr;

/// An engine that takes receives, with its lock.
pub struct Receiver<Q: Engine, L: Locking> {
    engine: Locked<Q, L>,
    label: Label,
}

brief!([Q: Engine, L: Locking] Receiver<Q, L>, |this| "Receiver of {:?}", this.label);

impl<Q: Engine, L: Locking> Receiver<Q, L> {
    pub(crate) fn new(engine: Q, label: Label) -> Self {
        Self { engine: Locked::new(engine), label }
    }

    /// `ibv_post_recv` or `ibv_post_srq_recv`, as C calls it.
    ///
    /// # Errors
    /// The first WR that was not posted, with the reason; those before it were.
    ///
    /// # Safety
    /// As [`raw::post_recv`].
    pub unsafe fn post_list(&self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: `list` fulfils the contract of `raw::post_recv`, which is also that of this function.
        unsafe { raw::post_recv(&self.engine, list) }
    }

    pub(crate) fn locked(&self) -> &Locked<Q, L> {
        &self.engine
    }
}

impl<Q: Engine> Receiver<Q, Exclusive> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn engine_mut(&mut self) -> &mut Q {
        self.engine.get_mut()
    }

    /// Opens a batch: nothing is visible to the device before [`RecvBatch::complete`]; a drop aborts the batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn batch(&mut self) -> RecvBatch<'_, Q> {
        RecvBatch { inner: self.engine.get_mut().batch(), unposted: Unposted::new(&self.label) }
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// [`QueueError`]: the queue is full, too many entries, or a state in which the queue takes no receives.
    ///
    /// # Safety
    /// As [`RecvBatch::push`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[Q::Sge]) -> Result<(), QueueError> {
        // SAFETY: the entries' memory fulfils the contract of `RecvBatch::push`, which is also that of this function.
        check(&self.label, unsafe { self.engine.get_mut().post(wr_id, sges) })
    }
}

impl<Q: Engine> Receiver<Q, Shared> {
    /// Waits for the lock; an error if this thread holds it already, or in a child of fork(2).
    ///
    /// # Errors
    /// [`LockError::Reentered`] if this thread holds the lock; [`LockError::Forked`] in a child of fork(2), if a thread of the
    /// parent held it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn lock(&self) -> Result<RecvGuard<'_, Q>, LockError> {
        Ok(RecvGuard { guard: self.engine.lock()?, label: &self.label })
    }
}

/// A locked receive queue.
pub struct RecvGuard<'q, Q> {
    guard: Guard<'q, Q>,
    label: &'q Label,
}

brief!([Q] RecvGuard<'_, Q>, |this| "RecvGuard of {:?}", this.label);

impl<Q: Engine> RecvGuard<'_, Q> {
    /// Opens a batch: nothing is visible to the device before [`RecvBatch::complete`]; a drop aborts the batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn batch(&mut self) -> RecvBatch<'_, Q> {
        RecvBatch { inner: self.guard.batch(), unposted: Unposted::new(self.label) }
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// [`QueueError`]: the queue is full, too many entries, or a state in which the queue takes no receives.
    ///
    /// # Safety
    /// As [`RecvBatch::push`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[Q::Sge]) -> Result<(), QueueError> {
        // SAFETY: the entries' memory fulfils the contract of `RecvBatch::push`, which is also that of this function.
        check(self.label, unsafe { self.guard.post(wr_id, sges) })
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn engine_mut(&mut self) -> &mut Q {
        &mut self.guard
    }
}

/// A batch of receives. [`complete`](Self::complete) reports the first error.
///
/// A drop without [`complete`](Self::complete) or [`abort`](Self::abort) posts nothing, and logs a warning for the first such batch of
/// the queue.
#[must_use = "a batch that is not completed posts nothing"]
pub struct RecvBatch<'q, Q: Engine + 'q> {
    inner: Q::Batch<'q>,
    unposted: Unposted<'q, Label>,
}

impl<Q: Engine> core::fmt::Debug for RecvBatch<'_, Q> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RecvBatch").finish_non_exhaustive()
    }
}

impl<'q, Q: Engine> RecvBatch<'q, Q> {
    /// Adds one receive.
    ///
    /// # Safety
    /// The memory that `sges` name stays registered (with local write access) and alive, and is not accessed, until
    /// this work request is known to be complete.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn push(&mut self, wr_id: u64, sges: &[Q::Sge]) {
        self.unposted.any = true;
        // SAFETY: the entries' memory stays registered, exists and is not accessed until the WR completes (the contract
        // of this function).
        unsafe { self.inner.push(wr_id, sges) }
    }

    /// Makes all receives visible to the device. If one of them was invalid, discards all and returns the first error.
    ///
    /// # Errors
    /// The [`QueueError`] of the first invalid receive; nothing was posted then.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn complete(self) -> Result<(), QueueError> {
        let Self { inner, unposted } = self;
        check(unposted.end(), inner.complete())
    }

    /// Discards the batch: nothing is posted.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn abort(self) {
        self.unposted.end();
        self.inner.abort();
    }
}
