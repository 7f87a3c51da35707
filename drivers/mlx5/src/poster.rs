// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a send queue: cursor, room, fences and publication, the same for every face.
//!
//! The cursor runs ahead of what is published; a batch that is dropped leaves nothing behind. Room is counted in WRs, as
//! `max_send_wr` says, because blocks then follow: creation gave every WR its largest WQE. (A WQE that is larger, of an
//! opcode that creation did not count with, counts as several.) Everything that forbids posting closes
//! [`Cursor::limit`], so the hot path has one compare for all of it, and the reason is looked up where it is cold.

use crate::buf::SqView;
use crate::dbrec::DbWord;
use crate::shared::{QpShared, SqShared, Word};
use crate::uar::Doorbell;
use crate::wqe::Slot;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use uverbs_core::provider::PostError;
use uverbs_core::sync::barrier::to_device;

/// Where a batch writes: past what is published, invisible until it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The next basic block. Only the low 16 bits are told to the device.
    pub(crate) at: u32,
    /// WRs written so far, since the queue was reset.
    pub(crate) head: u32,
    /// The `head` from which there is no room.
    pub(crate) limit: u32,
    /// The last WQE's block, and the first word of its control segment: the doorbell.
    pub(crate) last: u32,
    pub(crate) ctrl: u64,
    /// Whether inline data was written: worth a BlueFlame burst even where others are not.
    pub(crate) inline: bool,
    /// The block of the WQE that must wait for a local operation before it; it may not be written yet.
    fence_at: Option<u32>,
    /// The first error; then `limit == head`.
    error: Option<PostError>,
}

impl Cursor {
    /// Of a batch that has failed before it began.
    pub(crate) const fn failed(error: PostError) -> Self {
        Self { at: 0, head: 0, limit: 0, last: 0, ctrl: 0, inline: false, fence_at: None, error: Some(error) }
    }

    /// Notes the first error, after which there is no room for anything.
    #[cold]
    pub(crate) fn latch(&mut self, error: PostError) {
        if self.error.is_none() {
            self.error = Some(error);
        }
        self.limit = self.head;
    }

    /// The latched error.
    #[inline(always)]
    pub(crate) fn error(&self) -> Option<PostError> {
        self.error
    }

    /// Moves behind a WQE of `ds` units whose first word is `ctrl`, and notes what its completion needs.
    #[inline(always)]
    pub(crate) fn finish(&mut self, view: SqView<'_>, wr_id: u64, ctrl: u64, ds: u32) {
        self.head = self.head.wrapping_add(1);
        view.wr_id(self.at).store(wr_id, Ordering::Relaxed);
        view.head(self.at).store(self.head, Ordering::Relaxed);
        self.last = self.at;
        self.ctrl = ctrl;
        self.at = self.at.wrapping_add(ds.div_ceil(4));
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
        self.fence_at = Some(self.at.wrapping_add(ds.div_ceil(4)));
        waits
    }
}

/// This side's view of a send queue, and its doorbell.
#[derive(Debug)]
pub(crate) struct Poster {
    /// The next basic block, and the WRs so far, as published.
    at: u32,
    head: u32,
    /// The `head` from which there is no room, as last seen.
    limit: u32,
    /// WRs that the queue takes.
    max_post: u32,
    /// The state word under which posting was allowed last. `NONE` also while a session is open or a fence is pending, so
    /// that a batch begins with a look at both.
    seen: Word,
    /// The state word whose reset the indices belong to.
    since: Word,
    fence: bool,
    session: bool,
    record: DbWord,
    bell: Doorbell,
}

