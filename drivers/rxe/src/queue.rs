// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring that rxe shares with user space: a header with two indices, then a power of two of slots.
//!
//! The kernel allocates it and stores element size and index mask in the header (`struct rxe_queue_buf` in
//! `<rdma/rdma_user_rxe.h>`, `rxe_queue_init()`). Both are read once, checked against the size of the mapping, and
//! kept; nothing that the kernel writes later is used to compute an address. An index counts slots and is kept below
//! the number of slots by both sides; the ring is empty when the two are equal, so it holds one element less than it
//! has slots.
//!
//! This is the only module that accesses shared memory. It never creates a reference to it: slots are written and
//! entries are read through raw pointers, indices through atomics.
#![expect(unsafe_code)]
// UNSAFETY: the ring is memory that the kernel reads and writes; every access is a raw pointer access, bounded by the
// geometry that `Ring::new` checked.

use core::fmt;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use uverbs_core::kernel::Mapping;
use uverbs_uapi::rxe::rxe_queue_buf;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Why a mapping is not a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// Shorter than the header, or not aligned.
    Header,
    /// The elements are too small for their contents, or too large.
    ElementSize(u32),
    /// The index mask is not a power of two less one.
    IndexMask(u32),
    /// The slots do not fit in the mapping.
    TooShort,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("the mapping holds no ring header"),
            Self::ElementSize(log2) => write!(f, "elements of 2^{log2} bytes"),
            Self::IndexMask(mask) => write!(f, "index mask {mask:#x}"),
            Self::TooShort => f.write_str("the mapping is shorter than the ring"),
        }
    }
}

impl core::error::Error for RingError {}

const HEADER: usize = size_of::<rxe_queue_buf>();
const PRODUCER: usize = offset_of!(rxe_queue_buf, producer_index);
const CONSUMER: usize = offset_of!(rxe_queue_buf, consumer_index);

/// A ring whose elements begin with an `H`.
///
/// # Invariants
/// - `mapping` is alive, and `base` is its start, aligned to 8.
/// - `mask + 1` is a power of two; an element has `1 << log2` bytes, a multiple of 8, at least `size_of::<H>()`; all of
///   them, after the header, lie inside the mapping.
/// - `tail` is `(1 << log2) - size_of::<H>()`.
pub struct Ring<H> {
    base: NonNull<u8>,
    mask: u32,
    log2: u32,
    tail: usize,
    mapping: Mapping,
    _head: PhantomData<fn(H) -> H>,
}

// SAFETY: the ring owns its mapping, which is `Send`; `base` points into it. All access is through `&self` atomics and
// `&mut self` slots, as with any owned value.
unsafe impl<H> Send for Ring<H> {}

impl<H> Ring<H> {
    /// Takes a mapping for a ring whose elements have at least `tail` bytes after the `H`.
    ///
    /// # Errors
    /// The mapping is too small, not aligned or not writable, or its header has values that no ring has.
    pub fn new(mapping: Mapping, tail: usize) -> Result<Self, RingError> {
        const { assert!(align_of::<H>() <= 8 && HEADER.is_multiple_of(8)) };
        let base = mapping.as_ptr();
        if !mapping.is_writable() || mapping.len() < HEADER || !base.addr().get().is_multiple_of(8) {
            return Err(RingError::Header);
        }
        // SAFETY: the header is inside the mapping (checked above).
        let log2 = unsafe { base.add(offset_of!(rxe_queue_buf, log2_elem_size)) }.cast::<u32>();
        // SAFETY: the header is inside the mapping (checked above).
        let mask = unsafe { base.add(offset_of!(rxe_queue_buf, index_mask)) }.cast::<u32>();
        // SAFETY: inside the mapping and aligned, as `base` and the fields are; volatile, because the kernel could
        // write it.
        let log2 = unsafe { log2.read_volatile() };
        // SAFETY: inside the mapping and aligned, as `base` and the fields are; volatile, because the kernel could write
        // it.
        let mask = unsafe { mask.read_volatile() };

        // The kernel pads to a cache line, and its largest element is some hundred bytes.
        let needed = size_of::<H>().saturating_add(tail);
        if !(3..=16).contains(&log2) || (1_usize << log2) < needed {
            return Err(RingError::ElementSize(log2));
        }
        let slots = u64::from(mask) + 1;
        if !slots.is_power_of_two() {
            return Err(RingError::IndexMask(mask));
        }
        if (slots << log2) > (mapping.len() - HEADER) as u64 {
            return Err(RingError::TooShort);
        }
        Ok(Self { base, mask, log2, tail: (1 << log2) - size_of::<H>(), mapping, _head: PhantomData })
    }

