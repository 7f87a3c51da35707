// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work queues, and the indirection tables that distribute packets over them (ibv_create_wq(3), ibv_post_wq_recv(3),
//! ibv_create_rwq_ind_table(3)).
//!
//! A QP over a table is in [`qp`](super::qp).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and lists.

use super::locking::locked;
use super::{cq, destroy_handle, pd, queue_memory};
use crate::abi::context::ibv_context;
use crate::abi::field;
use crate::abi::wq::{ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr, ibv_wq_init_attr};
use crate::context;
use crate::errno::{Errno, Outcome, ensure, number as errno_number, pointer, returned};
use crate::events::{self, Numbered};
use crate::live;
use crate::verbs::Open;
use core::ffi::c_int;
use core::mem::{self, ManuallyDrop};
use core::slice;
use std::sync::Arc;
use uverbs_core::attr::{WqAttr, WqFlags, WqInitAttr, WqState};
use uverbs_core::control::{RwqIndTableHandle, WqHandle, wq};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::{Driver, RecvQueue, WqCreate, WqParts, raw};
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_core::wr::RecvWr;

/// A queue: C's part and ours.
#[repr(C)]
struct Wq<D: Driver> {
    public: ibv_wq,
    private: WqPrivate<D>,
}

pub(crate) struct WqPrivate<D: Driver> {
    queue: Locked<D::RecvQueue, Dynamic>,
    shared: Arc<D::QpShared>,
    handle: ManuallyDrop<WqHandle>,
    /// Its number in events.
    number: u64,
}

impl<D: Driver> WqPrivate<D> {
    pub(crate) fn shared(&self) -> &Arc<D::QpShared> {
        &self.shared
    }
}

/// A table: C's part and ours.
#[repr(C)]
struct Table {
    public: ibv_rwq_ind_table,
    private: ManuallyDrop<RwqIndTableHandle>,
}

/// `IBV_WQT_RQ`, the only type.
const TYPE_RQ: u32 = 0;
/// `IBV_WQ_INIT_ATTR_FLAGS`
const INIT_FLAGS: u32 = 1;

/// `IBV_WQ_ATTR_*`
mod mask {
    pub(super) const STATE: u32 = 1 << 0;
    pub(super) const CURR_STATE: u32 = 1 << 1;
    pub(super) const FLAGS: u32 = 1 << 2;
    pub(super) const ALL: u32 = (1 << 3) - 1;
}

/// # Safety
/// `wq` is a live queue of this driver.
#[inline(always)]
pub(crate) unsafe fn private<'a, D: Driver>(wq: *mut ibv_wq) -> &'a WqPrivate<D> {
    // SAFETY: `wq` is a live object of this type (contract of this function); no mutable reference to its private part
    // exists.
    unsafe { &(*wq.cast::<Wq<D>>()).private }
}

/// The kernel's object of a table.
///
/// # Safety
/// `table` is a live table of this library.
pub(crate) unsafe fn table_handle<'a>(table: *mut ibv_rwq_ind_table) -> &'a RwqIndTableHandle {
    // SAFETY: `table` is a live object of this type (contract of this function); no mutable reference to its private
    // part exists.
    unsafe { &(*table.cast::<Table>()).private }
}

/// Creates a queue with the attributes `attr`, whose `comp_mask` and pointers were checked, and writes its sizes to
/// `attr`.
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn create<D: Driver>(
    open: &Open<D>,
    context: *mut ibv_context,
    attr: &mut ibv_wq_init_attr,
) -> Outcome<*mut ibv_wq> {
    // SAFETY: `attr.pd` is a live object of this driver (contract of `Verbs`).
    if let Some(allocator) = unsafe { pd::allocator(attr.pd) } {
        let open = queue_memory::mlx5(open)?;
        let make = |create: &WqCreate<'_, _>| {
            // SAFETY: `create_with`, which calls this, fulfils the contract of the driver's verb.
            unsafe { open.driver.create_wq_in(create, Some(&allocator)) }
        };
        // SAFETY: the contract of this function.
        return unsafe { create_with(context, attr, make) };
    }
    // SAFETY: `create_with`, which calls this, fulfils the contract of the driver's verb.
    let make = |create: &WqCreate<'_, D>| unsafe { open.driver.create_wq(create) };
    // SAFETY: the contract of this function.
    unsafe { create_with(context, attr, make) }
}

