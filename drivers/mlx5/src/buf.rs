// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue memory: what the kernel pins when a queue is created, and how the data path reaches it.
//!
//! The only module that touches queue memory. It is handed out as atomics of 8 bytes, each at a masked index: no value of
//! an index, from whomever, leaves the queue, and no interleaving with the device or with another thread is a data
//! race. A relaxed store of 8 bytes is a plain store on every machine that has such a device.
#![expect(unsafe_code)]
// UNSAFETY: mapped memory becomes references to atomics; every access is inside the geometry that a constructor checked.

mod blocks;
mod held;

pub use blocks::BlockRing;
pub(crate) use blocks::{Block, Walk, Watch};
pub(crate) use held::Held;

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memmap2::{MmapMut, MmapRaw};
use std::io;
use std::sync::Arc;

// The tables' entries, which no device sees: loom's when its model checker runs.
#[cfg(not(loom))]
use core::sync::atomic::AtomicU64 as Entry64;
#[cfg(loom)]
use loom::sync::atomic::AtomicU64 as Entry64;

/// Page-aligned memory of one queue or of several, zeroed. The device may read and write it from the moment that the
/// kernel was told of it until the object is destroyed; so it lives in an `Arc` of everything that uses it, and is
/// leaked if the kernel refuses to destroy.
pub struct QueueBuf {
    map: MmapRaw,
}

impl QueueBuf {
    /// `len` bytes, rounded up to whole pages.
    pub fn new(len: usize) -> io::Result<Arc<Self>> {
        let map = MmapMut::map_anon(len.max(1).next_multiple_of(PAGE))?;
        Ok(Arc::new(Self { map: MmapRaw::from(map) }))
    }

    /// Its address, for the kernel.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.map.as_mut_ptr().expose_provenance() as u64
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there are none: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// The start of `len` bytes at `offset`, if they are inside and a multiple of 64 from the start.
    fn part(&self, offset: usize, len: usize) -> Option<NonNull<AtomicU64>> {
        if !offset.is_multiple_of(64) || offset > self.len() || len > self.len() - offset {
            return None;
        }
        // SAFETY: `offset` is at most the mapping's length.
        let start = unsafe { self.map.as_mut_ptr().add(offset) };
        NonNull::new(start.cast())
    }

    /// All of it as words, for a software device and for tests.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: a mapping starts at a page and is as long as it says, readable and writable while it is borrowed;
        // whoever else uses it does so by atomics, or is a device.
        unsafe { core::slice::from_raw_parts(self.map.as_mut_ptr().cast(), self.map.len() / 8) }
    }
}

impl fmt::Debug for QueueBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueBuf").field("addr", &self.map.as_mut_ptr()).field("len", &self.len()).finish()
    }
}

/// The alignment that the kernel is told of: its page, and the unit in which it maps for the device.
pub const PAGE: usize = 4096;

/// What a completion needs to know of a WQE, kept beside the ring at the WQE's first block.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Record {
    /// The WR's.
    pub(crate) wr_id: Entry64,
    /// A [`Done`].
    pub(crate) done: Entry64,
}

/// What is known once a WQE is done: how many WRs had been posted with it, and what a UMR was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done(u64);

impl Done {
    /// `head` has less than 56 bits: at 100 million WRs a second it gets so far in twenty years.
    #[inline(always)]
    pub(crate) const fn new(head: u64, op: u8) -> Self {
        Self((op as u64) << 56 | head)
    }

    /// How many WRs had been posted, modulo 2^32.
    #[inline(always)]
    pub(crate) const fn head(self) -> u32 {
        self.0 as u32
    }

    /// `umr_op`
    #[inline(always)]
    pub(crate) const fn op(self) -> u8 {
        (self.0 >> 56) as u8
    }
}

impl Record {
    /// What was noted of its WQE.
    #[inline(always)]
    pub(crate) fn done(&self) -> Done {
        Done(self.done.load(Ordering::Relaxed))
    }

    /// Notes it.
    #[inline(always)]
    pub(crate) fn set_done(&self, done: Done) {
        self.done.store(done.0, Ordering::Relaxed);
    }
}

