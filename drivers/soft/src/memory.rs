// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that the kernel shares: words, and a power of two of elements of one size.
//!
//! This is the only module that accesses it, for all rings of all drivers. It never creates a reference to an element: elements are
//! written and read through raw pointers, words through atomics. The geometry is checked once; nothing that the kernel writes
//! later is used to compute an address.
#![expect(unsafe_code)]
// UNSAFETY: a ring is memory that the kernel reads and writes; every access is a raw pointer access, bounded by the geometry that
// `Elements::new` checked.

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32};
use uverbs_core::kernel::{Mapping, MemoryError};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A mapping that begins with a header of `HEADER` bytes.
///
/// # Invariant
/// The mapping is writable, aligned to 8, and at least as long as the header.
#[derive(Debug)]
pub struct Memory<const HEADER: usize = 0>(Mapping);

impl<const HEADER: usize> Memory<HEADER> {
    /// Takes a mapping.
    ///
    /// # Errors
    /// [`MemoryError::Mapping`], [`MemoryError::TooShort`].
    pub fn new(mapping: Mapping) -> Result<Self, MemoryError> {
        if !mapping.is_writable() || !mapping.as_ptr().addr().get().is_multiple_of(8) {
            return Err(MemoryError::Mapping);
        }
        if mapping.len() < HEADER {
            return Err(MemoryError::TooShort);
        }
        Ok(Self(mapping))
    }

    /// The word at `OFFSET` of the header.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn word<const OFFSET: usize>(&self) -> &AtomicU32 {
        const { assert!(OFFSET.is_multiple_of(4) && OFFSET + 4 <= HEADER) };
        // SAFETY: inside the header, which is inside the memory (invariant).
        let ptr = unsafe { self.0.as_ptr().add(OFFSET) }.cast::<u32>();
        // SAFETY: aligned, as the mapping and the offset are; valid while `self` is borrowed; every access to the header, here and in
        // the kernel, is atomic.
        unsafe { AtomicU32::from_ptr(ptr.as_ptr()) }
    }
}

/// A tail whose length is known only at run time.
pub const DYNAMIC: usize = usize::MAX;

/// The memory of a ring: a header of `HEADER` bytes, elements of an `H` and a tail, a trailer of `TRAILER` bytes. The tail has `TAIL`
/// bytes, or as many as [`new`](Self::new) is told.
///
/// # Invariants
/// - `memory` is alive, and `first` is `HEADER` bytes behind its start.
/// - `mask + 1` is a power of two; an element has `size`, which is `size_of::<H>() + tail`, bytes, a multiple of 8. All of them, and
///   `TRAILER` bytes after them, lie inside the mapping.
/// - `tail` is `TAIL`, unless that is `DYNAMIC`.
pub struct Elements<H, const HEADER: usize = 0, const TRAILER: usize = 0, const TAIL: usize = DYNAMIC> {
    first: NonNull<u8>,
    mask: u32,
    size: usize,
    tail: usize,
    memory: Memory<HEADER>,
    _head: PhantomData<fn(H) -> H>,
}

// SAFETY: the elements own their memory, which is `Send`; `first` points into it. All access is through `&self` atomics and reads,
// and `&mut self` slots, as with any owned value.
unsafe impl<H, const HEADER: usize, const TRAILER: usize, const TAIL: usize> Send
    for Elements<H, HEADER, TRAILER, TAIL>
{
}

impl<H, const HEADER: usize, const TRAILER: usize, const TAIL: usize> Elements<H, HEADER, TRAILER, TAIL> {
    /// Takes memory with `mask + 1` elements of `size` bytes.
    ///
    /// # Errors
    /// The memory has no such elements.
    pub fn new(memory: Memory<HEADER>, mask: u32, size: usize) -> Result<Self, MemoryError> {
        const { assert!(align_of::<H>() <= 8 && HEADER.is_multiple_of(8) && TRAILER.is_multiple_of(8)) };
        let fits = |tail: &usize| size.is_multiple_of(8) && (TAIL == DYNAMIC || *tail == TAIL);
        let Some(tail) = size.checked_sub(size_of::<H>()).filter(fits) else {
            return Err(MemoryError::ElementSize(size));
        };
        let elements = u64::from(mask) + 1;
        if !elements.is_power_of_two() {
            return Err(MemoryError::Elements(u64::from(mask) + 1));
        }
        let bytes = u128::from(elements) * size as u128 + (HEADER + TRAILER) as u128;
        if bytes > memory.0.len() as u128 {
            return Err(MemoryError::TooShort);
        }
        // SAFETY: the header is inside the mapping (invariant of `Memory`).
        let first = unsafe { memory.0.as_ptr().add(HEADER) };
        Ok(Self { first, mask, size, tail, memory, _head: PhantomData })
    }

