// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations of a send queue, with their arguments.

use super::wire::RemoteAddr;
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

/// The operation of a WR, with the arguments that have no setter of their own. `R` is the form of a remote address.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a, R = RemoteAddr> {
    /// `IBV_WR_SEND`
    Send,
    /// `IBV_WR_SEND_WITH_IMM`: the number, in host byte order, arrives in the peer's completion.
    SendImm(u32),
    /// `IBV_WR_SEND_WITH_INV`: the key of the peer that the message invalidates.
    SendInv(u32),
    /// `IBV_WR_RDMA_WRITE`, to this memory.
    Write(R),
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`, to this memory; the number, in host byte order, arrives in the peer's completion.
    WriteImm(R, u32),
    /// `IBV_WR_RDMA_READ`, from this memory.
    Read(R),
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`: stores the last value to the 8-byte aligned word only if the word equals the first one. The
    /// old value arrives in the entries, 8 bytes.
    CmpSwp(R, u64, u64),
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`: adds to the 8-byte aligned word. The old value arrives in the entries, 8 bytes.
    FetchAdd(R, u64),
    /// `IBV_WR_LOCAL_INV`: the key of the local window (or region) to invalidate.
    LocalInv(u32),
    /// `IBV_WR_BIND_MW`. Posting it has [a contract](super::SendBatch::push).
    BindMw(MwBind),
    /// `IBV_WR_FLUSH`, from this memory on.
    Flush(R, FlushArgs),
    /// `IBV_WR_ATOMIC_WRITE`: stores the bytes to the 8-byte aligned word.
    AtomicWrite(R, [u8; 8]),
    /// `IBV_WR_TSO`
    Tso(TsoArgs<'a>),
}

impl<'a, R> Op<'a, R> {
    /// The opcode.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn opcode(&self) -> WrOpcode {
        match self {
            Self::Send => WrOpcode::SEND,
            Self::SendImm(_) => WrOpcode::SEND_WITH_IMM,
            Self::SendInv(_) => WrOpcode::SEND_WITH_INV,
            Self::Write(_) => WrOpcode::RDMA_WRITE,
            Self::WriteImm(..) => WrOpcode::RDMA_WRITE_WITH_IMM,
            Self::Read(_) => WrOpcode::RDMA_READ,
            Self::CmpSwp(..) => WrOpcode::ATOMIC_CMP_AND_SWP,
            Self::FetchAdd(..) => WrOpcode::ATOMIC_FETCH_AND_ADD,
            Self::LocalInv(_) => WrOpcode::LOCAL_INV,
            Self::BindMw(_) => WrOpcode::BIND_MW,
            Self::Flush(..) => WrOpcode::FLUSH,
            Self::AtomicWrite(..) => WrOpcode::ATOMIC_WRITE,
            Self::Tso(_) => WrOpcode::TSO,
        }
    }

    /// Whether it takes data (by entries or inline), so that a builder needs a data setter.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn has_data(&self) -> bool {
        !matches!(self, Self::LocalInv(_) | Self::BindMw(_) | Self::Flush(..) | Self::AtomicWrite(..))
    }

    /// The operation with another form of the remote address.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn map<T>(self, f: impl FnOnce(R) -> T) -> Op<'a, T> {
        match self {
            Self::Send => Op::Send,
            Self::SendImm(imm) => Op::SendImm(imm),
            Self::SendInv(rkey) => Op::SendInv(rkey),
            Self::Write(to) => Op::Write(f(to)),
            Self::WriteImm(to, imm) => Op::WriteImm(f(to), imm),
            Self::Read(from) => Op::Read(f(from)),
            Self::CmpSwp(at, compare, swap) => Op::CmpSwp(f(at), compare, swap),
            Self::FetchAdd(at, add) => Op::FetchAdd(f(at), add),
            Self::LocalInv(rkey) => Op::LocalInv(rkey),
            Self::BindMw(bind) => Op::BindMw(bind),
            Self::Flush(at, args) => Op::Flush(f(at), args),
            Self::AtomicWrite(to, bytes) => Op::AtomicWrite(f(to), bytes),
            Self::Tso(args) => Op::Tso(args),
        }
    }

    /// Immediate data.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn imm_data(&self) -> Option<ImmData> {
        match *self {
            Self::SendImm(imm) | Self::WriteImm(_, imm) => Some(ImmData::new(imm)),
            _ => None,
        }
    }

    /// The key to invalidate, here or at the peer.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn invalidate_rkey(&self) -> Option<u32> {
        match *self {
            Self::SendInv(rkey) | Self::LocalInv(rkey) => Some(rkey),
            _ => None,
        }
    }

    /// The operands of an atomic.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn atomic(&self) -> Option<AtomicArgs> {
        match *self {
            Self::CmpSwp(_, compare_add, swap) => Some(AtomicArgs { compare_add, swap }),
            Self::FetchAdd(_, compare_add) => Some(AtomicArgs { compare_add, swap: 0 }),
            _ => None,
        }
    }
}

impl<R: Copy> Op<'_, R> {
    /// Remote address and key: RDMA, atomics, flush.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn remote(&self) -> Option<R> {
        match *self {
            Self::Write(at)
            | Self::WriteImm(at, _)
            | Self::Read(at)
            | Self::CmpSwp(at, ..)
            | Self::FetchAdd(at, _)
            | Self::Flush(at, _)
            | Self::AtomicWrite(at, _) => Some(at),
            _ => None,
        }
    }
}
