// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations of a send queue as types, and the destinations of messages.
//!
//! A driver's encoder is generic over [`Operation`] and [`Address`]. The differences between opcodes are associated
//! constants, or accessors that return `None` by their type, so the compiler removes the code that does not apply.
#![expect(unsafe_code)]
// UNSAFETY: declares the contract of a window bind.

use super::wire::WireRemote;
use crate::wr::{ImmData, WrOpcode};

/// The arguments of a window bind, without C's pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The window's current rkey.
    pub mw_rkey: u32,
    /// 1 or 2.
    pub mw_type: u32,
    /// The new rkey of the window.
    pub rkey: u32,
    /// Local key of the region to which the window gives access.
    pub mr_lkey: u32,
    /// First address that it covers.
    pub addr: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// `ibv_access_flags`, raw.
    pub access: u32,
}

/// The operands of compare-and-swap or fetch-and-add, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicArgs {
    /// Compare value, or the addend.
    pub compare_add: u64,
    /// Swap value; 0 for fetch-and-add.
    pub swap: u64,
}

/// The range and kind of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushArgs {
    /// Bytes from the remote address; ignored when the level is the whole region.
    pub length: u32,
    /// `ib_placement_type`: 1 global visibility, 2 persistence.
    pub placement: u8,
    /// `ib_selectivity_level`: 0 range, 1 whole region.
    pub level: u8,
}

/// The header of a segmented send.
#[derive(Clone, Copy, Debug)]
pub struct TsoArgs<'a> {
    /// The device puts it before every segment.
    pub header: &'a [u8],
    /// Payload bytes of a segment.
    pub mss: u16,
}

/// One operation of a send queue, with the arguments that have no setter of their own.
pub trait Operation: Copy {
    /// The driver's form of a remote address.
    type Remote: WireRemote;
    /// The opcode.
    const OPCODE: WrOpcode;
    /// Whether it takes data (by sges or inline). Windows and invalidations do not.
    const HAS_DATA: bool = true;

    /// Remote address and key: RDMA and atomics.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn remote(&self) -> Option<Self::Remote> {
        None
    }
    /// Immediate data.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn imm_data(&self) -> Option<ImmData> {
        None
    }
    /// Key to invalidate, here or at the peer.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn invalidate_rkey(&self) -> Option<u32> {
        None
    }
    /// Operands of an atomic.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn atomic(&self) -> Option<AtomicArgs> {
        None
    }
    /// Window bind.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn bind_mw(&self) -> Option<MwBind> {
        None
    }
    /// Segmented send.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn tso(&self) -> Option<TsoArgs<'_>> {
        None
    }
    /// Flush.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn flush(&self) -> Option<FlushArgs> {
        None
    }
    /// The 8 bytes of an atomic write.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn atomic_write(&self) -> Option<[u8; 8]> {
        None
    }
}

