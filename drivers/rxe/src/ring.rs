// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of rxe: a header with two indices, then a power of two of slots.
//!
//! The kernel allocates it and stores element size and index mask in the header (`struct rxe_queue_buf` in
//! `<rdma/rdma_user_rxe.h>`, `rxe_queue_init()`). Both are read once, checked against the size of the mapping, and
//! kept. An index counts slots and is kept below the number of slots by both sides; the ring is empty when the two are equal, so it
//! holds one element less than it has slots.

use crate::completion::Completion;
use crate::wqe::rxe_entry;
use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use uverbs_core::kernel::Mapping;
use uverbs_core::provider::{PollError, PostError};
use uverbs_core::wr::Sge;
use uverbs_soft::format::{CqRing, PostRing, WqeSlot};
use uverbs_soft::memory::{Elements, Memory, Slot};
use uverbs_uapi::cmd::ib_uverbs_wc;
use uverbs_uapi::rxe::{rxe_queue_buf, rxe_sge};

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
pub struct Ring<H>(Elements<H, HEADER>);

impl<H> Ring<H> {
    /// Takes a mapping for a ring whose elements have at least `tail` bytes after the `H`.
    ///
    /// # Errors
    /// The mapping is too small, not aligned or not writable, or its header has values that no ring has.
    pub fn new(mapping: Mapping, tail: usize) -> Result<Self, RingError> {
        let memory = Memory::<HEADER>::new(mapping).map_err(|_| RingError::Header)?;
        let log2 = memory.word::<{ offset_of!(rxe_queue_buf, log2_elem_size) }>().load(Ordering::Relaxed);
        let mask = memory.word::<{ offset_of!(rxe_queue_buf, index_mask) }>().load(Ordering::Relaxed);
        // The kernel pads to a cache line, and its largest element is some hundred bytes.
        let needed = size_of::<H>().saturating_add(tail);
        if !(3..=16).contains(&log2) || (1_usize << log2) < needed {
            return Err(RingError::ElementSize(log2));
        }
        if !(u64::from(mask) + 1).is_power_of_two() {
            return Err(RingError::IndexMask(mask));
        }
        // The geometry is checked but for the length.
        Elements::new(memory, mask, 1 << log2).map(Self).map_err(|_| RingError::TooShort)
    }

    /// The number of elements that fit: one less than the slots.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.0.mask()
    }

    /// The consumer index; `None` if it is outside of the ring.
    ///
    /// Acquire: pairs with the release store of the consumer (`queue_advance_consumer()`), so the consumer no longer
    /// reads a slot that is seen to be free.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn consumer(&self) -> Option<u32> {
        let index = self.0.header::<CONSUMER>().load(Ordering::Acquire);
        (index <= self.0.mask()).then_some(index)
    }

    /// As [`consumer`](Self::consumer), of the producer.
    ///
    /// Acquire: pairs with the release store of the producer (`queue_advance_producer()`), so an element is read after
    /// it was written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn producer(&self) -> Option<u32> {
        let index = self.0.header::<PRODUCER>().load(Ordering::Acquire);
        (index <= self.0.mask()).then_some(index)
    }
}

impl<H> fmt::Debug for Ring<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("producer", &self.0.header::<PRODUCER>().load(Ordering::Relaxed))
            .field("consumer", &self.0.header::<CONSUMER>().load(Ordering::Relaxed))
            .field("elements", &self.0)
            .finish()
    }
}

impl<H> PostRing for Ring<H> {
    type Slot<'r>
        = WqeOf<'r, H>
    where
        Self: 'r;

    fn capacity(&self) -> u32 {
        self.capacity()
    }

    fn slot_room(&self) -> (u32, u32) {
        let bytes = u32::try_from(self.0.tail()).unwrap_or(u32::MAX);
        (bytes / size_of::<rxe_sge>() as u32, bytes)
    }

    /// The kernel leaves both indices unchanged in a reset (`rxe_queue_reset()` zeroes only the slots).
    fn start(&self, _published: u32) -> Result<(u32, u32), PostError> {
        let published = self.producer().ok_or(PostError::Corrupt)?;
        let consumer = self.consumer().ok_or(PostError::Corrupt)?;
        let free = consumer.wrapping_sub(1).wrapping_sub(published) & self.0.mask();
        Ok((published, published.wrapping_add(free)))
    }

    #[inline]
    fn room(&self, published: u32, at: u32) -> Result<u32, PostError> {
        let mask = self.0.mask();
        let consumer = self.consumer().ok_or(PostError::Corrupt)?;
        let free = consumer.wrapping_sub(1).wrapping_sub(at) & mask;
        let written = at.wrapping_sub(published);
        // The kernel can't have consumed WRs that are not published; with such an index the batch would overwrite
        // itself.
        if u64::from(free) + u64::from(written) > u64::from(mask) {
            return Err(PostError::Corrupt);
        }
        if free == 0 { Err(PostError::QueueFull) } else { Ok(at.wrapping_add(free)) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn slot(&mut self, at: u32) -> WqeOf<'_, H> {
        WqeOf(self.0.slot(at))
    }

    /// Release: pairs with the kernel's acquire load in `queue_get_producer()`, so it reads elements as they were written before.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn publish(&mut self, _from: u32, to: u32) {
        self.0.header::<PRODUCER>().store(to & self.0.mask(), Ordering::Release);
    }

    /// The kernel copies a receive of a shared queue when a message arrives, and then advances the index of the consumer
    /// (`get_srq_wqe()`).
    fn untaken(&self, published: u32) -> (u32, u32) {
        let consumer = self.0.header::<CONSUMER>().load(Ordering::Acquire);
        (published.wrapping_sub(consumer) & self.0.mask(), consumer)
    }
}

/// A slot of a work queue.
#[derive(Debug)]
pub struct WqeOf<'r, H>(pub(crate) Slot<'r, H>);

impl<H> WqeSlot for WqeOf<'_, H> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_sge(&mut self, index: usize, sge: Sge) -> bool {
        self.0.put_item(index, rxe_entry(sge))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_inline(&mut self, offset: usize, bytes: &[u8]) -> bool {
        self.0.put_tail(offset, bytes)
    }
}

impl CqRing for Ring<ib_uverbs_wc> {
    type Entry = Completion;
    const RETURNS_AT_ONCE: bool = false;

    fn capacity(&self) -> u32 {
        self.capacity()
    }

    fn start(&self) -> Result<u32, PollError> {
        self.consumer().ok_or(PollError::Corrupt)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn written(&self, at: u32, _max: u32) -> Result<u32, PollError> {
        let producer = self.producer().ok_or(PollError::Corrupt)?;
        Ok(at.wrapping_add(producer.wrapping_sub(at) & self.0.mask()))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn read(&self, at: u32) -> Completion {
        Completion { wc: self.0.entry(at).head() }
    }

    fn replace(&mut self, at: u32, with: &Completion) {
        self.0.slot(at).put_head(with.wc);
    }

    /// Release: pairs with the kernel's acquire load in `queue_get_consumer()`, so it overwrites the slots only after this side's
    /// reads.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn give_back(&mut self, _from: u32, to: u32) {
        self.0.header::<CONSUMER>().store(to & self.0.mask(), Ordering::Release);
    }
}
