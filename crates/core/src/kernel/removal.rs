// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a device was removed, as its commands show it.
//!
//! From the beginning of a removal the kernel answers EIO to every verb except those that destroy (`ib_uverbs_run_method()`, after
//! `uverbs_disassociate_api_pre()`). Other causes have this errno, too: a command that the firmware fails. So one command more is
//! asked, which the kernel answers without the driver.

use super::{Command, DoorbellPage, Kernel, Mapping, Protection, RawCommand, WriteCommand};
use crate::errno::Errno;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use uverbs_uapi::ids::{
    UVERBS_ATTR_INFO_OBJECT_ID, UVERBS_ATTR_INFO_TOTAL_HANDLES, UVERBS_METHOD_INFO_HANDLES,
    UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_PD,
};

/// What is to be done once when the device is known to be removed.
type Hook = Box<dyn Fn() + Send + Sync>;

/// Whether a device was removed.
#[derive(Default)]
pub struct Removal {
    removed: AtomicBool,
    hook: OnceLock<Hook>,
}

impl core::fmt::Debug for Removal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Removal").field("removed", &self.is_removed()).finish_non_exhaustive()
    }
}

impl Removal {
    /// Whether it was. Costs one load.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// The device was removed: an event says so. Not to be called inside a queue.
    #[cold]
    pub fn note(&self) {
        // The hook and those who add a queue take the lock of the table of queues. One who adds a queue after the hook had the lock
        // reads `true` here; the queues that were added before are in the table when the hook has the lock.
        if !self.removed.swap(true, Ordering::SeqCst)
            && let Some(hook) = self.hook.get()
        {
            hook();
        }
    }

    /// Sets what is to be done; only the first call has an effect.
    pub fn on_removal(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.hook.set(Box::new(hook));
    }
}

/// A kernel whose answers show whether the device was removed.
#[derive(Debug)]
pub struct Watched {
    kernel: Arc<dyn Kernel>,
    removal: Arc<Removal>,
}

impl Watched {
    /// Notes in `removal` what the answers of `kernel` show.
    #[must_use]
    pub fn new(kernel: Arc<dyn Kernel>, removal: Arc<Removal>) -> Self {
        Self { kernel, removal }
    }

    #[cold]
    fn look(&self) {
        let mut total = 0_u32;
        let mut command = Command::<2>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INFO_HANDLES);
        command
            .constant(UVERBS_ATTR_INFO_OBJECT_ID, u32::from(UVERBS_OBJECT_PD))
            .output(UVERBS_ATTR_INFO_TOTAL_HANDLES, &mut total);
        if !self.removal.is_removed() && command.run(&*self.kernel) == Err(Errno::EIO) {
            self.removal.note();
        }
    }
}

impl Kernel for Watched {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let answer = self.kernel.ioctl(command);
        if answer == Err(Errno::EIO) {
            self.look();
        }
        answer
    }
    fn connection_manager(&self) -> crate::error::Result<Arc<dyn super::CmPort>> {
        self.kernel.connection_manager()
    }
    /// A doorbell: it is inside a queue, so nothing is done here.
    fn write(&self, command: &mut WriteCommand<'_>) -> Result<(), Errno> {
        self.kernel.write(command)
    }
    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.kernel.mmap(offset, len, protection)
    }
    fn doorbells(&self, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        self.kernel.doorbells(offset, len)
    }
    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.kernel.attribute(path)
    }
    fn driver_id(&self) -> u32 {
        self.kernel.driver_id()
    }
    fn name(&self) -> &str {
        self.kernel.name()
    }
    fn is_creator_process(&self) -> bool {
        self.kernel.is_creator_process()
    }
    fn device_clock(&self) -> Option<u64> {
        self.kernel.device_clock()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.fd()
    }
    unsafe fn close(&self) {
        // SAFETY: the contract of this function.
        unsafe { self.kernel.close() }
    }
}
