// SPDX-License-Identifier: MIT OR Apache-2.0
//! One completion: the kernel stores `struct ib_uverbs_wc` (`rxe_cq_post()`).

use core::fmt;
use uverbs_core::provider::Completion as CompletionTrait;
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus};
use uverbs_soft::format::CqEntry;
use uverbs_uapi::cmd::ib_uverbs_wc;

/// One completion.
#[derive(Clone, Copy)]
pub struct Completion {
    pub(crate) wc: ib_uverbs_wc,
}

/// The kernel stores its own flags, not those of the verbs (`do_complete()` in rxe_resp.c): `IB_WC_GRH` and
/// `IB_WC_WITH_IMM` are the same, but `IB_WC_WITH_INVALIDATE` is bit 2, which in `enum ibv_wc_flags` means that
/// checksums are correct, and for bit 3 it is the reverse. rxe checks no checksums, so either bit means an
/// invalidation. (librxe passes the kernel's bits on.)
#[cfg_attr(not(debug_assertions), inline(always))]
const fn wc_flags(kernel: u32) -> WcFlags {
    const INVALIDATED: u32 = 1 << 2 | 1 << 3;
    let same = WcFlags::GRH.union(WcFlags::WITH_IMM).bits() & kernel;
    let inv = if kernel & INVALIDATED != 0 { WcFlags::WITH_INV.bits() } else { 0 };
    WcFlags::from_bits_retain(same | inv)
}

impl CompletionTrait for Completion {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_id(&self) -> u64 {
        self.wc.wr_id
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn status(&self) -> WcStatus {
        WcStatus(self.wc.status)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn opcode(&self) -> WcOpcode {
        WcOpcode(self.wc.opcode)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn vendor_err(&self) -> u32 {
        self.wc.vendor_err
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn byte_len(&self) -> u32 {
        self.wc.byte_len
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn qp_num(&self) -> u32 {
        self.wc.qp_num
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn src_qp(&self) -> u32 {
        self.wc.src_qp
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wc_flags(&self) -> WcFlags {
        wc_flags(self.wc.wc_flags)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn imm_data_or_invalidated_rkey(&self) -> u32 {
        zerocopy::transmute!(self.wc.imm_data)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn pkey_index(&self) -> u16 {
        self.wc.pkey_index
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn slid(&self) -> u32 {
        self.wc.slid.into()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sl(&self) -> u8 {
        self.wc.sl
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn dlid_path_bits(&self) -> u8 {
        self.wc.dlid_path_bits
    }
}

impl CqEntry for Completion {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn qp_id(&self) -> u64 {
        self.wc.qp_num.into()
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_wc().fmt(f)
    }
}
