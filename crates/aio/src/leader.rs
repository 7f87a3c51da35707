// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which thread runs the dispatcher.
//!
//! At most one leads: it polls the CQ, and sleeps on the channel when there is nothing. The others wait for their futures. A thread
//! leads only while it is in a function of the dispatcher, so it always goes on. The future of a task does not: it may be forgotten,
//! or not be polled again. So no task leads.
//!
//! | state | leader | followers |
//! |---|---|---|
//! | free | none | none |
//! | led | a thread | none |
//! | awaited | a thread | any |
//! | open | none: a thread was called | any |
//!
//! When the leader leaves, because its own future is ready, it calls one thread that follows; if none does, all tasks that follow. A
//! thread follows only while it is parked, so one that was called leads next, or calls another one before it runs code of the program.

use crate::sync::{AtomicU8, Mutex, Ordering, lock};
use core::task::Waker;
use std::collections::BTreeMap;
use uverbs_core::wake::{Caller, Place, Waiters, Wakes};

const FREE: u8 = 0;
const LED: u8 = 1;
/// This state, and the next one, begin and end under the lock of the followers.
const AWAITED: u8 = 2;
const OPEN: u8 = 3;

#[derive(Debug, Default)]
struct Followers {
    /// By their numbers.
    threads: BTreeMap<u64, Waker>,
    tasks: Waiters,
    last: u64,
}

impl Followers {
    fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.tasks.is_empty()
    }
}

/// The number of a thread among the followers, if it is one. The thread that was called has none any more.
#[derive(Debug, Default)]
pub(crate) struct FollowerId(Option<u64>);

impl FollowerId {
    /// Whether it has had one since it last left.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.0.is_some()
    }
}

#[derive(Debug)]
pub(crate) struct LeaderLock {
    state: AtomicU8,
    followers: Mutex<Followers>,
}

impl LeaderLock {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(FREE), followers: Mutex::new(Followers::default()) }
    }

    #[inline]
    fn replace(&self, from: u8, to: u8) -> bool {
        // What one leader did is visible to the next. The order of all is that in which tasks of tokio announce themselves, and look
        // whether a thread leads.
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Begins to lead. If another thread leads, this one has a place among the followers, and is woken when it may lead: it then calls
    /// this, or [`leave`](Self::leave). `waker` only wakes the thread, so it is no code of the program.
    #[inline]
    pub(crate) fn try_lead(
        &self,
        place: &mut FollowerId,
        waker: impl FnOnce() -> Waker,
    ) -> Option<LeaderGuard<'_>> {
        (self.replace(FREE, LED) || self.follow(place, waker)).then(|| LeaderGuard { leader_lock: self })
    }

    /// Waits for the leader to leave. Returns whether it has left already, and this one leads.
    #[cold]
    fn follow(&self, place: &mut FollowerId, waker: impl FnOnce() -> Waker) -> bool {
        let mut followers = lock(&self.followers);
        loop {
            match self.state.load(Ordering::Relaxed) {
                // A leader that leaves finds the state, and then the waker, because it takes the lock.
                AWAITED => break,
                OPEN => {
                    place.0.take().and_then(|number| followers.threads.remove(&number));
                    let state = if followers.is_empty() { LED } else { AWAITED };
                    self.state.store(state, Ordering::SeqCst);
                    return true;
                }
                FREE if self.replace(FREE, LED) => return true,
                LED if self.replace(LED, AWAITED) => break,
                _ => {}
            }
        }
        if place.0.is_none_or(|number| !followers.threads.contains_key(&number)) {
            followers.last += 1;
            let number = followers.last;
            followers.threads.insert(number, waker());
            place.0 = Some(number);
        }
        false
    }

    /// The thread is parked no longer. If it was called, it calls another one.
    pub(crate) fn leave(&self, place: &mut FollowerId) {
        let Some(number) = place.0.take() else { return };
        let mut followers = lock(&self.followers);
        let was_called = followers.threads.remove(&number).is_none();
        if was_called && self.state.load(Ordering::Relaxed) == OPEN {
            let mut wakes = self.call(&mut followers);
            drop(followers);
            wakes.wake();
        }
    }

    /// If a thread leads, or was called: the task has a place among the followers, and is woken when no thread leads any more. Returns
    /// whether it has. The caller holds no lock.
    #[cfg_attr(not(any(feature = "tokio", test)), expect(dead_code, reason = "only tasks of tokio follow"))]
    pub(crate) fn follow_in_task(&self, place: &mut Place, waker: &Waker) -> bool {
        let mut caller = Caller::new(waker);
        loop {
            let mut followers = lock(&self.followers);
            let is_led = loop {
                match self.state.load(Ordering::Relaxed) {
                    // A thread that was called leads, or calls the next, and at last the tasks.
                    AWAITED | OPEN => break true,
                    LED if self.replace(LED, AWAITED) => break true,
                    LED => {}
                    _ => break false,
                }
            };
            if is_led {
                followers.tasks.wait(place, &mut caller);
            }
            drop(followers);
            if !caller.supply() {
                return is_led;
            }
        }
    }

    /// The task does not wait any more. Returns its waker, which the caller discards without its locks.
    #[cfg_attr(not(any(feature = "tokio", test)), expect(dead_code, reason = "only tasks of tokio follow"))]
    pub(crate) fn leave_in_task(&self, place: &mut Place) -> Option<Waker> {
        lock(&self.followers).tasks.leave(place)
    }

    /// Whether one leads, or was called.
    #[cfg(all(feature = "tokio", not(loom)))]
    pub(crate) fn is_taken(&self) -> bool {
        self.state.load(Ordering::SeqCst) != FREE
    }

    /// Whether one leads.
    #[inline]
    pub(crate) fn is_led(&self) -> bool {
        matches!(self.state.load(Ordering::SeqCst), LED | AWAITED)
    }

    /// The end of a leader for which others may wait.
    #[cold]
    fn hand_over(&self) {
        let mut followers = lock(&self.followers);
        let mut wakes = self.call(&mut followers);
        drop(followers);
        wakes.wake();
    }

    /// No one leads. Calls the next.
    fn call(&self, followers: &mut Followers) -> Wakes {
        let mut wakes = Wakes::new();
        // Those that come after this lead themselves.
        if let Some((_, thread)) = followers.threads.pop_first() {
            wakes.push(thread);
            self.state.store(OPEN, Ordering::SeqCst);
        } else {
            followers.tasks.wake_all(&mut wakes);
            self.state.store(FREE, Ordering::SeqCst);
        }
        wakes
    }
}

