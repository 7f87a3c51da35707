// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a send queue: room, fences and publication, the same for every face.
//!
//! A batch's [`Cursor`] runs ahead of what is published; a batch that is dropped leaves nothing behind. Room is counted in
//! WRs, as `max_send_wr` says, because blocks then follow: creation gave every WR its largest WQE. (A WQE that is larger, of
//! an opcode that creation did not count with, counts as several.)
//!
//! The limit stands in the queue's `QueueAccess`, where `modify_qp` and fork(2) take it away. A WR is written if the head is
//! below the limit that the batch began with. WQEs beyond the published index do no harm, so that needs no more care.
//! Whatever the device is told of is told while the queue is busy, after the head was compared with the limit once more:
//! then `modify_qp` waits for the doorbell before it goes on. The limit is raised while the queue is busy, too, so it does
//! not outlive a change of the state. Where the control path can't order its accesses with those of a post
//! ([`QueueAccess::needs_fence`]), the limit stays 0 and every publication takes the cold way, which has a fence and checks
//! the state itself.
//!
//! What else a batch must check first, a session or a fence that waits, makes the head [`Cursor::CLOSED`].

use crate::doorbell::Doorbell;
use crate::memory::dbrec::DbWord;
use crate::memory::{BlockIndex, SendQueueRef, SqView};
use crate::sq::cursor::{Cursor, Odd};
use crate::wqe::WqeWriter;
use core::hint::cold_path;
use core::sync::atomic::Ordering;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::barrier::to_device;

/// This side's view of a send queue, and its doorbell.
#[derive(Debug)]
pub(crate) struct Producer {
    /// The next basic block, as published.
    at: BlockIndex,
    /// The WRs published since the queue was reset, or [`Cursor::CLOSED`].
    head: u64,
    /// The same while `head` is closed and there is no plain session; else of no meaning.
    saved: u64,
    /// The same in a plain session, one whose end has nothing to look at; else [`Cursor::CLOSED`].
    floor: u64,
    /// Whether there is a session whose end must look at something: a fence, an error.
    session: bool,
    /// Has the limit.
    access: QueueAccess,
    /// WRs that the queue takes.
    max_post: u32,
    /// The state under which the limit was raised last: the indices belong to its reset.
    since: StateWord,
    /// Whether the next WQE must wait for a local operation before it.
    fence: bool,
    /// In a batch, the block of the WQE that must; it may not be written yet. Of use only while `head` is closed.
    fence_at: Option<BlockIndex>,
    /// Why the batch's cursor has failed.
    error: PostError,
    record: DbWord,
    bell: Doorbell,
}

impl Producer {
    /// Of a queue that takes `max_post` WRs.
    pub(crate) fn new(held: &SendQueueRef, max_post: u32, record: DbWord, bell: Doorbell) -> Self {
        Self {
            at: BlockIndex::of(0),
            head: 0,
            saved: 0,
            floor: Cursor::CLOSED,
            session: false,
            access: held.qp.access().send.clone(),
            max_post,
            since: StateWord::NONE,
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
        match (self.head, self.floor) {
            (Cursor::CLOSED, Cursor::CLOSED) => self.saved,
            (Cursor::CLOSED, floor) => floor,
            (head, _) => head,
        }
    }

    /// Blocks, modulo 2^16, and WRs, modulo 2^32, that were published since the queue was reset.
    pub(crate) fn published(&self) -> (u32, u32) {
        (self.at.index(), self.count() as u32)
    }

    /// Sets the indices, as if so many one-block WRs had been posted and completed. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn start_at(&mut self, held: &SendQueueRef, index: u32) {
        use crate::memory::CompletedCount;
        let _ = self.look(held);
        (self.at, self.saved) = (BlockIndex::of(index), index.into());
        if self.head != Cursor::CLOSED {
            self.head = self.saved;
        }
        if index != 0 {
            held.view().record(BlockIndex::of(index - 1)).set_done(CompletedCount::new(index.into(), 0));
            held.sq().retire((index - 1) as u16);
        }
        let _busy = held.qp.access().send.busy();
        let _ = self.raise(held);
    }

    /// How many WRs may have been posted. Relaxed: it is this poster that raises it, when it has looked at the state.
    #[inline(always)]
    fn limit(&self) -> u64 {
        self.access.limit().load(Ordering::Relaxed)
    }

    /// Begins a batch. Whether it may, the first WR finds out.
    #[inline(always)]
    pub(crate) fn begin(&self) -> Cursor {
        Cursor::new(self.at, self.head, self.limit())
    }

