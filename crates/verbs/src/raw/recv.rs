// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receive half of a QP (ibv_post_recv(3)).

use crate::brief::brief;
use crate::label::Label;
use crate::open::AnyDriver;
use crate::qp::inner::QpInner;
pub use crate::raw::receiver::{Receiver, RecvBatch, RecvGuard};
use std::sync::Arc;
use uverbs_core::provider::{BadWr, Driver, QueueError, QueueKind};
use uverbs_core::sync::{Exclusive, LockError, Locked, Locking, Shared};
use uverbs_core::wr::RecvWr;

/// The receive queue of a QP.
pub struct RecvQueue<L: Locking = Exclusive, D: Driver = AnyDriver> {
    receiver: Receiver<D::RecvQueue, L>,
    qp: Arc<QpInner<D>>,
}

brief!([L: Locking, D: Driver] RecvQueue<L, D>, |this| "RecvQueue of {:?}", this.qp);

impl<D: Driver, L: Locking> RecvQueue<L, D> {
    pub(super) fn new(engine: D::RecvQueue, qp: Arc<QpInner<D>>) -> Self {
        let label = Label::new(QueueKind::Recv, qp.qp_num(), qp.cap().max_recv_wr);
        Self { receiver: Receiver::new(engine, label), qp }
    }

    /// `ibv_post_recv`, as C calls it.
    ///
    /// # Errors
    /// The first WR that was not posted, with the reason; those before it were.
    ///
    /// # Safety
    /// As [`raw::post_recv`](uverbs_core::provider::raw::post_recv).
    #[expect(unsafe_code, reason = "C's contract: a list of raw pointers")]
    pub unsafe fn post_recv(&self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: `list` fulfils the contract of `raw::post_recv`, which is also that of this function.
        unsafe { self.receiver.post_list(list) }
    }

    /// The engine behind its lock, for faces that are built on this crate. A program that swaps it with that of another QP posts to the
    /// other queue.
    #[must_use]
    pub fn as_locked(&self) -> &Locked<D::RecvQueue, L> {
        self.receiver.locked()
    }
}

impl<D: Driver> RecvQueue<Exclusive, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn engine_mut(&mut self) -> &mut D::RecvQueue {
        self.receiver.engine_mut()
    }

    /// Opens a batch of receives.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn batch(&mut self) -> RecvBatch<'_, D::RecvQueue> {
        self.receiver.batch()
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// [`QueueError`]: the queue is full, too many entries, or a state in which the queue takes no receives.
    ///
    /// # Safety
    /// As [`RecvBatch::push`].
    #[expect(unsafe_code, reason = "the memory must stay until the receive completes")]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[D::Sge]) -> Result<(), QueueError> {
        // SAFETY: the entries' memory fulfils the contract of `RecvBatch::push`, which is also that of this function.
        unsafe { self.receiver.post(wr_id, sges) }
    }
}

impl<D: Driver> RecvQueue<Shared, D> {
    /// Waits for the lock; an error if this thread holds it already, or in a child of fork(2).
    ///
    /// # Errors
    /// [`LockError::Reentered`] if this thread holds the lock; [`LockError::Forked`] in a child of fork(2), if a thread of the
    /// parent held it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn lock(&self) -> Result<RecvGuard<'_, D::RecvQueue>, LockError> {
        self.receiver.lock()
    }
}
