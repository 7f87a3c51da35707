// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues (ibv_create_srq(3), ibv_create_srq_ex(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::locking::locked;
use super::{cq, destroy_handle, pd, queue_memory, xrcd};
use crate::abi::attr::{ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::abi::context::ibv_context;
use crate::abi::field;
use crate::abi::object::{ibv_pd, ibv_srq};
use crate::context;
use crate::errno::{Errno, Outcome, ensure, number as errno_number, pointer};
use crate::events::{self, Numbered};
use crate::live;
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

impl<D: Driver> SrqPrivate<D> {
    pub(crate) fn shared(&self) -> &Arc<D::SrqShared> {
        &self.shared
    }
}

/// Our part of a queue.
///
/// # Safety
/// `srq` is a live queue of this driver.
#[inline(always)]
pub(crate) unsafe fn private<'a, D: Driver>(srq: *mut ibv_srq) -> &'a SrqPrivate<D> {
    // SAFETY: `srq` is a live object of this type (contract of this function); no mutable reference to its private part
    // exists.
    unsafe { &(*srq.cast::<Srq<D>>()).private }
}

/// The parts of an SRQ from which QPs are created.
///
/// # Safety
/// `srq` is NULL, or a live queue of this driver.
pub(crate) unsafe fn parts<'a, D: Driver>(
    srq: *mut ibv_srq,
) -> Option<(&'a SrqHandle, &'a Arc<D::SrqShared>)> {
    if srq.is_null() {
        return None;
    }
    // SAFETY: `srq` is a live object of this driver (contract of this function).
    let this = unsafe { private::<D>(srq) };
    Some((&*this.handle, &this.shared))
}

/// `IBV_SRQT_TM`
const TAG_MATCHING: u32 = 2;

/// `IBV_SRQ_INIT_ATTR_*`
mod mask {
    pub(super) const TYPE: u32 = 1 << 0;
    pub(super) const PD: u32 = 1 << 1;
    pub(super) const XRCD: u32 = 1 << 2;
    pub(super) const CQ: u32 = 1 << 3;
    pub(super) const TM: u32 = 1 << 4;
    pub(super) const ALL: u32 = (1 << 5) - 1;
}

/// Creates a queue with the attributes `attr`, whose `comp_mask` and pointers were checked, and writes its sizes to
/// `attr`.
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn create<D: Driver>(
    open: &Open<D>,
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Outcome<*mut ibv_srq> {
    // SAFETY: `attr.pd` is a live object of this driver (contract of `Verbs`).
    if let Some(allocator) = unsafe { pd::allocator(attr.pd) } {
        let open = queue_memory::mlx5(open)?;
        let make = |create: &SrqCreate<'_, _>| {
            // SAFETY: `create_with`, which calls this, fulfils the contract of the driver's verb.
            unsafe { open.driver.create_srq_in(create, Some(&allocator)) }
        };
        // SAFETY: the contract of this function.
        return unsafe { create_with(context, attr, make) };
    }
    // SAFETY: `create_with`, which calls this, fulfils the contract of the driver's verb.
    let make = |create: &SrqCreate<'_, D>| unsafe { open.driver.create_srq(create) };
    // SAFETY: the contract of this function.
    unsafe { create_with(context, attr, make) }
}

