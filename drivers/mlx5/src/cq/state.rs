// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a completion queue, which its poller and the control path use in turns (see `shared`): the consumer's
//! position, the ring, and what completes here.
//!
//! The control path's changes are here: queues that come and go, their entries, and resizing.

use super::at_hand::AtHand;
use super::entry::{CqeRef, Phase, Tail};
use super::parse::{CqeVersion, Resources};
use super::ring::CqRing;
use crate::cq::cqe::Kind;
use crate::memory::Watch;
use crate::qp::QpShared;
use crate::rq::SrqShared;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use uverbs_core::provider::PollError;
use uverbs_core::sync::barrier;

/// A consumer index has 24 bits.
pub(super) const INDEX_MASK: u32 = 0xff_ffff;

/// The state of a completion queue.
#[derive(Debug)]
pub(super) struct CqState {
    pub(super) consumer: Consumer,
    pub(super) ring: CqRing,
    pub(super) resources: Resources,
    /// The resource of the last entry.
    pub(super) last: AtHand,
    kept: Kept,
    resize: Option<Resize>,
    lost: bool,
}

/// How many entries before a position an open poll keeps from the device: from the one on that it stands at. Where the consumer
/// stands elsewhere, it has moved behind one entry since.
#[derive(Clone, Copy, Debug)]
struct Kept {
    position: u32,
    entries: u32,
}

impl Kept {
    /// Of a consumer that stands anywhere.
    const ONE: Self = Self { position: 0, entries: 1 };
}

/// A resize that the kernel was asked for.
#[derive(Debug)]
struct Resize {
    ring: CqRing,
    /// Where the entries of the new ring begin, if some were removed there; else right behind the place that the mark of the
    /// resize takes.
    start: Option<u32>,
}

/// The consumer's end of a ring.
#[derive(Debug)]
pub(super) struct Consumer {
    /// The first entry that is not parsed.
    pub(super) watch: Watch,
    /// The position of the ring's first entry in this lap.
    pub(super) lap: u32,
    /// The owner bit of the entry once the device has written it.
    pub(super) phase: Phase,
}

impl Consumer {
    fn new(ring: &CqRing, position: u32) -> Self {
        let watch = Watch::new(Arc::clone(ring.blocks()), position);
        let lap = position.wrapping_sub(watch.index());
        Self { watch, lap, phase: ring.phase(position) }
    }

    /// Counts entries without end.
    #[inline(always)]
    pub(super) fn position(&self) -> u32 {
        self.lap.wrapping_add(self.watch.index())
    }

    /// Moves to a position of `ring`, which is the one that this is the end of.
    fn move_to(&mut self, ring: &CqRing, position: u32) {
        self.watch.turn_to(position);
        self.lap = position.wrapping_sub(self.watch.index());
        self.phase = ring.phase(position);
    }

    /// Moves behind one entry.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        if self.watch.step() {
            self.begin_lap();
        }
    }

    /// The watch has gone over the ring's end.
    pub(super) fn begin_lap(&mut self) {
        self.lap = self.lap.wrapping_add(self.watch.count());
        self.phase = self.phase.after(true);
    }

    /// Whether there is an entry to poll.
    #[inline(always)]
    pub(super) fn has_entry(&self) -> bool {
        CqeRef(self.watch.block()).tail(self.phase).is_valid()
    }
}

impl CqState {
    /// Of a ring that the device has not written yet.
    pub(super) fn new(ring: CqRing, version: CqeVersion, dump_fill_mkey: u32) -> Self {
        Self {
            consumer: Consumer::new(&ring, 0),
            ring,
            resources: Resources::new(version, dump_fill_mkey),
            last: AtHand::none(),
            kept: Kept::ONE,
            resize: None,
            lost: false,
        }
    }

