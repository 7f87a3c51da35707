// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system call of siw's data path.
//!
//! A send queue's doorbell is a `POST_SEND` without work requests: the kernel then reads the shared ring. Receive queues
//! have none, and a completion queue is armed by a store to memory that it shares with the kernel.
#![expect(unsafe_code)]
// UNSAFETY: the input of a command may contain addresses that the kernel uses, so executing it is unsafe. The input here
// contains none.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{Command, Kernel, Uhw, post_send_doorbell};
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_POST_SEND, ib_uverbs_post_send, ib_uverbs_post_send_resp, ib_uverbs_send_wr,
};
use zerocopy::IntoBytes;

/// Notifies the kernel of new work requests in a send queue.
pub trait SendBell: Send + fmt::Debug {
    /// Rings the doorbell. `ENOTCONN` if the QP is not connected.
    ///
    /// # Errors
    /// `ENOTCONN` as above; otherwise the errno of the kernel.
    fn ring(&self) -> Result<(), Errno>;
}

/// The doorbell of a QP.
///
/// The write interface takes the fewest instructions. The kernel refuses it to a process that changed its credentials
/// after it opened the device; a sandbox may refuse it, too. After a refusal the command is executed by ioctl.
pub struct KernelBell {
    kernel: Arc<dyn Kernel>,
    handle: u32,
    by_ioctl: AtomicBool,
}

impl KernelBell {
    /// For the QP with this handle.
    #[must_use]
    pub fn new(kernel: Arc<dyn Kernel>, handle: u32) -> Self {
        Self { kernel, handle, by_ioctl: AtomicBool::new(false) }
    }

    fn by_ioctl(&self) -> Result<(), Errno> {
        // uverbs requires the size of a work request even if there is none (`ib_uverbs_post_send()`).
        let wqe_size = size_of::<ib_uverbs_send_wr>() as u32;
        let request = ib_uverbs_post_send { qp_handle: self.handle, wqe_size, ..Default::default() };
        let mut response = ib_uverbs_post_send_resp::default();
        let mut command = Command::invoke_write(
            IB_USER_VERBS_CMD_POST_SEND,
            &request,
            response.as_mut_bytes(),
            Uhw::none(),
        );
        // SAFETY: the request consists of numbers and a handle; it names no memory.
        unsafe { command.execute(&*self.kernel) }
    }
}

/// Whether the errno means that the write interface is refused, and not that the command is invalid.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::EACCES | Errno::EPERM | Errno::ENOSYS | Errno::EOPNOTSUPP)
}

impl SendBell for KernelBell {
    #[inline]
    fn ring(&self) -> Result<(), Errno> {
        if !self.by_ioctl.load(Ordering::Relaxed) {
            match post_send_doorbell(&*self.kernel, self.handle) {
                Err(errno) if is_refusal(errno) => self.by_ioctl.store(true, Ordering::Relaxed),
                result => return result,
            }
        }
        self.by_ioctl()
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
