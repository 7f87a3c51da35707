// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data path: entries of send, receive and completion queues.
//!
//! A send entry is a [`TxMetaDesc`] and 32 or 96 bytes that follow it: buffers, inline data, or the two memories of a read or write. It
//! is 64 or 128 bytes, chosen when the QP is created. A receive is one [`RxDesc`] for each buffer, and takes at least one. A
//! completion is a [`TxCdesc`] or [`RxCdesc`] of 16 bytes, or a [`RxCdescEx`] of 32; [`CdescCommon::flags`] tells which.
//!
//! Facts from `efa_io_defs.h` of the kernel's `drivers/infiniband/hw/efa` and of rdma-core's `providers/efa`.

use uverbs_uapi::layout::{Bytes, abi_consts, abi_structs};

abi_consts! {
    /// Buffers of a send.
    pub const EFA_IO_TX_DESC_NUM_BUFS: usize = 2;
    /// Local buffers of a read or write.
    pub const EFA_IO_TX_DESC_NUM_RDMA_BUFS: usize = 1;
    /// Bytes of inline data in an entry of 64 bytes.
    pub const EFA_IO_TX_DESC_INLINE_MAX_SIZE: usize = 32;
    /// Bytes of inline data in an entry of 128 bytes. Entries of newer devices only.
    pub const EFA_IO_TX_DESC_INLINE_MAX_SIZE_128: usize = 80;
    /// Bytes of immediate data.
    pub const EFA_IO_TX_DESC_IMM_DATA_SIZE: usize = 4;

    /// [`CdescCommon::q_type`]: of a send queue.
    pub const EFA_IO_SEND_QUEUE: u8 = 1;
    /// [`CdescCommon::q_type`]: of a receive queue.
    pub const EFA_IO_RECV_QUEUE: u8 = 2;

    /// Operation: a send.
    pub const EFA_IO_SEND: u8 = 0;
    /// Operation: RDMA read.
    pub const EFA_IO_RDMA_READ: u8 = 1;
    /// Operation: RDMA write.
    pub const EFA_IO_RDMA_WRITE: u8 = 2;

    /// Status: success.
    pub const EFA_IO_COMP_STATUS_OK: u8 = 0;
    /// Status: the QP is in the error state, or is destroyed.
    pub const EFA_IO_COMP_STATUS_FLUSHED: u8 = 1;
    /// Status: internal error of the QP.
    pub const EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR: u8 = 2;
    /// Status: the device lacks the operation.
    pub const EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP: u8 = 3;
    /// Status: there is no such address handle.
    pub const EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH: u8 = 4;
    /// Status: a local key is unknown, or does not cover the buffer.
    pub const EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY: u8 = 5;
    /// Status: the message is too long.
    pub const EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH: u8 = 6;
    /// Status: the remote key is unknown, or does not cover the address.
    pub const EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS: u8 = 7;
    /// Status: the peer aborted.
    pub const EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT: u8 = 8;
    /// Status: the peer's QP does not exist, or is in the error state.
    pub const EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN: u8 = 9;
    /// Status: the peer had no receive.
    pub const EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR: u8 = 10;
    /// Status: the peer's receive was too short.
    pub const EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH: u8 = 11;
    /// Status: the peer answered something unexpected.
    pub const EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_STATUS: u8 = 12;
    /// Status: the peer answered earlier, and answers no more.
    pub const EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE: u8 = 13;
    /// Status: the peer has no address handle of this device; reads and writes need one.
    pub const EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER: u8 = 14;
    /// Status: the peer never answered.
    pub const EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE: u8 = 15;
    /// Status: the two QPs differ in a feature.
    pub const EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH: u8 = 18;

    /// [`TxMetaDesc::ctrl3`]: for many short messages at once.
    pub const EFA_IO_PROCESSING_HINT_BURST_PPS_SENSITIVE: u8 = 1;

    /// [`TxMetaDesc::ctrl1`]: the operation.
    pub const EFA_IO_TX_META_DESC_OP_TYPE_MASK: u8 = 0xf;
    /// [`TxMetaDesc::ctrl1`]: immediate data are valid.
    pub const EFA_IO_TX_META_DESC_HAS_IMM_MASK: u8 = 1 << 4;
    /// [`TxMetaDesc::ctrl1`]: data follow, not buffers.
    pub const EFA_IO_TX_META_DESC_INLINE_MSG_MASK: u8 = 1 << 5;
    /// [`TxMetaDesc::ctrl1`]: must be 0.
    pub const EFA_IO_TX_META_DESC_META_EXTENSION_MASK: u8 = 1 << 6;
    /// [`TxMetaDesc::ctrl1`]: must be set.
    pub const EFA_IO_TX_META_DESC_META_DESC_MASK: u8 = 1 << 7;
    /// [`TxMetaDesc::ctrl2`]: the phase.
    pub const EFA_IO_TX_META_DESC_PHASE_MASK: u8 = 1;
    /// [`TxMetaDesc::ctrl2`]: must be set.
    pub const EFA_IO_TX_META_DESC_FIRST_MASK: u8 = 1 << 2;
    /// [`TxMetaDesc::ctrl2`]: must be set.
    pub const EFA_IO_TX_META_DESC_LAST_MASK: u8 = 1 << 3;
    /// [`TxMetaDesc::ctrl2`]: write a completion.
    pub const EFA_IO_TX_META_DESC_COMP_REQ_MASK: u8 = 1 << 4;
    /// [`TxMetaDesc::ctrl3`]: `EFA_IO_PROCESSING_HINT_*`.
    pub const EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK: u8 = 3;

    /// [`TxBufDesc::lkey`]: the key; the rest must be 0.
    pub const EFA_IO_TX_BUF_DESC_LKEY_MASK: u32 = 0xff_ffff;
    /// [`RxDesc::lkey_ctrl`]: the key.
    pub const EFA_IO_RX_DESC_LKEY_MASK: u32 = 0xff_ffff;
    /// [`RxDesc::lkey_ctrl`]: the first buffer of a receive.
    pub const EFA_IO_RX_DESC_FIRST_MASK: u32 = 1 << 30;
    /// [`RxDesc::lkey_ctrl`]: the last buffer of a receive.
    pub const EFA_IO_RX_DESC_LAST_MASK: u32 = 1 << 31;

    /// [`CdescCommon::flags`]: the phase.
    pub const EFA_IO_CDESC_COMMON_PHASE_MASK: u8 = 1;
    /// [`CdescCommon::flags`]: `EFA_IO_*_QUEUE`.
    pub const EFA_IO_CDESC_COMMON_Q_TYPE_MASK: u8 = 6;
    /// [`CdescCommon::flags`]: immediate data are valid, of receives.
    pub const EFA_IO_CDESC_COMMON_HAS_IMM_MASK: u8 = 1 << 3;
    /// [`CdescCommon::flags`]: the operation.
    pub const EFA_IO_CDESC_COMMON_OP_TYPE_MASK: u8 = 7 << 4;
    /// [`CdescCommon::flags`]: a write with immediate data that consumed no receive; the request id is not valid.
    pub const EFA_IO_CDESC_COMMON_UNSOLICITED_MASK: u8 = 1 << 7;

    /// [`RxCdesc::ah`]: the device has no address handle of the sender. Comment in `efa_io_defs.h`.
    #[c = ""]
    pub const UNKNOWN_AH: u16 = 0xffff;
}

