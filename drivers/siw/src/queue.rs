// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring that siw shares with user space: a power of two of elements of one size, without indices.
//!
//! The number of elements is in the kernel's answer at creation. Each side counts the elements that it has passed on; the
//! flags of an element determine to which side it belongs. A completion queue has two more words after its elements, by which it is armed
//! (`struct siw_cq_ctrl`).
//!
//! This is the only module that accesses shared memory. It never creates a reference to it: elements are written and read
//! through raw pointers, flags through atomics.
#![expect(unsafe_code)]
// UNSAFETY: the ring is memory that the kernel reads and writes; every access is a raw pointer access, bounded by the
// geometry that `Ring::new` checked.

use core::fmt;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};
use uverbs_core::kernel::Mapping;
use uverbs_uapi::siw::{siw_cq_ctrl, siw_cqe, siw_rqe, siw_sge, siw_sqe};
use zerocopy::{Immutable, IntoBytes};

/// Why a mapping is not a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// Read-only, or not aligned.
    Mapping,
    /// The number of elements is not a power of two, or is absurd.
    Slots(u32),
    /// The elements do not fit in the mapping.
    TooShort,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapping => f.write_str("the mapping is not writable or not aligned"),
            Self::Slots(slots) => write!(f, "{slots} elements"),
            Self::TooShort => f.write_str("the mapping is shorter than the ring"),
        }
    }
}

impl core::error::Error for RingError {}

/// The largest number of elements: above the kernel's limits (`SIW_MAX_CQE` is 3 276 800).
const MAX_SLOTS: u32 = 1 << 24;

/// The offset of the flags in every kind of element.
const FLAGS: usize = 8;
const _: () = assert!(offset_of!(siw_sqe, flags) == FLAGS && offset_of!(siw_rqe, flags) == FLAGS);
const _: () = assert!(offset_of!(siw_cqe, flags) == FLAGS);

/// An element of a ring.
///
/// # Safety
/// It is a struct of siw's ABI: its alignment is at most 8, its size is a multiple of 8, and its flags are at `FLAGS`.
pub unsafe trait Element {
    /// Bytes of the ring after the elements.
    const TRAILER: usize = 0;
}

// SAFETY: a struct of the ABI, checked above.
unsafe impl Element for siw_sqe {}
// SAFETY: a struct of the ABI, checked above.
unsafe impl Element for siw_rqe {}
// SAFETY: a struct of the ABI, checked above.
unsafe impl Element for siw_cqe {
    const TRAILER: usize = size_of::<siw_cq_ctrl>();
}

/// An element with a poster: a head, then entries.
///
/// # Safety
/// A struct of siw's ABI that consists of `Head`, whose flags are at `FLAGS`, and six entries.
pub unsafe trait Work: Element {
    /// The fields before the entries.
    type Head: IntoBytes + Immutable;
}

/// The head of [`siw_sqe`].
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct SendHead {
    pub(crate) id: u64,
    /// 0: the element is published by [`Ring::publish`].
    pub(crate) flags: u16,
    pub(crate) num_sge: u8,
    pub(crate) opcode: u8,
    pub(crate) rkey: u32,
    pub(crate) raddr: u64,
}

/// The head of [`siw_rqe`].
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct RecvHead {
    pub(crate) id: u64,
    /// 0: the element is published by [`Ring::publish`].
    pub(crate) flags: u16,
    pub(crate) num_sge: u8,
    pub(crate) opcode: u8,
    pub(crate) unused: u32,
}

macro_rules! same_offsets {
    ($head:ty, $element:ty: $($field:ident)*) => {
        const _: () = {
            $(assert!(offset_of!($head, $field) == offset_of!($element, $field));)*
            assert!(size_of::<$head>() == offset_of!($element, sge));
            assert!(size_of::<$element>() == size_of::<$head>() + ENTRIES);
            assert!(align_of::<$element>() <= 8 && size_of::<$element>().is_multiple_of(8));
        };
    };
}
same_offsets!(SendHead, siw_sqe: id flags num_sge opcode rkey raddr);
same_offsets!(RecvHead, siw_rqe: id flags num_sge opcode unused);

/// Bytes of the entries.
const ENTRIES: usize = 6 * size_of::<siw_sge>();

// SAFETY: checked by `same_offsets`.
unsafe impl Work for siw_sqe {
    type Head = SendHead;
}
// SAFETY: checked by `same_offsets`.
unsafe impl Work for siw_rqe {
    type Head = RecvHead;
}

/// A ring of `E`.
///
/// # Invariants
/// - `mapping` is alive and writable, and `base` is its start, aligned to 8.
/// - `mask + 1` is a power of two; as many `E`, and after them `E::TRAILER` bytes, are inside the mapping.
pub struct Ring<E> {
    base: NonNull<u8>,
    mask: u32,
    mapping: Mapping,
    _element: PhantomData<fn(E) -> E>,
}

