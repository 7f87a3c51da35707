// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a dispatcher: by a thread that waits for its own future, or by a thread of its own.

use crate::dispatcher::{Dispatcher, FORKED, Inner};
use crate::error::{Error, Result};
use crate::leader::FollowerId;
use crate::sleeper::{RunGuard, Sleeper};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use crate::wakeup::Who;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, JoinHandle, Thread};
use uverbs::{Driver, PollError};
use uverbs_core::wake::{Caller, Wakes};

/// The time for which an idle CQ is polled: the whole budget after a completion, half as much after each time for nothing.
#[derive(Debug)]
pub(crate) struct Spin {
    most: Duration,
    budget: Duration,
    since: Option<Duration>,
}

impl Spin {
    pub(crate) fn new(most: Duration) -> Self {
        Self { most, budget: most, since: None }
    }

    /// Whether the dispatcher sleeps at once if there is no completion.
    pub(crate) fn is_off(&self) -> bool {
        self.most.is_zero()
    }

    /// There was a completion.
    pub(crate) fn hit(&mut self) {
        (self.budget, self.since) = (self.most, None);
    }

    /// There was none. Returns whether to poll again without arming the CQ.
    pub(crate) fn again(&mut self, now: impl FnOnce() -> Duration) -> bool {
        if self.budget.is_zero() {
            return false;
        }
        let now = now();
        if now.saturating_sub(*self.since.get_or_insert(now)) < self.budget {
            return true;
        }
        self.budget = (self.budget / 2).max(self.most / 16);
        self.since = None;
        false
    }
}

/// How many polls pass between two checks of the descriptors, if the CQ is never idle.
const BUSY_POLLS: u32 = 256;

/// The thread or task that leads.
pub(crate) trait Leader {
    const WHO: Who;

    /// Whether it was woken: it has something else to do.
    fn is_woken(&self) -> bool;

    /// Whether this waker is its own; if so, notes the wake. It neither sleeps nor waits for the lead, so that is all that the
    /// waker would do.
    fn takes(&self, waker: &Waker) -> bool;
}

/// When the leader polls, arms the CQ, and sleeps: the part that threads and tasks of tokio share.
#[derive(Debug)]
pub(crate) struct Rounds {
    spin: Spin,
    /// Whether the next poll is the one before a sleep: the CQ is armed for it.
    last: bool,
    /// Whether the channel was readable after the last sleep.
    event: bool,
    polls: u32,
}

/// What the leader does after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There were completions, or tasks to wake.
    Work,
    /// As `Work`, and the descriptors were not read for long: calls [`Rounds::slept`] without sleeping.
    Check,
    /// Nothing happened; polls again.
    Again,
    /// Sleeps until a descriptor is readable, and then calls [`Rounds::slept`].
    Sleep,
}

impl Rounds {
    pub(crate) fn new(spin: Duration) -> Self {
        let spin = Spin::new(spin);
        Self { last: spin.is_off(), spin, event: false, polls: 0 }
    }

