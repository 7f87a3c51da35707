// SPDX-License-Identifier: MIT OR Apache-2.0
//! One completion: a copy of the kernel's `struct siw_cqe`.

use core::fmt;
use uverbs_core::provider::Completion as CompletionTrait;
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus};
use uverbs_soft::format::CqEntry;
use uverbs_uapi::siw::*;

/// One completion.
#[derive(Clone, Copy)]
pub struct Completion {
    pub(crate) cqe: siw_cqe,
}

impl CompletionTrait for Completion {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_id(&self) -> u64 {
        self.cqe.id
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn status(&self) -> WcStatus {
        match self.cqe.status {
            SIW_WC_SUCCESS => WcStatus::SUCCESS,
            SIW_WC_LOC_LEN_ERR => WcStatus::LOC_LEN_ERR,
            SIW_WC_LOC_PROT_ERR => WcStatus::LOC_PROT_ERR,
            SIW_WC_LOC_QP_OP_ERR => WcStatus::LOC_QP_OP_ERR,
            SIW_WC_WR_FLUSH_ERR => WcStatus::WR_FLUSH_ERR,
            SIW_WC_BAD_RESP_ERR => WcStatus::BAD_RESP_ERR,
            SIW_WC_LOC_ACCESS_ERR => WcStatus::LOC_ACCESS_ERR,
            SIW_WC_REM_ACCESS_ERR => WcStatus::REM_ACCESS_ERR,
            SIW_WC_REM_INV_REQ_ERR => WcStatus::REM_INV_REQ_ERR,
            _ => WcStatus::GENERAL_ERR,
        }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn opcode(&self) -> WcOpcode {
        match self.cqe.opcode {
            SIW_OP_WRITE => WcOpcode::RDMA_WRITE,
            SIW_OP_READ | SIW_OP_READ_LOCAL_INV => WcOpcode::RDMA_READ,
            SIW_OP_RECEIVE => WcOpcode::RECV,
            SIW_OP_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
            SIW_OP_COMP_AND_SWAP => WcOpcode::COMP_SWAP,
            _ => WcOpcode::SEND,
        }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn vendor_err(&self) -> u32 {
        0
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn byte_len(&self) -> u32 {
        self.cqe.bytes
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn qp_num(&self) -> u32 {
        self.cqe.qp_id as u32
    }
    /// The kernel does not pass invalidated keys to user space (`siw_rqe_complete()`).
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wc_flags(&self) -> WcFlags {
        WcFlags::empty()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn imm_data_or_invalidated_rkey(&self) -> u32 {
        0
    }
}

impl CqEntry for Completion {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn qp_id(&self) -> u64 {
        self.cqe.qp_id
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_wc().fmt(f)
    }
}
