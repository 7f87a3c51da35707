// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended polling: the functions in `struct ibv_cq_ex` (ibv_create_cq_ex(3)).
//!
//! A session holds the queue's lock from `start_poll` to `end_poll`. `status` and `wr_id` are fields of the struct,
//! which are set at every step. The functions read all other values from the completion when they are called.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use crate::abi::object::{ibv_cq_ex, ibv_poll_cq_attr};
use crate::errno::{Errno, returned};
use crate::object::cq;
use core::ffi::{c_int, c_uint};
use uverbs_core::attr::WcExFlags;
use uverbs_core::provider::{Completion, CompletionQueue, Driver, PollError};
use uverbs_core::sync::{Dynamic, Locked};

/// The fields that programs can request: all except those of tag matching.
pub(crate) const OFFERED: WcExFlags = WcExFlags::all().difference(WcExFlags::TM_INFO);

/// The engine of C's struct.
///
/// # Safety
/// `cq` is a live queue of this driver.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn queue<'a, D: Driver>(cq: *mut ibv_cq_ex) -> &'a Locked<D::CompletionQueue, Dynamic> {
    // SAFETY: `cq` points to an existing queue of this driver (the contract of this function), whose extended struct
    // begins with `ibv_cq`.
    unsafe { &cq::private::<D>(cq.cast()).queue }
}

/// Writes the current completion of a session to C's fields. Returns 0, or `EIO` if there is none.
///
/// # Safety
/// `cq` is a live queue of this driver, in a session of this thread, or of one that has handed the session over to this
/// thread.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn publish<D: Driver>(cq: *mut ibv_cq_ex, engine: &D::CompletionQueue) -> c_int {
    let Some(current) = engine.current() else { return returned(Errno::EIO) };
    // SAFETY: `cq` points to the public part of an existing queue; only the thread of the session writes its fields.
    unsafe { (*cq).status = current.status().0 };
    // SAFETY: `cq` points to the public part of an existing queue; only the thread of the session writes its fields.
    unsafe { (*cq).wr_id = current.wr_id() };
    0
}

/// The result of a poll that has no completion. That there is none (`ENOENT`) is no failure, and `errno` stays as it was.
#[cold]
fn failed(errno: Errno) -> c_int {
    if errno == Errno::ENOENT { libc::ENOENT } else { returned(errno) }
}

unsafe extern "C" fn start_poll<D: Driver>(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return returned(Errno::EINVAL);
    }
    // SAFETY: `cq` is a live queue of this driver: the program got this function from it.
    let queue = unsafe { queue::<D>(cq) };
    // The slow paths are tail calls, so this function saves no registers.
    // SAFETY: `end_poll`, or an error path, leaves the queue. A queue without a lock is used by one thread (the man
    // page's contract of `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    let Some(engine) = (unsafe { queue.try_enter() }) else {
        // SAFETY: the contract of this function.
        return unsafe { start_poll_contended::<D>(cq) };
    };
    match engine.try_start_poll() {
        // SAFETY: in the session that has begun.
        Some(true) => unsafe { publish::<D>(cq, engine) },
        Some(false) => {
            // SAFETY: entered above; no session is open, and `engine` is not used any more.
            unsafe { queue.leave() };
            libc::ENOENT
        }
        // SAFETY: `cq` is a live queue of this driver, which is entered; `engine` is not used any more.
        None => unsafe { start_poll_entered::<D>(cq) },
    }
}

/// [`start_poll`] if a thread has the lock.
///
/// # Safety
/// As [`start_poll`].
#[cold]
#[inline(never)]
unsafe fn start_poll_contended<D: Driver>(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: `cq` is a live queue of this driver (the contract of this function).
    let queue = unsafe { queue::<D>(cq) };
    // SAFETY: `start_poll_entered` leaves the queue, or the session's end does. A queue without a lock is never
    // contended.
    if unsafe { queue.enter() }.is_err() {
        return returned(Errno::EBUSY);
    }
    // SAFETY: entered above, and no reference is used.
    unsafe { start_poll_entered::<D>(cq) }
}

/// [`start_poll`] on a queue that this thread has entered. Leaves the queue if no session begins.
///
/// # Safety
/// As [`start_poll`]; this thread has entered the queue, and uses no reference to its engine.
#[inline(never)]
unsafe fn start_poll_entered<D: Driver>(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: `cq` is a live queue of this driver (the contract of this function).
    let queue = unsafe { queue::<D>(cq) };
    // SAFETY: this thread has entered the queue (the contract of this function).
    let engine = unsafe { queue.entered() };
    let result = match engine.start_poll() {
        Ok(()) => {
            // SAFETY: in the session that has begun.
            let result = unsafe { publish::<D>(cq, engine) };
            if result == 0 {
                return 0;
            }
            engine.end_poll();
            result
        }
        Err(PollError::Empty) => libc::ENOENT,
        Err(error) => failed(error.errno()),
    };
    // SAFETY: entered by the caller; no session is open, and `engine` is not used any more.
    unsafe { queue.leave() };
    result
}