/// The records of a ring, or another power of two of them.
///
/// # Invariants
/// `mask` is 16 times a power of two less one, and there are so many records from `records` on.
#[derive(Clone, Copy)]
pub(crate) struct Records<'r> {
    records: NonNull<Record>,
    mask: u32,
    _records: PhantomData<&'r Record>,
}

impl<'r> Records<'r> {
    /// One record for every index.
    pub(crate) fn of_one(record: &'r Record) -> Self {
        Self { records: NonNull::from(record), mask: 0, _records: PhantomData }
    }

    /// The record at a place, modulo how many there are.
    #[inline(always)]
    pub(crate) fn at(self, place: Place) -> &'r Record {
        let offset = (place.0 & self.mask) as usize;
        #[cfg(not(loom))]
        const {
            assert!(size_of::<Record>() == 16)
        };
        // SAFETY: the masked place is the offset of one of the records (invariant), which have 16 bytes.
        #[cfg(not(loom))]
        let record = unsafe { self.records.byte_add(offset) };
        // SAFETY: the same by index, for loom's atomics have another size.
        #[cfg(loom)]
        let record = unsafe { self.records.add(offset >> Place::SHIFT) };
        // SAFETY: a record, which lives while it is borrowed.
        unsafe { record.as_ref() }
    }
}

/// Where a send queue's ring of 64-byte basic blocks is, and the record of each.
///
/// # Invariants
/// `mask + 1` is a power of two, times a [`Place`]'s 16; so many blocks from `base` on and so many records are there for as
/// long as whoever has this value as a field; `base` is aligned to 64.
#[derive(Debug)]
pub(crate) struct SqAddrs {
    base: NonNull<AtomicU64>,
    records: NonNull<Record>,
    mask: u32,
}

impl SqAddrs {
    /// All of it in one value, for registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> SqView<'_> {
        SqView { base: self.base, records: self.records, mask: self.mask, home: self }
    }
}

/// A send queue's ring, with a record per block.
pub struct SqRing {
    addrs: SqAddrs,
    _records: Box<[Record]>,
    buf: Arc<QueueBuf>,
}

// SAFETY: `addrs` are of `buf` and of the records, which are owned; all access is by atomics.
unsafe impl Send for SqRing {}
// SAFETY: likewise.
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
        let mask = (blocks - 1) << Place::SHIFT;
        let addrs = SqAddrs { base, records: NonNull::from(&*records).cast(), mask };
        Some(Self { addrs, _records: records, buf })
    }

    /// The largest index of a block.
    #[inline(always)]
    #[must_use]
    pub fn mask(&self) -> u32 {
        self.addrs.mask >> Place::SHIFT
    }

    /// The memory that it is in.
    #[must_use]
    pub fn buf(&self) -> &Arc<QueueBuf> {
        &self.buf
    }

    /// All of its addresses in one value, for registers.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> SqView<'_> {
        self.addrs.view()
    }
}

impl fmt::Debug for SqRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = u64::from(self.mask()) + 1;
        f.debug_struct("SqRing").field("blocks", &blocks).field("buf", &self.buf).finish_non_exhaustive()
    }
}

/// The index of a basic block, not masked, times 16: so it is the offset of a record, and with a factor that x86 has in an
/// address, of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

impl Place {
    const SHIFT: u32 = 4;
    /// Equal to no block's.
    pub(crate) const NEVER: Self = Self(u32::MAX);

    /// The block of this index.
    #[inline(always)]
    pub(crate) const fn of(index: u32) -> Self {
        Self(index << Self::SHIFT)
    }

    /// The block whose index is the upper half of `word`; what is in the lower does not matter.
    #[inline(always)]
    pub(crate) const fn of_upper(word: u32) -> Self {
        // The rest of the lower half is below a place's first bit, which masks leave out.
        Self(word >> (16 - Self::SHIFT))
    }

