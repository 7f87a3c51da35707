// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses of an object's memory, for programs that access the queues themselves (mlx5dv_init_obj(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::mlx5dv::{
    Pair, Queue, Register, mlx5dv_ah, mlx5dv_cq, mlx5dv_dm, mlx5dv_obj, mlx5dv_pd, mlx5dv_qp, mlx5dv_rwq,
    mlx5dv_srq,
};
use crate::abi::object::{ibv_cq, ibv_dm, ibv_pd, ibv_srq};
use crate::abi::qp::ibv_qp;
use crate::abi::wq::ibv_wq;
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, number};
use crate::live::{Live, Object};
use crate::object::{ah, cq, qp, srq, wq};
use crate::verbs::Open;
use core::ffi::{c_int, c_void};
use core::ptr;
use uverbs_core::sync::StaticMutex;
use uverbs_core::wr::IbvAh;
use uverbs_mlx5::Mlx5;
use uverbs_mlx5::dv::RawQueue;

/// `enum mlx5dv_obj_type`. DEVX (1 << 7) is not implemented.
mod kind {
    pub(super) const QP: u64 = 1 << 0;
    pub(super) const CQ: u64 = 1 << 1;
    pub(super) const SRQ: u64 = 1 << 2;
    pub(super) const RWQ: u64 = 1 << 3;
    pub(super) const DM: u64 = 1 << 4;
    pub(super) const AH: u64 = 1 << 5;
    pub(super) const PD: u64 = 1 << 6;
    pub(super) const ALL: u64 = QP | CQ | SRQ | RWQ | DM | AH | PD;
}

/// `MLX5DV_QP_MASK_UAR_MMAP_OFFSET`
const UAR_MMAP_OFFSET: u64 = 1 << 0;
/// `MLX5DV_SRQ_MASK_SRQN`
const SRQN: u64 = 1 << 0;

fn ring(queue: &RawQueue) -> Queue {
    Queue { buf: queue.buf, wqe_cnt: queue.wqe_cnt, stride: queue.stride }
}

/// Writes fields of a struct whose version is not known: those at its end are written only if the program requests
/// them.
macro_rules! put {
    ($out:ident, $($field:ident: $value:expr),* $(,)?) => {
        $(
            // SAFETY: `out` is valid for writes of the fields that every version has, and of those that its mask
            // requests (contract of the man page); it was checked not to be NULL.
            unsafe { (*$out).$field = $value };
        )*
    };
}

/// The mask of a struct, as the program set it.
macro_rules! asked {
    ($out:ident) => {
        // SAFETY: `out` is valid for reads of its mask (contract of the man page); it was checked not to be NULL.
        unsafe { (*$out).comp_mask }
    };
}

/// An object that exists, the driver of its context, and the struct of its pair, which is not NULL.
struct Found<'a, I, O> {
    open: &'a Open<Mlx5>,
    object: Live<'a, I>,
    out: *mut O,
}

