// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a send queue: cursor, room, fences and publication, the same for every face.
//!
//! The cursor runs ahead of what is published; a batch that is dropped leaves nothing behind. Room is counted in WRs, as
//! `max_send_wr` says, because blocks then follow: creation gave every WR its largest WQE. (A WQE that is larger, of an
//! opcode that creation did not count with, counts as several.) Everything that forbids posting closes
//! [`Cursor::limit`], so the hot path has one compare for all of it, and the reason is looked up where it is cold.

use crate::buf::{Done, Place, Record, SqRing, SqView};
use crate::dbrec::DbWord;
use crate::shared::{QpShared, SqShared};
use crate::uar::Doorbell;
use crate::wqe::Slot;
use core::sync::atomic::Ordering;
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::barrier::to_device;

/// Where a batch writes: past what is published, invisible until it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The next basic block.
    pub(crate) at: Place,
    /// WRs written so far, since the queue was reset.
    pub(crate) head: u32,
    /// The `head` from which there is no room.
    pub(crate) limit: u32,
    /// The last WQE of several blocks: where it began and where it ends. All others are one block before `at`, so the short
    /// way keeps nothing of where they began.
    long: (Place, Place),
    /// Whether inline data was written: worth a BlueFlame burst even where others are not.
    pub(crate) inline: bool,
    /// The block of the WQE that must wait for a local operation before it; it may not be written yet.
    fence_at: Option<Place>,
    /// The first error; then `limit == head`.
    error: Option<PostError>,
}

impl Cursor {
    /// Of a batch that has failed before it began.
    pub(crate) const fn failed(error: PostError) -> Self {
        Self {
            at: Place::of(0),
            head: 0,
            limit: 0,
            long: (Place::of(0), Place::of(0)),
            inline: false,
            fence_at: None,
            error: Some(error),
        }
    }

    /// Notes the first error, after which there is no room for anything.
    #[inline(always)]
    pub(crate) fn latch(&mut self, error: PostError) {
        self.error = self.error.or(Some(error));
        self.limit = self.head;
    }

    /// Lets a function that is not inlined change the cursor. It gets a copy: the address of the cursor itself would
    /// keep it out of the registers, on the short way, too.
    #[inline(always)]
    pub(crate) fn lend<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let mut copy = *self;
        let result = f(&mut copy);
        *self = copy;
        result
    }

    /// Leaves no room and one error.
    #[inline(always)]
    pub(crate) fn close(&mut self, error: PostError) {
        self.error = Some(error);
        self.limit = self.head;
    }

    /// Whether there is room for one more WR, as far as is known.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.head != self.limit
    }

    /// The latched error.
    #[inline(always)]
    pub(crate) fn error(&self) -> Option<PostError> {
        self.error
    }

    /// Where the last WQE began, if there is one.
    #[inline(always)]
    fn last(&self) -> Place {
        let (last, end) = self.long;
        if end == self.at { last } else { self.at.before(1) }
    }

    /// Moves behind a WQE of `ds` units, and notes what its completion needs.
    #[inline(always)]
    pub(crate) fn finish(&mut self, view: SqView<'_>, wr_id: u64, ds: u32) {
        self.head = self.head.wrapping_add(1);
        let record = view.record(self.at);
        record.wr_id.store(wr_id, Ordering::Relaxed);
        record.set_done(Done::new(self.head, 0));
        if ds <= 4 {
            self.at = self.at.after(1);
        } else {
            let end = self.at.after(ds.div_ceil(4));
            (self.long, self.at) = ((self.at, end), end);
        }
    }

    /// The same for a WQE of one block whose record has the `wr_id`.
    #[inline(always)]
    pub(crate) fn finish_record(&mut self, record: &Record) {
        self.head = self.head.wrapping_add(1);
        record.set_done(Done::new(self.head, 0));
        self.at = self.at.after(1);
    }

    /// The same for a WQE of one block.
    #[inline(always)]
    pub(crate) fn finish_block(&mut self, view: SqView<'_>, wr_id: u64) {
        self.finish(view, wr_id, 1);
    }

    /// The WR that is written next is a local operation: whatever follows it waits, and so does it if one was before.
    #[cold]
    pub(crate) fn fence_local(&mut self, view: SqView<'_>, ds: u32) -> bool {
        let waits = match self.fence_at {
            Some(at) if at == self.at => true,
            Some(at) => {
                Slot::new(view, at).add_small_fence();
                false
            }
            None => false,
        };
        self.fence_at = Some(self.at.after(ds.div_ceil(4)));
        waits
    }
}