// SAFETY: the ring owns its mapping, which is `Send`; `base` points into it. All access is through `&self` atomics and
// reads, and `&mut self` slots, as with any owned value.
unsafe impl<E> Send for Ring<E> {}

impl<E: Element> Ring<E> {
    /// The bytes of a ring with this number of elements, which is what must be mapped.
    ///
    /// # Errors
    /// No ring has this number of elements.
    pub fn bytes(slots: u32) -> Result<usize, RingError> {
        if !slots.is_power_of_two() || slots > MAX_SLOTS {
            return Err(RingError::Slots(slots));
        }
        Ok(slots as usize * size_of::<E>() + E::TRAILER)
    }

    /// Takes a mapping for a ring of this number of elements.
    ///
    /// # Errors
    /// The mapping is not such a ring.
    pub fn new(mapping: Mapping, slots: u32) -> Result<Self, RingError> {
        const { assert!(align_of::<E>() <= 8 && size_of::<E>().is_multiple_of(8)) };
        let base = mapping.as_ptr();
        if !mapping.is_writable() || !base.addr().get().is_multiple_of(8) {
            return Err(RingError::Mapping);
        }
        if mapping.len() < Self::bytes(slots)? {
            return Err(RingError::TooShort);
        }
        Ok(Self { base, mask: slots - 1, mapping, _element: PhantomData })
    }

    /// The number of elements.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slots(&self) -> u32 {
        self.mask + 1
    }

    /// The place of an element in the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn place(&self, index: u32) -> usize {
        (index & self.mask) as usize
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn element(&self, index: u32) -> NonNull<u8> {
        let offset = self.place(index) * size_of::<E>();
        // SAFETY: the masked index names one of the elements, which are all inside the mapping (invariant).
        unsafe { self.base.add(offset) }
    }
}

impl<E: Work> Ring<E> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn flags(&self, index: u32) -> &AtomicU16 {
        // SAFETY: the flags are inside the element (`Element`).
        let ptr = unsafe { self.element(index).add(FLAGS) }.cast::<u16>();
        // SAFETY: aligned, because elements are aligned to 8; valid while `self` is borrowed. While the flags are not 0, all
        // accesses to them are atomic, here and in the kernel; while they are 0, the kernel only reads them.
        unsafe { AtomicU16::from_ptr(ptr.as_ptr()) }
    }

    /// Whether the element is this side's. Acquire: pairs with the kernel's store (`smp_store_mb(sqe->flags, 0)`), so the
    /// kernel no longer reads an element that is seen to be free.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_free(&self, index: u32) -> bool {
        self.flags(index).load(Ordering::Acquire) == 0
    }

    /// Passes an element to the kernel. Release: the kernel reads the element as it was written before.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&mut self, index: u32, flags: u16) {
        self.flags(index).store(flags, Ordering::Release);
    }

    /// An element that is free, to be written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slot(&mut self, index: u32) -> Slot<'_, E> {
        Slot { ptr: self.element(index), _ring: PhantomData }
    }
}

impl Ring<siw_cqe> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn valid(&self, index: u32) -> &AtomicU8 {
        // SAFETY: the flags are inside the element (`Element`).
        let ptr = unsafe { self.element(index).add(FLAGS) };
        // SAFETY: one byte, valid while `self` is borrowed; all accesses to it are atomic, here and in the kernel.
        unsafe { AtomicU8::from_ptr(ptr.as_ptr()) }
    }

    /// The flags of a completion. Acquire: pairs with the kernel's store after it has written the completion.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn flags_of(&self, index: u32) -> u8 {
        self.valid(index).load(Ordering::Acquire)
    }

    /// Returns an element to the kernel. Release: the kernel writes it only after this side's reads.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn give_back(&mut self, index: u32) {
        self.valid(index).store(0, Ordering::Release);
    }

    /// A completion. Its fields may have any values; its flags are those of [`flags_of`](Self::flags_of).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn read(&self, index: u32) -> siw_cqe {
        // SAFETY: a whole element, aligned to 8, of a ring that is alive. Any bytes are a `siw_cqe`. Volatile, because the
        // kernel may write at any time: the value is read once and used as read.
        unsafe { self.element(index).cast::<siw_cqe>().read_volatile() }
    }

    /// Replaces a completion that the kernel has written, without its flags.
    pub(crate) fn replace(&mut self, index: u32, with: &siw_cqe) {
        self.put::<{ offset_of!(siw_cqe, id) }, _>(index, with.id);
        self.put::<{ offset_of!(siw_cqe, opcode) }, _>(index, with.opcode);
        self.put::<{ offset_of!(siw_cqe, status) }, _>(index, with.status);
        self.put::<{ offset_of!(siw_cqe, bytes) }, _>(index, with.bytes);
        self.put::<{ offset_of!(siw_cqe, imm_data) }, _>(index, with.imm_data);
        self.put::<{ offset_of!(siw_cqe, qp_id) }, _>(index, with.qp_id);
    }

    fn put<const OFFSET: usize, T: IntoBytes + Immutable>(&mut self, index: u32, value: T) {
        const {
            assert!(OFFSET + size_of::<T>() <= size_of::<siw_cqe>());
            assert!(OFFSET.is_multiple_of(align_of::<T>()) && align_of::<T>() <= 8);
        }
        // SAFETY: inside the element (asserted above).
        let to = unsafe { self.element(index).add(OFFSET) }.cast::<T>();
        // SAFETY: room for a `T`, aligned (asserted above), of a ring that is alive and writable. `&mut self` excludes
        // other accesses of this side; the kernel does not access a completion that it has written.
        unsafe { to.write_volatile(value) };
    }

    /// The word that arms the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn notify(&self) -> &AtomicU32 {
        let offset = self.slots() as usize * size_of::<siw_cqe>() + offset_of!(siw_cq_ctrl, flags);
        // SAFETY: the trailer is inside the mapping (invariant).
        let ptr = unsafe { self.base.add(offset) }.cast::<u32>();
        // SAFETY: aligned, because elements have a multiple of 8 bytes; valid while `self` is borrowed; all accesses to the
        // word are atomic, here and in the kernel.
        unsafe { AtomicU32::from_ptr(ptr.as_ptr()) }
    }
}

