// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queue entries.
//!
//! An entry is 64 bytes, or 128 of which the second half is the entry and the first holds scattered data. Facts from
//! `<infiniband/mlx5dv.h>`, PRM "Completion Queue Entry" (8.18) and, if named, `linux/mlx5/device.h`.

use crate::{Be16, Be32, Be64};
use uverbs_uapi::layout::{abi_consts, abi_structs};

abi_consts! {
    /// Mask of the owner bit in [`Cqe64::op_own`].
    pub const MLX5_CQE_OWNER_MASK: u8 = 1;
    /// Opcode: a send queue's WQE completed.
    pub const MLX5_CQE_REQ: u8 = 0;
    /// Opcode: an RDMA write with immediate data arrived.
    pub const MLX5_CQE_RESP_WR_IMM: u8 = 1;
    /// Opcode: a send arrived.
    pub const MLX5_CQE_RESP_SEND: u8 = 2;
    /// Opcode: a send with immediate data arrived.
    pub const MLX5_CQE_RESP_SEND_IMM: u8 = 3;
    /// Opcode: a send that invalidated a key arrived.
    pub const MLX5_CQE_RESP_SEND_INV: u8 = 4;
    /// Opcode: the last entry in the old buffer of a resized CQ.
    pub const MLX5_CQE_RESIZE_CQ: u8 = 5;
    /// Opcode: tag matching without a packet.
    pub const MLX5_CQE_NO_PACKET: u8 = 6;
    /// Opcode: a signature did not match.
    pub const MLX5_CQE_SIG_ERR: u8 = 12;
    /// Opcode: a send queue's WQE failed.
    pub const MLX5_CQE_REQ_ERR: u8 = 13;
    /// Opcode: a receive failed.
    pub const MLX5_CQE_RESP_ERR: u8 = 14;
    /// Opcode: the device has never written this entry.
    pub const MLX5_CQE_INVALID: u8 = 15;

    /// Bit of [`Cqe64::op_own`]: up to 32 bytes of data are in the entry itself.
    pub const MLX5_INLINE_SCATTER_32: u8 = 0x4;
    /// Bit of [`Cqe64::op_own`]: up to 64 bytes of data are before the entry.
    pub const MLX5_INLINE_SCATTER_64: u8 = 0x8;

    /// Syndrome: received data were longer than the WQE's memory.
    pub const MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR: u8 = 0x01;
    /// Syndrome: internal consistency error of the QP.
    pub const MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR: u8 = 0x02;
    /// Syndrome: a local key did not permit the access.
    pub const MLX5_CQE_SYNDROME_LOCAL_PROT_ERR: u8 = 0x04;
    /// Syndrome: flushed, the QP is in error state.
    pub const MLX5_CQE_SYNDROME_WR_FLUSH_ERR: u8 = 0x05;
    /// Syndrome: a memory window could not be bound.
    pub const MLX5_CQE_SYNDROME_MW_BIND_ERR: u8 = 0x06;
    /// Syndrome: the peer answered something unexpected.
    pub const MLX5_CQE_SYNDROME_BAD_RESP_ERR: u8 = 0x10;
    /// Syndrome: a peer's write with immediate data failed here.
    pub const MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR: u8 = 0x11;
    /// Syndrome: the peer did not understand the request.
    pub const MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR: u8 = 0x12;
    /// Syndrome: a remote key did not permit the access.
    pub const MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR: u8 = 0x13;
    /// Syndrome: the peer could not carry it out.
    pub const MLX5_CQE_SYNDROME_REMOTE_OP_ERR: u8 = 0x14;
    /// Syndrome: the peer did not answer.
    pub const MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR: u8 = 0x15;
    /// Syndrome: the peer was never ready to receive.
    pub const MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR: u8 = 0x16;
    /// Syndrome: the peer aborted.
    pub const MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR: u8 = 0x22;
    /// Vendor syndrome: a page fault of on-demand paging; the SRQ's WQE was not used.
    pub const MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT: u8 = 0x93;

    /// Bit of [`Cqe64::hds_ip_ext`]: link layer good.
    pub const MLX5_CQE_L2_OK: u8 = 1;
    /// Bit of [`Cqe64::hds_ip_ext`]: IP header checksum good.
    pub const MLX5_CQE_L3_OK: u8 = 1 << 1;
    /// Bit of [`Cqe64::hds_ip_ext`]: TCP or UDP checksum good.
    pub const MLX5_CQE_L4_OK: u8 = 1 << 2;
    /// [`Cqe64::l3_hdr_type`]: not IP.
    pub const MLX5_CQE_L3_HDR_TYPE_NONE: u8 = 0;
    /// [`Cqe64::l3_hdr_type`]: IPv6.
    pub const MLX5_CQE_L3_HDR_TYPE_IPV6: u8 = 1;
    /// [`Cqe64::l3_hdr_type`]: IPv4.
    pub const MLX5_CQE_L3_HDR_TYPE_IPV4: u8 = 2;
    /// Bit of [`Cqe64::l4_hdr_type_etc`]: a VLAN tag was stripped. `linux/mlx5/device.h`.
    #[c = ""]
    pub const CQE_VLAN_STRIPPED: u8 = 1;
}

