// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a send queue: room, fences and publication, for single posts, batches and builders.
//!
//! The [`SqCursor`] of a batch runs ahead of what is published; a batch that is dropped has no effect. Room is counted in
//! WRs, as `max_send_wr` is: creation reserved the blocks of the largest WQE for every WR, so there is room for its
//! blocks if there is room for the WR. (A WQE that is larger, with an opcode that was not given at creation, counts as
//! several WRs.)
//!
//! The limit is stored in the queue's `QueueAccess`. `modify_qp` sets it to 0, and it is 0 in a child of fork(2). A WR
//! is written if the head is below the limit in the batch's cursor. The device does not read WQEs beyond the published
//! index, so writing one needs no other check. WQEs are published while the queue is busy, after the head was compared
//! with the current limit: `modify_qp` then waits for the doorbell before it continues. The limit is raised only while
//! the queue is busy, so it does not outlive a change of the state. Where the control path can't order its accesses
//! with those of a post ([`QueueAccess::needs_fence`]), the limit stays 0 and every publication takes the slow path,
//! which has a fence and checks the state itself.
//!
//! In any [`Mode`] but [`Mode::Idle`] the head is [`SqCursor::CLOSED`], which is above every limit.

use crate::doorbell::Doorbell;
use crate::memory::dbrec::DbWord;
use crate::memory::{BlockIndex, SendQueueRef, SqView};
use crate::sq::cursor::SqCursor;
use crate::wqe::WqeWriter;
use crate::wqe::plain::CtrlConsts;
use core::hint::cold_path;
use core::sync::atomic::Ordering;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::barrier::to_device;
use uverbs_core::wr::WrOpcode;

/// What must be considered before a batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Nothing: `head` is a count.
    Idle,
    /// A builder session is open.
    Session,
    /// The WQE at `at`, which may not be written yet, must wait for a local operation before it. The operation is part
    /// of the current batch or session, or of the last one.
    Fenced { at: BlockIndex, in_session: bool },
}

/// The poster's view of a send queue, and its doorbell.
// codegen: lines
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Producer {
    /// The count to restore when [`Published::head`] is closed. Not valid while it is open.
    session_base: u64,
    /// The number of WRs that fit.
    max_post: u32,
    /// The state word at the last check before a batch. The indices are valid until the QP is reset after it.
    since: StateWord,
    /// The error of the batch whose cursor has failed.
    error: PostError,
    /// Whether the WQE at `at` must wait for a local operation before it.
    is_fenced: bool,
    mode: Mode,
    published: Published,
    /// Contains the limit.
    access: QueueAccess,
}

/// What is published to the device, the doorbell record and the doorbell.
// codegen: lines
#[derive(Debug)]
#[repr(C)]
struct Published {
    bell: Doorbell,
    record: DbWord,
    /// The number of WRs since the queue was reset, or [`SqCursor::CLOSED`].
    head: u64,
    /// The index of the next basic block.
    at: BlockIndex,
}

impl Published {
    /// Publishes the WQEs before the cursor, and rings. The queue must be busy and open; `ring` is its ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn extend(&mut self, queue: &SendQueueRef, ring: SqView<'_>, cursor: &SqCursor) {
        let first = self.at;
        (self.at, self.head) = (cursor.at, cursor.head);
        write_dbrec(&self.record, cursor.at);
        self.bell.post(queue, ring, first, cursor.last(), cursor.at);
    }
}

#[cfg(test)]
impl Producer {
    /// The fields that a post uses are from here to the end.
    pub(crate) const USED: usize = core::mem::offset_of!(Self, published.bell) + Doorbell::USED;
}

impl Producer {
    /// The producer of a queue in which `max_post` WRs fit.
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

    /// The number of WRs that fit.
    pub(crate) fn max_post(&self) -> u32 {
        self.max_post
    }

    /// The number of WRs published since the queue was reset.
    fn count(&self) -> u64 {
        if self.published.head == SqCursor::CLOSED { self.session_base } else { self.published.head }
    }