unsafe extern "C" fn next_poll<D: Driver>(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: `cq` is a live queue of this driver: the program got this function from it.
    let queue = unsafe { queue::<D>(cq) };
    // SAFETY: this thread has the session (the man page's contract of `ibv_next_poll`). Without a session the engine
    // refuses the call.
    let engine = unsafe { queue.entered() };
    match engine.next_poll() {
        // SAFETY: `cq` points to an existing queue, and this thread has its session.
        Ok(()) => unsafe { publish::<D>(cq, engine) },
        Err(error) => failed(error.errno()),
    }
}

unsafe extern "C" fn end_poll<D: Driver>(cq: *mut ibv_cq_ex) {
    // SAFETY: `cq` is a live queue of this driver: the program got this function from it.
    let queue = unsafe { queue::<D>(cq) };
    if queue.is_entered() {
        // SAFETY: the queue is entered (checked above), by this thread (the man page's contract of `ibv_end_poll`).
        unsafe { queue.entered() }.end_poll();
        // SAFETY: the queue is entered by this thread, and its engine is not used any more.
        unsafe { queue.leave() };
    }
}

/// A function per field. After the session a field has the value of the last completion, as with libmlx5, unless the device
/// has written a newer one to its entry. A field that the queue was not created with is 0, as all fields are before the first
/// session on the software devices.
macro_rules! readers {
    ($($name:ident -> $ty:ty = |$completion:ident| $value:expr;)*) => {
        $(
            unsafe extern "C" fn $name<D: Driver>(cq: *mut ibv_cq_ex) -> $ty {
                // SAFETY: `cq` is a live queue of this driver: the program got this function from it.
                let queue = unsafe { queue::<D>(cq) };
                // SAFETY: this thread has the session (the man page's contract of the `ibv_wc_read_*` calls), or had the last
                // one and no other thread polls meanwhile (`Running existing programs` states it).
                let engine: &D::CompletionQueue = unsafe { queue.entered() };
                engine.last().map_or(0, |$completion| $value)
            }
        )*
    };
}

readers! {
    read_opcode -> u32 = |c| c.opcode().0;
    read_vendor_err -> u32 = |c| c.vendor_err();
    read_byte_len -> u32 = |c| c.byte_len();
    read_imm_data -> u32 = |c| c.imm_data_or_invalidated_rkey();
    read_qp_num -> u32 = |c| c.qp_num();
    read_src_qp -> u32 = |c| c.src_qp();
    read_wc_flags -> c_uint = |c| c.wc_flags().bits();
    read_slid -> u32 = |c| c.slid();
    read_sl -> u8 = |c| c.sl();
    read_dlid_path_bits -> u8 = |c| c.dlid_path_bits();
    read_completion_ts -> u64 = |c| c.completion_ts().unwrap_or(0);
    read_completion_wallclock_ns -> u64 = |c| c.completion_wallclock_ns().unwrap_or(0);
    read_cvlan -> u16 = |c| c.cvlan().unwrap_or(0);
    read_flow_tag -> u32 = |c| c.flow_tag().unwrap_or(0);
}

/// Sets the functions of a queue: those of every queue, and those that were requested.
pub(crate) fn set_functions<D: Driver>(cq: &mut ibv_cq_ex, flags: WcExFlags) {
    cq.start_poll = Some(start_poll::<D>);
    cq.next_poll = Some(next_poll::<D>);
    cq.end_poll = Some(end_poll::<D>);
    cq.read_opcode = Some(read_opcode::<D>);
    cq.read_vendor_err = Some(read_vendor_err::<D>);
    cq.read_wc_flags = Some(read_wc_flags::<D>);
    // The functions for fields of `struct ibv_wc` are always set, because they have no cost until they are called.
    cq.read_byte_len = Some(read_byte_len::<D>);
    cq.read_imm_data = Some(read_imm_data::<D>);
    cq.read_qp_num = Some(read_qp_num::<D>);
    cq.read_src_qp = Some(read_src_qp::<D>);
    cq.read_slid = Some(read_slid::<D>);
    cq.read_sl = Some(read_sl::<D>);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits::<D>);
    if flags.contains(WcExFlags::COMPLETION_TIMESTAMP) {
        cq.read_completion_ts = Some(read_completion_ts::<D>);
    }
    if flags.contains(WcExFlags::COMPLETION_TIMESTAMP_WALLCLOCK) {
        cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns::<D>);
    }
    if flags.contains(WcExFlags::CVLAN) {
        cq.read_cvlan = Some(read_cvlan::<D>);
    }
    if flags.contains(WcExFlags::FLOW_TAG) {
        cq.read_flow_tag = Some(read_flow_tag::<D>);
    }
}
