// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which thread or task runs the dispatcher.
//!
//! At most one leads: it polls the CQ, and sleeps on the channel when there is nothing. The others wait for their futures. When
//! the leader leaves, because its own future is ready, all others are woken, and one of them leads next. So the CQ is
//! polled as long as anyone waits.

use crate::sync::{AtomicU8, Mutex, Ordering, lock};
use core::task::Waker;

/// No one leads.
const FREE: u8 = 0;
/// One leads, and no other waits.
const LED: u8 = 1;
/// One leads, and others may wait: their wakers are in the list. This state begins and ends under the lock of the list.
const AWAITED: u8 = 2;

#[derive(Debug)]
pub(crate) struct Leadership {
    state: AtomicU8,
    followers: Mutex<Vec<Waker>>,
}

impl Leadership {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(FREE), followers: Mutex::new(Vec::new()) }
    }

    #[inline]
    fn replace(&self, from: u8, to: u8) -> bool {
        // What one leader did is visible to the next.
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Begins to lead; or, if another one leads, wakes `waker` when that one leaves.
    #[inline]
    pub(crate) fn try_lead(&self, waker: &Waker) -> Option<Lead<'_>> {
        (self.replace(FREE, LED) || self.follow(waker)).then(|| Lead { leadership: self })
    }

    /// Waits for the leader to leave. Returns whether it has left already, and this one leads.
    #[cold]
    fn follow(&self, waker: &Waker) -> bool {
        let mut followers = lock(&self.followers);
        // A leader that leaves finds the state, and then the waker, because it takes the lock.
        while self.state.load(Ordering::Relaxed) != AWAITED && !self.replace(LED, AWAITED) {
            if self.replace(FREE, LED) {
                return true;
            }
        }
        if !followers.iter().any(|follower| follower.will_wake(waker)) {
            followers.push(waker.clone());
        }
        false
    }

    /// Whether one leads.
    pub(crate) fn is_led(&self) -> bool {
        self.state.load(Ordering::Acquire) != FREE
    }

    /// The task does not wait to lead any more.
    pub(crate) fn leave(&self, waker: &Waker) {
        let mut followers = lock(&self.followers);
        let at = followers.iter().position(|follower| follower.will_wake(waker));
        let left = at.map(|at| followers.swap_remove(at));
        drop(followers);
        drop(left);
    }

    /// The end of a leader for which others may wait.
    #[cold]
    fn hand_over(&self) {
        let mut state = lock(&self.followers);
        let followers = core::mem::take(&mut *state);
        // Those that come after this lead themselves.
        self.state.store(FREE, Ordering::Release);
        drop(state);
        followers.into_iter().for_each(Waker::wake);
    }
}

/// The right to run the dispatcher, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lead<'a> {
    leadership: &'a Leadership,
}

impl Drop for Lead<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.leadership.replace(LED, FREE) {
            self.leadership.hand_over();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::task::Wake;

    struct Nothing;

    impl Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    /// A thread that leads for ever must not collect the wakers of those that waited meanwhile.
    #[test]
    fn a_follower_that_leaves_is_forgotten() {
        let leadership = Leadership::new();
        let lead = leadership.try_lead(Waker::noop()).expect("the first leads");
        for _ in 0..3 {
            let task = Arc::new(Nothing);
            let waker = Waker::from(task.clone());
            assert!(leadership.try_lead(&waker).is_none() && leadership.try_lead(&waker).is_none());
            leadership.leave(&waker);
            drop(waker);
            assert_eq!(Arc::strong_count(&task), 1, "its waker is kept");
        }
        drop(lead);
        assert!(leadership.try_lead(Waker::noop()).is_some(), "no one leads any more");
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

    /// Each of two threads has to lead once. If the leader left without waking the other, that one would wait for ever, which
    /// loom reports as a deadlock.
    #[test]
    fn a_follower_leads_after_the_leader() {
        loom::model(|| {
            let leadership = Arc::new(Leadership::new());
            let lead_once = |leadership: &Leadership| {
                let flag = std::sync::Arc::new(Flag::default());
                let waker = Waker::from(flag.clone());
                while leadership.try_lead(&waker).is_none() {
                    flag.wait();
                }
            };
            let other = loom::thread::spawn({
                let leadership = leadership.clone();
                move || lead_once(&leadership)
            });
            lead_once(&leadership);
            other.join().unwrap();
        });
    }
}