/// This side's view of a send queue, and its doorbell.
#[derive(Debug)]
pub(crate) struct Poster {
    /// The next basic block, and the WRs so far, as published.
    at: Place,
    head: u32,
    /// The `head` from which there is no room, as last seen.
    limit: u32,
    /// WRs that the queue takes.
    max_post: u32,
    /// The state word under which posting was allowed last. `NONE` also while a session is open or a fence is pending, so
    /// that a batch begins with a look at both.
    seen: StateWord,
    /// The state word whose reset the indices belong to.
    since: StateWord,
    fence: bool,
    session: bool,
    record: DbWord,
    bell: Doorbell,
}

impl Poster {
    /// Of a queue that takes `max_post` WRs.
    pub(crate) fn new(max_post: u32, record: DbWord, bell: Doorbell) -> Self {
        Self {
            at: Place::of(0),
            head: 0,
            limit: 0,
            max_post,
            seen: StateWord::NONE,
            since: StateWord::NONE,
            fence: false,
            session: false,
            record,
            bell,
        }
    }

    /// The doorbell.
    pub(crate) fn bell(&self) -> &Doorbell {
        &self.bell
    }

    /// WRs that the queue takes.
    pub(crate) fn max_post(&self) -> u32 {
        self.max_post
    }

    /// Blocks, modulo 2^16, and WRs that were published since the queue was reset.
    pub(crate) fn published(&self) -> (u32, u32) {
        (self.at.index(), self.head)
    }