    /// Checks what a batch must check before its first WR. Gives the cursor's head and limit.
    fn look(&mut self, held: &SendQueueRef) -> Result<(u64, u64), PostError> {
        if self.in_session() {
            return Err(PostError::SessionOpen);
        }
        let _busy = held.qp.access().send.busy();
        let word = held.qp.word();
        if word.is_forked() {
            return Err(PostError::Forked);
        }
        if !word.can_send() {
            return Err(PostError::BadState);
        }
        if self.since == StateWord::NONE || word.resets_differ(self.since) {
            // A reset empties the queue on both sides; see `QpShared::set_state`.
            (self.at, self.saved, self.fence) = (BlockIndex::of(0), 0, false);
        } else {
            self.saved = self.count();
        }
        self.since = word;
        // A batch that was dropped may have left it closed.
        self.head = if self.fence { Cursor::CLOSED } else { self.saved };
        self.fence_at = self.fence.then_some(self.at);
        let limit = self.raise(held)?;
        Ok((self.saved, limit))
    }

    /// Raises the limit to what the tail allows, and gives it. The queue is busy, and its state was checked since it is.
    fn raise(&self, held: &SendQueueRef) -> Result<u64, PostError> {
        let head = self.count();
        let outstanding = (head as u32).wrapping_sub(held.sq().tail());
        // The device can't have done what it was not shown.
        let Some(room) = self.max_post.checked_sub(outstanding) else { return Err(PostError::Corrupt) };
        let limit = head + u64::from(room);
        if !self.access.needs_fence() {
            // Relaxed: only this poster uses it. A control call that closes the queue stores 0 after it has waited for us.
            self.access.limit().store(limit, Ordering::Relaxed);
        }
        Ok(limit)
    }

    /// The queue seems full to a batch that is on its way: loads the tail again. Gives a limit beyond `head`.
    #[cold]
    fn refresh(&mut self, held: &SendQueueRef, head: u64) -> Result<u64, PostError> {
        let _busy = held.qp.access().send.busy();
        self.check(held.qp.word())?;
        let limit = self.raise(held)?;
        if head < limit { Ok(limit) } else { Err(PostError::QueueFull) }
    }

    /// There is no room at the cursor, as far as is known, or nothing is known yet.
    #[cold]
    fn make_room(&mut self, held: &SendQueueRef, cursor: &mut Cursor) -> Result<(), PostError> {
        self.ensure_begun(held, cursor)?;
        if !cursor.has_room() {
            cursor.limit = self.refresh(held, cursor.head)?;
        }
        Ok(())
    }

