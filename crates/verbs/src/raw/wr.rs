// SPDX-License-Identifier: MIT OR Apache-2.0
//! The builder of a work request: first the flags, then the operation, which consumes it.
//!
//! A [`Wr`] ends in a [`PostTo`]: an open [`Batch`](super::Batch), or a send queue that posts it immediately. Operations
//! that name memory by scatter/gather entries are `unsafe`, because the device uses that memory later; operations that
//! copy the bytes during the call are safe.
#![expect(unsafe_code)]
// UNSAFETY: passes the caller's guarantee about memory on to the driver's encoder.

use crate::brief::brief;
use crate::label::check;
use crate::open::AnyDriver;
use crate::qp::inner::QpInner;
use crate::qp::transport::{HasPeer, Reads, Reliable, Sends, SendsImm, Writes};
use core::marker::PhantomData;
use std::sync::Arc;
use uverbs_core::provider::op::{FlushArgs, MwBind, Op, TsoArgs};
use uverbs_core::provider::send::{SendBatch, SendQueue};
use uverbs_core::provider::{Data, Dest, Head, Inline, Wr as Value};
use uverbs_core::provider::{Driver, QueueError};
use uverbs_core::wr::{ImmData, SendFlags};

/// The receiver of a finished work request.
pub trait PostTo<D: Driver>: Sized {
    /// The result of the operation: nothing for a batch (`complete` reports errors), a `Result` for a single post.
    type Out;

    /// Adds or posts the work request.
    ///
    /// # Safety
    /// As [`SendBatch::push`].
    unsafe fn put(self, wr: &Value<'_, D::Ah, D::Sge, D::Remote>) -> Self::Out;
}

/// Adds to an open batch.
pub struct ToBatch<'b, 'q, D: Driver = AnyDriver>(pub(super) &'b mut <D::SendQueue as SendQueue>::Batch<'q>);

impl<D: Driver> core::fmt::Debug for ToBatch<'_, '_, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ToBatch")
    }
}

impl<D: Driver> PostTo<D> for ToBatch<'_, '_, D> {
    type Out = ();

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put(self, wr: &Value<'_, D::Ah, D::Sge, D::Remote>) {
        // SAFETY: the WR fulfils the contract of `SendBatch::push`, which is also that of `put`.
        unsafe { self.0.push(wr) }
    }
}

/// Posts immediately.
pub struct AtOnce<'q, D: Driver = AnyDriver>(pub(super) &'q mut D::SendQueue, pub(super) &'q Arc<QpInner<D>>);

brief!([D: Driver] AtOnce<'_, D>, |this| "AtOnce to {:?}", this.1);

impl<D: Driver> PostTo<D> for AtOnce<'_, D> {
    type Out = Result<(), QueueError>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put(self, wr: &Value<'_, D::Ah, D::Sge, D::Remote>) -> Result<(), QueueError> {
        // SAFETY: the WR fulfils the contract of `SendBatch::push`, which is also that of `put`.
        check(self.1, unsafe { self.0.post(wr) })
    }
}

/// A work request that has its id and destination, but not yet its flags and operation.
#[must_use = "a work request has no effect without an operation"]
pub struct Wr<'a, S, T, D: Driver> {
    sink: S,
    head: Head,
    to: Dest<'a, D::Ah>,
    _types: PhantomData<fn() -> (D, T)>,
}

impl<S, D: Driver, T> core::fmt::Debug for Wr<'_, S, T, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Wr").field("head", &self.head).finish_non_exhaustive()
    }
}

