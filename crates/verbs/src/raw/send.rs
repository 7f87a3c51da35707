// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send half of a QP: batches, single posts, and access to the C-style calls (ibv_post_send(3), ibv_wr_post(3)).

use crate::ah::AddressHandle;
use crate::brief::brief;
use crate::label::{Unposted, check};
use crate::open::AnyDriver;
use crate::qp::inner::QpInner;
use crate::qp::transport::{Connected, Datagram, Dci, Sends, XrcSend};
use crate::raw::wr::{AtOnce, ToBatch, Wr};
use core::marker::PhantomData;
use std::sync::Arc;
use uverbs_core::provider::raw::QpEx;
use uverbs_core::provider::send::{SendBatch, SendQueue as Engine};
use uverbs_core::provider::{BadWr, DcTarget, Dest, Driver, QueueError, To, raw};
use uverbs_core::sync::{Exclusive, Guard, LockError, Locked, Locking, Shared};
use uverbs_core::wr::SendWr;

/// The send queue of a QP.
///
/// With [`Exclusive`] locking it is posted to through `&mut`; with [`Shared`], after [`lock`](SendQueue::lock).
pub struct SendQueue<T, L: Locking = Exclusive, D: Driver = AnyDriver> {
    engine: Locked<D::SendQueue, L>,
    qp: Arc<QpInner<D>>,
    _transport: PhantomData<fn() -> T>,
}

brief!([T, L: Locking, D: Driver] SendQueue<T, L, D>, |this| "SendQueue of {:?}", this.qp);

impl<D: Driver, T: Sends, L: Locking> SendQueue<T, L, D> {
    pub(super) fn new(engine: D::SendQueue, qp: Arc<QpInner<D>>) -> Self {
        Self { engine: Locked::new(engine), qp, _transport: PhantomData }
    }

    /// The QP's number.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// The `wr_*` builder face, as C's `struct ibv_qp_ex`.
    ///
    /// `None` if the QP was created without `send_ops_flags`, as `ibv_qp_to_qp_ex` is then NULL.
    #[must_use]
    pub fn qp_ex(&self) -> Option<QpEx<'_>> {
        self.qp.has_send_ops().then(|| QpEx::new::<_, L>(&self.engine))
    }

    /// `ibv_post_send`, as C calls it.
    ///
    /// # Errors
    /// The first WR that was not posted, with the reason; those before it were.
    ///
    /// # Safety
    /// As [`raw::post_send`].
    #[expect(unsafe_code, reason = "C's contract: a list of raw pointers")]
    pub unsafe fn post_send(&self, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
        // SAFETY: `list` fulfils the contract of `raw::post_send`, which is also that of this function.
        unsafe { raw::post_send(&self.engine, list) }
    }

    /// The engine behind its lock, for faces that are built on this crate. A program that swaps it with that of another QP posts to the
    /// other queue.
    #[must_use]
    pub fn as_locked(&self) -> &Locked<D::SendQueue, L> {
        &self.engine
    }
}

impl<D: Driver, T: Sends> SendQueue<T, Exclusive, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn engine_mut(&mut self) -> &mut D::SendQueue {
        self.engine.get_mut()
    }

    /// Opens a batch: nothing is visible to the device before [`Batch::complete`]; a drop aborts the batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn batch(&mut self) -> Batch<'_, T, D> {
        Batch::new(self.engine.get_mut().batch(), &self.qp)
    }
}

macro_rules! single_posts {
    ($($(#[$meta:meta])* [$bound:ident] $name:ident, $post:ident ($($arg:ident : $ty:ty),*) = $to:expr;)*) => {$(
        impl<'q, D: Driver, T: $bound + Sends> Batch<'q, T, D> {
            $(#[$meta])*
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn $name<'b>(&'b mut self, wr_id: u64, $($arg: $ty),*) -> Wr<'b, ToBatch<'b, 'q, D>, T, D> {
                self.unposted.any = true;
                Wr::new(ToBatch(&mut self.inner), wr_id, $to)
            }
        }
        impl<D: Driver, T: $bound + Sends> SendQueue<T, Exclusive, D> {
            $(#[$meta])*
            /// Posts immediately.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn $post<'b>(&'b mut self, wr_id: u64, $($arg: $ty),*) -> Wr<'b, AtOnce<'b, D>, T, D> {
                Wr::new(AtOnce(self.engine.get_mut(), &self.qp), wr_id, $to)
            }
        }
        impl<D: Driver, T: $bound + Sends> SendGuard<'_, T, D> {
            $(#[$meta])*
            /// Posts immediately.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn $post<'b>(&'b mut self, wr_id: u64, $($arg: $ty),*) -> Wr<'b, AtOnce<'b, D>, T, D> {
                Wr::new(AtOnce(&mut *self.guard, self.qp), wr_id, $to)
            }
        }
    )*};
}

