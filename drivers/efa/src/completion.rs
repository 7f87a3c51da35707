// SPDX-License-Identifier: MIT OR Apache-2.0
//! A completion: a copy of the device's entry, and the `wr_id` that belongs to its number.

use crate::memory::Cqe;
use core::mem::offset_of;
use uverbs_core::attr::Gid;
use uverbs_core::provider;
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus};
use uverbs_efa_hw::io::{self, CdescCommon, RxCdesc, RxCdescEx};

const _: () = {
    assert!(offset_of!(CdescCommon, req_id) == 0 && offset_of!(CdescCommon, status) == 2);
    assert!(offset_of!(CdescCommon, flags) == 3 && offset_of!(CdescCommon, qp_num) == 4);
    assert!(offset_of!(RxCdesc, length) == 6 && offset_of!(RxCdesc, ah) == 8);
    assert!(offset_of!(RxCdesc, src_qp_num) == 10 && offset_of!(RxCdesc, imm) == 12);
    assert!(offset_of!(RxCdescEx, u) == 16);
};

/// The bit of the phase in the first word.
pub(crate) const PHASE: u64 = (io::EFA_IO_CDESC_COMMON_PHASE_MASK as u64) << 24;

/// The bits of the first word on which it depends whose request is complete: the QP, and the kind of queue.
pub(crate) const WHOSE: u64 = 0xffff << 32 | (io::EFA_IO_CDESC_COMMON_Q_TYPE_MASK as u64) << 24 | UNSOLICITED;

/// The bit of completions that consumed no receive. Those of sends do not have it.
pub(crate) const UNSOLICITED: u64 = (io::EFA_IO_CDESC_COMMON_UNSOLICITED_MASK as u64) << 24;

/// The number of the request, of the first word.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn req_id(first: u64) -> u16 {
    first as u16
}

/// The QP, of the first word.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn qp_num(first: u64) -> u16 {
    (first >> 32) as u16
}

/// Whether it is of a send queue, of the first word.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn is_send(first: u64) -> bool {
    first >> 24 & io::EFA_IO_CDESC_COMMON_Q_TYPE_MASK as u64 == (io::EFA_IO_SEND_QUEUE << 1) as u64
}

/// Whether it consumed no receive, of the first word.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn is_unsolicited(first: u64) -> bool {
    first & UNSOLICITED != 0 && !is_send(first)
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    wr_id: u64,
    entry: Cqe,
}

impl Completion {
    pub(crate) const fn new(wr_id: u64, entry: Cqe) -> Self {
        Self { wr_id, entry }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn flags(&self) -> u8 {
        (self.entry[0] >> 24) as u8
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_send(&self) -> bool {
        is_send(self.entry[0])
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn op_type(&self) -> u8 {
        (self.flags() & io::EFA_IO_CDESC_COMMON_OP_TYPE_MASK) >> 4
    }

    /// The device's code, `EFA_IO_COMP_STATUS_*`.
    #[must_use]
    pub fn device_status(&self) -> u8 {
        (self.entry[0] >> 16) as u8
    }

    /// Whether it is a write with immediate data that consumed no receive (`efadv_wc_is_unsolicited`). It has the `wr_id` 0.
    #[must_use]
    pub fn is_unsolicited(&self) -> bool {
        is_unsolicited(self.entry[0])
    }

    /// The number of the sender's address handle, of a receive; `None` if this side has no address handle of it.
    #[must_use]
    pub fn source_ah(&self) -> Option<u16> {
        let ah = self.entry[1] as u16;
        (!self.is_send() && ah != io::UNKNOWN_AH).then_some(ah)
    }

    /// The sender's GID (`efadv_wc_read_sgid`). The device writes it only if this side has no address handle of the sender, and the CQ was
    /// created for it. An RDMA write has the high half of its length in this place.
    #[must_use]
    pub fn source_gid(&self) -> Option<Gid> {
        let is_there =
            !self.is_send() && self.source_ah().is_none() && self.op_type() != io::EFA_IO_RDMA_WRITE;
        let mut raw = [0; 16];
        raw[..8].copy_from_slice(&self.entry[2].to_le_bytes());
        raw[8..].copy_from_slice(&self.entry[3].to_le_bytes());
        is_there.then_some(Gid(raw))
    }
}

impl provider::Completion for Completion {
    const IN_ORDER: bool = false;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// The table is that of libefa (`to_ibv_status` in `verbs.c`).
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn status(&self) -> WcStatus {
        match self.device_status() {
            io::EFA_IO_COMP_STATUS_OK => WcStatus::SUCCESS,
            status => error_status(status),
        }
    }

    /// The device does not report reads as such: it has `SEND` for them, as libefa.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn opcode(&self) -> WcOpcode {
        match (self.is_send(), self.op_type() == io::EFA_IO_RDMA_WRITE) {
            (true, true) => WcOpcode::RDMA_WRITE,
            (true, false) => WcOpcode::SEND,
            (false, true) => WcOpcode::RECV_RDMA_WITH_IMM,
            (false, false) => WcOpcode::RECV,
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn vendor_err(&self) -> u32 {
        self.device_status().into()
    }

    /// Receives only: completions of reads have no length.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn byte_len(&self) -> u32 {
        if self.is_send() {
            return 0;
        }
        let low = (self.entry[0] >> 48) as u32;
        let high = if self.op_type() == io::EFA_IO_RDMA_WRITE { self.entry[2] as u16 } else { 0 };
        low | u32::from(high) << 16
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_receive(&self) -> Option<bool> {
        Some(!self.is_send())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn qp_num(&self) -> u32 {
        qp_num(self.entry[0]).into()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn src_qp(&self) -> u32 {
        if self.is_send() { 0 } else { u32::from((self.entry[1] >> 16) as u16) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wc_flags(&self) -> WcFlags {
        let has_imm = self.flags() & io::EFA_IO_CDESC_COMMON_HAS_IMM_MASK != 0;
        if has_imm && !self.is_send() { WcFlags::WITH_IMM } else { WcFlags::empty() }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn imm_data_or_invalidated_rkey(&self) -> u32 {
        if self.is_send() { 0 } else { ((self.entry[1] >> 32) as u32).to_be() }
    }

    /// As libefa: the number of the sender's address handle, 0xffff if there is none.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn slid(&self) -> u32 {
        if self.is_send() { 0 } else { u32::from(self.entry[1] as u16) }
    }
}

#[cold]
fn error_status(status: u8) -> WcStatus {
    match status {
        io::EFA_IO_COMP_STATUS_FLUSHED => WcStatus::WR_FLUSH_ERR,
        io::EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR
        | io::EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP
        | io::EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH => WcStatus::LOC_QP_OP_ERR,
        io::EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY => WcStatus::LOC_PROT_ERR,
        io::EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH => WcStatus::LOC_LEN_ERR,
        io::EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS => WcStatus::REM_ACCESS_ERR,
        io::EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT => WcStatus::REM_ABORT_ERR,
        io::EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN => WcStatus::REM_INV_RD_REQ_ERR,
        io::EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR => WcStatus::RNR_RETRY_EXC_ERR,
        io::EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH
        | io::EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH => WcStatus::REM_INV_REQ_ERR,
        io::EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_STATUS => WcStatus::BAD_RESP_ERR,
        io::EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE
        | io::EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE => WcStatus::RESP_TIMEOUT_ERR,
        io::EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER => WcStatus::REM_OP_ERR,
        _ => WcStatus::GENERAL_ERR,
    }
}
