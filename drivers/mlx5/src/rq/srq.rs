// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues: a list of elements through which the device goes by links, since they complete in any order.
//!
//! The list starts where the next receive is posted and ends in an element that is never used, to which what completes is
//! linked. That is done not by the pollers but here, when the list has run out: what they have freed by then is linked in
//! the order of the indices, so neighbours stay neighbours. The links that are followed are this side's own.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` carry a promise about the memory that WRs name, and
// walks C's lists.

use crate::memory::RecvRing;
use crate::memory::dbrec::DbWord;
use crate::rq::SrqShared;
use crate::rq::walk;
use crate::wqe::{RecvFormat, Sge, WireEntry};
use core::fmt;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use uverbs_core::kernel::Process;
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue as RecvQueueTrait};
use uverbs_core::sync::barrier::to_device;
use uverbs_core::wr::RecvWr;

/// A shared receive queue.
pub struct SharedRecvQueue {
    srq: Arc<SrqShared>,
    side: Side,
}

/// What of it only its poster has.
struct Side {
    /// The link of each element, as written to the ring.
    next: Box<[u16]>,
    /// The next element.
    head: u32,
    /// The element that ends the list.
    tail: u32,
    /// Receives posted so far: all 32 bits go to the doorbell record.
    count: u32,
    ring: RecvRing,
    format: RecvFormat,
    /// Whose queue this is: a child of fork(2) has a copy that no device sees.
    process: Process,
    record: DbWord,
}

/// Where a batch writes.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    head: u32,
    /// The end of the list, or of what an error left of it.
    limit: u32,
    count: u32,
    error: Option<PostError>,
}

impl Cursor {
    #[inline(always)]
    fn latch(&mut self, error: PostError) {
        self.error = self.error.or(Some(error));
        self.limit = self.head;
    }
}

impl SharedRecvQueue {
    /// A queue of `max_sge` entries to the receive. Writes the links, so it is made before the kernel is told of the memory,
    /// or before anything is posted.
    #[must_use]
    pub fn new(srq: Arc<SrqShared>, max_sge: u32, max_msg_sz: u64, record: DbWord) -> Self {
        srq.published_by(record.clone());
        let slots = srq.slots();
        let next: Box<[u16]> = (1..=slots).map(|i| (i & (slots - 1)) as u16).collect();
        (0..slots).zip(&next).for_each(|(i, next)| link(&srq, i, (*next).into()));
        let units = (srq.ring.stride() / 16).saturating_sub(1) as u32;
        let max_sge = max_sge.min(units);
        let ring = RecvRing::new(&srq.ring, &srq.wr_id, 1, max_sge);
        let side = Side {
            next,
            head: 0,
            tail: slots - 1,
            count: 0,
            ring,
            format: RecvFormat::new(max_sge, max_msg_sz),
            process: Process::register(),
            record,
        };
        Self { srq, side }
    }

    /// How many receives it takes.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.srq.slots() - 1
    }

    /// What it shares with the pollers of its completions.
    #[must_use]
    pub fn shared(&self) -> &Arc<SrqShared> {
        &self.srq
    }

    /// The next element, the end of the list, and how many receives were posted. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn indices(&self) -> (u32, u32, u32) {
        (self.side.head, self.side.tail, self.side.count)
    }
}

/// Writes an element's link.
fn link(srq: &SrqShared, element: u32, next: u32) {
    srq.ring.unit(element, 0)[0].store((u64::from(next) << 32).to_be(), Ordering::Relaxed);
}

impl Side {
    #[inline(always)]
    fn begin(&self) -> Cursor {
        if !self.process.is_current() {
            return Cursor { head: 0, limit: 0, count: self.count, error: Some(PostError::Forked) };
        }
        Cursor { head: self.head, limit: self.tail, count: self.count, error: None }
    }

    /// The list has run out: links what was freed since, and gives its new end.
    #[cold]
    fn refill(&mut self, srq: &SrqShared, error: Option<PostError>) -> Result<u32, PostError> {
        if let Some(error) = error {
            return Err(error);
        }
        let before = self.tail;
        let Self { next, tail, .. } = self;
        srq.take(|element| {
            // The end was not posted, so it can't have been used; linked to itself it would end all posting.
            if let Some(last) = next.get_mut(*tail as usize)
                && element != *tail
            {
                *last = element as u16;
                link(srq, *tail, element);
                *tail = element;
            }
        });
        if self.tail == before { Err(PostError::QueueFull) } else { Ok(self.tail) }
    }

    #[inline(always)]
    fn push<S: WireEntry>(
        &mut self,
        srq: &SrqShared,
        cursor: &mut Cursor,
        wr_id: u64,
        sges: &[S],
    ) -> Result<(), PostError> {
        if cursor.head == cursor.limit {
            cursor.limit = self.refill(srq, cursor.error)?;
        }
        if !self.format.put_one(self.ring.units(cursor.head), sges) {
            // As in `recv`: a copy.
            match sges {
                [one] => self.format.put(self.ring.entries(cursor.head), &[*one])?,
                many => self.format.put(self.ring.entries(cursor.head), many)?,
            }
        }
        self.ring.wr_id(cursor.head).store(wr_id, Ordering::Relaxed);
        cursor.count = cursor.count.wrapping_add(1);
        srq.set_posted_as(cursor.head, cursor.count);
        let next = self.next.get(cursor.head as usize).copied();
        cursor.head = next.ok_or(PostError::Corrupt)?.into();
        Ok(())
    }

    #[inline(always)]
    fn publish(&mut self, cursor: &Cursor) {
        if cursor.count == self.count {
            return;
        }
        (self.head, self.count) = (cursor.head, cursor.count);
        to_device();
        self.record.set(self.count);
    }
}

impl RecvQueueTrait for SharedRecvQueue {
    type Sge = Sge;
    type Batch<'q> = Batch<'q>;

    #[inline(always)]
    fn batch(&mut self) -> Batch<'_> {
        let cursor = self.side.begin();
        Batch { srq: &self.srq, side: &mut self.side, cursor }
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        let Self { srq, side } = self;
        let mut cursor = side.begin();
        let max_sge = side.format.max_sge();
        // SAFETY: the caller's promise about the list.
        let result = unsafe {
            walk(list, max_sge, |wr| match cursor.error {
                Some(error) => Err(error),
                None => wr.and_then(|(wr_id, sges)| side.push(srq, &mut cursor, wr_id, sges)),
            })
        };
        side.publish(&cursor);
        result
    }
}

impl fmt::Debug for SharedRecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecvQueue").field("srqn", &self.srq.srqn).field("side", &self.side).finish()
    }
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Side")
            .field("head", &self.head)
            .field("tail", &self.tail)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// Receives on their way.
#[derive(Debug)]
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q> {
    srq: &'q SrqShared,
    side: &'q mut Side,
    cursor: Cursor,
}

impl RecvBatch for Batch<'_> {
    type Sge = Sge;

    #[inline(always)]
    unsafe fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        if let Err(error) = self.side.push(self.srq, &mut self.cursor, wr_id, sges) {
            self.cursor.latch(error);
        }
    }

    #[inline(always)]
    fn complete(self) -> Result<(), PostError> {
        if let Some(error) = self.cursor.error {
            return Err(error);
        }
        self.side.publish(&self.cursor);
        Ok(())
    }
}