abi_structs! {
    /// Start of every send entry.
    #[c = "struct efa_io_tx_meta_desc"]
    pub struct TxMetaDesc: 32 {
        /// Number that the completion carries; the driver chooses it.
        pub req_id: u16 = 0,
        /// Operation (3:0), immediate data (4), inline data (5), extension (6), meta descriptor (7).
        pub ctrl1: u8 = 2,
        /// Phase (0), first (2), last (3), completion (4).
        pub ctrl2: u8 = 3,
        /// The peer's QP.
        pub dest_qp_num: u16 = 4,
        /// Bytes of inline data, or the number of buffers.
        pub length: u16 = 6,
        /// Immediate data, as a little-endian number.
        pub immediate_data: u32 = 8,
        /// The peer's address handle.
        pub ah: u16 = 12,
        /// Hints (1:0). Reserved on older devices.
        pub ctrl3: u8 = 14,
        /// Must be 0.
        pub reserved: u8 = 15,
        /// The peer's Q_Key.
        pub qkey: u32 = 16,
        /// Must be 0.
        pub reserved2: [u8; 6] = 20,
        /// The rest of a request id of 64 bits. Reserved on devices without such.
        pub req_id_ex: [u16; 3] = 26,
    }

    /// A local buffer of a send, read or write.
    #[c = "struct efa_io_tx_buf_desc"]
    pub struct TxBufDesc: 16 {
        /// Bytes.
        pub length: u32 = 0,
        /// Local key (23:0).
        pub lkey: u32 = 4,
        /// Low half of the address.
        pub buf_addr_lo: u32 = 8,
        /// High half of the address.
        pub buf_addr_hi: u32 = 12,
    }

    /// The peer's memory of a read or write.
    #[c = "struct efa_io_remote_mem_addr"]
    pub struct RemoteMemAddr: 16 {
        /// Bytes.
        pub length: u32 = 0,
        /// Remote key.
        pub rkey: u32 = 4,
        /// Low half of the address.
        pub buf_addr_lo: u32 = 8,
        /// High half of the address.
        pub buf_addr_hi: u32 = 12,
    }

    /// What follows the meta descriptor of a read or write.
    #[c = "struct efa_io_rdma_req"]
    pub struct RdmaReq: 32 {
        /// The peer's memory.
        pub remote_mem: RemoteMemAddr = 0,
        /// Local memory.
        pub local_mem: TxBufDesc = 16,
    }

    /// What follows the meta descriptor of a read or write in an entry of 128 bytes.
    #[c = "struct efa_io_rdma_req_128"]
    pub struct RdmaReq128: 96 {
        /// The peer's memory.
        pub remote_mem: RemoteMemAddr = 0,
        /// A [`TxBufDesc`], or the inline data of a write.
        pub inline_data: Bytes<80> = 16,
    }

    /// A send entry of 64 bytes.
    #[c = "struct efa_io_tx_wqe"]
    pub struct TxWqe: 64 {
        /// What it does.
        pub meta: TxMetaDesc = 0,
        /// Up to two [`TxBufDesc`], inline data, or a [`RdmaReq`].
        pub data: [u8; 32] = 32,
    }

    /// A send entry of 128 bytes.
    #[c = "struct efa_io_tx_wqe_128"]
    pub struct TxWqe128: 128 {
        /// What it does.
        pub meta: TxMetaDesc = 0,
        /// Up to two [`TxBufDesc`], inline data, or a [`RdmaReq128`].
        pub data: Bytes<96> = 32,
    }

    /// A buffer of a receive.
    #[c = "struct efa_io_rx_desc"]
    pub struct RxDesc: 16 {
        /// Low half of the address.
        pub buf_addr_lo: u32 = 0,
        /// High half of the address.
        pub buf_addr_hi: u32 = 4,
        /// Number that the completion carries; the driver chooses it.
        pub req_id: u16 = 8,
        /// Bytes.
        pub length: u16 = 10,
        /// Local key (23:0), first buffer (30), last buffer (31).
        pub lkey_ctrl: u32 = 12,
    }

    /// Start of every completion.
    #[c = "struct efa_io_cdesc_common"]
    pub struct CdescCommon: 6 {
        /// Number of the send or receive.
        pub req_id: u16 = 0,
        /// `EFA_IO_COMP_STATUS_*`.
        pub status: u8 = 2,
        /// Phase (0), queue type (2:1), immediate data (3), operation (6:4), unsolicited (7).
        pub flags: u8 = 3,
        /// Local QP.
        pub qp_num: u16 = 4,
    }

    /// The completion of a send, read or write.
    #[c = "struct efa_io_tx_cdesc"]
    pub struct TxCdesc: 16 {
        /// What completes.
        pub common: CdescCommon = 0,
        /// The rest of a request id of 64 bits. 0 on devices without such.
        pub req_id_ex: [u16; 3] = 6,
        /// Written as 0.
        pub reserved: [u8; 4] = 12,
    }

    /// The completion of a receive.
    #[c = "struct efa_io_rx_cdesc"]
    pub struct RxCdesc: 16 {
        /// What completes.
        pub common: CdescCommon = 0,
        /// Bytes received, the low 16 bits.
        pub length: u16 = 6,
        /// The sender's address handle, or [`UNKNOWN_AH`].
        pub ah: u16 = 8,
        /// The sender's QP.
        pub src_qp_num: u16 = 10,
        /// Immediate data, as a little-endian number.
        pub imm: u32 = 12,
    }

    /// The second half of an entry of 32 bytes, of a write with immediate data.
    #[c = "struct efa_io_rx_cdesc_rdma_write"]
    pub struct RxCdescRdmaWrite: 2 {
        /// Bytes written, the high 16 bits.
        pub length_hi: u16 = 0,
    }

    /// The completion of a receive in an entry of 32 bytes.
    #[c = "struct efa_io_rx_cdesc_ex"]
    pub struct RxCdescEx: 32 {
        /// The first half.
        pub base: RxCdesc = 0,
        /// A [`RxCdescRdmaWrite`], or the GID of a sender whose address handle is [`UNKNOWN_AH`].
        pub u: [u8; 16] = 16,
    }
}

