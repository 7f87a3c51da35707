// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues (ibv_create_cq(3), ibv_create_cq_ex(3), ibv_resize_cq(3), ibv_modify_cq(3)).
//!
//! Polling is in [`data`](crate::data).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::channel::{self, ChannelUser};
use super::locking::locked;
use super::qp::Extension;
use super::queue_memory;
use super::whole::{Handled, Numbered, Owned, Whole, create_of, handled};
use crate::abi::Zeroed as _;
use crate::abi::attr::{ibv_cq_init_attr_ex, ibv_modify_cq_attr};
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_pd};
use crate::arg::Arg;
use crate::data::cq_ex;
use crate::errno::{Errno, Outcome, ensure, number, pointer};
use crate::events;
use crate::live::{Claim, Live, Used};
use crate::verbs::Open;
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use core::ptr;
use std::sync::Arc;
use uverbs_core::attr::{CqFlags, CqInitAttr, CqModeration, WcExFlags};
use uverbs_core::control::CompChannelHandle;
use uverbs_core::provider::{CqObject as _, CqParts, Driver, Notify, Object as _};
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_mlx5::QueueAllocator;
use uverbs_mlx5::dv::CqOptions;

/// Our part.
pub(crate) struct CqPrivate<D: Driver> {
    /// First, because the data path needs nothing else.
    pub(crate) queue: Locked<D::CompletionQueue, Dynamic>,
    object: ManuallyDrop<D::Cq>,
    /// For an event that was read before the queue was destroyed: it is not freed before the event is acknowledged.
    notify: Arc<dyn Notify>,
    /// The number of the object in events.
    number: u64,
    _channel: Option<ChannelUser>,
    pub(crate) extension: Extension,
}

impl<D: Driver> CqPrivate<D> {
    pub(crate) fn notify(&self) -> &dyn Notify {
        &*self.notify
    }
}

/// The parameters of a new queue.
pub(crate) struct CqRequest<'a> {
    attr: CqInitAttr,
    channel: Option<Used<'a, ibv_comp_channel>>,
    cq_context: *mut c_void,
    single_threaded: bool,
    extended: bool,
    /// A parent domain's allocator of the queue's memory.
    pub(crate) allocator: Option<Arc<dyn QueueAllocator>>,
    /// That parent domain.
    _domain: Option<Used<'a, ibv_pd>>,
}

handled! { CqPrivate<D>: object, D::Cq; }

impl<D: Driver> Numbered for CqPrivate<D> {
    fn number(&self) -> u64 {
        self.number
    }
}

// SAFETY: `ibv_cq_ex` begins with the fields; only this module makes such objects.
unsafe impl<D: Driver> Owned<D> for ibv_cq {
    /// Of the extended size.
    type Public = ibv_cq_ex;
    type Own = CqPrivate<D>;
}

/// Our part of a queue, for the data path.
///
/// # Safety
/// `cq` is a queue of a context of this driver, which is not freed as long as the reference is used.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) unsafe fn private<'a, D: Driver>(cq: *mut ibv_cq) -> &'a CqPrivate<D> {
    // SAFETY: an object of this type (`Owned`), which exists (contract of this function); no mutable reference to its own part exists.
    unsafe { &(*cq.cast::<Whole<ibv_cq_ex, CqPrivate<D>>>()).own }
}

/// The driver's object, from which QPs, SRQs and work queues are created.
pub(crate) fn of<'a, D: Driver>(open: &Open<D>, cq: &'a Live<'_, ibv_cq>) -> Outcome<&'a D::Cq> {
    Ok(&cq.own_of(open)?.object)
}

/// As in ibv_create_cq_ex(3).
pub(crate) fn create<D: Driver>(
    open: &Open<D>,
    context: Arg<'_, ibv_context>,
    request: &CqRequest<'_>,
) -> Outcome<*mut ibv_cq> {
    if request.allocator.is_some() {
        let open = queue_memory::mlx5(open)?;
        let options = CqOptions { allocator: request.allocator.as_ref(), ..CqOptions::default() };
        let make = |attr: &CqInitAttr, channel: Option<&CompChannelHandle>, number: u64| {
            open.driver.create_cq_with(attr, options, channel, number)
        };
        return create_with(open, context, request, make);
    }
    create_with(open, context, request, |attr, channel, number| open.driver.create_cq(attr, channel, number))
}

/// [`create`] with another verb of the driver.
pub(crate) fn create_with<D: Driver>(
    open: &Open<D>,
    context: Arg<'_, ibv_context>,
    request: &CqRequest<'_>,
    make: impl FnOnce(&CqInitAttr, Option<&CompChannelHandle>, u64) -> uverbs_core::Result<CqParts<D>>,
) -> Outcome<*mut ibv_cq> {
    ensure(request.attr.comp_vector < open.num_comp_vectors.max(1))?;
    let here = context.open()?;
    let channel = request.channel.as_deref();
    let handle = channel.map(channel::checked).transpose()?;
    let number = here.new_number()?;
    let parts = make(&request.attr, handle, number);
    let CqParts { cq, queue, cqe } = parts.inspect_err(|_| {
        here.forget(number);
    })?;
    let mut public = ibv_cq_ex::zeroed();
    public.context = context.pointer();
    public.channel = channel.map_or(ptr::null_mut(), Live::pointer);
    public.cq_context = request.cq_context;
    public.handle = cq.handle().handle();
    public.cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX);
    if request.extended {
        cq_ex::set_functions::<D>(&mut public, request.attr.wc_flags);
    }
    let queue = locked::<D, _>(queue, !request.single_threaded);
    let channel = channel.map(ChannelUser::new);
    let (notify, object) = (cq.notify(), ManuallyDrop::new(cq));
    let extension = Extension::default();
    let own = CqPrivate { queue, object, notify, number, _channel: channel, extension };
    let cq = create_of(open, here, public, own)?;
    events::complete(here, number, events::Numbered::Cq(cq));
    Ok(cq)
}

