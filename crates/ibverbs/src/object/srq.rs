// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues (ibv_create_srq(3), ibv_create_srq_ex(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::locking::locked;
use super::whole::{Handled, Numbered, Owned, Whole, create_of, handled};
use super::{cq, queue_memory};
use crate::abi::Zeroed as _;
use crate::abi::attr::{ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_cq, ibv_pd, ibv_srq, ibv_xrcd};
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, number as errno_number, pointer};
use crate::events;
use crate::live::{Claim, Live, Used};
use crate::verbs::Open;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::mem::MaybeUninit;
use uverbs_core::attr::{SrqAttr, SrqAttrMask, SrqInitAttr, SrqType};
use uverbs_core::provider::{Driver, Object as _, SrqCreate, SrqObject as _, SrqParts};
use uverbs_core::sync::{Dynamic, Locked};

/// Our part.
pub(crate) struct SrqPrivate<D: Driver> {
    /// First, because the data path needs nothing else.
    pub(crate) queue: Locked<D::SharedRecvQueue, Dynamic>,
    object: ManuallyDrop<D::Srq>,
    /// Its number in events.
    number: u64,
}

handled! { SrqPrivate<D>: object, D::Srq; }

impl<D: Driver> Numbered for SrqPrivate<D> {
    fn number(&self) -> u64 {
        self.number
    }
}

// SAFETY: the public part is the struct itself; only this module makes such objects.
unsafe impl<D: Driver> Owned<D> for ibv_srq {
    type Public = Self;
    type Own = SrqPrivate<D>;
}

/// Our part of a queue, for the data path.
///
/// # Safety
/// `srq` is a queue of a context of this driver, which is not freed as long as the reference is used.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) unsafe fn private<'a, D: Driver>(srq: *mut ibv_srq) -> &'a SrqPrivate<D> {
    // SAFETY: an object of this type (`Owned`), which exists (contract of this function); no mutable reference to its own part exists.
    unsafe { &(*srq.cast::<Whole<ibv_srq, SrqPrivate<D>>>()).own }
}

/// The driver's object, from which QPs are created.
pub(crate) fn of<'a, D: Driver>(open: &Open<D>, srq: &'a Live<'_, ibv_srq>) -> Outcome<&'a D::Srq> {
    Ok(&srq.own_of(open)?.object)
}

/// The objects from which a queue is created.
pub(crate) struct Parents<'a> {
    pd: Used<'a, ibv_pd>,
    /// Of an XRC queue.
    xrc: Option<(Used<'a, ibv_xrcd>, Used<'a, ibv_cq>)>,
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

/// Creates a queue with the attributes `attr`, whose `comp_mask` was checked, and writes its sizes to `attr`.
pub(crate) fn create<D: Driver>(
    open: &Open<D>,
    context: Arg<'_, ibv_context>,
    attr: &mut ibv_srq_init_attr_ex,
    parents: &Parents<'_>,
) -> Outcome<*mut ibv_srq> {
    if let Some(allocator) = parents.pd.own().allocator() {
        let open = queue_memory::mlx5(open)?;
        let make = |create: &SrqCreate<'_, _>| open.driver.create_srq_in(create, Some(&allocator));
        return create_with(open, context, attr, parents, make);
    }
    create_with(open, context, attr, parents, |create| open.driver.create_srq(create))
}

/// [`create`] by a verb of the driver.
fn create_with<D: Driver>(
    open: &Open<D>,
    context: Arg<'_, ibv_context>,
    attr: &mut ibv_srq_init_attr_ex,
    parents: &Parents<'_>,
    make: impl FnOnce(&SrqCreate<'_, D>) -> uverbs_core::Result<SrqParts<D>>,
) -> Outcome<*mut ibv_srq> {
    let here = context.open()?;
    // For a size of 0, libmlx5 and librxe create a queue of the smallest size.
    let sizes = SrqAttr::new(attr.attr.max_wr.max(1)).max_sge(attr.attr.max_sge);
    let srq_type = if parents.xrc.is_some() { SrqType::Xrc } else { SrqType::Basic };
    let init = SrqInitAttr::new(sizes).srq_type(srq_type);
    let xrc = match &parents.xrc {
        Some((xrcd, cq)) => Some((&**xrcd.own(), cq::of(open, cq)?)),
        None => None,
    };
    let pd = parents.pd.own();
    let number = here.new_number()?;
    let create = SrqCreate::<D> {
        pd: pd.handle(),
        attr: &init,
        xrc,
        td: pd.td().and_then(|td| td.downcast_ref()),
        user_handle: number,
    };
    let SrqParts { srq, queue, attr: got } = make(&create).inspect_err(|_| {
        here.forget(number);
    })?;
    attr.attr = ibv_srq_attr { max_wr: got.max_wr, max_sge: got.max_sge, srq_limit: attr.attr.srq_limit };
    let mut public = ibv_srq::zeroed();
    public.context = context.pointer();
    public.srq_context = attr.srq_context;
    public.pd = parents.pd.pointer();
    public.handle = srq.handle().handle();
    let queue = locked::<D, _>(queue, pd.td().is_none());
    let own = SrqPrivate { queue, object: ManuallyDrop::new(srq), number };
    let srq = create_of(open, here, public, own)?;
    events::complete(here, number, events::Numbered::Srq(srq));
    Ok(srq)
}

/// As in ibv_modify_srq(3).
pub(crate) fn modify<D: Driver>(
    open: &Open<D>,
    srq: &Live<'_, ibv_srq>,
    attr: &SrqAttr,
    mask: SrqAttrMask,
) -> Outcome<()> {
    let own = srq.own_of(open)?;
    // SAFETY: the queue is left below. A queue without a lock is of a thread domain, whose queues are used by one
    // thread (the contract of ibv_alloc_td(3)).
    let queue = unsafe { own.queue.enter() }.map_err(|_| Errno::EBUSY)?;
    let modified = own.object.modify(queue, attr, mask);
    // SAFETY: entered above; `queue` is not used any more.
    unsafe { own.queue.leave() };
    Ok(modified?)
}

/// As in ibv_query_srq(3).
pub(crate) fn query<D: Driver>(open: &Open<D>, srq: &Live<'_, ibv_srq>) -> Outcome<SrqAttr> {
    Ok(of(open, srq)?.handle().query()?)
}

/// As in ibv_get_srq_num(3).
pub(crate) fn number<D: Driver>(open: &Open<D>, srq: &Live<'_, ibv_srq>) -> Outcome<u32> {
    of(open, srq)?.number().ok_or(Errno::EINVAL)
}

/// As in ibv_destroy_srq(3).
pub(crate) fn destroy<D: Driver>(open: &Open<D>, srq: Claim<'_, ibv_srq>) -> Outcome<()> {
    srq.destroy_with_events(open)
}

/// # Safety
/// As in ibv_create_srq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: Arg<'_, ibv_pd>,
    attr: Option<&mut ibv_srq_init_attr>,
) -> *mut ibv_srq {
    pointer(|| {
        let pd = pd.enter()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        let mut ex = ibv_srq_init_attr_ex::zeroed();
        (ex.srq_context, ex.attr) = (attr.srq_context, attr.attr);
        let (context, here) = (pd.context_arg(), pd.here());
        let srq = here.verbs().create_srq(context, &mut ex, &Parents { pd, xrc: None })?;
        attr.attr = ex.attr;
        Ok(srq)
    })
}

