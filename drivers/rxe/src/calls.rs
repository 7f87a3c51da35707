// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that core's verbs do not cover: flushing a receive queue, and resizing an SRQ.
#![expect(unsafe_code)]
// UNSAFETY: the input of a command may contain addresses that the kernel uses, so executing it is unsafe. The inputs
// here contain no address, or that of a local.

use core::sync::atomic::{AtomicU64, Ordering};
use uverbs_core::attr::{QpState, SrqAttr, SrqAttrMask};
use uverbs_core::control::SrqHandle;
use uverbs_core::kernel::{Command, Kernel, Uhw};
use uverbs_core::{Errno, Result};
use uverbs_uapi::cmd::{IB_USER_VERBS_CMD_MODIFY_QP, ib_uverbs_modify_qp};
use uverbs_uapi::rxe::{mminfo, rxe_modify_srq_cmd};
use zerocopy::IntoBytes as _;

/// `IBV_QP_STATE`
const QP_STATE: u32 = 1 << 0;

/// Moves a QP to ERR, also from ERR (`qp_state_table` in core/verbs.c has that transition). Each time, the kernel
/// schedules the task that flushes the receive queue (`rxe_qp_error()`).
pub(crate) fn modify_to_err(kernel: &dyn Kernel, qp_handle: u32) -> Result<(), Errno> {
    let request = ib_uverbs_modify_qp {
        qp_handle,
        attr_mask: QP_STATE,
        qp_state: QpState::ERR.0 as u8,
        ..Default::default()
    };
    let mut command = Command::invoke_write(IB_USER_VERBS_CMD_MODIFY_QP, &request, &mut [], Uhw::none());
    // SAFETY: the request consists of numbers and a handle; it names no memory.
    unsafe { command.execute(kernel) }
}

/// Modifies an SRQ, and returns the location of its new ring if it was resized.
///
/// The kernel does not answer in the response: it stores a `struct mminfo` at an address in the request
/// (`rxe_srq_from_attr()`), and requires the address even if it stores nothing.
pub(crate) fn modify_srq(srq: &SrqHandle, attr: &SrqAttr, mask: SrqAttrMask) -> Result<mminfo> {
    let answer = [AtomicU64::new(0), AtomicU64::new(0)];
    const { assert!(size_of::<mminfo>() == size_of::<[AtomicU64; 2]>()) };
    let mmap_info_addr = answer.as_ptr().expose_provenance() as u64;
    let request = rxe_modify_srq_cmd { mmap_info_addr };
    // SAFETY: the address is that of `answer`, which lives until this function returns, has room for the struct, and
    // consists of atomics, so that the kernel may write it while it is borrowed.
    let uhw = unsafe { Uhw::new(request.as_bytes(), &mut []) };
    srq.modify(attr, mask, uhw)?;
    Ok(zerocopy::transmute!([answer[0].load(Ordering::Acquire), answer[1].load(Ordering::Acquire)]))
}