/// [`create`] by a verb of the driver, which may rely on the contract of [`Driver::create_srq`].
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
unsafe fn create_with<D: Driver>(
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
    make: impl FnOnce(&SrqCreate<'_, D>) -> uverbs_core::Result<SrqParts<D>>,
) -> Outcome<*mut ibv_srq> {
    // SAFETY: `context` is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of(context) }?;
    let is_xrc = attr.srq_type == SrqType::Xrc as u32;
    let init = SrqInitAttr {
        // For a size of 0, libmlx5 and librxe create a queue of the smallest size.
        attr: SrqAttr { max_wr: attr.attr.max_wr.max(1), max_sge: attr.attr.max_sge, srq_limit: 0 },
        srq_type: if is_xrc { SrqType::Xrc } else { SrqType::Basic },
        ..SrqInitAttr::default()
    };
    let xrc = if is_xrc {
        // SAFETY: `attr.cq` is NULL or a live object of this driver (contract of `Verbs`).
        let (cq, shared) = unsafe { cq::parts::<D>(attr.cq) }.ok_or(Errno::EINVAL)?;
        // SAFETY: `attr.xrcd` is a live object of this driver (contract of `Verbs`).
        Some((unsafe { xrcd::handle(attr.xrcd) }, cq, shared))
    } else {
        None
    };
    // SAFETY: `attr.pd` is a live object of this driver (contract of `Verbs`).
    let td = unsafe { pd::td(attr.pd) };
    let number = here.new_number()?;
    let create = SrqCreate::<D> {
        // SAFETY: `attr.pd` is a live object of this driver (contract of `Verbs`).
        pd: unsafe { pd::handle(attr.pd) },
        attr: &init,
        xrc,
        td: td.and_then(|td| td.downcast_ref()),
        user_handle: number,
    };
    // The parts of each pair are of one object, and all objects are of this context (contract of `Verbs`). `destroy`
    // has the kernel destroy the queue before it frees the other parts. Until then the queue exists, and its parts with
    // it, or they are leaked.
    let parts = make(&create);
    let SrqParts { handle, shared, queue, attr: got } = parts.inspect_err(|_| {
        here.forget(number);
    })?;
    attr.attr = ibv_srq_attr { max_wr: got.max_wr, max_sge: got.max_sge, srq_limit: attr.attr.srq_limit };
    // SAFETY: integers, pointers and pthread's types: zeros are values of all of them.
    let mut public: ibv_srq = unsafe { mem::zeroed() };
    public.context = context;
    public.srq_context = attr.srq_context;
    public.pd = attr.pd;
    public.handle = handle.handle();
    let queue = locked::<D, _>(queue, td.is_none());
    let private = SrqPrivate { queue, shared, handle: ManuallyDrop::new(handle), number };
    let srq: *mut ibv_srq = Box::into_raw(Box::new(Srq::<D> { public, private })).cast();
    events::complete(here, number, Numbered::Srq(srq));
    // SAFETY: a new object; the context is not closed during this call (contract of `Verbs`).
    Ok(unsafe { live::add(srq) })
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn modify<D: Driver>(
    open: &Open<D>,
    srq: *mut ibv_srq,
    attr: &SrqAttr,
    mask: SrqAttrMask,
) -> Outcome<()> {
    // SAFETY: `srq` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(srq) };
    // SAFETY: the queue is left below. A queue without a lock is of a thread domain, whose queues are used by one
    // thread (the contract of ibv_alloc_td(3)).
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
    // SAFETY: `srq` is a live object of this driver (contract of `Verbs`).
    Ok(unsafe { private::<D>(srq) }.handle.query()?)
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn number<D: Driver>(open: &Open<D>, srq: *mut ibv_srq) -> Outcome<u32> {
    // SAFETY: `srq` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(srq) };
    this.handle.srq_num().or_else(|| open.driver.srq_number(&this.shared)).ok_or(Errno::EINVAL)
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn destroy<D: Driver>(open: &Open<D>, srq: *mut ibv_srq) -> Outcome<()> {
    // SAFETY: the caller has claimed the object; the context is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of_known(srq) }?;
    // SAFETY: `srq` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(srq) };
    // SAFETY: the queue's own parts, of which the engines are freed after this.
    let end = |handle| unsafe { open.driver.destroy_srq(handle, &this.shared) };
    // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
    // `Verbs`).
    let reported = unsafe { destroy_handle(&this.handle, end) }?;
    live::mark_gone(srq);
    // SAFETY: the queue exists until it is freed below.
    unsafe { events::wait_for_acks([(field!(srq, ibv_srq.events_completed), reported)]) };
    here.forget(this.number);
    live::remove(here, srq);
    // SAFETY: `create` allocated it as a `Box` of this type; the program does not use it after this call (contract of
    // `Verbs`).
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
        // SAFETY: `pd` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(pd) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: integers and pointers: zeros are values of all of them.
        let mut ex: ibv_srq_init_attr_ex = unsafe { mem::zeroed() };
        (ex.srq_context, ex.attr, ex.pd) = (attr.srq_context, attr.attr, pd);
        let context = here.context();
        // SAFETY: the objects in the request are live and of this context, as checked above.
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
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let here = unsafe { context::of(context) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::EINVAL)?;
        let has = |bit| attr.comp_mask & bit != 0;
        if has(!mask::ALL) || has(mask::TM) {
            return Err(Errno::EOPNOTSUPP);
        }
        let kind = if has(mask::TYPE) { attr.srq_type } else { SrqType::Basic as u32 };
        ensure(has(mask::PD) && !attr.pd.is_null())?;
        // SAFETY: `attr.pd` is NULL or a live object, which begins with the pointer to its context (contract of the man
        // page).
        let _pd = unsafe { context::is_of(context, attr.pd) }?;
        let (_xrcd, _cq);
        if kind == SrqType::Xrc as u32 {
            ensure(has(mask::XRCD) && has(mask::CQ) && !attr.xrcd.is_null() && !attr.cq.is_null())?;
            // SAFETY: `attr.xrcd` is NULL or a live object, which begins with the pointer to its context (contract of
            // the man page).
            _xrcd = unsafe { context::is_of(context, attr.xrcd) }?;
            // SAFETY: `attr.cq` is NULL or a live object, which begins with the pointer to its context (contract of the
            // man page).
            _cq = unsafe { context::is_of(context, attr.cq) }?;
        } else if kind != SrqType::Basic as u32 {
            return Err(if kind == TAG_MATCHING { Errno::EOPNOTSUPP } else { Errno::EINVAL });
        }
        attr.srq_type = kind;
        // SAFETY: the objects in the request are live and of this context, as checked above.
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
        // SAFETY: `srq` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(srq) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        let attr = SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: attr.srq_limit };
        // SAFETY: `srq` is a live object of a context of this library, as checked above.
        unsafe { here.verbs().modify_srq(srq, &attr, SrqAttrMask::from_bits_retain(mask.cast_unsigned())) }
    })
}

/// # Safety
/// As in ibv_query_srq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    errno_number(|| {
        // SAFETY: `srq` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(srq) }?;
        ensure(!attr.is_null())?;
        // SAFETY: `srq` is a live object of a context of this library, as checked above.
        let SrqAttr { max_wr, max_sge, srq_limit } = unsafe { here.verbs().query_srq(srq) }?;
        // SAFETY: `attr` is valid for writes (contract of the man page).
        unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
        Ok(())
    })
}

/// # Safety
/// As in ibv_get_srq_num(3).
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    errno_number(|| {
        // SAFETY: `srq` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(srq) }?;
        ensure(!number.is_null())?;
        // SAFETY: `srq` is a live object of a context of this library, as checked above.
        let found = unsafe { here.verbs().srq_num(srq) }?;
        // SAFETY: `number` is valid for writes (contract of the man page).
        unsafe { number.write(found) };
        Ok(())
    })
}

/// # Safety
/// As in ibv_destroy_srq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    errno_number(|| {
        // SAFETY: `srq` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(srq) }?;
        // SAFETY: `srq` is a live object of a context of this library, as checked above.
        unsafe { here.verbs().destroy_srq(srq) }
    })
}
