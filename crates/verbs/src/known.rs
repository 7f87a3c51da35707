// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the number in a completion to the entry of its work request, in the poll of a CQ.
//!
//! A poll takes the entry while it is [inside the queue](uverbs_core::provider::completion::Claimant): the RESET and the destruction of a QP
//! wait until then, so the number is that of a work request whose queue has not ended, and finds its entry. What runs code that is not
//! of this module (buffers that go back to their pool, the logger, the program) comes after that: [`Known::claim`] leaves the rare cases
//! for [`Known::resume`].
#![expect(unsafe_code)]
// UNSAFETY: opens the value of a scope's post, once.

use crate::context::ContextInner;
use crate::count::CqCounts;
use crate::flight::{Entry, Flight, INDEX_MASK};
use crate::held::{Value, contain};
use core::mem;
use core::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use uverbs_core::provider::Driver;
use uverbs_core::sync::in_flight::STEP;
use uverbs_core::wc::WcError;
use uverbs_core::wc::WcStatus;
#[cfg(feature = "tracing")]
use uverbs_core::wc::WorkCompletion;

/// Queues by index. A CQ has few of the context's, so there are only the pages that have one.
struct Places<D: Driver> {
    pages: Vec<Option<Box<Page<D>>>>,
    /// Queues that were added since those that had ended were removed.
    added: usize,
    /// Those that were left then.
    left: usize,
}

type Page<D> = [Option<Arc<Flight<D>>>; PAGE];
const PAGE: usize = 64;

impl<D: Driver> Places<D> {
    /// The place of an index, if its page is there.
    #[inline]
    fn get(&mut self, index: usize) -> Option<&mut Option<Arc<Flight<D>>>> {
        self.pages.get_mut(index / PAGE)?.as_mut()?.get_mut(index % PAGE)
    }

    /// Makes a place for an index.
    fn add(&mut self, index: usize) {
        let page = index / PAGE;
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        if let Some(page) = self.pages.get_mut(page) {
            page.get_or_insert_with(|| Box::new([const { None }; PAGE]));
        }
        self.added += 1;
    }

    #[cfg(all(test, feature = "mlx5"))]
    fn iter(&self) -> impl Iterator<Item = &Arc<Flight<D>>> {
        self.pages.iter().flatten().flat_map(|page| page.iter().flatten())
    }

    /// Removes the queues that have ended, when more were added than were left the last time. So the cost of an addition does not grow
    /// with their number.
    fn sweep(&mut self, has_ended: impl Fn(&Flight<D>) -> bool) {
        if self.added <= self.left + self.pages.len() {
            return;
        }
        (self.added, self.left) = (0, 0);
        for place in &mut self.pages {
            let Some(page) = place else { continue };
            page.iter_mut().for_each(|queue| drop(queue.take_if(|flight| has_ended(flight))));
            match page.iter().flatten().count() {
                0 => *place = None,
                left => self.left += left,
            }
        }
    }
}

/// What a [claim](Known::claim) that returned [`Claim::Rest`] has found.
enum Aside<D: Driver> {
    /// No entry.
    Nothing,
    /// The entry of the completion.
    Entry(Entry<D>),
    /// That of a post of a scope.
    Scoped(Entry<D>),
}

/// What a [claim](Known::claim) has taken.
// codegen: constant
#[repr(u8)]
pub(super) enum Claim<D: Driver> {
    /// The entry of the completion.
    Entry(Entry<D>),
    /// [`Known::resume`] is to continue.
    Rest,
}

/// The queues whose completions a CQ has reported, so that a poll needs no lock to find them.
pub(super) struct Known<D: Driver> {
    /// That of the last completion, which is not in `queues`. Most completions are those of the same queue as the one before.
    current: Arc<Flight<D>>,
    /// Its [`Flight::expected`].
    expected: u32,
    queues: Places<D>,
    aside: Aside<D>,
    /// The entries of the sends before that of the last claim, which are complete, too. There is room for those of the current queue, if
    /// it completes in order.
    earlier: Vec<Entry<D>>,
    context: Arc<ContextInner<D>>,
    cq: u64,
    unmatched: u64,
    counts: CqCounts,
}

#[cfg(feature = "counters")]
impl<D: Driver> Drop for Known<D> {
    fn drop(&mut self) {
        self.counts.close(&self.context);
    }
}

