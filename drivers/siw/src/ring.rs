// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rings of siw: a power of two of elements of one size, without indices.
//!
//! The number of elements is in the kernel's answer at creation. Each side counts the elements that it has passed on; the
//! flags of an element determine to which side it belongs. A completion queue has two more words after its elements, by which it is armed
//! (`struct siw_cq_ctrl`).
//!
//! The kernel takes WRs in order and clears the flags of each one that it has taken. An element that it may see has
//! flags, so WRs are written without them; their flags are kept beside the ring until the batch is published. The
//! flags are then stored from the last element to the first: the kernel stops at the first one, so it finds the whole batch
//! or nothing of it.

use crate::completion::Completion;
use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::{Ordering, fence};
use uverbs_core::kernel::{Mapping, MemoryError};
use uverbs_core::provider::{PollError, PostError};
use uverbs_core::wr::Sge;
use uverbs_soft::format::{CqRing, PostRing, WqeSlot};
use uverbs_soft::memory::{Elements, Memory, Slot};
use uverbs_uapi::siw::{
    SIW_MAX_SGE, SIW_NOTIFY_NEXT_COMPLETION, SIW_NOTIFY_SOLICITED, SIW_WQE_VALID, siw_cq_ctrl, siw_cqe,
    siw_rqe, siw_sge, siw_sqe,
};
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

/// The bytes of this number of elements, and what follows them.
fn bytes(slots: u32, element: usize, trailer: usize) -> Result<usize, RingError> {
    if !slots.is_power_of_two() || slots > MAX_SLOTS {
        return Err(RingError::Slots(slots));
    }
    Ok(slots as usize * element + trailer)
}

/// The elements of a mapping, whose number is checked.
fn elements<H, const TRAILER: usize, const TAIL: usize>(
    mapping: Mapping,
    slots: u32,
    element: usize,
) -> Result<Elements<H, 0, TRAILER, TAIL>, RingError> {
    let elements = |memory| Elements::new(memory, slots - 1, element);
    Memory::new(mapping).and_then(elements).map_err(|error| match error {
        MemoryError::TooShort => RingError::TooShort,
        _ => RingError::Mapping,
    })
}

/// The offset of the flags in every kind of element.
const FLAGS: usize = 8;
const _: () = assert!(offset_of!(SendHead, flags) == FLAGS && offset_of!(RecvHead, flags) == FLAGS);
const _: () = assert!(offset_of!(siw_cqe, flags) == FLAGS);

/// Bytes of the entries.
const ENTRIES: usize = SIW_MAX_SGE as usize * size_of::<siw_sge>();

/// An element with a poster: a head, then entries.
pub trait Work: fmt::Debug {
    /// The fields before the entries, with the flags at the same offset in each.
    type Head: IntoBytes + Immutable + fmt::Debug;
}

/// The head of [`siw_sqe`].
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct SendHead {
    pub(crate) id: u64,
    /// 0: the element is published by its ring.
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
    /// 0: the element is published by its ring.
    pub(crate) flags: u16,
    pub(crate) num_sge: u8,
    pub(crate) opcode: u8,
    pub(crate) unused: u32,
}

macro_rules! work {
    ($head:ty, $element:ty: $($field:ident)*) => {
        const _: () = {
            $(assert!(offset_of!($head, $field) == offset_of!($element, $field));)*
            assert!(size_of::<$head>() == offset_of!($element, sge));
            assert!(size_of::<$element>() == size_of::<$head>() + ENTRIES);
        };
        impl Work for $element {
            type Head = $head;
        }
    };
}
work!(SendHead, siw_sqe: id flags num_sge opcode rkey raddr);
work!(RecvHead, siw_rqe: id flags num_sge opcode unused);

/// A ring of WRs.
#[derive(Debug)]
pub struct Ring<E: Work> {
    elements: Elements<E::Head, 0, 0, ENTRIES>,
    /// The flags of elements that are not published.
    flags: Box<[u16]>,
}

impl<E: Work> Ring<E> {
    /// The bytes of a ring with this number of elements, which is what must be mapped.
    ///
    /// # Errors
    /// No ring has this number of elements.
    pub fn bytes(slots: u32) -> Result<usize, RingError> {
        bytes(slots, size_of::<E>(), 0)
    }

    /// Takes a mapping for a ring of this number of elements.
    ///
    /// # Errors
    /// The mapping is not such a ring.
    pub fn new(mapping: Mapping, slots: u32) -> Result<Self, RingError> {
        Self::bytes(slots)?;
        let elements = elements(mapping, slots, size_of::<E>())?;
        Ok(Self { elements, flags: vec![0; slots as usize].into_boxed_slice() })
    }

    /// Whether the element is this side's. Acquire: pairs with the kernel's store (`smp_store_mb(sqe->flags, 0)`), so the
    /// kernel no longer reads an element that is seen to be free.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_free(&self, at: u32) -> bool {
        self.elements.flags::<FLAGS>(at).load(Ordering::Acquire) == 0
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn place(&self, at: u32) -> usize {
        (at & self.elements.mask()) as usize
    }
}

impl<E: Work> PostRing for Ring<E> {
    type Slot<'r>
        = WqeOf<'r, E::Head>
    where
        Self: 'r;

    fn capacity(&self) -> u32 {
        self.elements.mask() + 1
    }

    /// The inline data begin at the second entry.
    fn slot_room(&self) -> (u32, u32) {
        (SIW_MAX_SGE, (self.elements.tail() - size_of::<siw_sge>()) as u32)
    }

    /// The device has no reset of a QP that was used.
    fn start(&self, published: u32) -> Result<(u32, u32), PostError> {
        Ok((published, published))
    }

