// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive queues of QPs.
//!
//! A receive is a row of entries; where it has fewer than the queue's most, an entry without memory ends it. The doorbell
//! record is all that the device needs: there is no register.
//!
//! | module | what |
//! |---|---|
//! | `srq` | shared receive queues |
//! | `shared`, `srq_shared` | what pollers of the completions use |
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` carry a promise about the memory that WRs name, and
// walks C's lists.

mod shared;
pub mod srq;
mod srq_shared;

pub use shared::RqShared;
pub use srq_shared::SrqShared;

use crate::memory::StrideView;
use crate::memory::dbrec::DbWord;
use crate::qp::QpShared;
use crate::wqe::{Ordinary, Sge, WireEntry, put_recv_sge, put_recv_sges};
use core::fmt;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use uverbs_core::attr::{QpState, QpType};
use uverbs_core::provider::raw::slice_from_c;
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue as RecvQueueTrait};
use uverbs_core::sync::barrier::to_device;
use uverbs_core::wr::RecvWr;

/// Where a batch writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// Receives written so far: the next element, modulo the ring.
    pub(crate) head: u32,
    /// The `head` from which there is no room.
    pub(crate) limit: u32,
    /// The first error; then `limit == head`.
    pub(crate) error: Option<PostError>,
}

impl Cursor {
    /// Notes the first error, after which there is no room for anything.
    #[inline(always)]
    pub(crate) fn latch(&mut self, error: PostError) {
        self.error = self.error.or(Some(error));
        self.limit = self.head;
    }
}

/// What a receive queue is made with.
#[derive(Clone, Copy, Debug)]
pub struct RecvConfig {
    /// Transport. Raw packet QPs show their receives to the device from RTR on.
    pub qp_type: QpType,
    /// Receives that the queue takes.
    pub max_recv_wr: u32,
    /// Entries of a receive.
    pub max_recv_sge: u32,
    /// The device's longest message.
    pub max_msg_sz: u64,
}

/// A receive queue.
pub struct RecvQueue {
    qp: Arc<QpShared>,
    rq: Arc<RqShared>,
    side: Side,
}

/// What of a receive queue only its poster has.
#[derive(Debug)]
struct Side {
    /// Receives published since the queue was reset.
    head: u32,
    limit: u32,
    max_post: u32,
    max_sge: u32,
    /// Entries that a receive may have alone.
    entries: Ordinary,
    max_msg: u64,
    /// The state word under which posting was allowed last.
    seen: StateWord,
    is_raw: bool,
    record: DbWord,
}

impl RecvQueue {
    /// The receive queue of the QP behind `qp`, which has one: else `None`.
    #[must_use]
    pub fn new(config: &RecvConfig, qp: Arc<QpShared>, record: DbWord) -> Option<Self> {
        let rq = Arc::clone(qp.rq.as_ref()?);
        rq.published_by(record.clone());
        let units = u32::try_from(rq.ring.stride() / 16).ok()?;
        let side = Side {
            head: 0,
            limit: 0,
            max_post: config.max_recv_wr.min(rq.ring.mask() + 1),
            max_sge: config.max_recv_sge.min(units),
            entries: Ordinary::allowed_if(config.max_recv_sge != 0 && units != 0),
            max_msg: config.max_msg_sz,
            seen: StateWord::NONE,
            is_raw: config.qp_type == QpType::RawPacket,
            record,
        };
        Some(Self { qp, rq, side })
    }

    /// How many receives it takes.
    #[must_use]
    pub fn max_recv_wr(&self) -> u32 {
        self.side.max_post
    }

    /// What it shares with the pollers of its completions.
    #[must_use]
    pub fn shared(&self) -> &Arc<QpShared> {
        &self.qp
    }
}

impl Side {
    /// Begins a batch.
    #[inline(always)]
    fn begin(&mut self, qp: &QpShared) -> Cursor {
        let word = qp.word();
        if word != self.seen
            && let Err(error) = self.begin_cold(word)
        {
            return Cursor { head: self.head, limit: self.head, error: Some(error) };
        }
        Cursor { head: self.head, limit: self.limit, error: None }
    }

    /// The state changed since the last batch, or this is the first.
    #[cold]
    fn begin_cold(&mut self, word: StateWord) -> Result<(), PostError> {
        if word.is_forked() {
            return Err(PostError::Forked);
        }
        if !word.can_receive() {
            return Err(PostError::BadState);
        }
        if self.seen == StateWord::NONE || word.resets_differ(self.seen) {
            // A reset empties the queue on both sides; see `QpShared::set_state`.
            (self.head, self.limit) = (0, self.max_post);
        }
        self.seen = word;
        Ok(())
    }

    /// The queue looks full: looks at the tail. Gives the new limit.
    #[cold]
    fn refresh(&mut self, rq: &RqShared, head: u32, error: Option<PostError>) -> Result<u32, PostError> {
        if let Some(error) = error {
            return Err(error);
        }
        let tail = rq.tail();
        // The device can't have used what it was not shown.
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

    /// Writes one receive at the cursor and moves it on.
    #[inline(always)]
    fn push<S: WireEntry>(
        &mut self,
        rq: &RqShared,
        view: StrideView<'_>,
        cursor: &mut Cursor,
        wr_id: u64,
        sges: &[S],
    ) -> Result<(), PostError> {
        if cursor.head == cursor.limit {
            cursor.limit = self.refresh(rq, cursor.head, cursor.error)?;
        }
        if !put_recv_sge(view.units(cursor.head), self.entries, sges) {
            // An address that is lent out would keep the entry out of the registers; so a copy of it is.
            match sges {
                [one] => self.put(rq, cursor.head, &[*one])?,
                many => self.put(rq, cursor.head, many)?,
            }
        }
        view.entry(cursor.head).store(wr_id, Ordering::Relaxed);
        cursor.head = cursor.head.wrapping_add(1);
        Ok(())
    }

    #[cold]
    fn put<S: WireEntry>(&self, rq: &RqShared, index: u32, sges: &[S]) -> Result<(), PostError> {
        put_recv_sges(rq.ring.element(index), self.max_sge, self.max_msg, sges)
    }

    /// Shows the device everything before the cursor.
    #[inline(always)]
    fn publish(&mut self, qp: &QpShared, rq: &RqShared, cursor: &Cursor) {
        if cursor.head == self.head {
            return;
        }
        self.head = cursor.head;
        to_device();
        if self.is_raw {
            return self.publish_raw(qp, rq);
        }
        self.record.set(self.head & 0xffff);
    }

    /// A raw packet QP's receives must not be shown before RTR: until then `modify_qp` does it.
    #[cold]
    fn publish_raw(&self, qp: &QpShared, rq: &RqShared) {
        rq.hold(self.head & 0xffff);
        if !matches!(qp.state(), QpState::RESET | QpState::INIT) {
            self.record.set(self.head & 0xffff);
        }
    }

    #[inline(always)]
    fn finish(&mut self, qp: &QpShared, rq: &RqShared, cursor: &Cursor) -> Result<(), PostError> {
        if let Some(error) = cursor.error {
            return Err(error);
        }
        // Since the batch began `modify_qp` may have run.
        let word = qp.word();
        if word != self.seen && (!word.can_receive() || word.resets_differ(self.seen)) {
            return Err(PostError::BadState);
        }
        self.publish(qp, rq, cursor);
        Ok(())
    }
}

impl RecvQueueTrait for RecvQueue {
    type Sge = Sge;
    type Batch<'q> = Batch<'q>;

    #[inline(always)]
    fn batch(&mut self) -> Batch<'_> {
        let cursor = self.side.begin(&self.qp);
        Batch {
            qp: &self.qp,
            rq: &self.rq,
            view: self.rq.view(self.side.max_sge),
            side: &mut self.side,
            cursor,
        }
    }

    #[inline(always)]
    unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let Self { qp, rq, side } = self;
        let mut cursor = side.begin(qp);
        side.push(rq, rq.view(side.max_sge), &mut cursor, wr_id, sges)?;
        side.publish(qp, rq, &cursor);
        Ok(())
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        let Self { qp, rq, side } = self;
        let mut cursor = side.begin(qp);
        let (view, max_sge) = (rq.view(side.max_sge), side.max_sge);
        // SAFETY: the caller's promise about the list.
        let result = unsafe {
            walk(list, cursor.error, max_sge, |wr_id, sges| side.push(rq, view, &mut cursor, wr_id, sges))
        };
        side.publish(qp, rq, &cursor);
        result
    }
}

/// Walks a list of receives to the first that can't be posted.
///
/// # Safety
/// As [`uverbs_core::provider::RecvQueue::post_recv`].
#[inline(always)]
pub(crate) unsafe fn walk(
    list: *const RecvWr,
    error: Option<PostError>,
    max_sge: u32,
    mut push: impl FnMut(u64, &[uverbs_core::wr::Sge]) -> Result<(), PostError>,
) -> Result<(), BadWr<RecvWr>> {
    if list.is_null() {
        return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
    }
    if let Some(error) = error {
        return Err(BadWr { error, wr: list });
    }
    let mut next = list;
    // SAFETY: each node is NULL or valid, by the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() } {
        let sges = match usize::try_from(wr.num_sge) {
            Ok(num) if num <= max_sge as usize => {
                // SAFETY: NULL or valid, by the caller's promise.
                unsafe { slice_from_c(wr.sg_list, num) }.ok_or(PostError::InvalidArgument)
            }
            _ => Err(PostError::TooManySge),
        };
        if let Err(error) = sges.and_then(|sges| push(wr.wr_id, sges)) {
            return Err(BadWr { error, wr: next });
        }
        next = wr.next;
    }
    Ok(())
}

impl fmt::Debug for RecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvQueue")
            .field("qp_num", &format_args!("{:#x}", self.qp.qp_num))
            .field("state", &self.qp.state())
            .field("ring", &self.rq.ring)
            .field("side", &self.side)
            .finish()
    }
}

/// Receives on their way.
#[derive(Debug)]
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q> {
    qp: &'q QpShared,
    rq: &'q RqShared,
    view: StrideView<'q>,
    side: &'q mut Side,
    cursor: Cursor,
}

impl RecvBatch for Batch<'_> {
    type Sge = Sge;

    #[inline(always)]
    unsafe fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        if let Err(error) = self.side.push(self.rq, self.view, &mut self.cursor, wr_id, sges) {
            self.cursor.latch(error);
        }
    }

    #[inline(always)]
    fn complete(self) -> Result<(), PostError> {
        self.side.finish(self.qp, self.rq, &self.cursor)
    }
}
