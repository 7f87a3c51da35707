// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a queue's WRs when it is created: the opcodes that it has, those that take the short way, and the words
//! that do not depend on a WR.

use super::SendConfig;
use crate::wqe::plain::{CtrlConsts, Destination, op_units};
use crate::wqe::{AV_UNITS, CTRL_UNITS, DataLimits};
use uverbs_core::attr::QpType;
use uverbs_core::provider::opcodes::{
    RC_OPCODES, UC_OPCODES, UD_OPCODES, builder_opcodes, is_atomic, opcode_bit, opcodes, takes_inline,
};
use uverbs_core::wr::{SendFlags, WrOpcode};
use uverbs_mlx5_hw::wqe::MLX5_WQE_CTRL_CQ_UPDATE;

/// How a WR of a queue says where it goes.
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
    pub(crate) const fn of(qp_type: QpType) -> Self {
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

    /// Whether a WR says it this way.
    #[inline(always)]
    pub(crate) const fn matches(self, to: &Destination<'_>) -> bool {
        match to {
            Destination::Connection => matches!(self, Self::Connected | Self::Raw),
            Destination::Datagram(..) => matches!(self, Self::Datagram),
            Destination::DcTarget(..) => matches!(self, Self::Dc),
            Destination::Srq(_) => matches!(self, Self::Xrc),
        }
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

/// The opcodes of the common WQE.
const COMMON: u32 = opcodes(&[
    WrOpcode::SEND,
    WrOpcode::SEND_WITH_IMM,
    WrOpcode::SEND_WITH_INV,
    WrOpcode::RDMA_WRITE,
    WrOpcode::RDMA_WRITE_WITH_IMM,
    WrOpcode::RDMA_READ,
    WrOpcode::ATOMIC_CMP_AND_SWP,
    WrOpcode::ATOMIC_FETCH_AND_ADD,
]);

/// The short way of a queue: which WRs take it, and what is constant in their WQEs.
///
/// A WR takes it if its opcode is in the set of its destination's kind and its flags are plain. The room of such a WR is
/// certain, whatever it carries within the queue's limits. The reason why a WR does not take it is found out on the other way
/// (`Encoder::push_cold`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastPathConsts {
    pub(crate) ctrl: CtrlConsts,
    pub(crate) limits: DataLimits,
    /// Opcodes by kind of destination; all but those of the queue's own kind are empty.
    connected: u32,
    datagram: u32,
    dc: u32,
    xrc: u32,
    /// Opcodes of the queue's own kind, unless that is DC, whose targets a list can't name.
    lists: u32,
    /// Opcodes of builders to a connected peer; empty for other queues.
    connected_builders: u32,
    /// Those of the other queues.
    addressed_builders: u32,
    /// Units between a WR's control segment and what its opcode asks for.
    pub(crate) address_units: u32,
}

impl FastPathConsts {
    /// Of a queue whose WRs may take `wr_blocks` blocks each.
    pub(crate) fn new(config: &SendConfig, wr_blocks: u32) -> Self {
        let kind = Kind::of(config.qp_type);
        // No opcode's longest WQE is longer than its share.
        let fits = |opcode: WrOpcode| {
            let inline = config.max_inline_data.saturating_add(19) / 16;
            let data = config.max_send_sge.max(if takes_inline(opcode) { inline } else { 0 });
            (CTRL_UNITS + kind.units() + op_units(opcode)).saturating_add(data).div_ceil(4) <= wr_blocks
        };
        let set = (0..32)
            .map(WrOpcode)
            .filter(|op| COMMON & ops_of(config.qp_type) & opcode_bit(*op) != 0 && fits(*op))
            .filter(|op| config.max_send_sge != 0 && (config.atomics || !is_atomic(*op)))
            .fold(0, |set, op| set | opcode_bit(op));
        let only = |k| if kind == k { set } else { 0 };
        let builders = if kind == Kind::Raw { 0 } else { set & builder_opcodes(config.send_ops_flags) };
        let is_connected = kind == Kind::Connected;
        let signal = if config.sq_sig_all { MLX5_WQE_CTRL_CQ_UPDATE } else { 0 };
        Self {
            ctrl: CtrlConsts::new(config.qp_num, signal),
            limits: DataLimits {
                max_sge: config.max_send_sge,
                max_inline: config.max_inline_data,
                max_msg: config.max_msg_sz,
            },
            connected: only(Kind::Connected),
            datagram: only(Kind::Datagram),
            dc: only(Kind::Dc),
            xrc: only(Kind::Xrc),
            lists: if matches!(kind, Kind::Dc | Kind::Raw) { 0 } else { set },
            connected_builders: if is_connected { builders } else { 0 },
            addressed_builders: if is_connected { 0 } else { builders },
            address_units: kind.units(),
        }
    }

    /// Whether a WR of this opcode to such a destination takes the short way.
    #[inline(always)]
    pub(crate) const fn has(&self, opcode: WrOpcode, to: &Destination<'_>) -> bool {
        let set = match to {
            Destination::Connection => self.connected,
            Destination::Datagram(..) => self.datagram,
            Destination::DcTarget(..) => self.dc,
            Destination::Srq(_) => self.xrc,
        };
        set & opcode_bit(opcode) != 0
    }

    /// Whether a list's WR of this opcode does.
    #[inline(always)]
    pub(crate) const fn has_in_lists(&self, opcode: WrOpcode) -> bool {
        opcode.0 < 32 && self.lists >> opcode.0 & 1 != 0
    }

    /// Whether a builder's WR of this opcode does, on a queue to a connected peer.
    #[inline(always)]
    pub(crate) const fn has_connected_builder(&self, opcode: WrOpcode) -> bool {
        self.connected_builders & opcode_bit(opcode) != 0
    }

    /// The same on another queue, whose builders have a setter for the destination.
    #[inline(always)]
    pub(crate) const fn has_addressed_builder(&self, opcode: WrOpcode) -> bool {
        self.addressed_builders & opcode_bit(opcode) != 0
    }
}

/// Whether no flag is out of place on any QP type.
#[inline(always)]
pub(crate) const fn are_plain(flags: SendFlags) -> bool {
    const { assert!(crate::wqe::are_plain(SendFlags::from_bits_retain(15))) };
    flags.bits() < 16
}