    /// The largest index.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// The number of elements that fit: one less than the slots.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn capacity(&self) -> u32 {
        self.mask
    }

    /// Bytes of an element after the `H`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn tail(&self) -> usize {
        self.tail
    }

    /// The consumer index as it is in memory: the caller checks it against [`mask`](Self::mask).
    ///
    /// Acquire: pairs with the release store of the consumer (`queue_advance_consumer()`), so the consumer no longer
    /// reads a slot that is seen to be free.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn consumer(&self) -> u32 {
        self.index(CONSUMER).load(Ordering::Acquire)
    }

    /// The producer index, unchecked as [`consumer`](Self::consumer).
    ///
    /// Acquire: pairs with the release store of the producer (`queue_advance_producer()`), so an element is read after
    /// it was written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn producer(&self) -> u32 {
        self.index(PRODUCER).load(Ordering::Acquire)
    }

    /// Makes the elements before `index` visible. Release: pairs with the kernel's acquire load in
    /// `queue_get_producer()`, so it reads elements as they were written before this call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish_producer(&mut self, index: u32) {
        self.index(PRODUCER).store(index & self.mask, Ordering::Release);
    }

    /// Returns the elements before `index`. Release: pairs with the kernel's acquire load in `queue_get_consumer()`, so
    /// it overwrites them only after this side's reads.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish_consumer(&mut self, index: u32) {
        self.index(CONSUMER).store(index & self.mask, Ordering::Release);
    }

    /// The slot at `index`, to be written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slot(&mut self, index: u32) -> WqeSlot<'_, H> {
        WqeSlot { ptr: self.element(index), tail: self.tail, _ring: PhantomData }
    }

    /// The element at `index`, to be read.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn entry(&self, index: u32) -> Entry<'_, H> {
        Entry { ptr: self.element(index), _ring: PhantomData }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn element(&self, index: u32) -> NonNull<u8> {
        let offset = HEADER + (((index & self.mask) as usize) << self.log2);
        // SAFETY: the masked index names one of the elements, which all lie inside the mapping (invariant).
        unsafe { self.base.add(offset) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn index(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: both offsets are inside the header, which is inside the mapping (invariant).
        let ptr = unsafe { self.base.add(offset) }.cast::<u32>();
        // SAFETY: aligned (the header's fields are, `base` is), valid while `self` is borrowed, and every other access
        // to these words, here and in the kernel, is atomic.
        unsafe { AtomicU32::from_ptr(ptr.as_ptr()) }
    }
}

impl<H> fmt::Debug for Ring<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("producer", &self.producer())
            .field("consumer", &self.consumer())
            .field("slots", &(u64::from(self.mask) + 1))
            .field("element", &(1_u32 << self.log2))
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}

/// A slot that the producer may write: an `H`, then `tail` bytes.
///
/// Every method writes inside the slot for any arguments. The slot can't be read, so bytes that the kernel left there
/// have no effect.
pub(crate) struct WqeSlot<'r, H> {
    ptr: NonNull<u8>,
    tail: usize,
    _ring: PhantomData<&'r mut Ring<H>>,
}

