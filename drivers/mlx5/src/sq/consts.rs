// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values that are constant per queue: the opcodes that it allows, those that take the fast path, and the words that do not
//! depend on a WR.

use super::SendConfig;
use crate::wqe::plain::{CtrlConsts, Dest, op_units};
use crate::wqe::{AV_UNITS, CTRL_UNITS, DataLimits, eth, umr};
use uverbs_core::attr::QpType;
use uverbs_core::provider::opcodes::{
    builder_opcodes, is_atomic, opcode_bit, opcodes, opcodes_of, takes_inline,
};
use uverbs_core::wr::{SendFlags, WrOpcode};
use uverbs_mlx5_hw::wqe::MLX5_WQE_CTRL_CQ_UPDATE;

/// How WRs of a queue name their destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not at all: the queue is connected (RC, UC).
    Connected,
    /// By an address vector (UD).
    Datagram,
    /// By the number of an SRQ of the connected peer (XRC).
    Xrc,
    /// By an address vector with a key (DC).
    Dc,
    /// Not at all: the frame contains the address (raw packets).
    Raw,
}

impl Kind {
    pub(crate) const fn of(qp_type: QpType) -> Self {
        match qp_type {
            QpType::Rc | QpType::Uc => Self::Connected,
            QpType::Ud => Self::Datagram,
            QpType::XrcSend | QpType::XrcRecv => Self::Xrc,
            QpType::RawPacket => Self::Raw,
            QpType::Driver => Self::Dc,
        }
    }

    /// A transport whose queues are of this kind.
    pub(crate) const fn transport(self) -> QpType {
        match self {
            Self::Connected => QpType::Rc,
            Self::Datagram => QpType::Ud,
            Self::Xrc => QpType::XrcSend,
            Self::Dc => QpType::Driver,
            Self::Raw => QpType::RawPacket,
        }
    }

    /// Units between the control segment and the segments of the opcode.
    pub(crate) const fn units(self) -> u32 {
        match self {
            Self::Connected | Self::Raw => 0,
            Self::Xrc => 1,
            Self::Datagram | Self::Dc => AV_UNITS,
        }
    }

    /// Whether a destination is of this kind.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn matches(self, to: &Dest<'_>) -> bool {
        match to {
            Dest::Peer => matches!(self, Self::Connected | Self::Raw),
            Dest::Frame => matches!(self, Self::Raw),
            Dest::Ud(_) => matches!(self, Self::Datagram),
            Dest::Dc(_) => matches!(self, Self::Dc),
            Dest::Xrc(_) => matches!(self, Self::Xrc),
        }
    }
}

/// The opcodes of the common WQE, and TSO.
const COMMON: u32 = opcodes(&[
    WrOpcode::SEND,
    WrOpcode::SEND_WITH_IMM,
    WrOpcode::SEND_WITH_INV,
    WrOpcode::RDMA_WRITE,
    WrOpcode::RDMA_WRITE_WITH_IMM,
    WrOpcode::RDMA_READ,
    WrOpcode::ATOMIC_CMP_AND_SWP,
    WrOpcode::ATOMIC_FETCH_AND_ADD,
    WrOpcode::TSO,
]);

/// The local operations.
const LOCAL: u32 = opcodes(&[WrOpcode::LOCAL_INV, WrOpcode::BIND_MW]);

/// The fast path of a queue: which WRs take it, and the constants in their WQEs.
///
/// A WR takes it if its opcode is in the set of its destination's kind and its flags are plain. Such a WR always fits into
/// its share of blocks, whatever data it has within the queue's limits. The slow path (`Encoder::push_cold`) finds the
/// reason why a WR does not take the fast path.
// codegen: lines
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct FastPathConsts {
    pub(crate) ops: FastPathOps,
    /// Opcodes of the queue's kind in lists. Empty for DC, whose targets a list can't name.
    lists: u32,
    pub(crate) ctrl: CtrlConsts,
    pub(crate) limits: DataLimits,
    /// Local operations, by lists and the typed interface.
    locals: u32,
    /// Local operations by builders.
    local_builders: u32,
    /// Opcodes of builders on a connected queue; empty for other queues.
    connected_builders: u32,
    /// Opcodes of builders on queues of UD, XRC and DC; empty for other queues.
    addressed_builders: u32,
    /// Opcodes of builders of frames; empty for other queues.
    frame_builders: u32,
    /// Units between a WR's control segment and the segments of its opcode.
    pub(crate) address_units: u32,
}

/// The opcodes that take the fast path, by kind of destination; the sets of other kinds than the queue's are empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastPathOps {
    connected: u32,
    datagram: u32,
    dc: u32,
    xrc: u32,
    frame: u32,
}