/// [`create`] by a verb of the driver, which may rely on the contract of [`Driver::create_wq`].
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
unsafe fn create_with<D: Driver>(
    context: *mut ibv_context,
    attr: &mut ibv_wq_init_attr,
    make: impl FnOnce(&WqCreate<'_, D>) -> uverbs_core::Result<WqParts<D>>,
) -> Outcome<*mut ibv_wq> {
    // SAFETY: `context` is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of(context) }?;
    let create_flags = if attr.comp_mask & INIT_FLAGS != 0 { attr.create_flags } else { 0 };
    let init = WqInitAttr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        create_flags: WqFlags::from_bits(create_flags).ok_or(Errno::EOPNOTSUPP)?,
    };
    // SAFETY: `attr.cq` is NULL or a live object of this driver (contract of `Verbs`).
    let cq = unsafe { cq::parts::<D>(attr.cq) }.ok_or(Errno::EINVAL)?;
    // SAFETY: `attr.pd` is a live object of this driver (contract of `Verbs`).
    let is_shared = unsafe { pd::td(attr.pd) }.is_none();
    let number = here.new_number()?;
    let create = WqCreate::<D> {
        // SAFETY: `attr.pd` is a live object of this driver (contract of `Verbs`).
        pd: unsafe { pd::handle(attr.pd) },
        cq,
        attr: &init,
        user_handle: number,
    };
    // The parts of each pair are of one object, and all objects are of this context (contract of `Verbs`). `destroy`
    // has the kernel destroy the queue before it frees the other parts. Until then the queue exists, and its parts with
    // it, or they are leaked.
    let parts = make(&create);
    let WqParts { handle, shared, queue, attr: got } = parts.inspect_err(|_| {
        here.forget(number);
    })?;
    (attr.max_wr, attr.max_sge) = (got.max_wr, got.max_sge);
    // SAFETY: integers, pointers, pthread's types and an optional function: zeros are values of all of them.
    let mut public: ibv_wq = unsafe { mem::zeroed() };
    public.context = context;
    public.wq_context = attr.wq_context;
    (public.pd, public.cq) = (attr.pd, attr.cq);
    (public.wq_num, public.handle) = (handle.wq_num(), handle.handle());
    (public.state, public.wq_type) = (WqState::RESET.0, TYPE_RQ);
    public.post_recv = Some(post_recv::<D>);
    let queue = locked::<D, _>(queue, is_shared);
    let private = WqPrivate { queue, shared, handle: ManuallyDrop::new(handle), number };
    let wq: *mut ibv_wq = Box::into_raw(Box::new(Wq::<D> { public, private })).cast();
    events::complete(here, number, Numbered::Wq(wq));
    // SAFETY: a new object; the context is not closed during this call (contract of `Verbs`).
    Ok(unsafe { live::add(wq) })
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn modify<D: Driver>(open: &Open<D>, wq: *mut ibv_wq, attr: &WqAttr) -> Outcome<()> {
    // SAFETY: `wq` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(wq) };
    // SAFETY: the queue's own parts.
    unsafe { open.driver.modify_wq(&this.handle, &this.shared, attr) }?;
    Ok(())
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn destroy<D: Driver>(open: &Open<D>, wq: *mut ibv_wq) -> Outcome<()> {
    // SAFETY: `wq` is a live object, which begins with the pointer to its context; the context is not closed during
    // this call (contract of `Verbs`).
    let here = unsafe { context::of_known(wq) }?;
    // SAFETY: `wq` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(wq) };
    // SAFETY: the queue's own parts, of which the engine is freed after this.
    let end = |handle| unsafe { open.driver.destroy_wq(handle, &this.shared) };
    // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
    // `Verbs`).
    let reported = unsafe { destroy_handle(&this.handle, end) }?;
    live::mark_gone(wq);
    // SAFETY: the queue exists until it is freed below.
    unsafe { events::wait_for_acks([(field!(wq, ibv_wq.events_completed), reported)]) };
    here.forget(this.number);
    live::remove(here, wq);
    // SAFETY: `create` allocated it as a `Box` of this type; the program does not use it after this call (contract of
    // `Verbs`).
    drop(unsafe { Box::from_raw(wq.cast::<Wq<D>>()) });
    Ok(())
}

/// Creates the kernel object of a table of queues, all of which are of this driver.
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn create_table<D: Driver>(
    open: &Open<D>,
    wqs: &[*mut ibv_wq],
) -> Outcome<RwqIndTableHandle> {
    // SAFETY: each is a live object of this driver (contract of `Verbs`).
    let handles: Vec<&WqHandle> = wqs.iter().map(|wq| unsafe { &*private::<D>(*wq).handle }).collect();
    Ok(wq::create_rwq_ind_table(open.driver.kernel(), &handles, Uhw::none())?)
}

/// # Safety
/// As in ibv_post_wq_recv(3).
unsafe extern "C" fn post_recv<D: Driver>(
    wq: *mut ibv_wq,
    list: *mut RecvWr,
    bad_wr: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: `wq` is a live queue of this driver: the program got this function from it.
    let queue = unsafe { &private::<D>(wq).queue };
    // SAFETY: the list is NULL or well formed, and the memory of its entries stays valid until the completions
    // (contract of the man page). A queue without a lock is of a thread domain, whose queues are used by one thread.
    let Err(bad) = (unsafe { raw::post_recv(queue, list) }) else { return 0 };
    if !bad_wr.is_null() {
        // An error that is not that of a work request is reported for the first one.
        let blamed = if bad.wr.is_null() { list } else { bad.wr.cast_mut() };
        // SAFETY: `bad_wr` is not NULL, so it is valid for writes (contract of the man page).
        unsafe { bad_wr.write(blamed) };
    }
    returned(<D::RecvQueue as RecvQueue>::errno(bad.error))
}

/// # Safety
/// As in ibv_create_wq(3).
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let here = unsafe { context::of(context) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread uses it during this call (contract of the man page).
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::EINVAL)?;
        ensure(attr.wq_type == TYPE_RQ && !attr.pd.is_null() && !attr.cq.is_null())?;
        if attr.comp_mask & !INIT_FLAGS != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: `attr.pd` is a live object, which begins with the pointer to its context (contract of the man page).
        let _used = unsafe { context::is_of(context, attr.pd) }?;
        // SAFETY: `attr.cq` is a live object, which begins with the pointer to its context (contract of the man page).
        let _used = unsafe { context::is_of(context, attr.cq) }?;
        // SAFETY: the objects in the request are live and of this context, as checked above.
        unsafe { here.verbs().create_wq(context, attr) }
    })
}

