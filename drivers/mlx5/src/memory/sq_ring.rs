// SPDX-License-Identifier: MIT OR Apache-2.0
//! A send queue's ring of 64-byte basic blocks, and the record of each WQE, which only this process accesses.
// UNSAFETY: accesses queue memory by computed addresses, which are inside the geometry that the constructor checked.

use super::{BlockIndex, Entry64, QueueBuf, UnitIndex};
use core::fmt;
use core::hint::cold_path;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use uverbs_core::sync::copy;

/// The data of a WQE that its completion needs, stored beside the ring at the index of the WQE's first block.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Record {
    /// The WR's `wr_id`.
    pub(crate) wr_id: Entry64,
    /// A [`CompletedCount`].
    pub(crate) done: Entry64,
}

/// The data of a completed WQE: the number of WRs that had been posted up to it, and the operation of a UMR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletedCount(u64);

impl CompletedCount {
    /// `head` must be below 2^56. At 100 million WRs per second that takes more than twenty years.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn new(head: u64, op: u8) -> Self {
        Self((op as u64) << 56 | head)
    }

    /// The number of WRs that had been posted up to the WQE, modulo 2^32.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn head(self) -> u32 {
        self.0 as u32
    }

    /// The value for a block at which no WQE begins.
    pub(crate) const NO_WQE: Self = Self(u64::MAX);

    /// `umr_op`
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn op(self) -> u8 {
        (self.0 >> 56) as u8
    }
}

impl Record {
    /// The recorded data of its WQE.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn done(&self) -> CompletedCount {
        CompletedCount(self.done.load(Ordering::Relaxed))
    }

    /// Records the data of the WQE.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn set_done(&self, done: CompletedCount) {
        self.done.store(done.0, Ordering::Relaxed);
    }
}

/// The records of a ring, or another number of records that is a power of two.
///
/// # Invariants
/// `mask` is 16 times the number of records, which is a power of two, minus 16; `records` is the address of the first one.
#[derive(Clone, Copy)]
pub(crate) struct Records<'r> {
    records: NonNull<Record>,
    mask: u32,
    _records: PhantomData<&'r Record>,
}

// SAFETY: the address is that of records, which are shared and consist of atomics.
unsafe impl Send for Records<'_> {}
// SAFETY: `&Records` only allows atomic accesses.
unsafe impl Sync for Records<'_> {}

impl<'r> Records<'r> {
    /// One record, which is used for every index.
    pub(crate) fn of_one(record: &'r Record) -> Self {
        Self { records: NonNull::from(record), mask: 0, _records: PhantomData }
    }

    /// The record of a block, modulo the number of records.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn at(self, place: BlockIndex) -> &'r Record {
        let offset = (place.0 & self.mask) as usize;
        #[cfg(not(loom))]
        const {
            assert!(size_of::<Record>() == 16)
        };
        // SAFETY: the masked index is the offset of a record (invariant), because a record has 16 bytes.
        #[cfg(not(loom))]
        let record = unsafe { self.records.byte_add(offset) };
        // SAFETY: the masked index divided by 16 is the index of a record (invariant). loom's atomics have another size, so
        // the byte offset can't be used.
        #[cfg(loom)]
        let record = unsafe { self.records.add(offset >> BlockIndex::SHIFT) };
        // SAFETY: the address of a record, which exists while it is borrowed.
        unsafe { record.as_ref() }
    }
}

impl<'r> Records<'r> {
    /// The `count` records from that of a block on, if they do not wrap at the ring's end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn some_from(self, place: BlockIndex, count: u32) -> Option<&'r [Record]> {
        let first = (place.0 & self.mask) >> BlockIndex::SHIFT;
        if count > (self.mask >> BlockIndex::SHIFT) + 1 - first {
            return None;
        }
        // SAFETY: the masked index is that of a record (invariant).
        let records = unsafe { self.records.add(first as usize) };
        // SAFETY: there are at least `count` records from that one on (checked above); they exist while they are borrowed, and
        // are used by atomics only.
        Some(unsafe { core::slice::from_raw_parts(records.as_ptr(), count as usize) })
    }
}

