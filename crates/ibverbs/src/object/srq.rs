// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues (ibv_create_srq(3), ibv_create_srq_ex(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::{cq, destroy_handle, pd, xrcd};
use crate::abi::attr::{ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_pd, ibv_srq};
use crate::context;
use crate::errno::{Errno, Outcome, ensure, number as errno_number, pointer};
use crate::events::{self, Numbered};
use crate::verbs::Open;
use core::ffi::c_int;
use core::mem::{self, ManuallyDrop};
use std::sync::Arc;
use uverbs_core::attr::{SrqAttr, SrqAttrMask, SrqInitAttr, SrqType};
use uverbs_core::control::SrqHandle;
use uverbs_core::provider::{Driver, SrqCreate, SrqParts};
use uverbs_core::sync::{Dynamic, Locked};

/// A queue: C's part and ours.
#[repr(C)]
struct Srq<D: Driver> {
    public: ibv_srq,
    private: SrqPrivate<D>,
}

/// Our part.
pub(crate) struct SrqPrivate<D: Driver> {
    /// First, because the data path needs nothing else.
    pub(crate) queue: Locked<D::SharedRecvQueue, Dynamic>,
    shared: Arc<D::SrqShared>,
    handle: ManuallyDrop<SrqHandle>,
    /// Its number in events.
    number: u64,
}

/// Our part of a queue.
///
/// # Safety
/// A live queue of this driver.
#[inline(always)]
pub(crate) unsafe fn private<'a, D: Driver>(srq: *mut ibv_srq) -> &'a SrqPrivate<D> {
    // SAFETY: the caller's promise; nobody has `&mut` to this part.
    unsafe { &(*srq.cast::<Srq<D>>()).private }
}

/// What QPs that receive from it are made from.
///
/// # Safety
/// NULL, or a live queue of this driver.
pub(crate) unsafe fn parts<'a, D: Driver>(
    srq: *mut ibv_srq,
) -> Option<(&'a SrqHandle, &'a Arc<D::SrqShared>)> {
    if srq.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let this = unsafe { private::<D>(srq) };
    Some((&*this.handle, &this.shared))
}

/// `IBV_SRQ_INIT_ATTR_*`
mod mask {
    pub(super) const TYPE: u32 = 1 << 0;
    pub(super) const PD: u32 = 1 << 1;
    pub(super) const XRCD: u32 = 1 << 2;
    pub(super) const CQ: u32 = 1 << 3;
    pub(super) const TM: u32 = 1 << 4;
    pub(super) const ALL: u32 = (1 << 5) - 1;
}