/// A 64-bit address as the low and the high half.
const fn halves(addr: u64) -> (u32, u32) {
    (addr as u32, (addr >> 32) as u32)
}

impl TxMetaDesc {
    /// The operation, `EFA_IO_SEND` and others.
    #[inline]
    pub const fn op_type(&self) -> u8 {
        self.ctrl1 & EFA_IO_TX_META_DESC_OP_TYPE_MASK
    }

    /// Whether immediate data are valid.
    #[inline]
    pub const fn has_imm(&self) -> bool {
        self.ctrl1 & EFA_IO_TX_META_DESC_HAS_IMM_MASK != 0
    }

    /// Whether data follow, not buffers.
    #[inline]
    pub const fn inline_msg(&self) -> bool {
        self.ctrl1 & EFA_IO_TX_META_DESC_INLINE_MSG_MASK != 0
    }

    /// The phase.
    #[inline]
    pub const fn phase(&self) -> bool {
        self.ctrl2 & EFA_IO_TX_META_DESC_PHASE_MASK != 0
    }

    /// Whether a completion is requested.
    #[inline]
    pub const fn comp_req(&self) -> bool {
        self.ctrl2 & EFA_IO_TX_META_DESC_COMP_REQ_MASK != 0
    }
}

impl TxBufDesc {
    /// A buffer; the key is cut to 24 bits.
    #[inline]
    pub const fn new(addr: u64, length: u32, lkey: u32) -> Self {
        let (buf_addr_lo, buf_addr_hi) = halves(addr);
        Self { length, lkey: lkey & EFA_IO_TX_BUF_DESC_LKEY_MASK, buf_addr_lo, buf_addr_hi }
    }