/// The addresses of a send queue's ring of 64-byte basic blocks, and of the records.
///
/// # Invariants
/// `mask + 1` is a power of two, times a [`BlockIndex`]'s 16; that many blocks from `base`, and that many records,
/// exist as long as the value that has this one as a field; `base` is aligned to 64.
#[derive(Debug)]
pub(crate) struct SqAddrs {
    pub(super) base: NonNull<AtomicU64>,
    pub(super) records: NonNull<Record>,
    pub(super) mask: u32,
}

impl SqAddrs {
    /// All addresses as one value.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn view(&self) -> SqView<'_> {
        SqView { base: self.base, records: self.records, mask: self.mask, home: self }
    }
}

impl SqAddrs {
    /// [`SqView::store_bytes`] for bytes that wrap at the ring's end.
    #[cold]
    #[inline(never)]
    fn store_split(&self, first: usize, bytes: &[u8]) {
        let size = self.mask as usize * 4 + BLOCK_BYTES;
        let (mut at, mut rest) = (first % size, bytes);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(size - at));
            // SAFETY: `at` is inside the ring (invariant).
            let to = unsafe { self.base.byte_add(at) };
            // SAFETY: `now` has at most as many bytes as there are up to the ring's end; all references to them are to
            // atomics.
            unsafe { copy::store_bytes(now, to.as_ptr().cast()) };
            (at, rest) = (0, later);
        }
    }
}

/// Bytes of a block.
const BLOCK_BYTES: usize = 64;

/// A send queue's ring, with a record per block.
///
/// # Invariants
/// The records of `addrs` are a boxed slice that [`SqRing::new`] allocated, one per block; they are freed with the ring.
pub struct SqRing {
    pub(super) addrs: SqAddrs,
    buf: Arc<QueueBuf>,
}

// SAFETY: the addresses are those of `buf` and of the records, which the ring owns; all access is by atomics.
unsafe impl Send for SqRing {}
// SAFETY: `&SqRing` only allows atomic accesses to memory that the ring owns.
unsafe impl Sync for SqRing {}

impl SqRing {
    /// `blocks` basic blocks, a power of two up to 2^16 (a WQE index has 16 bits), at `offset` of `buf`, a multiple of 64.
    #[must_use]
    pub fn new(buf: Arc<QueueBuf>, offset: usize, blocks: u32) -> Option<Self> {
        if !blocks.is_power_of_two() || blocks > 1 << 16 {
            return None;
        }
        let base = buf.part(offset, blocks as usize * 64)?;
        let records: Box<[Record]> = (0..blocks).map(|_| Record::default()).collect();
        let mask = (blocks - 1) << BlockIndex::SHIFT;
        // Stored as a pointer instead of a box: moving a box would assert that no other pointer to the records exists.
        let records = NonNull::from(Box::leak(records)).cast();
        Some(Self { addrs: SqAddrs { base, records, mask }, buf })
    }

    /// The largest index of a block.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn mask(&self) -> u32 {
        self.addrs.mask >> BlockIndex::SHIFT
    }

    /// The address of the first block.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.addrs.base.as_ptr().cast()
    }

    /// The memory of the ring.
    #[must_use]
    pub fn buf(&self) -> &Arc<QueueBuf> {
        &self.buf
    }

    /// All addresses as one value.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn view(&self) -> SqView<'_> {
        self.addrs.view()
    }
}

impl Drop for SqRing {
    fn drop(&mut self) {
        let records = NonNull::slice_from_raw_parts(self.addrs.records, self.mask() as usize + 1);
        // SAFETY: the slice is the one that `new` allocated as a box (invariant). The ring is not borrowed any more, and an
        // owner of its addresses owns the ring, too (`SendQueueRef`).
        drop(unsafe { Box::from_raw(records.as_ptr()) });
    }
}

