// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts of contexts of a software device with a script of faults: the functions of such a context ask the script about each work
//! request. Those of other contexts do not know of scripts.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and lists.

use super::{post, qp_ex};
use crate::abi::context::{ibv_context, ibv_context_ops, ibv_device};
use crate::abi::object::ibv_srq;
use crate::abi::qp::{ibv_qp, ibv_qp_ex};
use crate::devices;
use crate::errno::{Errno, returned};
use core::ffi::c_int;
use core::ptr;
use uverbs_core::provider::Driver;
use uverbs_core::wr::{RecvWr, SendWr};

/// The posts of a new context, if its device has a script.
pub(crate) fn set_posts<D: Driver>(ops: &mut ibv_context_ops, device: *mut ibv_device) {
    if devices::is_scripted(device) {
        ops.post_send = Some(post_send::<D>);
        ops.post_recv = Some(post_recv::<D>);
        ops.post_srq_recv = Some(post_srq_recv::<D>);
    }
}

/// The end of a session of a new queue pair, if its device has a script.
///
/// # Safety
/// `context` is a live context.
pub(crate) unsafe fn set_session<D: Driver>(qp: &mut ibv_qp_ex, context: *mut ibv_context) {
    // SAFETY: `context` is live (the contract of this function).
    if devices::is_scripted(unsafe { (*context).device }) {
        qp.wr_complete = Some(wr_complete::<D>);
    }
}

/// The error that the script gives a work request of a queue.
///
/// # Safety
/// `context` is a live context.
unsafe fn fault(context: *mut ibv_context, verb: &str, queue: u32) -> Option<Errno> {
    // SAFETY: `context` is live (the contract of this function).
    devices::script_post(unsafe { (*context).device }, verb, queue)
}

/// Posts a list up to the first work request for which there is an error, which is reported then.
///
/// # Safety
/// `list` is NULL or well formed, and `next` gives the place of a node's successor; `bad_wr` is NULL or valid for writes.
unsafe fn up_to_fault<W>(
    list: *mut W,
    bad_wr: *mut *mut W,
    next: impl Fn(*mut W) -> *mut *const W,
    fault: impl Fn() -> Option<Errno>,
    post: impl FnOnce(*mut W, *mut *mut W) -> c_int,
) -> c_int {
    let (mut before, mut wr): (*mut W, *mut W) = (ptr::null_mut(), list);
    while !wr.is_null() {
        let Some(errno) = fault() else {
            before = wr;
            // SAFETY: a node of the list (the contract of this function).
            wr = unsafe { next(wr).read() }.cast_mut();
            continue;
        };
        if !before.is_null() {
            // SAFETY: a node of the list, which only this thread uses during the call (ibv_post_send(3)). It is restored below.
            unsafe { next(before).write(ptr::null()) };
            let result = post(list, bad_wr);
            // SAFETY: as above.
            unsafe { next(before).write(wr) };
            if result != 0 {
                return result;
            }
        }
        if !bad_wr.is_null() {
            // SAFETY: `bad_wr` is valid for writes (the contract of this function).
            unsafe { bad_wr.write(wr) };
        }
        return returned(errno);
    }
    post(list, bad_wr)
}

/// # Safety
/// As in ibv_post_send(3).
unsafe extern "C" fn post_send<D: Driver>(
    qp: *mut ibv_qp,
    list: *mut SendWr,
    bad_wr: *mut *mut SendWr,
) -> c_int {
    // SAFETY: `qp` is a queue pair of a context (contract of the man page).
    let context = unsafe { (*qp).context };
    // SAFETY: as above.
    let number = unsafe { (*qp).qp_num };
    // SAFETY: a node of a list, which is valid (contract of the man page).
    let next = |wr: *mut SendWr| unsafe { &raw mut (*wr).next };
    // SAFETY: the context of a queue pair is live.
    let fault = || unsafe { fault(context, "post_send", number) };
    // SAFETY: the arguments are those of this function, or a part of the list.
    let post = |list, bad_wr| unsafe { post::post_send::<D>(qp, list, bad_wr) };
    // SAFETY: `list` and `bad_wr` are valid (contract of the man page).
    unsafe { up_to_fault(list, bad_wr, next, fault, post) }
}

/// # Safety
/// As in ibv_post_recv(3).
unsafe extern "C" fn post_recv<D: Driver>(
    qp: *mut ibv_qp,
    list: *mut RecvWr,
    bad_wr: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: `qp` is a queue pair of a context (contract of the man page).
    let context = unsafe { (*qp).context };
    // SAFETY: as above.
    let number = unsafe { (*qp).qp_num };
    // SAFETY: a node of a list, which is valid (contract of the man page).
    let next = |wr: *mut RecvWr| unsafe { &raw mut (*wr).next };
    // SAFETY: the context of a queue pair is live.
    let fault = || unsafe { fault(context, "post_recv", number) };
    // SAFETY: the arguments are those of this function, or a part of the list.
    let post = |list, bad_wr| unsafe { post::post_recv::<D>(qp, list, bad_wr) };
    // SAFETY: `list` and `bad_wr` are valid (contract of the man page).
    unsafe { up_to_fault(list, bad_wr, next, fault, post) }
}

/// # Safety
/// As in ibv_post_srq_recv(3).
unsafe extern "C" fn post_srq_recv<D: Driver>(
    srq: *mut ibv_srq,
    list: *mut RecvWr,
    bad_wr: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: `srq` is a shared receive queue of a context (contract of the man page).
    let context = unsafe { (*srq).context };
    // SAFETY: as above.
    let handle = unsafe { (*srq).handle };
    // SAFETY: a node of a list, which is valid (contract of the man page).
    let next = |wr: *mut RecvWr| unsafe { &raw mut (*wr).next };
    // SAFETY: the context of a queue is live.
    let fault = || unsafe { fault(context, "post_srq_recv", handle) };
    // SAFETY: the arguments are those of this function, or a part of the list.
    let post = |list, bad_wr| unsafe { post::post_srq_recv::<D>(srq, list, bad_wr) };
    // SAFETY: `list` and `bad_wr` are valid (contract of the man page).
    unsafe { up_to_fault(list, bad_wr, next, fault, post) }
}

/// The end of a session, which is one event of a script: with an error, nothing of it is posted.
///
/// # Safety
/// As in ibv_wr_post(3).
unsafe extern "C" fn wr_complete<D: Driver>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: `qp` is a queue pair of a context (contract of the man page).
    let context = unsafe { (*qp).qp_base.context };
    // SAFETY: as above.
    let number = unsafe { (*qp).qp_base.qp_num };
    // SAFETY: the context of a queue pair is live.
    match unsafe { fault(context, "wr_complete", number) } {
        // SAFETY: this thread has the session of the queue pair (contract of the man page).
        None => unsafe { qp_ex::wr_complete::<D>(qp) },
        Some(errno) => {
            // SAFETY: as above. The session has ended then, as after an error of `wr_complete`.
            unsafe { qp_ex::wr_abort::<D>(qp) };
            returned(errno)
        }
    }
}
