// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of mlx5 (`<infiniband/mlx5dv.h>`; PRM 8.9, work queue elements, and 8.18, completions).

mod cqe;
mod recv;
mod send;

pub use cqe::cqe;
pub use recv::{recv, srq};
pub use send::send;

/// The type of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Datagram: an address vector in every WQE.
    Ud,
    /// XRC initiator: the number of an SRQ in every WQE.
    Xrc,
    /// DC initiator: an address vector in every WQE.
    Dci,
    /// Ethernet frames.
    Raw,
    /// The kernel's queue for updates of memory keys.
    Keys,
}

use crate::names::Names;
use crate::reader::{Reader, Show};
use uverbs_mlx5_hw::wqe as hw;

/// Opcodes, in the WQE and in the completion.
const OPCODES: Names = &[
    (hw::MLX5_OPCODE_NOP as u64, "NOP"),
    (hw::MLX5_OPCODE_SEND_INVAL as u64, "SEND_INVAL"),
    (hw::MLX5_OPCODE_RDMA_WRITE as u64, "RDMA_WRITE"),
    (hw::MLX5_OPCODE_RDMA_WRITE_IMM as u64, "RDMA_WRITE_IMM"),
    (hw::MLX5_OPCODE_SEND as u64, "SEND"),
    (hw::MLX5_OPCODE_SEND_IMM as u64, "SEND_IMM"),
    (hw::MLX5_OPCODE_TSO as u64, "TSO"),
    (hw::MLX5_OPCODE_RDMA_READ as u64, "RDMA_READ"),
    (hw::MLX5_OPCODE_ATOMIC_CS as u64, "ATOMIC_CS"),
    (hw::MLX5_OPCODE_ATOMIC_FA as u64, "ATOMIC_FA"),
    (hw::MLX5_OPCODE_ATOMIC_MASKED_CS as u64, "ATOMIC_MASKED_CS"),
    (hw::MLX5_OPCODE_ATOMIC_MASKED_FA as u64, "ATOMIC_MASKED_FA"),
    (hw::MLX5_OPCODE_FMR as u64, "FMR"),
    (hw::MLX5_OPCODE_LOCAL_INVAL as u64, "LOCAL_INVAL"),
    (hw::MLX5_OPCODE_CONFIG_CMD as u64, "CONFIG_CMD"),
    (hw::MLX5_OPCODE_SET_PSV as u64, "SET_PSV"),
    (hw::MLX5_OPCODE_UMR as u64, "UMR"),
    (hw::MLX5_OPCODE_TAG_MATCHING as u64, "TAG_MATCHING"),
    (hw::MLX5_OPCODE_FLOW_TBL_ACCESS as u64, "FLOW_TBL_ACCESS"),
    (hw::MLX5_OPCODE_MMO as u64, "MMO"),
];

/// Bytes of most segments.
const SEG: usize = 16;

/// A data segment; returns false if it is the terminator of a list.
fn data(r: &mut Reader<'_>, at: usize, ends: bool) -> bool {
    let count = r.num(at, 4, "byte_count", Show::Dec);
    let key = r.num(at + 4, 4, "lkey", Show::Hex);
    if ends && count == 0 && key == u64::from(hw::MLX5_INVALID_LKEY) {
        r.mean("the end of the list");
        return false;
    }
    let len = if count == 0 { 1 << 31 } else { count };
    let addr = r.num(at + 8, 8, "addr", Show::Hex);
    r.mean(format!("{len} bytes to {:#x}", addr.wrapping_add(len)));
    r.place(false, len, addr, key);
    true
}
