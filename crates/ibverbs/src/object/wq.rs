// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work queues, and the indirection tables that distribute packets over them (ibv_create_wq(3), ibv_post_wq_recv(3),
//! ibv_create_rwq_ind_table(3)).
//!
//! A QP over a table is in [`qp`](super::qp).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and lists.

use super::locking::locked;
use super::whole::{Handled, Numbered, Owned, Whole, create as create_whole, create_of, handled};
use super::{cq, queue_memory};
use crate::abi::Zeroed as _;
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_cq, ibv_pd};
use crate::abi::wq::{ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr, ibv_wq_init_attr};
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, number as errno_number, pointer, returned};
use crate::events;
use crate::live::{Claim, Live, Used};
use crate::verbs::Open;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::slice;
use uverbs_core::attr::{WqAttr, WqFlags, WqInitAttr, WqState};
use uverbs_core::control::{RwqIndTableHandle, WqHandle, wq};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::{Driver, Object as _, RecvQueue, WqCreate, WqObject as _, WqParts, raw};
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_core::wr::RecvWr;

/// Our part of a queue.
pub(crate) struct WqPrivate<D: Driver> {
    queue: Locked<D::RecvQueue, Dynamic>,
    object: ManuallyDrop<D::Wq>,
    /// Its number in events.
    number: u64,
}

handled! { WqPrivate<D>: object, D::Wq; }

impl<D: Driver> Numbered for WqPrivate<D> {
    fn number(&self) -> u64 {
        self.number
    }
}

/// The driver's object.
pub(crate) fn of<'a, D: Driver>(open: &Open<D>, wq: &'a Live<'_, ibv_wq>) -> Outcome<&'a D::Wq> {
    Ok(&wq.own_of(open)?.object)
}

// SAFETY: the public part is the struct itself; only this module makes such objects.
unsafe impl<D: Driver> Owned<D> for ibv_wq {
    type Public = Self;
    type Own = WqPrivate<D>;
}

// SAFETY: as for a queue.
unsafe impl Owned<()> for ibv_rwq_ind_table {
    type Public = Self;
    type Own = ManuallyDrop<RwqIndTableHandle>;
}

/// The objects from which a queue is created.
pub(crate) struct Parents<'a> {
    pd: Used<'a, ibv_pd>,
    cq: Used<'a, ibv_cq>,
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

/// Creates a queue with the attributes `attr`, whose `comp_mask` was checked, and writes its sizes to `attr`.
pub(crate) fn create<D: Driver>(
    open: &Open<D>,
    context: Arg<'_, ibv_context>,
    attr: &mut ibv_wq_init_attr,
    parents: &Parents<'_>,
) -> Outcome<*mut ibv_wq> {
    if let Some(allocator) = parents.pd.own().allocator() {
        let open = queue_memory::mlx5(open)?;
        let make = |create: &WqCreate<'_, _>| open.driver.create_wq_in(create, Some(&allocator));
        return create_with(open, context, attr, parents, make);
    }
    create_with(open, context, attr, parents, |create| open.driver.create_wq(create))
}