/// # Safety
/// As in ibv_create_srq_ex(3).
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: Arg<'_, ibv_context>,
    attr: Option<&mut ibv_srq_init_attr_ex>,
) -> *mut ibv_srq {
    pointer(|| {
        let here = context.open()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        let has = |bit| attr.comp_mask & bit != 0;
        if has(!mask::ALL) || has(mask::TM) {
            return Err(Errno::EOPNOTSUPP);
        }
        let kind = if has(mask::TYPE) { attr.srq_type } else { SrqType::Basic as u32 };
        ensure(has(mask::PD))?;
        // SAFETY: `attr.pd` is NULL or a live object, which begins with the pointer to its context (contract of the man
        // page).
        let pd = unsafe { Arg::new(attr.pd) }.enter_in(context.pointer())?.ok_or(Errno::EINVAL)?;
        let mut xrc = None;
        if kind == SrqType::Xrc as u32 {
            ensure(has(mask::XRCD) && has(mask::CQ) && !attr.xrcd.is_null() && !attr.cq.is_null())?;
            // SAFETY: as for the domain.
            let xrcd = unsafe { Arg::new(attr.xrcd) }.enter_in(context.pointer())?;
            // SAFETY: as for the domain.
            let cq = unsafe { Arg::new(attr.cq) }.enter_in(context.pointer())?;
            xrc = xrcd.zip(cq);
        } else if kind != SrqType::Basic as u32 {
            return Err(if kind == TAG_MATCHING { Errno::EOPNOTSUPP } else { Errno::EINVAL });
        }
        attr.srq_type = kind;
        here.verbs().create_srq(context, attr, &Parents { pd, xrc })
    })
}

/// # Safety
/// As in ibv_modify_srq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: Arg<'_, ibv_srq>,
    attr: Option<&ibv_srq_attr>,
    mask: c_int,
) -> c_int {
    errno_number(|| {
        let srq = srq.enter()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        let attr = SrqAttr::new(attr.max_wr).max_sge(attr.max_sge).srq_limit(attr.srq_limit);
        srq.verbs().modify_srq(&srq, &attr, SrqAttrMask::from_bits_retain(mask.cast_unsigned()))
    })
}

/// # Safety
/// As in ibv_query_srq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(
    srq: Arg<'_, ibv_srq>,
    attr: Option<&mut MaybeUninit<ibv_srq_attr>>,
) -> c_int {
    errno_number(|| {
        let srq = srq.enter()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        let SrqAttr { max_wr, max_sge, srq_limit, .. } = srq.verbs().query_srq(&srq)?;
        attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit });
        Ok(())
    })
}

/// # Safety
/// As in ibv_get_srq_num(3).
pub(crate) unsafe extern "C" fn get_srq_num(
    srq: Arg<'_, ibv_srq>,
    number: Option<&mut MaybeUninit<u32>>,
) -> c_int {
    errno_number(|| {
        let srq = srq.enter()?;
        let number = number.ok_or(Errno::EINVAL)?;
        let found = srq.verbs().srq_num(&srq)?;
        number.write(found);
        Ok(())
    })
}

/// # Safety
/// As in ibv_destroy_srq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: Arg<'_, ibv_srq>) -> c_int {
    errno_number(|| {
        let srq = srq.claim()?;
        srq.here().verbs().destroy_srq(srq)
    })
}
