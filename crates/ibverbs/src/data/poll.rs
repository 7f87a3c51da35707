// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling and arming a completion queue (ibv_poll_cq(3), ibv_req_notify_cq(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects, and its array of completions.

use crate::abi::object::ibv_cq;
use crate::errno::{Errno, returned};
use crate::object::cq;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::slice;
use uverbs_core::provider::{CompletionQueue, Driver};
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_core::wc::WorkCompletion;

/// # Safety
/// As in ibv_poll_cq(3).
pub(crate) unsafe extern "C" fn poll_cq<D: Driver>(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut WorkCompletion,
) -> c_int {
    // SAFETY: `cq` is a queue of a context of this driver, which has this function in its table, and it is not destroyed during this call
    // (both by the contract of the man page).
    let queue = unsafe { &cq::private::<D>(cq).queue };
    let Ok(max @ 1..) = usize::try_from(num_entries) else { return 0 };
    // SAFETY: the array has room for `num_entries` completions (contract of the man page). It may be uninitialised.
    let wc = unsafe { slice::from_raw_parts_mut(wc.cast::<MaybeUninit<WorkCompletion>>(), max) };
    // SAFETY: the queue is left below. A queue without a lock is used by one thread (the man page's contract of
    // `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    let Ok(engine) = (unsafe { queue.enter() }) else { return -returned(Errno::EBUSY) };
    let polled = engine.poll_cq_uninit(wc);
    // SAFETY: entered above; `engine` is not used any more.
    unsafe { queue.leave() };
    match polled {
        // Not above `num_entries`.
        Ok(n) => n as c_int,
        Err(error) => -returned(error.errno()),
    }
}

/// # Safety
/// As in ibv_req_notify_cq(3).
pub(crate) unsafe extern "C" fn req_notify_cq<D: Driver>(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: `cq` is a queue of a context of this driver, which has this function in its table, and it is not destroyed during this call
    // (both by the contract of the man page).
    let queue = unsafe { &cq::private::<D>(cq).queue };
    // Without a call in between, this function saves no registers.
    // SAFETY: the queue is left below. A queue without a lock is used by one thread (the man page's contract of
    // `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    if let Some(engine) = unsafe { queue.try_enter() } {
        let is_armed = engine.try_req_notify(solicited_only != 0);
        // SAFETY: entered above; the engine is not used any more.
        unsafe { queue.leave() };
        if is_armed {
            return 0;
        }
    }
    // SAFETY: the contract of this function.
    unsafe { req_notify_slow::<D>(queue, solicited_only != 0) }
}

/// Requests an event if another thread has the queue, or the engine has no short path.
///
/// # Safety
/// As in ibv_req_notify_cq(3).
#[cold]
#[inline(never)]
unsafe fn req_notify_slow<D: Driver>(
    queue: &Locked<D::CompletionQueue, Dynamic>,
    solicited_only: bool,
) -> c_int {
    // SAFETY: the queue is left below. A queue without a lock is used by one thread (the man page's contract of
    // `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    let Ok(engine) = (unsafe { queue.enter() }) else { return returned(Errno::EBUSY) };
    let armed = engine.req_notify(solicited_only);
    // SAFETY: entered above; the engine is not used any more.
    unsafe { queue.leave() };
    match armed {
        Ok(()) => 0,
        Err(error) => returned(error.errno()),
    }
}
