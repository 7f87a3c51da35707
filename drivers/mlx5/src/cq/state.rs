// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a completion queue, which its poller and the control path access by turns (see `shared`): the consumer's
//! position, the ring, and the resources.
//!
//! The changes by the control path are here: adding and removing resources, removing entries, and resizing.

use super::cached::CachedResource;
use super::entry::{CqeRef, Phase, Tail};
use super::parse::{CqeVersion, Resources};
use super::ring::CqRing;
use crate::cq::cqe::Kind;
use crate::memory::BlockPosition;
use crate::shared::QpShared;
use crate::shared::SrqShared;
use crate::shared::mkey::MkeyTable;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use uverbs_core::provider::PollError;
use uverbs_core::sync::barrier;
use uverbs_mlx5_hw::cqe::MLX5_CQE_SIG_ERR;

/// A consumer index has 24 bits.
pub(super) const INDEX_MASK: u32 = 0xff_ffff;

/// The state of a completion queue.
#[derive(Debug)]
pub(super) struct CqState {
    pub(super) consumer: Consumer,
    pub(super) ring: CqRing,
    pub(super) resources: Resources,
    /// The cached resource of the last entry.
    pub(super) last: CachedResource,
    kept: Kept,
    resize: Option<Resize>,
    lost: bool,
    /// The kernel has destroyed the queue.
    ended: bool,
    /// The program polls the ring itself: nothing here changes it or the consumer index.
    pub(super) is_of_program: bool,
}

/// The number of entries before the consumer's position that are not returned to the device while a poll is open: from the
/// poll's current entry on. If the consumer is not at `position`, it has moved by one entry since then, so the number is 1.
#[derive(Clone, Copy, Debug)]
struct Kept {
    position: u32,
    entries: u32,
}

impl Kept {
    /// For a consumer at any position.
    const ONE: Self = Self { position: 0, entries: 1 };
}

/// A resize in progress.
#[derive(Debug)]
struct Resize {
    ring: CqRing,
    /// The position of the first entry of the new ring, if entries were removed there; otherwise the position after the
    /// mark.
    start: Option<u32>,
}

/// The consumer's end of a ring.
#[derive(Debug)]
pub(super) struct Consumer {
    /// The first entry that has not been parsed.
    pub(super) next: BlockPosition,
    /// The position of the ring's first entry in the current lap.
    pub(super) lap: u32,
    /// The owner bit that the entry has once the device has written it.
    pub(super) phase: Phase,
}

impl Consumer {
    fn new(ring: &CqRing, position: u32) -> Self {
        let next = BlockPosition::new(Arc::clone(ring.blocks()), position);
        let lap = position.wrapping_sub(next.index());
        Self { next, lap, phase: ring.phase(position) }
    }

    /// The position of the entry, which counts without bound.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn position(&self) -> u32 {
        self.lap.wrapping_add(self.next.index())
    }

    /// Moves to a position of `ring`, which must be the consumer's ring.
    fn move_to(&mut self, ring: &CqRing, position: u32) {
        self.next.move_to(position);
        self.lap = position.wrapping_sub(self.next.index());
        self.phase = ring.phase(position);
    }

    /// Moves to the next entry.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn step(&mut self) {
        if self.next.step() {
            self.begin_lap();
        }
    }

    /// Must be called when `next` wraps.
    pub(super) fn begin_lap(&mut self) {
        self.lap = self.lap.wrapping_add(self.next.count());
        self.phase = self.phase.after(true);
    }

    /// Whether there is an entry to poll.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn has_entry(&self) -> bool {
        CqeRef(self.next.block()).tail(self.phase).is_valid()
    }
}

impl CqState {
    /// The state of a CQ with a ring that the device has not written yet.
    pub(super) fn new(ring: CqRing, version: CqeVersion, dump_fill_mkey: u32, mkeys: Arc<MkeyTable>) -> Self {
        Self {
            consumer: Consumer::new(&ring, 0),
            ring,
            resources: Resources::new(version, dump_fill_mkey, mkeys),
            last: CachedResource::none(),
            kept: Kept::ONE,
            resize: None,
            lost: false,
            ended: false,
            is_of_program: false,
        }
    }

