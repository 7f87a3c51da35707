// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deadlines: the dispatcher wakes the tasks that wait for a time.

use crate::error::Error;
use crate::sleeper::Sleeper;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
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
    fn set(&self, at: Duration, number: &mut Option<u64>, waker: &Waker) -> bool {
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

    fn cancel(&self, at: Duration, number: u64) {
        let mut state = lock(&self.state);
        let waker = state.wakers.remove(&(at, number));
        self.any.store(!state.wakers.is_empty(), Ordering::Relaxed);
        drop(state);
        discard(waker);
    }
}

/// Waits until a time; see [`Dispatcher::sleep`](crate::Dispatcher::sleep).
#[derive(Debug)]
pub struct Sleep {
    sleeper: Arc<Sleeper>,
    at: Duration,
    number: Option<u64>,
}

impl Sleep {
    pub(crate) fn new(sleeper: Arc<Sleeper>, time: Duration) -> Self {
        // In a child of fork(2) the clock may wait for a thread that the child does not have.
        let now = if sleeper.is_forked() { Duration::ZERO } else { sleeper.now() };
        let at = now.saturating_add(time);
        Self { sleeper, at, number: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // In a child of fork(2) nothing would end the sleep.
        if self.sleeper.is_forked() || self.sleeper.now() >= self.at {
            return Poll::Ready(());
        }
        let this = &mut *self;
        if this.sleeper.timers().set(this.at, &mut this.number, cx.waker()) {
            // A dispatcher that sleeps would sleep until the deadline that was the first before.
            this.sleeper.wake_up();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number
            && !self.sleeper.is_forked()
        {
            self.sleeper.timers().cancel(self.at, number);
        }
    }
}

pin_project_lite::pin_project! {
    /// A future with a time limit; see [`Dispatcher::timeout`](crate::Dispatcher::timeout).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F> Timeout<F> {
    pub(crate) fn new(future: F, sleep: Sleep) -> Self {
        Self { future, sleep }
    }
}

impl<F: Future<Output = Result<T, E>>, T, E: From<Error>> Future for Timeout<F> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(output);
        }
        Pin::new(this.sleep).poll(cx).map(|()| Err(Error::TimedOut.into()))
    }
}
