// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules (ibv_create_flow(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use super::{counters, destroy_handle};
use crate::abi::context::ibv_context;
use crate::abi::flow::{ibv_flow, ibv_flow_attr};
use crate::abi::qp::ibv_qp;
use crate::context;
use crate::convert::flow as convert;
use crate::errno::{ensure, number, pointer};
use crate::live;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ptr;
use uverbs_core::control::FlowHandle;

/// A rule: C's part and ours.
#[repr(C)]
struct Flow {
    public: ibv_flow,
    private: ManuallyDrop<FlowHandle>,
}

/// # Safety
/// As in ibv_create_flow(3).
pub(crate) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    pointer(|| {
        // SAFETY: `qp` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(qp) }?;
        ensure(!attr.is_null())?;
        // SAFETY: `attr` is not NULL (checked above), so it is valid and followed by its specifications (contract of
        // the man page).
        let (attr, set) = unsafe { convert::from_c(attr) }?;
        // SAFETY: `qp` exists: `of_object` found its context.
        let context = unsafe { (*qp).context };
        ensure(set.is_none_or(|set| !set.is_null()))?;
        let given = set.unwrap_or(ptr::null_mut());
        // SAFETY: the context is not closed during this call (contract of the man page).
        let _used = unsafe { context::is_of(context, given) }?;
        // SAFETY: a live object of this library, which was found above.
        let set = set.map(|set| unsafe { counters::handle(set) });
        // SAFETY: `qp` is a live object of a context of this library, as checked above.
        let handle = unsafe { here.verbs().create_flow(qp, &attr, set) }?;
        Ok(finish(context, handle))
    })
}

/// Creates a rule from its handle.
pub(crate) fn finish(context: *mut ibv_context, handle: FlowHandle) -> *mut ibv_flow {
    let public = ibv_flow { comp_mask: 0, context, handle: handle.handle() };
    let flow = Box::into_raw(Box::new(Flow { public, private: ManuallyDrop::new(handle) }));
    // SAFETY: a new object, whose context is not closed during this call: its verb is in progress.
    unsafe { live::add(flow.cast()) }
}

/// # Safety
/// As in ibv_create_flow(3).
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    number(|| {
        // SAFETY: the context is not closed during this call (contract of the man page).
        let here = unsafe { live::claim(flow) }?;
        // SAFETY: `flow` is a live object of this type (contract of the man page); no mutable reference to its private
        // part exists.
        let handle = unsafe { &(*flow.cast::<Flow>()).private };
        // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
        // the man page).
        unsafe { destroy_handle(handle, FlowHandle::destroy) }?;
        live::remove(&here, flow);
        // SAFETY: `finish` allocated it as a `Box` of this type; the program does not use it after this call
        // (contract of the man page).
        drop(unsafe { Box::from_raw(flow.cast::<Flow>()) });
        Ok(())
    })
}
