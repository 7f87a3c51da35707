// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a shared receive queue: the list of its elements.
//!
//! Elements complete in any order, so the device follows links from one to the next. The list starts with the element of
//! the next receive. Its last element is never posted; completed elements are linked to it, by the poster when the list has
//! run out, not by the pollers. Elements that complete in the order in which they were posted follow the end already,
//! because their links were not changed, and nothing is written to the ring. The other elements are linked in the order of
//! their indices.
//!
//! The number with which an element will be posted is known when it is linked. So a post stores only its `wr_id`, and a
//! poller can find whether an element is published (`SrqShared::is_outstanding`).
//!
//! The limit is in the queue's [`QueueAccess`], which the kernel wipes in a child of fork(2), and which [`close`] sets to 0 when the
//! device was removed. An SRQ has no state, so no other control call closes it. No thread waits for a post, and posts do not set the
//! busy flag.

use crate::memory::RecvRing;
use crate::memory::dbrec::DbWord;
use crate::rq::face::Produce;
use crate::shared::SrqRecord;
use crate::shared::SrqShared;
use crate::wqe::{RecvFormat, WireEntry};
use core::fmt;
use core::hint::cold_path;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::barrier::to_device;

/// The position of a batch.
#[derive(Clone, Copy, Debug)]
pub struct SrqCursor {
    /// Receives posted so far, or [`FAILED`](Self::FAILED).
    head: u64,
    /// The `head` at which there is no more room.
    limit: u64,
    /// The element of the next receive.
    element: u32,
}

impl SrqCursor {
    /// The `head` of a batch with an error, which the producer stores. Above every limit.
    const FAILED: u64 = u64::MAX;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn has_room(self) -> bool {
        self.head < self.limit
    }
}

/// The part of a shared receive queue that only its poster accesses.
pub struct SrqProducer {
    /// Receives published.
    head: u64,
    /// The element of the next receive.
    element: u32,
    /// The last element of the list.
    end: u32,
    /// Contains the limit: the number of elements that were ever linked, minus one.
    access: QueueAccess,
    ring: RecvRing<SrqRecord>,
    format: RecvFormat,
    record: DbWord,
    srq: Arc<SrqShared>,
    /// The unmarked group of elements that was checked last.
    group: u32,
    /// The error of a batch whose head is [`SrqCursor::FAILED`].
    error: PostError,
}

impl SrqProducer {
    /// Creates the producer and writes the links. To be called before the kernel gets the memory, or before anything is
    /// posted.
    pub(crate) fn new(
        srq: Arc<SrqShared>,
        access: QueueAccess,
        max_sge: u32,
        max_msg: u64,
        record: DbWord,
    ) -> Self {
        let slots = srq.slots();
        let units = (srq.ring.stride() / 16).saturating_sub(1) as u32;
        let max_sge = max_sge.min(units);
        let this = Self {
            head: 0,
            element: 0,
            end: slots - 1,
            ring: RecvRing::new(&srq, |srq| (&srq.ring, &srq.records), 1, max_sge),
            format: RecvFormat::new(max_sge, max_msg),
            access,
            record,
            srq,
            group: 0,
            error: PostError::QueueFull,
        };
        (0..slots).for_each(|i| this.write_link(i, this.next_of(i)));
        this.access.limit().store(u64::from(slots) - 1, Ordering::Relaxed);
        this
    }

    /// The next element, the end of the list, and the number of receives that were posted.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn indices(&self) -> (u32, u32, u32) {
        (self.element, self.end, self.head as u32)
    }

    /// Changes the counts as if `head` receives had been posted and completed.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn start_at(&mut self, head: u64) {
        let ahead = head - self.head;
        self.head = head;
        self.srq.records.iter().for_each(|record| {
            record.posted_as.fetch_add(ahead, Ordering::Relaxed);
        });
        self.access.limit().fetch_add(ahead, Ordering::Relaxed);
    }

    fn write_link(&self, element: u32, next: u32) {
        self.srq.ring.unit(element, 0)[0].store((u64::from(next) << 32).to_be(), Ordering::Relaxed);
    }

    /// Relaxed: only this producer raises the limit, and what `close` stores is checked in `check_open`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn limit(&self) -> u64 {
        self.access.limit().load(Ordering::Relaxed)
    }

    /// Called when the list has run out: links the elements that completed since. Returns a limit above `head`.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, head: u64) -> Result<u64, PostError> {
        if head == SrqCursor::FAILED {
            return Err(self.error);
        }
        let before = self.limit();
        self.check_open()?;
        let mut list = ListEnd { element: self.end, count: before + 1 };
        self.extend_in_order(&mut list);
        if list.element == self.end {
            self.group = (self.group + 1) % self.srq.groups();
            self.srq.candidates(self.group, |element| self.link(&mut list, element));
        }
        self.end = list.element;
        let limit = list.count - 1;
        if self.access.limit().compare_exchange(before, limit, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            // Only `close` changes it meanwhile. It stays 0.
            return Err(PostError::Removed);
        }
        if head < limit { Ok(limit) } else { Err(PostError::QueueFull) }
    }

    fn check_open(&self) -> Result<(), PostError> {
        // Acquire: if this is the limit that `close` has stored, the word is that of `close`, too. A later load of the limit than
        // the caller's, so it finds no earlier value.
        let _ = self.access.limit().load(Ordering::Acquire);
        let word = StateWord::from_bits(self.access.word().load(Ordering::Relaxed));
        if word.is_forked() || word.state() == StateWord::REMOVED { Err(word.refusal()) } else { Ok(()) }
    }

    /// Links the elements that the links from the end on lead to, as long as they are free.
    fn extend_in_order(&self, list: &mut ListEnd) {
        let mut end = self.ring.note(list.element);
        loop {
            // Most links lead to the next index. The record of that element is loaded without waiting for the link, which
            // is only compared; that halves the time per element.
            let neighbour = list.element.wrapping_add(1) & self.ring.mask();
            let next = end.next.load(Ordering::Relaxed);
            let (next, record) = if next == neighbour {
                (neighbour, self.ring.note(neighbour))
            } else {
                cold_path();
                (next, self.ring.note(next))
            };
            if !record.is_free(self.head) {
                return;
            }
            list.move_to(next, record);
            end = record;
        }
    }

    /// Links an element to the end of the list if it is free.
    fn link(&self, list: &mut ListEnd, element: u32) {
        let record = self.ring.note(element);
        if !record.is_free(self.head) {
            return;
        }
        if self.next_of(list.element) != element {
            self.ring.note(list.element).next.store(element, Ordering::Relaxed);
            self.write_link(list.element, element);
        }
        list.move_to(element, record);
    }

    /// The element that the link of an element names.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn next_of(&self, element: u32) -> u32 {
        self.ring.note(element).next.load(Ordering::Relaxed)
    }

    /// The error of a batch that can't be published; `Ok` if the batch is empty.
    #[inline(never)]
    fn refuse(&self, cursor: SrqCursor) -> Result<(), PostError> {
        if cursor.head == SrqCursor::FAILED {
            return Err(self.error);
        }
        self.check_open()
    }

    /// Publishes the receives before `head`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn publish(&mut self, head: u64, element: u32) {
        (self.head, self.element) = (head, element);
        self.srq.set_published(head);
        to_device();
        // The device compares modulo 2^16. libmlx5's counter has 16 bits, so the upper half is 0 there, too.
        self.record.set(head as u32 & 0xffff);
    }
}

