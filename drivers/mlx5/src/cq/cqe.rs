// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the values of a completion queue entry to those of the verbs, by pure functions.
//!
//! These functions access no memory, lock or queue. They accept any value, including values that no device writes. Facts:
//! `<infiniband/mlx5dv.h>`, PRM 8.18; if these leave a choice, the reference vectors decide (`docs/src/reference/semantics.md`).

use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus};
use uverbs_mlx5_hw::cqe::{
    MLX5_CQE_L3_HDR_TYPE_IPV4, MLX5_CQE_L3_OK, MLX5_CQE_L4_OK, MLX5_CQE_REQ, MLX5_CQE_REQ_ERR,
    MLX5_CQE_RESIZE_CQ, MLX5_CQE_RESP_ERR, MLX5_CQE_RESP_SEND, MLX5_CQE_RESP_SEND_IMM,
    MLX5_CQE_RESP_SEND_INV, MLX5_CQE_RESP_WR_IMM, MLX5_CQE_SYNDROME_BAD_RESP_ERR,
    MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR,
    MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, MLX5_CQE_SYNDROME_MW_BIND_ERR, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR,
    MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR,
    MLX5_CQE_SYNDROME_REMOTE_OP_ERR, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR,
    MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, MLX5_INLINE_SCATTER_32,
    MLX5_INLINE_SCATTER_64,
};
use uverbs_mlx5_hw::wqe::{
    MLX5_OPCODE_ATOMIC_CS, MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE,
    MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_OPCODE_SEND, MLX5_OPCODE_SEND_IMM, MLX5_OPCODE_SEND_INVAL,
    MLX5_OPCODE_TSO,
};

/// The last byte of an entry: opcode, format, solicited bit and owner bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpOwn(pub u8);

/// The place of data that the device put into the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scatter {
    /// The entry's first 32 bytes.
    Own32,
    /// The 64 bytes before the entry (entries of 128 bytes).
    Before64,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A send queue's WQE is done.
    Requester,
    /// A receive is done.
    Responder,
    /// A send queue's WQE failed.
    RequesterError,
    /// A receive failed.
    ResponderError,
    /// The last entry in the old buffer of a resized CQ.
    Resize,
    /// Not requested by this driver: signatures, tag matching, undefined opcodes.
    Foreign,
}

impl OpOwn {
    /// `MLX5_CQE_*`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn opcode(self) -> u8 {
        self.0 >> 4
    }

    /// The kind of the entry.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn kind(self) -> Kind {
        match self.opcode() {
            MLX5_CQE_REQ => Kind::Requester,
            MLX5_CQE_RESP_WR_IMM | MLX5_CQE_RESP_SEND | MLX5_CQE_RESP_SEND_IMM | MLX5_CQE_RESP_SEND_INV => {
                Kind::Responder
            }
            MLX5_CQE_REQ_ERR => Kind::RequesterError,
            MLX5_CQE_RESP_ERR => Kind::ResponderError,
            MLX5_CQE_RESIZE_CQ => Kind::Resize,
            // `MLX5_CQE_NO_PACKET` (tag matching), `MLX5_CQE_SIG_ERR` (signatures), undefined opcodes.
            _ => Kind::Foreign,
        }
    }

    /// The place of data in the completion. Both format bits are those of a title, which has none after its expansion. In a ring
    /// without compressed entries, as in libmlx5, the lower bit is tested first.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn scatter(self) -> Option<Scatter> {
        if self.0 & MLX5_INLINE_SCATTER_32 != 0 {
            Some(Scatter::Own32)
        } else if self.0 & MLX5_INLINE_SCATTER_64 != 0 {
            Some(Scatter::Before64)
        } else {
            None
        }
    }
}

impl Scatter {
    /// The maximum number of bytes that fit.
    pub(crate) const fn room(self) -> usize {
        match self {
            Self::Own32 => 32,
            Self::Before64 => 64,
        }
    }
}

/// The status of a failed completion.
#[must_use]
pub(crate) const fn status(syndrome: u8) -> WcStatus {
    match syndrome {
        MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR => WcStatus::LOC_LEN_ERR,
        MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR => WcStatus::LOC_QP_OP_ERR,
        MLX5_CQE_SYNDROME_LOCAL_PROT_ERR => WcStatus::LOC_PROT_ERR,
        MLX5_CQE_SYNDROME_WR_FLUSH_ERR => WcStatus::WR_FLUSH_ERR,
        MLX5_CQE_SYNDROME_MW_BIND_ERR => WcStatus::MW_BIND_ERR,
        MLX5_CQE_SYNDROME_BAD_RESP_ERR => WcStatus::BAD_RESP_ERR,
        MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR => WcStatus::LOC_ACCESS_ERR,
        MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR => WcStatus::REM_INV_REQ_ERR,
        MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR => WcStatus::REM_ACCESS_ERR,
        MLX5_CQE_SYNDROME_REMOTE_OP_ERR => WcStatus::REM_OP_ERR,
        MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR => WcStatus::RETRY_EXC_ERR,
        MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR => WcStatus::RNR_RETRY_EXC_ERR,
        MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR => WcStatus::REM_ABORT_ERR,
        _ => WcStatus::GENERAL_ERR,
    }
}

