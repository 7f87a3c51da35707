// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tasks that read and write a stream, which may be two: both are woken when anything happens.
//!
//! A task registers only if it has to wait, so it looks again after that:
//!
//! | task | others |
//! |---|---|
//! | take what has happened | `wake`: note that something happened |
//! | nothing to do: `register`, under the lock | take the wakers, under the lock |
//! | look whether something happened | wake them |
//!
//! If the waker is stored after the others have taken the list, the task sees what they noted before.

use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use core::task::Waker;
use std::sync::{Arc, PoisonError};
use std::task::Wake;
use uverbs_core::wake::{Caller, Wakes, discard};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Read,
    Write,
}

#[derive(Debug)]
pub(crate) struct Tasks {
    /// Whether anything happened since the stream last took what has arrived and what is complete.
    any: AtomicBool,
    wakers: Mutex<[Option<Waker>; 2]>,
}

impl Tasks {
    /// Of a stream that has taken nothing yet.
    pub(crate) fn new() -> Self {
        Self { any: AtomicBool::new(true), wakers: Mutex::new([None, None]) }
    }

    /// Whether anything happened.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Before the stream takes what has happened: what happens after this wakes the tasks again.
    #[inline]
    pub(crate) fn begin(&self) {
        // Pairs with the release of the wake.
        self.any.swap(false, Ordering::Acquire);
    }

    /// Wakes the task when anything happens. Returns whether something has happened already, perhaps before this.
    pub(crate) fn register(&self, side: Side, waker: &Waker) -> bool {
        // A wake has taken the last one.
        let mut caller = Caller::with_clone(waker);
        let mut wakers = lock(&self.wakers);
        let [read, write] = &mut *wakers;
        let entry = match side {
            Side::Read => read,
            Side::Write => write,
        };
        match entry {
            Some(place) => {
                caller.store(place);
            }
            none => *none = caller.take(),
        }
        drop(wakers);
        self.any()
    }

    /// Notes that something happened. The caller wakes the tasks.
    #[inline]
    pub(crate) fn note(&self, wakes: &mut Vec<Waker>) {
        if self.is_first() {
            let [read, write] = self.take();
            wakes.extend(read);
            wakes.extend(write);
        }
    }

    /// Notes that something happened. Returns whether the tasks do not know yet.
    #[inline]
    fn is_first(&self) -> bool {
        // The release pairs with the acquire in `begin`. It comes before the lock, see above.
        !self.any.swap(true, Ordering::Release)
    }

    #[inline]
    fn take(&self) -> [Option<Waker>; 2] {
        core::mem::take(&mut *lock(&self.wakers))
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in self.wakers.get_mut().unwrap_or_else(PoisonError::into_inner) {
            discard(task.take());
        }
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_first() {
            let mut wakes = Wakes::new();
            wakes.extend(self.take().into_iter().flatten());
            wakes.wake();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::count::{Count, Panics};

    /// The waker of one side panics, by whichever way the tasks are woken.
    #[test]
    fn a_waker_that_panics_does_not_keep_the_other_task_from_being_woken() {
        for by_ref in [false, true] {
            let tasks = Arc::new(Tasks::new());
            let (read, write) = (Arc::new(Panics::default()), Arc::new(Count::default()));
            tasks.begin();
            assert!(!tasks.register(Side::Read, &read.clone().into()));
            assert!(!tasks.register(Side::Write, &write.clone().into()));
            if by_ref {
                tasks.wake_by_ref();
            } else {
                tasks.clone().wake();
            }
            assert!(tasks.any());
            assert_eq!([&read.0, &write.0].map(|count| count.load(Ordering::Relaxed)), [1, 1]);
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
    fn a_task_that_registers_late_misses_no_wake() {
        loom::model(|| {
            let tasks = Arc::new(Tasks::new());
            let done = loom::sync::Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let other = loom::thread::spawn({
                let (tasks, done) = (tasks.clone(), done.clone());
                move || {
                    let [first, second] = &*done;
                    first.store(true, Ordering::Relaxed);
                    Waker::from(tasks.clone()).wake();
                    second.store(true, Ordering::Relaxed);
                    let mut wakes = Vec::new();
                    tasks.note(&mut wakes);
                    wakes.into_iter().for_each(Waker::wake);
                }
            });
            let woken = Arc::new(Flag::default());
            let task = Waker::from(woken.clone());
            let all_done = || {
                if tasks.any() {
                    tasks.begin();
                }
                done.iter().all(|flag| flag.load(Ordering::Relaxed))
            };
            while !all_done() {
                if !tasks.register(Side::Read, &task) || !all_done() {
                    woken.wait();
                }
            }
            other.join().unwrap();
        });
    }
}