impl<E> fmt::Debug for Ring<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("mask", &self.mask)
            .field("element", &size_of::<E>())
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}

/// An element that the poster may write.
///
/// Every method writes inside the element for any arguments. It can't be read, so bytes that the kernel left there have
/// no effect.
pub(crate) struct Slot<'r, E> {
    ptr: NonNull<u8>,
    _ring: PhantomData<&'r mut Ring<E>>,
}

impl<E: Work> Slot<'_, E> {
    /// Writes the fields before the entries. The flags of `head` are 0, as those of the element are.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_head(&mut self, head: E::Head) {
        // SAFETY: an element begins with its head and is aligned to 8 (`Work`). Only this side writes it: `&mut Ring`
        // excludes other writers here, and the kernel has no access to an element that is free.
        unsafe { self.ptr.cast::<E::Head>().write(head) };
    }

    /// Sets the number of entries of an element whose head is written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_num_sge(&mut self, num_sge: u8) {
        const NUM_SGE: usize = offset_of!(siw_sqe, num_sge);
        const { assert!(NUM_SGE == offset_of!(siw_rqe, num_sge)) };
        // SAFETY: inside the head of either kind of element, which are all kinds (`Work`).
        let to = unsafe { self.ptr.add(NUM_SGE) };
        // SAFETY: one byte of the element. Access as above.
        unsafe { to.write(num_sge) };
    }

    /// Writes the entry at `index`. If there is none, returns `false` and writes nothing.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub(crate) fn put_sge(&mut self, index: usize, sge: siw_sge) -> bool {
        if index >= ENTRIES / size_of::<siw_sge>() {
            return false;
        }
        // SAFETY: an element has six entries after its head (`Work`), and the index is one of them.
        let to = unsafe { self.ptr.add(size_of::<E::Head>() + index * size_of::<siw_sge>()) };
        // SAFETY: inside the element, and aligned: the head and the entries have a multiple of 8 bytes. Access as above.
        unsafe { to.cast::<siw_sge>().write(sge) };
        true
    }

    /// Writes `bytes` at `offset` of the inline data, which begin at the second entry. If they do not fit, returns `false`
    /// and writes nothing.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub(crate) fn put_inline(&mut self, offset: usize, bytes: &[u8]) -> bool {
        const ROOM: usize = ENTRIES - size_of::<siw_sge>();
        if offset > ROOM || bytes.len() > ROOM - offset {
            return false;
        }
        // SAFETY: the offset is at most the end of the entries, which are inside the element (`Work`).
        let to = unsafe { self.ptr.add(size_of::<E::Head>() + size_of::<siw_sge>() + offset) };
        // SAFETY: as many bytes fit before the end of the entries (checked above). No Rust reference to the ring exists, so
        // `bytes` does not overlap it.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        true
    }
}

/// A ring in heap memory: the words are the whole mapping; the test uses them in the role of the kernel.
#[cfg(any(test, feature = "test-utils"))]
pub(crate) fn heap(bytes: usize) -> (Mapping, std::sync::Arc<[core::sync::atomic::AtomicU64]>) {
    use core::sync::atomic::AtomicU64;
    let words: std::sync::Arc<[AtomicU64]> = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
    let ptr = NonNull::from(&words[..]).cast::<u8>();
    // SAFETY: the words live as long as the `Arc` that becomes the mapping's owner, and consist of atomics.
    let mapping = unsafe { Mapping::new(ptr, bytes, std::sync::Arc::clone(&words)) };
    (mapping, words)
}
