// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations of a QP.

use uverbs_core::attr::{QpType, SendOpsFlags};
use uverbs_core::provider::opcodes::{RC_OPCODES, UC_OPCODES, UD_OPCODES, builder_opcodes, opcode_bit};
use uverbs_core::wr::{SendFlags, WrOpcode};

/// Operations that only some kernels' rxe has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// RDMA flush, by `device_cap_flags_ex`.
    pub flush: bool,
    /// Whether the kernel has atomic write.
    pub atomic_write: bool,
}

/// The parameters of a send queue: those requested for the QP, and the kernel's answer.
#[derive(Clone, Copy, Debug)]
pub struct SendConfig {
    /// Transport.
    pub qp_type: QpType,
    /// Operations of the `wr_*` builders.
    pub send_ops_flags: SendOpsFlags,
    /// Optional operations of the device.
    pub extensions: Extensions,
    /// Entries of a WR.
    pub max_sge: u32,
    /// Inline bytes of a WR.
    pub max_inline: u32,
}

impl From<&SendConfig> for uverbs_soft::SendConfig {
    /// The table of ibv_post_send(3), without the operations that rxe never has (TSO), and with those that this
    /// kernel's rxe has.
    fn from(config: &SendConfig) -> Self {
        let (mut connected, mut datagram) = (0, 0);
        match config.qp_type {
            QpType::Rc => {
                connected = RC_OPCODES;
                if config.extensions.flush {
                    connected |= opcode_bit(WrOpcode::FLUSH);
                }
                if config.extensions.atomic_write {
                    connected |= opcode_bit(WrOpcode::ATOMIC_WRITE);
                }
            }
            QpType::Uc => connected = UC_OPCODES,
            QpType::Ud => datagram = UD_OPCODES,
            _ => {}
        }
        Self {
            connected,
            datagram,
            builder: (connected | datagram) & builder_opcodes(config.send_ops_flags),
            max_sge: config.max_sge,
            max_inline: config.max_inline,
            always: SendFlags::empty(),
        }
    }
}