    /// Whether the next round is the one before a sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn sleeps_next(&self) -> bool {
        self.last
    }

    /// The next round is the one before a sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn stop_spinning(&mut self) {
        self.last = true;
    }

    /// Whether it sleeps at once if there is no completion.
    #[cfg(feature = "tokio")]
    pub(crate) fn never_spins(&self) -> bool {
        self.spin.is_off()
    }

    /// Polls once; `wakes` is empty before and after it. If the result is [`Next::Sleep`], others can end the sleep.
    #[inline]
    pub(crate) fn poll<D: Driver, L: Leader>(
        &mut self,
        inner: &Inner<D>,
        leader: &L,
        wakes: &mut Wakes,
    ) -> Result<Next, PollError> {
        let sleeper: &Sleeper = inner.sleeper();
        if self.last {
            sleeper.announce(L::WHO);
        }
        let event = core::mem::take(&mut self.event);
        let polled = inner.poll(event, self.last, wakes);
        if matches!(polled, Ok(0)) && wakes.is_empty() && !leader.is_woken() {
            if self.last {
                return Ok(Next::Sleep);
            }
            self.last = !self.spin.again(|| sleeper.now());
            return Ok(Next::Again);
        }
        if self.last {
            sleeper.cancel(L::WHO);
        }
        match wakes.as_slice() {
            [] => {}
            [one] if leader.takes(one) => wakes.clear(),
            _ => wakes.wake(),
        }
        if polled? > 0 {
            self.spin.hit();
        }
        self.last = self.spin.is_off();
        self.polls = self.polls.wrapping_add(1);
        Ok(if self.polls.is_multiple_of(BUSY_POLLS) { Next::Check } else { Next::Work })
    }

    /// Reads the descriptors, after the sleep or as a sleep of at most `limit`.
    #[inline]
    pub(crate) fn slept<D: Driver, L: Leader>(
        &mut self,
        inner: &Inner<D>,
        _: &L,
        limit: Option<Duration>,
        wakes: &mut Wakes,
    ) -> Result<()> {
        if inner.sleeper().is_forked() {
            return Err(FORKED);
        }
        self.sleep::<D, L>(inner, limit, wakes)
    }

    /// As [`slept`](Self::slept), right after [`poll`](Self::poll) has returned [`Next::Sleep`]: it has found that this is no child of
    /// fork(2), and no code of the program has run since.
    #[inline]
    fn sleep<D: Driver, L: Leader>(
        &mut self,
        inner: &Inner<D>,
        limit: Option<Duration>,
        wakes: &mut Wakes,
    ) -> Result<()> {
        let slept = inner.sleep(limit, wakes);
        inner.sleeper().cancel(L::WHO);
        wakes.wake();
        // What ended the sleep is polled first: the CQ is armed if that was the last.
        self.last = false;
        // If this leader polls no more, the channel stays readable for the next one.
        self.event |= slept?.channel;
        Ok(())
    }
}

impl<D: Driver> Inner<D> {
    /// Polls, spins and sleeps, until the leader is woken. `wakes` is empty before and after it.
    fn run_until<L: Leader>(&self, rounds: &mut Rounds, leader: &L, wakes: &mut Wakes) -> Result<()> {
        loop {
            match rounds.poll(self, leader, wakes)? {
                Next::Work => {}
                Next::Again => core::hint::spin_loop(),
                Next::Check => rounds.slept(self, leader, Some(Duration::ZERO), wakes)?,
                Next::Sleep => rounds.sleep::<D, L>(self, self.sleeper().time_to_sleep(), wakes)?,
            }
            if leader.is_woken() {
                return Ok(());
            }
        }
    }
}

/// Wakes a thread that is parked, or leads.
#[derive(Debug)]
struct ThreadWaker {
    woken: AtomicBool,
    thread: Thread,
    sleeper: Arc<Sleeper>,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The release pairs with the acquire in `block_on`: what was done before the wake is visible to the task. A thread that
        // wakes itself is neither parked nor asleep: then these are two atomic operations, which cost less than finding that out.
        if !self.woken.swap(true, Ordering::Release) {
            self.thread.unpark();
            self.sleeper.wake_up();
        }
    }
}

/// The thread that leads.
struct LeadingThread<'a> {
    state: &'a ThreadWaker,
    waker: &'a Waker,
}

impl Leader for LeadingThread<'_> {
    const WHO: Who = Who::Leader;

    #[inline]
    fn is_woken(&self) -> bool {
        self.state.woken.load(Ordering::Acquire)
    }

    #[inline]
    fn takes(&self, waker: &Waker) -> bool {
        let own = waker.will_wake(self.waker);
        if own {
            // Another wake may have come first: the acquire pairs with its release.
            self.state.woken.swap(true, Ordering::Acquire);
        }
        own
    }
}

/// Ends the wait of a thread that is parked. Its future was not woken.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A thread that may wait to lead, until this is dropped.
struct Follower<'a> {
    sleeper: &'a Sleeper,
    number: FollowerId,
}

impl<'a> Follower<'a> {
    fn new(sleeper: &'a Sleeper) -> Self {
        Self { sleeper, number: FollowerId::default() }
    }

    #[inline]
    fn try_lead(&mut self, thread: &Thread) -> Option<RunGuard<'a>> {
        self.sleeper.try_lead(&mut self.number, || Waker::from(Arc::new(Unpark(thread.clone()))))
    }

    /// The thread is parked no longer.
    #[inline]
    fn leave(&mut self) {
        if self.number.is_taken() && !self.sleeper.is_forked() {
            self.sleeper.leader_lock().leave(&mut self.number);
        }
    }
}

