// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue memory: the memory that the kernel pins when a queue is created, and its use by the data path.
//!
//! | module | what |
//! |---|---|
//! | `allocator` | memory that a program allocates itself |
//! | `index` | index types of the send queue: a basic block, a number of blocks |
//! | `sq_ring` | a send queue's ring, and the private record of each WQE |
//! | `queue_ref` | a send queue's shared part, with the addresses of its ring |
//! | `stride_ring` | a ring of elements of one size: receive queues and shared receive queues |
//! | `cqe_ring` | a completion queue's ring, as its poller uses it |
//! | `dbrec` | doorbell records |
//!
//! All `unsafe` code about queue memory is here. Queue memory is accessed as atomics of 8 bytes at masked indices, so
//! no index value can leave the queue, and concurrent accesses by the device or by another thread are not data races. A
//! relaxed store of 8 bytes compiles to a plain store on every supported architecture.
#![expect(unsafe_code)]
// UNSAFETY: mapped memory becomes references to atomics; every access is inside the geometry that a constructor
// checked.

mod allocator;
mod cqe_ring;
pub mod dbrec;
mod index;
mod queue_ref;
mod sq_ring;
mod stride_ring;

pub use allocator::{Allocator, MemoryUse, QueueAllocator};
pub use cqe_ring::BlockRing;
pub(crate) use cqe_ring::{Block, BlockCursor, BlockPosition};
pub(crate) use index::{BlockCount, BlockIndex, UnitIndex};
pub(crate) use queue_ref::SendQueueRef;
pub(crate) use sq_ring::{CompletedCount, Record, Records, Segment, SqAddrs};
pub use sq_ring::{SqRing, SqView};
pub(crate) use stride_ring::RecvRing;
pub use stride_ring::StrideRing;

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use memmap2::{MmapMut, MmapOptions, MmapRaw};
use std::env;
use std::io;
use std::sync::Arc;
use uverbs_core::kernel::page_size;

// Table entries, which no device accesses: loom's type when loom checks the model.
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::AtomicU64 as Entry64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64 as Entry64;

/// Bits of an address in a huge page: 2 MiB.
const HUGE_BITS: u8 = 21;

/// The pages of queues. Huge pages need fewer address translations in the device, but the administrator must reserve
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// The machine's pages.
    #[default]
    Usual,
    /// Huge pages only: if none is free, the queue can't be created.
    Huge,
    /// Huge pages if some are free.
    PreferHuge,
    /// Those that this environment variable names when the queue is created, as in the reference provider.
    Variable(&'static str),
}

impl Pages {
    /// The pages that the value of a variable names.
    pub(crate) fn named(value: Option<&str>) -> Self {
        match value {
            Some("HUGE") => Self::Huge,
            Some("PREFER_HUGE" | "ALL") => Self::PreferHuge,
            // Contiguous memory of the kernel was an extension; libmlx5 falls back to the usual pages, too.
            _ => Self::Usual,
        }
    }
}

/// Page-aligned, zeroed memory of one queue or of several. The device may read and write it from the time when it is
/// passed to the kernel until the object is destroyed. So its users share it by an `Arc`, and it is leaked if the
/// kernel refuses to destroy the object.
///
/// # Invariants
/// `len` bytes from `start` on are readable and writable as long as `owner` exists, and all references to them are to
/// atomics.
pub struct QueueBuf {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// The owner of the memory, which frees it.
enum Owner {
    Map { _map: MmapRaw },
    Program(allocator::Owned),
}

// SAFETY: the address is that of memory which this value owns, or which it has from its allocator, which any thread may
// call. The memory is accessed by atomics only.
unsafe impl Send for QueueBuf {}
// SAFETY: as above.
unsafe impl Sync for QueueBuf {}

impl QueueBuf {
    /// `len` bytes, rounded up to a multiple of [`PAGE`].
    ///
    /// # Errors
    /// The error of mmap(2).
    pub fn new(len: usize) -> io::Result<Arc<Self>> {
        let map = MmapMut::map_anon(len.max(1).next_multiple_of(PAGE))?;
        Ok(Arc::new(Self::of_map(map)))
    }

