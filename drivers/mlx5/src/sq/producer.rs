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
//! ([`QueueAccess::needs_fence`]), the limit stays 0 and every publication takes the slow path, which has a fence and checks
//! the state itself.
//!
//! In any [`Mode`] but [`Mode::Idle`] the head is [`Cursor::CLOSED`], which no limit reaches.

use crate::doorbell::Doorbell;
use crate::memory::dbrec::DbWord;
use crate::memory::{BlockIndex, SendQueueRef, SqView};
use crate::sq::cursor::Cursor;
use crate::wqe::WqeWriter;
use crate::wqe::plain::CtrlConsts;
use core::hint::cold_path;
use core::sync::atomic::Ordering;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::barrier::to_device;
use uverbs_core::wr::WrOpcode;

/// What a batch must know before it may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Nothing: `head` is open.
    Idle,
    /// A builder session is open.
    Session,
    /// The WQE at `at`, which may not be written yet, must wait for a local operation before it: of the batch or session
    /// that is under way, or of the last one.
    Fenced { at: BlockIndex, in_session: bool },
}

/// This side's view of a send queue, and its doorbell.
#[derive(Debug)]
pub(crate) struct Producer {
    published: Published,
    /// The count to restore when [`Published::head`] is closed. Not valid while it is open.
    session_base: u64,
    mode: Mode,
    /// Whether the WQE at `at` must wait for a local operation before it.
    is_fenced: bool,
    /// Has the limit.
    access: QueueAccess,
    /// WRs that the queue takes.
    max_post: u32,
    /// The state under which the limit was raised last: the indices belong to its reset.
    since: StateWord,
    /// Why the batch's cursor has failed.
    error: PostError,
}

/// What is published to the device, and the means to publish more.
#[derive(Debug)]
struct Published {
    /// The next basic block.
    at: BlockIndex,
    /// The WRs since the queue was reset, or [`Cursor::CLOSED`].
    head: u64,
    record: DbWord,
    bell: Doorbell,
}

impl Published {
    /// Publishes what is new, and rings. The queue is busy, and open; `ring` is its ring.
    #[inline(always)]
    fn extend(&mut self, queue: &SendQueueRef, ring: SqView<'_>, cursor: &Cursor) {
        let first = self.at;
        (self.at, self.head) = (cursor.at, cursor.head);
        write_dbrec(&self.record, cursor.at);
        self.bell.post(queue, ring, first, cursor.last(), cursor.at);
    }
}

impl Producer {
    /// Of a queue that takes `max_post` WRs.
    pub(crate) fn new(queue: &SendQueueRef, max_post: u32, record: DbWord, bell: Doorbell) -> Self {
        Self {
            published: Published { at: BlockIndex::of(0), head: 0, record, bell },
            session_base: 0,
            mode: Mode::Idle,
            is_fenced: false,
            access: queue.qp.access().send.clone(),
            max_post,
            since: StateWord::NONE,
            error: PostError::NoSession,
        }
    }

    /// The doorbell.
    pub(crate) fn bell(&self) -> &Doorbell {
        &self.published.bell
    }

    /// WRs that the queue takes.
    pub(crate) fn max_post(&self) -> u32 {
        self.max_post
    }

    /// The WRs published since the queue was reset.
    fn count(&self) -> u64 {
        if self.published.head == Cursor::CLOSED { self.session_base } else { self.published.head }
    }

    /// Blocks, modulo 2^16, and WRs, modulo 2^32, that were published since the queue was reset.
    pub(crate) fn published(&self) -> (u32, u32) {
        (self.published.at.index(), self.count() as u32)
    }