/// Creates a queue as `attr` says, whose `comp_mask` and pointers were checked, and leaves its sizes there.
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn create<D: Driver>(
    open: &Open<D>,
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Outcome<*mut ibv_srq> {
    // SAFETY: the caller's promise.
    let here = unsafe { context::of(context) }?;
    let is_xrc = attr.srq_type == SrqType::Xrc as u32;
    let init = SrqInitAttr {
        // libmlx5 and librxe make a queue of the smallest size of 0.
        attr: SrqAttr { max_wr: attr.attr.max_wr.max(1), max_sge: attr.attr.max_sge, srq_limit: 0 },
        srq_type: if is_xrc { SrqType::Xrc } else { SrqType::Basic },
        ..SrqInitAttr::default()
    };
    let xrc = if is_xrc {
        // SAFETY: the caller's promise.
        let (cq, shared) = unsafe { cq::parts::<D>(attr.cq) }.ok_or(Errno::EINVAL)?;
        // SAFETY: as above.
        Some((unsafe { xrcd::handle(attr.xrcd) }, cq, shared))
    } else {
        None
    };
    // SAFETY: the caller's promise.
    let td = unsafe { pd::td(attr.pd) };
    let number = here.objects().insert(Numbered::NONE);
    let create = SrqCreate::<D> {
        // SAFETY: as above.
        pd: unsafe { pd::handle(attr.pd) },
        attr: &init,
        xrc,
        td: td.and_then(|td| td.downcast_ref()),
        user_handle: number,
    };
    // SAFETY: all of this context, and in pairs of one object. `destroy` has the kernel destroy the queue before it frees
    // the other parts, and they live as long as C has the queue, or are leaked.
    let parts = unsafe { open.driver.create_srq(&create) };
    let SrqParts { handle, shared, queue, attr: got } = parts.inspect_err(|_| {
        here.objects().remove(number);
    })?;
    attr.attr = ibv_srq_attr { max_wr: got.max_wr, max_sge: got.max_sge, srq_limit: attr.attr.srq_limit };
    // SAFETY: integers, pointers and pthread's types: zeros are values of all of them.
    let mut public: ibv_srq = unsafe { mem::zeroed() };
    public.context = context;
    public.srq_context = attr.srq_context;
    public.pd = attr.pd;
    public.handle = handle.handle();
    let queue = Locked::dynamic(queue, td.is_none());
    let private = SrqPrivate { queue, shared, handle: ManuallyDrop::new(handle), number };
    let srq: *mut ibv_srq = Box::into_raw(Box::new(Srq::<D> { public, private })).cast();
    events::complete(here, number, Numbered::Srq(srq));
    Ok(srq)
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn modify<D: Driver>(
    open: &Open<D>,
    srq: *mut ibv_srq,
    attr: &SrqAttr,
    mask: SrqAttrMask,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let this = unsafe { private::<D>(srq) };
    // SAFETY: left below; a queue of one thread is used by one thread, by C's promise.
    let queue = unsafe { this.queue.enter() }.map_err(|_| Errno::EBUSY)?;
    // SAFETY: the queue's own handle and engine.
    let modified = unsafe { open.driver.modify_srq(&this.handle, queue, attr, mask) };
    // SAFETY: entered above; `queue` is not used any more.
    unsafe { this.queue.leave() };
    Ok(modified?)
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn query<D: Driver>(_: &Open<D>, srq: *mut ibv_srq) -> Outcome<SrqAttr> {
    // SAFETY: the caller's promise.
    Ok(unsafe { private::<D>(srq) }.handle.query()?)
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn number<D: Driver>(_: &Open<D>, srq: *mut ibv_srq) -> Outcome<u32> {
    // SAFETY: the caller's promise.
    unsafe { private::<D>(srq) }.handle.srq_num().ok_or(Errno::EINVAL)
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn destroy<D: Driver>(open: &Open<D>, srq: *mut ibv_srq) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let here = unsafe { context::of_object(srq) }?;
    // SAFETY: as above.
    let this = unsafe { private::<D>(srq) };
    // SAFETY: the queue's own parts, of which the engines are freed after this.
    let end = |handle| unsafe { open.driver.destroy_srq(handle, &this.shared) };
    // SAFETY: on success nobody uses it any more.
    let reported = unsafe { destroy_handle(&this.handle, end) }?;
    // SAFETY: the public part of a queue that is freed below.
    here.wait_for_acks(|| events::are_acked(unsafe { (*srq).events_completed }, reported));
    here.objects().remove(this.number);
    // SAFETY: made by `create`, and gone for C with this call.
    drop(unsafe { Box::from_raw(srq.cast::<Srq<D>>()) });
    Ok(())
}

/// # Safety
/// As in ibv_create_srq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the caller's promise.
        let here = unsafe { context::of_object(pd) }?;
        // SAFETY: NULL or valid, by the caller's promise.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: integers and pointers: zeros are values of all of them.
        let mut ex: ibv_srq_init_attr_ex = unsafe { mem::zeroed() };
        (ex.srq_context, ex.attr, ex.pd) = (attr.srq_context, attr.attr, pd);
        // SAFETY: as above.
        let context = unsafe { context::pointer_of(pd) }?;
        // SAFETY: of a context of ours.
        let srq = unsafe { here.verbs().create_srq(context, &mut ex) }?;
        attr.attr = ex.attr;
        Ok(srq)
    })
}

/// # Safety
/// As in ibv_create_srq_ex(3).
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the caller's promise.
        let here = unsafe { context::of(context) }?;
        // SAFETY: NULL or valid, by the caller's promise.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::EINVAL)?;
        let has = |bit| attr.comp_mask & bit != 0;
        if has(!mask::ALL) || has(mask::TM) {
            return Err(Errno::EOPNOTSUPP);
        }
        let kind = if has(mask::TYPE) { attr.srq_type } else { SrqType::Basic as u32 };
        ensure(has(mask::PD) && !attr.pd.is_null())?;
        // SAFETY: not NULL, and valid by the caller's promise.
        unsafe { context::is_of(context, attr.pd) }?;
        if kind == SrqType::Xrc as u32 {
            ensure(has(mask::XRCD) && has(mask::CQ) && !attr.xrcd.is_null() && !attr.cq.is_null())?;
            // SAFETY: as above.
            unsafe { context::is_of(context, attr.xrcd) }?;
            // SAFETY: as above.
            unsafe { context::is_of(context, attr.cq) }?;
        } else if kind != SrqType::Basic as u32 {
            return Err(Errno::EOPNOTSUPP);
        }
        attr.srq_type = kind;
        // SAFETY: all of this context.
        unsafe { here.verbs().create_srq(context, attr) }
    })
}

/// # Safety
/// As in ibv_modify_srq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    errno_number(|| {
        // SAFETY: the caller's promise.
        let here = unsafe { context::of_object(srq) }?;
        // SAFETY: NULL or valid, by the caller's promise.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        let attr = SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: attr.srq_limit };
        // SAFETY: of a context of ours.
        unsafe { here.verbs().modify_srq(srq, &attr, SrqAttrMask::from_bits_retain(mask.cast_unsigned())) }
    })
}

/// # Safety
/// As in ibv_query_srq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    errno_number(|| {
        // SAFETY: the caller's promise.
        let here = unsafe { context::of_object(srq) }?;
        ensure(!attr.is_null())?;
        // SAFETY: of a context of ours.
        let SrqAttr { max_wr, max_sge, srq_limit } = unsafe { here.verbs().query_srq(srq) }?;
        // SAFETY: valid for writing by the caller's promise.
        unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
        Ok(())
    })
}

/// # Safety
/// As in ibv_get_srq_num(3).
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    errno_number(|| {
        // SAFETY: the caller's promise.
        let here = unsafe { context::of_object(srq) }?;
        ensure(!number.is_null())?;
        // SAFETY: of a context of ours.
        let found = unsafe { here.verbs().srq_num(srq) }?;
        // SAFETY: valid for writing by the caller's promise.
        unsafe { number.write(found) };
        Ok(())
    })
}

/// # Safety
/// As in ibv_destroy_srq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    errno_number(|| {
        // SAFETY: the caller's promise.
        let here = unsafe { context::of_object(srq) }?;
        // SAFETY: of a context of ours.
        unsafe { here.verbs().destroy_srq(srq) }
    })
}
