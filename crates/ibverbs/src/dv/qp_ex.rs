// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of `struct mlx5dv_qp_ex` (mlx5dv_wr_post(3)): the target of a DC initiator's work request, and work requests
//! that the program has encoded. Those about indirect keys are in [`wr_mkey`](super::wr_mkey).
//!
//! Functions that are not implemented are NULL. A program requests them by `send_ops_flags` of mlx5dv_create_qp(3),
//! which fails then.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::wr_mkey::{self, Pending};
use crate::abi::Zeroed as _;
use crate::abi::mlx5dv::mlx5dv_qp_ex;
use crate::abi::qp::{ibv_qp, ibv_qp_ex};
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, negative};
use crate::object::qp;
use core::ffi::{c_int, c_void};
use core::{ptr, slice};
use std::sync::{Mutex, MutexGuard};
use uverbs_core::provider::{Object as _, PostError, SendQueue as _, WrBuilder as _};
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_core::wr::{IbvAh, RawAh};
use uverbs_mlx5::dv::MkeyOps;
use uverbs_mlx5::{Ah, Mlx5, SendQueue};

/// C's part, and the queue pair that it belongs to.
#[repr(C)]
struct Functions {
    public: mlx5dv_qp_ex,
    qp: *mut ibv_qp,
    /// A work request about an indirect key whose setters are not all called.
    pending: Mutex<Option<Pending>>,
}

// SAFETY: the pointer is used only in functions that C calls, whose contract allows any thread.
unsafe impl Send for Functions {}
// SAFETY: as for `Send`; the other fields are not changed after its creation, except by the mutex.
unsafe impl Sync for Functions {}

/// # Safety
/// As in mlx5dv_qp_ex_from_ibv_qp_ex(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_qp_ex_from_ibv_qp_ex(qp: Arg<'_, ibv_qp>) -> *mut mlx5dv_qp_ex {
    functions(qp).unwrap_or(ptr::null_mut())
}

/// The functions of a QP, which begins with the `ibv_qp_ex` that programs pass.
fn functions(qp: Arg<'_, ibv_qp>) -> Outcome<*mut mlx5dv_qp_ex> {
    let (open, qp) = super::of_read(qp)?;
    let own = qp.own_of(open)?;
    let functions = own.extension.data.get_or_init(|| {
        let mut public = mlx5dv_qp_ex::zeroed();
        public.wr_set_dc_addr = Some(wr_set_dc_addr);
        public.wr_set_dc_addr_stream = Some(wr_set_dc_addr_stream);
        public.wr_raw_wqe = Some(wr_raw_wqe);
        if let Ok(control) = own.object().control() {
            let ops = control.shared().mkey_ops();
            public.wr_mr_list = ops.contains(MkeyOps::LIST).then_some(wr_mkey::wr_mr_list as _);
            public.wr_mr_interleaved =
                ops.contains(MkeyOps::INTERLEAVED).then_some(wr_mkey::wr_mr_interleaved as _);
            if ops.contains(MkeyOps::CONFIGURE) {
                public.wr_mkey_configure = Some(wr_mkey::wr_mkey_configure);
                public.wr_set_mkey_access_flags = Some(wr_mkey::wr_set_mkey_access_flags);
                public.wr_set_mkey_layout_list = Some(wr_mkey::wr_set_mkey_layout_list);
                public.wr_set_mkey_layout_interleaved = Some(wr_mkey::wr_set_mkey_layout_interleaved);
                public.wr_set_mkey_sig_block = Some(wr_mkey::wr_set_mkey_sig_block);
            }
        }
        Box::new(Functions { public, qp: qp.pointer(), pending: Mutex::default() })
    });
    let functions = functions.downcast_ref::<Functions>().ok_or(Errno::EINVAL)?;
    Ok(ptr::from_ref(functions).cast_mut().cast())
}

/// Calls `post` with the QP and the queue of the session in which a function is called.
///
/// # Safety
/// `mqp` is from [`uverbs_mlx5dv_qp_ex_from_ibv_qp_ex`], its QP exists, and this thread has its session.
pub(super) unsafe fn with_queue(mqp: *mut mlx5dv_qp_ex, post: impl FnOnce(*mut ibv_qp, &mut SendQueue)) {
    // SAFETY: `mqp` points to the first field of a `Functions` (the contract of this function), which is not changed.
    let qp = unsafe { (*mqp.cast::<Functions>()).qp };
    // SAFETY: the QP exists (the contract of this function).
    let Some(queue): Option<&Locked<SendQueue, Dynamic>> = unsafe { qp::private::<Mlx5>(qp) }.send.as_ref()
    else {
        return;
    };
    // SAFETY: the call is inside the session that `wr_start` entered, and no other thread calls at the same time (the
    // contract of this function). Outside a session the queue refuses the call.
    post(qp, unsafe { queue.entered() });
}

