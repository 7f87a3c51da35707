// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's memory by bus address. The VM maps it for the device.
// UNSAFETY: maps the files that the VM passes, and gives them to code that accesses memory by address.
#![expect(unsafe_code)]

use core::fmt;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicUsize, Ordering};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::sync::{PoisonError, RwLock};
use uverbs_fabric::backing::Backing;
use uverbs_fabric::memory::{Fault, Memory};
use uverbs_fabric::process::ProcessRange;

/// A part of a file, mapped into this process: memory of a VM, or of a device.
#[derive(Debug)]
pub struct Mapped {
    range: ProcessRange,
    len: u64,
    base: core::ptr::NonNull<core::ffi::c_void>,
}

// SAFETY: a mapping may be used by any thread; `base` is only used to unmap it.
unsafe impl Send for Mapped {}
// SAFETY: `base` is only used to unmap the memory, with `&mut self`; `range` is `Sync`.
unsafe impl Sync for Mapped {}

/// Why memory of the VM is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// The file can be truncated, or its pages can be freed, which would raise SIGBUS in this process.
    Changeable,
    /// The file has no such bytes.
    Outside,
    /// The VM has mapped too much: `MAX_REGIONS`, `MAX_BYTES`.
    Limit,
    /// mmap(2) failed.
    Refused(nix::errno::Errno),
}

impl core::error::Error for Unmapped {}

impl fmt::Display for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changeable => f.write_str(
                "it is not a memfd of normal pages with the seal F_SEAL_SHRINK (QEMU: memory-backend-memfd, seal=on)",
            ),
            Self::Outside => f.write_str("it is not inside the file"),
            Self::Limit => f.write_str("the VM has mapped too much"),
            Self::Refused(errno) => write!(f, "mmap: {errno}"),
        }
    }
}

/// Pieces of memory that a VM may map at a time, and their bytes. A process has a limited number of mappings
/// (`vm.max_map_count`, 65530) and of addresses.
const MAX_REGIONS: usize = 1024;
const MAX_BYTES: u64 = 1 << 42;

impl Mapped {
    /// New memory, filled with zeros. It takes no space before it is written.
    ///
    /// # Errors
    /// The process has too many files or mappings.
    pub fn zeros(bytes: u64) -> io::Result<Self> {
        Self::new(&sealed(bytes)?, 0, bytes).map_err(io::Error::other)
    }

    /// `len` bytes at `offset` of a file.
    fn new(file: &File, offset: u64, len: u64) -> Result<Self, Unmapped> {
        if Backing::of(file) != Backing::Fixed {
            return Err(Unmapped::Changeable);
        }
        let size = usize::try_from(len).ok().and_then(NonZeroUsize::new).ok_or(Unmapped::Outside)?;
        let end = offset.checked_add(len).ok_or(Unmapped::Outside)?;
        if file.metadata().map_err(|_| Unmapped::Outside)?.len() < end {
            return Err(Unmapped::Outside);
        }
        let offset = i64::try_from(offset).map_err(|_| Unmapped::Outside)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; it aliases no Rust object.
        let base = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, file, offset) };
        let base = base.map_err(Unmapped::Refused)?;
        let addr = base.as_ptr().expose_provenance() as u64;
        // SAFETY: the range is mapped readable and writable until `Mapped` is dropped, which drops `range` with it, and
        // no Rust object is there. All of it stays in the file (`Backing::Fixed`).
        let range = unsafe { ProcessRange::new(addr, len) }.ok_or(Unmapped::Outside)?;
        Ok(Self { range, len, base })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, of this length, which is no longer used: `range` is dropped with it.
        let _ = unsafe { munmap(self.base, self.len as usize) };
    }
}

impl Memory for Mapped {
    fn len(&self) -> u64 {
        self.len
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

/// A file of memory whose length can't be reduced, as a VM passes it.
///
/// # Errors
/// The process has too many files.
pub fn sealed(bytes: u64) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(c"uverbs-vfio", flags)?);
    file.set_len(bytes)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
    Ok(file)
}

/// A mapped part of the guest's address space.
#[derive(Debug)]
struct Region {
    start: u64,
    memory: Mapped,
}

/// The entries of all page lists of a VM: 64 GiB in pages of 4 KiB.
const MAX_ENTRIES: usize = 1 << 24;

/// The guest's memory by bus address. The VM maps and unmaps pieces of it. When [`unmap`](Self::unmap) has returned, no access to what
/// was unmapped is in progress.
#[derive(Default)]
pub struct Guest {
    regions: RwLock<Vec<Region>>,
    /// The entries of all page lists.
    entries: AtomicUsize,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").finish_non_exhaustive()
    }
}