    /// Sets the indices, as if so many one-block WRs had been posted and completed. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn start_at(&mut self, queue: &SendQueueRef, index: u32) {
        use crate::memory::CompletedCount;
        let _ = self.revalidate(queue);
        (self.published.at, self.session_base) = (BlockIndex::of(index), index.into());
        if self.published.head != Cursor::CLOSED {
            self.published.head = self.session_base;
        }
        if index != 0 {
            queue.record(BlockIndex::of(index - 1)).set_done(CompletedCount::new(index.into(), 0));
            queue.sq().retire((index - 1) as u16);
        }
        let _busy = queue.qp.access().send.busy();
        let _ = self.raise_post_limit(queue);
    }

    /// How many WRs may have been posted. Relaxed: it is this poster that raises it, after it has checked the state.
    #[inline(always)]
    fn post_limit(&self) -> u64 {
        self.access.limit().load(Ordering::Relaxed)
    }

    /// Begins a batch. Whether it may, the first WR finds out.
    #[inline(always)]
    pub(crate) fn begin(&self) -> Cursor {
        Cursor::new(self.published.at, self.published.head, self.post_limit())
    }

    /// Checks what a batch must check before its first WR. Gives the cursor's limit; its head is `session_base`.
    #[inline]
    fn revalidate(&mut self, queue: &SendQueueRef) -> Result<u64, PostError> {
        if self.in_session() {
            return Err(PostError::SessionOpen);
        }
        let _busy = queue.qp.access().send.busy();
        let word = queue.qp.word();
        if word.is_forked() {
            return Err(PostError::Forked);
        }
        if !word.can_send() {
            return Err(PostError::BadState);
        }
        self.session_base = self.count();
        if self.since == StateWord::NONE || word.resets_differ(self.since) {
            // A reset empties the queue on both sides; see `QpShared::set_state`.
            (self.published.at, self.session_base, self.is_fenced) = (BlockIndex::of(0), 0, false);
        }
        self.since = word;
        // A batch that was dropped may have left it closed.
        self.settle();
        self.raise_post_limit(queue)
    }

    /// Leaves whatever batch or session was under way, `session_base` being the count.
    fn settle(&mut self) {
        (self.published.head, self.mode) = if self.is_fenced {
            (Cursor::CLOSED, Mode::Fenced { at: self.published.at, in_session: false })
        } else {
            (self.session_base, Mode::Idle)
        };
    }

    /// Raises the limit to what the tail allows, and gives it. The queue is busy, and its state was checked since it is.
    fn raise_post_limit(&self, queue: &SendQueueRef) -> Result<u64, PostError> {
        let head = self.count();
        let outstanding = (head as u32).wrapping_sub(queue.sq().tail());
        // The device can't have completed what was not published.
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
    fn refresh(&mut self, queue: &SendQueueRef, head: u64) -> Result<u64, PostError> {
        let _busy = queue.qp.access().send.busy();
        self.check(queue.qp.word())?;
        let limit = self.raise_post_limit(queue)?;
        if head < limit { Ok(limit) } else { Err(PostError::QueueFull) }
    }

    /// There is no room at the cursor, as far as is known, or nothing is known yet.
    #[cold]
    fn make_room(&mut self, queue: &SendQueueRef, cursor: &mut Cursor) -> Result<(), PostError> {
        self.ensure_begun(queue, cursor)?;
        if !cursor.has_room() {
            cursor.limit = self.refresh(queue, cursor.head)?;
        }
        Ok(())
    }

    /// Makes sure that posting is allowed at all; the error is that of the batch if it had one.
    pub(crate) fn ensure_begun(
        &mut self,
        queue: &SendQueueRef,
        cursor: &mut Cursor,
    ) -> Result<(), PostError> {
        if cursor.has_room() {
            return Ok(());
        }
        if cursor.is_failed() {
            return Err(self.error);
        }
        if cursor.head == self.published.head {
            let limit = self.revalidate(queue)?;
            *cursor = Cursor::new(self.published.at, self.session_base, limit);
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
    pub(crate) fn reserve(&mut self, queue: &SendQueueRef, cursor: &mut Cursor) -> Result<(), PostError> {
        if cursor.has_room() {
            return Ok(());
        }
        cold_path();
        cursor.lend(|cursor| self.make_room(queue, cursor))
    }

    /// The same for a WQE that counts as `1 + more` WRs, of which `more` are then taken.
    pub(crate) fn reserve_more(
        &mut self,
        queue: &SendQueueRef,
        cursor: &mut Cursor,
        more: u32,
    ) -> Result<(), PostError> {
        self.reserve(queue, cursor)?;
        let more = u64::from(more);
        if cursor.limit - cursor.head <= more {
            cursor.limit = self.refresh(queue, cursor.head + more)?;
        }
        cursor.head += more;
        Ok(())
    }

    /// Keeps the first error of a batch, after which there is no room for anything.
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
        self.session_base = self.count();
        self.published.head = Cursor::CLOSED;
        let before = self.mode;
        self.mode = Mode::Fenced { at: at.after(blocks), in_session: self.in_session() };
        match before {
            Mode::Fenced { at: waiting, .. } if waiting != at => {
                WqeWriter::new(view, waiting).add_small_fence();
                false
            }
            before => matches!(before, Mode::Fenced { .. }),
        }
    }

    /// Ends a batch: publishes it and rings, unless there was an error or the state changed.
    #[inline(always)]
    pub(crate) fn complete(
        &mut self,
        queue: &SendQueueRef,
        ring: SqView<'_>,
        cursor: &Cursor,
    ) -> Result<(), PostError> {
        if self.published.head < cursor.head && self.ring_if_open(queue, ring, cursor) {
            return Ok(());
        }
        cold_path();
        let copy = *cursor;
        self.complete_cold(queue, &copy)
    }

    #[inline(never)]
    fn complete_cold(&mut self, queue: &SendQueueRef, cursor: &Cursor) -> Result<(), PostError> {
        if cursor.is_failed() {
            return Err(self.error);
        }
        if cursor.head == self.published.head {
            // Nothing was written.
            return self.revalidate(queue).map(drop);
        }
        self.publish_cold(queue, cursor)
    }

    /// Makes everything before the cursor visible to the device and rings, unless the state changed. Nothing if that is
    /// nothing new, or the batch failed before it began.
    #[inline(always)]
    pub(crate) fn publish(&mut self, queue: &SendQueueRef, cursor: &Cursor) -> Result<(), PostError> {
        if self.published.head < cursor.head && self.ring_if_open(queue, queue.view(), cursor) {
            return Ok(());
        }
        cold_path();
        let copy = *cursor;
        self.publish_cold(queue, &copy)
    }

    #[inline(never)]
    fn publish_cold(&mut self, queue: &SendQueueRef, cursor: &Cursor) -> Result<(), PostError> {
        if cursor.at == self.published.at || cursor.is_failed() {
            return Ok(());
        }
        let _busy = queue.qp.access().send.busy();
        self.check(queue.qp.word())?;
        self.is_fenced = match self.mode {
            Mode::Fenced { at, .. } if at != cursor.at => {
                WqeWriter::new(queue.view(), at).add_small_fence();
                false
            }
            mode => matches!(mode, Mode::Fenced { .. }),
        };
        self.published.extend(queue, queue.view(), cursor);
        self.session_base = cursor.head;
        self.settle();
        Ok(())
    }

    /// Publishes what is new, and rings, if the limit allows it while the queue is busy. `ring` is that of `queue`.
    #[inline(always)]
    pub(crate) fn ring_if_open(&mut self, queue: &SendQueueRef, ring: SqView<'_>, cursor: &Cursor) -> bool {
        let access = self.access.at_hand();
        access.enter();
        // A head that is closed or failed is beyond any limit.
        let is_open = cursor.head <= access.limit().load(Ordering::Relaxed);
        if is_open {
            self.published.extend(queue, ring, cursor);
        }
        access.leave();
        is_open
    }

    /// Posts one WQE of one block that is in registers, if nothing at all is in the way. `block` has all of it but the first
    /// word; it has `ds` units, more than one.
    ///
    /// The block goes from registers to both ring and register, so nothing of it is loaded again: 75 instructions for a WRITE.
    #[inline(always)]
    pub(crate) fn post_block(
        &mut self,
        queue: &SendQueueRef,
        wr_id: u64,
        mut block: [u64; 8],
        ds: u32,
        ctrl: &CtrlConsts,
        opcode: WrOpcode,
    ) -> bool {
        let (at, head, access) = (self.published.at, self.published.head, self.access.at_hand());
        block[0] = ctrl.first(at, opcode, 1);
        access.enter();
        if head >= access.limit().load(Ordering::Relaxed) {
            access.leave();
            return false;
        }
        for (to, word) in queue.view().at(at).iter().zip(block).take(ds as usize * 2) {
            to.store(word, Ordering::Relaxed);
        }
        let record = queue.record(at);
        record.wr_id.store(wr_id, Ordering::Relaxed);
        record.set_done(crate::memory::CompletedCount::new(head + 1, 0));
        (self.published.at, self.published.head) = (at.after(1), head + 1);
        write_dbrec(&self.published.record, self.published.at);
        self.published.bell.post_block(queue, at, &block, ds);
        access.leave();
        true
    }

    /// Begins a builder session: batches are refused until it ends. `None` if something must be checked first.
    #[inline(always)]
    pub(crate) fn open_session(&mut self) -> Option<Cursor> {
        let cursor = self.begin();
        if !cursor.has_room() {
            return None;
        }
        (self.session_base, self.published.head, self.mode) = (cursor.head, Cursor::CLOSED, Mode::Session);
        Some(cursor)
    }

    /// [`open_session`](Self::open_session) where a check must come first. If a check fails, the session opens with that
    /// error, and the call that ends the session returns it.
    #[cold]
    pub(crate) fn open_session_cold(&mut self, queue: &SendQueueRef) -> Result<Cursor, PostError> {
        let found = self.revalidate(queue);
        (self.session_base, self.published.head) = (self.count(), Cursor::CLOSED);
        self.mode = match self.mode {
            Mode::Fenced { at, .. } => Mode::Fenced { at, in_session: true },
            Mode::Idle | Mode::Session => Mode::Session,
        };
        Ok(Cursor::new(self.published.at, self.session_base, found?))
    }

    /// Whether a session is open.
    #[inline(always)]
    pub(crate) fn in_session(&self) -> bool {
        matches!(self.mode, Mode::Session | Mode::Fenced { in_session: true, .. })
    }

    /// Ends a session and publishes it, if there is one and nothing at all is in the way; else it goes on.
    #[inline(always)]
    pub(crate) fn complete_session(&mut self, queue: &SendQueueRef, cursor: &mut Cursor) -> bool {
        let copy = *cursor;
        if self.mode != Mode::Session
            || self.session_base >= copy.head
            || !self.ring_if_open(queue, queue.view(), &copy)
        {
            return false;
        }
        self.mode = Mode::Idle;
        // Builders and setters without a session find no room.
        cursor.head = Cursor::FAILED;
        true
    }

    /// Ends a session, and publishes it unless `cursor` is `None` or the state changed.
    #[cold]
    pub(crate) fn end_session(
        &mut self,
        queue: &SendQueueRef,
        cursor: Option<&Cursor>,
    ) -> Result<(), PostError> {
        if !self.in_session() {
            return Err(PostError::NoSession);
        }
        let result = match cursor {
            // An empty session finds out about the state, too.
            Some(cursor) => self.check(queue.qp.word()).and_then(|()| self.publish_cold(queue, cursor)),
            None => Ok(()),
        };
        if self.in_session() {
            // Nothing of it was published.
            self.settle();
        }
        result
    }
}

/// Publishes the WQEs before `end`: they are visible before the record, and the record before the register is written.
#[inline(always)]
fn write_dbrec(record: &DbWord, end: BlockIndex) {
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
            // The limit is raised: the posts below take the fast path.
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