    /// The address.
    #[inline]
    pub const fn addr(&self) -> u64 {
        (self.buf_addr_hi as u64) << 32 | self.buf_addr_lo as u64
    }
}

impl RemoteMemAddr {
    /// The peer's memory.
    #[inline]
    pub const fn new(addr: u64, length: u32, rkey: u32) -> Self {
        let (buf_addr_lo, buf_addr_hi) = halves(addr);
        Self { length, rkey, buf_addr_lo, buf_addr_hi }
    }

    /// The address.
    #[inline]
    pub const fn addr(&self) -> u64 {
        (self.buf_addr_hi as u64) << 32 | self.buf_addr_lo as u64
    }
}

impl RxDesc {
    /// A buffer of a receive; the key is cut to 24 bits.
    #[inline]
    pub const fn new(req_id: u16, addr: u64, length: u16, lkey: u32, first: bool, last: bool) -> Self {
        let (buf_addr_lo, buf_addr_hi) = halves(addr);
        let ctrl = (first as u32) << 30 | (last as u32) << 31;
        Self { buf_addr_lo, buf_addr_hi, req_id, length, lkey_ctrl: lkey & EFA_IO_RX_DESC_LKEY_MASK | ctrl }
    }

    /// The address.
    #[inline]
    pub const fn addr(&self) -> u64 {
        (self.buf_addr_hi as u64) << 32 | self.buf_addr_lo as u64
    }

    /// Local key, 24 bits.
    #[inline]
    pub const fn lkey(&self) -> u32 {
        self.lkey_ctrl & EFA_IO_RX_DESC_LKEY_MASK
    }

    /// Whether it is the first buffer of a receive.
    #[inline]
    pub const fn first(&self) -> bool {
        self.lkey_ctrl & EFA_IO_RX_DESC_FIRST_MASK != 0
    }

    /// Whether it is the last buffer of a receive.
    #[inline]
    pub const fn last(&self) -> bool {
        self.lkey_ctrl & EFA_IO_RX_DESC_LAST_MASK != 0
    }
}