impl<D: Driver> core::fmt::Debug for Known<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Known")
            .field("current", &self.current)
            .field("unmatched", &self.unmatched)
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Known<D> {
    pub(super) fn new(context: Arc<ContextInner<D>>, cq: u64) -> Self {
        Self {
            current: Flight::none(),
            expected: 0,
            queues: Places { pages: Vec::new(), added: 0, left: 0 },
            aside: Aside::Nothing,
            earlier: Vec::new(),
            counts: CqCounts::new(&context, cq),
            context,
            cq,
            unmatched: 0,
        }
    }

    /// Notes an error of the last completion in its queue.
    #[cold]
    pub(super) fn note(&self, error: &WcError) {
        self.current.note(error);
    }

    pub(super) fn counts(&self) -> &CqCounts {
        &self.counts
    }

    /// Counts an error of the last completion.
    ///
    /// With the ABI of C, no panic can leave it, so a poll need not be prepared for one.
    #[cfg(feature = "counters")]
    #[cold]
    #[inline(never)]
    pub(super) extern "C" fn count_error(&self, status: u32) {
        self.current.counts.failed(WcStatus(status));
        self.counts.failed();
    }

    /// Reports an error of the last completion. As [`count_error`](Self::count_error), no panic can leave it.
    #[cfg(feature = "tracing")]
    #[cold]
    #[inline(never)]
    pub(super) extern "C" fn report_error(&self, wc: &WorkCompletion, received: bool) {
        contain(|| {
            let error = crate::cq::of_device(wc, received, self.device_name());
            self.current.report(&error, wc);
        });
    }

    /// The name of the device.
    pub(super) fn device_name(&self) -> &Arc<str> {
        self.context.name()
    }

    /// Completions that belong to no work request.
    pub(super) fn unmatched(&self) -> u64 {
        self.unmatched
    }

    /// Takes the entry of a completed work request, inside the CQ. [`Claim::Rest`] if [`resume`](Self::resume), which must be called then, is
    /// to continue outside: for a number that no queue gave, or whose entry was taken before; for one of a scope; and if earlier sends
    /// are complete, too.
    ///
    /// `alone` is whether it says nothing about others: a receive, or a send of a queue that completes in any order. Any send may be reported
    /// so, but no receive as a send of a queue in order: then receives that are not complete would be taken.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn claim(&mut self, wr_id: u64, alone: bool) -> Claim<D> {
        // A loop and not a second `take`: then the usual path has no branch for the result of `turn_to`, which succeeds once.
        let entry = loop {
            match self.current.slab.take(wr_id) {
                Some(entry) => break entry,
                None if self.turn_to(wr_id) => {}
                None => {
                    self.claim_other(wr_id, alone);
                    return Claim::Rest;
                }
            }
        };
        self.counts.completed();
        if !alone {
            let count = wr_id as u32;
            if count != self.expected {
                self.claim_earlier(wr_id);
                self.aside = Aside::Entry(entry);
                return Claim::Rest;
            }
            self.expected = count.wrapping_add(STEP);
        }
        Claim::Entry(entry)
    }

    /// A send of the current queue is complete, so those before it are complete, too, if the queue completes in order: takes their
    /// entries.
    ///
    /// With the ABI of C, no panic can leave it, so a poll need not be prepared for one.
    #[cold]
    #[inline(never)]
    extern "C" fn claim_earlier(&mut self, wr_id: u64) {
        let Self { current, expected, earlier, .. } = self;
        if current.in_order {
            current.slab.take_range(*expected, wr_id, |entry| earlier.push(entry));
        }
        *expected = (wr_id as u32).wrapping_add(STEP);
    }

    /// The entry of a number for which `take` has found none, if it is that of a scope.
    #[cold]
    #[inline(never)]
    extern "C" fn claim_other(&mut self, wr_id: u64, alone: bool) {
        // `turn_to` has made the queue of the number the current one, if there is such a queue.
        let Some(entry) = self.current.slab.take_scoped(wr_id) else { return };
        self.counts.completed();
        self.aside = Aside::Scoped(entry);
        if !alone {
            self.claim_earlier(wr_id);
        }
    }

    /// The rest of a [`claim`](Self::claim), outside the CQ. Whether there is an entry of the completion, which [`aside`](Self::aside)
    /// takes; not for an unmatched one, nor for one of a scope, which gets the status and the length.
    ///
    /// With the ABI of C, no panic can leave it, so a poll need not be prepared for one.
    #[cold]
    #[inline(never)]
    pub(super) extern "C" fn resume(&mut self, wr_id: u64, status: u32, byte_len: u32) -> bool {
        self.earlier.drain(..).for_each(Entry::release);
        match mem::replace(&mut self.aside, Aside::Nothing) {
            Aside::Entry(entry) => {
                self.aside = Aside::Entry(entry);
                return true;
            }
            Aside::Scoped(entry) => {
                #[cfg(feature = "counters")]
                if status != WcStatus::SUCCESS.0 {
                    self.count_error(status);
                }
                // SAFETY: the entry was taken out of the slab, so this is the only copy.
                if let Value::Scoped(ticket) = unsafe { entry.held.open() } {
                    ticket.finish(WcStatus(status), byte_len);
                }
            }
            Aside::Nothing => {
                self.unmatched += 1;
                contain(|| {
                    crate::report!(
                        debug,
                        { device = %self.context.name(), wr_id },
                        "a completion with wr_id {wr_id:#x}, which belongs to no work request"
                    );
                });
            }
        }
        false
    }

    /// The entry of the completion, after [`resume`](Self::resume).
    #[inline]
    pub(super) fn aside(&mut self) -> Option<Entry<D>> {
        match mem::replace(&mut self.aside, Aside::Nothing) {
            Aside::Entry(entry) => Some(entry),
            Aside::Nothing | Aside::Scoped(_) => None,
        }
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
            false => self.queues.get(index).and_then(|queue| queue.take_if(has_key)),
        };
        if found.is_none() {
            found = self.learn(key, index);
        }
        let Some(found) = found else { return false };
        self.current.expected.store(self.expected, Ordering::Relaxed);
        self.expected = found.expected.load(Ordering::Relaxed);
        let last = mem::replace(&mut self.current, found);
        // The queue of no work requests has no place.
        if let Some(place) = self.queues.get((last.slab.key() & INDEX_MASK) as usize) {
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
    ///
    /// The lock is one under which no thread waits for a CQ. A queue that has ended has no entries, so its drop here only frees memory.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, key: u32, index: usize) -> Option<Arc<Flight<D>>> {
        let queues = self.context.flights().queues.lock().ok()?;
        let has_ended = |flight: &Flight<D>| queues.get(flight.id).is_none();
        if let Some(place) = self.queues.get(index) {
            drop(place.take_if(|flight| has_ended(flight)));
        }
        if has_ended(&self.current) {
            self.current = Flight::none();
        }
        let found = queues.at(index as u32).and_then(Weak::upgrade)?;
        if found.slab.key() != key || found.cq().is_some_and(|cq| cq != self.cq) {
            return None;
        }
        self.queues.sweep(has_ended);
        self.queues.add(index);
        // Each send of the queue can be an earlier one.
        if found.in_order {
            self.earlier.reserve(found.slab.capacity());
        }
        Some(found)
    }
}