    /// The same place with a mark, below 16, for [`marked`](Self::marked) only.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn with_mark(self, mark: u32) -> Self {
        Self(self.0 + mark)
    }

    /// The place, and the mark.
    pub(crate) const fn marked(self) -> (Self, u32) {
        (Self(self.0 & !0xf), self.0 & 0xf)
    }

    /// Its index modulo 2^16, as WQEs and doorbell records have it.
    #[inline(always)]
    pub(crate) const fn index(self) -> u32 {
        self.0 >> Self::SHIFT & 0xffff
    }

    /// [`index`](Self::index), shifted left by `by`, at least 4.
    #[inline(always)]
    pub(crate) const fn index_at(self, by: u32) -> u64 {
        (self.0 as u64 & 0xf_fff0) << (by - Self::SHIFT)
    }

    /// So many blocks back.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn before(self, blocks: u32) -> Self {
        Self(self.0.wrapping_sub(blocks << Self::SHIFT))
    }

    /// What is from here to `end`.
    #[inline(always)]
    pub(crate) const fn until(self, end: Self) -> Span {
        Span(end.0.wrapping_sub(self.0))
    }

    /// So many blocks further.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn after(self, blocks: u32) -> Self {
        Self(self.0.wrapping_add(blocks << Self::SHIFT))
    }
}

/// How far apart two places are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(u32);

impl Span {
    /// Nothing is so short.
    pub(crate) const NONE: Self = Self(0);

    /// So many blocks.
    pub(crate) const fn of(blocks: u32) -> Self {
        Self(blocks << Place::SHIFT)
    }

    /// How many blocks.
    #[inline(always)]
    pub(crate) const fn blocks(self) -> u32 {
        self.0 >> Place::SHIFT
    }
}

/// The addresses of an [`SqRing`], for as long as it is borrowed.
///
/// For registers: behind a reference, the compiler would have to load them anew after every store to the queue.
///
/// # Invariants
/// All is that of `home`.
#[derive(Clone, Copy)]
pub struct SqView<'r> {
    base: NonNull<AtomicU64>,
    records: NonNull<Record>,
    mask: u32,
    home: &'r SqAddrs,
}

impl<'r> SqView<'r> {
    /// The same in one register, for a function that is not inlined.
    #[inline(always)]
    pub(crate) fn lend(self) -> &'r SqAddrs {
        self.home
    }

    /// The block at a place, modulo the ring.
    #[inline(always)]
    pub(crate) fn at(self, place: Place) -> &'r [AtomicU64; 8] {
        let offset = (place.0 & self.mask) as usize * 4;
        // SAFETY: the masked place is 16 times the index of one of the ring's blocks (invariant).
        let block = unsafe { self.base.byte_add(offset) };
        // SAFETY: 64 bytes inside the memory, aligned, alive while the ring is borrowed, used by atomics only.
        unsafe { block.cast().as_ref() }
    }

    /// The record at a place, modulo the ring.
    #[inline(always)]
    pub(crate) fn record(self, place: Place) -> &'r Record {
        self.records().at(place)
    }

    /// All records.
    #[inline(always)]
    pub(crate) fn records(self) -> Records<'r> {
        Records { records: self.records, mask: self.mask, _records: PhantomData }
    }

    /// The block at `index`, modulo the ring.
    #[inline(always)]
    #[must_use]
    pub fn block(self, index: u32) -> &'r [AtomicU64; 8] {
        self.at(Place::of(index))
    }

    /// The 16 bytes at `unit`, counted from the ring's start and modulo the ring.
    #[inline(always)]
    #[must_use]
    pub fn unit(self, unit: u32) -> &'r [AtomicU64; 2] {
        let unit = unit & (self.mask >> 2 | 3);
        // SAFETY: the masked unit is inside the ring (invariant), which has four to the block.
        let unit = unsafe { self.base.add(unit as usize * 2) };
        // SAFETY: 16 bytes inside the memory, aligned, alive while the ring is borrowed, used by atomics only.
        unsafe { unit.cast().as_ref() }
    }

    /// The 16 bytes at `unit` from a place on.
    #[inline(always)]
    pub(crate) fn unit_from(self, place: Place, unit: u32) -> &'r [AtomicU64; 2] {
        self.unit((place.0 >> 2).wrapping_add(unit))
    }

    /// The 8 bytes at `word`, counted from the ring's start and modulo the ring.
    #[inline(always)]
    #[must_use]
    pub fn word(self, word: u32) -> &'r AtomicU64 {
        let word = word & (self.mask >> 1 | 7);
        // SAFETY: the masked word is inside the ring (invariant), which has eight to the block.
        let word = unsafe { self.base.add(word as usize) };
        // SAFETY: inside the memory, aligned, alive while the ring is borrowed, used by atomics only.
        unsafe { word.as_ref() }
    }

    /// The `wr_id` of the WQE that begins at block `index`, modulo the ring.
    #[inline(always)]
    #[must_use]
    pub fn wr_id(self, index: u32) -> &'r Entry64 {
        &self.record(Place::of(index)).wr_id
    }

    /// How many WRs had been posted with the WQE that begins at block `index`, modulo the ring.
    #[inline(always)]
    #[must_use]
    pub fn head(self, index: u32) -> u32 {
        self.record(Place::of(index)).done().head()
    }
}

