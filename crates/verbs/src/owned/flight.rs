// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work requests of an owned queue that are in flight, with the memory that they use.
//!
//! Each queue has a [`Flight`]: a slab with an entry for each work request. The kernel object of the queue (`QpInner`,
//! `SrqInner`) holds it, and gives the memory back when the kernel has destroyed the object; if the kernel refuses, the memory
//! is leaked. So neither a dropped nor a forgotten queue frees memory that the device may use.
//!
//! A `wr_id` is a number, not a pointer:
//!
//! | bits | |
//! |---|---|
//! | 0..32 | the count of the work request in the queue's slab ([`InFlight`]) |
//! | 32..52 | the index of the queue among those of its context |
//! | 52..63 | the generation of this index |
//! | 63 | whether the queue is one of receives |
//!
//! A number that no queue gave, or gave before, finds no entry.
#![expect(unsafe_code)]
// UNSAFETY: releases what an entry holds, once.

use super::held::{Held, contain};
use super::pool::NO_DOMAIN;
use crate::context::ContextInner;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use uverbs_core::Errno;
use uverbs_core::control::slab::Slab;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, PostError};
use uverbs_core::sync::ProcessMutex;
use uverbs_core::sync::in_flight::{InFlight, STEP};

/// An entry of the slab, which owns what it holds.
pub(super) struct Entry<D: Driver> {
    /// The number of the user.
    pub(super) wr_id: u64,
    pub(super) held: Held<D>,
}

impl<D: Driver> Entry<D> {
    /// Drops what it holds.
    pub(super) fn release(self) {
        // SAFETY: the entry was taken out of the slab, so this is the only copy.
        unsafe { self.held.release() }
    }
}

/// The work requests in flight of one queue.
pub(crate) struct Flight<D: Driver> {
    /// Its key is the queue's part of a `wr_id`, its tag the protection domain, see [`domain_of`](super::pool::domain_of).
    pub(super) slab: InFlight<Entry<D>>,
    /// Of sends: the count of the first that is not known to be complete. The poller of their CQ keeps it here while it polls
    /// other queues. A hint: any value is sound.
    expected: AtomicU32,
    /// The first reason why a work request of the open batch was refused. Only the poster uses it. It is here and not in the
    /// batch, which a loop keeps in registers.
    refused: AtomicU32,
    /// The number in the context's table.
    id: u64,
    /// The CQ of the completions; `None` for an SRQ, whose receives complete to the CQ of any QP.
    cq: Option<u64>,
}

impl<D: Driver> core::fmt::Debug for Flight<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Flight").field("slab", &self.slab).finish_non_exhaustive()
    }
}

impl<D: Driver> Drop for Flight<D> {
    fn drop(&mut self) {
        self.settle_all();
    }
}

/// The owned queues of a context.
#[derive(Debug)]
pub(crate) struct Flights<D: Driver> {
    queues: ProcessMutex<Slab<Weak<Flight<D>>>>,
}

impl<D: Driver> Default for Flights<D> {
    fn default() -> Self {
        Self { queues: ProcessMutex::new(Slab::new()) }
    }
}

/// The bits of a queue's index.
const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// The index that no queue has: that of [`Flight::none`].
const NO_INDEX: u32 = INDEX_MASK;
/// In a key: the queue is one of receives.
const RECEIVES: u32 = 1 << 31;

/// Why the work requests of a batch are refused. 0 is none.
const REFUSALS: [PostError; 3] = [PostError::QueueFull, PostError::InvalidArgument, PostError::InvalidLength];

/// Drops what a work request of a batch would have owned, and notes the first error. With the ABI of C, no panic can leave
/// it; its arguments are in registers, and a batch in a loop has the others for itself.
///
/// # Safety
/// The word is not used again.
#[cold]
#[inline(never)]
unsafe extern "C" fn refuse<D: Driver>(flight: &Flight<D>, held: Held<D>, reason: u32) {
    if flight.refused.load(Ordering::Relaxed) == 0 {
        flight.refused.store(reason, Ordering::Relaxed);
    }
    // SAFETY: the contract of this function.
    unsafe { held.release() };
}