impl fmt::Debug for SqRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = u64::from(self.mask()) + 1;
        f.debug_struct("SqRing").field("blocks", &blocks).field("buf", &self.buf).finish_non_exhaustive()
    }
}

/// The addresses of an [`SqRing`], as long as it is borrowed.
///
/// # Invariants
/// The addresses are those of `home`.
// codegen: reload
#[derive(Clone, Copy)]
pub struct SqView<'r> {
    base: NonNull<AtomicU64>,
    records: NonNull<Record>,
    mask: u32,
    home: &'r SqAddrs,
}

impl<'r> SqView<'r> {
    /// The addresses by reference, for a function that is not inlined.
    // codegen: words
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn addrs_by_ref(self) -> &'r SqAddrs {
        self.home
    }

    /// A block, modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn at(self, place: BlockIndex) -> &'r [AtomicU64; 8] {
        let offset = (place.0 & self.mask) as usize * 4;
        // SAFETY: the masked index is 16 times the index of one of the ring's blocks (invariant), so 4 times it is the
        // block's offset.
        let block = unsafe { self.base.byte_add(offset) };
        // SAFETY: 64 bytes inside the memory, aligned, which exist while the ring is borrowed and are used by atomics only.
        unsafe { block.cast().as_ref() }
    }

    /// The record of a block, modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn record(self, place: BlockIndex) -> &'r Record {
        self.records().at(place)
    }

    /// All records.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn records(self) -> Records<'r> {
        Records { records: self.records, mask: self.mask, _records: PhantomData }
    }

    /// The block at `index`, modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn block(self, index: u32) -> &'r [AtomicU64; 8] {
        self.at(BlockIndex::of(index))
    }

    /// The 16 bytes at `unit`, counted from the ring's start and modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn unit(self, unit: u32) -> &'r [AtomicU64; 2] {
        let unit = unit & (self.mask >> 2 | 3);
        // SAFETY: the masked unit is inside the ring (invariant), because a block has four units.
        let unit = unsafe { self.base.add(unit as usize * 2) };
        // SAFETY: 16 bytes inside the memory, aligned, which exist while the ring is borrowed and are used by atomics only.
        unsafe { unit.cast().as_ref() }
    }

    /// The 16 bytes of a unit, modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn unit_at(self, unit: UnitIndex) -> &'r [AtomicU64; 2] {
        let offset = (unit.0 & (self.mask | UnitIndex::MASK)) as usize * 4;
        // SAFETY: the masked index is 4 times the index of one of the ring's units (invariant), so 4 times it is the unit's
        // offset.
        let unit = unsafe { self.base.byte_add(offset) };
        // SAFETY: 16 bytes inside the memory, aligned, which exist while the ring is borrowed and are used by atomics only.
        unsafe { unit.cast().as_ref() }
    }

    /// The place of `len` bytes from a unit on; `None` if they wrap at the ring's end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn segment(self, unit: UnitIndex, len: usize) -> Option<Segment<'r>> {
        let offset = (unit.0 & (self.mask | UnitIndex::MASK)) as usize * 4;
        let room = self.mask as usize * 4 + BLOCK_BYTES - offset;
        if len > room {
            return None;
        }
        // SAFETY: the masked offset is that of a unit of the ring (invariant), which has `room` bytes from there on.
        let to = unsafe { self.base.byte_add(offset) }.as_ptr().cast::<u8>();
        Some(Segment { to, left: len, _ring: PhantomData })
    }

    /// Copies bytes into the ring, from `skip` bytes after a unit's start on. They may wrap at the ring's end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn store_bytes(self, unit: UnitIndex, skip: u32, bytes: &[u8]) {
        let mask = (self.mask as usize * 4) | (BLOCK_BYTES - 1);
        let first = (unit.0 as usize * 4 + skip as usize) & mask;
        if bytes.len() > mask - first + 1 {
            cold_path();
            return self.home.store_split(first, bytes);
        }
        // SAFETY: the masked offset is inside the ring (invariant).
        let to = unsafe { self.base.byte_add(first) };
        // SAFETY: there are at least as many bytes up to the ring's end (checked above); all references to them are to
        // atomics.
        unsafe { copy::store_bytes(bytes, to.as_ptr().cast()) };
    }

    /// The `count` units from `unit` on, if they do not wrap at the ring's end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn units_from(self, unit: UnitIndex, count: usize) -> Option<&'r [[AtomicU64; 2]]> {
        let first = unit.0 & (self.mask | UnitIndex::MASK);
        // The room up to the ring's end, in the scale of a `UnitIndex`.
        let room = self.mask + (1 << BlockIndex::SHIFT) - first;
        if count > (room / 4) as usize {
            return None;
        }
        // SAFETY: the masked index is 4 times the index of one of the ring's units (invariant), so 4 times it is the unit's
        // offset.
        let units = unsafe { self.base.byte_add(first as usize * 4) };
        // SAFETY: there are at least `count` units up to the ring's end (checked above); they are aligned, exist while the
        // ring is borrowed, and are used by atomics only.
        Some(unsafe { core::slice::from_raw_parts(units.cast().as_ptr(), count) })
    }

    /// The 8 bytes at `word`, counted from the ring's start and modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn word(self, word: u32) -> &'r AtomicU64 {
        let word = word & (self.mask >> 1 | 7);
        // SAFETY: the masked word is inside the ring (invariant), because a block has eight words.
        let word = unsafe { self.base.add(word as usize) };
        // SAFETY: a word inside the memory, aligned, which exists while the ring is borrowed and is used by atomics only.
        unsafe { word.as_ref() }
    }

    /// The `wr_id` of the WQE that begins at block `index`, modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn wr_id(self, index: u32) -> &'r Entry64 {
        &self.record(BlockIndex::of(index)).wr_id
    }

    /// The number of WRs that had been posted up to the WQE that begins at block `index`, modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn head(self, index: u32) -> u32 {
        self.record(BlockIndex::of(index)).done().head()
    }
}

