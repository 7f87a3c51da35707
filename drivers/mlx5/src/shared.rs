// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a queue's poster, the pollers of its completions and the control path share, and nothing else.
//!
//! The poster owns its cursor. A poller tells it how far the device is: by a tail (send and receive queues, stored with
//! Release, loaded with Acquire when the queue looks full), or by a set of free elements (shared receive queues, which
//! complete in any order and to several CQs). In return the poster leaves what a completion needs: the `wr_id`, what a WQE
//! was, and how many WRs are done when this one is. Both sides index by what the device says, so every index is masked.

use crate::buf::{Place, Record, Records, SqRing, StrideRing, StrideView, Table};
use crate::dbrec::DbWord;
use crate::lookup::UserIndex;
use std::sync::{Arc, OnceLock};
use uverbs_core::attr::QpState;
use uverbs_core::kernel::Gate;
use uverbs_core::provider::state::StateWord;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// A QP, as all sides see it.
#[derive(Debug)]
pub struct QpShared {
    /// Its number, 24 bits.
    pub qp_num: u32,
    /// What its completions carry: the user index, or with `cqe_version` 0 its number.
    pub uidx: u32,
    /// Keeps the user index taken, until the last poller that knows this QP forgets it.
    _index: Option<UserIndex>,
    /// Its send queue.
    pub sq: Option<Arc<SqShared>>,
    /// Its receive queue.
    pub rq: Option<Arc<RqShared>>,
    /// The shared receive queue that it takes receives from.
    pub srq: Option<Arc<SrqShared>>,
    /// Its [`StateWord`], and the limit of its sends: how many WRs may have been posted, since the last RESET. A child of
    /// fork finds that the QP is its parent's, and no room.
    gate: Gate,
    csum: AtomicBool,
    dead: AtomicBool,
}

impl QpShared {
    /// Of a new QP, in RESET, whose state stands in `gate`.
    #[must_use]
    pub fn new(
        gate: Gate,
        qp_num: u32,
        uidx: u32,
        sq: Option<Arc<SqShared>>,
        rq: Option<Arc<RqShared>>,
        srq: Option<Arc<SrqShared>>,
    ) -> Self {
        gate.word().store(StateWord::new(QpState::RESET).bits(), Ordering::Release);
        Self {
            qp_num,
            uidx,
            _index: None,
            sq,
            rq,
            srq,
            gate,
            csum: AtomicBool::new(false),
            dead: AtomicBool::new(false),
        }
    }

    /// The same with a user index, which is its own from now on.
    #[must_use]
    pub fn with_index(self, index: UserIndex) -> Self {
        Self { uidx: index.get(), _index: Some(index), ..self }
    }

    /// The state, as `modify_qp` left it. The device may have gone to ERR by itself.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.word().state()
    }

    #[inline(always)]
    pub(crate) fn word(&self) -> StateWord {
        StateWord::from_bits(self.gate.word().load(Ordering::Acquire))
    }

    /// Notes a new state. RESET empties both queues: call it after the QP's completions were taken out of its CQs.
    pub fn set_state(&self, state: QpState) {
        if state == QpState::RESET {
            if let Some(sq) = &self.sq {
                sq.reset();
            }
            if let Some(rq) = &self.rq {
                rq.reset();
            }
        }
        // Control calls on one QP may race; each leaves a word that some call wrote. Release: a poster that sees it, sees
        // the empty queues, too.
        let _ = self.gate.word().fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let word = StateWord::from_bits(word);
            (!word.is_forked()).then(|| word.next(state).bits())
        });
        // Sends need another look at the state. With the fence: a poster that raised the limit either did so before this
        // store, or sees the new word (`raise_limit`).
        fence(Ordering::SeqCst);
        self.gate.limit().store(0, Ordering::Release);
    }

    /// Where a poster finds the limit of the sends.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Raises the limit of the sends, for their poster, who found the QP in a state that allows them. `false` if the state
    /// is not `seen` any more; then there is no limit.
    pub(crate) fn raise_limit(&self, seen: StateWord, limit: u64) -> bool {
        self.gate.limit().store(limit, Ordering::Release);
        fence(Ordering::SeqCst);
        let same = self.word() == seen;
        if !same {
            self.gate.limit().store(0, Ordering::Release);
        }
        same
    }

    /// Whether the QP's port computes checksums, which is learnt when `modify_qp` names the port.
    #[must_use]
    pub fn csum(&self) -> bool {
        self.csum.load(Ordering::Relaxed)
    }

    /// Notes it; before the state that comes with the port.
    pub fn set_csum(&self, csum: bool) {
        self.csum.store(csum, Ordering::Relaxed);
    }

    /// Whether the QP is destroyed: its completions are skipped.
    #[inline]
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Marks it as destroyed.
    pub fn set_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }
}

