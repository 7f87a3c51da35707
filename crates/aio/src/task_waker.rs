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
//! | waiting | woken, by a wake, which also wakes the task; running, by a call, which also wakes the task, and when the task was woken for another reason |

use crate::sync::{AtomicBool, AtomicU8, Mutex, Ordering, lock};
use core::task::Waker;
use std::sync::{Arc, PoisonError};
use std::task::Wake;
use uverbs_core::wake::{discard, wake_by_ref};

const RUNNING: u8 = 0;
const WOKEN: u8 = 1;
const WAITING: u8 = 2;

#[derive(Debug)]
pub(crate) struct TaskWaker {
    state: AtomicU8,
    /// The task, from its first wait on. It is not cloned under the lock.
    task: Mutex<Option<Arc<Waker>>>,
    /// Noted when a task that waits is woken: it runs the dispatcher next.
    woke: Arc<AtomicBool>,
    /// Whether it is in a list of those that can be called.
    #[cfg(not(loom))]
    is_listed: AtomicBool,
}

impl TaskWaker {
    /// For a future that was not polled yet.
    pub(crate) fn new(woke: Arc<AtomicBool>) -> Self {
        Self {
            state: AtomicU8::new(WOKEN),
            task: Mutex::new(None),
            woke,
            #[cfg(not(loom))]
            is_listed: AtomicBool::new(false),
        }
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
        // Only the task changes it.
        let is_known = lock(&self.task).as_ref().is_some_and(|task| task.will_wake(waker));
        if !is_known {
            let task = Arc::new(waker.clone());
            let old = lock(&self.task).replace(task);
            discard(old.and_then(Arc::into_inner));
        }
        // The release pairs with the acquire of the wake, which finds the waker.
        self.state.load(Ordering::Relaxed) != WAITING
            && self.state.compare_exchange(RUNNING, WAITING, Ordering::Release, Ordering::Relaxed).is_err()
    }
}

impl TaskWaker {
    /// Wakes the task if it waits: it runs the dispatcher. Returns whether it waited.
    #[cfg(not(loom))]
    pub(crate) fn call(&self) -> bool {
        let waited =
            self.state.compare_exchange(WAITING, RUNNING, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if waited {
            self.wake_task();
        }
        waited
    }

    /// Notes whether it is in a list. Returns whether it was.
    #[cfg(not(loom))]
    pub(crate) fn set_listed(&self, is_listed: bool) -> bool {
        self.is_listed.swap(is_listed, Ordering::Relaxed)
    }

    /// Whether the task waits, and was neither woken nor called.
    #[cfg(not(loom))]
    pub(crate) fn waits(&self) -> bool {
        self.state.load(Ordering::Acquire) == WAITING
    }

    fn wake_task(&self) {
        let task = lock(&self.task).clone();
        if let Some(task) = task {
            self.woke.store(true, Ordering::Relaxed);
            wake_by_ref(&task);
            discard(Arc::into_inner(task));
        }
    }
}

impl Drop for TaskWaker {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        discard(task.and_then(Arc::into_inner));
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == WAITING {
            self.wake_task();
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::leader::loom_tests::Flag;

    /// Two wakes of another thread, with something to find each time. If the task missed one, it would wait for ever, which loom
    /// reports as a deadlock.
    #[test]
    fn no_wake_is_lost() {
        loom::model(|| {
            let task_waker = Arc::new(TaskWaker::new(Arc::new(AtomicBool::new(false))));
            let done = loom::sync::Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let other = loom::thread::spawn({
                let (waker, done) = (Waker::from(task_waker.clone()), done.clone());
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
                if task_waker.take() && done.iter().all(|flag| flag.load(Ordering::Relaxed)) {
                    break;
                }
                while !task_waker.wait(&task) {
                    woken.wait();
                    if task_waker.is_woken() {
                        break;
                    }
                }
            }
            other.join().unwrap();
        });
    }
}