/// Implemented by [`XrcSend`] only.
pub trait ToRemoteSrq: crate::qp::transport::Transport {}
impl ToRemoteSrq for XrcSend {}
/// Implemented by [`Dci`] only.
pub trait ToDcTarget: crate::qp::transport::Transport {}
impl ToDcTarget for Dci {}
/// Implemented by raw packet QPs only.
pub trait Frames: crate::qp::transport::Transport {}
impl Frames for crate::qp::transport::RawPacket {}

single_posts! {
    /// Begins a work request to the QP's peer.
    [Connected] wr, post() = Dest::Peer;
    /// Begins a datagram to the QP `remote_qpn` (0xffffff for multicast) at the address `ah`, with the queue key of that QP.
    [Datagram] wr_to, post_to(ah: &'b AddressHandle<D>, remote_qpn: u32, remote_qkey: u32)
        = Dest::Ud(To { ah: ah.driver_data(), remote_qpn, remote_qkey });
    /// Begins a work request to the peer's shared receive queue `remote_srqn`.
    [ToRemoteSrq] wr_srq, post_srq(remote_srqn: u32) = Dest::Xrc(remote_srqn);
    /// Begins a work request to the DC target `remote_dctn` at the address `ah`, which was created with this key
    /// (`wr_set_dc_addr`).
    [ToDcTarget] wr_dc, post_dc(ah: &'b AddressHandle<D>, remote_dctn: u32, remote_dc_key: u64)
        = Dest::Dc(DcTarget { ah: ah.driver_data(), remote_dctn, remote_dc_key });
    /// Begins a frame.
    [Frames] frame, post_frame() = Dest::Frame;
}

impl<D: Driver, T: Sends> SendQueue<T, Shared, D> {
    /// Waits for the lock; an error if this thread holds it already, or in a child of fork(2).
    ///
    /// # Errors
    /// [`LockError::Reentered`] if this thread holds the lock; [`LockError::Forked`] in a child of fork(2), if a thread of the
    /// parent held it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn lock(&self) -> Result<SendGuard<'_, T, D>, LockError> {
        Ok(SendGuard { guard: self.engine.lock()?, qp: &self.qp, _transport: PhantomData })
    }
}

/// A locked, shared send queue.
pub struct SendGuard<'q, T, D: Driver> {
    guard: Guard<'q, D::SendQueue>,
    qp: &'q Arc<QpInner<D>>,
    _transport: PhantomData<fn() -> T>,
}

brief!([T, D: Driver] SendGuard<'_, T, D>, |this| "SendGuard of {:?}", this.qp);

impl<D: Driver, T: Sends> SendGuard<'_, T, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn engine_mut(&mut self) -> &mut D::SendQueue {
        &mut self.guard
    }

    /// Opens a batch: nothing is visible to the device before [`Batch::complete`]; a drop aborts the batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn batch(&mut self) -> Batch<'_, T, D> {
        Batch::new(self.guard.batch(), self.qp)
    }
}

/// A batch of work requests. [`complete`](Self::complete) reports the first error.
///
/// A drop without [`complete`](Self::complete) or [`abort`](Self::abort) posts nothing, and logs a warning for the first such batch of
/// the queue.
#[must_use = "a batch that is not completed posts nothing"]
pub struct Batch<'q, T, D: Driver> {
    inner: <D::SendQueue as Engine>::Batch<'q>,
    unposted: Unposted<'q, Arc<QpInner<D>>>,
    _transport: PhantomData<fn() -> T>,
}

impl<D: Driver, T> core::fmt::Debug for Batch<'_, T, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl<'q, D: Driver, T: Sends> Batch<'q, T, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn new(inner: <D::SendQueue as Engine>::Batch<'q>, qp: &'q Arc<QpInner<D>>) -> Self {
        Self { inner, unposted: Unposted::new(qp), _transport: PhantomData }
    }

    /// Makes all work requests visible to the device and rings the doorbell. If one of them was invalid, discards all
    /// and returns the first error.
    ///
    /// # Errors
    /// That of the first invalid WR, or [`PostError::QueueFull`](crate::PostError::QueueFull); nothing was posted then. Only after [`PostError::Doorbell`](crate::PostError::Doorbell) (rxe: the system call failed) the WRs may run.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn complete(self) -> Result<(), QueueError> {
        let Self { inner, unposted, .. } = self;
        check(unposted.end(), inner.complete())
    }

    /// Discards the batch: nothing is posted.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn abort(self) {
        self.unposted.end();
        self.inner.abort();
    }
}