/// What a WQE of opcode `UMR` was: the WR's opcode, because the completion does not tell.
pub mod umr_op {
    /// `IBV_WR_BIND_MW`
    pub const BIND_MW: u8 = 1;
    /// `IBV_WR_LOCAL_INV`
    pub const LOCAL_INV: u8 = 2;
}

/// A completed send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetiredSend {
    /// The WR's.
    pub wr_id: u64,
    /// [`umr_op`], if the completion says that it was a UMR; else of no meaning.
    pub op: u8,
}

/// What the device was told of a queue: the poster's doorbell record. Pollers read it before they write to memory that a
/// WR names, because a device may tell of a WR that was never shown to it, or that is done.
#[derive(Debug, Default)]
struct Published(OnceLock<DbWord>);

impl Published {
    /// The count that the device was told last; `None` of a queue that nobody posts to.
    fn count(&self) -> Option<u32> {
        self.0.get().map(DbWord::get)
    }
}

/// A send queue.
#[derive(Debug)]
pub struct SqShared {
    /// The WQEs, and the entries of their completions.
    pub ring: SqRing,
    /// How many WRs are done.
    tail: AtomicU32,
    published: Published,
}

impl SqShared {
    /// An empty queue.
    #[must_use]
    pub fn new(ring: SqRing) -> Self {
        Self { ring, tail: AtomicU32::new(0), published: Published::default() }
    }

    /// The WR whose WQE began at block `wqe_counter`, and all before it, are done; for the poller of its CQ.
    #[inline(always)]
    pub fn retire(&self, wqe_counter: u16) -> RetiredSend {
        self.retire_by().retire(Place::of(wqe_counter.into()))
    }

    /// What retiring needs, for registers.
    #[inline(always)]
    pub(crate) fn retire_by(&self) -> RetireBy<'_> {
        RetireBy { records: self.ring.view().records(), tail: &self.tail }
    }

    /// How many WRs are done, modulo 2^32. A device may make a poller store anything.
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Names the word by which the device is told what was posted.
    pub fn published_by(&self, record: DbWord) {
        // Whoever was first posts; there is one poster.
        let _ = self.published.0.set(record);
    }

    /// Whether the WR whose WQE began at block `wqe_counter` was shown to the device and is not done.
    pub(crate) fn is_outstanding(&self, wqe_counter: u16) -> bool {
        let Some(posted) = self.published.count() else { return false };
        let blocks = (posted as u16).wrapping_sub(wqe_counter);
        if !(1..=self.ring.mask() + 1).contains(&blocks.into()) {
            return false;
        }
        let head = self.ring.view().head(wqe_counter.into());
        (1..=self.ring.mask() + 1).contains(&head.wrapping_sub(self.tail.load(Ordering::Relaxed)))
    }

    fn reset(&self) {
        self.tail.store(0, Ordering::Release);
    }
}

/// What retiring sends needs of their queue.
#[derive(Clone, Copy)]
pub(crate) struct RetireBy<'q> {
    records: Records<'q>,
    tail: &'q AtomicU32,
}

impl RetireBy<'_> {
    /// See [`SqShared::retire`].
    #[inline(always)]
    pub(crate) fn retire(self, place: Place) -> RetiredSend {
        let record = self.records.at(place);
        let wr_id = record.wr_id.load(Ordering::Relaxed);
        let done = record.done();
        // Release: pairs with `SqShared::tail`, so the poster reuses blocks and records after these loads.
        self.tail.store(done.head(), Ordering::Release);
        RetiredSend { wr_id, op: done.op() }
    }
}

