// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments of work queue elements.
//!
//! A send WQE is a [`CtrlSeg`] followed by other segments, in 16-byte units; it starts at a 64-byte basic block and
//! takes whole ones. A receive WQE is a sequence of [`DataSeg`]s; in an SRQ a [`SrqNextSeg`] precedes them. Facts from
//! `<infiniband/mlx5dv.h>`, PRM "Work Queue Elements" (8.9) and, if named, `linux/mlx5/qp.h`.

use crate::{Be16, Be32, Be64};
use uverbs_uapi::layout::{abi_consts, abi_structs};

abi_consts! {
    /// Does nothing but complete.
    pub const MLX5_OPCODE_NOP: u8 = 0x00;
    /// Send, and invalidate a key of the peer.
    pub const MLX5_OPCODE_SEND_INVAL: u8 = 0x01;
    /// RDMA write.
    pub const MLX5_OPCODE_RDMA_WRITE: u8 = 0x08;
    /// RDMA write with immediate data.
    pub const MLX5_OPCODE_RDMA_WRITE_IMM: u8 = 0x09;
    /// Send.
    pub const MLX5_OPCODE_SEND: u8 = 0x0a;
    /// Send with immediate data.
    pub const MLX5_OPCODE_SEND_IMM: u8 = 0x0b;
    /// Send of a large TCP segment that the device cuts.
    pub const MLX5_OPCODE_TSO: u8 = 0x0e;
    /// RDMA read.
    pub const MLX5_OPCODE_RDMA_READ: u8 = 0x10;
    /// Atomic compare-and-swap of 8 bytes.
    pub const MLX5_OPCODE_ATOMIC_CS: u8 = 0x11;
    /// Atomic fetch-and-add of 8 bytes.
    pub const MLX5_OPCODE_ATOMIC_FA: u8 = 0x12;
    /// Atomic compare-and-swap with masks.
    pub const MLX5_OPCODE_ATOMIC_MASKED_CS: u8 = 0x14;
    /// Atomic fetch-and-add with masks.
    pub const MLX5_OPCODE_ATOMIC_MASKED_FA: u8 = 0x15;
    /// Fast registration, of old devices.
    pub const MLX5_OPCODE_FMR: u8 = 0x19;
    /// Invalidates a local key, of old devices; see [`MLX5_OPCODE_UMR`].
    pub const MLX5_OPCODE_LOCAL_INVAL: u8 = 0x1b;
    /// Configuration command.
    pub const MLX5_OPCODE_CONFIG_CMD: u8 = 0x1f;
    /// Sets a protection signature value.
    pub const MLX5_OPCODE_SET_PSV: u8 = 0x20;
    /// Changes a memory key: binds a window, invalidates.
    pub const MLX5_OPCODE_UMR: u8 = 0x25;
    /// Operates on a tag matching list.
    pub const MLX5_OPCODE_TAG_MATCHING: u8 = 0x28;
    /// Changes a steering table.
    pub const MLX5_OPCODE_FLOW_TBL_ACCESS: u8 = 0x2c;
    /// Memory operation: copy, compress.
    pub const MLX5_OPCODE_MMO: u8 = 0x2f;

    /// An lkey that names no memory region; it terminates the list of entries of a receive WQE.
    pub const MLX5_INVALID_LKEY: u32 = 0x100;
    /// Bit of [`Av::dqp_dct`]: the vector is 48 bytes.
    pub const MLX5_EXTENDED_UD_AV: u32 = 0x8000_0000;
    /// Bit of [`InlineSeg::byte_count`]: data follow in the WQE.
    pub const MLX5_INLINE_SEG: u32 = 0x8000_0000;

    /// `fm_ce_se`: write a CQE.
    pub const MLX5_WQE_CTRL_CQ_UPDATE: u8 = 2 << 2;
    /// `fm_ce_se`: solicited event at the peer.
    pub const MLX5_WQE_CTRL_SOLICITED: u8 = 1 << 1;
    /// `fm_ce_se`: wait for all earlier reads and atomics.
    pub const MLX5_WQE_CTRL_FENCE: u8 = 4 << 5;
    /// `fm_ce_se`: wait for earlier local operations.
    pub const MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE: u8 = 1 << 5;

    /// Bytes of a basic block.
    pub const MLX5_SEND_WQE_BB: usize = 64;
    /// log2 of [`MLX5_SEND_WQE_BB`].
    pub const MLX5_SEND_WQE_SHIFT: u32 = 6;
    /// Bytes of the unit in which `ds` counts. PRM 8.9.1.
    #[c = ""]
    pub const DS_BYTES: usize = 16;
    /// Mask of `ds` in [`CtrlSeg::qpn_ds`]. PRM 8.9.1.
    #[c = ""]
    pub const DS_MASK: u32 = 0x3f;

    /// [`EthSeg::cs_flags`]: compute the IP header checksum.
    pub const MLX5_ETH_WQE_L3_CSUM: u8 = 1 << 6;
    /// [`EthSeg::cs_flags`]: compute the TCP or UDP checksum.
    pub const MLX5_ETH_WQE_L4_CSUM: u8 = 1 << 7;
    /// Bytes of an Ethernet header with a VLAN tag: the number of header bytes that a device in L2 inline mode requires
    /// inline. PRM, 8.9.4.2.
    #[c = ""]
    pub const ETH_L2_INLINE_HEADER_SIZE: usize = 18;
    /// Bytes of an Ethernet header.
    #[c = ""]
    pub const ETH_L2_MIN_HEADER_SIZE: usize = 14;

    /// [`UmrCtrlSeg::flags`]: the translation entries are in the WQE.
    pub const MLX5_WQE_UMR_CTRL_FLAG_INLINE: u8 = 1 << 7;
    /// [`UmrCtrlSeg::flags`]: fail unless the key is free.
    pub const MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE: u8 = 1 << 5;
    /// [`UmrCtrlSeg::flags`]: entries start at `translation_offset`.
    pub const MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET: u8 = 1 << 4;
    /// [`UmrCtrlSeg::flags`]: fail unless the key belongs to this QP.
    pub const MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN: u8 = 1 << 3;

    /// [`UmrCtrlSeg::mkey_mask`]: change the length.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN: u64 = 1;
    /// [`UmrCtrlSeg::mkey_mask`]: change the start address.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR: u64 = 1 << 6;
    /// [`UmrCtrlSeg::mkey_mask`]: change the signature error count.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_SIG_ERR: u64 = 1 << 9;
    /// [`UmrCtrlSeg::mkey_mask`]: change whether a signature is used.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_BSF_ENABLE: u64 = 1 << 12;
    /// [`UmrCtrlSeg::mkey_mask`]: change the variable byte of the key.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY: u64 = 1 << 13;
    /// [`UmrCtrlSeg::mkey_mask`]: change the QP that the key belongs to.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN: u64 = 1 << 14;
    /// [`UmrCtrlSeg::mkey_mask`]: change the local write permission.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE: u64 = 1 << 18;
    /// [`UmrCtrlSeg::mkey_mask`]: change the remote read permission.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ: u64 = 1 << 19;
    /// [`UmrCtrlSeg::mkey_mask`]: change the remote write permission.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE: u64 = 1 << 20;
    /// [`UmrCtrlSeg::mkey_mask`]: change the remote atomic permission.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC: u64 = 1 << 21;
    /// [`UmrCtrlSeg::mkey_mask`]: change whether the key is free.
    pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE: u64 = 1 << 29;

    /// [`MkeyContextSeg::flags_pd`]: the key's signature is in use (`wqe.h` of libmlx5).
    #[c = ""]
    pub const MLX5_WQE_MKEY_CONTEXT_FLAGS_BSF_ENABLE: u32 = 1 << 30;
    /// [`MkeyContextSeg::flags_pd`]: the bit of the number of signature errors (`wqe.h` of libmlx5).
    #[c = ""]
    pub const MLX5_WQE_MKEY_CONTEXT_SIG_ERR_CNT: u32 = 1 << 26;
    /// [`UmrRepeatBlockSeg::op`] (`umr_strided_seg_create()` of libmlx5).
    #[c = ""]
    pub const UMR_REPEAT_BLOCK: u32 = 0x400;

    /// [`MkeyContextSeg::free`]: the key is free.
    pub const MLX5_WQE_MKEY_CONTEXT_FREE: u8 = 1 << 6;
    /// [`MkeyContextSeg::access_flags`]: remote atomics.
    pub const MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC: u8 = 1 << 6;
    /// [`MkeyContextSeg::access_flags`]: remote write.
    pub const MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE: u8 = 1 << 5;
    /// [`MkeyContextSeg::access_flags`]: remote read.
    pub const MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ: u8 = 1 << 4;
    /// [`MkeyContextSeg::access_flags`]: local write.
    pub const MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE: u8 = 1 << 3;
    /// [`MkeyContextSeg::access_flags`]: local read.
    pub const MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_READ: u8 = 1 << 2;
}