    /// The number of elements, less one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Bytes of an element after the `H`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn tail(&self) -> usize {
        if TAIL == DYNAMIC { self.tail } else { TAIL }
    }

    /// Bytes of an element.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn size(&self) -> usize {
        if TAIL == DYNAMIC { self.size } else { size_of::<H>() + TAIL }
    }

    /// The element at a position, to be written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn slot(&mut self, at: u32) -> Slot<'_, H, TAIL> {
        Slot { ptr: self.element(at), tail: self.tail(), _ring: PhantomData }
    }

    /// The element at a position, to be read.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn entry(&self, at: u32) -> Entry<'_, H> {
        Entry { ptr: self.element(at), _ring: PhantomData }
    }

    /// The word at `OFFSET` of the header.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn header<const OFFSET: usize>(&self) -> &AtomicU32 {
        self.memory.word::<OFFSET>()
    }

    /// The word at `OFFSET` of the trailer.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn trailer<const OFFSET: usize>(&self) -> &AtomicU32 {
        const { assert!(OFFSET.is_multiple_of(4) && OFFSET + 4 <= TRAILER) };
        let offset = (self.mask as usize + 1) * self.size() + OFFSET;
        // SAFETY: inside the trailer, which is inside the memory (invariant).
        let ptr = unsafe { self.first.add(offset) }.cast::<u32>();
        // SAFETY: aligned, as elements have a multiple of 8 bytes; valid while `self` is borrowed; every access to the trailer, here and
        // in the kernel, is atomic.
        unsafe { AtomicU32::from_ptr(ptr.as_ptr()) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn element(&self, at: u32) -> NonNull<u8> {
        let offset = (at & self.mask) as usize * self.size();
        // SAFETY: the masked position names one of the elements, which all lie inside the memory (invariant).
        unsafe { self.first.add(offset) }
    }

    /// The two bytes at `OFFSET` of an element's head, by which it is passed to the other side.
    ///
    /// While they say that an element is this side's, the kernel only reads them, so a slot may be written with them in it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn flags<const OFFSET: usize>(&self, at: u32) -> &AtomicU16 {
        const { assert!(OFFSET.is_multiple_of(2) && OFFSET + 2 <= size_of::<H>()) };
        // SAFETY: inside the head (asserted above), which is inside the element.
        let ptr = unsafe { self.element(at).add(OFFSET) }.cast::<u16>();
        // SAFETY: aligned, because elements are aligned to 8; valid while `self` is borrowed, which excludes a slot of this side; the
        // kernel's accesses are atomic.
        unsafe { AtomicU16::from_ptr(ptr.as_ptr()) }
    }

    /// As [`flags`](Self::flags), of one byte.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn flag<const OFFSET: usize>(&self, at: u32) -> &AtomicU8 {
        const { assert!(OFFSET < size_of::<H>()) };
        // SAFETY: inside the head (asserted above), which is inside the element.
        let ptr = unsafe { self.element(at).add(OFFSET) };
        // SAFETY: one byte; valid while `self` is borrowed, which excludes a slot of this side; the kernel's accesses are atomic.
        unsafe { AtomicU8::from_ptr(ptr.as_ptr()) }
    }
}

impl<H, const HEADER: usize, const TRAILER: usize, const TAIL: usize> fmt::Debug
    for Elements<H, HEADER, TRAILER, TAIL>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elements")
            .field("mask", &self.mask)
            .field("size", &self.size())
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

/// An element that this side may write: an `H`, then a tail.
///
/// Every method writes inside the element for any arguments. It can't be read, so bytes that the kernel left there have no effect.
#[derive(Debug)]
pub struct Slot<'r, H, const TAIL: usize = DYNAMIC> {
    ptr: NonNull<u8>,
    tail: usize,
    _ring: PhantomData<&'r mut H>,
}

