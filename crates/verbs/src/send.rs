// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posting sends that own their buffers.
//!
//! An [`Wr`] has its id, its destination and its flags; the operation that ends it takes the buffer. A completion gives
//! the buffer back. A work request that is not [signaled](Wr::signaled) has no completion of its own: its buffer goes back
//! to the pool when a later one of the same queue is complete.
#![expect(unsafe_code)]
// UNSAFETY: posts memory that the slab of the queue owns.

use crate::access::Access;
use crate::ah::AddressHandle;
use crate::brief::brief;
use crate::flight::Flight;
use crate::held::Held;
use crate::list::{Memory, Source};
use crate::open::AnyDriver;
use crate::pool::Buf;
use crate::post_to::sealed::PostTo as _;
use crate::post_to::{AtOnce, Batch, Borrowed, Fixed, Movable, PostTo, ToBatch};
use crate::qp::QpControl;
use crate::qp::transport::{Connected, Datagram, HasPeer, Reads, Reliable, Sends, SendsImm, Writes};
use crate::recv::RecvQueue;
use crate::rejected::sealed::Lend as _;
use crate::remote::RemoteRegion;
use crate::scope::Ticket;
use crate::window::Window;
use crate::{
    raw,
    raw::send::{ToDcTarget, ToRemoteSrq},
};
use core::marker::PhantomData;
use std::sync::Arc;
use uverbs_core::attr::{AccessFlags, QpState};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{
    Data, DcTarget, Dest, Driver, Head, Inline, Op, PostError, QueueError, To, WireRemote,
};
use uverbs_core::sync::{Exclusive, LockError, Locking, Shared};
use uverbs_core::wr::{ImmData, SendFlags};

/// A send queue whose work requests own their buffers.
pub struct SendQueue<T, L: Locking = Exclusive, D: Driver = AnyDriver> {
    queue: raw::SendQueue<T, L, D>,
    flight: Arc<Flight<D>>,
}

brief!([T, L: Locking, D: Driver] SendQueue<T, L, D>, |this| "{:?}", this.queue);

impl<D: Driver, T: Sends, L: Locking> SendQueue<T, L, D> {
    pub(super) fn new(queue: raw::SendQueue<T, L, D>, flight: Arc<Flight<D>>) -> Self {
        Self { queue, flight }
    }

    pub(super) fn flight(&self) -> &Arc<Flight<D>> {
        &self.flight
    }

    /// The QP's number.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.queue.qp_num()
    }

    /// As [`Qp::reset`](super::Qp::reset), of the halves of a QP.
    ///
    /// # Errors
    /// [`Error::Invalid`] if these are not all parts of one QP; otherwise the kernel's refusal. The
    /// buffers stay in flight then.
    pub fn reset(&mut self, recv: Option<&mut RecvQueue<L, D>>, control: &QpControl<D>) -> Result<()> {
        let recv = recv.map(|recv| &*recv);
        let mut flights = vec![self.flight()];
        flights.extend(recv.map(RecvQueue::flight));
        if !control.holds().are(&flights) {
            return Err(Error::invalid("modify_qp", "queue", "these are not the parts of one QP"));
        }
        // All posts of the QP need one of the halves, which are borrowed, so none runs at the same time: what is in flight was posted
        // before.
        control.modify_state(QpState::RESET)?;
        flights.into_iter().for_each(|flight| flight.settle_all());
        Ok(())
    }
}

impl<D: Driver, T: Sends> SendQueue<T, Exclusive, D> {
    /// Opens a batch: nothing is visible to the device before [`Batch::complete`]; a drop aborts the batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn batch(&mut self) -> Batch<'_, T, D> {
        Batch::new(self.queue.engine_mut(), &self.flight)
    }

    /// The poster, for [`Scope`](super::Scope).
    pub(super) fn once(&mut self) -> AtOnce<'_, D> {
        AtOnce::new(self.queue.engine_mut(), &self.flight)
    }
}

impl<D: Driver, T: Sends> SendQueue<T, Shared, D> {
    /// Waits for the lock; an error if this thread holds it already.
    ///
    /// # Errors
    /// [`LockError::Reentered`] if this thread holds the lock already; [`LockError::Forked`] in a child of fork(2).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn lock(&self) -> Result<SendGuard<'_, T, D>, LockError> {
        Ok(SendGuard { guard: self.queue.lock()?, flight: &self.flight })
    }
}

/// A locked, shared send queue.
pub struct SendGuard<'q, T, D: Driver> {
    guard: raw::SendGuard<'q, T, D>,
    flight: &'q Flight<D>,
}