/// Bytes of a ring that do not wrap, to be written from the first one on.
///
/// # Invariants
/// `left` bytes from `to` on are inside the ring, which exists as long as it is borrowed and is used by atomics only.
pub(crate) struct Segment<'r> {
    to: *mut u8,
    left: usize,
    _ring: PhantomData<&'r SqAddrs>,
}

impl Segment<'_> {
    /// Whether everything is written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Moves on by `len` bytes; `None` if there are not as many.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take(&mut self, len: usize) -> Option<*mut u8> {
        let to = self.to;
        self.left = self.left.checked_sub(len)?;
        self.to = to.wrapping_add(len);
        Some(to)
    }

    /// Writes a number of 4 bytes; nothing if it does not fit.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_u32(&mut self, value: u32) {
        if let Some(to) = self.take(4) {
            // SAFETY: 4 bytes from `to` on are inside the ring (invariant); all references to them are to atomics.
            unsafe { copy::store_u32(value, to) };
        }
    }

    /// Writes bytes; returns `false` and writes nothing if they do not fit.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put(&mut self, bytes: &[u8]) -> bool {
        let Some(to) = self.take(bytes.len()) else { return false };
        // SAFETY: as many bytes from `to` on are inside the ring (invariant); all references to them are to atomics.
        unsafe { copy::store_bytes(bytes, to) };
        true
    }

    /// [`put`](Self::put) for more than 64 bytes, without a call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_long(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() <= 64 {
            return self.put(bytes);
        }
        let Some(to) = self.take(bytes.len()) else { return false };
        // SAFETY: as many bytes from `to` on are inside the ring (invariant), more than 64; all references to them are to
        // atomics.
        unsafe { copy::store_long(bytes, to) };
        true
    }
}

impl fmt::Debug for SqView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqView").field("base", &self.base).field("mask", &self.mask).finish_non_exhaustive()
    }
}