impl fmt::Debug for SqView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqView").field("base", &self.base).field("mask", &self.mask).finish_non_exhaustive()
    }
}

/// A ring of elements of one size: receive queues, shared receive queues, completion queues.
///
/// # Invariants
/// `mask + 1` is a power of two; an element has `1 << shift` bytes, 16 at least; so many of them from `base` on are
/// inside `buf`; `base` is aligned to 64.
pub struct StrideRing {
    base: NonNull<AtomicU64>,
    mask: u32,
    shift: u32,
    /// `1 << shift`, kept, because a multiplication by what is loaded is shorter than a shift.
    stride: usize,
    buf: Arc<QueueBuf>,
}

// SAFETY: `base` points into `buf`, which is owned; all access is by atomics.
unsafe impl Send for StrideRing {}
// SAFETY: likewise.
unsafe impl Sync for StrideRing {}

impl StrideRing {
    /// `count` elements, a power of two, of `stride` bytes, a power of two from 16 on, at `offset` of `buf`.
    #[must_use]
    pub fn new(buf: Arc<QueueBuf>, offset: usize, count: u32, stride: u32) -> Option<Self> {
        if !count.is_power_of_two() || !stride.is_power_of_two() || stride < 16 {
            return None;
        }
        let base = buf.part(offset, (count as usize).checked_mul(stride as usize)?)?;
        Some(Self { base, mask: count - 1, shift: stride.trailing_zeros(), stride: stride as usize, buf })
    }

    /// The largest index of an element.
    #[inline(always)]
    #[must_use]
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Bytes of an element.
    #[inline(always)]
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The memory that it is in.
    #[must_use]
    pub fn buf(&self) -> &Arc<QueueBuf> {
        &self.buf
    }

    /// The element at `index`, modulo the ring.
    #[inline(always)]
    #[must_use]
    pub fn element(&self, index: u32) -> &[AtomicU64] {
        let at = ((index & self.mask) as usize) << (self.shift - 3);
        // SAFETY: the masked index names one of the ring's elements (invariant).
        let element = unsafe { self.base.add(at) };
        // SAFETY: that many words inside the memory, aligned, alive while `self` is borrowed, used by atomics only.
        unsafe { core::slice::from_raw_parts(element.as_ptr(), 1 << (self.shift - 3)) }
    }

    /// The `unit`th 16 bytes of the element at `index`, both modulo what there is.
    #[inline(always)]
    #[must_use]
    pub fn unit(&self, index: u32, unit: u32) -> &[AtomicU64; 2] {
        let at = ((index & self.mask) as usize) << (self.shift - 3);
        let unit = (unit as usize & ((1 << (self.shift - 4)) - 1)) * 2;
        // SAFETY: the masked index names an element, the masked unit a part of it (invariant).
        let unit = unsafe { self.base.add(at + unit) };
        // SAFETY: 16 bytes inside the memory, aligned, alive while `self` is borrowed, used by atomics only.
        unsafe { unit.cast().as_ref() }
    }
}

/// The addresses of a [`StrideRing`] and of a table with an entry per element, as [`SqView`] is those of an [`SqRing`].
///
/// # Invariants
/// All is that of the ring; the table has an entry for every masked index; `second` is the second unit of the first element
/// from `base` on, or `base` if there is none.
#[derive(Clone, Copy)]
pub(crate) struct StrideView<'r> {
    base: NonNull<AtomicU64>,
    entries: NonNull<Entry64>,
    mask: u32,
    stride: usize,
    second: NonNull<AtomicU64>,
    _ring: PhantomData<&'r StrideRing>,
}