    /// Makes sure that posting is allowed at all; the error is that of the batch if it had one.
    pub(crate) fn ensure_begun(&mut self, held: &SendQueueRef, cursor: &mut Cursor) -> Result<(), PostError> {
        if cursor.has_room() {
            return Ok(());
        }
        if cursor.is_failed() {
            return Err(self.error);
        }
        if cursor.head == self.head {
            let (head, limit) = self.look(held)?;
            *cursor = Cursor::new(self.at, head, limit);
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
    pub(crate) fn reserve(&mut self, held: &SendQueueRef, cursor: &mut Cursor) -> Result<(), PostError> {
        if cursor.has_room() {
            return Ok(());
        }
        cold_path();
        cursor.lend(|cursor| self.make_room(held, cursor))
    }

    /// The same for a WQE that counts as `1 + more` WRs, of which `more` are then taken.
    pub(crate) fn reserve_more(
        &mut self,
        held: &SendQueueRef,
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
    pub(crate) fn fence_local(&mut self, view: SqView<'_>, at: BlockIndex, blocks: u32) -> bool {
        if self.floor != Cursor::CLOSED {
            (self.saved, self.floor, self.session, self.fence_at) = (self.floor, Cursor::CLOSED, true, None);
        } else if self.head != Cursor::CLOSED {
            (self.saved, self.head, self.fence_at) = (self.head, Cursor::CLOSED, None);
        }
        let before = self.fence_at.replace(at.after(blocks));
        match before {
            Some(waiting) if waiting != at => {
                WqeWriter::new(view, waiting).add_small_fence();
                false
            }
            waiting => waiting.is_some(),
        }
    }

    /// Ends a batch: publishes it and rings, unless there was an error or the state changed.
    #[inline(always)]
    pub(crate) fn complete(&mut self, held: &SendQueueRef, cursor: &Cursor) -> Result<(), PostError> {
        if self.head < cursor.head && self.ring_if_open(held, cursor) {
            return Ok(());
        }
        cold_path();
        let copy = *cursor;
        self.complete_cold(held, &copy)
    }

    #[inline(never)]
    fn complete_cold(&mut self, held: &SendQueueRef, cursor: &Cursor) -> Result<(), PostError> {
        if cursor.is_failed() {
            return Err(self.error);
        }
        if cursor.head == self.head {
            // Nothing was written.
            return self.look(held).map(drop);
        }
        self.publish_cold(held, cursor)
    }

    /// Makes everything before the cursor visible to the device and rings, unless the state changed. Nothing if that is
    /// nothing new, or the batch failed before it began.
    #[inline(always)]
    pub(crate) fn publish(&mut self, held: &SendQueueRef, cursor: &Cursor) -> Result<(), PostError> {
        if self.head < cursor.head && self.ring_if_open(held, cursor) {
            return Ok(());
        }
        cold_path();
        let copy = *cursor;
        self.publish_cold(held, &copy)
    }

    #[inline(never)]
    fn publish_cold(&mut self, held: &SendQueueRef, cursor: &Cursor) -> Result<(), PostError> {
        if cursor.at == self.at || cursor.is_failed() {
            return Ok(());
        }
        let _busy = held.qp.access().send.busy();
        self.check(held.qp.word())?;
        let closed = self.head == Cursor::CLOSED;
        if let Some(at) = self.fence_at.filter(|at| closed && *at != cursor.at) {
            WqeWriter::new(held.view(), at).add_small_fence();
            self.fence = false;
        } else {
            self.fence = closed && self.fence_at.is_some();
        }
        self.ring(held, cursor);
        if self.fence {
            (self.saved, self.head) = (self.head, Cursor::CLOSED);
        }
        Ok(())
    }

    /// Publishes what is new, and rings, if the limit allows it while the queue is busy.
    #[inline(always)]
    fn ring_if_open(&mut self, held: &SendQueueRef, cursor: &Cursor) -> bool {
        self.access.enter();
        // A head that is closed or failed is beyond any limit.
        let is_open = cursor.head <= self.limit();
        if is_open {
            self.ring(held, cursor);
        }
        self.access.leave();
        is_open
    }

    /// Publishes what is new, and rings. The queue is busy, and open.
    #[inline(always)]
    fn ring(&mut self, held: &SendQueueRef, cursor: &Cursor) {
        if cursor.is_plain() && !self.bell.is_slow() {
            let (last, before) = (cursor.last_plain(), self.at);
            (self.at, self.head) = (cursor.at, cursor.head);
            show(&self.record, cursor.at);
            self.bell.post_plain(held.view(), last, last == before);
        } else {
            cold_path();
            self.ring_odd(held, cursor.odd, cursor.at, cursor.head);
        }
    }

    /// The same for any WQEs, by any doorbell.
    #[inline(never)]
    fn ring_odd(&mut self, held: &SendQueueRef, odd: Odd, end: BlockIndex, head: u64) {
        let (last, burst) = odd.last(held.view(), end);
        let span = last.until(end);
        let burst = last == self.at && self.bell.is_burst(span, burst);
        (self.at, self.head) = (end, head);
        show(&self.record, end);
        if self.bell.is_slow() {
            // A software device's doorbell is a call that may panic: the guard leaves then.
            let _busy = held.qp.access().send.busy();
            self.bell.post_slow(held, last, span, burst);
        } else {
            self.bell.post(held.view(), last, span, burst);
        }
    }

    /// Posts one WQE of one block that is in registers, if nothing at all is in the way; for a doorbell that is not slow. `words`
    /// makes it for a place; it has two to four units, `ds` of them.
    #[inline(always)]
    pub(crate) fn post_block(
        &mut self,
        held: &SendQueueRef,
        wr_id: u64,
        ds: u32,
        words: impl FnOnce(BlockIndex) -> [u64; 8],
    ) -> bool {
        let (at, head) = (self.at, self.head);
        self.access.enter();
        if head >= self.limit() {
            self.access.leave();
            return false;
        }
        let words = words(at);
        for (to, word) in held.view().at(at).iter().zip(words).take(ds as usize * 2) {
            to.store(word, Ordering::Relaxed);
        }
        let record = held.record(at);
        record.wr_id.store(wr_id, Ordering::Relaxed);
        let mut cursor = Cursor::new(at, head, head);
        cursor.finish_block(at, record);
        (self.at, self.head) = (cursor.at, cursor.head);
        show(&self.record, cursor.at);
        self.bell.post_block(&words);
        self.access.leave();
        true
    }

    /// Begins a builder session: batches are refused until it ends. `None` if something must be looked at first.
    #[inline(always)]
    pub(crate) fn open_session(&mut self) -> Option<Cursor> {
        let cursor = self.begin();
        if !cursor.has_room() {
            return None;
        }
        (self.floor, self.head) = (cursor.head, Cursor::CLOSED);
        Some(cursor)
    }

    /// The same where something must be looked at first. A session that finds an error is open all the same, until its end
    /// tells of it.
    #[cold]
    pub(crate) fn open_session_cold(&mut self, held: &SendQueueRef) -> Result<Cursor, PostError> {
        let found = self.look(held);
        (self.saved, self.head, self.session) = (self.count(), Cursor::CLOSED, true);
        let (head, limit) = found?;
        if !self.fence {
            (self.floor, self.session) = (head, false);
        }
        Ok(Cursor::new(self.at, head, limit))
    }

    /// Whether a session is open.
    #[inline(always)]
    pub(crate) fn in_session(&self) -> bool {
        self.floor != Cursor::CLOSED || self.session
    }

    /// Whether the session has written something.
    pub(crate) fn is_begun(&self, cursor: &Cursor) -> bool {
        cursor.head != self.count()
    }

    /// Ends a plain session and publishes it, if there is one and nothing at all is in the way; else it goes on.
    #[inline(always)]
    pub(crate) fn complete_session(&mut self, held: &SendQueueRef, cursor: &mut Cursor) -> bool {
        let copy = *cursor;
        if self.floor >= copy.head || !self.ring_if_open(held, &copy) {
            return false;
        }
        self.floor = Cursor::CLOSED;
        // Builders and setters without a session find no room.
        cursor.head = Cursor::FAILED;
        true
    }

    /// Ends a session, and publishes it unless `cursor` is `None` or the state changed.
    #[cold]
    pub(crate) fn end_session(
        &mut self,
        held: &SendQueueRef,
        cursor: Option<&Cursor>,
    ) -> Result<(), PostError> {
        if !self.in_session() {
            return Err(PostError::NoSession);
        }
        if self.floor != Cursor::CLOSED {
            (self.saved, self.floor, self.fence_at) = (self.floor, Cursor::CLOSED, None);
        }
        self.session = false;
        let result = match cursor {
            // An empty session finds out about the state, too.
            Some(cursor) => self.check(held.qp.word()).and_then(|()| self.publish(held, cursor)),
            None => Ok(()),
        };
        if self.head == Cursor::CLOSED && !self.fence {
            self.head = self.saved;
        }
        result
    }
}

/// Tells the device of the WQEs before `end`: the WQEs before the record, the record before the register.
#[inline(always)]
fn show(record: &DbWord, end: BlockIndex) {
    to_device();
    record.set(end.index());
}

#[cfg(all(test, loom))]
#[expect(unsafe_code, reason = "posting calls")]
mod loom_tests {
    use crate::testing::{BLUE_FLAME, heap_page, send_config, send_parts};
    use crate::{Remote, Sge};
    use uverbs_core::attr::{QpState, QpType};
    use uverbs_core::provider::op::Write;
    use uverbs_core::provider::{
        Connected, PostError, SendBatch as _, SendQueue as _, WireRemote as _, WireSge as _, Wr,
    };

    /// A post against `modify_qp` to RESET and back: when a state is set, the doorbell record does not change any more by
    /// what was begun before. Both sides have fences here, because loom does not model membarrier(2).
    fn model(post: fn(&mut crate::SendQueue) -> Result<(), PostError>) {
        loom::model(move || {
            let (mut queue, qp, _, record) =
                send_parts(&send_config(QpType::Rc), 64, BLUE_FLAME, &heap_page(), None);
            // The limit is raised: the posts below take the short way.
            post(&mut queue).unwrap();
            let poster = loom::thread::spawn(move || post(&mut queue));
            qp.set_state(QpState::RESET);
            let told = record.word(1).load(core::sync::atomic::Ordering::Relaxed);
            let result = poster.join().unwrap();
            assert!(matches!(result, Ok(()) | Err(PostError::BadState)));
            assert_eq!(record.word(1).load(core::sync::atomic::Ordering::Relaxed), told);
            assert_eq!(qp.access().send.limit().load(loom::sync::atomic::Ordering::Relaxed), 0);
        });
    }

    fn write() -> (Write<Remote>, [Sge; 1]) {
        (Write::new(Remote::new(1, 2)), [Sge::new(3, 4, 5).unwrap()])
    }

    #[test]
    fn no_single_post_is_published_after_a_reset() {
        model(|queue| {
            let (op, sges) = write();
            // SAFETY: no device reads the memory.
            unsafe { queue.post(Wr::default(), Connected, op, &sges) }
        });
    }

    #[test]
    fn no_batch_is_published_after_a_reset() {
        model(|queue| {
            let (op, sges) = write();
            let mut batch = queue.batch();
            // SAFETY: no device reads the memory.
            unsafe { batch.push(Wr::default(), Connected, op, &sges) };
            batch.complete()
        });
    }
}