macro_rules! operations {
    ($($(#[$meta:meta])* $name:ident [$($lt:lifetime)?] $opcode:ident $({ $($(#[$fmeta:meta])* $field:ident : $ty:ty),* })?
       $(=> { $($body:tt)* })?;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<$($lt,)? R> {
            $($($(#[$fmeta])* pub $field: $ty,)*)?
            #[doc(hidden)]
            pub _remote: core::marker::PhantomData<R>,
        }
        impl<$($lt,)? R: WireRemote> $name<$($lt,)? R> {
            /// Creates the operation.
            #[cfg_attr(not(debug_assertions), inline(always))]
            #[must_use]
            #[expect(clippy::new_without_default, reason = "an operation without arguments is still made on purpose")]
            #[allow(unfulfilled_lint_expectations, clippy::allow_attributes, reason = "most have arguments")]
            pub const fn new($($($field: $ty),*)?) -> Self {
                Self { $($($field,)*)? _remote: core::marker::PhantomData }
            }
        }
        impl<$($lt,)? R: WireRemote> Operation for $name<$($lt,)? R> {
            type Remote = R;
            const OPCODE: WrOpcode = WrOpcode::$opcode;
            $($($body)*)?
        }
    )*};
}

operations! {
    /// `IBV_WR_SEND`
    Send [] SEND;
    /// `IBV_WR_SEND_WITH_IMM`
    SendImm [] SEND_WITH_IMM {
        /// Arrives in the peer's completion.
        imm: ImmData
    } => {
        #[cfg_attr(not(debug_assertions), inline(always))] fn imm_data(&self) -> Option<ImmData> { Some(self.imm) }
    };
    /// `IBV_WR_SEND_WITH_INV`
    SendInv [] SEND_WITH_INV {
        /// The peer's key that the send invalidates.
        rkey: u32
    } => {
        #[cfg_attr(not(debug_assertions), inline(always))] fn invalidate_rkey(&self) -> Option<u32> { Some(self.rkey) }
    };
    /// `IBV_WR_RDMA_WRITE`
    Write [] RDMA_WRITE {
        /// The destination.
        to: R
    } => {
        #[cfg_attr(not(debug_assertions), inline(always))] fn remote(&self) -> Option<R> { Some(self.to) }
    };
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`
    WriteImm [] RDMA_WRITE_WITH_IMM {
        /// The destination.
        to: R,
        /// Arrives in the peer's completion.
        imm: ImmData
    } => {
        #[cfg_attr(not(debug_assertions), inline(always))] fn remote(&self) -> Option<R> { Some(self.to) }
        #[cfg_attr(not(debug_assertions), inline(always))] fn imm_data(&self) -> Option<ImmData> { Some(self.imm) }
    };
    /// `IBV_WR_RDMA_READ`
    Read [] RDMA_READ {
        /// The source.
        from: R
    } => {
        #[cfg_attr(not(debug_assertions), inline(always))] fn remote(&self) -> Option<R> { Some(self.from) }
    };
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`: the old value arrives in the sges, 8 bytes.
    CmpSwp [] ATOMIC_CMP_AND_SWP {
        /// The 8-byte aligned word.
        at: R,
        /// Stores the swap value only if the word equals this.
        compare: u64,
        /// The value that is stored.
        swap: u64
    } => {
        #[cfg_attr(not(debug_assertions), inline(always))] fn remote(&self) -> Option<R> { Some(self.at) }
        #[cfg_attr(not(debug_assertions), inline(always))] fn atomic(&self) -> Option<AtomicArgs> {
            Some(AtomicArgs { compare_add: self.compare, swap: self.swap })
        }
    };
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`: the old value arrives in the sges, 8 bytes.
    FetchAdd [] ATOMIC_FETCH_AND_ADD {
        /// The 8-byte aligned word.
        at: R,
        /// The value that is added.
        add: u64
    } => {
        #[cfg_attr(not(debug_assertions), inline(always))] fn remote(&self) -> Option<R> { Some(self.at) }
        #[cfg_attr(not(debug_assertions), inline(always))] fn atomic(&self) -> Option<AtomicArgs> {
            Some(AtomicArgs { compare_add: self.add, swap: 0 })
        }
    };
    /// `IBV_WR_LOCAL_INV`
    LocalInv [] LOCAL_INV {
        /// The local window's (or region's) key to invalidate.
        rkey: u32
    } => {
        const HAS_DATA: bool = false;
        #[cfg_attr(not(debug_assertions), inline(always))] fn invalidate_rkey(&self) -> Option<u32> { Some(self.rkey) }
    };
    /// `IBV_WR_TSO`
    Tso ['a] TSO {
        /// Header and segment size.
        args: TsoArgs<'a>
    } => {
        #[cfg_attr(not(debug_assertions), inline(always))] fn tso(&self) -> Option<TsoArgs<'_>> { Some(self.args) }
    };
    /// `IBV_WR_FLUSH`
    Flush [] FLUSH {
        /// Start of the range.
        at: R,
        /// Range and kind.
        args: FlushArgs
    } => {
        const HAS_DATA: bool = false;
        #[cfg_attr(not(debug_assertions), inline(always))] fn remote(&self) -> Option<R> { Some(self.at) }
        #[cfg_attr(not(debug_assertions), inline(always))] fn flush(&self) -> Option<FlushArgs> { Some(self.args) }
    };
    /// `IBV_WR_ATOMIC_WRITE`
    AtomicWrite [] ATOMIC_WRITE {
        /// The 8-byte aligned word.
        to: R,
        /// The value that is stored atomically.
        data: [u8; 8]
    } => {
        const HAS_DATA: bool = false;
        #[cfg_attr(not(debug_assertions), inline(always))] fn remote(&self) -> Option<R> { Some(self.to) }
        #[cfg_attr(not(debug_assertions), inline(always))] fn atomic_write(&self) -> Option<[u8; 8]> { Some(self.data) }
    };
}

/// `IBV_WR_BIND_MW`
#[derive(Clone, Copy, Debug)]
pub struct BindMw<R> {
    bind: MwBind,
    _remote: core::marker::PhantomData<R>,
}

impl<R: WireRemote> BindMw<R> {
    /// Creates the operation.
    ///
    /// # Safety
    /// From the bind on, peers may access `bind.length` bytes from `bind.addr` with the rights `bind.access`, even if
    /// the region was registered without them: on hardware a window may be bound over any region of the domain. So
    /// until the work request is known to be complete, `bind.mr_lkey` is the key of a region to whose memory this
    /// process has no reference that forbids such accesses. (While a window is bound, the kernel does not deregister
    /// the region.) A bind of 0 bytes gives no access.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub const unsafe fn new(bind: MwBind) -> Self {
        Self { bind, _remote: core::marker::PhantomData }
    }
}

impl<R: WireRemote> Operation for BindMw<R> {
    type Remote = R;
    const OPCODE: WrOpcode = WrOpcode::BIND_MW;
    const HAS_DATA: bool = false;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn bind_mw(&self) -> Option<MwBind> {
        Some(self.bind)
    }
}

/// The destination of a message: the QP's connection, or an address in the WR.
///
/// `A` is the driver's address handle data ([`RawAh::driver`](crate::wr::RawAh)).
pub trait Address<A>: Copy {
    /// Datagram: address handle, destination QP number and queue key.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn datagram(&self) -> Option<(&A, u32, u32)> {
        None
    }
    /// XRC: number of the remote shared receive queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn remote_srqn(&self) -> Option<u32> {
        None
    }
    /// Dynamically connected: address handle, DCT number and DC access key of the target.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn dc_target(&self) -> Option<(&A, u32, u64)> {
        None
    }
    /// Whether the frame contains the destination (raw packet).
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_frame(&self) -> bool {
        false
    }
}

/// The destination is that of the QP's connection (RC, UC), or of the frame (raw packet).
#[derive(Clone, Copy, Debug)]
pub struct Connected;
impl<A> Address<A> for Connected {}

/// The destination is that of the frame (raw packet).
#[derive(Clone, Copy, Debug)]
pub struct Frame;
impl<A> Address<A> for Frame {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_frame(&self) -> bool {
        true
    }
}

/// A datagram's destination.
#[derive(Debug)]
pub struct To<'a, A> {
    /// The driver's data of the address handle.
    pub ah: &'a A,
    /// Destination QP number, 24 bits; 0xffffff for multicast.
    pub remote_qpn: u32,
    /// The destination's queue key; with the top bit set, the sending QP's own is used.
    pub remote_qkey: u32,
}
impl<A> Clone for To<'_, A> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for To<'_, A> {}
impl<A> Address<A> for To<'_, A> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn datagram(&self) -> Option<(&A, u32, u32)> {
        Some((self.ah, self.remote_qpn, self.remote_qkey))
    }
}

/// An XRC destination: the number of a shared receive queue of the connected peer.
#[derive(Clone, Copy, Debug)]
pub struct RemoteSrq(pub u32);
impl<A> Address<A> for RemoteSrq {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn remote_srqn(&self) -> Option<u32> {
        Some(self.0)
    }
}

/// A dynamically connected target, for a driver that has DC.
#[derive(Debug)]
pub struct DcTarget<'a, A> {
    /// The driver's data of the address handle.
    pub ah: &'a A,
    /// The target's DCT number, 24 bits.
    pub remote_dctn: u32,
    /// The target's DC access key.
    pub remote_dc_key: u64,
}
impl<A> Clone for DcTarget<'_, A> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for DcTarget<'_, A> {}
impl<A> Address<A> for DcTarget<'_, A> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn dc_target(&self) -> Option<(&A, u32, u64)> {
        Some((self.ah, self.remote_dctn, self.remote_dc_key))
    }
}
