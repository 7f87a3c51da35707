// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a QP's receive queue: room, state and publication, for all interfaces.
//!
//! A batch writes at its own [`RqCursor`] beyond the published head, so dropping or forgetting a batch changes nothing.
//!
//! The limit is in the queue's [`QueueAccess`]; `modify_qp` sets it to 0, and fork(2) wipes it in the child. A receive is
//! accepted if the head is below the limit; the compare is repeated when the batch is published. Publication is between
//! `enter` and `leave`: after the control path has set the limit to 0 and waited until the queue is not busy, no doorbell
//! record is stored. Counts never wrap, so a batch never has a head below a limit of 0. After a RESET only this producer
//! raises the limit, so a batch from before the RESET finds no room either.
//!
//! If the data path must use fences ([`QueueAccess::needs_fence`]), and while a raw packet QP has receives that are not
//! published yet, the limit stays 0. Then every post takes the slow path, which enters with a fence and checks the state.

use crate::memory::dbrec::DbWord;
use crate::memory::{Entry64, RecvRing};
use crate::rq::RecvConfig;
use crate::rq::face::Produce;
use crate::shared::QpShared;
use crate::shared::RqShared;
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

/// The position of a batch.
#[derive(Clone, Copy, Debug)]
pub struct RqCursor {
    /// Receives written so far; modulo the ring's size, the next element. [`FAILED`](Self::FAILED) after an error.
    head: u64,
    /// The `head` at which there is no more room.
    limit: u64,
}

impl RqCursor {
    /// The `head` of a batch with an error, which the producer stores. Above every limit.
    const FAILED: u64 = u64::MAX;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn has_room(self) -> bool {
        self.head < self.limit
    }
}

/// The part of a receive queue that only its poster accesses.
pub struct RecvProducer {
    /// Receives published since the queue was reset.
    head: u64,
    /// Contains the limit.
    access: QueueAccess,
    ring: RecvRing<Entry64>,
    format: RecvFormat,
    record: DbWord,
    rq: Arc<RqShared>,
    /// The maximum number of outstanding receives.
    max_post: u32,
    /// The state word under which the limit was raised last. Indices are valid only until the next RESET.
    since: StateWord,
    /// The error of a batch whose head is [`RqCursor::FAILED`].
    error: PostError,
    /// Whether receives are not published before RTR.
    is_raw: bool,
    /// Whether receives were held back since the last RESET and no later post has published them.
    holds: bool,
}

impl RecvProducer {
    /// The producer of the receive queue of `qp`; `None` if it has none.
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

    /// The maximum number of outstanding receives.
    pub(crate) fn max_post(&self) -> u32 {
        self.max_post
    }

    fn word(&self) -> StateWord {
        // Acquire: pairs with `QpShared::set_state`, so the queue is found empty after a RESET.
        StateWord::from_bits(self.access.word().load(Ordering::Acquire))
    }

    /// Relaxed: only this producer raises the limit, after it has checked the state.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn limit(&self) -> u64 {
        self.access.limit().load(Ordering::Relaxed)
    }

    /// Called if there is no room below the limit: checks the state and the tail.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, cursor: RqCursor) -> Result<u64, PostError> {
        if cursor.head == RqCursor::FAILED {
            return Err(self.error);
        }
        // No panic is possible between `enter_fenced` and `leave`.
        self.access.enter_fenced();
        let result = self.raise_post_limit(cursor);
        self.access.leave();
        result
    }

    /// The caller must be inside the queue.
    fn raise_post_limit(&mut self, mut cursor: RqCursor) -> Result<u64, PostError> {
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
        // The tail can't have passed what was published.
        let Some(room) = self.max_post.checked_sub(outstanding) else { return Err(PostError::Corrupt) };
        cursor.limit = self.head + u64::from(room);
        if !self.access.needs_fence() && !self.is_held(word) && !self.holds {
            self.access.limit().store(cursor.limit, Ordering::Relaxed);
        }
        if cursor.has_room() { Ok(cursor.limit) } else { Err(PostError::QueueFull) }
    }

    #[inline(never)]
    fn complete_checked(&mut self, cursor: RqCursor) -> Result<(), PostError> {
        if cursor.head == RqCursor::FAILED {
            return Err(self.error);
        }
        let rq = Arc::clone(&self.rq);
        // Locked before the queue is entered: the control path never waits for this lock while it waits for the queue.
        let mut held = if self.is_raw { Some(rq.held()?) } else { None };
        // No panic is possible between `enter_fenced` and `leave`.
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
                    // This also publishes the receives that were held back.
                    held.iter_mut().for_each(|held| **held = None);
                    self.holds = false;
                }
            }
            Ok(())
        });
        self.access.leave();
        result
    }

    /// Whether receives are held back: those of a raw packet QP in INIT.
    fn is_held(&self, word: StateWord) -> bool {
        self.is_raw && word.state() == QpState::INIT
    }

    /// Publishes all receives before `head`. The caller must be inside the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn publish(&mut self, head: u64) {
        self.head = head;
        self.rq.set_published(head);
        to_device();
        self.record.set(head as u32 & 0xffff);
    }
}

/// Checks whether the state allows receives.
fn check(word: StateWord) -> Result<(), PostError> {
    if word.can_receive() { Ok(()) } else { Err(word.refusal()) }
}

impl Produce for RecvProducer {
    type Cursor = RqCursor;

    fn max_sge(&self) -> u32 {
        self.format.max_sge()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin(&self) -> RqCursor {
        RqCursor { head: self.head, limit: self.limit() }
    }

    fn is_begun(&self, cursor: RqCursor) -> bool {
        cursor.head != self.head
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn reserve(&mut self, cursor: &mut RqCursor) -> Result<(), PostError> {
        if cursor.has_room() {
            return Ok(());
        }
        cold_path();
        let is_begun = self.is_begun(*cursor);
        cursor.limit = self.make_room(*cursor)?;
        if !is_begun {
            // The queue may have been reset, which changes its head.
            cursor.head = self.head;
        }
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn element(cursor: RqCursor) -> u32 {
        cursor.head as u32
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_one<S: WireEntry>(&self, cursor: &mut RqCursor, wr_id: u64, sge: S) -> bool {
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

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn advance(&self, cursor: &mut RqCursor) {
        cursor.head += 1;
    }

    #[cold]
    fn latch(&mut self, cursor: &mut RqCursor, error: PostError) {
        if cursor.head != RqCursor::FAILED {
            (self.error, cursor.head) = (error, RqCursor::FAILED);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(&mut self, cursor: RqCursor) -> Result<(), PostError> {
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

    #[cfg_attr(not(debug_assertions), inline(always))]
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