/// The queue's part of a `wr_id`, of its number in the table.
const fn key_of(id: u64, receives: bool) -> u32 {
    // The lower half is the index, the upper the generation.
    let key = (((id >> 32) as u32) << INDEX_BITS) | (id as u32 & INDEX_MASK);
    if receives { key | RECEIVES } else { key & !RECEIVES }
}

/// Whether a `wr_id` is that of a receive. Sends complete in order: a completion is also that of the work requests before it.
#[inline(always)]
pub(super) const fn is_receive(wr_id: u64) -> bool {
    wr_id & (RECEIVES as u64) << 32 != 0
}

/// The kinds of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum QueueKind {
    Send { cq: u64 },
    Recv { cq: u64 },
    Srq,
}

impl<D: Driver> Flight<D> {
    /// A slab for a queue of `depth` work requests.
    pub(super) fn new(
        context: &ContextInner<D>,
        kind: QueueKind,
        domain: u64,
        depth: u32,
    ) -> Result<Arc<Self>> {
        let (receives, cq, slots) = match kind {
            QueueKind::Send { cq } => (false, Some(cq), depth),
            QueueKind::Recv { cq } => (true, Some(cq), depth),
            // Receives of an SRQ complete in any order. With twice the slots, few posts have to skip one.
            QueueKind::Srq => (true, None, depth.saturating_mul(2)),
        };
        let forked = |_| Error::os("create", "owned queue in a child of fork", Errno::ESTALE);
        let mut queues = context.flights().queues.lock().map_err(forked)?;
        let id = queues.insert(Weak::new());
        if id as u32 >= NO_INDEX {
            queues.remove(id);
            return Err(Error::invalid(
                "create",
                "queue",
                format!("a context has at most {NO_INDEX} owned queues"),
            ));
        }
        let slab = InFlight::new(slots, key_of(id, receives), domain);
        let (expected, refused) = (AtomicU32::new(0), AtomicU32::new(0));
        let flight = Arc::new(Self { slab, expected, refused, id, cq });
        if let Some(queue) = queues.get_mut(id) {
            *queue = Arc::downgrade(&flight);
        }
        Ok(flight)
    }

    /// The queue of no work requests.
    fn none() -> Arc<Self> {
        let slab = InFlight::new(1, NO_INDEX, NO_DOMAIN);
        let (expected, refused) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { slab, expected, refused, id: u64::MAX, cq: None })
    }

    /// The beginning of a batch: its first count.
    #[inline(always)]
    pub(super) fn begin_batch(&self) -> u32 {
        self.refused.store(0, Ordering::Relaxed);
        self.slab.next_count()
    }

    /// Refuses a work request of the open batch, which would have owned `held`.
    ///
    /// # Safety
    /// The word is not used again.
    #[inline(always)]
    pub(super) unsafe fn refuse(&self, held: Held<D>, error: PostError) {
        // The position is a constant where the error is one. There are no other errors.
        let at = REFUSALS.iter().position(|refusal| *refusal == error).unwrap_or(0);
        // SAFETY: the contract of this function.
        unsafe { refuse(self, held, at as u32 + 1) }
    }

    /// Why there was no vacant slot for memory of this domain.
    #[cold]
    pub(super) fn no_slot(&self, domain: u64) -> PostError {
        if domain == self.slab.tag() { PostError::QueueFull } else { PostError::InvalidArgument }
    }

    /// [`refuse`](Self::refuse) with the error of [`no_slot`](Self::no_slot).
    ///
    /// # Safety
    /// The word is not used again.
    #[cold]
    #[inline(never)]
    pub(super) unsafe extern "C" fn refuse_slot(&self, held: Held<D>, domain: u64) {
        // SAFETY: the contract of this function.
        unsafe { self.refuse(held, self.no_slot(domain)) }
    }

    /// The first error of the open batch.
    #[inline(always)]
    pub(super) fn refused(&self) -> Option<PostError> {
        match self.refused.load(Ordering::Relaxed) {
            0 => None,
            reason => REFUSALS.get(reason as usize - 1).copied(),
        }
    }

    /// Drops what was inserted from this count on.
    #[cold]
    #[inline(never)]
    pub(super) fn drop_from(&self, mut count: u32) {
        let end = self.slab.next_count();
        while count != end {
            self.drop_entry(self.slab.number(count));
            count = count.wrapping_add(STEP);
        }
    }

    /// Drops an entry, if it is there.
    pub(super) fn drop_entry(&self, number: u64) {
        if let Some(entry) = self.slab.take_any(number) {
            entry.release();
        }
    }

    /// Drops the entries of the sends from the count `first` to the one before `number`.
    ///
    /// With the ABI of C, no panic can leave it, so a poll need not be prepared for one.
    #[cold]
    #[inline(never)]
    extern "C" fn settle_before(&self, first: u32, number: u64) {
        self.slab.take_range(first, number, Entry::release);
    }

    pub(super) fn cq(&self) -> Option<u64> {
        self.cq
    }

    /// Gives all memory back: the device uses none of it any more.
    pub(super) fn settle_all(&self) {
        self.slab.take_all(Entry::release);
    }

    /// The end of the queue, after the kernel has destroyed it.
    fn close(&self, context: &ContextInner<D>) {
        self.settle_all();
        if let Ok(mut queues) = context.flights().queues.lock() {
            queues.remove(self.id);
        }
    }
}

