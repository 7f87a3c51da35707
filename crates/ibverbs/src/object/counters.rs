// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the packets that steering rules match (ibv_create_counters(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects, and its array of values.

use super::whole::{Owned, create};
use crate::abi::context::ibv_context;
use crate::abi::flow::{ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow};
use crate::arg::Arg;
use crate::errno::{Errno, ensure, number, pointer};
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ptr;
use uverbs_core::attr::{CounterAttachAttr, CounterDescription};
use uverbs_core::control::{CountersHandle, counters};

// SAFETY: the public part is the struct itself; only this module makes such objects.
unsafe impl Owned<()> for ibv_counters {
    type Public = Self;
    type Own = ManuallyDrop<CountersHandle>;
}

/// The maximum number of values in one read: those that fit into one attribute of a command.
const MAX_VALUES: u32 = u16::MAX as u32 / 8;

/// `IBV_READ_COUNTERS_ATTR_PREFER_CACHED`
const PREFER_CACHED: u32 = 1;

/// # Safety
/// As in ibv_create_counters(3).
pub(crate) unsafe extern "C" fn create_counters(
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_counters_init_attr>,
) -> *mut ibv_counters {
    pointer(|| {
        let here = context.open()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        if attr.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let own = ManuallyDrop::new(counters::create(here.kernel())?);
        Ok(create(here, ibv_counters { context: context.pointer() }, own))
    })
}

/// # Safety
/// As in ibv_create_counters(3).
pub(crate) unsafe extern "C" fn destroy_counters(counters: Arg<'_, ibv_counters>) -> c_int {
    number(|| counters.claim()?.destroy(CountersHandle::destroy))
}

/// # Safety
/// As in ibv_attach_counters_point_flow(3).
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    counters: Arg<'_, ibv_counters>,
    attr: Option<&ibv_counter_attach_attr>,
    flow: Arg<'_, ibv_flow>,
) -> c_int {
    number(|| {
        let counters = counters.enter()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        // As in libmlx5, the counters of a rule that exists are fixed.
        if !flow.is_null() || attr.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let point = CounterAttachAttr::new(CounterDescription(attr.counter_desc), attr.index);
        Ok(counters.own().attach(point)?)
    })
}

/// # Safety
/// As in ibv_read_counters(3).
pub(crate) unsafe extern "C" fn read_counters(
    counters: Arg<'_, ibv_counters>,
    values: *mut u64,
    ncounters: u32,
    flags: u32,
) -> c_int {
    number(|| {
        let counters = counters.enter()?;
        ensure(!values.is_null() && flags & !PREFER_CACHED == 0 && ncounters <= MAX_VALUES)?;
        // The program's array may be uninitialised, so the kernel writes to another one.
        let mut found = vec![0; ncounters as usize];
        counters.own().read(&mut found, flags & PREFER_CACHED != 0)?;
        // SAFETY: `values` is valid for writes of `ncounters` values (contract of the man page), as many as `found`
        // has.
        unsafe { ptr::copy_nonoverlapping(found.as_ptr(), values, found.len()) };
        Ok(())
    })
}
