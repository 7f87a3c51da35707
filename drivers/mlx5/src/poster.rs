// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a send queue: room, fences and publication, the same for every face.
//!
//! A batch's [`Cursor`] runs ahead of what is published; a batch that is dropped leaves nothing behind. Room is counted in
//! WRs, as `max_send_wr` says, because blocks then follow: creation gave every WR its largest WQE. (A WQE that is larger, of
//! an opcode that creation did not count with, counts as several.)
//!
//! The limit stands in the QP's gate, where `modify_qp` and fork(2) take it away. So every WR is let in by one compare of
//! the head and that limit, and the batch published by another. What else a batch must look at, a session, a fence that
//! waits, a doorbell that takes more than stores, makes the head [`Cursor::CLOSED`].

use crate::buf::{Held, Place, Span, SqView};
use crate::cursor::Cursor;
use crate::dbrec::DbWord;
use crate::uar::Doorbell;
use crate::wqe::Slot;
use core::sync::atomic::Ordering;
use uverbs_core::kernel::Gate;
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::barrier::to_device;

/// Whether a builder session is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// None is.
    No,
    /// One is, and there is nothing about it that its end must look at.
    Plain,
    /// One is, and its end must look at what there is: a fence, a slow doorbell, an error.
    Closed,
}

/// This side's view of a send queue, and its doorbell.
#[derive(Debug)]
pub(crate) struct Poster {
    /// The next basic block, as published.
    at: Place,
    /// The WRs published since the queue was reset, or [`Cursor::CLOSED`].
    head: u64,
    /// The same while `head` is closed; else of no meaning.
    saved: u64,
    /// Has the limit.
    gate: Gate,
    /// WRs that the queue takes.
    max_post: u32,
    /// The state under which the limit was raised last: the indices belong to its reset.
    since: StateWord,
    stage: Stage,
    /// Whether the next WQE must wait for a local operation before it.
    fence: bool,
    /// In a batch, the block of the WQE that must; it may not be written yet. Of use only while `head` is closed.
    fence_at: Option<Place>,
    /// Why the batch's cursor is closed.
    error: PostError,
    record: DbWord,
    bell: Doorbell,
}

