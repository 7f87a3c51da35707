// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that core's verbs do not cover: the doorbells by ioctl, and resizing an SRQ.
#![expect(unsafe_code)]
// UNSAFETY: the input of a command may contain addresses that the kernel uses, so executing it is unsafe. The inputs
// here contain no address, or that of a local.

use core::sync::atomic::{AtomicU64, Ordering};
use uverbs_core::attr::{QpState, SrqAttr, SrqAttrMask};
use uverbs_core::control::SrqHandle;
use uverbs_core::kernel::{Command, Kernel, Uhw};
use uverbs_core::{Errno, Result};
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_MODIFY_QP, IB_USER_VERBS_CMD_POST_SEND, IB_USER_VERBS_CMD_REQ_NOTIFY_CQ,
    ib_uverbs_modify_qp, ib_uverbs_post_send, ib_uverbs_post_send_resp, ib_uverbs_req_notify_cq,
    ib_uverbs_send_wr,
};
use uverbs_uapi::rxe::{mminfo, rxe_modify_srq_cmd};
use zerocopy::{Immutable, IntoBytes};

/// `IBV_QP_STATE`
const QP_STATE: u32 = 1 << 0;

/// Runs a write command as an ioctl.
fn invoke<I: IntoBytes + Immutable>(
    kernel: &dyn Kernel,
    command: u32,
    input: &I,
    output: &mut [u8],
) -> Result<(), Errno> {
    let mut command = Command::invoke_write(command, input, output, Uhw::none());
    // SAFETY: the inputs of this module's commands are numbers and handles; they name no memory.
    unsafe { command.execute(kernel) }
}

/// Rings the send queue's doorbell, where the write interface is refused.
pub(crate) fn post_send(kernel: &dyn Kernel, qp_handle: u32) -> Result<(), Errno> {
    // uverbs requires the size of a work request even if there is none (`ib_uverbs_post_send()`).
    let wqe_size = size_of::<ib_uverbs_send_wr>() as u32;
    let request = ib_uverbs_post_send { qp_handle, wqe_size, ..Default::default() };
    let mut response = ib_uverbs_post_send_resp::default();
    invoke(kernel, IB_USER_VERBS_CMD_POST_SEND, &request, response.as_mut_bytes())
}

/// Arms a CQ, where the write interface is refused.
pub(crate) fn req_notify(kernel: &dyn Kernel, cq_handle: u32, solicited_only: bool) -> Result<(), Errno> {
    let request = ib_uverbs_req_notify_cq { cq_handle, solicited_only: solicited_only.into() };
    invoke(kernel, IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, &request, &mut [])
}

/// Moves a QP to ERR, also from ERR (`qp_state_table` in core/verbs.c has that transition). Each time, the kernel
/// schedules the task that flushes the receive queue (`rxe_qp_error()`).
pub(crate) fn modify_to_err(kernel: &dyn Kernel, qp_handle: u32) -> Result<(), Errno> {
    let request = ib_uverbs_modify_qp {
        qp_handle,
        attr_mask: QP_STATE,
        qp_state: QpState::ERR.0 as u8,
        ..Default::default()
    };
    invoke(kernel, IB_USER_VERBS_CMD_MODIFY_QP, &request, &mut [])
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
