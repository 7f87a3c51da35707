// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's memory by bus address. The VM maps it for the device.
// UNSAFETY: maps the files that the VM passes, and gives them to code that accesses memory by address.
#![expect(unsafe_code)]

use core::fmt;
use core::num::NonZeroUsize;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::sync::{Arc, PoisonError, RwLock};
use uverbs_hca::memory::{Fault, Memory};
use uverbs_hca::process::ProcessRange;

/// A part of the guest's memory, mapped into this process.
#[derive(Debug)]
struct Mapped {
    range: ProcessRange,
    len: u64,
    base: core::ptr::NonNull<core::ffi::c_void>,
}

// SAFETY: a mapping may be used by any thread; `base` is only used to unmap it.
unsafe impl Send for Mapped {}
// SAFETY: `base` is only used to unmap the memory, with `&mut self`; `range` is `Sync`.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// `len` bytes at `offset` of a file.
    fn new(file: &File, offset: u64, len: u64) -> Option<Self> {
        let size = NonZeroUsize::new(usize::try_from(len).ok()?)?;
        let offset = i64::try_from(offset).ok()?;
        // An access beyond the end of the file would raise SIGBUS in this process.
        let end = u64::try_from(offset).ok()?.checked_add(len)?;
        if file.metadata().ok()?.len() < end {
            return None;
        }
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; it aliases no Rust object.
        let base = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, file, offset) }.ok()?;
        let addr = base.as_ptr().expose_provenance() as u64;
        // SAFETY: the range is mapped readable and writable until `Mapped` is dropped, which drops `range` with it, and
        // no Rust object is there.
        let range = unsafe { ProcessRange::new(addr, len) }?;
        Some(Self { range, len, base })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, of this length, which is no longer used: `range` is dropped with it.
        let _ = unsafe { munmap(self.base, self.len as usize) };
    }
}

/// A mapped part of the guest's address space.
#[derive(Clone, Debug)]
struct Region {
    start: u64,
    memory: Arc<Mapped>,
}

/// The guest's memory by bus address. The VM maps and unmaps pieces of it.
#[derive(Default)]
pub(crate) struct Guest {
    regions: RwLock<Vec<Region>>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").finish_non_exhaustive()
    }
}

impl Guest {
    /// Maps `len` bytes of a file at a bus address; `false` if that fails.
    pub(crate) fn map(&self, start: u64, len: u64, file: &File, offset: u64) -> bool {
        if start.checked_add(len).is_none() {
            return false;
        }
        let Some(memory) = Mapped::new(file, offset, len) else { return false };
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.retain(|r| r.start.saturating_add(r.memory.len) <= start || r.start >= start + len);
        regions.push(Region { start, memory: Arc::new(memory) });
        regions.sort_by_key(|r| r.start);
        true
    }

    /// Removes the mappings inside a range.
    pub(crate) fn unmap(&self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.retain(|r| r.start < start || r.start.saturating_add(r.memory.len) > end);
    }

    /// Removes all mappings.
    pub(crate) fn unmap_all(&self) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The piece with the byte at an address, and the byte's offset in it.
    fn find(&self, addr: u64) -> Result<(Arc<Mapped>, u64), Fault> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let index = regions.partition_point(|r| r.start <= addr).checked_sub(1).ok_or(Fault)?;
        let region = regions.get(index).ok_or(Fault)?;
        let offset = addr - region.start;
        if offset < region.memory.len { Ok((Arc::clone(&region.memory), offset)) } else { Err(Fault) }
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
            let (memory, offset) = self.find(at)?;
            let n = usize::try_from(memory.len - offset).unwrap_or(usize::MAX).min(len - done);
            f(&memory.range, offset, done..done + n)?;
            done += n;
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
        let (memory, at) = self.find(offset)?;
        memory.range.update(at, f)
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        let (memory, at) = self.find(offset)?;
        memory.range.load_be32(at)
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        let (memory, at) = self.find(offset)?;
        memory.range.publish(at, bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    /// A guest with `len` bytes of memory from bus address 0 on.
    pub(crate) fn guest(bytes: u64) -> Arc<Guest> {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(bytes).unwrap();
        let guest = Guest::default();
        assert!(guest.map(0, bytes, &file, 0));
        Arc::new(guest)
    }

    #[test]
    fn memory_can_be_mapped_and_unmapped() {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(0x3000).unwrap();
        let guest = Guest::default();
        assert!(guest.map(0x1000, 0x1000, &file, 0x1000));
        assert!(guest.map(0x2000, 0x1000, &file, 0x2000));
        assert!(!guest.map(0x9000, 0x1000, &file, 0x3000), "behind the end of the file");
        assert!(!guest.map(u64::MAX, 0x1000, &file, 0));
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
}
