// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel port whose answers a test specifies.
#![expect(unsafe_code)]
// UNSAFETY: heap memory is passed on as a mapping of a device.

use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{DoorbellPage, Kernel, Mapping, Protection, RawCommand, WriteCommand};

/// The answers of a kernel. By default they are those of another kernel, if there is one, and errors otherwise.
#[expect(missing_docs, clippy::missing_errors_doc, reason = "as the functions of `Kernel`")]
pub trait Script: Send + Sync {
    /// The kernel that gives the answers that the script does not.
    fn inner(&self) -> Option<&dyn Kernel> {
        None
    }
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        self.inner().map_or(Err(Errno::EOPNOTSUPP), |inner| inner.ioctl(command))
    }
    fn write(&self, command: &mut WriteCommand<'_>) -> Result<(), Errno> {
        self.inner().map_or(Err(Errno::ENOSYS), |inner| inner.write(command))
    }
    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.inner().map_or(Err(Errno::EINVAL), |inner| inner.mmap(offset, len, protection))
    }
    /// `port` is the kernel of this script, for [`DoorbellPage::map`].
    fn doorbells(&self, port: &dyn Kernel, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        match self.inner() {
            Some(inner) => inner.doorbells(offset, len),
            None => DoorbellPage::map(port, offset, len),
        }
    }
    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.inner().map_or(Err(Errno::ENOENT), |inner| inner.attribute(path))
    }
    fn driver_id(&self) -> u32 {
        self.inner().map_or(0, |inner| inner.driver_id())
    }
    fn name(&self) -> &str {
        self.inner().map_or("test0", |inner| inner.name())
    }
    fn is_creator_process(&self) -> bool {
        self.inner().is_none_or(|inner| inner.is_creator_process())
    }
}

/// The kernel of a script.
pub struct Scripted<S>(pub S);

impl<S> fmt::Debug for Scripted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").finish_non_exhaustive()
    }
}

impl<S> Deref for Scripted<S> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: Script> Kernel for Scripted<S> {
    fn connection_manager(&self) -> uverbs_core::Result<Arc<dyn uverbs_core::kernel::CmPort>> {
        self.0.inner().map_or_else(
            || Err(uverbs_core::Error::unsupported("connection_manager", "a script without a device")),
            |inner| inner.connection_manager(),
        )
    }

    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        self.0.ioctl(command)
    }
    fn write(&self, command: &mut WriteCommand<'_>) -> Result<(), Errno> {
        self.0.write(command)
    }
    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.0.mmap(offset, len, protection)
    }
    fn doorbells(&self, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        self.0.doorbells(self, offset, len)
    }
    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.0.attribute(path)
    }
    fn driver_id(&self) -> u32 {
        self.0.driver_id()
    }
    fn name(&self) -> &str {
        self.0.name()
    }
    fn is_creator_process(&self) -> bool {
        self.0.is_creator_process()
    }
}

/// Heap memory as a mapping of its first `len` bytes, which may end inside the last word.
///
/// # Panics
/// If the memory is shorter.
#[must_use]
pub fn mapping(words: Arc<[AtomicU64]>, len: usize) -> Mapping {
    assert!(len <= size_of_val(&*words));
    let ptr = NonNull::from(&words[..]).cast();
    // SAFETY: the words are at least as long, consist of atomics, and live as long as the `Arc` that becomes the owner.
    unsafe { Mapping::new(ptr, len, words) }
}