impl<H, const TAIL: usize> Slot<'_, H, TAIL> {
    /// Bytes of the tail.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn tail(&self) -> usize {
        if TAIL == DYNAMIC { self.tail } else { TAIL }
    }

    /// Writes the whole head, so that it has no bytes of an earlier lap.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn put_head(&mut self, head: H)
    where
        H: IntoBytes + Immutable,
    {
        // SAFETY: an element has room for an `H` and is aligned to 8, which is at least `H`'s alignment (invariant of `Elements`). Only
        // this side writes it: `&mut Elements` excludes other writers here, and the kernel does not write an element that is not its own.
        unsafe { self.ptr.cast::<H>().write(head) };
    }

    /// Writes the field of the head at `OFFSET`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn put_field<const OFFSET: usize, T: IntoBytes + Immutable>(&mut self, value: T) {
        const {
            assert!(OFFSET + size_of::<T>() <= size_of::<H>());
            assert!(OFFSET.is_multiple_of(align_of::<T>()) && align_of::<T>() <= 8);
        }
        // SAFETY: inside the head (asserted above), which is inside the element.
        let to = unsafe { self.ptr.add(OFFSET) }.cast::<T>();
        // SAFETY: room for a `T`, aligned (asserted above). Access as in `put_head`.
        unsafe { to.write(value) };
    }

    /// Writes `bytes` at `offset` of the tail. If they do not fit, returns `false` and writes nothing.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn put_tail(&mut self, offset: usize, bytes: &[u8]) -> bool {
        if offset > self.tail() || bytes.len() > self.tail() - offset {
            return false;
        }
        // SAFETY: `offset` is at most `tail`, so this stays inside the element or at its end.
        let to = unsafe { self.ptr.add(size_of::<H>() + offset) };
        // SAFETY: `bytes.len()` more bytes fit in the tail (checked above). No Rust reference to the ring exists, so `bytes` does not
        // overlap it.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        true
    }

    /// Writes the `index`th `T` of the tail. If it does not fit, returns `false` and writes nothing.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn put_item<T: IntoBytes + Immutable>(&mut self, index: usize, item: T) -> bool {
        const { assert!(align_of::<T>() <= 8 && size_of::<H>().is_multiple_of(align_of::<T>())) };
        if index >= self.tail() / size_of::<T>() {
            return false;
        }
        // SAFETY: item `index` ends inside the tail (checked above).
        let to = unsafe { self.ptr.add(size_of::<H>() + index * size_of::<T>()) };
        // SAFETY: inside the element; aligned, because elements are aligned to 8, and the head's size and the offset are multiples of
        // `T`'s alignment. Access as in `put_head`.
        unsafe { to.cast::<T>().write(item) };
        true
    }
}

/// An element that the kernel wrote. Each field is read by its method, and may have any value.
#[derive(Debug)]
pub struct Entry<'r, H> {
    ptr: NonNull<u8>,
    _ring: PhantomData<&'r H>,
}