    /// Sets the indices, as if so many one-block WRs had been posted and completed. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn start_at(&mut self, qp: &QpShared, sq: &SqShared, index: u32) {
        let _ = self.begin_cold(sq, qp.word());
        (self.at, self.head) = (Place::of(index), index);
        self.limit = index.wrapping_add(self.max_post);
        if index != 0 {
            sq.ring.view().record(Place::of(index - 1)).set_done(Done::new(index, 0));
            sq.retire((index - 1) as u16);
        }
    }

    /// Begins a batch.
    #[inline(always)]
    pub(crate) fn begin(&mut self, qp: &QpShared, sq: &SqShared) -> Cursor {
        let word = qp.word();
        let (mut fence_at, mut error) = (None, None);
        if word != self.seen {
            match self.begin_cold(sq, word) {
                Ok(fence) => fence_at = fence.then_some(self.at),
                Err(e) => error = Some(e),
            }
        }
        Cursor {
            at: self.at,
            head: self.head,
            limit: if error.is_some() { self.head } else { self.limit },
            long: (self.at, self.at),
            inline: false,
            fence_at,
            error,
        }
    }

    /// The state changed since the last batch, or something is pending, or this is the first batch. Gives whether the
    /// first WR must wait for what was posted before.
    #[cold]
    fn begin_cold(&mut self, sq: &SqShared, word: StateWord) -> Result<bool, PostError> {
        if self.session {
            return Err(PostError::SessionOpen);
        }
        if word.is_forked() {
            return Err(PostError::Forked);
        }
        if !word.can_send() {
            return Err(PostError::BadState);
        }
        if self.since == StateWord::NONE || word.resets_differ(self.since) {
            // A reset empties the queue on both sides; see `QpShared::set_state`.
            (self.at, self.head, self.limit, self.fence) = (Place::of(0), 0, 0, false);
            let _ = self.refresh(sq, 0, None);
        }
        self.since = word;
        if !self.fence {
            self.seen = word;
        }
        Ok(self.fence)
    }

    /// The queue looks full: looks at the tail. Gives the new limit.
    #[cold]
    fn refresh(&mut self, sq: &SqShared, head: u32, error: Option<PostError>) -> Result<u32, PostError> {
        if let Some(error) = error {
            return Err(error);
        }
        let tail = sq.tail();
        // The device can't have done what it was not shown.
        if self.head.wrapping_sub(tail) > self.max_post {
            return Err(PostError::Corrupt);
        }
        let limit = tail.wrapping_add(self.max_post);
        if limit.wrapping_sub(head).cast_signed() <= 0 {
            return Err(PostError::QueueFull);
        }
        self.limit = limit;
        Ok(limit)
    }

    /// Makes sure that there is room for one more WR.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, sq: &SqShared, cursor: &mut Cursor) -> Result<(), PostError> {
        if cursor.head == cursor.limit {
            cursor.limit = self.refresh(sq, cursor.head, cursor.error)?;
        }
        Ok(())
    }

    /// The same for a WQE that counts as `1 + more` WRs, of which `more` are then taken.
    pub(crate) fn reserve_more(
        &mut self,
        sq: &SqShared,
        cursor: &mut Cursor,
        more: u32,
    ) -> Result<(), PostError> {
        self.reserve(sq, cursor)?;
        if cursor.limit.wrapping_sub(cursor.head) <= more {
            cursor.limit = self.refresh(sq, cursor.head.wrapping_add(more), cursor.error)?;
        }
        cursor.head = cursor.head.wrapping_add(more);
        Ok(())
    }

    /// Whether the state still allows posting. Between the start of a batch and its end `modify_qp` may have run.
    #[inline(always)]
    pub(crate) fn check_state(&self, qp: &QpShared) -> Result<(), PostError> {
        let word = qp.word();
        if word == self.seen { Ok(()) } else { self.check_cold(word) }
    }

    #[cold]
    fn check_cold(&self, word: StateWord) -> Result<(), PostError> {
        if word.is_forked() {
            return Err(PostError::Forked);
        }
        if word.can_send() && !word.resets_differ(self.since) { Ok(()) } else { Err(PostError::BadState) }
    }

    /// Makes everything before the cursor visible to the device and rings. Nothing if that is nothing new.
    #[inline(always)]
    pub(crate) fn publish(&mut self, view: SqView<'_>, cursor: &Cursor) {
        if cursor.at != self.at {
            self.publish_new(view, cursor);
        }
    }

    /// The same where there is something new.
    #[inline(always)]
    pub(crate) fn publish_new(&mut self, view: SqView<'_>, cursor: &Cursor) {
        if let Some(at) = cursor.fence_at {
            self.settle_fence(view.ring(), cursor.at, at);
        }
        let last = cursor.last();
        let single = last == self.at;
        (self.at, self.head) = (cursor.at, cursor.head);
        // WQEs before the record, the record before the register.
        to_device();
        self.record.set(cursor.at.index());
        self.bell.post(view, last, single, cursor.inline);
    }

    /// Posts one WQE of up to four units that is in registers, if nothing at all is in the way. `words` makes it for a place;
    /// what is behind its `ds` units is not part of it.
    #[inline(always)]
    pub(crate) fn post_block(
        &mut self,
        qp: &QpShared,
        sq: &SqShared,
        wr_id: u64,
        ds: u32,
        words: impl FnOnce(Place) -> [u64; 8],
    ) -> bool {
        let head = self.head;
        if qp.word() != self.seen || head == self.limit {
            return false;
        }
        let (view, at, head) = (sq.ring.view(), self.at, head.wrapping_add(1));
        let words = words(at);
        for (to, word) in view.at(at).iter().zip(words).take(ds as usize * 2) {
            to.store(word, Ordering::Relaxed);
        }
        let record = view.record(at);
        record.wr_id.store(wr_id, Ordering::Relaxed);
        record.set_done(Done::new(head, 0));
        (self.at, self.head) = (at.after(1), head);
        to_device();
        self.record.set(self.at.index());
        self.bell.post_block(view, at, &words, ds);
        true
    }

    /// Gives the fence to the WQE that needs it, or keeps it for the next one.
    #[cold]
    fn settle_fence(&mut self, ring: &SqRing, end: Place, at: Place) {
        if at == end {
            self.fence = true;
            self.seen = StateWord::NONE;
        } else {
            Slot::new(ring.view(), at).add_small_fence();
            if self.fence {
                self.fence = false;
                self.seen = self.since;
            }
        }
    }

    /// Begins a builder session: batches are refused until it ends.
    #[inline]
    pub(crate) fn open_session(&mut self, qp: &QpShared, sq: &SqShared) -> Cursor {
        let cursor = self.begin(qp, sq);
        self.session = true;
        self.seen = StateWord::NONE;
        cursor
    }

    /// Ends it.
    #[inline]
    pub(crate) fn close_session(&mut self) {
        self.session = false;
        if !self.fence {
            self.seen = self.since;
        }
    }
}

/// The parts of a queue that outlive a batch, for those who hold the poster by `&mut`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue<'q> {
    pub(crate) qp: &'q QpShared,
    pub(crate) sq: &'q SqShared,
    pub(crate) view: SqView<'q>,
}

impl<'q> Queue<'q> {
    /// Of these two.
    #[inline(always)]
    pub(crate) fn new(qp: &'q QpShared, sq: &'q SqShared) -> Self {
        Self { qp, sq, view: sq.ring.view() }
    }
}