abi_structs! {
    /// Start of every send WQE. PRM 8.9.4.1.
    #[c = "struct mlx5_wqe_ctrl_seg"]
    pub struct CtrlSeg: 16 {
        /// Opcode modifier (31:24), WQE index in basic blocks modulo 65536 (23:8), opcode (7:0).
        pub opmod_idx_opcode: Be32 = 0,
        /// QP or SQ number (31:8), length of the WQE in 16-byte units (5:0).
        pub qpn_ds: Be32 = 4,
        /// XOR signature, for QPs that have one.
        pub signature: u8 = 8,
        /// Stream of a DC initiator, big-endian; not aligned.
        pub dci_stream_channel_id: [u8; 2] = 9,
        /// `MLX5_WQE_CTRL_*`.
        pub fm_ce_se: u8 = 11,
        /// Immediate data, the key to invalidate, or the UMR's memory key.
        pub imm: Be32 = 12,
    }

    /// Remote address of RDMA and atomics. PRM 8.9.4.4.
    #[c = "struct mlx5_wqe_raddr_seg"]
    pub struct RaddrSeg: 16 {
        /// Address at the peer.
        pub raddr: Be64 = 0,
        /// Remote key.
        pub rkey: Be32 = 8,
        /// Must be 0.
        pub reserved: Be32 = 12,
    }

    /// Operands of an atomic of 8 bytes. PRM 8.9.4.5.
    #[c = "struct mlx5_wqe_atomic_seg"]
    pub struct AtomicSeg: 16 {
        /// The value to swap in, or to add.
        pub swap_add: Be64 = 0,
        /// The value to compare with; fetch-and-add: 0.
        pub compare: Be64 = 8,
    }

    /// One scatter or gather entry. PRM 8.9.4.9.
    #[c = "struct mlx5_wqe_data_seg"]
    pub struct DataSeg: 16 {
        /// Bytes; 0 means 2^31.
        pub byte_count: Be32 = 0,
        /// Local key.
        pub lkey: Be32 = 4,
        /// Address in the memory region.
        pub addr: Be64 = 8,
    }

    /// Header of inline data. The data follow it; header and data together are padded to 16 bytes. PRM 8.9.4.10.
    #[c = "struct mlx5_wqe_inl_data_seg"]
    pub struct InlineSeg: 4 {
        /// [`MLX5_INLINE_SEG`] and the number of bytes.
        pub byte_count: Be32 = 0,
    }

    /// Address vector of a datagram or DC peer. PRM 8.9.4.3.
    #[c = "struct mlx5_wqe_av"]
    pub struct Av: 48 {
        /// UD: the Q_Key, and DC: the upper half of the DC access key.
        #[c = "key.qkey.qkey"]
        pub qkey: Be32 = 0,
        /// UD: 0, and DC: the lower half of the DC access key.
        #[c = "key.qkey.reserved"]
        pub dc_key_low: Be32 = 4,
        /// [`MLX5_EXTENDED_UD_AV`] and the peer's QP or DCT number.
        pub dqp_dct: Be32 = 8,
        /// Static rate (7:4), service level (3:0).
        pub stat_rate_sl: u8 = 12,
        /// Force loopback (7), source path bits (6:0).
        pub fl_mlid: u8 = 13,
        /// InfiniBand: the peer's LID; RoCE v2: UDP source port.
        pub rlid: Be16 = 14,
        /// Must be 0.
        pub reserved0: [u8; 4] = 16,
        /// RoCE: the peer's MAC address.
        pub rmac: [u8; 6] = 20,
        /// Traffic class.
        pub tclass: u8 = 26,
        /// Hop limit.
        pub hop_limit: u8 = 27,
        /// GRH present (30), source GID index (27:20), flow label (19:0).
        pub grh_gid_fl: Be32 = 28,
        /// The peer's GID.
        pub rgid: [u8; 16] = 32,
    }

    /// The peer's XRC SRQ that receives the message. PRM 8.9.4.6; `mlx5dv.h` lacks it.
    #[c = ""]
    pub struct XrcSeg: 16 {
        /// SRQ number.
        pub xrc_srqn: Be32 = 0,
        /// Not read.
        pub reserved: [u8; 12] = 4,
    }

    /// Ethernet offloads of a raw packet, with the first bytes of its headers. PRM 8.9.4.2.
    #[c = "struct mlx5_wqe_eth_seg"]
    pub struct EthSeg: 32 {
        /// Must be 0.
        pub rsvd0: Be32 = 0,
        /// `MLX5_ETH_WQE_*`.
        pub cs_flags: u8 = 4,
        /// Must be 0.
        pub rsvd1: u8 = 5,
        /// TSO: the maximum number of payload bytes in a packet; otherwise 0.
        pub mss: Be16 = 6,
        /// Must be 0.
        pub rsvd2: Be32 = 8,
        /// Bytes of headers inlined here.
        pub inline_hdr_sz: Be16 = 12,
        /// The first of them. Without an inlined header the segment ends after 16 bytes.
        pub inline_hdr_start: [u8; 2] = 14,
        /// The rest of 18 bytes; more follow.
        pub inline_hdr: [u8; 16] = 16,
    }

    /// The operation of a UMR. PRM 8.9.4.7.
    #[c = "struct mlx5_wqe_umr_ctrl_seg"]
    pub struct UmrCtrlSeg: 48 {
        /// `MLX5_WQE_UMR_CTRL_FLAG_*`.
        pub flags: u8 = 0,
        /// Must be 0.
        pub rsvd0: [u8; 3] = 1,
        /// Translation entries, in 16-byte units.
        pub klm_octowords: Be16 = 4,
        /// First entry to change; or the signature's size.
        pub translation_offset: Be16 = 6,
        /// `MLX5_WQE_UMR_CTRL_MKEY_MASK_*`: what changes.
        pub mkey_mask: Be64 = 8,
        /// Must be 0.
        pub rsvd1: [u8; 32] = 16,
    }

    /// The memory key that a UMR writes. PRM 8.9.4.8.
    #[c = "struct mlx5_wqe_mkey_context_seg"]
    pub struct MkeyContextSeg: 64 {
        /// [`MLX5_WQE_MKEY_CONTEXT_FREE`].
        pub free: u8 = 0,
        /// Must be 0.
        pub reserved1: u8 = 1,
        /// `MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_*`.
        pub access_flags: u8 = 2,
        /// Small fence.
        pub sf: u8 = 3,
        /// QP number (31:8), all ones for any; variable byte of the key (7:0).
        pub qpn_mkey: Be32 = 4,
        /// Must be 0.
        pub reserved2: Be32 = 8,
        /// Flags, PD number (23:0).
        pub flags_pd: Be32 = 12,
        /// First address.
        pub start_addr: Be64 = 16,
        /// Length in bytes.
        pub len: Be64 = 24,
        /// Signature's size, in 16-byte units.
        pub bsf_octword_size: Be32 = 32,
        /// Must be 0.
        pub reserved3: [Be32; 4] = 36,
        /// Translation entries, in 16-byte units.
        pub translations_octword_size: Be32 = 52,
        /// Must be 0.
        pub reserved4: [u8; 3] = 56,
        /// log2 of the page size; 0 with entries that have lengths.
        pub log_page_size: u8 = 59,
        /// Must be 0.
        pub reserved: Be32 = 60,
    }

    /// One translation entry with a length. PRM 8.9.4.7.
    #[c = "struct mlx5_wqe_umr_klm_seg"]
    pub struct KlmSeg: 16 {
        /// Bytes.
        pub byte_count: Be32 = 0,
        /// Key of the memory.
        pub mkey: Be32 = 4,
        /// Address in it.
        pub address: Be64 = 8,
    }

    /// The head of strided entries, which are repeated.
    #[c = "struct mlx5_wqe_umr_repeat_block_seg"]
    pub struct UmrRepeatBlockSeg: 16 {
        /// Bytes of all entries.
        pub byte_count: Be32 = 0,
        /// [`UMR_REPEAT_BLOCK`].
        pub op: Be32 = 4,
        /// Repetitions.
        pub repeat_count: Be32 = 8,
        /// Must be 0.
        pub reserved: Be16 = 12,
        /// Entries.
        pub num_ent: Be16 = 14,
    }

    /// A strided entry.
    #[c = "struct mlx5_wqe_umr_repeat_ent_seg"]
    pub struct UmrRepeatEntSeg: 16 {
        /// Bytes from its beginning to that of the next repetition.
        pub stride: Be16 = 0,
        /// Bytes.
        pub byte_count: Be16 = 2,
        /// Key of the memory.
        pub memkey: Be32 = 4,
        /// Address in it.
        pub va: Be64 = 8,
    }

    /// The value that a signature begins with (`struct mlx5_wqe_set_psv_seg` of libmlx5's `wqe.h`).
    #[c = ""]
    pub struct SetPsvSeg: 16 {
        /// Its number.
        pub psv_index: Be32 = 0,
        /// Error to set; 0 for none.
        pub syndrome: Be16 = 4,
        /// Must be 0.
        pub reserved: [u8; 2] = 6,
        /// The value.
        pub transient_signature: Be64 = 8,
    }

    /// The part of a [`BsfSeg`] about T10-DIF (`struct mlx5_bsf_inl` of libmlx5's `wqe.h`).
    #[c = ""]
    pub struct BsfInline: 16 {
        /// Whether it is valid (15), and whether the value is set again (14).
        pub vld_refresh: Be16 = 0,
        /// Application tag.
        pub dif_apptag: Be16 = 2,
        /// Reference tag.
        pub dif_reftag: Be32 = 4,
        /// CRC (1) or checksum (2).
        pub sig_type: u8 = 8,
        /// Blocks are repeated (7), and the seed is all ones (3).
        pub rp_inv_seed: u8 = 9,
        /// Must be 0.
        pub rsvd: [u8; 3] = 10,
        /// The reference tag increases (6); blocks that are not checked (1, 0).
        pub dif_inc_ref_guard_check: u8 = 13,
        /// Bits of the application tag to check.
        pub dif_app_bitmask_check: Be16 = 14,
    }

    /// The signature of a memory key (`struct mlx5_bsf` of libmlx5's `wqe.h`).
    #[c = ""]
    pub struct BsfSeg: 64 {
        /// Size (7:6), and whether the blocks of both domains are equal (4).
        pub bsf_size_sbs: u8 = 0,
        /// Bytes of the signature to check.
        pub check_byte_mask: u8 = 1,
        /// Size of the blocks on the wire; with equal blocks, the bytes of the signature to copy.
        pub wire: u8 = 2,
        /// Size of the blocks in memory.
        pub mem_bs_selector: u8 = 3,
        /// Bytes of data.
        pub raw_data_size: Be32 = 4,
        /// Kind of the signature on the wire (31:24), number of its value.
        pub w_bfs_psv: Be32 = 8,
        /// Kind of the signature in memory (31:24), number of its value.
        pub m_bfs_psv: Be32 = 12,
        /// Transactions.
        pub ext: [Be32; 4] = 16,
        /// T10-DIF on the wire.
        pub w_inl: BsfInline = 32,
        /// T10-DIF in memory.
        pub m_inl: BsfInline = 48,
    }

    /// Link of an SRQ's WQE to the next one. PRM 8.9.3.2.
    #[c = "struct mlx5_wqe_srq_next_seg"]
    pub struct SrqNextSeg: 16 {
        /// Must be 0.
        pub rsvd0: [u8; 2] = 0,
        /// Index of the WQE that follows.
        pub next_wqe_index: Be16 = 2,
        /// XOR signature, for SRQs that have one.
        pub signature: u8 = 4,
        /// Must be 0.
        pub rsvd1: [u8; 11] = 5,
    }
}

