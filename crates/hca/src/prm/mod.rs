// SPDX-License-Identifier: MIT OR Apache-2.0
//! The format of commands for the firmware, and what commands do with queue pairs. Both fronts use it: the PCI function
//! for the driver of a guest, the in-process kernel for programs that send commands (DEVX).
//!
//! | module | contents |
//! |---|---|
//! | `bits` | fields of up to 64 bits in big-endian layouts |
//! | `layout` | the layouts of commands and contexts, checked against the kernel's header by a test of `uverbs-hca-pci` |
//! | `criteria` | the header fields that steering rules compare |
//! | `general` | fields that the headers of some kernels lack |
//! | `mkey` | the rights of memory keys in contexts |
//! | `place` | the fields that name memory of a program, which that header lacks |
//! | `modify` | transitions of queue pairs |
//! | `qp` | the types and states of queue pairs in contexts |

pub mod bits;
pub mod criteria;
pub mod general;
pub mod layout;
pub mod mkey;
pub mod modify;
pub mod place;
pub mod qp;

/// `MLX5_CMD_STAT_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u8);

#[expect(missing_docs, reason = "names of the kernel's header")]
impl Status {
    pub const BAD_OP: Self = Self(0x02);
    pub const BAD_PARAM: Self = Self(0x03);
    pub const BAD_RESOURCE: Self = Self(0x05);
    pub const BUSY: Self = Self(0x06);
    pub const LIMIT: Self = Self(0x08);
    pub const BAD_STATE: Self = Self(0x09);
    pub const BAD_QP_STATE: Self = Self(0x10);
    pub const BAD_INPUT_LEN: Self = Self(0x50);
    pub const BAD_OUTPUT_LEN: Self = Self(0x51);
}