impl CdescCommon {
    /// Packs the flags; `q_type` and `op_type` are cut to their bits.
    #[inline]
    pub const fn pack(phase: bool, q_type: u8, has_imm: bool, op_type: u8, unsolicited: bool) -> u8 {
        phase as u8 | (q_type & 3) << 1 | (has_imm as u8) << 3 | (op_type & 7) << 4 | (unsolicited as u8) << 7
    }

    /// The phase.
    #[inline]
    pub const fn phase(&self) -> bool {
        self.flags & EFA_IO_CDESC_COMMON_PHASE_MASK != 0
    }

    /// `EFA_IO_SEND_QUEUE` or `EFA_IO_RECV_QUEUE`.
    #[inline]
    pub const fn q_type(&self) -> u8 {
        (self.flags & EFA_IO_CDESC_COMMON_Q_TYPE_MASK) >> 1
    }

    /// Whether immediate data are valid.
    #[inline]
    pub const fn has_imm(&self) -> bool {
        self.flags & EFA_IO_CDESC_COMMON_HAS_IMM_MASK != 0
    }

    /// The operation.
    #[inline]
    pub const fn op_type(&self) -> u8 {
        (self.flags & EFA_IO_CDESC_COMMON_OP_TYPE_MASK) >> 4
    }

    /// Whether it consumed no receive.
    #[inline]
    pub const fn unsolicited(&self) -> bool {
        self.flags & EFA_IO_CDESC_COMMON_UNSOLICITED_MASK != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn a_receive_descriptor_has_these_bytes() {
        let desc = RxDesc::new(0x0102, 0x1122_3344_5566_7788, 0x2000, 0xffab_cdef, true, false);
        let bytes = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 2, 1, 0, 0x20, 0xef, 0xcd, 0xab, 0x40];
        assert_eq!(desc.as_bytes(), bytes);
        assert_eq!((desc.addr(), desc.lkey()), (0x1122_3344_5566_7788, 0xab_cdef));
        assert!(desc.first() && !desc.last());
        assert!(RxDesc::new(0, 0, 0, 0, false, true).last());
    }

    #[test]
    fn memories_have_these_bytes() {
        let bytes = [3, 0, 0, 0, 0xef, 0xcd, 0xab, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
        let local = TxBufDesc::new(0x1122_3344_5566_7788, 3, 0x7fab_cdef);
        assert_eq!((local.as_bytes(), local.addr()), (&bytes[..], 0x1122_3344_5566_7788));
        let remote = RemoteMemAddr::new(0x1122_3344_5566_7788, 3, 0xab_cdef);
        assert_eq!((remote.as_bytes(), remote.addr()), (&bytes[..], 0x1122_3344_5566_7788));
    }

    #[test]
    fn the_flags_of_a_completion_are_these_bits() {
        let of = |flags| CdescCommon { flags, ..CdescCommon::default() };
        let recv = of(CdescCommon::pack(true, EFA_IO_RECV_QUEUE, true, EFA_IO_RDMA_WRITE, true));
        assert_eq!(recv.flags, 0b1010_1101);
        assert_eq!((recv.q_type(), recv.op_type()), (EFA_IO_RECV_QUEUE, EFA_IO_RDMA_WRITE));
        assert!(recv.phase() && recv.has_imm() && recv.unsolicited());
        let send = of(CdescCommon::pack(false, EFA_IO_SEND_QUEUE, false, EFA_IO_RDMA_READ, false));
        assert_eq!(send.flags, 0b0001_0010);
        assert!(!send.phase() && !send.has_imm() && !send.unsolicited());
    }

    #[test]
    fn the_control_bytes_of_a_send_are_these_bits() {
        let meta = TxMetaDesc { ctrl1: 0b1011_0010, ctrl2: 0b0001_1101, ..TxMetaDesc::default() };
        assert_eq!(meta.op_type(), EFA_IO_RDMA_WRITE);
        assert!(meta.has_imm() && meta.inline_msg() && meta.phase() && meta.comp_req());
        let meta = TxMetaDesc { ctrl1: 0b1000_0001, ctrl2: 0b0000_1100, ..TxMetaDesc::default() };
        assert_eq!(meta.op_type(), EFA_IO_RDMA_READ);
        assert!(!meta.has_imm() && !meta.inline_msg() && !meta.phase() && !meta.comp_req());
    }
}