abi_structs! {
    /// A completion, of any opcode but the two errors. PRM 8.18.2.
    #[c = "struct mlx5_cqe64"]
    pub struct Cqe64: 64 {
        /// Reserved; inline scattered data start here.
        pub rsvd0: [u8; 2] = 0,
        /// Striding receive queues: the WQE.
        pub wqe_id: Be16 = 2,
        /// Reserved.
        pub rsvd4: [u8; 13] = 4,
        /// Low path bits (6:0) of the destination LID.
        pub ml_path: u8 = 17,
        /// Reserved.
        pub rsvd20: [u8; 4] = 18,
        /// Source LID.
        pub slid: Be16 = 22,
        /// GRH or kind of RoCE packet (29:28), service level (27:24), source QP number (23:0).
        pub flags_rqpn: Be32 = 24,
        /// `MLX5_CQE_L*_OK`, and header flags.
        pub hds_ip_ext: u8 = 28,
        /// L4 header type (6:4), L3 header type (3:2), VLAN stripped (0).
        pub l4_hdr_type_etc: u8 = 29,
        /// VLAN tag.
        pub vlan_info: Be16 = 30,
        /// User index of the QP (with CQE version 1), or SRQ number (24 bits).
        pub srqn_uidx: Be32 = 32,
        /// Immediate data, invalidated key, or P_Key index.
        pub imm_inval_pkey: Be32 = 36,
        /// Tag matching.
        pub app: u8 = 40,
        /// Tag matching.
        pub app_op: u8 = 41,
        /// Tag matching.
        pub app_info: Be16 = 42,
        /// Bytes moved.
        pub byte_cnt: Be32 = 44,
        /// Device clock.
        pub timestamp: Be64 = 48,
        /// Requester: opcode of the WQE (31:24); receive: flow tag; QP number (23:0).
        pub sop_drop_qpn: Be32 = 56,
        /// Requester: first basic block of the WQE modulo 65536; receive: index of the WQE.
        pub wqe_counter: Be16 = 60,
        /// XOR signature.
        pub signature: u8 = 62,
        /// Opcode (7:4), format (3:2), solicited event (1), owner (0).
        pub op_own: u8 = 63,
    }

    /// A failed completion: [`MLX5_CQE_REQ_ERR`] or [`MLX5_CQE_RESP_ERR`]. PRM 8.18.3. `mlx5dv.h` declares the words
    /// as plain integers; they are big-endian.
    #[c = "struct mlx5_err_cqe"]
    pub struct ErrCqe: 64 {
        /// Reserved.
        pub rsvd0: [u8; 32] = 0,
        /// User index of the QP (with CQE version 1), or SRQ number (24 bits).
        pub srqn: Be32 = 32,
        /// Reserved.
        pub rsvd1: [u8; 18] = 36,
        /// Detail of the cause.
        pub vendor_err_synd: u8 = 54,
        /// `MLX5_CQE_SYNDROME_*`.
        pub syndrome: u8 = 55,
        /// Opcode of the WQE (31:24), QP number (23:0).
        pub s_wqe_opcode_qpn: Be32 = 56,
        /// As in [`Cqe64`].
        pub wqe_counter: Be16 = 60,
        /// XOR signature.
        pub signature: u8 = 62,
        /// As in [`Cqe64`].
        pub op_own: u8 = 63,
    }
}

/// Opcode of an entry, from its last byte.
#[inline]
pub const fn opcode(op_own: u8) -> u8 {
    op_own >> 4
}

impl Cqe64 {
    /// `MLX5_CQE_*`.
    #[inline]
    pub const fn opcode(&self) -> u8 {
        opcode(self.op_own)
    }

    /// Owner bit.
    #[inline]
    pub const fn owner(&self) -> u8 {
        self.op_own & MLX5_CQE_OWNER_MASK
    }

    /// Solicited event bit.
    #[inline]
    pub const fn solicited(&self) -> bool {
        self.op_own & 2 != 0
    }