/// # Safety
/// As in mlx5dv_init_obj(3).
unsafe fn find<'a, I: Object + 'a, O>(pair: Pair<I, O>) -> Outcome<Found<'a, I, O>> {
    ensure(!pair.r#in.is_null() && !pair.out.is_null())?;
    // SAFETY: the object exists, and its context is not closed during this call (contract of this function).
    let (open, object) = super::of_read(unsafe { Arg::new(pair.r#in) })?;
    Ok(Found { open, object, out: pair.out })
}

/// # Safety
/// As in mlx5dv_init_obj(3).
unsafe fn init_qp(Found { open, object, out }: Found<'_, ibv_qp, mlx5dv_qp>) -> Outcome<()> {
    let raw = qp::of(open, &object)?.control()?.raw();
    let bf = raw
        .bf
        .map_or(Register { reg: ptr::null_mut(), size: 0 }, |bf| Register { reg: bf.reg, size: bf.burst });
    let mut answered = 0;
    if asked!(out) & UAR_MMAP_OFFSET != 0
        && let Some(offset) = raw.bf.and_then(|bf| bf.mmap_offset)
    {
        put!(out, uar_mmap_offset: offset.cast_signed());
        answered |= UAR_MMAP_OFFSET;
    }
    put!(out, dbrec: raw.dbrec, sq: ring(&raw.sq), rq: ring(&raw.rq), bf: bf, comp_mask: answered);
    Ok(())
}

/// # Safety
/// As in mlx5dv_init_obj(3).
unsafe fn init_cq(Found { open, object, out }: Found<'_, ibv_cq, mlx5dv_cq>) -> Outcome<()> {
    let raw = cq::of(open, &object)?.shared().raw().ok_or(Errno::EIO)?;
    put!(
        out,
        buf: raw.buf,
        dbrec: raw.dbrec,
        cqe_cnt: raw.cqe_cnt,
        cqe_size: raw.cqe_size,
        cq_uar: open.driver.cq_uar().unwrap_or(ptr::null_mut()),
        cqn: raw.cqn,
        comp_mask: 0,
    );
    Ok(())
}

/// # Safety
/// As in mlx5dv_init_obj(3).
unsafe fn init_srq(Found { open, object, out }: Found<'_, ibv_srq, mlx5dv_srq>) -> Outcome<()> {
    let raw = srq::of(open, &object)?.raw();
    let answered = asked!(out) & SRQN;
    put!(out, buf: raw.buf, dbrec: raw.dbrec, stride: raw.stride, head: raw.head, tail: raw.tail);
    if answered != 0 {
        put!(out, srqn: raw.srqn);
    }
    put!(out, comp_mask: answered);
    Ok(())
}

/// # Safety
/// As in mlx5dv_init_obj(3).
unsafe fn init_rwq(Found { open, object, out }: Found<'_, ibv_wq, mlx5dv_rwq>) -> Outcome<()> {
    let raw = wq::of(open, &object)?.control().raw();
    let RawQueue { buf, wqe_cnt, stride } = raw.rq;
    put!(out, buf: buf, dbrec: raw.dbrec, wqe_cnt: wqe_cnt, stride: stride, comp_mask: 0);
    Ok(())
}

/// # Safety
/// As in mlx5dv_init_obj(3).
unsafe fn init_dm(Found { object, out, .. }: Found<'_, ibv_dm, mlx5dv_dm>) -> Outcome<()> {
    let (buf, length) = object.own().memory();
    put!(out, buf: buf.cast::<c_void>(), length: length, comp_mask: 0);
    Ok(())
}

/// # Safety
/// As in mlx5dv_init_obj(3).
unsafe fn init_ah(Found { open, object, out }: Found<'_, IbvAh, mlx5dv_ah>) -> Outcome<()> {
    let av = ah::driver(open, &object)?.as_ptr();
    put!(out, av: av.cast_mut().cast(), comp_mask: 0);
    Ok(())
}

/// # Safety
/// As in mlx5dv_init_obj(3).
unsafe fn init_pd(Found { open, object, out }: Found<'_, ibv_pd, mlx5dv_pd>) -> Outcome<()> {
    let pdn = open.driver.pd_number(object.own().handle())?;
    put!(out, pdn: pdn, comp_mask: 0);
    Ok(())
}

/// # Safety
/// As in mlx5dv_init_obj(3).
unsafe fn init(obj: *mut mlx5dv_obj, obj_type: u64) -> Outcome<()> {
    ensure(!obj.is_null())?;
    if obj_type & !kind::ALL != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    macro_rules! each {
        ($($bit:ident => $function:ident($field:ident)),*) => {
            $(
                if obj_type & kind::$bit != 0 {
                    // SAFETY: `obj` is valid for reads of the pairs that `obj_type` names (contract of this function).
                    let pair = unsafe { (*obj).$field };
                    // SAFETY: the object exists (contract of this function).
                    let found = unsafe { find(pair) }?;
                    // SAFETY: the struct is valid for writes (contract of this function).
                    unsafe { $function(found) }?;
                }
            )*
        };
    }
    each!(QP => init_qp(qp), CQ => init_cq(cq), SRQ => init_srq(srq), RWQ => init_rwq(rwq), DM => init_dm(dm), AH => init_ah(ah), PD => init_pd(pd));
    Ok(())
}

/// # Safety
/// As in mlx5dv_init_obj(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int {
    // SAFETY: the contract of this function is that of `init`.
    number(|| unsafe { init(obj, obj_type) })
}

/// The variables from which programs of version `MLX5_1.0` read the address of a UAR: they expect a pointer to the
/// pointer. There is one for each address; it is never freed.
static UARS: StaticMutex<Vec<&'static usize>> = StaticMutex::new();

/// `mlx5dv_init_obj` of version `MLX5_1.0`.
///
/// # Safety
/// As in mlx5dv_init_obj(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_init_obj_1_0(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int {
    number(|| {
        // SAFETY: the contract of this function is that of `init`.
        unsafe { init(obj, obj_type) }?;
        if obj_type & kind::CQ != 0 {
            // SAFETY: `obj` is valid for reads (contract of this function).
            let out = unsafe { (*obj).cq }.out;
            // SAFETY: `init` wrote the field.
            let uar = unsafe { (*out).cq_uar }.expose_provenance();
            let mut uars = UARS.lock();
            let place = uars.iter().copied().find(|place| **place == uar);
            let place = place.unwrap_or_else(|| {
                uars.push(Box::leak(Box::new(uar)));
                uars[uars.len() - 1]
            });
            put!(out, cq_uar: ptr::from_ref(place).cast_mut().cast());
        }
        Ok(())
    })
}