#[cfg(all(test, feature = "mlx5"))]
mod tests {
    use super::*;
    use crate::Context;
    use crate::flight::{QueueKind, is_receive};
    use crate::pool::NO_DOMAIN;
    use crate::{Pool, Private};
    use uverbs_hca::Hca;
    use uverbs_mlx5::Mlx5;

    /// A device that reports any `wr_id`s, and the queues that it has them from.
    struct Liar {
        pool: Pool<Private, Mlx5>,
        context: Context<Mlx5>,
        known: Known<Mlx5>,
    }

    const CQ: u64 = 1;

    impl Liar {
        fn new() -> Self {
            let context = Context::<Mlx5>::from_kernel(Hca::new().open()).unwrap();
            let pool = context.alloc_pd().unwrap().pool(8, 64).unwrap();
            let known = Known::new(context.inner().clone(), CQ);
            Self { pool, context, known }
        }

        fn queue(&self, kind: QueueKind) -> Arc<Flight<Mlx5>> {
            Flight::new(self.context.inner(), kind, NO_DOMAIN, 1, 4).unwrap()
        }

        fn insert(&self, flight: &Flight<Mlx5>, wr_id: u64) -> u64 {
            let held = self.pool.get().unwrap().into_held();
            // SAFETY: one thread.
            unsafe { flight.slab.vacant(NO_DOMAIN) }.unwrap().fill(Entry { wr_id, held })
        }

        /// The user's `wr_id` of the entry that is found.
        fn report(&mut self, wr_id: u64) -> Option<u64> {
            let entry = match self.known.claim(wr_id, is_receive(wr_id)) {
                Claim::Entry(entry) => Some(entry),
                Claim::Rest if self.known.resume(wr_id, 0, 0) => self.known.aside(),
                Claim::Rest => None,
            };
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
        assert_eq!((liar.report(wr_id), liar.known.unmatched()), (None, 1));
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
        assert!(matches!(liar.known.claim(5, true), Claim::Rest) && !liar.known.resume(5, 0, 0));
        let outside = std::panic::catch_unwind(|| log::debug!("outside a poll"));
        PANIC.set(false);
        assert!(outside.is_err(), "the logger panics");
        assert_eq!(liar.known.unmatched(), 1);
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
        assert!(liar.known.queues.iter().all(|queue| queue.id == second.id), "the old one is forgotten");
    }

    /// A CQ that lives long does not keep the queues that have ended, nor places for all queues of the context.
    #[test]
    fn queues_that_have_ended_are_forgotten() {
        let mut liar = Liar::new();
        let others: Vec<_> = (0..1000).map(|_| liar.queue(QueueKind::Recv { cq: CQ + 1 })).collect();
        let steady = liar.queue(QueueKind::Recv { cq: CQ });
        for round in 0..1000 {
            let ends: Vec<_> = (0..4).map(|_| liar.queue(QueueKind::Recv { cq: CQ })).collect();
            for queue in ends.iter().chain([&steady]) {
                let wr_id = liar.insert(queue, round);
                assert_eq!(liar.report(wr_id), Some(round));
            }
            ends.iter().for_each(|queue| queue.close(liar.context.inner()));
        }
        let pages = liar.known.queues.pages.iter().flatten().count();
        let queues = liar.known.queues.iter().count();
        assert!(pages <= 2 && queues <= 40, "{pages} pages, {queues} queues");
        assert_eq!((others.len(), liar.known.unmatched()), (1000, 0));
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
            assert_eq!((liar.known.unmatched(), liar.pool.available()), (1, 8));
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
