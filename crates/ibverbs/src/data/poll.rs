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
    // SAFETY: a live queue of this driver, by the caller's promise.
    let queue = unsafe { &cq::private::<D>(cq).queue };
    let max = usize::try_from(num_entries).unwrap_or(0);
    // SAFETY: left below; a queue of one thread is used by one thread, by C's promise.
    let engine = match unsafe { queue.enter() } {
        Ok(engine) => engine,
        Err(_) => return -libc::EBUSY,
    };
    let mut next = wc;
    // The array may be uninitialised, so it is written through the pointer.
    let polled = engine.poll_each(max, |completion| {
        // SAFETY: at most `max` calls, and room for as many by the caller's promise.
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
    // SAFETY: a live queue of this driver, by the caller's promise.
    let queue = unsafe { &cq::private::<D>(cq).queue };
    // SAFETY: left below; a queue of one thread is used by one thread, by C's promise.
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
