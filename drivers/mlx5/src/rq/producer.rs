// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a QP's receive queue: room, state and publication, the same for every face.
//!
//! A batch's [`Cursor`] runs ahead of what is published, so a batch that is dropped or forgotten leaves nothing behind.
//!
//! The limit is in the queue's [`QueueAccess`], where `modify_qp` and fork(2) take it away. One compare of the head with
//! it lets a receive in, and another one publishes the batch. The publication is between `enter` and `leave`: the
//! control path, which takes the limit away and then waits until the queue is not busy, knows that no doorbell record is
//! stored after its wait. Counts never wrap, so no batch fits below a limit of 0 or below that of a later life of the
//! queue, which only this producer raises.
//!
//! Where the data path must use fences of its own ([`QueueAccess::needs_fence`]), and while a raw packet QP holds receives
//! back that no later post has published, the limit stays 0. Then every post goes the long way, which enters with a fence
//! and reads the state.

use crate::memory::dbrec::DbWord;
use crate::memory::{Entry64, RecvRing};
use crate::qp::QpShared;
use crate::rq::face::Produce;
use crate::rq::{RecvConfig, RqShared};
use crate::wqe::{RecvFormat, WireEntry};
use core::fmt;
use core::hint::cold_path;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use uverbs_core::attr::{QpState, QpType};
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::barrier::to_device;

/// Where a batch writes.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// Receives written so far: the next element, modulo the ring. Or [`FAILED`](Self::FAILED).
    head: u64,
    /// The `head` from which on there is no room.
    limit: u64,
}

impl Cursor {
    /// The head of a batch that met an error, which its producer keeps. Beyond every limit.
    const FAILED: u64 = u64::MAX;

    #[inline(always)]
    fn has_room(self) -> bool {
        self.head < self.limit
    }
}

/// What of a receive queue only its poster has.
pub struct RecvProducer {
    /// Receives published since the queue was reset.
    head: u64,
    /// Has the limit.
    access: QueueAccess,
    ring: RecvRing<Entry64>,
    format: RecvFormat,
    record: DbWord,
    rq: Arc<RqShared>,
    /// Receives that the queue takes.
    max_post: u32,
    /// The state under which the limit was raised last: the indices belong to its reset.
    since: StateWord,
    /// Why the batch's cursor is [`Cursor::FAILED`].
    error: PostError,
    /// Whether receives wait for RTR before the device is told.
    is_raw: bool,
    /// Whether receives were held in this life of the queue and not published by a later post.
    holds: bool,
}

impl RecvProducer {
    /// Of the receive queue of `qp`; `None` if it has none.
    pub(crate) fn new(config: &RecvConfig, qp: &QpShared, record: DbWord) -> Option<Self> {
        let rq = Arc::clone(qp.rq.as_ref()?);
        let units = u32::try_from(rq.ring.stride() / 16).ok()?;
        let max_sge = config.max_recv_sge.min(units);
        let ring = RecvRing::new(&rq, |rq| (&rq.ring, &rq.wr_id), 0, max_sge);
        Some(Self {
            head: 0,
            access: qp.access().recv.clone(),
            max_post: config.max_recv_wr.min(ring.mask() + 1),
            ring,
            format: RecvFormat::new(max_sge, config.max_msg_sz),
            record,
            rq,
            since: StateWord::NONE,
            error: PostError::BadState,
            is_raw: config.qp_type == QpType::RawPacket,
            holds: false,
        })
    }

    /// Receives that the queue takes.
    pub(crate) fn max_post(&self) -> u32 {
        self.max_post
    }

    fn word(&self) -> StateWord {
        // Acquire: pairs with `QpShared::set_state`, so that a new life's empty queue is found.
        StateWord::from_bits(self.access.word().load(Ordering::Acquire))
    }

    /// Relaxed: only this producer raises it, after a look at the state.
    #[inline(always)]
    fn limit(&self) -> u64 {
        self.access.limit().load(Ordering::Relaxed)
    }