impl Poster {
    /// Of a queue that takes `max_post` WRs.
    pub(crate) fn new(max_post: u32, record: DbWord, bell: Doorbell) -> Self {
        Self {
            at: 0,
            head: 0,
            limit: 0,
            max_post,
            seen: Word::NONE,
            since: Word::NONE,
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

    /// Blocks and WRs that were published since the queue was reset.
    pub(crate) fn published(&self) -> (u32, u32) {
        (self.at, self.head)
    }

    /// Sets the indices, as if so many one-block WRs had been posted and completed. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn start_at(&mut self, qp: &QpShared, sq: &SqShared, index: u32) {
        let _ = self.begin_cold(sq, qp.word());
        (self.at, self.head) = (index, index);
        self.limit = index.wrapping_add(self.max_post);
        if index != 0 {
            sq.ring.view().head(index - 1).store(index, Ordering::Relaxed);
            sq.retire((index - 1) as u16);
        }
    }

    #[inline(always)]
    fn cursor(&self, fence_at: Option<u32>) -> Cursor {
        Cursor {
            at: self.at,
            head: self.head,
            limit: self.limit,
            last: self.at,
            ctrl: 0,
            inline: false,
            fence_at,
            error: None,
        }
    }

    /// Begins a batch.
    #[inline(always)]
    pub(crate) fn begin(&mut self, qp: &QpShared, sq: &SqShared) -> Cursor {
        let word = qp.word();
        if word != self.seen {
            return self.begin_cold(sq, word);
        }
        self.cursor(None)
    }

    /// The state changed since the last batch, or something is pending, or this is the first batch.
    #[cold]
    fn begin_cold(&mut self, sq: &SqShared, word: Word) -> Cursor {
        // Where the queue is, so that there is nothing to publish.
        let failed = |error| Cursor { limit: self.head, error: Some(error), ..self.cursor(None) };
        if self.session {
            return failed(PostError::SessionOpen);
        }
        if !word.can_send() {
            return failed(PostError::BadState);
        }
        if self.since == Word::NONE || word.resets_differ(self.since) {
            // A reset empties the queue on both sides; see `QpShared::set_state`.
            (self.at, self.head, self.limit, self.fence) = (0, 0, 0, false);
            if let Ok(limit) = self.refresh(sq, 0, None) {
                self.limit = limit;
            }
        }
        self.since = word;
        if self.fence {
            return self.cursor(Some(self.at));
        }
        self.seen = word;
        self.cursor(None)
    }

    /// The queue looks full: looks at the tail. Gives the new limit.
    #[cold]
    pub(crate) fn refresh(
        &self,
        sq: &SqShared,
        head: u32,
        error: Option<PostError>,
    ) -> Result<u32, PostError> {
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
        Ok(limit)
    }

    /// Makes sure that there is room for one more WR.
    #[inline(always)]
    pub(crate) fn reserve(&self, sq: &SqShared, cursor: &mut Cursor) -> Result<(), PostError> {
        if cursor.head == cursor.limit {
            cursor.limit = self.refresh(sq, cursor.head, cursor.error)?;
        }
        Ok(())
    }

    /// The same for a WQE that counts as `1 + more` WRs, of which `more` are then taken.
    pub(crate) fn reserve_more(
        &self,
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
    fn check_cold(&self, word: Word) -> Result<(), PostError> {
        if word.can_send() && !word.resets_differ(self.since) { Ok(()) } else { Err(PostError::BadState) }
    }

    /// Makes everything before the cursor visible to the device and rings. Nothing if that is nothing new.
    #[inline(always)]
    pub(crate) fn publish(&mut self, view: SqView<'_>, cursor: &Cursor) {
        if cursor.at == self.at {
            return;
        }
        if let Some(at) = cursor.fence_at {
            self.settle_fence(view, cursor.at, at);
        }
        let single = cursor.last == self.at;
        (self.at, self.head, self.limit) = (cursor.at, cursor.head, cursor.limit);
        // WQEs before the record, the record before the register.
        to_device();
        self.record.set(cursor.at & 0xffff);
        self.bell.post(view, cursor.last, cursor.ctrl, single, cursor.inline);
    }

    /// Gives the fence to the WQE that needs it, or keeps it for the next one.
    #[cold]
    fn settle_fence(&mut self, view: SqView<'_>, end: u32, at: u32) {
        if at == end {
            self.fence = true;
            self.seen = Word::NONE;
        } else {
            Slot::new(view, at).add_small_fence();
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
        self.seen = Word::NONE;
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
    pub(crate) qp: &'q Arc<QpShared>,
    pub(crate) sq: &'q SqShared,
    pub(crate) view: SqView<'q>,
}