/// The place of a work request whose setters are not all called; `None` if another thread uses it.
///
/// # Safety
/// `mqp` is from [`uverbs_mlx5dv_qp_ex_from_ibv_qp_ex`], and its QP exists while the result is used.
pub(super) unsafe fn pending<'a>(mqp: *mut mlx5dv_qp_ex) -> Option<MutexGuard<'a, Option<Pending>>> {
    // SAFETY: `mqp` points to the first field of a `Functions` (the contract of this function), which exists as long as its QP.
    let place = unsafe { &(*mqp.cast::<Functions>()).pending };
    place.try_lock().ok()
}

/// # Safety
/// As in mlx5dv_qp_cancel_posted_send_wrs(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_qp_cancel_posted_send_wrs(
    mqp: *mut mlx5dv_qp_ex,
    wr_id: u64,
) -> c_int {
    let cancelled = negative(|| {
        // SAFETY: NULL, or the first field of a `Functions`, whose QP exists (contract of the man page).
        let functions = unsafe { mqp.cast::<Functions>().as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: the QP exists (contract of the man page).
        let (open, qp) = super::of_read::<ibv_qp>(unsafe { Arg::new(functions.qp) })?;
        let own = qp.own_of(open)?;
        let queue = own.send.as_ref().ok_or(Errno::EINVAL)?;
        let control = own.object().control()?;
        let first = open.driver.drained_at(own.object().handle().handle(), control.shared().qp_num)?;
        // SAFETY: the lock is left below; in a thread domain, no other thread uses the queue (contract of the man page).
        let entered = unsafe { queue.enter() }.map_err(|_| Errno::EBUSY)?;
        // SAFETY: the QP is drained, and the device continues at `first`; the program changes its state after this call (contract
        // of the man page).
        let cancelled = unsafe { entered.cancel_posted(first, wr_id) };
        // SAFETY: entered above, and the reference is not used any more.
        unsafe { queue.leave() };
        Ok(cancelled.map_err(SendQueue::errno)? as isize)
    });
    cancelled as c_int
}

/// Calls `set` with the queue of the session in which a setter is called, and the address handle.
///
/// # Safety
/// As [`with_queue`]; `ah` is NULL or a live address handle of its context.
unsafe fn with(mqp: *mut mlx5dv_qp_ex, ah: *mut IbvAh, set: impl FnOnce(&mut SendQueue, &Ah)) {
    // SAFETY: `ah` is NULL or the `RawAh` of this driver (the contract of this function).
    let ah = unsafe { ah.cast::<RawAh<Ah>>().as_ref() };
    let post = |_, queue: &mut SendQueue| match ah {
        Some(ah) => set(queue, &ah.driver),
        None => queue.wr_latch(PostError::InvalidArgument),
    };
    // SAFETY: the contract of this function includes that of `with_queue`.
    unsafe { with_queue(mqp, post) };
}

/// Posts a WQE, whose length is in its control segment.
///
/// # Safety
/// As in mlx5dv_wr_post(3): `wqe` is NULL or valid for reads of its length.
unsafe extern "C" fn wr_raw_wqe(mqp: *mut mlx5dv_qp_ex, wqe: *const c_void) {
    /// The offset and the bits of the length in the control segment, in units of 16 bytes.
    const DS: (usize, u8) = (7, 0x3f);
    let post = |qp: *mut ibv_qp, queue: &mut SendQueue| {
        if wqe.is_null() {
            return queue.wr_latch(PostError::InvalidArgument);
        }
        // SAFETY: `wqe` is valid for reads of a control segment, which has 16 bytes (contract of the man page).
        let ds = unsafe { wqe.cast::<u8>().wrapping_add(DS.0).read() } & DS.1;
        // SAFETY: `wqe` is valid for reads of its length (contract of the man page); the program does not change it during
        // this call.
        let units = unsafe { slice::from_raw_parts(wqe.cast::<[u8; 16]>(), ds.into()) };
        // SAFETY: the QP exists (contract of the man page); every QP of this library begins with an `ibv_qp_ex`.
        let wr_id = unsafe { (*qp.cast::<ibv_qp_ex>()).wr_id };
        // SAFETY: the program is responsible for the memory that the WQE names (contract of the man page).
        unsafe { queue.wr_raw_wqe(wr_id, units) };
    };
    // SAFETY: the contract of the man page is that of `with_queue`.
    unsafe { with_queue(mqp, post) };
}

/// # Safety
/// As in mlx5dv_wr_post(3).
unsafe extern "C" fn wr_set_dc_addr(
    mqp: *mut mlx5dv_qp_ex,
    ah: *mut IbvAh,
    remote_dctn: u32,
    remote_dc_key: u64,
) {
    // SAFETY: the contract of the man page is that of `with`.
    unsafe { with(mqp, ah, |queue, ah| queue.wr_set_dc_addr(ah, remote_dctn, remote_dc_key)) };
}

/// # Safety
/// As in mlx5dv_wr_post(3).
unsafe extern "C" fn wr_set_dc_addr_stream(
    mqp: *mut mlx5dv_qp_ex,
    ah: *mut IbvAh,
    remote_dctn: u32,
    remote_dc_key: u64,
    stream_id: u16,
) {
    // SAFETY: the contract of the man page is that of `with`.
    unsafe {
        with(mqp, ah, |queue, ah| queue.wr_set_dc_addr_stream(ah, remote_dctn, remote_dc_key, stream_id))
    };
}