impl CtrlSeg {
    /// Packs the bit fields. `idx` is the WQE's first basic block modulo 65536, `ds` counts 16-byte units, `imm` is
    /// the word as it goes on the wire.
    #[inline]
    pub const fn new(opmod: u8, idx: u16, opcode: u8, qpn: u32, ds: u8, fm_ce_se: u8, imm: Be32) -> Self {
        Self {
            opmod_idx_opcode: Be32::new((opmod as u32) << 24 | (idx as u32) << 8 | opcode as u32),
            qpn_ds: Be32::new(qpn << 8 | ds as u32),
            signature: 0,
            dci_stream_channel_id: [0; 2],
            fm_ce_se,
            imm,
        }
    }

    /// Opcode modifier.
    #[inline]
    pub const fn opmod(&self) -> u8 {
        self.opmod_idx_opcode.get().to_be_bytes()[0]
    }

    /// WQE index: its first basic block modulo 65536.
    #[inline]
    pub const fn index(&self) -> u16 {
        (self.opmod_idx_opcode.get() >> 8 & 0xffff) as u16
    }

    /// `MLX5_OPCODE_*`.
    #[inline]
    pub const fn opcode(&self) -> u8 {
        self.opmod_idx_opcode.get().to_be_bytes()[3]
    }

    /// QP or SQ number, 24 bits.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.qpn_ds.get() >> 8
    }

    /// Length in 16-byte units, 6 bits.
    #[inline]
    pub const fn ds(&self) -> u8 {
        (self.qpn_ds.get() & DS_MASK) as u8
    }

    /// DC initiator's stream.
    #[inline]
    pub const fn dci_stream(&self) -> u16 {
        u16::from_be_bytes(self.dci_stream_channel_id)
    }
}