/// A send queue that is nobody's: retiring by it does nothing.
#[derive(Debug, Default)]
pub(crate) struct NoSends {
    record: Record,
    tail: AtomicU32,
}

impl NoSends {
    pub(crate) fn retire_by(&self) -> RetireBy<'_> {
        RetireBy { records: Records::of_one(&self.record), tail: &self.tail }
    }
}

/// A receive queue.
#[derive(Debug)]
pub struct RqShared {
    /// The WQEs.
    pub ring: StrideRing,
    pub(crate) wr_id: Table<AtomicU64>,
    /// Receives that completed before an earlier one.
    early: Table<AtomicU8>,
    early_count: AtomicU32,
    /// How many are done without a gap.
    tail: AtomicU32,
    /// How many were posted, where the doorbell record waits for RTR (raw packet QPs).
    posted: AtomicU32,
    published: Published,
}

impl RqShared {
    /// An empty queue.
    #[must_use]
    pub fn new(ring: StrideRing) -> Self {
        let count = ring.mask() + 1;
        Self {
            ring,
            wr_id: Table::new(count),
            early: Table::new(count),
            early_count: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            posted: AtomicU32::new(0),
            published: Published::default(),
        }
    }

    /// Names the word by which the device is told what was posted.
    pub fn published_by(&self, record: DbWord) {
        // Whoever was first posts; there is one poster.
        let _ = self.published.0.set(record);
    }

    /// Whether the receive at `wqe_counter` was shown to the device and is not done; for the poller of its CQ.
    pub(crate) fn is_outstanding(&self, wqe_counter: u16) -> bool {
        let Some(posted) = self.published.count() else { return false };
        let (at, tail) = (u32::from(wqe_counter), self.tail.load(Ordering::Relaxed));
        // No ring has more than 2^15 receives, so 16 bits tell full from empty.
        let there = u32::from((posted as u16).wrapping_sub(tail as u16));
        there <= self.ring.mask() + 1
            && at.wrapping_sub(tail) & self.ring.mask() < there
            && self.early.get(at).load(Ordering::Relaxed) == 0
    }

    /// The receive at `wqe_counter` is done: its `wr_id`. For the poller of its CQ, one at a time.
    #[inline(always)]
    pub fn retire(&self, wqe_counter: u16) -> u64 {
        let at = u32::from(wqe_counter);
        let wr_id = self.wr_id.get(at).load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        if (tail ^ at) & self.ring.mask() == 0 && self.early_count.load(Ordering::Relaxed) == 0 {
            // Release: pairs with `tail`, so the poster reuses the element after this load.
            self.tail.store(tail.wrapping_add(1), Ordering::Release);
        } else {
            self.retire_early(at, tail);
        }
        wr_id
    }

    /// Out of order: notes it, and moves the tail over all that is done in a row. An element is reused only then.
    #[cold]
    fn retire_early(&self, at: u32, mut tail: u32) {
        let mut count = self.early_count.load(Ordering::Relaxed);
        let done = self.early.get(at);
        if done.load(Ordering::Relaxed) == 0 {
            done.store(1, Ordering::Relaxed);
            count += 1;
        }
        while count != 0 && self.early.get(tail).load(Ordering::Relaxed) != 0 {
            self.early.get(tail).store(0, Ordering::Relaxed);
            (tail, count) = (tail.wrapping_add(1), count - 1);
        }
        self.early_count.store(count, Ordering::Relaxed);
        self.tail.store(tail, Ordering::Release);
    }