impl FastPathOps {
    /// Whether a WR of this opcode to this destination takes the fast path.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn has(&self, opcode: WrOpcode, to: &Dest<'_>) -> bool {
        let set = match to {
            Dest::Peer => self.connected,
            Dest::Ud(_) => self.datagram,
            Dest::Dc(_) => self.dc,
            Dest::Xrc(_) => self.xrc,
            Dest::Frame => self.frame,
        };
        set & opcode_bit(opcode) != 0
    }
}

impl FastPathConsts {
    /// The constants of a queue whose WRs may take `wr_blocks` blocks each.
    pub(crate) fn new(config: &SendConfig, wr_blocks: u32) -> Self {
        let kind = Kind::of(config.qp_type);
        // A frame whose header is in the WQE takes the slow path.
        let is_slow = kind == Kind::Raw && config.l2_inline;
        let address_units = if kind == Kind::Raw { 1 } else { kind.units() };
        // Whether the longest WQE of an opcode in the fast path fits into its share.
        let fits = |opcode: WrOpcode| {
            let inline = config.max_inline_data.saturating_add(19) / 16;
            let has_inline = takes_inline(opcode) && opcode != WrOpcode::TSO;
            let data = config.max_send_sge.max(if has_inline { inline } else { 0 });
            let header = if opcode == WrOpcode::TSO {
                eth::units(config.max_tso_header as usize)
            } else {
                address_units + op_units(opcode)
            };
            CTRL_UNITS.saturating_add(header).saturating_add(data).div_ceil(4) <= wr_blocks
        };
        let common = if is_slow { 0 } else { COMMON & opcodes_of(config.qp_type) };
        let set = (0..32)
            .map(WrOpcode)
            .filter(|op| common & opcode_bit(*op) != 0 && fits(*op))
            .filter(|op| config.max_send_sge != 0 && (config.atomics || !is_atomic(*op)))
            .fold(0, |set, op| set | opcode_bit(op));
        let has_room = umr::BIND_UNITS.div_ceil(4) <= wr_blocks;
        let locals = if has_room { LOCAL & opcodes_of(config.qp_type) } else { 0 };
        let only = |k| if kind == k { set } else { 0 };
        let builders = builder_opcodes(config.send_ops_flags);
        let signal = if config.sq_sig_all { MLX5_WQE_CTRL_CQ_UPDATE } else { 0 };
        Self {
            ctrl: CtrlConsts::new(config.qp_num, address_units, signal),
            limits: DataLimits {
                max_sge: config.max_send_sge,
                max_inline: config.max_inline_data,
                max_msg: config.max_msg_sz,
                max_tso: config.max_tso,
                max_tso_header: config.max_tso_header,
            },
            ops: FastPathOps {
                connected: only(Kind::Connected),
                datagram: only(Kind::Datagram),
                dc: only(Kind::Dc),
                xrc: only(Kind::Xrc),
                frame: only(Kind::Raw),
            },
            lists: if kind == Kind::Dc { 0 } else { set },
            locals,
            local_builders: locals & builders,
            connected_builders: builders & only(Kind::Connected),
            addressed_builders: builders & (only(Kind::Datagram) | only(Kind::Xrc) | only(Kind::Dc)),
            frame_builders: builders & only(Kind::Raw),
            address_units: kind.units(),
        }
    }

    /// Whether a WR of a list with this opcode takes the fast path.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn has_in_lists(&self, opcode: WrOpcode) -> bool {
        opcode.0 < 32 && self.lists >> opcode.0 & 1 != 0
    }

    /// Whether a local operation with this opcode takes the fast path.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn has_local(&self, opcode: WrOpcode) -> bool {
        self.locals & opcode_bit(opcode) != 0
    }

    /// Whether a builder with this opcode, a local operation, takes the fast path.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn has_local_builder(&self, opcode: WrOpcode) -> bool {
        self.local_builders & opcode_bit(opcode) != 0
    }

    /// Whether a builder of a frame takes the fast path.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn has_frame_builder(&self, opcode: WrOpcode) -> bool {
        self.frame_builders & opcode_bit(opcode) != 0
    }

    /// Whether a builder with this opcode takes the fast path, on a connected queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn has_connected_builder(&self, opcode: WrOpcode) -> bool {
        self.connected_builders & opcode_bit(opcode) != 0
    }

    /// Whether a builder with this opcode takes the fast path, on a queue whose builders have a setter for the destination.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn has_addressed_builder(&self, opcode: WrOpcode) -> bool {
        self.addressed_builders & opcode_bit(opcode) != 0
    }
}

/// Whether all flags are allowed on every QP type.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn are_plain(flags: SendFlags) -> bool {
    const { assert!(crate::wqe::are_plain(SendFlags::from_bits_retain(15))) };
    flags.bits() < 16
}
