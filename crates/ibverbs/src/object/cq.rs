// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues (ibv_create_cq(3), ibv_create_cq_ex(3), ibv_resize_cq(3), ibv_modify_cq(3)).
//!
//! Polling is in [`data`](crate::data).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::locking::locked;
use super::{channel, destroy_handle, pd, queue_memory};
use crate::abi::attr::{ibv_cq_init_attr_ex, ibv_modify_cq_attr};
use crate::abi::context::ibv_context;
use crate::abi::field;
use crate::abi::object::{ibv_comp_channel, ibv_cq, ibv_cq_ex};
use crate::context;
use crate::data::cq_ex;
use crate::errno::{Errno, Outcome, ensure, number, pointer};
use crate::events::{self, Numbered};
use crate::live::{self, Used};
use crate::verbs::Open;
use core::ffi::{c_int, c_void};
use core::mem::{self, ManuallyDrop};
use std::sync::Arc;
use uverbs_core::attr::{CqFlags, CqInitAttr, CqModeration, WcExFlags};
use uverbs_core::control::{CompChannelHandle, CqEvents, CqHandle};
use uverbs_core::provider::{CqParts, Driver};
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_mlx5::QueueAllocator;
use uverbs_mlx5::dv::CqOptions;

/// A queue: C's part, of the extended size, and ours.
#[repr(C)]
struct Cq<D: Driver> {
    public: ibv_cq_ex,
    private: CqPrivate<D>,
}

/// Our part.
pub(crate) struct CqPrivate<D: Driver> {
    /// First, because the data path needs nothing else.
    pub(crate) queue: Locked<D::CompletionQueue, Dynamic>,
    shared: Arc<D::CqShared>,
    handle: ManuallyDrop<CqHandle>,
    /// The number of the object in events.
    number: u64,
}

impl<D: Driver> CqPrivate<D> {
    pub(crate) fn shared(&self) -> &Arc<D::CqShared> {
        &self.shared
    }
}

/// The parameters of a new queue.
pub(crate) struct CqRequest<'a> {
    attr: CqInitAttr,
    channel: *mut ibv_comp_channel,
    cq_context: *mut c_void,
    single_threaded: bool,
    extended: bool,
    /// A parent domain's allocator of the queue's memory.
    pub(crate) allocator: Option<Arc<dyn QueueAllocator>>,
    /// That parent domain.
    _domain: Option<Used<'a>>,
}

/// Our part of a queue.
///
/// # Safety
/// `cq` is a live queue of this driver.
#[inline(always)]
pub(crate) unsafe fn private<'a, D: Driver>(cq: *mut ibv_cq) -> &'a CqPrivate<D> {
    // SAFETY: `cq` is a live object of this type (contract of this function); no mutable reference to its private part
    // exists.
    unsafe { &(*cq.cast::<Cq<D>>()).private }
}

/// The parts of a CQ from which QPs and SRQs are created.
///
/// # Safety
/// `cq` is NULL, or a live queue of this driver.
pub(crate) unsafe fn parts<'a, D: Driver>(cq: *mut ibv_cq) -> Option<(&'a CqHandle, &'a Arc<D::CqShared>)> {
    if cq.is_null() {
        return None;
    }
    // SAFETY: `cq` is a live object of this driver (contract of this function).
    let this = unsafe { private::<D>(cq) };
    Some((&*this.handle, &this.shared))
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn create<D: Driver>(
    open: &Open<D>,
    context: *mut ibv_context,
    request: &CqRequest<'_>,
) -> Outcome<*mut ibv_cq> {
    if request.allocator.is_some() {
        let open = queue_memory::mlx5(open)?;
        let options = CqOptions { cqe_size: None, allocator: request.allocator.as_ref() };
        let make = |attr: &CqInitAttr, channel: Option<&CompChannelHandle>, number: u64| {
            // SAFETY: `create_with`, which calls this, fulfils the contract of the driver's verb.
            unsafe { open.driver.create_cq_with(attr, options, channel, number) }
        };
        // SAFETY: the contract of this function.
        return unsafe { create_with(open, context, request, make) };
    }
    let make = |attr: &CqInitAttr, channel: Option<&CompChannelHandle>, number: u64| {
        // SAFETY: `create_with`, which calls this, fulfils the contract of the driver's verb.
        unsafe { open.driver.create_cq(attr, channel, number) }
    };
    // SAFETY: the contract of this function.
    unsafe { create_with(open, context, request, make) }
}