impl Drop for Follower<'_> {
    #[inline]
    fn drop(&mut self) {
        self.leave();
    }
}

impl<D: Driver> Dispatcher<D> {
    /// Waits for a future, and runs the dispatcher meanwhile: the completions arrive in this thread. If another thread runs it
    /// already, this one only waits.
    ///
    /// A waker must not call it for a future that is not ready: the thread that calls the waker runs the dispatcher.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let inner = &self.inner;
        let state = Arc::new(ThreadWaker {
            woken: AtomicBool::new(true),
            thread: thread::current(),
            sleeper: inner.sleeper().clone(),
        });
        let waker = Waker::from(state.clone());
        let mut cx = Context::from_waker(&waker);
        let mut follower = Follower::new(inner.sleeper());
        let mut rounds = Rounds::new(inner.sleeper().spin());
        let mut wakes = Wakes::new();
        loop {
            if state.woken.swap(false, Ordering::Acquire) {
                follower.leave();
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return output;
                }
            }
            if inner.sleeper().is_forked() {
                // The dispatcher is the parent's. Its futures are ready, and this one waits for something else.
                if !state.woken.load(Ordering::Acquire) {
                    thread::park();
                }
            } else if let Some(lead) = follower.try_lead(&state.thread) {
                let leader = LeadingThread { state: &state, waker: &waker };
                if let Err(error) = inner.run_until(&mut rounds, &leader, &mut wakes) {
                    // All operations have ended with this error. The next round runs the timers only.
                    log::error!("dispatcher: {error}");
                }
                drop(lead);
            } else if !state.woken.load(Ordering::Acquire) {
                thread::park();
            }
        }
    }

    /// Runs the dispatcher in a thread of its own, until the value is dropped.
    ///
    /// # Errors
    /// There are too many threads.
    pub fn spawn(&self) -> Result<DispatcherThread> {
        self.inner.check()?;
        let stop = Arc::new(Stop::default());
        let dispatcher = self.clone();
        let wanted = stop.clone();
        let thread = thread::Builder::new()
            .name("uverbs-aio".into())
            .spawn(move || dispatcher.block_on(wanted.wait()))?;
        Ok(DispatcherThread { stop, thread: Some(thread), sleeper: self.inner.sleeper().clone() })
    }
}

/// A request to stop.
#[derive(Debug, Default)]
struct Stop {
    state: Mutex<(bool, Option<Waker>)>,
}

impl Stop {
    fn stop(&self) {
        let mut state = lock(&self.state);
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn wait(&self) {
        core::future::poll_fn(|cx| {
            let mut caller = Caller::with_clone(cx.waker());
            let mut state = lock(&self.state);
            if state.0 {
                return Poll::Ready(());
            }
            let old = core::mem::replace(&mut state.1, caller.take());
            caller.leave(old);
            Poll::Pending
        })
        .await;
    }
}

/// The thread that runs a dispatcher; see [`Dispatcher::spawn`]. Dropping this stops and joins it. Operations that are in flight
/// then wait until the dispatcher is run again. In a child of fork(2), which does not have the thread, a drop has no effect.
#[derive(Debug)]
pub struct DispatcherThread {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    sleeper: Arc<Sleeper>,
}

impl DispatcherThread {
    /// Stops and joins the thread.
    ///
    /// # Errors
    /// The thread has panicked.
    pub fn join(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if self.sleeper.is_forked() {
            // It can be neither joined nor detached.
            core::mem::forget(self.thread.take());
            return Err(FORKED);
        }
        self.stop.stop();
        if self.thread.as_ref().is_some_and(|thread| thread.thread().id() == thread::current().id()) {
            // A waker drops it: the thread ends when the waker returns.
            self.thread = None;
            return Ok(());
        }
        let panicked = |_| Error::from(std::io::Error::other("the dispatcher's thread has panicked"));
        self.thread.take().map_or(Ok(()), |thread| thread.join().map_err(panicked))
    }
}

impl Drop for DispatcherThread {
    fn drop(&mut self) {
        if let Err(error) = self.end()
            && !self.sleeper.is_forked()
        {
            log::error!("{error}");
        }
    }
}