/// The right to run the dispatcher, until it is dropped.
#[derive(Debug)]
pub(crate) struct LeaderGuard<'a> {
    leader_lock: &'a LeaderLock,
}

impl Drop for LeaderGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.leader_lock.replace(LED, FREE) {
            self.leader_lock.hand_over();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::count::Count;
    use std::sync::Arc;

    fn wakes(counts: &[Arc<Count>]) -> Vec<u32> {
        counts.iter().map(|count| count.0.load(Ordering::Relaxed)).collect()
    }

    fn counts(n: usize) -> Vec<Arc<Count>> {
        core::iter::repeat_with(Arc::default).take(n).collect()
    }

    fn alive(counts: &[Arc<Count>]) -> usize {
        counts.iter().filter(|count| Arc::strong_count(count) > 1).count()
    }

    fn try_lead<'a>(
        leader_lock: &'a LeaderLock,
        place: &mut FollowerId,
        count: &Arc<Count>,
    ) -> Option<LeaderGuard<'a>> {
        leader_lock.try_lead(place, || count.clone().into())
    }

    /// A thread that leads for ever must not collect the wakers of those that waited meanwhile. Two futures of one task do not share
    /// a place.
    #[test]
    fn a_follower_that_leaves_is_forgotten() {
        let leader_lock = LeaderLock::new();
        let counts = counts(10_000);
        let lead = try_lead(&leader_lock, &mut FollowerId::default(), &counts[0]).expect("the first leads");
        let mut places: Vec<_> = counts.iter().map(|_| (Place::default(), Place::default())).collect();
        for (count, (place, other)) in counts.iter().zip(&mut places) {
            let waker = count.clone().into();
            for _ in 0..2 {
                assert!(
                    leader_lock.follow_in_task(place, &waker) && leader_lock.follow_in_task(other, &waker)
                );
            }
            assert_eq!(Arc::strong_count(count), 4, "one waker for each place");
        }
        for (place, _) in &mut places {
            assert!(leader_lock.leave_in_task(place).is_some());
        }
        for (_, other) in &mut places[10..] {
            assert!(leader_lock.leave_in_task(other).is_some());
        }
        assert_eq!((alive(&counts[..10]), alive(&counts[10..])), (10, 0));
        drop(lead);
        assert_eq!((wakes(&counts[..10]), wakes(&counts[10..])), (vec![1; 10], vec![0; 9990]));
        assert_eq!(alive(&counts), 0);
        assert!(
            try_lead(&leader_lock, &mut FollowerId::default(), &counts[0]).is_some(),
            "no one leads any more"
        );
    }

    /// Of many threads each leads in turn: a leader that leaves wakes one.
    #[test]
    fn one_of_many_threads_is_called() {
        const THREADS: usize = 10_000;
        let leader_lock = LeaderLock::new();
        let counts = counts(THREADS);
        let mut places: Vec<_> = counts.iter().map(|_| FollowerId::default()).collect();
        let mut lead = try_lead(&leader_lock, &mut FollowerId::default(), &counts[0]);
        for (count, place) in counts.iter().zip(&mut places) {
            assert!(try_lead(&leader_lock, place, count).is_none());
        }
        for (i, (count, place)) in counts.iter().zip(&mut places).enumerate() {
            drop(lead.take());
            assert!(!leader_lock.is_led());
            assert_eq!(count.0.load(Ordering::Relaxed), 1, "{i} was not called");
            lead = try_lead(&leader_lock, place, count);
            assert!(lead.is_some());
        }
        drop(lead);
        assert_eq!((wakes(&counts), alive(&counts)), (vec![1; THREADS], 0));
    }

    /// A thread that was called does not lead, because its future is ready: it calls the next, and the last one the tasks.
    #[test]
    fn a_thread_that_was_called_calls_another() {
        let leader_lock = LeaderLock::new();
        let threads = counts(3);
        let tasks = counts(2);
        let lead = try_lead(&leader_lock, &mut FollowerId::default(), &threads[0]).unwrap();
        let mut places = [(); 3].map(|()| FollowerId::default());
        for (count, place) in threads.iter().zip(&mut places) {
            assert!(try_lead(&leader_lock, place, count).is_none());
        }
        for task in &tasks {
            assert!(leader_lock.follow_in_task(&mut Place::default(), &task.clone().into()));
        }
        drop(lead);
        let [first, second, third] = &mut places;
        assert_eq!((wakes(&threads), wakes(&tasks)), (vec![1, 0, 0], vec![0, 0]));
        // The second leaves by itself.
        leader_lock.leave(second);
        assert_eq!(wakes(&threads), [1, 0, 0]);
        leader_lock.leave(first);
        assert_eq!((wakes(&threads), wakes(&tasks)), (vec![1, 0, 1], vec![0, 0]));
        // Someone else comes first, and leaves.
        let lead = try_lead(&leader_lock, &mut FollowerId::default(), &threads[1]).unwrap();
        assert!(try_lead(&leader_lock, third, &threads[2]).is_none());
        drop(lead);
        assert_eq!((wakes(&threads), wakes(&tasks)), (vec![1, 0, 2], vec![0, 0]));
        leader_lock.leave(third);
        assert_eq!((wakes(&threads), wakes(&tasks)), (vec![1, 0, 2], vec![1, 1]));
        assert!(try_lead(&leader_lock, &mut FollowerId::default(), &threads[1]).is_some());
    }
}