/// As in ibv_resize_cq(3).
pub(crate) fn resize<D: Driver>(open: &Open<D>, cq: &Live<'_, ibv_cq>, cqe: u32) -> Outcome<()> {
    let own = cq.own_of(open)?;
    // SAFETY: the queue is left below. A queue without a lock is used by one thread (the man page's contract of
    // `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    let queue = unsafe { own.queue.enter() }.map_err(|_| Errno::EBUSY)?;
    let resized = own.object.resize(queue, cqe);
    // SAFETY: entered above; `queue` is not used any more.
    unsafe { own.queue.leave() };
    let cqe = resized?;
    // SAFETY: the queue exists as long as `cq`.
    unsafe { (*cq.pointer()).cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX) };
    Ok(())
}

/// As in ibv_modify_cq(3).
pub(crate) fn moderate<D: Driver>(
    open: &Open<D>,
    cq: &Live<'_, ibv_cq>,
    count: u16,
    period: u16,
) -> Outcome<()> {
    Ok(cq.own_of(open)?.object.moderate(CqModeration::new(count, period))?)
}

/// As in ibv_destroy_cq(3).
pub(crate) fn destroy<D: Driver>(open: &Open<D>, cq: Claim<'_, ibv_cq>) -> Outcome<()> {
    cq.destroy_with_events(open)
}

/// # Safety
/// As in ibv_create_cq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: Arg<'_, ibv_context>,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Arg<'_, ibv_comp_channel>,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let unsigned = |n| u32::try_from(n).map_err(|_| Errno::EINVAL);
        let attr = CqInitAttr::new(unsigned(cqe)?).comp_vector(unsigned(comp_vector)?);
        let here = context.open()?;
        let request = CqRequest {
            attr,
            channel: channel.enter_in(context.pointer())?,
            cq_context,
            single_threaded: false,
            extended: false,
            allocator: None,
            _domain: None,
        };
        here.verbs().create_cq(context, &request)
    })
}

/// `IBV_CQ_INIT_ATTR_MASK_*`
mod mask {
    pub(super) const FLAGS: u32 = 1 << 0;
    pub(super) const PD: u32 = 1 << 1;
}

/// # Safety
/// As in ibv_create_cq_ex(3).
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_cq_init_attr_ex>,
) -> *mut ibv_cq_ex {
    pointer(|| {
        let attr = attr.ok_or(Errno::EINVAL)?;
        // SAFETY: the objects in `attr` are NULL or exist (contract of the man page).
        let request = unsafe { extended_request(context, attr) }?;
        Ok(context.open()?.verbs().create_cq(context, &request)?.cast())
    })
}

/// Converts C's attributes to a request.
///
/// # Safety
/// As in ibv_create_cq_ex(3).
pub(crate) unsafe fn extended_request<'a>(
    context: Arg<'a, ibv_context>,
    attr: &ibv_cq_init_attr_ex,
) -> Outcome<CqRequest<'a>> {
    ensure(attr.comp_mask & !(mask::FLAGS | mask::PD) == 0)?;
    let flags = if attr.comp_mask & mask::FLAGS != 0 { attr.flags } else { 0 };
    let flags = CqFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
    let (mut allocator, mut domain) = (None, None);
    if attr.comp_mask & mask::PD != 0 {
        // Its thread domain has no effect: a flag means that one thread at a time uses the queue.
        // SAFETY: the context is not closed during this call (contract of the man page).
        domain = unsafe { Arg::new(attr.parent_domain) }.enter_in(context.pointer())?;
        allocator = domain.as_ref().and_then(|domain| domain.own().allocator());
    }
    let wc_flags = WcExFlags::from_bits_retain(attr.wc_flags);
    if !cq_ex::OFFERED.contains(wc_flags) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(CqRequest {
        attr: CqInitAttr::new(attr.cqe).comp_vector(attr.comp_vector).wc_flags(wc_flags).flags(flags),
        // SAFETY: the context is not closed during this call (contract of the man page).
        channel: unsafe { Arg::new(attr.channel) }.enter_in(context.pointer())?,
        cq_context: attr.cq_context,
        single_threaded: flags.contains(CqFlags::SINGLE_THREADED),
        extended: true,
        allocator,
        _domain: domain,
    })
}

/// # Safety
/// As in ibv_resize_cq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: Arg<'_, ibv_cq>, cqe: c_int) -> c_int {
    number(|| {
        let cq = cq.enter()?;
        let cqe = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        cq.verbs().resize_cq(&cq, cqe)
    })
}

/// `IBV_CQ_ATTR_MODERATE`
const MODERATE: u32 = 1;

/// # Safety
/// As in ibv_modify_cq(3).
pub(crate) unsafe extern "C" fn modify_cq(cq: Arg<'_, ibv_cq>, attr: Option<&ibv_modify_cq_attr>) -> c_int {
    number(|| {
        let cq = cq.enter()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        if attr.attr_mask & !MODERATE != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        cq.verbs().moderate_cq(&cq, attr.moderate.cq_count, attr.moderate.cq_period)
    })
}

/// # Safety
/// As in ibv_destroy_cq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: Arg<'_, ibv_cq>) -> c_int {
    number(|| {
        let cq = cq.claim()?;
        cq.here().verbs().destroy_cq(cq)
    })
}