    /// Whether it is unknown which ring the device writes.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(super) fn lose(&mut self) {
        self.lost = true;
    }

    /// Whether the kernel has destroyed the queue: its number may be that of another one.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    pub(super) fn attach_qp(&mut self, qp: &Arc<QpShared>) {
        self.last = CachedResource::none();
        self.resources.attach_qp(qp);
    }

    pub(super) fn detach_qp(&mut self, qp: &Arc<QpShared>) {
        self.last = CachedResource::none();
        self.resources.detach_qp(qp);
    }

    pub(super) fn attach_srq(&mut self, srq: &Arc<SrqShared>) {
        self.last = CachedResource::none();
        self.resources.attach_srq(srq);
    }

    pub(super) fn detach_srq(&mut self, srq: &Arc<SrqShared>) {
        self.last = CachedResource::none();
        self.resources.detach_srq(srq);
    }

    /// Removes the entries of a QP that the kernel has reset or destroyed, and returns the elements of its SRQ.
    pub(super) fn remove_entries_of_qp(&mut self, qp: &QpShared, consumer_word: &AtomicU32) {
        let (version, number) = (self.resources.version, self.resources.number_of(qp));
        let srq = qp.srq.as_deref();
        self.remove_entries(consumer_word, |entry, tail| {
            let of = match version {
                CqeVersion::V1 => entry.srqn_uidx() & 0xff_ffff,
                CqeVersion::V0 => tail.qpn(),
            };
            // An error of a signature names a key only.
            if of != number || tail.op_own().opcode() == MLX5_CQE_SIG_ERR {
                return false;
            }
            if let Some(srq) = srq
                && is_receive(tail)
                && srq.has(tail.wqe_counter())
            {
                let outstanding = srq.is_outstanding(tail.wqe_counter());
                let wr_id = srq.retire(tail.wqe_counter());
                if outstanding {
                    qp.removed.push(wr_id);
                }
            }
            true
        });
    }

    /// Removes the entries that name an SRQ that the kernel has destroyed.
    pub(super) fn remove_entries_of_srq(&mut self, srq: &SrqShared, consumer_word: &AtomicU32) {
        let number = self.resources.number_of_srq(srq);
        self.remove_entries(consumer_word, |entry, tail| {
            is_receive(tail) && entry.srqn_uidx() & 0xff_ffff == number
        });
    }

    fn kept_before(&self, position: u32) -> u32 {
        if self.kept.position == position { self.kept.entries } else { 1 }
    }

    /// Notes that the consumer has moved over entries that no poll reports, so an open poll has the same current entry as
    /// before.
    pub(super) fn keep(&mut self, from: u32, to: u32) {
        let entries = self.kept_before(from) + to.wrapping_sub(from);
        self.kept = Kept { position: to, entries };
    }

    /// Removes entries from the ring and, during a resize, also from the new ring.
    fn remove_entries(
        &mut self,
        consumer_word: &AtomicU32,
        mut is_gone: impl FnMut(CqeRef<'_>, Tail) -> bool,
    ) {
        if self.is_of_program {
            return;
        }
        let from = self.consumer.position();
        let end = written(&self.ring, from);
        let start = compact(&self.ring, from, end, &mut is_gone);
        let given_back = u32::from_be(consumer_word.load(Ordering::Relaxed));
        let passed = from.wrapping_sub(given_back) & INDEX_MASK;
        let kept = self.kept_before(from);
        if start != from {
            self.consumer.move_to(&self.ring, start);
            self.keep(from, start);
        }
        // An open extended poll or a callback keeps its current entry, which the consumer has passed. The poller returns
        // that entry, and the room of entries that were removed behind it, when it continues or ends.
        let free = if passed == 0 { start } else { from.wrapping_sub(kept.min(passed)) };
        // The copies of the entries come before the device's writes behind them.
        barrier::to_device();
        give_back(consumer_word, free);
        // If the device has written the mark into the old ring, it writes to the new ring.
        if let Some(resize) = &mut self.resize
            && end != start
            && let last = end.wrapping_sub(1)
            && self.ring.valid(last).is_some_and(|op_own| op_own.kind() == Kind::Resize)
        {
            let start = resize.start.unwrap_or(end);
            let end = written(&resize.ring, start);
            resize.start = Some(compact(&resize.ring, start, end, &mut is_gone));
        }
    }

    pub(super) fn begin_resize(&mut self, ring: CqRing) {
        self.resize = Some(Resize { ring, start: None });
    }

    pub(super) fn cancel_resize(&mut self) {
        self.resize = None;
    }

    /// Moves the entries of the old ring, up to the mark that the device wrote at its end, in front of those of the new
    /// ring.
    pub(super) fn end_resize(&mut self, consumer_word: &AtomicU32) -> Result<(), PollError> {
        let Some(Resize { ring, start }) = self.resize.take() else { return Err(PollError::Corrupt) };
        let first = self.consumer.position();
        let end = written(&self.ring, first);
        let marks = (0..end.wrapping_sub(first)).map(|n| first.wrapping_add(n));
        let is_mark = |at: &u32| self.ring.valid(*at).is_some_and(|op_own| op_own.kind() == Kind::Resize);
        let Some(mark) = marks.into_iter().find(is_mark) else {
            self.lost = true;
            return Err(PollError::Corrupt);
        };
        // The mark has a position of its own, so the new ring begins one position after it. If entries of the new ring were
        // removed, the old entries move up to the remaining ones.
        let start = start.unwrap_or(mark.wrapping_add(1));
        let count = mark.wrapping_sub(first);
        for n in 1..=count {
            ring.copy_from(start.wrapping_sub(n), &self.ring, mark.wrapping_sub(n));
        }
        self.consumer = Consumer::new(&ring, start.wrapping_sub(count));
        self.kept = Kept::ONE;
        self.ring = ring;
        barrier::to_device();
        give_back(consumer_word, self.consumer.position());
        Ok(())
    }
}