impl Poster {
    /// Of a queue that takes `max_post` WRs.
    pub(crate) fn new(held: &Held, max_post: u32, record: DbWord, bell: Doorbell) -> Self {
        Self {
            at: Place::of(0),
            head: 0,
            saved: 0,
            gate: held.qp.gate().clone(),
            max_post,
            since: StateWord::NONE,
            stage: Stage::No,
            fence: false,
            fence_at: None,
            error: PostError::NoSession,
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

    /// The WRs published since the queue was reset.
    fn count(&self) -> u64 {
        if self.head == Cursor::CLOSED { self.saved } else { self.head }
    }

    /// Blocks, modulo 2^16, and WRs, modulo 2^32, that were published since the queue was reset.
    pub(crate) fn published(&self) -> (u32, u32) {
        (self.at.index(), self.count() as u32)
    }

    /// Sets the indices, as if so many one-block WRs had been posted and completed. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn start_at(&mut self, held: &Held, index: u32) {
        use crate::buf::Done;
        let _ = self.look(held);
        (self.at, self.saved) = (Place::of(index), index.into());
        if self.head != Cursor::CLOSED {
            self.head = self.saved;
        }
        if index != 0 {
            held.view().record(Place::of(index - 1)).set_done(Done::new(index.into(), 0));
            held.sq().retire((index - 1) as u16);
        }
        let _ = self.raise(held, self.since);
    }

    /// How many WRs may have been posted. Acquire: whoever saw a reset's limit, sees the empty queue.
    #[inline(always)]
    fn limit(&self) -> u64 {
        self.gate.limit().load(Ordering::Acquire)
    }

    /// Begins a batch. Whether it may, the first WR finds out.
    #[inline(always)]
    pub(crate) fn begin(&self) -> Cursor {
        Cursor::new(self.at, self.head, self.limit(), self.bell.burst())
    }

    /// Looks at what a batch must look at before its first WR. Gives the cursor's head and limit.
    fn look(&mut self, held: &Held) -> Result<(u64, u64), PostError> {
        if self.stage != Stage::No {
            return Err(PostError::SessionOpen);
        }
        loop {
            let word = held.qp.word();
            if word.is_forked() {
                return Err(PostError::Forked);
            }
            if !word.can_send() {
                return Err(PostError::BadState);
            }
            if self.since == StateWord::NONE || word.resets_differ(self.since) {
                // A reset empties the queue on both sides; see `QpShared::set_state`.
                (self.at, self.saved, self.fence) = (Place::of(0), 0, false);
            } else {
                self.saved = self.count();
            }
            // A batch that was dropped may have left it closed.
            self.head = if self.fence || self.bell.is_slow() { Cursor::CLOSED } else { self.saved };
            self.fence_at = self.fence.then_some(self.at);
            let limit = self.limit();
            if word == self.since && self.saved < limit {
                return Ok((self.saved, limit));
            }
            self.since = word;
            if let Some(limit) = self.raise(held, word)? {
                return Ok((self.saved, limit));
            }
        }
    }

    /// Raises the limit to what the tail allows, and gives it; `None` if the state is not `word` any more.
    fn raise(&self, held: &Held, word: StateWord) -> Result<Option<u64>, PostError> {
        let head = self.count();
        let outstanding = (head as u32).wrapping_sub(held.sq().tail());
        // The device can't have done what it was not shown.
        let Some(room) = self.max_post.checked_sub(outstanding) else { return Err(PostError::Corrupt) };
        let limit = head + u64::from(room);
        Ok(held.qp.raise_limit(word, limit).then_some(limit))
    }

    /// The queue looks full to a batch that is on its way: looks at the tail. Gives a limit beyond `head`.
    #[cold]
    fn refresh(&mut self, held: &Held, head: u64) -> Result<u64, PostError> {
        loop {
            let word = held.qp.word();
            self.check(word)?;
            match self.raise(held, word)? {
                Some(limit) if head < limit => return Ok(limit),
                Some(_) => return Err(PostError::QueueFull),
                None => {}
            }
        }
    }

    /// There is no room at the cursor, as far as is known, or nothing is known yet.
    #[cold]
    fn make_room(&mut self, held: &Held, cursor: &mut Cursor) -> Result<(), PostError> {
        self.ensure_begun(held, cursor)?;
        if !cursor.has_room() {
            cursor.limit = self.refresh(held, cursor.head)?;
        }
        Ok(())
    }

    /// Makes sure that posting is allowed at all; the error is that of the batch if it had one.
    pub(crate) fn ensure_begun(&mut self, held: &Held, cursor: &mut Cursor) -> Result<(), PostError> {
        if cursor.has_room() {
            return Ok(());
        }
        if cursor.is_failed() {
            return Err(self.error);
        }
        if cursor.head == self.head {
            let (head, limit) = self.look(held)?;
            *cursor = Cursor::new(self.at, head, limit, self.bell.burst());
        }
        Ok(())
    }

    /// Whether a state still allows to post what was begun under another.
    fn check(&self, word: StateWord) -> Result<(), PostError> {
        if word.is_forked() {
            return Err(PostError::Forked);
        }
        if word.can_send() && !word.resets_differ(self.since) { Ok(()) } else { Err(PostError::BadState) }
    }

    /// Makes sure that there is room for one more WR.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, held: &Held, cursor: &mut Cursor) -> Result<(), PostError> {
        if cursor.has_room() { Ok(()) } else { cursor.lend(|cursor| self.make_room(held, cursor)) }
    }

