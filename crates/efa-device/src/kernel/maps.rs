// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a context may map: rings, which the kernel allocates, and pages of doorbells. The answers of commands have their offsets.
// UNSAFETY: lends pages as mappings, and to the device.
#![expect(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{Mapping, Protection, page_size};
use uverbs_fabric::map::Map;
use uverbs_fabric::memory::Area;
use uverbs_fabric::process::ProcessRange;
use uverbs_softkernel::program_memory::OwnedRange;

/// Bytes of a page of the machine, in which rings and doorbells are mapped.
pub(super) fn page_bytes() -> usize {
    page_size() as usize
}

/// The alignment of a ring.
const BLOCK: usize = 4096;
/// The offsets that mmap(2) takes (`rdma_user_mmap_entry_insert()`), in pages.
const MOST: u64 = u32::MAX as u64;

/// A part of a ring.
#[derive(Debug)]
#[repr(C, align(4096))]
struct Block([AtomicU64; BLOCK / 8]);

/// The memory of a ring.
#[derive(Clone, Debug)]
pub(super) struct Pages(Arc<[Block]>);

impl Pages {
    /// Zeroed pages for so many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let blocks = bytes.next_multiple_of(page_bytes()).div_ceil(BLOCK);
        Self((0..blocks).map(|_| Block([const { AtomicU64::new(0) }; BLOCK / 8])).collect())
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len() * BLOCK
    }

    /// The first bytes, for the device.
    pub(super) fn area(&self, bytes: u64) -> Option<Area> {
        let len = self.len() as u64;
        let addr = self.0.as_ptr().expose_provenance() as u64;
        // SAFETY: all of the pages, which are atomics, and alive while the owner holds them.
        let range = unsafe { ProcessRange::new(addr, len) }?;
        Area::new(Arc::new(OwnedRange { range, _owner: Arc::clone(&self.0) }), 0, bytes)
    }

    /// A mapping for the program.
    fn map(&self, protection: Protection) -> Mapping {
        let ptr = NonNull::from(&*self.0).cast();
        let (len, owner) = (self.len(), Arc::clone(&self.0));
        match protection {
            // SAFETY: all bytes of the pages, which are atomics and which the owner keeps.
            Protection::Read => unsafe { Mapping::read_only(ptr, len, owner) },
            // SAFETY: as above.
            Protection::ReadWrite => unsafe { Mapping::new(ptr, len, owner) },
        }
    }
}

/// The queues whose doorbells are in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bells {
    Qp(u16),
    Cq(u16),
}

/// What an offset stands for.
#[derive(Clone, Debug)]
pub(super) enum Mapped {
    Ring(Pages),
    Bells(Bells),
}

impl Mapped {
    fn pages(&self) -> u64 {
        match self {
            Self::Ring(pages) => (pages.len() / page_bytes()) as u64,
            Self::Bells(_) => 1,
        }
    }
}

/// What a context may map, by page number.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    entries: Map<u64, Mapped>,
    next: u64,
}

impl Maps {
    /// Adds an entry, and returns its offset.
    pub(super) fn add(&mut self, mapped: Mapped) -> Result<u64, Errno> {
        let (first, end) = (self.next, self.next + mapped.pages());
        if end > MOST {
            return Err(Errno::ENOMEM);
        }
        self.next = end;
        self.entries.insert(first, mapped);
        Ok(first * page_bytes() as u64)
    }

    pub(super) fn remove(&mut self, offset: u64) {
        self.entries.remove(&(offset / page_bytes() as u64));
    }

    /// The entry of an offset and a length, which must be its own (`rdma_user_mmap_entry_get_pgoff()`).
    fn get(&self, offset: u64, len: usize) -> Result<&Mapped, Errno> {
        let bytes = page_bytes();
        let page = offset / bytes as u64;
        let entry = self.entries.get(&page).filter(|_| offset.is_multiple_of(bytes as u64));
        entry.filter(|entry| len.div_ceil(bytes) as u64 == entry.pages()).ok_or(Errno::EINVAL)
    }

    /// The ring at an offset, as a mapping.
    pub(super) fn ring(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        match self.get(offset, len)? {
            Mapped::Ring(pages) => Ok(pages.map(protection)),
            Mapped::Bells(_) => Err(Errno::EINVAL),
        }
    }

    /// The doorbells at an offset.
    pub(super) fn bells(&self, offset: u64, len: usize) -> Result<Bells, Errno> {
        match self.get(offset, len)? {
            Mapped::Bells(bells) => Ok(*bells),
            Mapped::Ring(_) => Err(Errno::EINVAL),
        }
    }
}

impl Bells {
    /// The object whose doorbells they are.
    pub(super) fn object(self) -> crate::violation::Object {
        match self {
            Self::Qp(qpn) => crate::violation::Object::Qp(qpn),
            Self::Cq(cq) => crate::violation::Object::Cq(cq),
        }
    }
}