/// Returns the entries before `position` to the device.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn give_back(consumer_word: &AtomicU32, position: u32) {
    // The reads of the entries come before the device's next writes to them.
    barrier::release_to_device();
    consumer_word.store((position & INDEX_MASK).to_be(), Ordering::Relaxed);
}

fn is_receive(tail: Tail) -> bool {
    matches!(tail.op_own().kind(), Kind::Responder | Kind::ResponderError)
}

/// The position after the entries that the device has written from `from` on. Compressed ones are expanded; a title without a
/// block ends them.
fn written(ring: &CqRing, from: u32) -> u32 {
    let is_entry = |position| {
        let Some(op_own) = ring.valid(position) else { return false };
        barrier::from_device();
        !op_own.has_format_of_title() || ring.expand(position).is_ok()
    };
    let count = (0..ring.entries()).take_while(|n| is_entry(from.wrapping_add(*n))).count();
    barrier::from_device();
    from.wrapping_add(count as u32)
}

/// Removes the entries between `from` and `end` for which `is_gone` returns true. The entries before a removed one move up,
/// in order, so the room is at the consumer's side; each gets the owner bit of its new position. A mark of a resize stays
/// in place. Returns the position of the first remaining entry.
fn compact(ring: &CqRing, from: u32, end: u32, mut is_gone: impl FnMut(CqeRef<'_>, Tail) -> bool) -> u32 {
    let mut freed = 0;
    for n in (0..end.wrapping_sub(from)).rev() {
        let position = from.wrapping_add(n);
        let tail = ring.tail(position);
        if tail.op_own().kind() != Kind::Resize && is_gone(ring.entry(position), tail) {
            freed += 1;
        } else if freed != 0 {
            ring.copy_from(position.wrapping_add(freed), ring, position);
        }
    }
    from.wrapping_add(freed)
}