impl<'r> StrideView<'r> {
    /// Of a ring and a table: of as many elements as both have. The first `skip` units of an element are left out, as long
    /// as one remains.
    #[inline(always)]
    pub(crate) fn new(
        ring: &'r StrideRing,
        entries: &'r Table<Entry64>,
        skip: usize,
        max_units: u32,
    ) -> Self {
        let units = ring.stride() / 16;
        let skip = skip.min(units - 1);
        // SAFETY: still inside the first element, which has more units than are skipped.
        let base = unsafe { ring.base.add(skip * 2) };
        let second = if units - skip > 1 && max_units > 1 { 2 } else { 0 };
        // SAFETY: the next unit of the first element, or the same.
        let second = unsafe { base.add(second) };
        Self {
            base,
            second,
            entries: NonNull::from(&*entries.0).cast(),
            // Both are powers of two less one, so the lower is, too.
            mask: ring.mask.min((entries.0.len() - 1) as u32),
            stride: ring.stride(),
            _ring: PhantomData,
        }
    }

    /// The first two units of the element at `index`, modulo the ring; the first twice if there is but one.
    #[inline(always)]
    pub(crate) fn units(self, index: u32) -> [&'r [AtomicU64; 2]; 2] {
        let at = (index & self.mask) as usize * self.stride;
        // SAFETY: the masked index names an element (invariant).
        let first = unsafe { self.base.byte_add(at) };
        // SAFETY: likewise; the next unit of it, or the same (invariant).
        let second = unsafe { self.second.byte_add(at) };
        // SAFETY: 16 bytes inside the memory, aligned, alive while the ring is borrowed, used by atomics only.
        let first = unsafe { first.cast().as_ref() };
        // SAFETY: likewise.
        let second = unsafe { second.cast().as_ref() };
        [first, second]
    }

    /// The table's entry at `index`, modulo the ring.
    #[inline(always)]
    pub(crate) fn entry(self, index: u32) -> &'r Entry64 {
        // SAFETY: the table has an entry for every masked index (invariant).
        let entry = unsafe { self.entries.add((index & self.mask) as usize) };
        // SAFETY: an entry of the table, which lives while it is borrowed.
        unsafe { entry.as_ref() }
    }
}

impl fmt::Debug for StrideView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StrideView")
            .field("base", &self.base)
            .field("mask", &self.mask)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for StrideRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StrideRing")
            .field("count", &(u64::from(self.mask) + 1))
            .field("stride", &self.stride())
            .field("buf", &self.buf)
            .finish_non_exhaustive()
    }
}

/// A table with an entry per block or element of a ring, indexed modulo its length.
///
/// # Invariants
/// The length is a power of two.
#[derive(Debug)]
pub struct Table<T>(Box<[T]>);

impl<T: Default> Table<T> {
    /// `len` entries, a power of two; rounded up to one.
    #[must_use]
    pub fn new(len: u32) -> Self {
        Self((0..len.max(1).next_power_of_two()).map(|_| T::default()).collect())
    }
}

impl<T> Table<T> {
    /// The entry at `index`, modulo the length.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, index: u32) -> &T {
        let index = index as usize & (self.0.len() - 1);
        // SAFETY: an index masked by the length less one is less than the length, a power of two (invariant).
        unsafe { self.0.get_unchecked(index) }
    }

    /// Entries.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All entries.
    pub fn iter(&self) -> core::slice::Iter<'_, T> {
        self.0.iter()
    }
}

/// The words of a page of doorbell records.
pub(crate) fn dwords(buf: &QueueBuf) -> &[AtomicU32] {
    // SAFETY: as in `QueueBuf::words`; this module gives out a page of records by this function only.
    unsafe { core::slice::from_raw_parts(buf.map.as_mut_ptr().cast(), buf.map.len() / 4) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn geometry_is_checked() {
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
    fn every_index_is_inside() {
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
            sq.record(Place::of(i)).set_done(Done::new(i.into(), i as u8));
            let done = sq.record(Place::of(i % 32)).done();
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
    fn tables_are_a_power_of_two() {
        let table = Table::<u32>::new(5);
        assert_eq!((table.len(), *table.get(u32::MAX)), (8, 0));
        assert_eq!(Table::<u8>::new(0).len(), 1);
    }
}