/// [`create`] with another verb of the driver. The verb may rely on the contract of [`Driver::create_cq`].
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn create_with<D: Driver>(
    open: &Open<D>,
    context: *mut ibv_context,
    request: &CqRequest<'_>,
    make: impl FnOnce(&CqInitAttr, Option<&CompChannelHandle>, u64) -> uverbs_core::Result<CqParts<D>>,
) -> Outcome<*mut ibv_cq> {
    ensure(request.attr.comp_vector < open.num_comp_vectors.max(1))?;
    // SAFETY: `context` is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of(context) }?;
    // SAFETY: `context` is not closed during this call (contract of `Verbs`).
    let _channel = unsafe { context::is_of(context, request.channel) }?;
    // SAFETY: `request.channel` is NULL or a live object of this driver, as checked above.
    unsafe { channel::check_file(request.channel) }?;
    // SAFETY: `request.channel` is NULL or a live object of this driver (contract of `Verbs`).
    let channel = unsafe { channel::handle(request.channel) };
    // SAFETY: the channel is NULL or exists (contract of `Verbs`).
    unsafe { channel::count_user(request.channel, true) };
    let number = here.new_number().inspect_err(|_| {
        // SAFETY: the channel is NULL or exists (contract of `Verbs`).
        unsafe { channel::count_user(request.channel, false) };
    })?;
    // The channel is of this context (`check`). `destroy` has the kernel destroy the queue before it frees the other
    // parts, and they exist as long as the program has the queue, or are leaked.
    let parts = make(&request.attr, channel, number);
    let CqParts { handle, shared, queue, cqe } = parts.inspect_err(|_| {
        here.forget(number);
        // SAFETY: the channel is NULL or exists (contract of `Verbs`).
        unsafe { channel::count_user(request.channel, false) };
    })?;
    // SAFETY: integers, pointers and optional functions: zeros are values of all of them.
    let mut public: ibv_cq_ex = unsafe { mem::zeroed() };
    public.context = context;
    public.channel = request.channel;
    public.cq_context = request.cq_context;
    public.handle = handle.handle();
    public.cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX);
    if request.extended {
        cq_ex::set_functions::<D>(&mut public, request.attr.wc_flags);
    }
    let queue = locked::<D, _>(queue, !request.single_threaded);
    let private = CqPrivate { queue, shared, handle: ManuallyDrop::new(handle), number };
    let cq: *mut ibv_cq = Box::into_raw(Box::new(Cq::<D> { public, private })).cast();
    events::complete(here, number, Numbered::Cq(cq));
    // SAFETY: a new object; the context is not closed during this call (contract of `Verbs`).
    Ok(unsafe { live::add(cq) })
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn resize<D: Driver>(open: &Open<D>, cq: *mut ibv_cq, cqe: u32) -> Outcome<()> {
    // SAFETY: `cq` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(cq) };
    // SAFETY: the queue is left below. A queue without a lock is used by one thread (the man page's contract of
    // `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    let queue = unsafe { this.queue.enter() }.map_err(|_| Errno::EBUSY)?;
    // SAFETY: the queue's own handle and engine.
    let resized = unsafe { open.driver.resize_cq(&this.handle, queue, cqe) };
    // SAFETY: entered above; `queue` is not used any more.
    unsafe { this.queue.leave() };
    let cqe = resized?;
    // SAFETY: `cq` points to the public part of an existing queue (contract of `Verbs`).
    unsafe { (*cq).cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX) };
    Ok(())
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn moderate<D: Driver>(
    _: &Open<D>,
    cq: *mut ibv_cq,
    count: u16,
    period: u16,
) -> Outcome<()> {
    // SAFETY: `cq` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(cq) };
    Ok(this.handle.moderate(CqModeration { cq_count: count, cq_period: period })?)
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn event<D: Driver>(open: &Open<D>, cq: *mut ibv_cq) {
    // SAFETY: `cq` is a live object of this driver (contract of `Verbs`).
    open.driver.cq_event(unsafe { &private::<D>(cq).shared });
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn destroy<D: Driver>(_: &Open<D>, cq: *mut ibv_cq) -> Outcome<()> {
    // SAFETY: the caller has claimed the object; the context is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of_known(cq) }?;
    // SAFETY: `cq` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(cq) };
    // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
    // `Verbs`).
    let CqEvents { comp_events_reported, async_events_reported } =
        unsafe { destroy_handle(&this.handle, CqHandle::destroy) }?;
    live::mark_gone(cq);
    // SAFETY: the queue exists until it is freed below.
    unsafe {
        events::wait_for_acks([
            (field!(cq, ibv_cq.comp_events_completed), comp_events_reported),
            (field!(cq, ibv_cq.async_events_completed), async_events_reported),
        ]);
    }
    here.forget(this.number);
    live::remove(here, cq);
    // SAFETY: `cq` points to the public part of the queue, which is freed below.
    let channel = unsafe { (*cq).channel };
    // SAFETY: a channel outlives its queues.
    unsafe { channel::count_user(channel, false) };
    // SAFETY: `create` allocated it as a `Box` of this type; the program does not use it after this call (contract of
    // `Verbs`).
    drop(unsafe { Box::from_raw(cq.cast::<Cq<D>>()) });
    Ok(())
}

/// # Safety
/// As in ibv_create_cq(3) and ibv_create_cq_ex(3).
unsafe fn create_any(context: *mut ibv_context, request: CqRequest<'_>) -> Outcome<*mut ibv_cq> {
    // SAFETY: `context` is not closed during this call (contract of the man page).
    let here = unsafe { context::of(context) }?;
    // SAFETY: the objects in the request are live and of this context, as checked above.
    unsafe { here.verbs().create_cq(context, &request) }
}

/// # Safety
/// As in ibv_create_cq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let unsigned = |n| u32::try_from(n).map_err(|_| Errno::EINVAL);
        let attr =
            CqInitAttr { cqe: unsigned(cqe)?, comp_vector: unsigned(comp_vector)?, ..CqInitAttr::default() };
        let request = CqRequest {
            attr,
            channel,
            cq_context,
            single_threaded: false,
            extended: false,
            allocator: None,
            _domain: None,
        };
        // SAFETY: `context` is not closed during this call, and `channel` is NULL or exists (contract of the man page).
        unsafe { create_any(context, request) }
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
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: the objects in `attr` are NULL or exist (contract of the man page).
        let request = unsafe { extended_request(context, attr) }?;
        // SAFETY: `context` is not closed during this call, and the channel is NULL or exists (contract of the man
        // page).
        Ok(unsafe { create_any(context, request) }?.cast())
    })
}

