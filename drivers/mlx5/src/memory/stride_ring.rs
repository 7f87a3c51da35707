// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ring of elements of one size: receive queues, shared receive queues, and the memory of completion queues.
// UNSAFETY: accesses queue memory by computed addresses, which are inside the geometry that the constructor checked.

use super::{QueueBuf, Table};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

/// A ring of elements of one size: receive queues, shared receive queues, completion queues.
///
/// # Invariants
/// `mask + 1` is a power of two; an element has `1 << shift` bytes, at least 16; `mask + 1` elements from `base` on are
/// inside `buf`; `base` is aligned to 64.
#[derive(Clone)]
pub struct StrideRing {
    pub(super) base: NonNull<AtomicU64>,
    pub(super) mask: u32,
    pub(super) shift: u32,
    /// `1 << shift`, stored because a multiplication by a loaded value is shorter than a shift.
    stride: usize,
    buf: Arc<QueueBuf>,
}

// SAFETY: `base` is an address inside `buf`, which the ring owns; all access is by atomics.
unsafe impl Send for StrideRing {}
// SAFETY: `&StrideRing` only allows atomic accesses to memory that the ring owns.
unsafe impl Sync for StrideRing {}

impl StrideRing {
    /// A ring of `count` elements (a power of two) of `stride` bytes (a power of two, at least 16) at `offset` of `buf`.
    #[must_use]
    pub fn new(buf: Arc<QueueBuf>, offset: usize, count: u32, stride: u32) -> Option<Self> {
        if !count.is_power_of_two() || !stride.is_power_of_two() || stride < 16 {
            return None;
        }
        let base = buf.part(offset, (count as usize).checked_mul(stride as usize)?)?;
        Some(Self { base, mask: count - 1, shift: stride.trailing_zeros(), stride: stride as usize, buf })
    }

    /// The largest index of an element.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// The bytes of an element.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The address of the first element.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr().cast()
    }

    /// The memory of the ring.
    #[must_use]
    pub fn buf(&self) -> &Arc<QueueBuf> {
        &self.buf
    }

    /// The element at `index`, modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn element(&self, index: u32) -> &[AtomicU64] {
        let at = ((index & self.mask) as usize) << (self.shift - 3);
        // SAFETY: the masked index names one of the ring's elements (invariant).
        let element = unsafe { self.base.add(at) };
        // SAFETY: the words of an element are inside the memory, aligned, exist while `self` is borrowed, and are used by
        // atomics only.
        unsafe { core::slice::from_raw_parts(element.as_ptr(), 1 << (self.shift - 3)) }
    }

    /// The unit `unit` (16 bytes) of the element at `index`, both modulo their number.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn unit(&self, index: u32, unit: u32) -> &[AtomicU64; 2] {
        let at = ((index & self.mask) as usize) << (self.shift - 3);
        let unit = (unit as usize & ((1 << (self.shift - 4)) - 1)) * 2;
        // SAFETY: the masked index names an element, and the masked unit a part of it (invariant).
        let unit = unsafe { self.base.add(at + unit) };
        // SAFETY: 16 bytes inside the memory, aligned, which exist while `self` is borrowed and are used by atomics only.
        unsafe { unit.cast().as_ref() }
    }
}

/// A receive ring and the table with the driver's data of its elements, as their poster stores them: by address, so that a
/// post follows no pointers.
///
/// # Invariants
/// The addresses are those of a ring and of a table that `_owner` owns and does not replace. The ring and the table
/// have an entry for every masked index. `second` is the second unit of the first element from `first` on, or `first`
/// if there is none.
pub(crate) struct RecvRing<E> {
    first: NonNull<AtomicU64>,
    second: NonNull<AtomicU64>,
    notes: NonNull<E>,
    mask: u32,
    stride: usize,
    /// Units of an element before `first`.
    skip: usize,
    ring: StrideRing,
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: the addresses are those of atomics and of shared values of `E`, in memory that `_owner` owns.
unsafe impl<E: Sync> Send for RecvRing<E> {}
// SAFETY: `&RecvRing` only allows accesses to atomics and to entries that are `Sync`, in memory that its owner keeps.
unsafe impl<E: Sync> Sync for RecvRing<E> {}

impl<E> RecvRing<E> {
    /// The ring and the table that `parts` returns of `owner`; the number of elements is the smaller of the two. The first
    /// `skip` units of an element are left out, as long as one remains.
    pub(crate) fn new<S: Send + Sync + 'static>(
        owner: &Arc<S>,
        parts: for<'s> fn(&'s S) -> (&'s StrideRing, &'s Table<E>),
        skip: usize,
        max_sge: u32,
    ) -> Self {
        // `parts` returns references into `owner`, which stay valid as long as this value owns it, because `owner` is
        // shared and so can't be changed.
        let (ring, notes) = parts(owner);
        let units = ring.stride() / 16;
        let skip = skip.min(units - 1);
        // SAFETY: `skip` is less than the units of the first element.
        let first = unsafe { ring.base.add(skip * 2) };
        let second = if units - skip > 1 && max_sge > 1 { 2 } else { 0 };
        // SAFETY: `second` is one unit, which the first element has then, or 0.
        let second = unsafe { first.add(second) };
        Self {
            first,
            second,
            notes: NonNull::from(&*notes.entries).cast(),
            // Both masks are powers of two minus one, so the smaller one is, too.
            mask: ring.mask.min(notes.mask),
            stride: ring.stride(),
            skip,
            ring: ring.clone(),
            _owner: Arc::clone(owner) as _,
        }
    }

    /// The largest index of an element.
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// The first two units of the element at `index`, modulo the ring; if there is only one, it is returned twice.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn units(&self, index: u32) -> [&[AtomicU64; 2]; 2] {
        let at = (index & self.mask) as usize * self.stride;
        // SAFETY: the masked index names an element (invariant).
        let first = unsafe { self.first.byte_add(at) };
        // SAFETY: `second` is the second unit of the first element, or the first one again (invariant), so `at` leads to a
        // unit of the same element as `first`.
        let second = unsafe { self.second.byte_add(at) };
        // SAFETY: 16 bytes inside the memory, aligned, which exist while `self` is borrowed and are used by atomics only.
        let first = unsafe { first.cast().as_ref() };
        // SAFETY: 16 bytes inside the memory, aligned, which exist while `self` is borrowed and are used by atomics only.
        let second = unsafe { second.cast().as_ref() };
        [first, second]
    }

    /// The words of the entries of the element at `index`, modulo the ring.
    pub(crate) fn entries(&self, index: u32) -> &[AtomicU64] {
        self.ring.element(index & self.mask).split_at(self.skip * 2).1
    }

    /// The recorded data of the element at `index`, modulo the size of the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn note(&self, index: u32) -> &E {
        // SAFETY: the table has an entry for every masked index (invariant).
        let note = unsafe { self.notes.add((index & self.mask) as usize) };
        // SAFETY: the address of an entry of the table, which exists while `self` is borrowed.
        unsafe { note.as_ref() }
    }
}

impl<E> fmt::Debug for RecvRing<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ring.fmt(f)
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