/// # Safety
/// As in ibv_modify_wq(3).
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    errno_number(|| {
        // SAFETY: `wq` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(wq) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        let has = |bit| attr.attr_mask & bit != 0;
        ensure(!has(!mask::ALL))?;
        let flags = || (WqFlags::from_bits_retain(attr.flags), WqFlags::from_bits_retain(attr.flags_mask));
        let change = WqAttr {
            wq_state: has(mask::STATE).then_some(WqState(attr.wq_state)),
            curr_wq_state: has(mask::CURR_STATE).then_some(WqState(attr.curr_wq_state)),
            flags: has(mask::FLAGS).then(flags),
        };
        // SAFETY: `wq` is a live object of a context of this library, as checked above.
        unsafe { here.verbs().modify_wq(wq, &change) }?;
        if has(mask::STATE) {
            // SAFETY: `wq` exists: `of_object` found its context, and the call above succeeded.
            unsafe { (*wq).state = attr.wq_state };
        }
        Ok(())
    })
}

/// # Safety
/// As in ibv_create_wq(3).
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    errno_number(|| {
        // SAFETY: `wq` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(wq) }?;
        // SAFETY: `wq` is a live object of a context of this library, as checked above.
        unsafe { here.verbs().destroy_wq(wq) }
    })
}

/// # Safety
/// As in ibv_create_rwq_ind_table(3).
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let here = unsafe { context::of(context) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        ensure(attr.comp_mask == 0 && !attr.ind_tbl.is_null())?;
        // The kernel's limit is below 16.
        ensure(attr.log_ind_tbl_size < 16)?;
        // SAFETY: `ind_tbl` is not NULL (checked above) and has that many entries (contract of the man page).
        let wqs = unsafe { slice::from_raw_parts(attr.ind_tbl, 1 << attr.log_ind_tbl_size) };
        let mut used = Vec::with_capacity(wqs.len());
        for wq in wqs {
            ensure(!wq.is_null())?;
            // SAFETY: the context is not closed during this call (contract of the man page).
            used.push(unsafe { context::is_of(context, *wq) }?);
        }
        // SAFETY: the queues are live and of this context, as checked above.
        let handle = unsafe { here.verbs().create_table(wqs) }?;
        let public = ibv_rwq_ind_table {
            context,
            ind_tbl_handle: handle.handle().cast_signed(),
            ind_tbl_num: handle.ind_tbl_num().cast_signed(),
            comp_mask: 0,
        };
        let table = Box::into_raw(Box::new(Table { public, private: ManuallyDrop::new(handle) }));
        // SAFETY: a new object; the context is not closed during this call (contract of the man page).
        Ok(unsafe { live::add(table.cast()) })
    })
}

/// # Safety
/// As in ibv_create_rwq_ind_table(3).
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    errno_number(|| {
        // SAFETY: `table` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(table) }?;
        // SAFETY: `table` is a live object of this type (contract of the man page); no mutable reference to its private
        // part exists.
        let handle = unsafe { &(*table.cast::<Table>()).private };
        // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
        // the man page).
        unsafe { destroy_handle(handle, RwqIndTableHandle::destroy) }?;
        live::remove(&here, table);
        // SAFETY: `create_rwq_ind_table` allocated it as a `Box` of this type; the program does not use it after this
        // call (contract of the man page).
        drop(unsafe { Box::from_raw(table.cast::<Table>()) });
        Ok(())
    })
}