    fn of_map(map: MmapMut) -> Self {
        let map = MmapRaw::from(map);
        // A mapping is never at address 0.
        let start = NonNull::new(map.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { start, len: map.len(), owner: Owner::Map { _map: map } }
    }

    /// Memory of the program's allocator; if it has none, or that returns `None`, as [`with_pages`](Self::with_pages).
    ///
    /// # Errors
    /// The error of mmap(2).
    pub fn allocated(
        allocator: Allocator<'_>,
        len: usize,
        pages: Pages,
        what: MemoryUse,
    ) -> io::Result<Arc<Self>> {
        match Self::of_program(allocator, len, page_size() as usize, what)? {
            Some(buf) => Ok(Arc::new(buf)),
            None => Self::with_pages(len, pages),
        }
    }

    /// Memory of the program's allocator, if it has one that allocates this memory.
    fn of_program(
        allocator: Allocator<'_>,
        len: usize,
        alignment: usize,
        what: MemoryUse,
    ) -> io::Result<Option<Self>> {
        let Some(allocator) = allocator else { return Ok(None) };
        let owned = allocator::Owned::new(allocator, len, alignment, what)?;
        Ok(owned.map(|owned| Self { start: owned.start(), len, owner: Owner::Program(owned) }))
    }

    /// The program's allocator, if the memory is from it.
    pub(crate) fn allocator(&self) -> Allocator<'_> {
        match &self.owner {
            Owner::Map { .. } => None,
            Owner::Program(owned) => Some(owned.allocator()),
        }
    }

    /// As [`new`](Self::new), in pages of this kind.
    ///
    /// # Errors
    /// The error of mmap(2), also if there are too few huge pages and no others are allowed.
    pub fn with_pages(len: usize, pages: Pages) -> io::Result<Arc<Self>> {
        let huge = || {
            // munmap(2) takes whole pages only.
            let len = len.max(1).next_multiple_of(1 << HUGE_BITS);
            let map = MmapOptions::new().len(len).huge(Some(HUGE_BITS)).map_anon()?;
            Ok(Arc::new(Self::of_map(map)))
        };
        match pages {
            Pages::Usual => Self::new(len),
            Pages::Huge => huge(),
            Pages::PreferHuge => huge().or_else(|_: io::Error| Self::new(len)),
            Pages::Variable(name) => Self::with_pages(len, Pages::named(env::var(name).ok().as_deref())),
        }
    }

    /// The address, for the kernel.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always `false`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address at `offset`, if `len` bytes from there on are inside the memory and `offset` is a multiple of 64.
    fn part(&self, offset: usize, len: usize) -> Option<NonNull<AtomicU64>> {
        if !offset.is_multiple_of(64) || offset > self.len() || len > self.len() - offset {
            return None;
        }
        // SAFETY: `offset` is at most the memory's length.
        let start = unsafe { self.start.add(offset) };
        Some(start.cast())
    }

    /// The whole memory as words, for a software device and for tests.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory of a queue starts at a page boundary, and that of a program's record is aligned to 8; it
        // has this length, and is readable and writable while it is borrowed (invariant). Other threads access it by
        // atomics only, and the device by DMA.
        unsafe { core::slice::from_raw_parts(self.start.cast().as_ptr(), self.len / 8) }
    }
}

impl fmt::Debug for QueueBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueBuf").field("addr", &self.start).field("len", &self.len()).finish()
    }
}

/// The smallest page of a machine. mmap(2) and munmap(2) round up to pages of this machine.
pub const PAGE: usize = 4096;

/// A table with an entry per block or element of a ring, indexed modulo its length.
///
/// # Invariants
/// The length is `mask + 1`, a power of two.
#[derive(Debug)]
pub struct Table<T> {
    entries: Box<[T]>,
    mask: u32,
}

impl<T: Default> Table<T> {
    /// A table of `len` entries, rounded up to a power of two.
    #[must_use]
    pub fn new(len: u32) -> Self {
        let len = len.max(1).next_power_of_two();
        Self { entries: (0..len).map(|_| T::default()).collect(), mask: len - 1 }
    }
}

impl<T> Table<T> {
    /// The entry at `index`, modulo the length.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn get(&self, index: u32) -> &T {
        // SAFETY: a masked index is less than the length (invariant).
        unsafe { self.entries.get_unchecked((index & self.mask) as usize) }
    }

    /// All entries.
    pub fn iter(&self) -> core::slice::Iter<'_, T> {
        self.entries.iter()
    }
}

