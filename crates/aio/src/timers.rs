// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deadlines: the dispatcher wakes the tasks that wait for a time.

use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use core::fmt;
use core::task::Waker;
use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;
use uverbs_core::wake::discard;

/// The time by which deadlines are measured. A test passes that of a virtual clock.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time since any fixed moment. It does not go back.
    fn now(&self) -> Duration;
}

/// The monotonic clock of the system.
#[derive(Debug)]
pub(crate) struct Monotonic(Instant);

impl Monotonic {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

#[derive(Debug, Default)]
struct State {
    wakers: BTreeMap<(Duration, u64), Waker>,
    next: u64,
}

#[derive(Debug)]
pub(crate) struct Timers {
    state: Mutex<State>,
    /// Whether there is a timer. It changes under the lock; a dispatcher that sleeps is woken after it was set.
    any: AtomicBool,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::default()), any: AtomicBool::new(false) }
    }

    /// The first deadline.
    #[inline]
    pub(crate) fn next(&self) -> Option<Duration> {
        if self.any.load(Ordering::Relaxed) { self.first() } else { None }
    }

    fn first(&self) -> Option<Duration> {
        lock(&self.state).wakers.keys().next().map(|(at, _)| *at)
    }

    /// Takes the wakers that are due.
    #[inline]
    pub(crate) fn fire(&self, now: impl FnOnce() -> Duration, wakes: &mut Vec<Waker>) {
        if self.any.load(Ordering::Relaxed) {
            self.fire_due(now(), wakes);
        }
    }

    fn fire_due(&self, now: Duration, wakes: &mut Vec<Waker>) {
        let mut state = lock(&self.state);
        while let Some(entry) = state.wakers.first_entry()
            && entry.key().0 <= now
        {
            wakes.push(entry.remove());
        }
        self.any.store(!state.wakers.is_empty(), Ordering::Relaxed);
    }

    /// Sets or replaces a timer. Returns whether it is the first one now.
    pub(crate) fn set(&self, at: Duration, number: &mut Option<u64>, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut state = lock(&self.state);
        let number = *number.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        let old = state.wakers.insert((at, number), waker);
        self.any.store(true, Ordering::Relaxed);
        let is_first = state.wakers.keys().next() == Some(&(at, number));
        // Its drop may run code of the program.
        drop(state);
        discard(old);
        is_first
    }

    pub(crate) fn cancel(&self, at: Duration, number: u64) {
        let mut state = lock(&self.state);
        let waker = state.wakers.remove(&(at, number));
        self.any.store(!state.wakers.is_empty(), Ordering::Relaxed);
        drop(state);
        discard(waker);
    }
}
