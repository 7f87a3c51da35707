// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a dispatcher: by a thread that waits for its own future, or by a thread of its own.

use crate::dispatcher::Dispatcher;
use crate::error::{Error, Result};
use crate::leader::FollowerId;
use crate::life::FORKED;
use crate::rounds::{Leader, Rounds};
use crate::sleeper::{RunGuard, Sleeper};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use crate::wakeup::Who;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, JoinHandle, Thread};
use uverbs::Driver;
use uverbs_core::wake::{Caller, Wakes};

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
        let poller = &self.inner.poller;
        let state = Arc::new(ThreadWaker {
            woken: AtomicBool::new(true),
            thread: thread::current(),
            sleeper: poller.sleeper().clone(),
        });
        let waker = Waker::from(state.clone());
        let mut cx = Context::from_waker(&waker);
        let mut follower = Follower::new(poller.sleeper());
        let mut rounds = Rounds::new(poller.sleeper().spin());
        let mut wakes = Wakes::new();
        loop {
            if state.woken.swap(false, Ordering::Acquire) {
                follower.leave();
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return output;
                }
            }
            if poller.sleeper().is_forked() {
                // The dispatcher is the parent's. Its futures are ready, and this one waits for something else.
                if !state.woken.load(Ordering::Acquire) {
                    thread::park();
                }
            } else if let Some(lead) = follower.try_lead(&state.thread) {
                let leader = LeadingThread { state: &state, waker: &waker };
                if let Err(error) = rounds.run_until(poller, &leader, &mut wakes) {
                    // All operations have ended with this error. The next round runs the timers only.
                    uverbs::report!(error, {}, "dispatcher: {error}");
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
        self.inner.poller.life().check()?;
        let stop = Arc::new(Stop::default());
        let dispatcher = self.clone();
        let wanted = stop.clone();
        let thread = thread::Builder::new()
            .name("uverbs-aio".into())
            .spawn(move || dispatcher.block_on(wanted.wait()))?;
        Ok(DispatcherThread { stop, thread: Some(thread), sleeper: self.inner.poller.sleeper().clone() })
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
            uverbs::report!(error, {}, "{error}");
        }
    }
}