    /// If an element is free, those before it are, because the kernel takes them in order. So the last one is read
    /// first, and then those at half of the distance.
    fn room(&self, published: u32, at: u32) -> Result<u32, PostError> {
        let mut free = self.capacity().saturating_sub(at.wrapping_sub(published));
        while free != 0 {
            let end = at.wrapping_add(free);
            if self.is_free(end.wrapping_sub(1)) {
                return Ok(end);
            }
            free /= 2;
        }
        Err(PostError::QueueFull)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn slot(&mut self, at: u32) -> WqeOf<'_, E::Head> {
        let place = self.place(at);
        WqeOf { slot: self.elements.slot(at), flags: &mut self.flags[place] }
    }

    /// Release: the kernel reads an element as it was written before.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn publish(&mut self, from: u32, to: u32) {
        let mut at = to;
        while at != from {
            at = at.wrapping_sub(1);
            let flags = self.flags[self.place(at)];
            self.elements.flags::<FLAGS>(at).store(flags, Ordering::Release);
        }
    }

    /// The kernel copies a receive of a shared queue when a message arrives, and then clears its flags (`siw_rqe_get()`). It takes
    /// them in order, so those that are left are the last ones.
    fn untaken(&self, published: u32) -> (u32, u32) {
        let is_waiting = |n: &u32| !self.is_free(published.wrapping_sub(n + 1));
        let count = (0..self.capacity()).take_while(is_waiting).count() as u32;
        (count, published.wrapping_sub(count))
    }
}

/// A slot of a work queue, and the flags with which it will be published.
#[derive(Debug)]
pub struct WqeOf<'r, H> {
    pub(crate) slot: Slot<'r, H, ENTRIES>,
    pub(crate) flags: &'r mut u16,
}

impl<H> WqeSlot for WqeOf<'_, H> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_sge(&mut self, index: usize, sge: Sge) -> bool {
        self.slot.put_item(index, siw_sge { laddr: sge.addr, length: sge.length, lkey: sge.lkey })
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_inline(&mut self, offset: usize, bytes: &[u8]) -> bool {
        self.slot.put_tail(offset.saturating_add(size_of::<siw_sge>()), bytes)
    }
}

const TRAILER: usize = size_of::<siw_cq_ctrl>();

/// A ring of completions.
#[derive(Debug)]
pub struct CompletionRing(Elements<siw_cqe, 0, TRAILER, 0>);

impl CompletionRing {
    /// As [`Ring::bytes`].
    ///
    /// # Errors
    /// No ring has this number of elements.
    pub fn bytes(slots: u32) -> Result<usize, RingError> {
        bytes(slots, size_of::<siw_cqe>(), TRAILER)
    }

    /// Takes a mapping for a ring of this number of elements.
    ///
    /// # Errors
    /// The mapping is not such a ring.
    pub fn new(mapping: Mapping, slots: u32) -> Result<Self, RingError> {
        Self::bytes(slots)?;
        Ok(Self(elements(mapping, slots, size_of::<siw_cqe>())?))
    }
}

impl CqRing for CompletionRing {
    type Entry = Completion;
    const RETURNS_AT_ONCE: bool = true;

    fn capacity(&self) -> u32 {
        self.0.mask() + 1
    }

    fn start(&self) -> Result<u32, PollError> {
        Ok(0)
    }

    /// Acquire: pairs with the kernel's store of the flags after it has written the completion.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn written(&self, at: u32, max: u32) -> Result<u32, PollError> {
        const { assert!(SIW_WQE_VALID <= 0xff) };
        let is_valid = |n: &u32| {
            let flag = self.0.flag::<FLAGS>(at.wrapping_add(*n)).load(Ordering::Acquire);
            flag & SIW_WQE_VALID as u8 != 0
        };
        Ok(at.wrapping_add((0..max).take_while(is_valid).count() as u32))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn read(&self, at: u32) -> Completion {
        Completion { cqe: self.0.entry(at).head() }
    }

    /// Its flags stay: they are those of a completion.
    fn replace(&mut self, at: u32, with: &Completion) {
        let (mut slot, cqe) = (self.0.slot(at), &with.cqe);
        slot.put_field::<{ offset_of!(siw_cqe, id) }, _>(cqe.id);
        slot.put_field::<{ offset_of!(siw_cqe, opcode) }, _>(cqe.opcode);
        slot.put_field::<{ offset_of!(siw_cqe, status) }, _>(cqe.status);
        slot.put_field::<{ offset_of!(siw_cqe, bytes) }, _>(cqe.bytes);
        slot.put_field::<{ offset_of!(siw_cqe, imm_data) }, _>(cqe.imm_data);
        slot.put_field::<{ offset_of!(siw_cqe, qp_id) }, _>(cqe.qp_id);
    }

    /// Release: the kernel writes a slot only after this side's reads.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn give_back(&mut self, from: u32, to: u32) {
        let mut at = from;
        while at != to {
            self.0.flag::<FLAGS>(at).store(0, Ordering::Release);
            at = at.wrapping_add(1);
        }
    }

    /// The order of all stores and loads is that of the program, here and in the kernel (`smp_store_mb()` in
    /// `siw_sqe_complete()`): either a poll after this call finds a completion, or the kernel finds the request.
    fn arm(&mut self, solicited_only: bool) {
        let next = if solicited_only { 0 } else { SIW_NOTIFY_NEXT_COMPLETION };
        let word = self.0.trailer::<{ offset_of!(siw_cq_ctrl, flags) }>();
        word.store(SIW_NOTIFY_SOLICITED | next, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}