brief!([T, D: Driver] SendGuard<'_, T, D>, |this| "{:?}", this.guard);

impl<D: Driver, T: Sends> SendGuard<'_, T, D> {
    /// Opens a batch: nothing is visible to the device before [`Batch::complete`]; a drop aborts the batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn batch(&mut self) -> Batch<'_, T, D> {
        Batch::new(self.guard.engine_mut(), self.flight)
    }

    pub(super) fn once(&mut self) -> AtOnce<'_, D> {
        AtOnce::new(self.guard.engine_mut(), self.flight)
    }
}

macro_rules! beginnings {
    ($($(#[$meta:meta])* [$bound:ident] $batched:ident, $post:ident ($($arg:ident : $ty:ty),*) = $to:expr;)*) => {$(
        impl<'q, D: Driver, T: $bound + Sends> Batch<'q, T, D> {
            $(#[$meta])*
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn $batched<'b>(&'b mut self, wr_id: u64, $($arg: $ty),*) -> Wr<'b, ToBatch<'b, 'q, D>, T, D> {
                Wr::new(self.push(), wr_id, $to)
            }
        }
        impl<D: Driver, T: $bound + Sends> SendQueue<T, Exclusive, D> {
            $(#[$meta])*
            /// Posted at once.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn $post<'b>(&'b mut self, wr_id: u64, $($arg: $ty),*) -> Wr<'b, AtOnce<'b, D>, T, D> {
                Wr::new(self.once(), wr_id, $to)
            }
        }
        impl<D: Driver, T: $bound + Sends> SendGuard<'_, T, D> {
            $(#[$meta])*
            /// Posted at once.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn $post<'b>(&'b mut self, wr_id: u64, $($arg: $ty),*) -> Wr<'b, AtOnce<'b, D>, T, D> {
                Wr::new(self.once(), wr_id, $to)
            }
        }
    )*};
}

beginnings! {
    /// Begins a work request to the QP's peer.
    [Connected] wr, post() = Dest::Peer;
    /// Begins a datagram to the QP `remote_qpn` (0xffffff for multicast) at the address `ah`, with the queue key of that QP.
    [Datagram] wr_to, post_to(ah: &'b AddressHandle<D>, remote_qpn: u32, remote_qkey: u32)
        = Dest::Ud(To { ah: ah.driver_data(), remote_qpn, remote_qkey });
    /// Begins a work request to the peer's shared receive queue `remote_srqn`.
    [ToRemoteSrq] wr_srq, post_srq(remote_srqn: u32) = Dest::Xrc(remote_srqn);
    /// Begins a work request to the DC target `remote_dctn` at the address `ah`, which was created with this key.
    [ToDcTarget] wr_dc, post_dc(ah: &'b AddressHandle<D>, remote_dctn: u32, remote_dc_key: u64)
        = Dest::Dc(DcTarget { ah: ah.driver_data(), remote_dctn, remote_dc_key });
}

/// A work request that has its id and destination, but not yet its flags and operation.
#[must_use = "a work request does nothing before its operation is named"]
pub struct Wr<'a, S, T, D: Driver> {
    pub(crate) sink: S,
    pub(crate) head: Head,
    pub(crate) to: Dest<'a, D::Ah>,
    _types: PhantomData<fn() -> (D, T)>,
}

impl<S, D: Driver, T> core::fmt::Debug for Wr<'_, S, T, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Wr").field("head", &self.head).finish_non_exhaustive()
    }
}

impl<'a, S: PostTo<D>, D: Driver, T> Wr<'a, S, T, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn new(sink: S, wr_id: u64, to: Dest<'a, D::Ah>) -> Self {
        Self { sink, head: Head { wr_id, flags: SendFlags::empty() }, to, _types: PhantomData }
    }

    /// Makes a completion (`IBV_SEND_SIGNALED`), which gives the buffer back.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn signaled(self) -> Self {
        self.flags(SendFlags::SIGNALED)
    }

    /// Waits for all earlier reads and atomics of this QP (`IBV_SEND_FENCE`).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn fenced(self) -> Self {
        self.flags(SendFlags::FENCE)
    }

    /// Asks for a solicited event at the peer (`IBV_SEND_SOLICITED`).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn solicited(self) -> Self {
        self.flags(SendFlags::SOLICITED)
    }

    /// Adds flags.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.head.flags |= flags;
        self
    }

    /// Posts the bytes of a buffer or of a list.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put<'o, B: Source<D>>(self, op: impl FnOnce() -> Op<'o, D::Remote>, data: B) -> S::Out<B> {
        let Self { sink, head, to, .. } = self;
        // SAFETY: the entries name bytes of the buffers, whose pools keep them registered and alive. The slab owns the buffers
        // until the work request is known to be complete, so this process does not access them (private ones), only reads them
        // (shared ones, which the device only reads, too), or accesses them by copies only (exposed ones).
        unsafe { sink.put::<B, _>(head, Movable(data), &to, op) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_inline<'o>(self, op: impl FnOnce() -> Op<'o, D::Remote>, data: &[u8]) -> S::Plain {
        let Self { sink, head, to, .. } = self;
        // SAFETY: inline data name no memory that is used later.
        unsafe { sink.put_plain(head, &to, op, Data::Inline(Inline::Bytes(data))) }
    }
}