/// The slabs of a kernel object's queues; empty if the queues are not owned.
#[derive(Debug)]
pub(crate) struct Holds<D: Driver> {
    flights: OnceLock<Vec<Arc<Flight<D>>>>,
}

impl<D: Driver> Default for Holds<D> {
    fn default() -> Self {
        Self { flights: OnceLock::new() }
    }
}

impl<D: Driver> Holds<D> {
    /// Before the first post.
    pub(super) fn set(&self, flights: Vec<Arc<Flight<D>>>) {
        let set = self.flights.set(flights);
        debug_assert!(set.is_ok(), "the slabs of a queue are set once");
    }

    /// Whether these are all.
    pub(super) fn are(&self, flights: &[&Arc<Flight<D>>]) -> bool {
        let own = self.flights.get().map_or(&[][..], Vec::as_slice);
        own.len() == flights.len() && own.iter().zip(flights).all(|(own, flight)| Arc::ptr_eq(own, flight))
    }

    /// Whether they own something.
    pub(crate) fn any(&self) -> bool {
        self.flights.get().is_some()
    }

    /// Drops what work requests own of which no completion will be reported. Those of other queues are left out.
    pub(crate) fn drop_entries(&self, wr_ids: &[u64]) {
        for flight in self.flights.get().into_iter().flatten() {
            wr_ids.iter().for_each(|wr_id| flight.drop_entry(*wr_id));
        }
    }

    /// After the kernel has destroyed the object.
    pub(crate) fn release(&mut self, context: &ContextInner<D>) {
        for flight in self.flights.take().into_iter().flatten() {
            flight.close(context);
        }
    }

    /// After the kernel has refused to destroy it: the device may use the memory for ever.
    pub(crate) fn leak(&mut self) {
        core::mem::forget(self.flights.take());
    }
}

/// The queues whose completions a CQ has reported, so that a poll needs no lock to find them.
pub(super) struct Known<D: Driver> {
    /// That of the last completion, which is not in `queues`. Most completions are those of the same queue as the one before.
    current: Arc<Flight<D>>,
    /// Its [`Flight::expected`].
    expected: u32,
    /// By index.
    queues: Vec<Option<Arc<Flight<D>>>>,
    context: Arc<ContextInner<D>>,
    cq: u64,
    strays: u64,
}

