// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls of the data path.
//!
//! A send queue's doorbell is a `POST_SEND` without work requests: the kernel then reads the shared ring. Where a completion queue is
//! armed by the kernel, that is a command, too. Both name the object by its handle and allocate no memory.
#![expect(unsafe_code)]
// UNSAFETY: the input of a command may contain addresses that the kernel uses, so executing it is unsafe. The inputs here contain none.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{Command, Kernel, Uhw, post_send_doorbell, req_notify_cq};
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_POST_SEND, IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, ib_uverbs_post_send,
    ib_uverbs_post_send_resp, ib_uverbs_req_notify_cq, ib_uverbs_send_wr,
};
use zerocopy::{Immutable, IntoBytes};

/// Notifies the kernel of new WRs in a send queue.
pub trait SendBell: Send + fmt::Debug {
    /// Rings the doorbell.
    ///
    /// # Errors
    /// The errno of the kernel.
    fn ring(&self) -> Result<(), Errno>;
}

/// Makes the kernel flush a receive queue. `()` is for devices that never need it.
pub trait FlushBell: Send + fmt::Debug {
    /// Flushes the receives that are in the ring.
    ///
    /// # Errors
    /// The errno of the kernel.
    fn flush(&self) -> Result<(), Errno>;
}

/// Requests completion events from the kernel. `()` is for devices that are armed by a store
/// ([`CqRing::arm`](crate::format::CqRing::arm)).
pub trait ArmBell: Send + fmt::Debug {
    /// Requests one event, for the next (solicited) completion.
    ///
    /// # Errors
    /// The errno of the kernel.
    fn arm(&self, solicited_only: bool) -> Result<(), Errno>;
}

impl FlushBell for () {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }
}

impl ArmBell for () {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn arm(&self, _solicited_only: bool) -> Result<(), Errno> {
        Ok(())
    }
}

/// The system calls of the kernel, for one object.
///
/// The write interface takes the fewest instructions (2291 against 3306 by ioctl on 6.1, for a send queue's doorbell).
/// The kernel refuses it to a process that changed its credentials after it opened the device; a sandbox may refuse it,
/// too. After a refusal the command is executed by ioctl.
pub struct KernelBell {
    kernel: Arc<dyn Kernel>,
    handle: u32,
    by_ioctl: AtomicBool,
}

impl KernelBell {
    /// For the object with this handle.
    #[must_use]
    pub fn new(kernel: Arc<dyn Kernel>, handle: u32) -> Self {
        Self { kernel, handle, by_ioctl: AtomicBool::new(false) }
    }

    #[inline]
    fn call(
        &self,
        write: impl FnOnce(&dyn Kernel, u32) -> Result<(), Errno>,
        ioctl: impl FnOnce(&dyn Kernel, u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if !self.by_ioctl.load(Ordering::Relaxed) {
            match write(&*self.kernel, self.handle) {
                Err(errno) if is_refusal(errno) => self.by_ioctl.store(true, Ordering::Relaxed),
                result => return result,
            }
        }
        ioctl(&*self.kernel, self.handle)
    }
}

/// Whether the errno means that the write interface is refused, and not that the command is invalid.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::EACCES | Errno::EPERM | Errno::ENOSYS | Errno::EOPNOTSUPP)
}

impl SendBell for KernelBell {
    #[inline]
    fn ring(&self) -> Result<(), Errno> {
        self.call(post_send_doorbell, post_send)
    }
}

impl ArmBell for KernelBell {
    #[inline]
    fn arm(&self, solicited_only: bool) -> Result<(), Errno> {
        self.call(
            |kernel, handle| req_notify_cq(kernel, handle, solicited_only),
            |kernel, handle| req_notify(kernel, handle, solicited_only),
        )
    }
}

impl fmt::Debug for KernelBell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelBell")
            .field("device", &self.kernel.name())
            .field("handle", &self.handle)
            .field("by_ioctl", &self.by_ioctl)
            .finish()
    }
}

/// Runs a write command as an ioctl.
fn invoke<I: IntoBytes + Immutable>(
    kernel: &dyn Kernel,
    command: u32,
    input: &I,
    output: &mut [u8],
) -> Result<(), Errno> {
    let mut command = Command::invoke_write(command, input, output, Uhw::none());
    // SAFETY: the inputs of this module's commands are numbers and handles; they name no memory.
    unsafe { command.execute(kernel) }
}

/// Rings the send queue's doorbell, where the write interface is refused.
fn post_send(kernel: &dyn Kernel, qp_handle: u32) -> Result<(), Errno> {
    // uverbs requires the size of a work request even if there is none (`ib_uverbs_post_send()`).
    let wqe_size = size_of::<ib_uverbs_send_wr>() as u32;
    let request = ib_uverbs_post_send { qp_handle, wqe_size, ..Default::default() };
    let mut response = ib_uverbs_post_send_resp::default();
    invoke(kernel, IB_USER_VERBS_CMD_POST_SEND, &request, response.as_mut_bytes())
}

/// Arms a CQ, where the write interface is refused.
fn req_notify(kernel: &dyn Kernel, cq_handle: u32, solicited_only: bool) -> Result<(), Errno> {
    let request = ib_uverbs_req_notify_cq { cq_handle, solicited_only: solicited_only.into() };
    invoke(kernel, IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, &request, &mut [])
}