    /// The numbers of blocks, modulo 2^16, and of WRs, modulo 2^32, that were published since the queue was reset.
    pub(crate) fn published(&self) -> (u32, u32) {
        (self.published.at.index(), self.count() as u32)
    }

    /// Sets the indices as if this many one-block WRs had been posted and completed. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn start_at(&mut self, queue: &SendQueueRef, index: u32) {
        use crate::memory::CompletedCount;
        let _ = self.revalidate(queue);
        (self.published.at, self.session_base) = (BlockIndex::of(index), index.into());
        if self.published.head != SqCursor::CLOSED {
            self.published.head = self.session_base;
        }
        if index != 0 {
            queue.record(BlockIndex::of(index - 1)).set_done(CompletedCount::new(index.into(), 0));
            queue.sq().retire((index - 1) as u16);
        }
        let _busy = queue.qp.access().send.busy();
        let _ = self.raise_post_limit(queue);
    }

    /// The limit for the count of WRs. Relaxed: only this poster raises it, after it has checked the state.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn post_limit(&self) -> u64 {
        self.access.limit().load(Ordering::Relaxed)
    }

    /// Begins a batch. The first WR checks whether posting is allowed.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&self) -> SqCursor {
        SqCursor::new(self.published.at, self.published.head, self.post_limit())
    }

    /// Begins a batch as [`begin`](Self::begin) does, and also directly after a local operation that was published: the
    /// publication of the batch adds the fence ([`publish_cold`](Self::publish_cold)), unless the batch begins with a local
    /// operation, which has it ([`fence_next`](Self::fence_next)).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin_any(&self) -> SqCursor {
        let cursor = self.begin();
        match self.mode {
            Mode::Fenced { at, in_session: false }
                if at == self.published.at && self.session_base < cursor.limit =>
            {
                SqCursor::new(cursor.at, self.session_base, cursor.limit)
            }
            _ => cursor,
        }
    }

    /// Performs the checks before the first WR of a batch. Returns the limit for the cursor; its head is
    /// `session_base`.
    #[inline]
    fn revalidate(&mut self, queue: &SendQueueRef) -> Result<u64, PostError> {
        if self.in_session() {
            return Err(PostError::SessionOpen);
        }
        let _busy = queue.qp.access().send.busy();
        let word = queue.qp.word();
        if !word.can_send() {
            return Err(word.refusal());
        }
        self.session_base = self.count();
        if self.since == StateWord::NONE || word.resets_differ(self.since) {
            // A reset empties the queue on both sides; see `QpShared::set_state`.
            (self.published.at, self.session_base, self.is_fenced) = (BlockIndex::of(0), 0, false);
        }
        self.since = word;
        // A batch that was dropped may have left the head closed.
        self.settle();
        self.raise_post_limit(queue)
    }

    /// Ends the current batch or session; `session_base` must be the count.
    fn settle(&mut self) {
        (self.published.head, self.mode) = if self.is_fenced {
            (SqCursor::CLOSED, Mode::Fenced { at: self.published.at, in_session: false })
        } else {
            (self.session_base, Mode::Idle)
        };
    }

    /// Raises the limit as far as the tail allows, and returns it. The queue must be busy, and its state checked since
    /// then.
    fn raise_post_limit(&self, queue: &SendQueueRef) -> Result<u64, PostError> {
        let head = self.count();
        let outstanding = (head as u32).wrapping_sub(queue.sq().tail());
        // The device can't have completed what was not published.
        let Some(room) = self.max_post.checked_sub(outstanding) else { return Err(PostError::Corrupt) };
        let limit = head + u64::from(room);
        if !self.access.needs_fence() {
            // Relaxed: only this poster uses it. A control call that closes the queue waits for this thread, then
            // stores 0.
            self.access.limit().store(limit, Ordering::Relaxed);
        }
        Ok(limit)
    }

    /// The queue seems full to a batch that has begun: loads the tail again. Returns a limit above `head`.
    #[cold]
    fn refresh(&mut self, queue: &SendQueueRef, head: u64) -> Result<u64, PostError> {
        let _busy = queue.qp.access().send.busy();
        self.check(queue.qp.word())?;
        let limit = self.raise_post_limit(queue)?;
        if head < limit { Ok(limit) } else { Err(PostError::QueueFull) }
    }

    /// Makes room for a WR if the cursor has none, or if nothing was checked yet.
    #[cold]
    fn make_room(&mut self, queue: &SendQueueRef, cursor: &mut SqCursor) -> Result<(), PostError> {
        self.ensure_begun(queue, cursor)?;
        if !cursor.has_room() {
            cursor.limit = self.refresh(queue, cursor.head)?;
        }
        Ok(())
    }

    /// Performs the checks before the first WR if this has not been done yet. Returns the error of the batch if it has
    /// failed.
    pub(crate) fn ensure_begun(
        &mut self,
        queue: &SendQueueRef,
        cursor: &mut SqCursor,
    ) -> Result<(), PostError> {
        if cursor.has_room() {
            return Ok(());
        }
        if cursor.is_failed() {
            return Err(self.error);
        }
        if cursor.head == self.published.head {
            let limit = self.revalidate(queue)?;
            *cursor = SqCursor::new(self.published.at, self.session_base, limit);
        }
        Ok(())
    }

    /// Checks that what was begun in the state `since` may be posted in the state `word`.
    fn check(&self, word: StateWord) -> Result<(), PostError> {
        if word.can_send() && !word.resets_differ(self.since) { Ok(()) } else { Err(word.refusal()) }
    }

    /// Makes sure that there is room for one more WR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn reserve(&mut self, queue: &SendQueueRef, cursor: &mut SqCursor) -> Result<(), PostError> {
        if cursor.has_room() {
            return Ok(());
        }
        cold_path();
        cursor.by_copy(|cursor| self.make_room(queue, cursor))
    }

    /// [`reserve`](Self::reserve) for a WQE that counts as `1 + more` WRs; adds `more` to the head.
    pub(crate) fn reserve_more(
        &mut self,
        queue: &SendQueueRef,
        cursor: &mut SqCursor,
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

    /// Stores the first error of a batch. After that the cursor has no room.
    #[cold]
    pub(crate) fn latch(&mut self, cursor: &mut SqCursor, error: PostError) {
        if !cursor.is_failed() {
            self.error = error;
            cursor.head = SqCursor::FAILED;
        }
    }

    /// The WR that is written next, of `blocks` blocks at `at`, is a local operation: the WQE after it must wait for
    /// it. Returns whether it must itself wait for a local operation directly before it.
    #[cold]
    pub(crate) fn fence_local(&mut self, view: SqView<'_>, at: BlockIndex, blocks: u32) -> bool {
        self.session_base = self.count();
        self.published.head = SqCursor::CLOSED;
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

    /// [`fence_local`](Self::fence_local), by a short path if the WQE before is a local operation, too.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn fence_next(&mut self, view: SqView<'_>, at: BlockIndex, blocks: u32) -> bool {
        match &mut self.mode {
            Mode::Fenced { at: waiting, .. } if *waiting == at => {
                *waiting = at.after(blocks);
                true
            }
            _ => self.fence_local(view, at, blocks),
        }
    }

    /// Publishes a batch that ends with a local operation, if no check is needed and no other WQE waits for one. Returns
    /// whether it did. `session` is whether the batch is a session.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn ring_fenced(&mut self, queue: &SendQueueRef, cursor: &SqCursor, session: bool) -> bool {
        let Mode::Fenced { at, in_session } = self.mode else { return false };
        let is_last = at == cursor.at && at != self.published.at && in_session == session;
        if !is_last || !self.ring_if_open(queue, queue.view(), cursor) {
            return false;
        }
        (self.session_base, self.published.head, self.is_fenced) = (cursor.head, SqCursor::CLOSED, true);
        self.mode = Mode::Fenced { at, in_session: false };
        true
    }

    /// Whether there may be room after [`ring_if_open`](Self::ring_if_open) or [`post_block`](Self::post_block) found none:
    /// only the limit that is known forbids the next post, and the tail allows it.
    #[cold]
    #[inline(never)]
    pub(crate) fn raise(&mut self, queue: &SendQueueRef) -> bool {
        let (head, limit) = (self.published.head, self.post_limit());
        // A closed head is above every limit; a limit of 0 is that of a closed queue.
        head == limit && limit != 0 && self.refresh(queue, head).is_ok() && head < self.post_limit()
    }

    /// Whether a single post has room, as far as is known.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn has_room(&self) -> bool {
        self.published.head < self.post_limit()
    }

    /// Ends a batch: publishes it and rings, unless there was an error or the state changed.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn complete(
        &mut self,
        queue: &SendQueueRef,
        ring: SqView<'_>,
        cursor: &SqCursor,
    ) -> Result<(), PostError> {
        if self.published.head < cursor.head && self.ring_if_open(queue, ring, cursor) {
            return Ok(());
        }
        cold_path();
        let copy = *cursor;
        self.complete_cold(queue, &copy)
    }

    #[inline(never)]
    fn complete_cold(&mut self, queue: &SendQueueRef, cursor: &SqCursor) -> Result<(), PostError> {
        if cursor.is_failed() {
            return Err(self.error);
        }
        if cursor.head == self.published.head || cursor.at == self.published.at {
            // Nothing was written.
            return self.revalidate(queue).map(drop);
        }
        if self.ring_fenced(queue, cursor, false) {
            return Ok(());
        }
        self.publish_cold(queue, cursor)
    }

    /// Makes everything before the cursor visible to the device and rings, unless the state changed. Does nothing if
    /// there is nothing new or the batch has failed.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&mut self, queue: &SendQueueRef, cursor: &SqCursor) -> Result<(), PostError> {
        if self.published.head < cursor.head && self.ring_if_open(queue, queue.view(), cursor) {
            return Ok(());
        }
        cold_path();
        let copy = *cursor;
        if self.ring_fenced(queue, &copy, false) { Ok(()) } else { self.publish_cold(queue, &copy) }
    }

    #[inline(never)]
    fn publish_cold(&mut self, queue: &SendQueueRef, cursor: &SqCursor) -> Result<(), PostError> {
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
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn ring_if_open(&mut self, queue: &SendQueueRef, ring: SqView<'_>, cursor: &SqCursor) -> bool {
        let access = self.access.by_ref();
        access.enter();
        // A head that is closed or failed is above every limit.
        let is_open = cursor.head <= access.limit().load(Ordering::Relaxed);
        if is_open {
            self.published.extend(queue, ring, cursor);
        }
        access.leave();
        is_open
    }

    /// Posts one WQE of one block, if no check is needed, and returns whether it did. `block` is the WQE without its first
    /// word; the WQE has `ds` units, more than one.
    // codegen: block
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn post_block(
        &mut self,
        queue: &SendQueueRef,
        wr_id: u64,
        mut block: [u64; 8],
        ds: u32,
        ctrl: &CtrlConsts,
        opcode: WrOpcode,
    ) -> bool {
        let (at, head, access) = (self.published.at, self.published.head, self.access.by_ref());
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
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn open_session(&mut self) -> Option<SqCursor> {
        let cursor = self.begin();
        if !cursor.has_room() {
            return None;
        }
        (self.session_base, self.published.head, self.mode) = (cursor.head, SqCursor::CLOSED, Mode::Session);
        Some(cursor)
    }

    /// [`open_session`](Self::open_session) directly after a local operation that was published.
    #[inline]
    pub(crate) fn open_fenced(&mut self) -> Option<SqCursor> {
        let cursor = self.begin_any();
        match &mut self.mode {
            Mode::Fenced { in_session, .. } if cursor.has_room() => {
                *in_session = true;
                Some(cursor)
            }
            _ => None,
        }
    }

    /// [`open_session`](Self::open_session) where a check must come first. If a check fails, the session opens with
    /// that error, and the call that ends the session returns it.
    #[cold]
    pub(crate) fn open_session_cold(&mut self, queue: &SendQueueRef) -> Result<SqCursor, PostError> {
        let found = self.revalidate(queue);
        (self.session_base, self.published.head) = (self.count(), SqCursor::CLOSED);
        self.mode = match self.mode {
            Mode::Fenced { at, .. } => Mode::Fenced { at, in_session: true },
            Mode::Idle | Mode::Session => Mode::Session,
        };
        Ok(SqCursor::new(self.published.at, self.session_base, found?))
    }

    /// Whether a session is open.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn in_session(&self) -> bool {
        matches!(self.mode, Mode::Session | Mode::Fenced { in_session: true, .. })
    }

    /// Ends a session and publishes it, if one is open and no check is needed. Returns whether it did.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn complete_session(&mut self, queue: &SendQueueRef, cursor: &mut SqCursor) -> bool {
        let copy = *cursor;
        if self.mode != Mode::Session {
            return self.complete_fenced(queue, cursor);
        }
        if self.session_base >= copy.head || !self.ring_if_open(queue, queue.view(), &copy) {
            return false;
        }
        self.mode = Mode::Idle;
        // Builders and setters without a session find no room.
        cursor.head = SqCursor::FAILED;
        true
    }

    /// [`complete_session`](Self::complete_session) of a session that ends with a local operation.
    #[inline(never)]
    fn complete_fenced(&mut self, queue: &SendQueueRef, cursor: &mut SqCursor) -> bool {
        let is_done = self.session_base < cursor.head && self.ring_fenced(queue, cursor, true);
        if is_done {
            cursor.head = SqCursor::FAILED;
        }
        is_done
    }

    /// Ends a session, and publishes it unless `cursor` is `None` or the state changed.
    #[cold]
    pub(crate) fn end_session(
        &mut self,
        queue: &SendQueueRef,
        cursor: Option<&SqCursor>,
    ) -> Result<(), PostError> {
        if !self.in_session() {
            return Err(PostError::NoSession);
        }
        let result = match cursor {
            // The end of an empty session checks the state, too.
            Some(cursor) => self.check(queue.qp.word()).and_then(|()| self.publish_cold(queue, cursor)),
            None => Ok(()),
        };
        if self.in_session() {
            // The session was not published.
            self.settle();
        }
        result
    }
}