impl<D: Driver> core::fmt::Debug for Known<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Known")
            .field("current", &self.current)
            .field("queues", &self.queues)
            .field("strays", &self.strays)
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Known<D> {
    pub(super) fn new(context: Arc<ContextInner<D>>, cq: u64) -> Self {
        Self { current: Flight::none(), expected: 0, queues: Vec::new(), context, cq, strays: 0 }
    }

    /// Completions that belong to no work request.
    pub(super) fn strays(&self) -> u64 {
        self.strays
    }

    /// The entry of a completed work request. `None` for a number that no queue gave, or whose entry was taken before, and for one
    /// that is apart: see [`other`](Self::other).
    ///
    /// A number of a send may be reported as that of a receive, but not the other way round: then receives that are not
    /// complete would be taken.
    #[inline(always)]
    pub(super) fn settle(&mut self, wr_id: u64, received: bool) -> Option<Entry<D>> {
        // A loop and not a second `take`: then the usual path has no branch for the result of `turn_to`, which succeeds once.
        let entry = loop {
            match self.current.slab.take(wr_id) {
                Some(entry) => break entry,
                None if self.turn_to(wr_id) => {}
                None => return None,
            }
        };
        if !received {
            self.settle_through(wr_id);
        }
        Some(entry)
    }

    /// A send of the current queue is complete, so those before it are complete, too.
    #[inline(always)]
    fn settle_through(&mut self, wr_id: u64) {
        let count = wr_id as u32;
        if count != self.expected {
            self.current.settle_before(self.expected, wr_id);
        }
        self.expected = count.wrapping_add(STEP);
    }

    /// The entry of a number for which [`settle`](Self::settle) has found none, if it is that of a scope. Otherwise counts a stray.
    pub(super) fn other(&mut self, wr_id: u64, received: bool) -> Option<Entry<D>> {
        // `settle` has made the queue of the number the current one, if there is such a queue.
        let entry = self.current.slab.take_apart(wr_id);
        if entry.is_none() {
            self.strays += 1;
            contain(|| log::debug!("a completion with wr_id {wr_id:#x}, which belongs to no work request"));
        } else if !received {
            self.settle_through(wr_id);
        }
        entry
    }

    /// Makes the queue of this `wr_id`, which finds no entry in the current one, the current one. `false` if it is already, or if
    /// there is no such queue.
    ///
    /// With the ABI of C, no panic can leave it, so a poll need not be prepared for one.
    #[cold]
    #[inline(never)]
    extern "C" fn turn_to(&mut self, wr_id: u64) -> bool {
        let key = (wr_id >> 32) as u32;
        let index = (key & INDEX_MASK) as usize;
        let has_key = |flight: &mut Arc<Flight<D>>| flight.slab.key() == key;
        let is_current = self.current.slab.key() == key;
        // Generations begin again after 2048 queues of an index, so a queue that was destroyed may have the key of a newer one.
        if is_current && self.is_open(&self.current) {
            return false;
        }
        let mut found = match is_current {
            true => None,
            false => self.queues.get_mut(index).and_then(|queue| queue.take_if(has_key)),
        };
        if found.is_none() {
            found = self.learn(key, index);
        }
        let Some(found) = found else { return false };
        self.current.expected.store(self.expected, Ordering::Relaxed);
        self.expected = found.expected.load(Ordering::Relaxed);
        let last = core::mem::replace(&mut self.current, found);
        // The queue of no work requests has no place.
        if let Some(place) = self.queues.get_mut((last.slab.key() & INDEX_MASK) as usize) {
            // A newer queue may have taken the place; then the last one is destroyed.
            place.get_or_insert(last);
        }
        true
    }

    /// Whether the queue is not destroyed, as far as this process knows: in a child of fork(2), it does not.
    fn is_open(&self, flight: &Flight<D>) -> bool {
        self.context.flights().queues.lock().map_or(true, |queues| queues.get(flight.id).is_some())
    }

    /// Finds a queue in the context's table, and makes a place for it.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, key: u32, index: usize) -> Option<Arc<Flight<D>>> {
        let queues = self.context.flights().queues.lock().ok()?;
        let of_this_cq = |flight: &Arc<Flight<D>>| flight.cq.is_none_or(|cq| cq == self.cq);
        let found = queues
            .iter()
            .filter_map(Weak::upgrade)
            .find(|flight| flight.slab.key() == key && of_this_cq(flight));
        // Queues that were destroyed are forgotten on this occasion.
        for queue in &mut self.queues {
            queue.take_if(|flight| queues.get(flight.id).is_none());
        }
        if queues.get(self.current.id).is_none() {
            self.current = Flight::none();
        }
        if found.is_some() && self.queues.len() <= index {
            self.queues.resize(index + 1, None);
        }
        found
    }
}