/// Converts C's attributes to a request.
///
/// # Safety
/// As in ibv_create_cq_ex(3).
pub(crate) unsafe fn extended_request<'a>(
    context: *mut ibv_context,
    attr: &ibv_cq_init_attr_ex,
) -> Outcome<CqRequest<'a>> {
    ensure(attr.comp_mask & !(mask::FLAGS | mask::PD) == 0)?;
    let flags = if attr.comp_mask & mask::FLAGS != 0 { attr.flags } else { 0 };
    let flags = CqFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
    let (mut allocator, mut domain) = (None, None);
    if attr.comp_mask & mask::PD != 0 {
        // Its thread domain has no effect: a flag means that one thread at a time uses the queue.
        // SAFETY: the context is not closed during this call (contract of the man page).
        domain = unsafe { context::is_of(context, attr.parent_domain) }?;
        // SAFETY: `attr.parent_domain` is NULL or a live object of this context, as checked above.
        allocator = unsafe { pd::allocator(attr.parent_domain) };
    }
    let wc_flags = WcExFlags::from_bits_retain(attr.wc_flags);
    if !cq_ex::OFFERED.contains(wc_flags) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(CqRequest {
        attr: CqInitAttr { cqe: attr.cqe, comp_vector: attr.comp_vector, wc_flags, flags },
        channel: attr.channel,
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
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    number(|| {
        // SAFETY: `cq` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(cq) }?;
        let cqe = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        // SAFETY: `cq` is a live object of a context of this library, as checked above.
        unsafe { here.verbs().resize_cq(cq, cqe) }
    })
}

/// `IBV_CQ_ATTR_MODERATE`
const MODERATE: u32 = 1;

/// # Safety
/// As in ibv_modify_cq(3).
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    number(|| {
        // SAFETY: `cq` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(cq) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        if attr.attr_mask & !MODERATE != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: `cq` is a live object of a context of this library, as checked above.
        unsafe { here.verbs().moderate_cq(cq, attr.moderate.cq_count, attr.moderate.cq_period) }
    })
}

/// # Safety
/// As in ibv_destroy_cq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    number(|| {
        // SAFETY: `cq` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(cq) }?;
        // SAFETY: `cq` is a live object of a context of this library, as checked above.
        unsafe { here.verbs().destroy_cq(cq) }
    })
}