    /// Which ring the device writes is not known.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(super) fn lose(&mut self) {
        self.lost = true;
    }

    pub(super) fn attach_qp(&mut self, qp: &Arc<QpShared>) {
        self.last = AtHand::none();
        self.resources.attach_qp(qp);
    }

    pub(super) fn detach_qp(&mut self, qp: &Arc<QpShared>) {
        self.last = AtHand::none();
        self.resources.detach_qp(qp);
    }

    pub(super) fn attach_srq(&mut self, srq: &Arc<SrqShared>) {
        self.last = AtHand::none();
        self.resources.attach_srq(srq);
    }

    pub(super) fn detach_srq(&mut self, srq: &Arc<SrqShared>) {
        self.last = AtHand::none();
        self.resources.detach_srq(srq);
    }

    /// Removes the entries of a QP, which the kernel has reset or destroyed, and gives the elements of its SRQ back.
    pub(super) fn remove_entries_of_qp(&mut self, qp: &QpShared, consumer_word: &AtomicU32) {
        let (version, number) = (self.resources.version, self.resources.number_of(qp));
        let srq = qp.srq.as_deref();
        self.remove_entries(consumer_word, |entry, tail| {
            let of = match version {
                CqeVersion::V1 => entry.srqn_uidx() & 0xff_ffff,
                CqeVersion::V0 => tail.qpn(),
            };
            if of != number {
                return false;
            }
            if let Some(srq) = srq
                && is_receive(tail)
                && srq.has(tail.wqe_counter())
            {
                srq.retire(tail.wqe_counter());
            }
            true
        });
    }

    /// Removes the entries that name an SRQ, which the kernel has destroyed.
    pub(super) fn remove_entries_of_srq(&mut self, srq: &SrqShared, consumer_word: &AtomicU32) {
        let number = self.resources.number_of_srq(srq);
        self.remove_entries(consumer_word, |entry, tail| {
            is_receive(tail) && entry.srqn_uidx() & 0xff_ffff == number
        });
    }

    fn kept_before(&self, position: u32) -> u32 {
        if self.kept.position == position { self.kept.entries } else { 1 }
    }

    /// The consumer has moved over entries that no poll hands out, so an open poll stands at the same one as before.
    pub(super) fn keep(&mut self, from: u32, to: u32) {
        let entries = self.kept_before(from) + to.wrapping_sub(from);
        self.kept = Kept { position: to, entries };
    }

    /// Removes entries from the ring, and during a resize from the new ring, too.
    fn remove_entries(
        &mut self,
        consumer_word: &AtomicU32,
        mut is_gone: impl FnMut(CqeRef<'_>, Tail) -> bool,
    ) {
        let from = self.consumer.position();
        let end = written(&self.ring, from, u32::MAX);
        let start = compact(&self.ring, from, end, &mut is_gone);
        let told = u32::from_be(consumer_word.load(Ordering::Relaxed));
        let passed = from.wrapping_sub(told) & INDEX_MASK;
        let kept = self.kept_before(from);
        if start != from {
            self.consumer.move_to(&self.ring, start);
            self.keep(from, start);
        }
        // An open extended poll or a callback stands at an entry that was passed, which is kept. The poller gives it back, and
        // what was removed behind it, at its end.
        let free = if passed == 0 { start } else { from.wrapping_sub(kept.min(passed)) };
        // The entries were moved before the device may write behind them.
        barrier::to_device();
        give_back(consumer_word, free);
        // The device has changed over to the new ring if it has written the mark into the old one.
        if let Some(resize) = &mut self.resize
            && end != start
            && let last = end.wrapping_sub(1)
            && self.ring.valid(last).is_some_and(|op_own| op_own.kind() == Kind::Resize)
        {
            let start = resize.start.unwrap_or(end);
            let end = written(&resize.ring, start, u32::MAX);
            resize.start = Some(compact(&resize.ring, start, end, &mut is_gone));
        }
    }

    pub(super) fn begin_resize(&mut self, ring: CqRing) {
        self.resize = Some(Resize { ring, start: None });
    }

    pub(super) fn cancel_resize(&mut self) {
        self.resize = None;
    }

    /// Takes over the entries of the old ring, up to the mark by which the device ends it, before those of the new ring.
    pub(super) fn end_resize(&mut self, consumer_word: &AtomicU32) -> Result<(), PollError> {
        let Some(Resize { ring, start }) = self.resize.take() else { return Err(PollError::Corrupt) };
        let first = self.consumer.position();
        let end = written(&self.ring, first, u32::MAX);
        let marks = (0..end.wrapping_sub(first)).map(|n| first.wrapping_add(n));
        let is_mark = |at: &u32| self.ring.valid(*at).is_some_and(|op_own| op_own.kind() == Kind::Resize);
        let Some(mark) = marks.into_iter().find(is_mark) else {
            self.lost = true;
            return Err(PollError::Corrupt);
        };
        // The mark takes a place in the count, so the device goes on one further in the new ring. What was removed there
        // leaves room behind the old entries, which move up to the rest.
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

/// Gives the entries before `position` back to the device.
#[inline(always)]
pub(super) fn give_back(consumer_word: &AtomicU32, position: u32) {
    // The entries were read before the device may write them again.
    barrier::release_to_device();
    consumer_word.store((position & INDEX_MASK).to_be(), Ordering::Relaxed);
}

fn is_receive(tail: Tail) -> bool {
    matches!(tail.op_own().kind(), Kind::Responder | Kind::ResponderError)
}

/// The position behind the entries that the device has written from `from` on, `most` at most.
fn written(ring: &CqRing, from: u32, most: u32) -> u32 {
    let count =
        (0..ring.entries().min(most)).take_while(|n| ring.valid(from.wrapping_add(*n)).is_some()).count();
    barrier::from_device();
    from.wrapping_add(count as u32)
}

/// Takes the entries that `is_gone` out of those from `from` to `end`. What stands before them moves up, in order, so that
/// the room is at the consumer's end; each keeps the owner bit of its place. A mark of a resize stays where it is. Gives
/// the position of the first that is left.
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