impl<'a, S: PostTo<D>, D: Driver, T> Wr<'a, S, T, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn new(sink: S, wr_id: u64, to: Dest<'a, D::Ah>) -> Self {
        Self { sink, head: Head { wr_id, flags: SendFlags::empty() }, to, _types: PhantomData }
    }

    /// Requests a completion (`IBV_SEND_SIGNALED`).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn signaled(self) -> Self {
        self.flags(SendFlags::SIGNALED)
    }

    /// Waits for all earlier reads and atomics of this QP (`IBV_SEND_FENCE`).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn fenced(self) -> Self {
        self.flags(SendFlags::FENCE)
    }

    /// Requests a solicited event at the peer (`IBV_SEND_SOLICITED`).
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

    /// # Safety
    /// As [`SendBatch::push`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put(self, op: Op<'_, D::Remote>, data: Data<'_, D::Sge>) -> S::Out {
        let Self { sink, head: Head { wr_id, flags }, to, .. } = self;
        // SAFETY: the WR fulfils the contract of `SendBatch::push`, which is also that of this function.
        unsafe { sink.put(&Value { wr_id, flags, to, op, data }) }
    }
}

macro_rules! with_data {
    ($(
        $(#[$meta:meta])*
        [$bound:ident] $name:ident, $inline:ident, $list:ident, $array:ident ($($arg:ident : $ty:ty),*) = $op:expr;
    )*) => {$(
        impl<S: PostTo<D>, D: Driver, T: $bound> Wr<'_, S, T, D> {
            $(#[$meta])*
            ///
            /// # Safety
            /// The memory that `sges` name stays registered and alive, and is not written, until this work request is
            /// known to be complete. For a frame (of a raw packet QP), the address of each entry is the address of its
            /// memory in this process ([`SendBatch::push`]), because the driver may read headers there during the call.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub unsafe fn $name(self, sges: &[D::Sge], $($arg: $ty),*) -> S::Out {
                // SAFETY: the entries' memory stays registered, exists and is not written until the WR completes (the
                // contract of this function).
                unsafe { self.put($op, Data::Sges(sges)) }
            }

            $(#[$meta])*
            /// The bytes are copied during the call and need no registration.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn $inline(self, data: &[u8], $($arg: $ty),*) -> S::Out {
                // SAFETY: inline data names no memory that is used later.
                unsafe { self.put($op, Data::Inline(Inline::Bytes(data))) }
            }

            $(#[$meta])*
            /// Several buffers, copied one after the other during the call.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn $list(self, bufs: &[&[u8]], $($arg: $ty),*) -> S::Out {
                // SAFETY: inline data names no memory that is used later.
                unsafe { self.put($op, Data::Inline(Inline::List(bufs))) }
            }

            $(#[$meta])*
            /// A number of bytes known at compile time, copied during the call.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn $array<const N: usize>(self, data: &[u8; N], $($arg: $ty),*) -> S::Out {
                // SAFETY: inline data names no memory that is used later.
                unsafe { self.put($op, Data::Inline(Inline::Bytes(data))) }
            }
        }
    )*};
}

