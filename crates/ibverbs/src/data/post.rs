// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posting lists (ibv_post_send(3), ibv_post_recv(3), ibv_post_srq_recv(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and lists.

use crate::abi::object::ibv_srq;
use crate::abi::qp::ibv_qp;
use crate::errno::{Errno, returned};
use crate::object::{qp, srq};
use core::ffi::c_int;
use core::ptr;
use uverbs_core::provider::{Driver, RecvQueue, SendQueue, raw};
use uverbs_core::wr::{RecvWr, SendWr};

/// Reports the first work request that was not posted. If the error is not that of a work request (a failed doorbell, a
/// queue pair without such a queue), this is the first of the list.
///
/// # Safety
/// `bad_wr` is NULL or valid for writing.
#[cold]
unsafe fn report<W>(bad: *const W, list: *mut W, bad_wr: *mut *mut W, errno: Errno) -> c_int {
    if !bad_wr.is_null() {
        let blamed = if bad.is_null() { list } else { bad.cast_mut() };
        // SAFETY: `bad_wr` is valid for writes (contract of this function).
        unsafe { bad_wr.write(blamed) };
    }
    returned(errno)
}

/// # Safety
/// As in ibv_post_send(3).
pub(crate) unsafe extern "C" fn post_send<D: Driver>(
    qp: *mut ibv_qp,
    list: *mut SendWr,
    bad_wr: *mut *mut SendWr,
) -> c_int {
    // SAFETY: `qp` is a queue pair of a context of this driver, which has this function in its table, and it is not destroyed during this
    // call (both by the contract of the man page).
    let Some(queue) = (unsafe { &qp::private::<D>(qp).send }) else {
        // SAFETY: `bad_wr` is NULL or valid for writes (contract of the man page).
        return unsafe { report(ptr::null(), list, bad_wr, Errno::EINVAL) };
    };
    // SAFETY: the list is NULL or well formed, and the memory of its entries stays valid until the completions
    // (contract of the man page). A queue without a lock is of a thread domain, whose queues are used by one thread.
    match unsafe { raw::post_send(queue, list) } {
        Ok(()) => 0,
        // SAFETY: `bad_wr` is NULL or valid for writes (contract of the man page).
        Err(bad) => unsafe { report(bad.wr, list, bad_wr, <D::SendQueue as SendQueue>::errno(bad.error)) },
    }
}

/// # Safety
/// As in ibv_post_recv(3).
pub(crate) unsafe extern "C" fn post_recv<D: Driver>(
    qp: *mut ibv_qp,
    list: *mut RecvWr,
    bad_wr: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: `qp` is a queue pair of a context of this driver, which has this function in its table, and it is not destroyed during this
    // call (both by the contract of the man page).
    let Some(queue) = (unsafe { &qp::private::<D>(qp).recv }) else {
        // SAFETY: `bad_wr` is NULL or valid for writes (contract of the man page).
        return unsafe { report(ptr::null(), list, bad_wr, Errno::EINVAL) };
    };
    // SAFETY: the list is NULL or well formed, and the memory of its entries stays valid until the completions
    // (contract of the man page). A queue without a lock is of a thread domain, whose queues are used by one thread.
    match unsafe { raw::post_recv(queue, list) } {
        Ok(()) => 0,
        // SAFETY: `bad_wr` is NULL or valid for writes (contract of the man page).
        Err(bad) => unsafe { report(bad.wr, list, bad_wr, <D::RecvQueue as RecvQueue>::errno(bad.error)) },
    }
}

/// # Safety
/// As in ibv_post_srq_recv(3).
pub(crate) unsafe extern "C" fn post_srq_recv<D: Driver>(
    srq: *mut ibv_srq,
    list: *mut RecvWr,
    bad_wr: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: `srq` is a queue of a context of this driver, which has this function in its table, and it is not destroyed during this call
    // (both by the contract of the man page).
    let queue = unsafe { &srq::private::<D>(srq).queue };
    // SAFETY: the list is NULL or well formed, and the memory of its entries stays valid until the completions
    // (contract of the man page). A queue without a lock is of a thread domain, whose queues are used by one thread.
    match unsafe { raw::post_recv(queue, list) } {
        Ok(()) => 0,
        // SAFETY: `bad_wr` is NULL or valid for writes (contract of the man page).
        Err(bad) => unsafe {
            report(bad.wr, list, bad_wr, <D::SharedRecvQueue as RecvQueue>::errno(bad.error))
        },
    }
}