    /// The same for a WQE that counts as `1 + more` WRs, of which `more` are then taken.
    pub(crate) fn reserve_more(
        &mut self,
        held: &Held,
        cursor: &mut Cursor,
        more: u32,
    ) -> Result<(), PostError> {
        self.reserve(held, cursor)?;
        let more = u64::from(more);
        if cursor.limit - cursor.head <= more {
            cursor.limit = self.refresh(held, cursor.head + more)?;
        }
        cursor.head += more;
        Ok(())
    }

    /// Notes the first error of a batch, after which there is no room for anything.
    #[cold]
    pub(crate) fn latch(&mut self, cursor: &mut Cursor, error: PostError) {
        if !cursor.is_failed() {
            self.error = error;
            cursor.head = Cursor::FAILED;
        }
    }

    /// The WR that is written next, of `blocks` blocks, is a local operation: whatever follows it waits, and so does it if one
    /// was before. Whether one was.
    #[cold]
    pub(crate) fn fence_local(&mut self, view: SqView<'_>, at: Place, blocks: u32) -> bool {
        if self.stage == Stage::Plain {
            (self.stage, self.fence_at) = (Stage::Closed, None);
        } else if self.head != Cursor::CLOSED {
            (self.saved, self.head, self.fence_at) = (self.head, Cursor::CLOSED, None);
        }
        let before = self.fence_at.replace(at.after(blocks));
        match before {
            Some(waiting) if waiting != at => {
                Slot::new(view, waiting).add_small_fence();
                false
            }
            waiting => waiting.is_some(),
        }
    }

    /// Ends a batch: publishes it and rings, unless there was an error or the state changed.
    #[inline(always)]
    pub(crate) fn complete(&mut self, held: &Held, cursor: &Cursor) -> Result<(), PostError> {
        if self.head < cursor.head && cursor.head <= self.limit() {
            self.ring(held.view(), cursor);
            return Ok(());
        }
        let copy = *cursor;
        self.complete_cold(held, &copy)
    }

    #[inline(never)]
    fn complete_cold(&mut self, held: &Held, cursor: &Cursor) -> Result<(), PostError> {
        if cursor.is_failed() {
            return Err(self.error);
        }
        if cursor.head == self.head {
            // Nothing was written.
            return self.look(held).map(drop);
        }
        self.check(held.qp.word())?;
        self.publish(held, cursor);
        Ok(())
    }

    /// Makes everything before the cursor visible to the device and rings, whatever the state. Nothing if that is nothing
    /// new, or the batch failed before it began.
    #[inline(always)]
    pub(crate) fn publish(&mut self, held: &Held, cursor: &Cursor) {
        if self.head < cursor.head && !cursor.is_failed() {
            return self.ring(held.view(), cursor);
        }
        let copy = *cursor;
        self.publish_cold(held, &copy);
    }

    #[inline(never)]
    fn publish_cold(&mut self, held: &Held, cursor: &Cursor) {
        if cursor.at == self.at || self.head != Cursor::CLOSED || cursor.is_failed() {
            return;
        }
        let mut fence = false;
        match self.fence_at {
            Some(at) if at == cursor.at => fence = true,
            Some(at) => Slot::new(held.view(), at).add_small_fence(),
            None => {}
        }
        self.fence = fence;
        if self.bell.is_slow() {
            let (last, span, burst) = self.last(cursor);
            (self.at, self.saved) = (cursor.at, cursor.head);
            to_device();
            self.record.set(cursor.at.index());
            return self.bell.post_slow(held.view(), last, span, burst);
        }
        self.ring(held.view(), cursor);
        if fence {
            (self.saved, self.head) = (self.head, Cursor::CLOSED);
        }
    }

    /// The last WQE, its length, and whether it is written whole: a single one that is short enough.
    #[inline(always)]
    fn last(&self, cursor: &Cursor) -> (Place, Span, bool) {
        let last = cursor.last();
        let span = last.until(cursor.at);
        (last, span, last == self.at && span <= cursor.burst)
    }