#[cfg(all(test, loom))]
pub(crate) mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};
    use std::task::Wake;

    /// A waker like that of `block_on`: it stores that it was woken.
    #[derive(Default)]
    pub(crate) struct Flag {
        woken: Mutex<bool>,
        changed: Condvar,
    }

    impl Wake for Flag {
        fn wake(self: std::sync::Arc<Self>) {
            *self.woken.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    impl Flag {
        pub(crate) fn wait(&self) {
            let mut woken = self.woken.lock().unwrap();
            while !*woken {
                woken = self.changed.wait(woken).unwrap();
            }
            *woken = false;
        }
    }

    fn lead_once(leader_lock: &LeaderLock) {
        let flag = std::sync::Arc::new(Flag::default());
        let mut place = FollowerId::default();
        while leader_lock.try_lead(&mut place, || flag.clone().into()).is_none() {
            flag.wait();
        }
    }

    /// Each of two threads has to lead once. If the leader left without waking the other, that one would wait for ever, which
    /// loom reports as a deadlock.
    #[test]
    fn a_follower_leads_after_the_leader() {
        loom::model(|| {
            let leader_lock = Arc::new(LeaderLock::new());
            let other = loom::thread::spawn({
                let leader_lock = leader_lock.clone();
                move || lead_once(&leader_lock)
            });
            lead_once(&leader_lock);
            other.join().unwrap();
        });
    }

    /// Three threads, of which one follows once and then leaves without leading, and a task.
    #[test]
    fn a_follower_that_leaves_passes_its_call_on() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let leader_lock = Arc::new(LeaderLock::new());
            let spawn = |f: fn(&LeaderLock)| {
                let leader_lock = leader_lock.clone();
                loom::thread::spawn(move || f(&leader_lock))
            };
            let threads = [
                spawn(lead_once),
                spawn(|leader_lock| {
                    let flag = std::sync::Arc::new(Flag::default());
                    let mut place = FollowerId::default();
                    drop(leader_lock.try_lead(&mut place, || flag.clone().into()));
                    leader_lock.leave(&mut place);
                }),
            ];
            let flag = std::sync::Arc::new(Flag::default());
            let mut place = Place::default();
            while leader_lock.follow_in_task(&mut place, &flag.clone().into()) {
                flag.wait();
            }
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(!leader_lock.is_led());
        });
    }
}
