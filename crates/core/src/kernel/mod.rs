// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel port: the interface between the control path and the kernel, or the software device that replaces it.
//!
//! [`Kernel`] is the port of a device. [`UverbsFd`] implements it by an open `/dev/infiniband/uverbsN`; a software device
//! in the same process is another implementation. [`CmPort`] and [`RdmaCmFd`] are the same for the connection manager.
//!
//! A [`Command`] is built on the stack and passed on as a [`RawCommand`], which has the bytes of the ioctl and, for a port
//! that is not a kernel, safe access to every buffer that the bytes refer to.
//!
//! [`QueueAccess`] excludes the control path and the data path of a queue from each other; [`QpAccess`] and [`Polled`] are
//! on it, for drivers whose kernel shares the rings.
//! # Unsafe code
//! A command may give the device access to memory (a region's address, a ring in the driver-private input), and a port
//! can't check that. So only `unsafe` functions create a [`RawCommand`]: [`Command::execute`] and [`Command::raw`].
//! [`Uhw::new`] and [`WriteCommand::new`], by which a driver adds private input to the safe verbs of `control`, are
//! `unsafe`, too. A `RawCommand` therefore exists only if these contracts were met, and [`Kernel::ioctl`] is a safe
//! method.
// UNSAFETY: declares the contract of closing a device that has objects.
#![expect(unsafe_code)]

mod cm;
mod cm_written;
mod command;
mod doorbell;
mod fd;
mod mapping;
mod polled;
mod process;
mod qp_access;
mod queue_access;
mod raw;
mod removal;
#[cfg(test)]
pub(crate) mod script;
#[cfg(test)]
mod tests;
mod uhw;
mod watch;
mod write;

pub use cm::{CmPort, RdmaCmFd};
pub use cm_written::run_written;
pub use command::Command;
pub use doorbell::{
    DoorbellPage, DoorbellPort, MappedRegister, Register, RegisterWord, Registers, WordRegister,
};
pub use fd::UverbsFd;
pub use mapping::{DeviceMapping, Mapping, MemoryError, Protection, map_queue, page_size};
pub use polled::{Entered, Polled, PolledRef};
pub use process::Process;
pub use qp_access::{QpAccess, state_word};
pub use queue_access::{AccessRef, Busy, QueueAccess};
pub use raw::{RawAttr, RawCommand};
pub use removal::{Removal, Watched};
pub use uhw::Uhw;
pub use watch::{Watcher, accessed, watch_accesses};
pub use write::{WriteCommand, post_send_doorbell, req_notify_cq};

use crate::errno::Errno;
use core::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The kernel functions that the control path needs. They are not on the data path, except for [`Kernel::write`]. Used
/// as `Arc<dyn Kernel>`.
///
/// An answer is not trusted: the callers check handles, counts and lengths, and an implementation may be malicious.
pub trait Kernel: Send + Sync + fmt::Debug {
    /// Runs one ioctl command. Outputs, new handles and new file descriptors are left in `command`.
    ///
    /// # Errors
    /// The kernel's errno; `ESTALE` in a process that did not open the device.
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno>;

    /// Runs one command of the legacy write interface. On the data path of rxe, so it does not allocate.
    ///
    /// # Errors
    /// The kernel's errno; `ESTALE` in a process that did not open the device.
    fn write(&self, command: &mut WriteCommand<'_>) -> Result<(), Errno>;

    /// Maps `len` bytes of the device at `offset`. The meaning of the offset depends on the driver.
    ///
    /// # Errors
    /// The kernel's errno; `ESTALE` in a process that did not open the device.
    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno>;

    /// Maps a page of doorbell registers. The meaning of the offset depends on the driver.
    ///
    /// # Errors
    /// As [`Kernel::mmap`].
    fn doorbells(&self, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        DoorbellPage::map(self, offset, len)
    }

    /// Reads an attribute of the device by its path below the device's directory in sysfs, such as `ports/1/pkeys/0`,
    /// for values that uverbs does not report.
    ///
    /// # Errors
    /// The kernel's errno; `ENOENT` if there is no such attribute.
    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno>;

    /// The driver that the kernel has for the device (`enum rdma_driver_id`).
    fn driver_id(&self) -> u32;

    /// The device's name, for messages.
    fn name(&self) -> &str;

    /// Whether this is the process that opened the device, and not a child that it forked.
    fn is_creator_process(&self) -> bool;

    /// The current value of the device's clock, for a device in this process, which has no clock page to map.
    fn device_clock(&self) -> Option<u64> {
        None
    }

    /// Opens an event channel of the connection manager that knows this device: that of the kernel, for a device of the machine.
    ///
    /// # Errors
    /// The error of open(2): `ENOENT` if the kernel's module `rdma_ucm` is not loaded.
    fn connection_manager(&self) -> crate::error::Result<Arc<dyn CmPort>> {
        Ok(Arc::new(RdmaCmFd::open()?))
    }

    /// The open device file, where there is one (`cmd_fd` in C).
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Closes the device while objects of it exist (ibv_close_device(3)): the kernel destroys them. After this call, as
    /// in a process that did not open the device, every call fails with `ESTALE`, and destroying a handle has no
    /// effect.
    ///
    /// # Safety
    /// No other call of the port is in progress, the descriptor from [`Kernel::fd`] is no longer used, and nothing is
    /// posted or polled afterwards.
    unsafe fn close(&self) {}
}
