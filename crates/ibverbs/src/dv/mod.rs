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
//! | `mkey`, `wr_mkey` | indirect keys, and the work requests that configure them |
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
mod firmware;
mod init_obj;
mod mkey;
mod mr;
mod qp_ex;
mod query;
#[cfg(all(test, feature = "hca"))]
mod removed;
mod share;
mod steering;
mod uar;
mod wr_mkey;

use crate::abi::context::ibv_context;
use crate::arg::Arg;
use crate::context::Private;
use crate::driver_library::DriverLibrary;
use crate::errno::{Errno, Outcome};
use crate::live::{Live, Object, Used};
use crate::object::destroy_handle;
use crate::verbs::{Open, driver};
use core::mem::ManuallyDrop;
use core::ops::Deref;
use uverbs_core::Error;
use uverbs_mlx5::Mlx5;

/// What mlx5 has besides.
pub(crate) const LIBRARY: DriverLibrary =
    DriverLibrary { firmware_version: |_, _| None, in_order: firmware::in_order };

/// The driver of a context, `EOPNOTSUPP` if the device is not an mlx5 device.
fn mlx5(here: &Private) -> Outcome<&Open<Mlx5>> {
    driver(here)
}

/// The driver of the context at a C pointer.
fn of<'a>(context: Arg<'a, ibv_context>) -> Outcome<&'a Open<Mlx5>> {
    mlx5(context.open()?)
}

/// An object that a verb uses, and the driver of its context.
struct Of<'a, T> {
    open: &'a Open<Mlx5>,
    object: Used<'a, T>,
}

impl<T> Deref for Of<'_, T> {
    type Target = Open<Mlx5>;

    fn deref(&self) -> &Open<Mlx5> {
        self.open
    }
}

/// An object for a verb that uses it.
fn of_object<'a, T: Object>(object: Arg<'a, T>) -> Outcome<Of<'a, T>> {
    let object = object.enter()?;
    Ok(Of { open: mlx5(object.here())?, object })
}

/// [`of_object`] for a call that only reads the object in this process: the number in its public part is not compared.
fn of_read<'a, T: Object>(object: Arg<'a, T>) -> Outcome<(&'a Open<Mlx5>, Live<'a, T>)> {
    let object = object.peek()?;
    Ok((mlx5(object.here())?, object))
}

/// The driver of the context at a pointer that an object keeps.
///
/// # Safety
/// The context is not closed while the reference is used.
unsafe fn of_kept<'a>(context: *mut ibv_context) -> Outcome<&'a Open<Mlx5>> {
    // SAFETY: the contract of this function.
    of(unsafe { Arg::new(context) })
}

/// Destroys what an object of a command stands for, and frees the object. If the first fails, the object stays.
///
/// # Safety
/// `object` is NULL or a `Box`, which the program does not use any more if this succeeds; `handle` returns a field of it.
unsafe fn destroy<T, H>(
    object: *mut T,
    handle: impl FnOnce(&T) -> &ManuallyDrop<H>,
    destroy: impl FnOnce(H) -> Result<(), (H, Error)>,
) -> Outcome<()> {
    // SAFETY: NULL, or an object that exists (contract of this function); no mutable reference to it exists.
    let handle = handle(unsafe { object.as_ref() }.ok_or(Errno::EINVAL)?);
    // SAFETY: if this succeeds, the object is freed next.
    unsafe { destroy_handle(handle, destroy) }?;
    // SAFETY: a `Box`, which is not used any more (contract of this function).
    drop(unsafe { Box::from_raw(object) });
    Ok(())
}
