// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of WQEs when a queue is created: which opcodes there are, which of them take the short way, and the words that
//! do not depend on a WR.

use crate::memory::BlockIndex;
use crate::wqe::{AV_UNITS, Ah, Ordinary, Remote, ctrl0, ctrl1, fm_ce_se};
use uverbs_core::attr::QpType;
use uverbs_core::provider::opcodes::{RC_OPCODES, UC_OPCODES, UD_OPCODES, opcode_bit, opcodes};
use uverbs_core::provider::{Address, Operation};
use uverbs_core::wr::{SendFlags, WrOpcode};

/// How a WR says where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The connection says it: RC, UC.
    Connected,
    /// An address vector: UD.
    Datagram,
    /// The connection, and an SRQ of the peer: XRC.
    Xrc,
    /// An address vector with a key: DC.
    Dc,
    /// The frame says it: raw packets.
    Raw,
}

impl Kind {
    pub(super) const fn of(qp_type: QpType) -> Self {
        match qp_type {
            QpType::Rc | QpType::Uc => Self::Connected,
            QpType::Ud => Self::Datagram,
            QpType::XrcSend | QpType::XrcRecv => Self::Xrc,
            QpType::RawPacket => Self::Raw,
            QpType::Driver => Self::Dc,
        }
    }

    /// Units between the control segment and what the opcode asks for.
    pub(crate) const fn units(self) -> u32 {
        match self {
            Self::Connected | Self::Raw => 0,
            Self::Xrc => 1,
            Self::Datagram | Self::Dc => AV_UNITS,
        }
    }

    /// Whether an address says it this way. Local operations go nowhere, and don't mind.
    pub(super) fn matches<A: Address<Ah>>(self, to: &A) -> bool {
        let says = (to.datagram().is_some(), to.remote_srqn().is_some(), to.dc_target().is_some());
        says == (self == Self::Datagram, self == Self::Xrc, self == Self::Dc)
    }
}

/// The opcodes of a transport: the table of ibv_post_send(3).
pub(super) const fn ops_of(qp_type: QpType) -> u32 {
    use WrOpcode as O;
    match qp_type {
        QpType::Rc | QpType::XrcSend | QpType::Driver => RC_OPCODES,
        QpType::Uc => UC_OPCODES,
        QpType::Ud => UD_OPCODES,
        QpType::RawPacket => opcodes(&[O::SEND, O::TSO]),
        QpType::XrcRecv => 0,
    }
}

/// Units that an opcode wants between address and data.
pub(crate) const fn op_units(opcode: WrOpcode) -> u32 {
    match opcode {
        WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM | WrOpcode::RDMA_READ => 1,
        WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => 2,
        _ => 0,
    }
}

/// What the short way needs. A batch keeps a copy, for registers: behind a reference, the compiler would have to load it anew
/// after every store to the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hot {
    /// [`ctrl0`]'s base.
    pub(super) base: u64,
    /// What every control segment's second word has.
    pub(super) signal: u64,
    /// The opcodes that take the short way, as [`Short`] has them by kind and entry.
    pub(super) connected: u32,
    pub(super) datagram: u32,
    pub(super) xrc: u32,
    pub(super) dc: u32,
    /// Of the limits, what inline data is held against.
    pub(super) max_inline: u32,
}

/// Which opcodes take the short way, one table per [`Kind`] that has one. All but the queue's own are empty.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Short {
    pub(super) connected: [Ordinary; OPCODES],
    datagram: [Ordinary; OPCODES],
    xrc: [Ordinary; OPCODES],
    dc: [Ordinary; OPCODES],
}

/// Opcodes that there may be, and more: a power of two. `IBV_WR_TSO` is the last.
pub(super) const OPCODES: usize = (WrOpcode::TSO.0 as usize + 1).next_power_of_two();

impl Short {
    pub(super) fn new(kind: Kind, set: u32) -> Self {
        let table =
            core::array::from_fn(|op| Ordinary::allowed_if(set & opcode_bit(WrOpcode(op as u32)) != 0));
        let only = |k| if kind == k { table } else { Default::default() };
        Self {
            connected: only(Kind::Connected),
            datagram: only(Kind::Datagram),
            xrc: only(Kind::Xrc),
            dc: only(Kind::Dc),
        }
    }

    /// Which entries alone take the short way to this address.
    #[inline(always)]
    pub(super) fn entries<A: Address<Ah>, O: Operation<Remote = Remote>>(&self, to: &A) -> Ordinary {
        let table = if to.datagram().is_some() {
            &self.datagram
        } else if to.remote_srqn().is_some() {
            &self.xrc
        } else if to.dc_target().is_some() {
            &self.dc
        } else {
            &self.connected
        };
        if O::HAS_DATA { table[O::OPCODE.0 as usize] } else { Ordinary::NONE }
    }
}

/// A control segment's first word in host order, but for the WQE's index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct First(u64);

impl First {
    /// That of no WQE, for every one has units.
    pub(super) const NONE: Self = Self(0);

    pub(super) const fn new(base: u64, opcode: u8, ds: u32) -> Self {
        Self(base | (opcode as u64) << 32 | ds as u64)
    }

    /// As the WQE at a place has it.
    #[inline(always)]
    pub(crate) const fn at(self, place: BlockIndex) -> u64 {
        ctrl0(self.0, place, 0, 0)
    }

    /// With so many units; without any here.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn with_ds(self, ds: u32) -> Self {
        Self(self.0 | ds as u64)
    }
}

impl Hot {
    /// The control segment's second word for plain flags.
    #[inline(always)]
    pub(crate) fn ctrl1(&self, flags: SendFlags, imm: u32) -> u64 {
        self.signal | ctrl1(fm_ce_se(flags), imm)
    }

    /// The control segment's first word.
    #[inline(always)]
    pub(crate) fn ctrl0(&self, place: BlockIndex, opcode: u8, ds: u32) -> u64 {
        ctrl0(self.base, place, opcode, ds)
    }

    /// Whether a WR of this opcode to the connected peer takes the short way.
    #[inline(always)]
    pub(crate) fn has_connected(&self, opcode: WrOpcode) -> bool {
        self.connected & opcode_bit(opcode) != 0
    }

    /// Whether a datagram of this opcode takes the short way.
    #[inline(always)]
    pub(crate) fn has_datagram(&self, opcode: WrOpcode) -> bool {
        self.datagram & opcode_bit(opcode) != 0
    }

    /// Whether this takes the short way, but for flags and data.
    #[inline(always)]
    pub(super) fn has<A: Address<Ah>, O: Operation<Remote = Remote>>(&self, to: &A) -> bool {
        let set = if to.datagram().is_some() {
            self.datagram
        } else if to.remote_srqn().is_some() {
            self.xrc
        } else if to.dc_target().is_some() {
            self.dc
        } else {
            self.connected
        };
        O::HAS_DATA && set & opcode_bit(O::OPCODE) != 0
    }

    /// The control segment's first word, less place and units.
    #[inline(always)]
    pub(crate) fn first(&self, opcode: u8) -> First {
        First::new(self.base, opcode, 0)
    }
}
