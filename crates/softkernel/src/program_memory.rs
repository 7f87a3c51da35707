// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a command makes available to the device.
// UNSAFETY: relies on the contract of commands about memory; maps files.
#![expect(unsafe_code)]

use core::ffi::c_void;
use core::fmt;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{RawCommand, page_size};
use uverbs_fabric::backing::Backing;
use uverbs_fabric::memory::{Area, Fault, Memory};
use uverbs_fabric::on_demand::OnDemand;
use uverbs_fabric::process::ProcessRange;

/// The range of `len` bytes at `addr`, both of which come from the inputs of `_command`. It must be dropped when its
/// object is destroyed.
///
/// # Errors
/// `EFAULT` if it wraps around the address space, or begins at 0.
pub fn memory_at(_command: &RawCommand<'_, '_>, addr: u64, len: u64) -> Result<Arc<dyn Memory>, Errno> {
    // SAFETY: only `unsafe` functions create a `RawCommand` (`Command::raw`); by their contract the kernel and the
    // device may use the memory that the inputs name by address until the object is destroyed. Every caller of this
    // function passes a range from such an input and keeps it with its object.
    let range = unsafe { ProcessRange::new(addr, len) };
    range.map(|range| Arc::new(range) as Arc<dyn Memory>).ok_or(Errno::EFAULT)
}

/// As [`memory_at`], with on-demand paging: the range need not be mapped, and may be the whole address space.
#[must_use]
pub fn on_demand_at(_command: &RawCommand<'_, '_>, addr: u64, len: u64) -> Arc<dyn Memory> {
    // SAFETY: as for `memory_at`, for what is mapped in the range.
    Arc::new(unsafe { OnDemand::new(addr, len) })
}

/// A range and the owner of its memory.
#[derive(Debug)]
pub struct OwnedRange<O, R = ProcessRange> {
    /// The range.
    pub range: R,
    /// Dropped after the range.
    pub _owner: O,
}

impl<O: fmt::Debug + Send + Sync, R: Memory> Memory for OwnedRange<O, R> {
    fn len(&self) -> u64 {
        self.range.len()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.range.read(offset, to)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.range.write(offset, from)
    }

    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        self.range.update(offset, f)
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        self.range.load_be32(offset)
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.range.publish(offset, bytes)
    }
}

/// The mapping of a file: a dma-buf, or a memfd that can't shrink, which tests use. A kernel takes only dma-bufs.
#[derive(Debug)]
struct FileMapping {
    base: NonNull<c_void>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, so any thread may use it and unmap it.
unsafe impl Send for FileMapping {}
// SAFETY: a shared reference gives no access to the memory.
unsafe impl Sync for FileMapping {}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: `memory_of_file` mapped it. Only the range of the `OwnedRange` that has this mapping accesses it, and that is
        // dropped before.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

/// `len` bytes at `offset` of a file of this process, by its number. `EINVAL` for a file that can be truncated, which is
/// what the kernel answers for every file that is no dma-buf (`dma_buf_get()`).
///
/// # Errors
/// `EBADF` if it is no file, `EINVAL` also if the range is not all inside; those of mmap(2).
pub fn memory_of_file(fd: i32, offset: u64, len: u64) -> Result<Arc<dyn Memory>, Errno> {
    let page = u64::from(page_size());
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: not negative, and not closed during the command: the caller of the verb lends the file
    // (`control::mr::reg_dmabuf` and `devx_reg_dmabuf_umem` take a `BorrowedFd`).
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    // A duplicate, so that the file stays open while the region exists, as with a dma-buf.
    let file = File::from(file.try_clone_to_owned().map_err(|_| Errno::EBADF)?);
    let backing = Backing::of(&file);
    if backing == Backing::Changeable {
        log::warn!("reg_dmabuf_mr: file {fd} is neither a dma-buf nor a memfd with the seal F_SEAL_SHRINK");
        return Err(Errno::EINVAL);
    }
    let end = offset.checked_add(len).filter(|_| len > 0).ok_or(Errno::EINVAL)?;
    // The file has no memory beyond its end.
    if end > file.metadata().map_err(|_| Errno::EBADF)?.len() {
        return Err(Errno::EINVAL);
    }
    let start = offset / page * page;
    let size = usize::try_from(end - start).ok().and_then(NonZeroUsize::new).ok_or(Errno::EINVAL)?;
    let start = i64::try_from(start).map_err(|_| Errno::EINVAL)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, &file, start) }?;
    let mapping = FileMapping { base, len: size.get() };
    let addr = base.as_ptr().expose_provenance() as u64 + offset % page;
    if backing == Backing::HugePages {
        // SAFETY: inside of the mapping, which lives as long as the range and is accessed through it only. There may be no
        // page for an access, which is an error of the system call and not a signal.
        let range = unsafe { OnDemand::new(addr, len) };
        return Ok(Arc::new(OwnedRange { range, _owner: mapping }));
    }
    // SAFETY: inside of the mapping, which lives as long as the range and is accessed through it only; all of it stays in the
    // file (`Backing::Fixed`).
    let range = unsafe { ProcessRange::new(addr, len) }.ok_or(Errno::EFAULT)?;
    Ok(Arc::new(OwnedRange { range, _owner: mapping }))
}

/// As [`memory_at`], all of it as an area.
///
/// # Errors
/// As [`memory_at`].
pub fn area_at(command: &RawCommand<'_, '_>, addr: u64, len: u64) -> Result<Area, Errno> {
    Area::new(memory_at(command, addr, len)?, 0, len).ok_or(Errno::EINVAL)
}