/// [`create`] by a verb of the driver.
fn create_with<D: Driver>(
    open: &Open<D>,
    context: Arg<'_, ibv_context>,
    attr: &mut ibv_wq_init_attr,
    parents: &Parents<'_>,
    make: impl FnOnce(&WqCreate<'_, D>) -> uverbs_core::Result<WqParts<D>>,
) -> Outcome<*mut ibv_wq> {
    let here = context.open()?;
    let create_flags = if attr.comp_mask & INIT_FLAGS != 0 { attr.create_flags } else { 0 };
    let init = WqInitAttr::new(attr.max_wr)
        .max_sge(attr.max_sge)
        .create_flags(WqFlags::from_bits(create_flags).ok_or(Errno::EOPNOTSUPP)?);
    let cq = cq::of(open, &parents.cq)?;
    let pd = parents.pd.own();
    let number = here.new_number()?;
    let create = WqCreate::<D> { pd: pd.handle(), cq, attr: &init, user_handle: number };
    let WqParts { wq: object, queue, attr: got } = make(&create).inspect_err(|_| {
        here.forget(number);
    })?;
    (attr.max_wr, attr.max_sge) = (got.max_wr, got.max_sge);
    let mut public = ibv_wq::zeroed();
    public.context = context.pointer();
    public.wq_context = attr.wq_context;
    (public.pd, public.cq) = (attr.pd, attr.cq);
    (public.wq_num, public.handle) = (object.handle().wq_num(), object.handle().handle());
    (public.state, public.wq_type) = (WqState::RESET.0, TYPE_RQ);
    public.post_recv = Some(post_recv::<D>);
    let queue = locked::<D, _>(queue, pd.td().is_none());
    let own = WqPrivate { queue, object: ManuallyDrop::new(object), number };
    let wq = create_of(open, here, public, own)?;
    events::complete(here, number, events::Numbered::Wq(wq));
    Ok(wq)
}

/// As in ibv_modify_wq(3).
pub(crate) fn modify<D: Driver>(open: &Open<D>, wq: &Live<'_, ibv_wq>, attr: &WqAttr) -> Outcome<()> {
    Ok(of(open, wq)?.modify(attr)?)
}

/// As in ibv_destroy_wq(3).
pub(crate) fn destroy<D: Driver>(open: &Open<D>, wq: Claim<'_, ibv_wq>) -> Outcome<()> {
    wq.destroy_with_events(open)
}

/// Creates the kernel object of a table of queues, all of which are of this driver.
pub(crate) fn create_table<D: Driver>(
    open: &Open<D>,
    wqs: &[Used<'_, ibv_wq>],
) -> Outcome<RwqIndTableHandle> {
    let handles = wqs.iter().map(|wq| Ok(of(open, wq)?.handle())).collect::<Outcome<Vec<&WqHandle>>>()?;
    Ok(wq::create_rwq_ind_table(open.driver.kernel(), &handles, Uhw::none())?)
}

/// # Safety
/// As in ibv_post_wq_recv(3).
unsafe extern "C" fn post_recv<D: Driver>(
    wq: *mut ibv_wq,
    list: *mut RecvWr,
    bad_wr: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: `wq` is a queue of a context of this driver, which has this function, and it is not destroyed during this call (both by the
    // contract of the man page). It is an object of this type (`Owned`); no mutable reference to its own part exists.
    let queue = unsafe { &(*wq.cast::<Whole<ibv_wq, WqPrivate<D>>>()).own.queue };
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
    context: Arg<'_, ibv_context>,
    attr: Option<&mut ibv_wq_init_attr>,
) -> *mut ibv_wq {
    pointer(|| {
        let here = context.open()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        ensure(attr.wq_type == TYPE_RQ)?;
        if attr.comp_mask & !INIT_FLAGS != 0 {
            ensure(!attr.pd.is_null() && !attr.cq.is_null())?;
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: `attr.pd` is NULL or a live object, which begins with the pointer to its context (contract of the man page).
        let pd = unsafe { Arg::new(attr.pd) }.enter_in(context.pointer())?.ok_or(Errno::EINVAL)?;
        // SAFETY: as for the domain.
        let cq = unsafe { Arg::new(attr.cq) }.enter_in(context.pointer())?.ok_or(Errno::EINVAL)?;
        here.verbs().create_wq(context, attr, &Parents { pd, cq })
    })
}

/// # Safety
/// As in ibv_modify_wq(3).
pub(crate) unsafe extern "C" fn modify_wq(wq: Arg<'_, ibv_wq>, attr: Option<&ibv_wq_attr>) -> c_int {
    errno_number(|| {
        let wq = wq.enter()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        let has = |bit| attr.attr_mask & bit != 0;
        ensure(!has(!mask::ALL))?;
        let flags = || (WqFlags::from_bits_retain(attr.flags), WqFlags::from_bits_retain(attr.flags_mask));
        let mut change = WqAttr::new();
        change.wq_state = has(mask::STATE).then_some(WqState(attr.wq_state));
        change.curr_wq_state = has(mask::CURR_STATE).then_some(WqState(attr.curr_wq_state));
        change.flags = has(mask::FLAGS).then(flags);
        wq.verbs().modify_wq(&wq, &change)?;
        if has(mask::STATE) {
            // SAFETY: the queue exists as long as `wq`.
            unsafe { (*wq.pointer()).state = attr.wq_state };
        }
        Ok(())
    })
}

/// # Safety
/// As in ibv_create_wq(3).
pub(crate) unsafe extern "C" fn destroy_wq(wq: Arg<'_, ibv_wq>) -> c_int {
    errno_number(|| {
        let wq = wq.claim()?;
        wq.here().verbs().destroy_wq(wq)
    })
}

/// # Safety
/// As in ibv_create_rwq_ind_table(3).
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_rwq_ind_table_init_attr>,
) -> *mut ibv_rwq_ind_table {
    pointer(|| {
        let here = context.open()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        ensure(attr.comp_mask == 0 && !attr.ind_tbl.is_null())?;
        // The kernel's limit is below 16.
        ensure(attr.log_ind_tbl_size < 16)?;
        // SAFETY: `ind_tbl` is not NULL (checked above) and has that many entries (contract of the man page).
        let wqs = unsafe { slice::from_raw_parts(attr.ind_tbl, 1 << attr.log_ind_tbl_size) };
        let mut used = Vec::with_capacity(wqs.len());
        for wq in wqs {
            // SAFETY: the context is not closed during this call (contract of the man page).
            used.push(unsafe { Arg::new(*wq) }.enter_in(context.pointer())?.ok_or(Errno::EINVAL)?);
        }
        let handle = here.verbs().create_table(&used)?;
        let public = ibv_rwq_ind_table {
            context: context.pointer(),
            ind_tbl_handle: handle.handle().cast_signed(),
            ind_tbl_num: handle.ind_tbl_num().cast_signed(),
            comp_mask: 0,
        };
        Ok(create_whole(here, public, ManuallyDrop::new(handle)))
    })
}

/// # Safety
/// As in ibv_create_rwq_ind_table(3).
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: Arg<'_, ibv_rwq_ind_table>) -> c_int {
    errno_number(|| table.claim()?.destroy(RwqIndTableHandle::destroy))
}
