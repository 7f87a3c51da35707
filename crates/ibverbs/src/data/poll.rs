// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling and arming a completion queue (ibv_poll_cq(3), ibv_req_notify_cq(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects, and its array of completions.

use crate::abi::object::ibv_cq;
use crate::object::cq;
use core::ffi::c_int;
use uverbs_core::provider::{Completion, CompletionQueue, Driver};
use uverbs_core::wc::WorkCompletion;

/// # Safety
/// As in ibv_poll_cq(3).
pub(crate) unsafe extern "C" fn poll_cq<D: Driver>(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut WorkCompletion,
) -> c_int {
    // SAFETY: `cq` is a live object of this library: its context was found above.
    let queue = unsafe { &cq::private::<D>(cq).queue };
    let max = usize::try_from(num_entries).unwrap_or(0);
    // SAFETY: the queue is left below. A queue without a lock is used by one thread (the man page's contract of
    // `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    let engine = match unsafe { queue.enter() } {
        Ok(engine) => engine,
        Err(_) => return -libc::EBUSY,
    };
    let mut next = wc;
    // The array may be uninitialised, so it is written through the pointer.
    let polled = engine.poll_each(max, |completion| {
        // SAFETY: `next` is valid for writes (contract of the man page).
        unsafe { next.write(completion.to_wc()) };
        next = next.wrapping_add(1);
    });
    // SAFETY: entered above; `engine` is not used any more.
    unsafe { queue.leave() };
    match polled {
        // Not above `num_entries`.
        Ok(n) => n as c_int,
        Err(error) => -error.errno().raw(),
    }
}

/// # Safety
/// As in ibv_req_notify_cq(3).
pub(crate) unsafe extern "C" fn req_notify_cq<D: Driver>(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: `cq` is a live object of this library: its context was found above.
    let queue = unsafe { &cq::private::<D>(cq).queue };
    // SAFETY: the queue is left below. A queue without a lock is used by one thread (the man page's contract of
    // `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    let armed = match unsafe { queue.enter() } {
        Ok(engine) => engine.req_notify(solicited_only != 0),
        Err(_) => return libc::EBUSY,
    };
    // SAFETY: entered above; the engine is not used any more.
    unsafe { queue.leave() };
    match armed {
        Ok(()) => 0,
        Err(error) => error.errno().raw(),
    }
}