impl<H> Entry<'_, H> {
    /// The field of the head at `OFFSET`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn field<const OFFSET: usize, T: FromBytes + Copy>(&self) -> T {
        const {
            assert!(OFFSET + size_of::<T>() <= size_of::<H>());
            assert!(OFFSET.is_multiple_of(align_of::<T>()) && align_of::<T>() <= 8);
        }
        // SAFETY: inside the head (asserted above), which is inside the element.
        let from = unsafe { self.ptr.add(OFFSET) }.cast::<T>();
        // SAFETY: a whole `T`, aligned (asserted above), of a ring that is alive (the borrow). Any bytes are a `T`. Volatile, because the
        // kernel may write at any time: the value is read once and used as read.
        unsafe { from.read_volatile() }
    }

    /// The whole head.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn head(&self) -> H
    where
        H: FromBytes + Copy,
    {
        self.field::<0, H>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Words, heap};
    use core::sync::atomic::Ordering;

    type Fixed = Elements<u64, 16, 8, 24>;

    fn fixed(bytes: usize, mask: u32, size: usize) -> Result<(Fixed, Words), MemoryError> {
        let (mapping, words) = heap(bytes);
        Elements::new(Memory::new(mapping)?, mask, size).map(|elements| (elements, words))
    }

    #[test]
    fn memory_that_has_no_such_elements_is_refused() {
        let refused = |bytes, mask, size| fixed(bytes, mask, size).unwrap_err();
        assert_eq!(refused(8, 3, 32), MemoryError::TooShort, "no header");
        assert_eq!(refused(4 * 32 + 16 + 7, 3, 32), MemoryError::TooShort);
        assert_eq!(refused(4096, 2, 32), MemoryError::Elements(3));
        assert_eq!(refused(4096, u32::MAX - 1, 32), MemoryError::Elements(u64::from(u32::MAX)));
        assert_eq!(refused(4096, u32::MAX, 32), MemoryError::TooShort);
        for size in [0, 4, 31, 40] {
            assert_eq!(refused(4096, 3, size), MemoryError::ElementSize(size), "not of a fixed size");
        }
        let dynamic = |size| {
            let memory = Memory::<0>::new(heap(4096).0).unwrap();
            Elements::<u64>::new(memory, 3, size).map(|elements| elements.tail())
        };
        assert_eq!(dynamic(8), Ok(0));
        assert_eq!(dynamic(64), Ok(56));
        assert_eq!(dynamic(60), Err(MemoryError::ElementSize(60)));
        assert_eq!(dynamic(usize::MAX & !7), Err(MemoryError::TooShort));
        let (mapping, _words) = heap(64);
        let start = mapping.as_ptr().map_addr(|address| address | 4);
        // SAFETY: a part of the mapping, which lives as long as its owner.
        let unaligned = unsafe { Mapping::new(start, 32, mapping) };
        assert_eq!(Memory::<0>::new(unaligned).unwrap_err(), MemoryError::Mapping);
    }

    /// The writes of a slot change its element only, whatever the arguments are, and the position is masked.
    #[test]
    fn a_slot_is_one_element() {
        for at in [0, 1, 3, 4, 7, u32::MAX, u32::MAX - 1] {
            let (mut elements, words) = fixed(16 + 4 * 32 + 8, 3, 32).unwrap();
            let place = 16 + (at as usize & 3) * 32;
            let mut slot = elements.slot(at);
            slot.put_head(u64::MAX);
            slot.put_field::<4, u32>(0x0102_0304);
            assert!(slot.put_tail(8, &[7; 16]) && slot.put_item(0, u64::MAX));
            assert!(slot.put_tail(24, &[]));
            for (offset, len) in [(9, 16), (24, 1), (25, 0), (usize::MAX, 1), (0, 25)] {
                assert!(!slot.put_tail(offset, &vec![1; len]), "{offset}, {len}");
            }
            for index in [3, usize::MAX] {
                assert!(!slot.put_item(index, 1_u64));
            }
            let mut want = [0; 16 + 4 * 32 + 8];
            want[place..place + 16].fill(0xff);
            want[place + 4..place + 8].copy_from_slice(&0x0102_0304_u32.to_ne_bytes());
            want[place + 16..place + 32].fill(7);
            assert_eq!(words.snapshot(), want);
            assert_eq!(elements.entry(at).field::<4, u32>(), 0x0102_0304);
        }
    }

    #[test]
    fn words_are_before_and_after_the_elements() {
        let (elements, words) = fixed(16 + 4 * 32 + 8, 3, 32).unwrap();
        elements.header::<12>().store(1, Ordering::Relaxed);
        elements.trailer::<4>().store(2, Ordering::Relaxed);
        elements.flags::<6>(5).store(3, Ordering::Relaxed);
        elements.flag::<7>(6).store(4, Ordering::Relaxed);
        let mut want = [0; 16 + 4 * 32 + 8];
        want[12..16].copy_from_slice(&1_u32.to_ne_bytes());
        want[148..152].copy_from_slice(&2_u32.to_ne_bytes());
        want[16 + 32 + 6..16 + 32 + 8].copy_from_slice(&3_u16.to_ne_bytes());
        want[16 + 64 + 7] = 4;
        assert_eq!(words.snapshot(), want);
    }
}