#[cfg(all(test, feature = "mlx5"))]
mod tests {
    use super::*;
    use crate::Context;
    use crate::owned::Pool;
    use uverbs_hca::Hca;
    use uverbs_mlx5::Mlx5;

    /// A device that reports any `wr_id`s, and the queues that it has them from.
    struct Liar {
        pool: Pool<Mlx5>,
        context: Context<Mlx5>,
        known: Known<Mlx5>,
    }

    const CQ: u64 = 1;

    impl Liar {
        fn new() -> Self {
            let context = Context::<Mlx5>::from_kernel(Hca::new().open()).unwrap();
            let pool = context.alloc_pd().unwrap().pool(8, 64).build().unwrap();
            let known = Known::new(context.inner().clone(), CQ);
            Self { pool, context, known }
        }

        fn queue(&self, kind: QueueKind) -> Arc<Flight<Mlx5>> {
            Flight::new(self.context.inner(), kind, NO_DOMAIN, 4).unwrap()
        }

        fn insert(&self, flight: &Flight<Mlx5>, wr_id: u64) -> u64 {
            let held = self.pool.get().unwrap().into_held();
            // SAFETY: one thread.
            unsafe { flight.slab.vacant(NO_DOMAIN) }.unwrap().fill(Entry { wr_id, held })
        }

        /// The user's `wr_id` of the entry that is found.
        fn report(&mut self, wr_id: u64) -> Option<u64> {
            let received = is_receive(wr_id);
            let entry = self.known.settle(wr_id, received).or_else(|| self.known.other(wr_id, received));
            entry.map(|entry| {
                let wr_id = entry.wr_id;
                entry.release();
                wr_id
            })
        }
    }

    #[test]
    fn a_completion_that_is_reported_twice_gives_nothing() {
        let mut liar = Liar::new();
        let queue = liar.queue(QueueKind::Recv { cq: CQ });
        let wr_id = liar.insert(&queue, 7);
        assert_eq!((liar.report(wr_id), liar.pool.available()), (Some(7), 8));
        assert_eq!((liar.report(wr_id), liar.known.strays()), (None, 1));
        // The slot is used again, with another number.
        for i in 0..4 {
            liar.insert(&queue, i);
        }
        assert_eq!((liar.report(wr_id), liar.pool.available()), (None, 4));
    }

    /// A logger that panics in threads that ask for it.
    struct Panics;

    std::thread_local! {
        static PANIC: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
    }

