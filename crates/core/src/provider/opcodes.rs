// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of opcodes, with a bit for each: drivers check them before they encode. They follow the table of
//! ibv_post_send(3).

use crate::attr::{QpType, SendOpsFlags};
use crate::wr::WrOpcode;

/// A set of one opcode; empty for those that no set has.
#[cfg_attr(not(debug_assertions), inline(always))]
#[must_use]
pub const fn opcode_bit(opcode: WrOpcode) -> u32 {
    if opcode.0 < 32 { 1 << opcode.0 } else { 0 }
}

/// A set of opcodes.
#[must_use]
pub const fn opcodes(list: &[WrOpcode]) -> u32 {
    let (mut set, mut i) = (0, 0);
    while i < list.len() {
        set |= opcode_bit(list[i]);
        i += 1;
    }
    set
}

/// The opcodes of UD QPs by ibv_post_send(3), except segmentation, which few devices support on UD QPs.
pub const UD_OPCODES: u32 = opcodes(&[WrOpcode::SEND, WrOpcode::SEND_WITH_IMM]);

/// The opcodes of UC QPs by ibv_post_send(3).
pub const UC_OPCODES: u32 = UD_OPCODES
    | opcodes(&[
        WrOpcode::SEND_WITH_INV,
        WrOpcode::RDMA_WRITE,
        WrOpcode::RDMA_WRITE_WITH_IMM,
        WrOpcode::LOCAL_INV,
        WrOpcode::BIND_MW,
    ]);

/// Opcodes that return the previous 8 bytes of the target.
pub const ATOMIC_OPCODES: u32 = opcodes(&[WrOpcode::ATOMIC_CMP_AND_SWP, WrOpcode::ATOMIC_FETCH_AND_ADD]);

/// The opcodes of RC and XRC QPs by ibv_post_send(3).
pub const RC_OPCODES: u32 = UC_OPCODES | opcode_bit(WrOpcode::RDMA_READ) | ATOMIC_OPCODES;

/// The opcodes of raw packet QPs by ibv_post_send(3).
const RAW_OPCODES: u32 = opcodes(&[WrOpcode::SEND, WrOpcode::TSO]);

/// The opcodes of a type of QP: the table of ibv_post_send(3). `Driver` is an initiator of dynamic connections.
#[must_use]
pub const fn opcodes_of(qp_type: QpType) -> u32 {
    match qp_type {
        QpType::Rc | QpType::XrcSend | QpType::Driver => RC_OPCODES,
        QpType::Uc => UC_OPCODES,
        QpType::Ud => UD_OPCODES,
        QpType::RawPacket => RAW_OPCODES,
        QpType::XrcRecv => 0,
    }
}

/// Opcodes whose data may be inline (ibv_post_send(3)).
const INLINE_OPCODES: u32 = opcodes(&[
    WrOpcode::SEND,
    WrOpcode::SEND_WITH_IMM,
    WrOpcode::SEND_WITH_INV,
    WrOpcode::RDMA_WRITE,
    WrOpcode::RDMA_WRITE_WITH_IMM,
    WrOpcode::TSO,
]);

/// Whether this operation's data may be inline.
#[cfg_attr(not(debug_assertions), inline(always))]
#[must_use]
pub const fn takes_inline(opcode: WrOpcode) -> bool {
    INLINE_OPCODES & opcode_bit(opcode) != 0
}

/// Whether this operation needs room for 8 bytes.
#[cfg_attr(not(debug_assertions), inline(always))]
#[must_use]
pub const fn is_atomic(opcode: WrOpcode) -> bool {
    ATOMIC_OPCODES & opcode_bit(opcode) != 0
}

/// The opcodes that `send_ops_flags` names.
#[must_use]
pub fn builder_opcodes(flags: SendOpsFlags) -> u32 {
    use SendOpsFlags as F;
    use WrOpcode as O;
    const PAIRS: [(F, O); 13] = [
        (F::RDMA_WRITE, O::RDMA_WRITE),
        (F::RDMA_WRITE_WITH_IMM, O::RDMA_WRITE_WITH_IMM),
        (F::SEND, O::SEND),
        (F::SEND_WITH_IMM, O::SEND_WITH_IMM),
        (F::RDMA_READ, O::RDMA_READ),
        (F::ATOMIC_CMP_AND_SWP, O::ATOMIC_CMP_AND_SWP),
        (F::ATOMIC_FETCH_AND_ADD, O::ATOMIC_FETCH_AND_ADD),
        (F::LOCAL_INV, O::LOCAL_INV),
        (F::BIND_MW, O::BIND_MW),
        (F::SEND_WITH_INV, O::SEND_WITH_INV),
        (F::TSO, O::TSO),
        (F::FLUSH, O::FLUSH),
        (F::ATOMIC_WRITE, O::ATOMIC_WRITE),
    ];
    PAIRS.iter().filter(|(flag, _)| flags.contains(*flag)).fold(0, |set, (_, op)| set | opcode_bit(*op))
}