/// The opcode of a completion, in `enum ibv_wc_opcode`.
///
/// `posted` is the stored opcode of a WQE whose own opcode does not determine what was posted (UMR). It is also returned
/// for opcodes that this driver does not post.
#[inline]
#[must_use]
pub(crate) const fn opcode(op_own: OpOwn, send_opcode: u8, posted: u8) -> WcOpcode {
    match op_own.opcode() {
        MLX5_CQE_RESP_WR_IMM => WcOpcode::RECV_RDMA_WITH_IMM,
        MLX5_CQE_RESP_SEND | MLX5_CQE_RESP_SEND_IMM | MLX5_CQE_RESP_SEND_INV | MLX5_CQE_RESP_ERR => {
            WcOpcode::RECV
        }
        _ => match send_opcode {
            MLX5_OPCODE_RDMA_WRITE | MLX5_OPCODE_RDMA_WRITE_IMM => WcOpcode::RDMA_WRITE,
            MLX5_OPCODE_SEND | MLX5_OPCODE_SEND_IMM | MLX5_OPCODE_SEND_INVAL => WcOpcode::SEND,
            MLX5_OPCODE_RDMA_READ => WcOpcode::RDMA_READ,
            MLX5_OPCODE_ATOMIC_CS => WcOpcode::COMP_SWAP,
            MLX5_OPCODE_ATOMIC_FA => WcOpcode::FETCH_ADD,
            MLX5_OPCODE_TSO => WcOpcode::TSO,
            _ => WcOpcode(posted as u32),
        },
    }
}

/// The number of bytes that a requester's completion scatters: 8 for an atomic, regardless of the entry's byte count.
#[inline]
#[must_use]
pub(crate) const fn requester_len(send_opcode: u8, byte_cnt: u32) -> u32 {
    match send_opcode {
        MLX5_OPCODE_RDMA_READ => byte_cnt,
        MLX5_OPCODE_ATOMIC_CS | MLX5_OPCODE_ATOMIC_FA => 8,
        _ => 0,
    }
}

/// The flags for the contents of a message.
#[inline]
#[must_use]
pub(crate) const fn message_flags(op_own: OpOwn) -> WcFlags {
    match op_own.opcode() {
        MLX5_CQE_RESP_WR_IMM | MLX5_CQE_RESP_SEND_IMM => WcFlags::WITH_IMM,
        MLX5_CQE_RESP_SEND_INV => WcFlags::WITH_INV,
        _ => WcFlags::empty(),
    }
}

/// The flags of a requester's completion in `ibv_poll_cq`. (Extended polling reports none.)
#[inline]
#[must_use]
pub(crate) const fn requester_flags(send_opcode: u8) -> WcFlags {
    match send_opcode {
        MLX5_OPCODE_RDMA_WRITE_IMM | MLX5_OPCODE_SEND_IMM => WcFlags::WITH_IMM,
        _ => WcFlags::empty(),
    }
}

/// The values of a successful completion that depend on an opcode only.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(4))]
pub(crate) struct ByOpcode {
    opcode: u8,
    flags: u8,
    /// Whether the opcode is the stored one, or [`requester_len`] is not 0.
    pub(crate) needs_more: bool,
}

impl ByOpcode {
    /// Opcode and flags must be those of `ibv_poll_cq`, all below 256: the largest is `IBV_WC_RECV`, 1 << 7.
    const fn new(opcode: WcOpcode, flags: WcFlags, needs_more: bool) -> Self {
        Self { opcode: opcode.0 as u8, flags: flags.bits() as u8, needs_more }
    }

    /// `enum ibv_wc_opcode`
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn opcode(self) -> WcOpcode {
        WcOpcode(self.opcode as u32)
    }

    /// [`requester_flags`] or [`message_flags`]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn flags(self) -> WcFlags {
        WcFlags::from_bits_retain(self.flags as u32)
    }
}

/// Values of a requester's success, indexed by the opcode of its WQE.
pub(crate) static SENT: [ByOpcode; 256] = {
    const REMEMBERED: u8 = 0xff;
    let mut table = [ByOpcode::new(WcOpcode(0), WcFlags::empty(), false); 256];
    let mut i = 0;
    while i < table.len() {
        let opcode = opcode(OpOwn(0), i as u8, REMEMBERED);
        let needs_more = opcode.0 == REMEMBERED as u32 || requester_len(i as u8, 1) != 0;
        table[i] = ByOpcode::new(opcode, requester_flags(i as u8), needs_more);
        i += 1;
    }
    table
};

/// Values of a responder's success, indexed by the opcode of the entry (four bits).
pub(crate) static RECEIVED: [ByOpcode; 16] = {
    let mut table = [ByOpcode::new(WcOpcode(0), WcFlags::empty(), false); 16];
    let mut i = 0;
    while i < table.len() {
        let op_own = OpOwn((i as u8) << 4);
        table[i] = ByOpcode::new(opcode(op_own, 0, 0), message_flags(op_own), false);
        i += 1;
    }
    table
};

/// The flag of a GRH, from [`Cqe64::flags_rqpn`](uverbs_mlx5_hw::cqe::Cqe64).
#[inline]
#[must_use]
pub(crate) const fn grh_flag(flags_rqpn: u32) -> WcFlags {
    if flags_rqpn >> 28 & 3 != 0 { WcFlags::GRH } else { WcFlags::empty() }
}

/// The flag for valid checksums: set for an IPv4 packet whose IP and L4 checksums the device found valid.
#[inline]
#[must_use]
pub(crate) const fn csum_flag(hds_ip_ext: u8, l4_hdr_type_etc: u8) -> WcFlags {
    const GOOD: u8 = MLX5_CQE_L3_OK | MLX5_CQE_L4_OK;
    if hds_ip_ext & GOOD == GOOD && l4_hdr_type_etc >> 2 & 3 == MLX5_CQE_L3_HDR_TYPE_IPV4 {
        WcFlags::IP_CSUM_OK
    } else {
        WcFlags::empty()
    }
}

#[cfg(test)]
mod tests;
