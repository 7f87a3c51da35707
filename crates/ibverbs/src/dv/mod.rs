// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of libmlx5 (`<infiniband/mlx5dv.h>`).
//!
//! They are in this library because they need its objects. `libmlx5.so.1` has their names, each of which is a jump to a
//! function `uverbs_mlx5dv_*` here, in the private node `UVERBS_PRIVATE`. The table `data/symbols-mlx5.txt` lists these
//! jumps. A name that is not implemented jumps to a function that fails with `EOPNOTSUPP`, in the way that its man page
//! describes.
//!
//! | module | contents |
//! |---|---|
//! | `query` | the device: whether it is an mlx5 device, its capabilities, its clock; opening it |
//! | `init_obj` | the addresses of an object's memory |
//! | `create` | CQs and QPs with mlx5's options, DC targets and initiators |
//! | `dm` | device memory |
//! | `devx`, `devx_events` | commands for the firmware, the objects that they create, and their events |
//! | `mr` | regions of a dma-buf |
//! | `extra` | packet pacing, pages of virtio devices, virtual ports |
//! | `firmware` | settings of QPs by commands for the firmware |
//! | `steering` | matchers and their rules |
//! | `dr` | domains and root tables with matchers and rules |
//! | `share` | export and import of objects |
//! | `qp_ex` | the functions of `struct mlx5dv_qp_ex` |
//! | `uar` | doorbell pages |
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

mod create;
mod devx;
mod devx_events;
mod dm;
mod dr;
mod extra;
pub(crate) mod firmware;
mod init_obj;
mod mr;
mod qp_ex;
mod query;
#[cfg(all(test, feature = "hca"))]
mod removed;
mod share;
mod steering;
mod uar;

use crate::abi::context::ibv_context;
use crate::context::{self, Private};
use crate::errno::{Errno, Outcome};
use crate::live::{self, Object, Used};
use crate::verbs::Open;
use core::ops::Deref;
use uverbs_mlx5::Mlx5;

/// The driver of a context, `EOPNOTSUPP` if the device is not an mlx5 device.
fn mlx5(here: &Private) -> Outcome<&Open<Mlx5>> {
    here.verbs().as_any().downcast_ref().ok_or(Errno::EOPNOTSUPP)
}

/// The driver of the context at a C pointer.
///
/// # Safety
/// As [`context::of`].
unsafe fn of<'a>(context: *mut ibv_context) -> Outcome<&'a Open<Mlx5>> {
    // SAFETY: the context is not closed while the reference is used (contract of this function).
    mlx5(unsafe { context::of(context) }?)
}

/// An object that a verb uses, and the driver of its context.
struct Of<'a> {
    open: &'a Open<Mlx5>,
    _used: Used<'a>,
}

impl Deref for Of<'_> {
    type Target = Open<Mlx5>;

    fn deref(&self) -> &Open<Mlx5> {
        self.open
    }
}

/// The driver of an object's context.
///
/// # Safety
/// As [`context::of_object`].
unsafe fn of_object<'a, T: Object>(object: *mut T) -> Outcome<Of<'a>> {
    // SAFETY: the contract of this function.
    let used = unsafe { context::of_object(object) }?;
    Ok(Of { open: mlx5(used.here())?, _used: used })
}

/// [`of_object`] for a call that only reads the object in this process: the number in its public part is not compared.
///
/// # Safety
/// As [`context::of_object`].
unsafe fn of_read<'a, T: Object>(object: *mut T) -> Outcome<&'a Open<Mlx5>> {
    // SAFETY: the contract of this function.
    mlx5(unsafe { live::peek(object) }?)
}