impl Av {
    /// DC access key.
    #[inline]
    pub const fn dc_key(&self) -> u64 {
        (self.qkey.get() as u64) << 32 | self.dc_key_low.get() as u64
    }

    /// Stores the DC access key.
    #[inline]
    pub const fn set_dc_key(&mut self, key: u64) {
        self.qkey = Be32::new((key >> 32) as u32);
        self.dc_key_low = Be32::new(key as u32);
    }
}

impl InlineSeg {
    /// The header of `bytes` bytes of data.
    #[inline]
    pub const fn new(bytes: u32) -> Self {
        Self { byte_count: Be32::new(bytes | MLX5_INLINE_SEG) }
    }
}

impl DataSeg {
    /// An entry; `byte_count` 0 means 2^31.
    #[inline]
    pub const fn new(byte_count: u32, lkey: u32, addr: u64) -> Self {
        Self { byte_count: Be32::new(byte_count), lkey: Be32::new(lkey), addr: Be64::new(addr) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn the_control_segment_has_these_bytes() {
        let seg = CtrlSeg::new(
            0x12,
            0xfffe,
            MLX5_OPCODE_RDMA_WRITE,
            0x00a1_b2c3,
            3,
            MLX5_WQE_CTRL_CQ_UPDATE,
            Be32::new(7),
        );
        let bytes = [0x12, 0xff, 0xfe, 8, 0xa1, 0xb2, 0xc3, 3, 0, 0, 0, 8, 0, 0, 0, 7];
        assert_eq!(seg.as_bytes(), bytes);
        assert_eq!((seg.opmod(), seg.index(), seg.opcode()), (0x12, 0xfffe, 8));
        assert_eq!((seg.qpn(), seg.ds()), (0x00a1_b2c3, 3));
        assert_eq!(CtrlSeg { dci_stream_channel_id: [1, 2], ..seg }.dci_stream(), 0x102);
    }

    #[test]
    fn the_dc_key_fills_both_halves() {
        let mut av = Av::default();
        av.set_dc_key(0x0102_0304_0506_0708);
        assert_eq!(av.as_bytes()[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(av.dc_key(), 0x0102_0304_0506_0708);
    }
}