impl<D: Driver, T> Wr<'_, AtOnce<'_, D>, T, D> {
    /// Posts memory that a scope borrows.
    ///
    /// # Safety
    /// As [`SendBatch::push`], until the ticket is dropped.
    pub(super) unsafe fn put_scoped(
        self,
        op: Op<'_, D::Remote>,
        sges: &[D::Sge],
        ticket: Ticket,
    ) -> Result<(), QueueError> {
        let Self { sink, head, to, .. } = self;
        let domain = sink.domain();
        // SAFETY: the contract of this function.
        let posted = unsafe {
            let load = Fixed { domain, data: Data::Sges(sges), held: Held::scoped(ticket) };
            sink.put::<Borrowed, _>(head, load, &to, || op)
        };
        posted.map_err(|rejected| rejected.error)
    }
}

impl<S: PostTo<D>, D: Driver, T: Sends> Wr<'_, S, T, D> {
    /// `IBV_WR_SEND`: sends a message, which uses the next receive of the peer.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn send<B: Source<D>>(self, data: B) -> S::Out<B> {
        self.put(|| Op::Send, data)
    }

    /// `IBV_WR_SEND`, of bytes that are copied during the call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn send_inline(self, data: &[u8]) -> S::Plain {
        self.put_inline(|| Op::Send, data)
    }
}

impl<S: PostTo<D>, D: Driver, T: SendsImm> Wr<'_, S, T, D> {
    /// `IBV_WR_SEND_WITH_IMM`: the immediate arrives in the peer's completion.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn send_imm<B: Source<D>>(self, data: B, imm: ImmData) -> S::Out<B> {
        self.put(|| Op::SendImm(imm.get()), data)
    }

    /// `IBV_WR_SEND_WITH_IMM`, of bytes that are copied during the call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn send_imm_inline(self, data: &[u8], imm: ImmData) -> S::Plain {
        self.put_inline(|| Op::SendImm(imm.get()), data)
    }
}

/// The address of a peer's memory.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn remote<R: WireRemote>(at: &RemoteRegion) -> R {
    R::new(at.addr(), at.rkey())
}

impl<S: PostTo<D>, D: Driver, T: HasPeer> Wr<'_, S, T, D> {
    /// `IBV_WR_SEND_WITH_INV`: the peer's `rkey` is invalidated when the message arrives.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn send_inv<B: Source<D>>(self, data: B, rkey: u32) -> S::Out<B> {
        self.put(|| Op::SendInv(rkey), data)
    }
}

impl<S: PostTo<D>, D: Driver, T: Writes> Wr<'_, S, T, D> {
    /// `IBV_WR_RDMA_WRITE`: writes to the front of `to`. [`PostError::InvalidLength`] if it is shorter.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn write<B: Source<D>>(self, data: B, to: &RemoteRegion) -> S::Out<B> {
        if data.bytes() > to.len() {
            return self.sink.refuse(PostError::InvalidLength, data);
        }
        self.put(|| Op::Write(remote(to)), data)
    }

    /// `IBV_WR_RDMA_WRITE`, of bytes that are copied during the call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn write_inline(self, data: &[u8], to: &RemoteRegion) -> S::Plain {
        if data.len() as u64 > to.len() {
            return self.sink.refuse_plain(PostError::InvalidLength);
        }
        self.put_inline(|| Op::Write(remote(to)), data)
    }

    /// `IBV_WR_RDMA_WRITE_WITH_IMM`: as [`write`](Self::write), and uses a receive of the peer, whose completion has the immediate.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn write_imm<B: Source<D>>(self, data: B, to: &RemoteRegion, imm: ImmData) -> S::Out<B> {
        if data.bytes() > to.len() {
            return self.sink.refuse(PostError::InvalidLength, data);
        }
        self.put(|| Op::WriteImm(remote(to), imm.get()), data)
    }

    /// `IBV_WR_RDMA_WRITE_WITH_IMM`, of bytes that are copied during the call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn write_imm_inline(self, data: &[u8], to: &RemoteRegion, imm: ImmData) -> S::Plain {
        if data.len() as u64 > to.len() {
            return self.sink.refuse_plain(PostError::InvalidLength);
        }
        self.put_inline(|| Op::WriteImm(remote(to), imm.get()), data)
    }
}

