// SPDX-License-Identifier: MIT OR Apache-2.0
//! The waker of a future that runs in a task together with its dispatcher.
//!
//! While the task polls the CQ, a completion for the future only has to be noted, because the task polls the future next. To wake
//! the task for it would cost another round of its executor. So the waker of the task is used only while the task waits:
//!
//! | state | next |
//! |---|---|
//! | running | woken, by a wake; waiting, when the task has nothing to do |
//! | woken | running, when the task polls the future |
//! | waiting | woken, by a wake, which also wakes the task; running, when the task was woken for another reason |

use crate::sync::{AtomicU8, Mutex, Ordering, lock};
use core::task::Waker;
use std::sync::Arc;
use std::task::Wake;

const RUNNING: u8 = 0;
const WOKEN: u8 = 1;
const WAITING: u8 = 2;

#[derive(Debug)]
pub(crate) struct Relay {
    state: AtomicU8,
    /// The task, from its first wait on.
    task: Mutex<Option<Waker>>,
}

impl Relay {
    /// For a future that was not polled yet.
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(WOKEN), task: Mutex::new(None) }
    }

    /// Whether the future was woken.
    #[inline]
    pub(crate) fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) == WOKEN
    }

    /// Wakes the future, in the task itself while it runs.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn note(&self) {
        // Another wake may have come first: the acquire pairs with its release.
        self.state.swap(WOKEN, Ordering::Acquire);
    }

    /// Ends a wait. Returns whether the future was woken, and has to be polled.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        // The acquire pairs with the release of the wake: what was done before the wake is visible to the future.
        self.state.swap(RUNNING, Ordering::Acquire) == WOKEN
    }

    /// Begins a wait, or goes on with one, in a task with this waker. Returns whether the future was woken instead.
    pub(crate) fn wait(&self, waker: &Waker) -> bool {
        let mut task = lock(&self.task);
        let old = match &*task {
            Some(old) if old.will_wake(waker) => None,
            _ => task.replace(waker.clone()),
        };
        drop(task);
        drop(old);
        // The release pairs with the acquire of the wake, which finds the waker.
        self.state.load(Ordering::Relaxed) != WAITING
            && self.state.compare_exchange(RUNNING, WAITING, Ordering::Release, Ordering::Relaxed).is_err()
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == WAITING {
            let task = lock(&self.task).clone();
            if let Some(task) = task {
                task.wake();
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::lead::loom_tests::Flag;
    use crate::sync::AtomicBool;

    /// Two wakes of another thread, with something to find each time. If the task missed one, it would wait for ever, which loom
    /// reports as a deadlock.
    #[test]
    fn no_wake_is_lost() {
        loom::model(|| {
            let relay = Arc::new(Relay::new());
            let done = loom::sync::Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let other = loom::thread::spawn({
                let (waker, done) = (Waker::from(relay.clone()), done.clone());
                move || {
                    for flag in &*done {
                        flag.store(true, Ordering::Relaxed);
                        waker.wake_by_ref();
                    }
                }
            });
            let woken = Arc::new(Flag::default());
            let task = Waker::from(woken.clone());
            loop {
                if relay.take() && done.iter().all(|flag| flag.load(Ordering::Relaxed)) {
                    break;
                }
                while !relay.wait(&task) {
                    woken.wait();
                    if relay.is_woken() {
                        break;
                    }
                }
            }
            other.join().unwrap();
        });
    }
}