impl<H> WqeSlot<'_, H> {
    /// Writes the whole head, so that it has no bytes of an earlier lap.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_head(&mut self, head: H)
    where
        H: IntoBytes + Immutable,
    {
        // SAFETY: a slot has room for an `H` and is aligned to 8, which is at least `H`'s alignment (ring invariant).
        // Only this side accesses it: `&mut Ring` excludes other writers here, and the kernel reads the slot only after
        // it was published.
        unsafe { self.ptr.cast::<H>().write(head) };
    }

    /// Writes the field of the head at `OFFSET`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_field<const OFFSET: usize, T: IntoBytes + Immutable>(&mut self, value: T) {
        const {
            assert!(OFFSET + size_of::<T>() <= size_of::<H>());
            assert!(OFFSET.is_multiple_of(align_of::<T>()) && align_of::<T>() <= 8);
        }
        // SAFETY: inside the head (asserted above), which is inside the slot.
        let to = unsafe { self.ptr.add(OFFSET) }.cast::<T>();
        // SAFETY: room for a `T`, aligned (asserted above). Only this side accesses the slot until the index is published.
        unsafe { to.write(value) };
    }

    /// Writes `bytes` at `offset` of the tail. If they do not fit, returns `false` and writes nothing.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub(crate) fn put_tail(&mut self, offset: usize, bytes: &[u8]) -> bool {
        if offset > self.tail || bytes.len() > self.tail - offset {
            return false;
        }
        // SAFETY: `offset` is at most `tail`, so this stays inside the slot or at its end.
        let to = unsafe { self.ptr.add(size_of::<H>() + offset) };
        // SAFETY: `bytes.len()` more bytes fit in the tail (checked above). No Rust reference to the ring exists, so
        // `bytes` does not overlap it.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        true
    }

    /// Writes the `index`th `T` of the tail. If it does not fit, returns `false` and writes nothing.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub(crate) fn put_item<T: IntoBytes + Immutable>(&mut self, index: usize, item: T) -> bool {
        const { assert!(align_of::<T>() <= 8 && size_of::<H>().is_multiple_of(align_of::<T>())) };
        if index >= self.tail / size_of::<T>() {
            return false;
        }
        // SAFETY: item `index` ends inside the tail (checked above).
        let to = unsafe { self.ptr.add(size_of::<H>() + index * size_of::<T>()) };
        // SAFETY: inside the slot; aligned, because the slot is aligned to 8, and the head's size and the offset are
        // multiples of `T`'s alignment.
        unsafe { to.cast::<T>().write(item) };
        true
    }
}

/// An element that the kernel wrote. Each field is read by its method, and may have any value.
pub(crate) struct Entry<'r, H> {
    ptr: NonNull<u8>,
    _ring: PhantomData<&'r Ring<H>>,
}

impl<H> Entry<'_, H> {
    /// The field of the head at `OFFSET`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn field<const OFFSET: usize, T: FromBytes + Copy>(&self) -> T {
        const {
            assert!(OFFSET + size_of::<T>() <= size_of::<H>());
            assert!(OFFSET.is_multiple_of(align_of::<T>()) && align_of::<T>() <= 8);
        }
        // SAFETY: inside the head (asserted above), which is inside the element.
        let from = unsafe { self.ptr.add(OFFSET) }.cast::<T>();
        // SAFETY: a whole `T`, aligned (asserted above), of a ring that is alive (the borrow). Any bytes are a `T`.
        // Volatile, because the kernel may write at any time: the value is read once and used as read.
        unsafe { from.read_volatile() }
    }
}

impl<H> Clone for Entry<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<H> Copy for Entry<'_, H> {}

/// A ring in heap memory, as `rxe_queue_init()` would make it: `slots` elements of `1 << log2` bytes.
///
/// The words are the whole mapping; the test uses them in the role of the kernel.
#[cfg(any(test, feature = "test-utils"))]
pub(crate) fn heap_ring(log2: u32, slots: u32) -> (Mapping, std::sync::Arc<[core::sync::atomic::AtomicU64]>) {
    use core::sync::atomic::AtomicU64;
    let len = HEADER + ((slots as usize) << log2);
    let words: std::sync::Arc<[AtomicU64]> = (0..len / 8).map(|_| AtomicU64::new(0)).collect();
    words[0].store(zerocopy::transmute!([log2, slots.wrapping_sub(1)]), Ordering::Relaxed);
    let ptr = NonNull::from(&words[..]).cast::<u8>();
    // SAFETY: the words live as long as the `Arc` that becomes the mapping's owner, and consist of atomics.
    let mapping = unsafe { Mapping::new(ptr, len, std::sync::Arc::clone(&words)) };
    (mapping, words)
}
