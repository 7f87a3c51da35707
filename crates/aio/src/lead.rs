// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which thread or task runs the dispatcher.
//!
//! At most one leads: it polls the CQ, and sleeps on the channel when there is nothing. The others wait for their futures. When
//! the leader leaves, because its own future is ready, all others are woken, and one of them leads next. So the CQ is
//! polled as long as anyone waits.

use crate::sync::{Mutex, lock};
use core::task::Waker;

#[derive(Debug, Default)]
struct State {
    taken: bool,
    followers: Vec<Waker>,
}

#[derive(Debug)]
pub(crate) struct Leadership {
    state: Mutex<State>,
}

impl Leadership {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::default()) }
    }

    /// Begins to lead; or, if another one leads, wakes `waker` when that one leaves.
    pub(crate) fn try_lead(&self, waker: &Waker) -> Option<Lead<'_>> {
        let mut state = lock(&self.state);
        if state.taken {
            if !state.followers.iter().any(|follower| follower.will_wake(waker)) {
                state.followers.push(waker.clone());
            }
            return None;
        }
        state.taken = true;
        Some(Lead { leadership: self })
    }

    /// The task does not wait to lead any more.
    pub(crate) fn leave(&self, waker: &Waker) {
        let mut state = lock(&self.state);
        let at = state.followers.iter().position(|follower| follower.will_wake(waker));
        let left = at.map(|at| state.followers.swap_remove(at));
        drop(state);
        drop(left);
    }
}

/// The right to run the dispatcher, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lead<'a> {
    leadership: &'a Leadership,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.leadership.state);
        state.taken = false;
        if state.followers.is_empty() {
            return;
        }
        let followers = core::mem::take(&mut state.followers);
        drop(state);
        followers.into_iter().for_each(Waker::wake);
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
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};
    use std::task::Wake;

    /// A waker like that of `block_on`: it stores that it was woken.
    #[derive(Default)]
    struct Flag {
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
        fn wait(&self) {
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