    /// Format: 0 plain, 1 and 2 scattered data, 3 the title of compressed entries ([`mini`](crate::mini)).
    #[inline]
    pub const fn format(&self) -> u8 {
        self.op_own >> 2 & 3
    }

    /// QP number, 24 bits.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.sop_drop_qpn.get() & 0xff_ffff
    }

    /// Requester: opcode of the WQE.
    #[inline]
    pub const fn send_opcode(&self) -> u8 {
        self.sop_drop_qpn.get().to_be_bytes()[0]
    }

    /// User index or SRQ number, 24 bits.
    #[inline]
    pub const fn user_index(&self) -> u32 {
        self.srqn_uidx.get() & 0xff_ffff
    }

    /// Not 0 if a GRH was received.
    #[inline]
    pub const fn grh(&self) -> u8 {
        (self.flags_rqpn.get() >> 28 & 3) as u8
    }

    /// Service level, 4 bits.
    #[inline]
    pub const fn sl(&self) -> u8 {
        (self.flags_rqpn.get() >> 24 & 0xf) as u8
    }

    /// Source QP number, 24 bits.
    #[inline]
    pub const fn src_qp(&self) -> u32 {
        self.flags_rqpn.get() & 0xff_ffff
    }

    /// Low path bits of the destination LID, 7 bits.
    #[inline]
    pub const fn dlid_path_bits(&self) -> u8 {
        self.ml_path & 0x7f
    }

    /// `MLX5_CQE_L3_HDR_TYPE_*`.
    #[inline]
    pub const fn l3_hdr_type(&self) -> u8 {
        self.l4_hdr_type_etc >> 2 & 3
    }
}

impl ErrCqe {
    /// `MLX5_CQE_*`.
    #[inline]
    pub const fn opcode(&self) -> u8 {
        opcode(self.op_own)
    }

    /// QP number, 24 bits.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.s_wqe_opcode_qpn.get() & 0xff_ffff
    }

    /// Requester: opcode of the WQE.
    #[inline]
    pub const fn send_opcode(&self) -> u8 {
        self.s_wqe_opcode_qpn.get().to_be_bytes()[0]
    }

    /// User index or SRQ number, 24 bits.
    #[inline]
    pub const fn user_index(&self) -> u32 {
        self.srqn.get() & 0xff_ffff
    }
}

impl From<Cqe64> for ErrCqe {
    /// Reinterprets the same 64 bytes.
    #[inline]
    fn from(cqe: Cqe64) -> Self {
        zerocopy::transmute!(cqe)
    }
}

impl From<ErrCqe> for Cqe64 {
    /// Reinterprets the same 64 bytes.
    #[inline]
    fn from(cqe: ErrCqe) -> Self {
        zerocopy::transmute!(cqe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_fields_of_an_entry_are_read() {
        let cqe = Cqe64 {
            srqn_uidx: Be32::new(0x77d4_e5f6),
            flags_rqpn: Be32::new(0x1512_3456),
            sop_drop_qpn: Be32::new(0x10a1_b2c3),
            l4_hdr_type_etc: 0b0110_1001,
            ml_path: 0xff,
            op_own: 0x2b,
            ..Cqe64::default()
        };
        assert_eq!((cqe.grh(), cqe.sl(), cqe.src_qp()), (1, 5, 0x12_3456));
        assert_eq!((cqe.send_opcode(), cqe.qpn()), (0x10, 0xa1_b2c3));
        assert_eq!((cqe.opcode(), cqe.format(), cqe.solicited(), cqe.owner()), (2, 2, true, 1));
        assert_eq!((cqe.l3_hdr_type(), cqe.dlid_path_bits()), (2, 0x7f));
        assert_eq!(cqe.user_index(), 0xd4_e5f6);
        let err = ErrCqe::from(cqe);
        assert_eq!((err.opcode(), err.send_opcode()), (2, 0x10));
        assert_eq!((err.qpn(), err.user_index()), (0xa1_b2c3, 0xd4_e5f6));
    }

    #[test]
    fn an_error_entry_converts_to_an_entry_and_back() {
        let err = ErrCqe { syndrome: 0x13, vendor_err_synd: 0x88, op_own: 0xd0, ..ErrCqe::default() };
        let cqe = Cqe64::from(err);
        assert_eq!(cqe.timestamp.get(), 0x8813);
        assert_eq!(ErrCqe::from(cqe), err);
        assert_eq!(cqe.opcode(), MLX5_CQE_REQ_ERR);
    }
}
