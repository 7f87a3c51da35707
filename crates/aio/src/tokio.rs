// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a dispatcher in a task of tokio: one of its own, or that of the program.

use crate::dispatcher::{Dispatcher, Inner};
use crate::driver::{Follower, Leader, Next, Rounds};
use crate::error::Result;
use crate::relay::Relay;
use crate::sleeper::Leading;
use crate::sleeper::Sleeper;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker, ready};
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;
use uverbs::{Driver, PollError};

#[derive(Debug)]
struct Descriptor(Arc<Sleeper>);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Rounds with completions after which a task that makes progress yields to others.
const TURN: u32 = 32;

/// The rounds of a task since it yielded or slept.
#[derive(Default)]
struct Turn(u32);

impl Turn {
    /// Counts a round. Returns whether it was the last one of at most `most`.
    fn is_over(&mut self, most: u32) -> bool {
        self.0 += 1;
        let is_over = self.0 >= most;
        if is_over {
            self.0 = 0;
        }
        is_over
    }
}

/// A dispatcher that a task leads.
struct Driving<'a, D: Driver> {
    inner: &'a Inner<D>,
    fd: AsyncFd<Descriptor>,
    rounds: Rounds,
    wakes: Vec<Waker>,
    /// The end of the sleep, if it has one.
    limit: Option<Pin<Box<Sleep>>>,
    _lead: Leading<'a>,
}

impl<'a, D: Driver> Driving<'a, D> {
    fn new(inner: &'a Inner<D>, lead: Leading<'a>) -> Result<Self> {
        let sleeper = inner.sleeper();
        #[expect(
            deprecated,
            reason = "its successor is unsafe; `Descriptor` returns the same open descriptor as long as it lives"
        )]
        let fd = AsyncFd::with_interest(Descriptor(sleeper.clone()), Interest::READABLE)?;
        let rounds = Rounds::new(sleeper.spin());
        Ok(Self { inner, fd, rounds, wakes: Vec::new(), limit: None, _lead: lead })
    }

    /// Polls the dispatcher once, for this leader.
    ///
    /// The small error keeps the result in registers.
    #[inline]
    fn round(&mut self, leader: &impl Leader) -> Result<Next, PollError> {
        let next = self.rounds.poll(self.inner, leader, &mut self.wakes)?;
        if next == Next::Sleep {
            self.limit = self.inner.sleeper().time_to_sleep().map(|time| Box::pin(tokio::time::sleep(time)));
        }
        Ok(next)
    }

    /// Waits for the end of the sleep.
    fn poll_sleep(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let is_over = self.limit.as_mut().is_some_and(|limit| limit.as_mut().poll(cx).is_ready());
        if !is_over {
            // Before the descriptors are read, so that what becomes readable after that is reported again.
            ready!(self.fd.poll_read_ready(cx))?.clear_ready();
        }
        Poll::Ready(Ok(()))
    }

    /// Reads what has ended the sleep, without waiting.
    fn slept(&mut self) -> Result<()> {
        self.limit = None;
        self.rounds.slept(self.inner, Some(Duration::ZERO), &mut self.wakes)
    }
}

/// A task that has nothing else to do.
struct OwnTask;

impl Leader for OwnTask {
    #[inline]
    fn is_woken(&self) -> bool {
        false
    }

    #[inline]
    fn takes(&self, _: &Waker) -> bool {
        false
    }
}

/// A task that also polls a future.
struct WithFuture<'a> {
    relay: &'a Relay,
    waker: &'a Waker,
}

impl Leader for WithFuture<'_> {
    #[inline]
    fn is_woken(&self) -> bool {
        self.relay.is_woken()
    }

    #[inline]
    fn takes(&self, waker: &Waker) -> bool {
        let own = waker.will_wake(self.waker);
        if own {
            self.relay.note();
        }
        own
    }
}

impl<D: Driver> Dispatcher<D> {
    /// Runs the dispatcher: a task for `tokio::spawn`, whose runtime has I/O and time enabled. It runs until it is aborted.
    /// While completions are expected soon ([`spin`](crate::DispatcherBuilder::spin)), it yields to other tasks between two polls;
    /// otherwise it waits for its descriptor.
    ///
    /// A program with one task needs no other one for the dispatcher: see [`drive_with`](Self::drive_with).
    ///
    /// # Errors
    /// The CQ failed; all operations end with the same error. Or tokio refuses the descriptor.
    pub async fn drive(self) -> Result<()> {
        let inner = &*self.inner;
        let lead =
            poll_fn(|cx| inner.sleeper().try_lead(cx.waker()).map_or(Poll::Pending, Poll::Ready)).await;
        let mut driving = Driving::new(inner, lead)?;
        let mut turn = Turn::default();
        loop {
            match driving.round(&OwnTask)? {
                // The tasks that were woken can run now, or while this one sleeps if it sleeps after the next round.
                Next::Work if driving.rounds.sleeps_next() && !turn.is_over(2) => {}
                Next::Work | Next::Again => tokio::task::yield_now().await,
                Next::Check => driving.slept()?,
                Next::Sleep => {
                    turn = Turn::default();
                    poll_fn(|cx| driving.poll_sleep(cx)).await?;
                    driving.slept()?;
                }
            }
        }
    }

    /// Waits for a future, and runs the dispatcher meanwhile, in the task that awaits this: a completion that the future waits for
    /// costs one wake of the task, and no other task. It is [`block_on`](Self::block_on) for a runtime of tokio with I/O and time
    /// enabled.
    ///
    /// While another task or thread runs the dispatcher, this one only waits for the future.
    ///
    /// # Errors
    /// Tokio refuses the descriptor.
    pub async fn drive_with<F: Future>(&self, future: F) -> Result<F::Output> {
        let inner = &*self.inner;
        let sleeper = inner.sleeper();
        let mut future = pin!(future);
        let relay = Arc::new(Relay::new());
        let waker = Waker::from(relay.clone());
        let _leave = Follower::new(sleeper, &waker);
        let leader = WithFuture { relay: &relay, waker: &waker };
        let mut driving = None;
        let mut turn = Turn::default();
        loop {
            while relay.take() {
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return Ok(output);
                }
            }
            if sleeper.is_forked() {
                // The dispatcher is the parent's. Its futures are ready, and this one waits for something else.
                core::mem::forget(driving.take());
            } else if driving.is_none()
                && let Some(lead) = sleeper.try_lead(&waker)
            {
                driving = Some(Driving::new(inner, lead)?);
            }
            let Some(driving) = &mut driving else {
                poll_fn(|cx| if relay.wait(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }).await;
                continue;
            };
            match driving.round(&leader) {
                // The future is polled next, if it was woken.
                Ok(Next::Work) if !turn.is_over(if relay.is_woken() { TURN } else { 2 }) => {}
                Ok(Next::Work | Next::Again) => tokio::task::yield_now().await,
                Ok(Next::Check) => driving.slept()?,
                Ok(Next::Sleep) => {
                    turn = Turn::default();
                    poll_fn(|cx| match driving.poll_sleep(cx) {
                        Poll::Pending if relay.wait(cx.waker()) => Poll::Ready(Ok(())),
                        polled => polled,
                    })
                    .await?;
                    driving.slept()?;
                }
                // All operations have ended with this error. The next rounds run the timers only.
                Err(error) => log::error!("dispatcher: {error}"),
            }
        }
    }
}
