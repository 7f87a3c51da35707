// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the packets that steering rules match (ibv_create_counters(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects, and its array of values.

use super::destroy_handle;
use crate::abi::context::ibv_context;
use crate::abi::flow::{ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow};
use crate::context;
use crate::errno::{Errno, ensure, number, pointer};
use crate::live;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ptr;
use uverbs_core::attr::{CounterAttachAttr, CounterDescription};
use uverbs_core::control::{CountersHandle, counters};

/// A set: C's part and ours.
#[repr(C)]
struct Counters {
    public: ibv_counters,
    private: ManuallyDrop<CountersHandle>,
}

/// The maximum number of values in one read: those that fit into one attribute of a command.
const MAX_VALUES: u32 = u16::MAX as u32 / 8;

/// `IBV_READ_COUNTERS_ATTR_PREFER_CACHED`
const PREFER_CACHED: u32 = 1;

/// The kernel's object.
///
/// # Safety
/// `counters` is a live set of this library.
pub(super) unsafe fn handle<'a>(counters: *mut ibv_counters) -> &'a CountersHandle {
    // SAFETY: `counters` is a live object of this type (contract of this function); no mutable reference to its private
    // part exists.
    unsafe { &(*counters.cast::<Counters>()).private }
}

/// # Safety
/// As in ibv_create_counters(3).
pub(crate) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    attr: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let here = unsafe { context::of(context) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        if attr.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let private = ManuallyDrop::new(counters::create(here.kernel())?);
        let counters = Box::into_raw(Box::new(Counters { public: ibv_counters { context }, private }));
        // SAFETY: a new object; the context is not closed during this call (contract of the man page).
        Ok(unsafe { live::add(counters.cast()) })
    })
}

/// # Safety
/// As in ibv_create_counters(3).
pub(crate) unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    number(|| {
        // SAFETY: `counters` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(counters) }?;
        // SAFETY: `counters` is a live object of this type (contract of the man page); no mutable reference to its
        // private part exists.
        let handle = unsafe { &(*counters.cast::<Counters>()).private };
        // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
        // the man page).
        unsafe { destroy_handle(handle, CountersHandle::destroy) }?;
        live::remove(&here, counters);
        // SAFETY: `create_counters` allocated it as a `Box` of this type; the program does not use it after this call
        // (contract of the man page).
        drop(unsafe { Box::from_raw(counters.cast::<Counters>()) });
        Ok(())
    })
}

/// # Safety
/// As in ibv_attach_counters_point_flow(3).
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    number(|| {
        // SAFETY: `counters` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let _used = unsafe { context::of_object(counters) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        // As in libmlx5, the counters of a rule that exists are fixed.
        if !flow.is_null() || attr.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let point =
            CounterAttachAttr { counter_desc: CounterDescription(attr.counter_desc), index: attr.index };
        // SAFETY: `counters` is a live object of this library: its context was found above.
        Ok(unsafe { handle(counters) }.attach(point)?)
    })
}

/// # Safety
/// As in ibv_read_counters(3).
pub(crate) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    ncounters: u32,
    flags: u32,
) -> c_int {
    number(|| {
        // SAFETY: `counters` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let _used = unsafe { context::of_object(counters) }?;
        ensure(!values.is_null() && flags & !PREFER_CACHED == 0 && ncounters <= MAX_VALUES)?;
        // The program's array may be uninitialised, so the kernel writes to another one.
        let mut found = vec![0; ncounters as usize];
        // SAFETY: `counters` is a live object of this library: its context was found above.
        unsafe { handle(counters) }.read(&mut found, flags & PREFER_CACHED != 0)?;
        // SAFETY: `values` is valid for writes of `ncounters` values (contract of the man page), as many as `found`
        // has.
        unsafe { ptr::copy_nonoverlapping(found.as_ptr(), values, found.len()) };
        Ok(())
    })
}