with_data! {
    /// `IBV_WR_SEND`: sends a message, which uses the next receive of the peer.
    [Sends] send, send_inline, send_inline_list, send_array() = Op::Send;
    /// `IBV_WR_SEND_WITH_IMM`: the immediate arrives in the peer's completion.
    [SendsImm] send_imm, send_imm_inline, send_imm_inline_list, send_imm_array(imm: ImmData) = Op::SendImm(imm.get());
    /// `IBV_WR_SEND_WITH_INV`: the peer's `rkey` is invalidated when the message arrives.
    [HasPeer] send_inv, send_inv_inline, send_inv_inline_list, send_inv_array(rkey: u32) = Op::SendInv(rkey);
    /// `IBV_WR_RDMA_WRITE`: writes to the memory of the peer, whose program is not notified.
    [Writes] write, write_inline, write_inline_list, write_array(to: D::Remote) = Op::Write(to);
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`: consumes a receive of the peer and arrives in its completion.
    [Writes] write_imm, write_imm_inline, write_imm_inline_list, write_imm_array(to: D::Remote, imm: ImmData)
        = Op::WriteImm(to, imm.get());
}

impl<S: PostTo<D>, D: Driver, T: Reads> Wr<'_, S, T, D> {
    /// `IBV_WR_RDMA_READ`: reads the memory of the peer from `from` on, as many bytes as `sges` have.
    ///
    /// # Safety
    /// The memory that `sges` name stays registered (with local write access) and alive, and is not accessed, until
    /// this work request is known to be complete.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn read(self, sges: &[D::Sge], from: D::Remote) -> S::Out {
        // SAFETY: the entries' memory stays registered, exists and is not accessed until the WR completes (the contract
        // of this function).
        unsafe { self.put(Op::Read(from), Data::Sges(sges)) }
    }
}

impl<S: PostTo<D>, D: Driver, T: Reliable> Wr<'_, S, T, D> {
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`: stores `swap` to the 8 bytes at `at`, an address that is a multiple of 8, if they are
    /// `compare`. The old value arrives in the first entry of `sges` that is not empty, which has at least 8 bytes. All three
    /// values are in host byte order.
    ///
    /// # Safety
    /// As [`read`](Self::read).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn compare_swap(self, sges: &[D::Sge], at: D::Remote, compare: u64, swap: u64) -> S::Out {
        // SAFETY: the entries' memory stays registered, exists and is not accessed until the WR completes (the contract
        // of `read`).
        unsafe { self.put(Op::CmpSwp(at, compare, swap), Data::Sges(sges)) }
    }

    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`: adds `add` to the 8 bytes at `at`. Alignment, old value and byte order are those of
    /// [`compare_swap`](Self::compare_swap).
    ///
    /// # Safety
    /// As [`read`](Self::read).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn fetch_add(self, sges: &[D::Sge], at: D::Remote, add: u64) -> S::Out {
        // SAFETY: the entries' memory stays registered, exists and is not accessed until the WR completes (the contract
        // of `read`).
        unsafe { self.put(Op::FetchAdd(at, add), Data::Sges(sges)) }
    }

    /// `IBV_WR_FLUSH`: makes earlier writes visible or persistent at the peer.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn flush(self, at: D::Remote, args: FlushArgs) -> S::Out {
        // SAFETY: no local memory is named.
        unsafe { self.put(Op::Flush(at, args), Data::NONE) }
    }

    /// `IBV_WR_ATOMIC_WRITE`: stores 8 bytes at `to`, an address that is a multiple of 8, atomically.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn atomic_write(self, to: D::Remote, data: [u8; 8]) -> S::Out {
        // SAFETY: no local memory is named.
        unsafe { self.put(Op::AtomicWrite(to, data), Data::NONE) }
    }
}

impl<S: PostTo<D>, D: Driver, T: HasPeer> Wr<'_, S, T, D> {
    /// `IBV_WR_LOCAL_INV`: invalidates a local window's key.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn local_inv(self, rkey: u32) -> S::Out {
        // SAFETY: an invalidation has no entries.
        unsafe { self.put(Op::LocalInv(rkey), Data::NONE) }
    }

    /// `IBV_WR_BIND_MW`: grants access to a part of a region to peers that have `bind.rkey`.
    ///
    /// # Safety
    /// As [`SendBatch::push`]. A bind from [`MemoryWindow::bind`](crate::MemoryWindow::bind), in which only the low
    /// byte of `rkey` may be changed, names an exposed region; the caller guarantees that the region stays registered
    /// until this work request is known to be complete.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn bind_mw(self, bind: MwBind) -> S::Out {
        // SAFETY: the bind fulfils the contract of `SendBatch::push` (the contract of this function).
        unsafe { self.put(Op::BindMw(bind), Data::NONE) }
    }
}

impl<S: PostTo<D>, D: Driver, T: Sends> Wr<'_, S, T, D> {
    /// `IBV_WR_TSO`: the device divides the data into segments and puts the header before each. The creation of the QP
    /// determines whether it has this operation.
    ///
    /// # Safety
    /// As [`send`](Self::send).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn send_tso(self, args: TsoArgs<'_>, sges: &[D::Sge]) -> S::Out {
        // SAFETY: the entries' memory fulfils the contract of this function, which is that of `send`.
        unsafe { self.put(Op::Tso(args), Data::Sges(sges)) }
    }
}