/// The device was removed: later posts to the queue fail. A post in progress may still publish its receives.
pub(crate) fn close(access: &QueueAccess) {
    let _ = access.word().fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
        // In a child of fork(2) the word is 0 and stays 0.
        let word = StateWord::from_bits(word);
        (!word.is_forked()).then(|| word.next(StateWord::REMOVED).bits())
    });
    // Release: pairs with `SrqProducer::check_open`.
    access.limit().store(0, Ordering::Release);
}

/// The end of the list while elements are linked to it.
struct ListEnd {
    element: u32,
    /// The number of receives that will be published with this element.
    count: u64,
}

impl ListEnd {
    /// Makes a linked element the end. The former end can be posted now; the new one will be posted after it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn move_to(&mut self, element: u32, record: &SrqRecord) {
        (self.element, self.count) = (element, self.count + 1);
        record.set_linked(self.count);
    }
}

impl Produce for SrqProducer {
    type Cursor = SrqCursor;

    fn max_sge(&self) -> u32 {
        self.format.max_sge()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin(&self) -> SrqCursor {
        SrqCursor { head: self.head, limit: self.limit(), element: self.element }
    }

    fn is_begun(&self, cursor: SrqCursor) -> bool {
        cursor.head != self.head
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn reserve(&mut self, cursor: &mut SrqCursor) -> Result<(), PostError> {
        if cursor.has_room() {
            return Ok(());
        }
        cold_path();
        cursor.limit = self.make_room(cursor.head)?;
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn element(cursor: SrqCursor) -> u32 {
        cursor.element
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_one<S: WireEntry>(&self, cursor: &mut SrqCursor, wr_id: u64, sge: S) -> bool {
        let written = self.format.put_one(self.ring.units(cursor.element), sge);
        if written {
            let record = self.ring.note(cursor.element);
            record.wr_id.store(wr_id, Ordering::Relaxed);
            cursor.head += 1;
            cursor.element = record.next.load(Ordering::Relaxed);
        }
        written
    }

    #[inline(never)]
    fn put_any<S: WireEntry>(&self, element: u32, wr_id: u64, sges: &[S]) -> Result<(), PostError> {
        self.format.put_any(self.ring.entries(element), sges)?;
        self.ring.note(element).wr_id.store(wr_id, Ordering::Relaxed);
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn advance(&self, cursor: &mut SrqCursor) {
        cursor.head += 1;
        cursor.element = self.next_of(cursor.element);
    }

    #[cold]
    fn latch(&mut self, cursor: &mut SrqCursor, error: PostError) {
        if cursor.head != SrqCursor::FAILED {
            (self.error, cursor.head) = (error, SrqCursor::FAILED);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(&mut self, cursor: SrqCursor) -> Result<(), PostError> {
        if self.head < cursor.head && cursor.head <= self.limit() {
            self.publish(cursor.head, cursor.element);
            return Ok(());
        }
        cold_path();
        self.refuse(cursor)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn post_one<S: WireEntry>(&mut self, wr_id: u64, sge: S) -> bool {
        let mut cursor = self.begin();
        let posted = cursor.has_room() && self.put_one(&mut cursor, wr_id, sge);
        if posted {
            self.publish(cursor.head, cursor.element);
        }
        posted
    }
}

impl fmt::Debug for SrqProducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqProducer")
            .field("head", &self.head)
            .field("element", &self.element)
            .field("end", &self.end)
            .field("access", &self.access)
            .field("ring", &self.ring)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}