    /// Publishes what is new, and rings.
    #[inline(always)]
    fn ring(&mut self, view: SqView<'_>, cursor: &Cursor) {
        let (last, span, burst) = self.last(cursor);
        (self.at, self.head) = (cursor.at, cursor.head);
        // WQEs before the record, the record before the register.
        to_device();
        self.record.set(cursor.at.index());
        self.bell.post(view, last, span, burst);
    }

    /// Posts one WQE of one block that is in registers, if nothing at all is in the way. `words` makes it for a place; it
    /// has two to four units, `ds` of them.
    #[inline(always)]
    pub(crate) fn post_block(
        &mut self,
        held: &Held,
        wr_id: u64,
        ds: u32,
        words: impl FnOnce(Place) -> [u64; 8],
    ) -> bool {
        let (at, head) = (self.at, self.head);
        if head >= self.limit() {
            return false;
        }
        let words = words(at);
        for (to, word) in held.view().at(at).iter().zip(words).take(ds as usize * 2) {
            to.store(word, Ordering::Relaxed);
        }
        let record = held.record(at);
        record.wr_id.store(wr_id, Ordering::Relaxed);
        let mut cursor = Cursor::new(at, head, head, Span::NONE);
        cursor.finish_block(at, record);
        (self.at, self.head) = (cursor.at, cursor.head);
        to_device();
        self.record.set(cursor.at.index());
        self.bell.post_block(&words);
        true
    }

    /// Begins a builder session: batches are refused until it ends. `None` if something must be looked at first.
    #[inline(always)]
    pub(crate) fn open_session(&mut self) -> Option<Cursor> {
        let cursor = self.begin();
        if !cursor.has_room() {
            return None;
        }
        (self.saved, self.head, self.stage) = (cursor.head, Cursor::CLOSED, Stage::Plain);
        Some(cursor)
    }

    /// The same where something must be looked at first. A session that finds an error is open all the same, until its end
    /// tells of it.
    #[cold]
    pub(crate) fn open_session_cold(&mut self, held: &Held) -> Result<Cursor, PostError> {
        let found = self.look(held);
        let plain = found.is_ok() && self.head != Cursor::CLOSED;
        self.saved = self.count();
        (self.head, self.stage) = (Cursor::CLOSED, if plain { Stage::Plain } else { Stage::Closed });
        let (head, limit) = found?;
        Ok(Cursor::new(self.at, head, limit, self.bell.burst()))
    }

    /// Whether a session is open.
    #[inline(always)]
    pub(crate) fn in_session(&self) -> bool {
        self.stage != Stage::No
    }

    /// Whether the session has written something.
    pub(crate) fn is_begun(&self, cursor: &Cursor) -> bool {
        cursor.head != self.saved
    }

    /// Ends a session and publishes it, if there is one and nothing at all is in the way; else it goes on.
    #[inline(always)]
    pub(crate) fn complete_session(&mut self, view: SqView<'_>, cursor: &Cursor) -> bool {
        if self.stage != Stage::Plain || self.saved >= cursor.head || cursor.head > self.limit() {
            return false;
        }
        self.stage = Stage::No;
        self.ring(view, cursor);
        true
    }

    /// Ends a session, and publishes it unless `cursor` is `None` or the state changed.
    #[cold]
    pub(crate) fn end_session(&mut self, held: &Held, cursor: Option<&Cursor>) -> Result<(), PostError> {
        match core::mem::replace(&mut self.stage, Stage::No) {
            Stage::No => return Err(PostError::NoSession),
            Stage::Plain => self.fence_at = None,
            Stage::Closed => {}
        }
        let result = match cursor {
            Some(cursor) => self.check(held.qp.word()).map(|()| self.publish(held, cursor)),
            None => Ok(()),
        };
        if self.head == Cursor::CLOSED && !self.fence && !self.bell.is_slow() {
            self.head = self.saved;
        }
        result
    }
}
