// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control verbs over the kernel port, one file per kind of object.
//!
//! Each verb takes the port (or the handles of the objects that it uses), typed attributes and the driver-private data,
//! sends one command and checks the answer. The commands are native ioctl methods if kernel 6.1, the oldest supported
//! one, has them, and otherwise `UVERBS_METHOD_INVOKE_WRITE`.
//!
//! # Handles
//! A handle names a kernel object. It has a reference to the port, but not to other objects: the kernel returns `EBUSY`
//! if an object in use is destroyed, so the caller is responsible for the order. Dropping a handle does nothing;
//! `destroy` consumes it, and returns it with the error if the kernel refuses. In a child of fork(2), `destroy` does
//! nothing and succeeds: the objects belong to the parent.
//!
//! # Errors
//! [`Error::Unsupported`] means that the kernel, its driver or the device lacks a feature, for example a method or an
//! attribute that only later kernels have. [`Error::Protocol`] means an invalid answer; if it came with a new object,
//! the object is destroyed.

pub mod ah;
pub mod async_event;
pub mod comp_channel;
pub mod context;
pub mod counters;
pub mod cq;
pub mod dm;
pub mod dmabuf;
mod explain;
pub mod flow;
pub mod locked;
pub mod mcast;
pub mod mr;
pub mod mw;
pub mod pd;
pub mod qp;
mod qp_state;
pub mod query;
mod removed;
pub mod reply;
pub mod slab;
pub mod srq;
pub mod wq;
pub mod xrcd;

pub use ah::AhHandle;
pub use async_event::AsyncFd;
pub use comp_channel::CompChannelHandle;
pub use context::{ContextInfo, CoreSupport};
pub use counters::CountersHandle;
pub use cq::{CqEvents, CqHandle};
pub use dm::DmHandle;
pub use flow::FlowHandle;
pub use mr::{MrHandle, MrInfo, MrRange, Rereg};
pub use mw::MwHandle;
pub use pd::PdHandle;
pub use qp::{QpHandle, QpParents};
pub use removed::Removed;
pub use slab::Slab;
pub use srq::{SrqHandle, SrqParents};
pub use wq::{RwqIndTableHandle, WqHandle};
pub use xrcd::XrcdHandle;

#[cfg(test)]
mod tests;

use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::kernel::{Command, Kernel, Uhw};
use std::sync::Arc;
use uverbs_uapi::ids::UVERBS_ATTR_CORE_OUT;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The common part of all handles: an object of one kernel.
#[derive(Clone, Debug)]
struct Object {
    kernel: Arc<dyn Kernel>,
    handle: u32,
}

impl Object {
    /// An object with the handle of an answer, which is checked.
    fn new(verb: &'static str, kernel: &Arc<dyn Kernel>, handle: u32) -> Result<Self> {
        check_handle(verb, handle)?;
        Ok(Self { kernel: Arc::clone(kernel), handle })
    }

    /// `kind 5 of rxe0`, for messages.
    fn describe(&self, kind: &str) -> String {
        format!("{kind} {} of {}", self.handle, self.kernel.name())
    }

    /// The kernel's error of `verb` on this object.
    fn error(&self, verb: &'static str, kind: &str, errno: Errno) -> Error {
        Error::os(verb, self.describe(kind), errno)
    }

    /// Runs the destroy method of an object; it returns no data.
    fn destroy(&self, object: u16, method: u16, attr_id: u16) -> Result<(), Errno> {
        if !self.kernel.is_creator_process() {
            return Ok(());
        }
        let mut command = Command::<1>::new(object, method);
        command.handle_in(attr_id, self.handle).run(&*self.kernel)
    }

    /// Runs the destroy method of an object; it returns the number of its events.
    fn destroy_with<T: FromBytes + IntoBytes + Default>(
        &self,
        object: u16,
        method: u16,
        attr_id: u16,
        resp_id: u16,
    ) -> Result<T, Errno> {
        let mut resp = T::default();
        if self.kernel.is_creator_process() {
            let mut command = Command::<2>::new(object, method);
            command.handle_in(attr_id, self.handle).output(resp_id, &mut resp).run(&*self.kernel)?;
        }
        Ok(resp)
    }
}

/// Checks a handle. The kernel allocates the lowest free number (`xa_alloc()` in rdma_core.c), so a number above
/// INT_MAX would mean more objects than memory can hold: it is an error code or garbage.
fn check_handle(verb: &'static str, handle: u32) -> Result<()> {
    if i32::try_from(handle).is_err() {
        return Err(Error::protocol(verb, format!("{handle:#x} can't be a handle")));
    }
    Ok(())
}

/// The kernel's error of a verb on the device itself.
fn device_error(verb: &'static str, kernel: &dyn Kernel, errno: Errno) -> Error {
    Error::os(verb, format!("device {}", kernel.name()), errno)
}

/// Runs a write command that returns a struct.
fn invoke<I, O>(kernel: &dyn Kernel, command: u32, input: &I, uhw: Uhw<'_>) -> Result<O, Errno>
where
    I: IntoBytes + Immutable,
    O: FromBytes + IntoBytes + Default,
{
    let mut output = O::default();
    let mut command = Command::invoke_write(command, input, output.as_mut_bytes(), uhw);
    command.run(kernel)?;
    // The attribute is optional in the kernel, which marks it if it has written the answer.
    if !command.is_answered(UVERBS_ATTR_CORE_OUT) {
        return Err(Errno::EPROTO);
    }
    Ok(output)
}

/// Runs a write command that returns no data.
fn invoke_only<I: IntoBytes + Immutable>(
    kernel: &dyn Kernel,
    command: u32,
    input: &I,
    uhw: Uhw<'_>,
) -> Result<(), Errno> {
    Command::invoke_write(command, input, &mut [], uhw).run(kernel)
}

/// The new object of a native create method.
fn new_object<const N: usize>(
    verb: &'static str,
    kernel: &Arc<dyn Kernel>,
    command: &Command<'_, N>,
    attr_id: u16,
) -> Result<Object> {
    let handle =
        command.handle(attr_id).ok_or_else(|| Error::protocol(verb, "no handle of the new object"))?;
    Object::new(verb, kernel, handle)
}

/// The methods that every handle type has.
macro_rules! handle_common {
    ($name:ident, $kind:literal) => {
        impl $name {
            /// The kernel's id of the object.
            #[must_use]
            pub fn handle(&self) -> u32 {
                self.object.handle
            }

            /// The kernel port of the object.
            #[must_use]
            pub fn kernel(&self) -> &std::sync::Arc<dyn $crate::kernel::Kernel> {
                &self.object.kernel
            }

            pub(super) fn error(
                &self,
                verb: &'static str,
                errno: $crate::errno::Errno,
            ) -> $crate::error::Error {
                self.object.error(verb, $kind, errno)
            }
        }
    };
}
use handle_common;
