// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's memory, which the VM maps for the device. The engine accesses it in two forms: all of it by bus address,
//! or a list of pages as one range.
// UNSAFETY: maps the files that the VM hands over, and gives them to code that accesses memory by address.
#![expect(unsafe_code)]

use core::fmt;
use core::num::NonZeroUsize;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::sync::{Arc, PoisonError, RwLock};
use uverbs_hca::front::Translate;
use uverbs_hca::memory::{Area, Fault, Memory};
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
        // An access beyond the end of the file would be a fault of this process.
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

/// A piece of the guest's address space.
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
    /// Maps `len` bytes of a file at a bus address; `false` if that can't be.
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

    /// Takes away everything.
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

/// Pages of the guest's as one range.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    guest: Arc<Guest>,
    /// Bus addresses of the pages.
    pages: Vec<u64>,
    /// Bytes of a page, as a power of two.
    shift: u32,
    /// Bytes of the first page in front of the range.
    skip: u64,
    len: u64,
}

/// The largest page that a list may have.
const MAX_SHIFT: u32 = 40;

impl Pages {
    /// `len` bytes, `skip` bytes behind the start of a list of pages of 2^`shift` bytes. `None` if the list is too
    /// short, or an address is not a page's.
    pub(crate) fn new(guest: &Arc<Guest>, pages: Vec<u64>, shift: u32, skip: u64, len: u64) -> Option<Self> {
        if shift > MAX_SHIFT || pages.iter().any(|p| p & ((1 << shift) - 1) != 0) {
            return None;
        }
        let end = skip.checked_add(len)?;
        ((pages.len() as u64).checked_mul(1 << shift)? >= end).then(|| Self {
            guest: Arc::clone(guest),
            pages,
            shift,
            skip,
            len,
        })
    }

    /// The list of a command, `count` entries of 8 bytes whose low 12 bits are flags.
    pub(crate) fn list(bytes: &[u8], count: u64) -> Option<Vec<u64>> {
        let bytes = bytes.get(..usize::try_from(count.checked_mul(8)?).ok()?)?;
        Some(bytes.chunks_exact(8).map(|b| uverbs_hca::bytes::be64(b, 0) & !0xfff).collect())
    }

    /// A part of the range.
    pub(crate) fn area(self: &Arc<Self>, base: u64, len: u64) -> Option<Area> {
        Area::new(Arc::clone(self) as Arc<dyn Memory>, base, len)
    }

    /// The bus address of a byte, and how many bytes follow in its page.
    fn bus(&self, offset: u64, len: u64) -> Result<(u64, u64), Fault> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Fault);
        }
        let at = self.skip + offset;
        let page = self.pages.get(usize::try_from(at >> self.shift).map_err(|_| Fault)?).ok_or(Fault)?;
        let inside = at & ((1 << self.shift) - 1);
        Ok((page + inside, (1 << self.shift) - inside))
    }

    fn each(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(u64, core::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let (bus, room) = self.bus(offset + done as u64, (len - done) as u64)?;
            let n = usize::try_from(room).unwrap_or(usize::MAX).min(len - done);
            f(bus, done..done + n)?;
            done += n;
        }
        Ok(())
    }
}

impl Memory for Pages {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let len = to.len();
        self.each(offset, len, |bus, part| self.guest.read(bus, to.get_mut(part).ok_or(Fault)?))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.each(offset, from.len(), |bus, part| self.guest.write(bus, from.get(part).ok_or(Fault)?))
    }

    // An aligned word does not cross a page.
    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        self.guest.update(self.bus(offset, 8)?.0, f)
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        self.guest.load_be32(self.bus(offset, 4)?.0)
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.guest.publish(self.bus(offset, 8)?.0, bytes)
    }
}

/// Makes ranges of the lists that updates of memory keys bring.
#[derive(Debug)]
pub(crate) struct Lists(pub(crate) Arc<Guest>);

impl Translate for Lists {
    fn pages(&self, list: Vec<u64>, shift: u32, skip: u64, len: u64) -> Option<Arc<dyn Memory>> {
        Some(Arc::new(Pages::new(&self.0, list, shift, skip, len)?))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    /// A guest with so many bytes of memory from bus address 0 on.
    pub(crate) fn guest(bytes: u64) -> Arc<Guest> {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(bytes).unwrap();
        let guest = Guest::default();
        assert!(guest.map(0, bytes, &file, 0));
        Arc::new(guest)
    }

    #[test]
    fn a_list_of_pages_is_one_range() {
        let guest = guest(0x10000);
        let pages = Pages::new(&guest, vec![0x5000, 0x2000, 0x9000], 12, 0xf80, 0x1100).unwrap();
        let data: Vec<u8> = (0..0x1100).map(|i| i as u8).collect();
        pages.write(0, &data).unwrap();
        let mut back = vec![0; 0x1100];
        pages.read(0, &mut back).unwrap();
        assert_eq!(back, data);
        let mut part = [0; 0x80];
        guest.read(0x5f80, &mut part).unwrap();
        assert_eq!(part[..], data[..0x80]);
        guest.read(0x9000, &mut part).unwrap();
        assert_eq!(part[..], data[0x1080..]);
        assert_eq!(pages.write(0x10f8, &[0; 9]), Err(Fault));
        assert_eq!(pages.read(u64::MAX, &mut part), Err(Fault));
        pages.publish(0x78, [7; 8]).unwrap();
        guest.read(0x5ff8, &mut part[..8]).unwrap();
        assert_eq!(part[..8], [7; 8]);
    }

    #[test]
    fn invalid_page_lists_are_refused() {
        let guest = guest(0x1000);
        assert!(Pages::new(&guest, vec![0x1000], 12, 1, 0x1000).is_none(), "too short");
        assert!(Pages::new(&guest, vec![0x10_0000], 21, 0, 1).is_none(), "not a page of this size");
        assert!(Pages::new(&guest, vec![0], 64, 0, 1).is_none(), "a size that there is not");
        assert!(Pages::new(&guest, vec![0; 2], 12, u64::MAX, 2).is_none(), "wraps");
        assert!(Pages::list(&[0; 15], 2).is_none(), "fewer bytes than entries");
        assert!(Pages::list(&[0; 16], u64::MAX).is_none());
        // An address without memory is found out when it is used.
        let gone = Pages::new(&guest, vec![0x7000_0000_0000], 12, 0, 0x1000).unwrap();
        assert_eq!(gone.write(0, &[1]), Err(Fault));
        assert_eq!(gone.load_be32(0), Err(Fault));
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