    impl log::Log for Panics {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, _: &log::Record<'_>) {
            assert!(!PANIC.get(), "the panic of a logger, which the test expects");
        }
        fn flush(&self) {}
    }

    /// A poll must end neither by an abort of the process nor by a panic that is not the program's own.
    #[test]
    fn a_panic_of_the_logger_does_not_leave_a_poll() {
        log::set_logger(&Panics).unwrap();
        log::set_max_level(log::LevelFilter::Debug);
        let mut liar = Liar::new();
        PANIC.set(true);
        crate::owned::cq::finish(&mut liar.known, 5, true, 0, 0);
        let outside = std::panic::catch_unwind(|| log::debug!("outside a poll"));
        PANIC.set(false);
        assert!(outside.is_err(), "the logger panics");
        assert_eq!(liar.known.strays(), 1);
    }

    #[test]
    fn numbers_that_were_never_given_find_nothing() {
        let mut liar = Liar::new();
        let queue = liar.queue(QueueKind::Send { cq: CQ });
        let wr_id = liar.insert(&queue, 7);
        for bit in 0..64 {
            assert_eq!(liar.report(wr_id ^ 1 << bit), None, "bit {bit}");
        }
        for other in [0, 1, u64::MAX, u64::from(u32::MAX), wr_id + 4, wr_id.wrapping_sub(4)] {
            assert_eq!(liar.report(other), None, "{other:#x}");
        }
        assert_eq!(liar.pool.available(), 7);
        assert_eq!(liar.report(wr_id), Some(7));
    }

    #[test]
    fn the_number_of_another_cqs_queue_finds_nothing() {
        let mut liar = Liar::new();
        let (mine, other) =
            (liar.queue(QueueKind::Recv { cq: CQ }), liar.queue(QueueKind::Recv { cq: CQ + 1 }));
        let shared = liar.queue(QueueKind::Srq);
        let [a, b, c] = [&mine, &other, &shared].map(|queue| liar.insert(queue, 1));
        assert_eq!((liar.report(b), liar.report(a), liar.report(c)), (None, Some(1), Some(1)));
        assert_eq!(liar.pool.available(), 7, "that of the other CQ is in flight");
    }

    #[test]
    fn the_number_of_an_earlier_queue_finds_nothing() {
        let mut liar = Liar::new();
        let first = liar.queue(QueueKind::Recv { cq: CQ });
        let (polled, late) = (liar.insert(&first, 1), liar.insert(&first, 2));
        assert_eq!(liar.report(polled), Some(1));
        first.close(liar.context.inner());
        assert_eq!(liar.pool.available(), 8);
        let second = liar.queue(QueueKind::Recv { cq: CQ });
        let wr_id = liar.insert(&second, 3);
        assert_eq!(wr_id as u32, polled as u32, "the same count in another queue");
        assert_eq!(
            (wr_id >> 32 & u64::from(INDEX_MASK)),
            (late >> 32 & u64::from(INDEX_MASK)),
            "the same index"
        );
        assert_eq!((liar.report(late), liar.report(polled), liar.report(wr_id)), (None, None, Some(3)));
        assert!(
            liar.known.queues.iter().flatten().all(|queue| queue.id == second.id),
            "the old one is forgotten"
        );
    }

    /// A number has few bits for the generation. The CQ has not seen the queues in between, so it still has the first one.
    #[test]
    fn a_queue_with_the_key_of_an_earlier_one_is_found() {
        for other_is_current in [false, true] {
            let mut liar = Liar::new();
            let other = liar.queue(QueueKind::Recv { cq: CQ });
            let first = liar.queue(QueueKind::Recv { cq: CQ });
            let (key, wr_id) = (first.slab.key(), liar.insert(&first, 1));
            assert_eq!(liar.report(wr_id), Some(1));
            if other_is_current {
                let wr_id = liar.insert(&other, 2);
                assert_eq!(liar.report(wr_id), Some(2));
            }
            first.close(liar.context.inner());
            let again = loop {
                let queue = liar.queue(QueueKind::Recv { cq: CQ });
                if queue.slab.key() == key {
                    break queue;
                }
                queue.close(liar.context.inner());
            };
            let wr_id = liar.insert(&again, 3);
            assert_eq!((liar.report(wr_id), liar.report(wr_id)), (Some(3), None));
            assert_eq!((liar.known.strays(), liar.pool.available()), (1, 8));
        }
    }

    /// A device that says too early that a send is complete can damage memory by itself; the slab stays consistent.
    #[test]
    fn a_later_send_that_is_reported_first_completes_those_before_it() {
        let mut liar = Liar::new();
        let queue = liar.queue(QueueKind::Send { cq: CQ });
        let ids = [1, 2, 3].map(|i| liar.insert(&queue, i));
        assert_eq!((liar.report(ids[1]), liar.pool.available()), (Some(2), 7));
        assert_eq!((liar.report(ids[0]), liar.report(ids[2]), liar.pool.available()), (None, Some(3), 8));
    }

    #[test]
    fn receives_complete_in_any_order() {
        let mut liar = Liar::new();
        let queue = liar.queue(QueueKind::Recv { cq: CQ });
        let ids = [1, 2, 3].map(|i| liar.insert(&queue, i));
        assert_eq!((liar.report(ids[2]), liar.pool.available()), (Some(3), 6));
        assert_eq!((liar.report(ids[0]), liar.report(ids[1]), liar.pool.available()), (Some(1), Some(2), 8));
    }
}