impl<S: PostTo<D>, D: Driver, T: HasPeer> Wr<'_, S, T, D> {
    /// `IBV_WR_BIND_MW`: opens the window to the peer with the rights `access`. The completion gives the window back, with its
    /// new key.
    pub fn bind(self, window: Window<D>, access: AccessFlags) -> S::Out<Window<D>> {
        self.put_bind(window, access)
    }

    /// `IBV_WR_LOCAL_INV`: ends the access of the peer to an open window of type 2. The completion gives the window back, closed:
    /// [`into_parts`](Window::into_parts) has the buffer, and another [`bind`](Self::bind) opens it with a new key.
    /// [`PostError::InvalidArgument`] for other windows. After an error the window is as it was.
    pub fn local_inv(self, window: Window<D>) -> S::Out<Window<D>> {
        self.put_local_inv(window)
    }
}

impl<S: PostTo<D>, D: Driver, T> Wr<'_, S, T, D> {
    pub(crate) fn put_bind(self, mut window: Window<D>, access: AccessFlags) -> S::Out<Window<D>> {
        let Self { sink, head, to, .. } = self;
        let domain = window.domain();
        if domain != sink.domain() {
            return sink.refuse(PostError::InvalidArgument, window);
        }
        let bind = Op::BindMw(window.begin(access));
        // SAFETY: the bind is of the window's own key and of its exposed buffer, whose pool keeps the region registered. The
        // slab owns the window until the work request is known to be complete. A bind has no entries.
        unsafe {
            let load = Fixed { domain, data: Data::NONE, held: window.lend() };
            sink.put::<Window<D>, _>(head, load, &to, || bind)
        }
    }

    pub(crate) fn put_local_inv(self, mut window: Window<D>) -> S::Out<Window<D>> {
        let Self { sink, head, to, .. } = self;
        let domain = window.domain();
        let key = window.begin_end().filter(|_| domain == sink.domain());
        let Some(key) = key else {
            return sink.refuse(PostError::InvalidArgument, window);
        };
        // SAFETY: an invalidation has no entries.
        unsafe {
            let load = Fixed { domain, data: Data::NONE, held: window.lend() };
            sink.put::<Window<D>, _>(head, load, &to, || Op::LocalInv(key))
        }
    }
}

impl<S: PostTo<D>, D: Driver, T: Reads> Wr<'_, S, T, D> {
    /// `IBV_WR_RDMA_READ`: reads as many bytes as the buffer's length from the front of `from`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn read<B: Memory<D>>(self, data: B, from: &RemoteRegion) -> S::Out<B> {
        if data.bytes() > from.len() {
            return self.sink.refuse(PostError::InvalidLength, data);
        }
        self.put(|| Op::Read(remote(from)), data)
    }
}

impl<S: PostTo<D>, D: Driver, T: Reliable> Wr<'_, S, T, D> {
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`: stores `swap` to the first 8 bytes of `at`, whose address is a multiple of 8, if they are
    /// `compare`. The old value arrives in the first 8 bytes of the buffer. All three values are in host byte order.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn compare_swap<K: Access>(
        self,
        mut buf: Buf<K, D>,
        at: &RemoteRegion,
        compare: u64,
        swap: u64,
    ) -> S::Out<Buf<K, D>> {
        if at.len() < 8 || buf.set_len(8).is_err() {
            return self.sink.refuse(PostError::InvalidLength, buf);
        }
        self.put(|| Op::CmpSwp(remote(at), compare, swap), buf)
    }

    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`: adds `add` to the first 8 bytes of `at`. Alignment, old value and byte order are those of
    /// [`compare_swap`](Self::compare_swap).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn fetch_add<K: Access>(self, mut buf: Buf<K, D>, at: &RemoteRegion, add: u64) -> S::Out<Buf<K, D>> {
        if at.len() < 8 || buf.set_len(8).is_err() {
            return self.sink.refuse(PostError::InvalidLength, buf);
        }
        self.put(|| Op::FetchAdd(remote(at), add), buf)
    }
}