    /// There is no room as far as is known: checks the state and the tail.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, cursor: Cursor) -> Result<u64, PostError> {
        if cursor.head == Cursor::FAILED {
            return Err(self.error);
        }
        // Nothing in between panics.
        self.access.enter_fenced();
        let result = self.raise_limit(cursor);
        self.access.leave();
        result
    }

    /// For the caller who is inside the queue.
    fn raise_limit(&mut self, mut cursor: Cursor) -> Result<u64, PostError> {
        let word = self.word();
        check(word)?;
        if word.resets_differ(self.since) {
            if self.is_begun(cursor) {
                return Err(PostError::BadState);
            }
            // A reset empties the queue on both sides; see `QpShared::set_state`.
            (self.head, cursor.head, self.holds) = (0, 0, false);
        }
        self.since = word;
        let outstanding = (self.head as u32).wrapping_sub(self.rq.tail());
        // The device can't have used what it was not told of.
        let Some(room) = self.max_post.checked_sub(outstanding) else { return Err(PostError::Corrupt) };
        cursor.limit = self.head + u64::from(room);
        if !self.access.needs_fence() && !self.is_held(word) && !self.holds {
            self.access.limit().store(cursor.limit, Ordering::Relaxed);
        }
        if cursor.has_room() { Ok(cursor.limit) } else { Err(PostError::QueueFull) }
    }

    #[inline(never)]
    fn complete_checked(&mut self, cursor: Cursor) -> Result<(), PostError> {
        if cursor.head == Cursor::FAILED {
            return Err(self.error);
        }
        let rq = Arc::clone(&self.rq);
        // Before the queue is entered: the control path never waits for this lock while it waits for the queue.
        let mut held = self.is_raw.then(|| rq.held());
        // Nothing in between panics.
        self.access.enter_fenced();
        let word = self.word();
        let result = check(word).and_then(|()| {
            if !self.is_begun(cursor) {
                return Ok(());
            }
            if word.resets_differ(self.since) {
                return Err(PostError::BadState);
            }
            match &mut held {
                Some(held) if self.is_held(word) => {
                    (self.head, self.holds) = (cursor.head, true);
                    **held = Some(cursor.head);
                }
                held => {
                    self.publish(cursor.head);
                    // What was held is published with it.
                    held.iter_mut().for_each(|held| **held = None);
                    self.holds = false;
                }
            }
            Ok(())
        });
        self.access.leave();
        result
    }

    /// Whether receives are not shown to the device yet: those of a raw packet QP, before RTR.
    fn is_held(&self, word: StateWord) -> bool {
        self.is_raw && word.state() == QpState::INIT
    }

    /// Tells the device of everything before `head`. For the caller who is inside the queue.
    #[inline(always)]
    fn publish(&mut self, head: u64) {
        self.head = head;
        self.rq.set_published(head);
        to_device();
        self.record.set(head as u32 & 0xffff);
    }
}

/// Whether a state allows receives.
fn check(word: StateWord) -> Result<(), PostError> {
    if word.is_forked() {
        return Err(PostError::Forked);
    }
    if word.can_receive() { Ok(()) } else { Err(PostError::BadState) }
}

impl Produce for RecvProducer {
    type Cursor = Cursor;

    fn max_sge(&self) -> u32 {
        self.format.max_sge()
    }

    #[inline(always)]
    fn begin(&self) -> Cursor {
        Cursor { head: self.head, limit: self.limit() }
    }

    fn is_begun(&self, cursor: Cursor) -> bool {
        cursor.head != self.head
    }

    #[inline(always)]
    fn reserve(&mut self, cursor: &mut Cursor) -> Result<(), PostError> {
        if cursor.has_room() {
            return Ok(());
        }
        cold_path();
        let is_begun = self.is_begun(*cursor);
        cursor.limit = self.make_room(*cursor)?;
        if !is_begun {
            // It was reset, perhaps.
            cursor.head = self.head;
        }
        Ok(())
    }

    #[inline(always)]
    fn element(cursor: Cursor) -> u32 {
        cursor.head as u32
    }

    #[inline(always)]
    fn put_one<S: WireEntry>(&self, cursor: &mut Cursor, wr_id: u64, sge: S) -> bool {
        let element = cursor.head as u32;
        let written = self.format.put_one(self.ring.units(element), sge);
        if written {
            self.ring.note(element).store(wr_id, Ordering::Relaxed);
            cursor.head += 1;
        }
        written
    }

    #[inline(never)]
    fn put_any<S: WireEntry>(&self, element: u32, wr_id: u64, sges: &[S]) -> Result<(), PostError> {
        self.format.put_any(self.ring.entries(element), sges)?;
        self.ring.note(element).store(wr_id, Ordering::Relaxed);
        Ok(())
    }

    #[inline(always)]
    fn advance(&self, cursor: &mut Cursor) {
        cursor.head += 1;
    }

    #[cold]
    fn latch(&mut self, cursor: &mut Cursor, error: PostError) {
        if cursor.head != Cursor::FAILED {
            (self.error, cursor.head) = (error, Cursor::FAILED);
        }
    }

    #[inline(always)]
    fn complete(&mut self, cursor: Cursor) -> Result<(), PostError> {
        self.access.enter();
        if self.head < cursor.head && cursor.head <= self.limit() {
            self.publish(cursor.head);
            self.access.leave();
            return Ok(());
        }
        self.access.leave();
        cold_path();
        self.complete_checked(cursor)
    }

    #[inline(always)]
    fn post_one<S: WireEntry>(&mut self, wr_id: u64, sge: S) -> bool {
        self.access.enter();
        let mut cursor = self.begin();
        let posted = cursor.has_room() && self.put_one(&mut cursor, wr_id, sge);
        if posted {
            self.publish(cursor.head);
        }
        self.access.leave();
        posted
    }
}

impl fmt::Debug for RecvProducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvProducer")
            .field("head", &self.head)
            .field("access", &self.access)
            .field("ring", &self.ring)
            .field("format", &self.format)
            .field("max_post", &self.max_post)
            .finish_non_exhaustive()
    }
}
