// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions in `struct ibv_qp_ex` (ibv_wr_post(3)).
//!
//! Each reads the sticky `wr_id` and `wr_flags` from the struct and calls the core's builder for the driver's queue.
//! The core's table of builders is a constant for each type of queue, so the compiler makes these calls direct.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use crate::abi::qp::{ibv_qp, ibv_qp_ex};
use crate::errno::returned;
use crate::object::qp;
use core::ffi::{c_int, c_void};
use core::ptr;
use uverbs_core::provider::raw::WrVtable;
use uverbs_core::provider::{Driver, Head, SendQueue};
use uverbs_core::sync::Dynamic;
use uverbs_core::wr::{IbvAh, IbvDataBuf, IbvMw, IbvMwBindInfo, ImmData, SendFlags, Sge};

/// The builders of the driver's queue.
#[cfg_attr(not(debug_assertions), inline(always))]
fn builders<D: Driver>() -> &'static WrVtable {
    WrVtable::of::<D::SendQueue, Dynamic>()
}

/// The queue, as a pointer for the builders.
///
/// # Safety
/// `qp` is a live queue pair of this driver that has a send queue.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn queue<D: Driver>(qp: *mut ibv_qp_ex) -> *const () {
    // SAFETY: `qp` points to an existing queue pair of this driver (the contract of this function), whose extended
    // struct begins with `ibv_qp`.
    let send = unsafe { &qp::private::<D>(qp.cast::<ibv_qp>()).send };
    // SAFETY: the queue pair has a send queue (the contract of this function).
    ptr::from_ref(unsafe { send.as_ref().unwrap_unchecked() }).cast()
}

/// The sticky fields.
///
/// # Safety
/// `qp` is a live queue pair.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn sticky(qp: *mut ibv_qp_ex) -> Head {
    // SAFETY: `qp` points to an existing queue pair (the contract of this function).
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: `qp` points to an existing queue pair (the contract of this function).
    let flags = unsafe { (*qp).wr_flags };
    Head { wr_id, flags: SendFlags::from_bits_retain(flags) }
}

/// Functions that begin a work request.
macro_rules! builders {
    ($($name:ident($($arg:ident: $ty:ty = $value:expr),*);)*) => {
        $(
            unsafe extern "C" fn $name<D: Driver>(qp: *mut ibv_qp_ex, $($arg: $ty),*) {
                // SAFETY: `qp` points to an existing queue pair of this driver with a send queue, because only those
                // have this function, and this thread has its session; the other arguments are valid (both by the
                // contract of ibv_wr_post(3)).
                unsafe { (builders::<D>().$name)(queue::<D>(qp), sticky(qp), $($value),*) }
            }
        )*
    };
}

/// Functions that set further fields of a work request.
macro_rules! setters {
    ($($name:ident($($arg:ident: $ty:ty = $value:expr),*);)*) => {
        $(
            pub(super) unsafe extern "C" fn $name<D: Driver>(qp: *mut ibv_qp_ex, $($arg: $ty),*) {
                // SAFETY: `qp` points to an existing queue pair of this driver with a send queue, because only those
                // have this function, and this thread has its session; the other arguments are valid (both by the
                // contract of ibv_wr_post(3)).
                unsafe { (builders::<D>().$name)(queue::<D>(qp), $($value),*) }
            }
        )*
    };
}

builders! {
    wr_send();
    wr_send_imm(imm_data: u32 = ImmData::from_be(imm_data));
    wr_send_inv(rkey: u32 = rkey);
    wr_rdma_write(rkey: u32 = rkey, remote_addr: u64 = remote_addr);
    wr_rdma_write_imm(rkey: u32 = rkey, remote_addr: u64 = remote_addr, imm_data: u32 = ImmData::from_be(imm_data));
    wr_rdma_read(rkey: u32 = rkey, remote_addr: u64 = remote_addr);
    wr_atomic_cmp_swp(rkey: u32 = rkey, remote_addr: u64 = remote_addr, compare: u64 = compare, swap: u64 = swap);
    wr_atomic_fetch_add(rkey: u32 = rkey, remote_addr: u64 = remote_addr, add: u64 = add);
    wr_local_inv(rkey: u32 = rkey);
    wr_bind_mw(mw: *mut IbvMw = mw.cast_const(), rkey: u32 = rkey, info: *const IbvMwBindInfo = info);
    wr_send_tso(hdr: *mut c_void = hdr.cast_const().cast(), hdr_sz: u16 = hdr_sz, mss: u16 = mss);
    wr_flush(rkey: u32 = rkey, remote_addr: u64 = remote_addr, len: usize = len, kind: u8 = kind, level: u8 = level);
    wr_atomic_write(rkey: u32 = rkey, remote_addr: u64 = remote_addr, data: *const c_void = data.cast());
}

setters! {
    wr_set_ud_addr(ah: *mut IbvAh = ah.cast_const(), remote_qpn: u32 = remote_qpn, remote_qkey: u32 = remote_qkey);
    wr_set_xrc_srqn(remote_srqn: u32 = remote_srqn);
    wr_set_inline_data(addr: *mut c_void = addr.cast_const().cast(), length: usize = length);
    wr_set_inline_data_list(num_buf: usize = num_buf, bufs: *const IbvDataBuf = bufs);
    wr_set_sge(lkey: u32 = lkey, addr: u64 = addr, length: u32 = length);
    wr_set_sge_list(num_sge: usize = num_sge, sges: *const Sge = sges);
    wr_start();
    wr_abort();
}

pub(super) unsafe extern "C" fn wr_complete<D: Driver>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: `qp` points to an existing queue pair of this driver with a send queue, because only those have this
    // function.
    let queue = unsafe { queue::<D>(qp) };
    // SAFETY: the vtable is that of this queue, and this thread has its session (the contract of ibv_wr_post(3)).
    match unsafe { (builders::<D>().wr_complete)(queue) } {
        Ok(()) => 0,
        Err(error) => returned(<D::SendQueue as SendQueue>::errno(error)),
    }
}

/// Sets the functions of a queue pair, which must have a send queue. If a program calls one that the type of the queue
/// pair or the device lacks, `wr_complete` fails.
pub(crate) fn set_functions<D: Driver>(qp: &mut ibv_qp_ex) {
    macro_rules! set {
        ($($name:ident)*) => { $(qp.$name = Some($name::<D>);)* };
    }
    set! {
        wr_send wr_send_imm wr_send_inv wr_rdma_write wr_rdma_write_imm wr_rdma_read wr_atomic_cmp_swp
        wr_atomic_fetch_add wr_local_inv wr_bind_mw wr_send_tso wr_flush wr_atomic_write wr_set_ud_addr
        wr_set_xrc_srqn wr_set_inline_data wr_set_inline_data_list wr_set_sge wr_set_sge_list wr_start wr_abort
        wr_complete
    }
}