    /// The addresses that posting needs.
    #[inline(always)]
    pub(crate) fn view(&self, max_sge: u32) -> StrideView<'_> {
        StrideView::new(&self.ring, &self.wr_id, 0, max_sge)
    }

    /// How many receives are done, modulo 2^32. A device may make a poller store anything.
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Notes how many were posted, for [`posted`](Self::posted). The poster looks at the state after this, `modify_qp`
    /// at the number after it changed the state: one of the two writes the doorbell record.
    pub(crate) fn hold(&self, posted: u32) {
        self.posted.store(posted, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// How many receives a raw packet QP has posted before it was in RTR: what its doorbell record must say then.
    #[must_use]
    pub fn posted(&self) -> u32 {
        self.posted.load(Ordering::Acquire)
    }

    fn reset(&self) {
        self.early.iter().for_each(|done| done.store(0, Ordering::Relaxed));
        self.early_count.store(0, Ordering::Relaxed);
        self.posted.store(0, Ordering::Relaxed);
        self.tail.store(0, Ordering::Release);
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SrqShared {
    /// Its number, 24 bits.
    pub srqn: u32,
    /// Of an SRQ that completions name themselves (XRC), with `cqe_version` 1.
    index: Option<UserIndex>,
    /// The WQEs. There may be more than [`slots`](Self::slots): the rest is the device's.
    pub ring: StrideRing,
    slots: u32,
    pub(crate) wr_id: Table<AtomicU64>,
    /// A bit per element that is done and not linked again.
    free: Box<[AtomicU64]>,
    /// The doorbell record's count from which on each element is posted.
    posted_as: Table<AtomicU32>,
    published: Published,
}

/// Added to a count: as far ahead of it as can be.
const NOT_POSTED: u32 = 1 << 31;

impl SrqShared {
    /// A queue whose list has `slots` elements, a power of two up to 2^16 that the ring has.
    #[must_use]
    pub fn new(srqn: u32, ring: StrideRing, slots: u32) -> Option<Self> {
        if !slots.is_power_of_two() || slots > 1 << 16 || slots - 1 > ring.mask() {
            return None;
        }
        let free = (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let posted_as = Table::new(slots);
        posted_as.iter().for_each(|count: &AtomicU32| count.store(NOT_POSTED, Ordering::Relaxed));
        let (wr_id, published) = (Table::new(slots), Published::default());
        Some(Self { srqn, index: None, ring, slots, wr_id, free, posted_as, published })
    }

    /// Names the word by which the device is told what was posted.
    pub fn published_by(&self, record: DbWord) {
        // Whoever was first posts; there is one poster.
        let _ = self.published.0.set(record);
    }

    /// Notes the count by which the device will be told of an element.
    #[inline(always)]
    pub fn set_posted_as(&self, element: u32, count: u32) {
        self.posted_as.get(element).store(count, Ordering::Relaxed);
    }

    /// Whether the receive at `wqe_counter` was shown to the device and is not done. For any poller; two that are told of
    /// the same element at the same time, by two CQs, both get `true`.
    pub(crate) fn is_outstanding(&self, wqe_counter: u16) -> bool {
        let (Some(posted), at) = (self.published.count(), u32::from(wqe_counter) & (self.slots - 1)) else {
            return false;
        };
        let Some(word) = self.free.get((at / 64) as usize) else { return false };
        // Acquire: pairs with `take`. An element that is linked again is not posted.
        word.load(Ordering::Acquire) >> (at % 64) & 1 == 0
            // Others may be posted and done any number of times while this one is out.
            && posted.wrapping_sub(self.posted_as.get(at).load(Ordering::Relaxed)).cast_signed() >= 0
    }

    /// The same with a user index, which is its own from now on.
    #[must_use]
    pub fn with_index(self, index: UserIndex) -> Self {
        Self { index: Some(index), ..self }
    }

    /// What completions name it by: its user index if it has one, else its number.
    #[must_use]
    pub fn uidx(&self) -> u32 {
        self.index.as_ref().map_or(self.srqn, UserIndex::get)
    }

    /// Elements of the list; one less can be posted.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The addresses that posting needs; an element's link is left out.
    #[inline(always)]
    pub(crate) fn view(&self, max_sge: u32) -> StrideView<'_> {
        StrideView::new(&self.ring, &self.wr_id, 1, max_sge)
    }

    /// The receive at `wqe_counter` is done: its `wr_id`. For any poller, also several at once.
    #[inline(always)]
    pub fn retire(&self, wqe_counter: u16) -> u64 {
        let at = u32::from(wqe_counter) & (self.slots - 1);
        let wr_id = self.wr_id.get(at).load(Ordering::Relaxed);
        if let Some(word) = self.free.get((at / 64) as usize) {
            // Release: pairs with `take`, so the poster reuses the element after this load.
            word.fetch_or(1 << (at % 64), Ordering::Release);
        }
        wr_id
    }

    /// Takes the elements that are done, in the order of their indices.
    pub(crate) fn take(&self, mut f: impl FnMut(u32)) {
        for (i, word) in (0..).zip(&self.free) {
            let mut bits = word.load(Ordering::Relaxed);
            if bits == 0 {
                continue;
            }
            let not_posted = self.published.count().unwrap_or(0).wrapping_add(NOT_POSTED);
            let mut left = bits;
            while left != 0 {
                self.set_posted_as(i * 64 + left.trailing_zeros(), not_posted);
                left &= left - 1;
            }
            // Acquire: pairs with `retire`. Release: with `is_outstanding`, which sees what is above.
            word.fetch_and(!bits, Ordering::AcqRel);
            while bits != 0 {
                f(i * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
fn gate() -> Gate {
    Gate::new(1).expect("memory")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buf::QueueBuf;

    fn rq(count: u32) -> RqShared {
        let buf = QueueBuf::new(count as usize * 64).unwrap();
        RqShared::new(StrideRing::new(buf, 0, count, 64).unwrap())
    }

    #[test]
    fn a_reset_changes_the_word_even_if_the_state_is_the_same_again() {
        let shared = QpShared::new(gate(), 1, 1, None, None, None);
        shared.set_state(QpState::RTS);
        let before = shared.word();
        shared.set_state(QpState::RESET);
        shared.set_state(QpState::RTS);
        let after = shared.word();
        assert_eq!(after.state(), QpState::RTS);
        assert_ne!(before, after);
        assert!(before.resets_differ(after));
        shared.set_state(QpState::ERR);
        assert!(!after.resets_differ(shared.word()));
    }

    #[test]
    fn receives_out_of_order_free_only_what_is_done_in_a_row() {
        let rq = rq(8);
        (0..8).for_each(|i| rq.wr_id.get(i).store(100 + u64::from(i), Ordering::Relaxed));
        let step = |counter| (rq.retire(counter), rq.tail());
        assert_eq!([step(1), step(2), step(0)], [(101, 0), (102, 0), (100, 3)]);
        assert_eq!([step(3), step(5), step(4), step(6)], [(103, 4), (105, 4), (104, 6), (106, 7)]);
        // A counter that comes twice moves nothing twice.
        assert_eq!([step(9), step(9), step(7), step(8)], [(101, 7), (101, 7), (107, 8), (100, 10)]);
        rq.retire(12);
        rq.reset();
        assert_eq!([step(0), step(1)], [(100, 1), (101, 2)]);
    }

    #[test]
    fn a_device_that_lies_about_receives_ends_no_loop() {
        let rq = rq(4);
        for counter in (0..2000_u16).map(|i| i.wrapping_mul(40503)) {
            rq.retire(counter);
        }
        assert!(rq.tail() <= 2000);
    }

    #[test]
    fn srq_geometry_is_checked() {
        let ring = || StrideRing::new(QueueBuf::new(64 * 32).unwrap(), 0, 64, 32).unwrap();
        assert!(SrqShared::new(1, ring(), 32).is_some() && SrqShared::new(1, ring(), 64).is_some());
        assert!(SrqShared::new(1, ring(), 128).is_none() && SrqShared::new(1, ring(), 31).is_none());
        assert!(SrqShared::new(1, ring(), 0).is_none());
    }

    #[test]
    fn srq_elements_are_taken_once() {
        let ring = StrideRing::new(QueueBuf::new(256 * 32).unwrap(), 0, 256, 32).unwrap();
        let srq = SrqShared::new(1, ring, 128).unwrap();
        [70, 3, 3, 127, 128].into_iter().for_each(|i| _ = srq.retire(i));
        let take = || {
            let mut all = Vec::new();
            srq.take(|i| all.push(i));
            all
        };
        assert_eq!(take(), [0, 3, 70, 127]);
        assert!(take().is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::buf::{Done, QueueBuf};
    use loom::sync::Arc;
    use loom::thread;

    fn stride(count: u32) -> StrideRing {
        StrideRing::new(QueueBuf::new(4096).unwrap(), 0, count, 64).unwrap()
    }

    /// A limit that was raised under a state does not outlive it.
    #[test]
    fn no_limit_is_left_to_a_state_without_sends() {
        loom::model(|| {
            let qp = Arc::new(QpShared::new(gate(), 1, 1, None, None, None));
            qp.set_state(QpState::RTS);
            let poster = Arc::clone(&qp);
            let t = thread::spawn(move || {
                let seen = poster.word();
                seen.can_send() && poster.raise_limit(seen, 16)
            });
            qp.set_state(QpState::RESET);
            t.join().unwrap();
            assert_eq!(qp.gate().limit().load(Ordering::Relaxed), 0);
        });
    }

    /// The poster reuses an entry only after the poller has read it.
    #[test]
    fn send_entries_are_not_reused_before_they_are_read() {
        loom::model(|| {
            let ring = SqRing::new(QueueBuf::new(4096).unwrap(), 0, 1).unwrap();
            let sq = Arc::new(SqShared::new(ring));
            sq.ring.view().wr_id(0).store(1, Ordering::Relaxed);
            sq.ring.view().record(Place::of(0)).set_done(Done::new(1, 0));
            let poller = Arc::clone(&sq);
            let t = thread::spawn(move || poller.retire(0).wr_id);
            if sq.tail() == 1 {
                sq.ring.view().wr_id(1).store(2, Ordering::Relaxed);
            }
            assert_eq!(t.join().unwrap(), 1);
        });
    }

    /// The same for receives.
    #[test]
    fn receive_entries_are_not_reused_before_they_are_read() {
        loom::model(|| {
            let rq = Arc::new(RqShared::new(stride(1)));
            rq.wr_id.get(0).store(1, Ordering::Relaxed);
            let poller = Arc::clone(&rq);
            let t = thread::spawn(move || poller.retire(0));
            if rq.tail() == 1 {
                rq.wr_id.get(1).store(2, Ordering::Relaxed);
            }
            assert_eq!(t.join().unwrap(), 1);
        });
    }

    /// Two pollers free elements of a shared queue while the poster takes them: each is taken once, after its entry
    /// was read.
    #[test]
    fn shared_elements_are_freed_by_two_and_taken_once() {
        loom::model(|| {
            let srq = Arc::new(SrqShared::new(1, stride(4), 4).unwrap());
            (0..2).for_each(|i| srq.wr_id.get(i).store(10 + u64::from(i), Ordering::Relaxed));
            let pollers: Vec<_> = (0..2_u16)
                .map(|i| {
                    let srq = Arc::clone(&srq);
                    thread::spawn(move || assert_eq!(srq.retire(i), 10 + u64::from(i)))
                })
                .collect();
            let mut taken = 0;
            let mut take = || {
                srq.take(|i| {
                    taken |= 1 << i;
                    srq.wr_id.get(i).store(99, Ordering::Relaxed);
                });
            };
            take();
            pollers.into_iter().for_each(|t| t.join().unwrap());
            take();
            assert_eq!(taken, 3);
        });
    }

    /// A raw packet QP's receives that are posted while it goes to RTR reach the doorbell record by one side at least.
    #[test]
    fn receives_held_back_are_told_by_one_side() {
        loom::model(|| {
            let shared = Arc::new(QpShared::new(
                gate(),
                1,
                1,
                None,
                Some(std::sync::Arc::new(RqShared::new(stride(1)))),
                None,
            ));
            shared.set_state(QpState::INIT);
            let control = Arc::clone(&shared);
            let t = thread::spawn(move || {
                control.set_state(QpState::RTR);
                control.rq.as_ref().unwrap().posted()
            });
            shared.rq.as_ref().unwrap().hold(1);
            let poster_tells = shared.state() == QpState::RTR;
            assert!(t.join().unwrap() == 1 || poster_tells);
        });
    }
}