/// The words of a page of doorbell records.
pub(crate) fn dwords(buf: &QueueBuf) -> &[AtomicU32] {
    // SAFETY: the memory is aligned to 8 at least and has this length; it is readable and writable while it is borrowed
    // (invariant). Only this function returns references to a page of records, and they are to atomics.
    unsafe { core::slice::from_raw_parts(buf.start.cast().as_ptr(), buf.len / 4) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn huge_pages_are_used_if_available() {
        let preferred = QueueBuf::with_pages(8192, Pages::PreferHuge).unwrap();
        assert!([8192, 1 << HUGE_BITS].contains(&preferred.len()), "{}", preferred.len());
        preferred.words()[1].store(7, Relaxed);
        match QueueBuf::with_pages(8192, Pages::Huge) {
            Ok(buf) => assert_eq!(buf.len(), 1 << HUGE_BITS),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOMEM)),
        }
        assert_eq!(QueueBuf::with_pages(1, Pages::Usual).unwrap().len(), PAGE);
        assert_eq!(QueueBuf::with_pages(1, Pages::Variable("NO_SUCH_VARIABLE")).unwrap().len(), PAGE);
    }

    #[test]
    fn rings_outside_the_memory_are_refused() {
        let buf = QueueBuf::new(4096).unwrap();
        assert!(buf.addr().is_multiple_of(4096));
        let sq = |offset, blocks| SqRing::new(Arc::clone(&buf), offset, blocks).is_some();
        assert!(sq(0, 64) && sq(2048, 32) && sq(4032, 1));
        assert!(!sq(64, 64) && !sq(0, 128) && !sq(0, 3) && !sq(0, 0) && !sq(32, 1) && !sq(8192, 1));
        assert!(!sq(0, 1 << 17));
        let rq = |offset, count, stride| StrideRing::new(Arc::clone(&buf), offset, count, stride).is_some();
        assert!(rq(0, 256, 16) && rq(64, 4, 512) && rq(0, 1, 4096));
        assert!(
            !rq(0, 256, 8) && !rq(0, 512, 16) && !rq(0, 5, 16) && !rq(0, 1 << 31, 1 << 31) && !rq(0, 1, 48)
        );
    }

    #[test]
    fn every_index_is_masked_to_the_ring() {
        let buf = QueueBuf::new(4096).unwrap();
        let ring = SqRing::new(Arc::clone(&buf), 2048, 32).unwrap();
        let sq = ring.view();
        let rq = StrideRing::new(Arc::clone(&buf), 0, 16, 64).unwrap();
        let first = |word: &AtomicU64| core::ptr::from_ref(word).addr() as u64 - buf.addr();
        for i in [0, 1, 31, 32, 1 << 16, u32::MAX - 1, u32::MAX] {
            assert_eq!(first(&sq.block(i)[0]), 2048 + u64::from(i % 32) * 64);
            assert_eq!(first(&sq.unit(i)[0]), 2048 + u64::from(i % 128) * 16);
            assert_eq!(first(sq.word(i)), 2048 + u64::from(i % 256) * 8);
            sq.wr_id(i).store(u64::from(i), Relaxed);
            sq.record(BlockIndex::of(i)).set_done(CompletedCount::new(i.into(), i as u8));
            let done = sq.record(BlockIndex::of(i % 32)).done();
            let entry = (sq.wr_id(i % 32).load(Relaxed), done.head(), done.op());
            assert_eq!(entry, (u64::from(i), i, i as u8));
            assert_eq!(first(&rq.element(i)[0]), u64::from(i % 16) * 64);
            assert_eq!(first(&rq.unit(i, i)[0]), u64::from(i % 16) * 64 + u64::from(i % 4) * 16);
        }
        assert_eq!(rq.element(3).len(), 8);
        sq.block(33)[7].store(9, Relaxed);
        assert_eq!(buf.words()[(2048 + 64) / 8 + 7].load(Relaxed), 9);
    }

    #[test]
    fn table_sizes_are_rounded_up_to_powers_of_two() {
        let table = Table::<u32>::new(5);
        assert_eq!((table.iter().len(), table.mask, *table.get(u32::MAX)), (8, 7, 0));
        assert_eq!(Table::<u8>::new(0).iter().len(), 1);
    }
}