impl Guest {
    /// Counts the entries of a new page list; `false` if there are too many of all lists.
    pub fn take_entries(&self, count: usize) -> bool {
        let room = MAX_ENTRIES.checked_sub(count);
        let taken = |entries| room.filter(|room| entries <= *room).map(|_| entries + count);
        self.entries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    /// A page list is dropped.
    pub fn give_entries(&self, count: usize) {
        self.entries.fetch_sub(count, Ordering::Relaxed);
    }

    /// Maps `len` bytes of a file at a bus address.
    ///
    /// # Errors
    /// The file can become shorter, or has no such bytes; the VM has mapped too much.
    pub fn map(&self, start: u64, len: u64, file: &File, offset: u64) -> Result<(), Unmapped> {
        let end = start.checked_add(len).ok_or(Unmapped::Outside)?;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.retain(|r| r.start.saturating_add(r.memory.len) <= start || r.start >= end);
        let mapped: u64 = regions.iter().map(|r| r.memory.len).sum();
        if regions.len() >= MAX_REGIONS || mapped.saturating_add(len) > MAX_BYTES {
            return Err(Unmapped::Limit);
        }
        let memory = Mapped::new(file, offset, len)?;
        let place = regions.partition_point(|r| r.start <= start);
        regions.insert(place, Region { start, memory });
        Ok(())
    }

    /// Removes the mappings inside a range.
    pub fn unmap(&self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.retain(|r| r.start < start || r.start.saturating_add(r.memory.len) > end);
    }

    /// Removes all mappings.
    pub fn unmap_all(&self) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Calls `f` with the piece that has the byte at an address, and the byte's offset in it. It stays mapped meanwhile.
    fn at<R>(&self, addr: u64, f: impl FnOnce(&Mapped, u64) -> Result<R, Fault>) -> Result<R, Fault> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let index = regions.partition_point(|r| r.start <= addr).checked_sub(1).ok_or(Fault)?;
        let region = regions.get(index).ok_or(Fault)?;
        let offset = addr - region.start;
        if offset < region.memory.len { f(&region.memory, offset) } else { Err(Fault) }
    }

    /// Calls `f` for each piece of a range: the memory, the offset in it, the part of the range.
    fn each(
        &self,
        addr: u64,
        len: usize,
        mut f: impl FnMut(&ProcessRange, u64, core::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let at = addr.checked_add(done as u64).ok_or(Fault)?;
            done += self.at(at, |memory, offset| {
                let n = usize::try_from(memory.len - offset).unwrap_or(usize::MAX).min(len - done);
                f(&memory.range, offset, done..done + n)?;
                Ok(n)
            })?;
        }
        Ok(())
    }
}

/// The guest's memory by bus address is a range from 0 on.
impl Memory for Guest {
    fn len(&self) -> u64 {
        u64::MAX
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let len = to.len();
        self.each(offset, len, |memory, at, part| memory.read(at, to.get_mut(part).ok_or(Fault)?))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.each(offset, from.len(), |memory, at, part| memory.write(at, from.get(part).ok_or(Fault)?))
    }

    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        self.at(offset, |memory, at| memory.update(at, f))
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        self.at(offset, Mapped::load_be32)
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.at(offset, |memory, at| memory.publish(at, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(bytes: u64) -> File {
        super::sealed(bytes).unwrap()
    }

    #[test]
    fn memory_can_be_mapped_and_unmapped() {
        let file = sealed(0x3000);
        let guest = Guest::default();
        guest.map(0x1000, 0x1000, &file, 0x1000).unwrap();
        guest.map(0x2000, 0x1000, &file, 0x2000).unwrap();
        assert_eq!(guest.map(0x9000, 0x1000, &file, 0x3000), Err(Unmapped::Outside), "behind the end");
        assert_eq!(guest.map(u64::MAX, 0x1000, &file, 0), Err(Unmapped::Outside));
        // A range over two pieces.
        guest.write(0x1ffc, &[1; 8]).unwrap();
        let mut back = [0; 8];
        guest.read(0x1ffc, &mut back).unwrap();
        assert_eq!(back, [1; 8]);
        assert_eq!(guest.read(0xfff, &mut back), Err(Fault));
        guest.unmap(0x2000, 0x1000);
        assert_eq!(guest.write(0x1ffc, &[1; 8]), Err(Fault));
        guest.write(0x1ff8, &[1; 8]).unwrap();
        guest.unmap_all();
        assert_eq!(guest.write(0x1ff8, &[1; 8]), Err(Fault));
    }

    /// The VM could truncate it later, and the next access would end this process.
    #[test]
    fn memory_that_can_be_truncated_is_refused() {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(0x1000).unwrap();
        let guest = Guest::default();
        assert_eq!(guest.map(0, 0x1000, &file, 0), Err(Unmapped::Changeable));
        file.set_len(0).unwrap();
        assert_eq!(guest.write(0, &[1]), Err(Fault));
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(guest.map(0, 0x1000, &file, 0), Err(Unmapped::Changeable));
    }

    #[test]
    fn a_vm_can_map_only_so_many_pieces() {
        let file = sealed(0x1000);
        let guest = Guest::default();
        for i in 0..MAX_REGIONS as u64 {
            guest.map(i << 12, 0x1000, &file, 0).unwrap();
        }
        assert_eq!(guest.map(1 << 40, 0x1000, &file, 0), Err(Unmapped::Limit));
        // A piece at the place of another one replaces it.
        guest.map(0x3000, 0x1000, &file, 0).unwrap();
        guest.unmap(0, 0x1000);
        guest.map(1 << 40, 0x1000, &file, 0).unwrap();
    }
}