/// Publishes the WQEs before `end`: they are visible before the record, and the record before the register is written.
#[cfg_attr(not(debug_assertions), inline(always))]
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
    use uverbs_core::provider::{
        Op, PostError, SendBatch as _, SendQueue as _, WireRemote as _, WireSge as _, Wr,
    };

    /// A post against `modify_qp` to RESET: after the state is set, a post that began before does not change the
    /// doorbell record. Both sides have fences here, because loom does not model membarrier(2).
    fn model(post: fn(&mut crate::SendQueue) -> Result<(), PostError>) {
        loom::model(move || {
            let (mut queue, qp, _, record) =
                send_parts(&send_config(QpType::Rc), 64, BLUE_FLAME, &heap_page(), None);
            // The limit is raised: the posts below take the fast path.
            post(&mut queue).unwrap();
            let poster = loom::thread::spawn(move || post(&mut queue));
            qp.set_state(QpState::RESET);
            let published = record.word(1).load(core::sync::atomic::Ordering::Relaxed);
            let result = poster.join().unwrap();
            assert!(matches!(result, Ok(()) | Err(PostError::BadState)));
            assert_eq!(record.word(1).load(core::sync::atomic::Ordering::Relaxed), published);
            assert_eq!(qp.access().send.limit().load(loom::sync::atomic::Ordering::Relaxed), 0);
        });
    }

    fn write() -> (Op<'static, Remote>, [Sge; 1]) {
        (Op::Write(Remote::new(1, 2)), [Sge::new(3, 4, 5).unwrap()])
    }

    #[test]
    fn no_single_post_is_published_after_a_reset() {
        model(|queue| {
            let (op, sges) = write();
            // SAFETY: no device reads the memory.
            unsafe { queue.post(&Wr::new(0, op).sges(&sges)) }
        });
    }

    #[test]
    fn no_batch_is_published_after_a_reset() {
        model(|queue| {
            let (op, sges) = write();
            let mut batch = queue.batch();
            // SAFETY: no device reads the memory.
            unsafe { batch.push(&Wr::new(0, op).sges(&sges)) };
            batch.complete()
        });
    }
}
