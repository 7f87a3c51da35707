// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of `struct mlx5dv_qp_ex` (mlx5dv_wr_post(3)): the target of a DC initiator's work request.
//!
//! Functions that are not implemented are NULL. A program requests them by `send_ops_flags` of mlx5dv_create_qp(3),
//! which fails then.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use crate::abi::mlx5dv::mlx5dv_qp_ex;
use crate::abi::qp::{ibv_qp, ibv_qp_ex};
use crate::object::qp;
use core::{mem, ptr};
use uverbs_core::provider::{PostError, WrBuilder as _};
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_core::wr::{IbvAh, RawAh};
use uverbs_mlx5::{Ah, Mlx5, SendQueue};

/// C's part, and the queue pair that it belongs to.
#[repr(C)]
struct Functions {
    public: mlx5dv_qp_ex,
    qp: *mut ibv_qp,
}

// SAFETY: the pointer is used only in functions that C calls, whose contract allows any thread.
unsafe impl Send for Functions {}
// SAFETY: as for `Send`; the struct is not changed after its creation.
unsafe impl Sync for Functions {}

/// # Safety
/// As in mlx5dv_qp_ex_from_ibv_qp_ex(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex {
    let qp: *mut ibv_qp = qp.cast();
    // SAFETY: `qp` is NULL or a live object, which begins with the pointer to its context; the context is not closed
    // during this call (contract of the man page).
    if unsafe { super::of_object(qp) }.is_err() {
        return ptr::null_mut();
    }
    // SAFETY: a live QP of a context of mlx5, as checked above.
    let this = unsafe { qp::private::<Mlx5>(qp) };
    let functions = this.extension.data.get_or_init(|| {
        // SAFETY: an integer and optional functions: zeros are values of all of them.
        let mut public: mlx5dv_qp_ex = unsafe { mem::zeroed() };
        public.wr_set_dc_addr = Some(wr_set_dc_addr);
        public.wr_set_dc_addr_stream = Some(wr_set_dc_addr_stream);
        Box::new(Functions { public, qp })
    });
    match functions.downcast_ref::<Functions>() {
        Some(functions) => ptr::from_ref(functions).cast_mut().cast(),
        None => ptr::null_mut(),
    }
}

/// Calls `set` with the queue of the session in which a setter is called, and the address handle.
///
/// # Safety
/// `mqp` is from [`uverbs_mlx5dv_qp_ex_from_ibv_qp_ex`], its QP exists, and this thread has its session; `ah` is NULL
/// or a live address handle of its context.
unsafe fn with(mqp: *mut mlx5dv_qp_ex, ah: *mut IbvAh, set: impl FnOnce(&mut SendQueue, &Ah)) {
    // SAFETY: `mqp` points to the first field of a `Functions` (the contract of this function), which is not changed.
    let qp = unsafe { (*mqp.cast::<Functions>()).qp };
    // SAFETY: the QP exists (the contract of this function).
    let Some(queue): Option<&Locked<SendQueue, Dynamic>> = unsafe { qp::private::<Mlx5>(qp) }.send.as_ref()
    else {
        return;
    };
    // SAFETY: the call is inside the session that `wr_start` entered, and no other thread calls at the same time (the
    // contract of this function). Outside a session the queue refuses the call.
    let queue = unsafe { queue.entered() };
    // SAFETY: `ah` is NULL or the `RawAh` of this driver (the contract of this function).
    match unsafe { ah.cast::<RawAh<Ah>>().as_ref() } {
        Some(ah) => set(queue, &ah.driver),
        None => queue.wr_latch(PostError::InvalidArgument),
    }
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
