// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules (ibv_create_flow(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use super::whole::{Owned, create};
use crate::abi::context::ibv_context;
use crate::abi::flow::{ibv_flow, ibv_flow_attr};
use crate::abi::qp::ibv_qp;
use crate::arg::Arg;
use crate::context::Private;
use crate::convert::flow as convert;
use crate::errno::{ensure, number, pointer};
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ptr;
use uverbs_core::control::FlowHandle;

// SAFETY: the public part is the struct itself; only this module makes such objects.
unsafe impl Owned<()> for ibv_flow {
    type Public = Self;
    type Own = ManuallyDrop<FlowHandle>;
}

/// # Safety
/// As in ibv_create_flow(3).
pub(crate) unsafe extern "C" fn create_flow(qp: Arg<'_, ibv_qp>, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    pointer(|| {
        let qp = qp.enter()?;
        ensure(!attr.is_null())?;
        // SAFETY: `attr` is not NULL (checked above), so it is valid and followed by its specifications (contract of
        // the man page).
        let (attr, set) = unsafe { convert::from_c(attr) }?;
        ensure(set.is_none_or(|set| !set.is_null()))?;
        let given = set.unwrap_or(ptr::null_mut());
        // SAFETY: the context is not closed during this call (contract of the man page).
        let set = unsafe { Arg::new(given) }.enter_in(qp.context())?;
        let handle = qp.verbs().create_flow(&qp, &attr, set.as_ref().map(|set| &**set.own()))?;
        Ok(finish(qp.here(), qp.context(), handle))
    })
}

/// Creates a rule from its handle.
pub(crate) fn finish(here: &Private, context: *mut ibv_context, handle: FlowHandle) -> *mut ibv_flow {
    create(here, ibv_flow { comp_mask: 0, context, handle: handle.handle() }, ManuallyDrop::new(handle))
}

/// # Safety
/// As in ibv_create_flow(3).
pub(crate) unsafe extern "C" fn destroy_flow(flow: Arg<'_, ibv_flow>) -> c_int {
    number(|| flow.claim()?.destroy(FlowHandle::destroy))
}
