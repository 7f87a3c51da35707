// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a dispatcher in a task of tokio: one of its own, or that of the program.

use crate::dispatcher::Dispatcher;
use crate::error::Result;
use crate::rounds::Leader;
use crate::station::{Member, Runtime, Step};
use crate::task_waker::TaskWaker;
use crate::wakeup::Who;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use uverbs::Driver;

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

/// A task that also polls a future.
struct WithFuture<'a> {
    task_waker: &'a TaskWaker,
    waker: &'a Waker,
}

impl Leader for WithFuture<'_> {
    const WHO: Who = Who::Tasks;

    #[inline]
    fn is_woken(&self) -> bool {
        self.task_waker.is_woken()
    }

    #[inline]
    fn takes(&self, waker: &Waker) -> bool {
        let own = waker.will_wake(self.waker);
        if own {
            self.task_waker.note();
        }
        own
    }
}

impl<D: Driver> Dispatcher<D> {
    /// Runs the dispatcher: a task for `tokio::spawn`, whose runtime has I/O enabled. It runs until it is aborted.
    /// While completions are expected soon ([`spin`](crate::DispatcherBuilder::spin)), it yields to other tasks between two polls;
    /// otherwise it waits for its descriptor.
    ///
    /// A program with one task needs no other one for the dispatcher: see [`drive_with`](Self::drive_with).
    ///
    /// # Errors
    /// The CQ failed; all operations end with the same error. Or tokio refuses the descriptor.
    pub async fn drive(self) -> Result<()> {
        let task_waker = Arc::new(TaskWaker::new(self.inner.poller.sleeper().woke().clone()));
        // There is no future.
        task_waker.take();
        let mut member = Member::new(&self.inner.poller, &self.inner.stations, &task_waker);
        let mut turn = Turn::default();
        loop {
            let step = member.round(&Runtime)?;
            if let Some(error) = member.failure() {
                return Err(error.into());
            }
            match step {
                // The tasks that were woken can run now, or while this one sleeps if it sleeps after the next round.
                Step::Work { sleeps_next: true } if !turn.is_over(2) => {}
                Step::Work { .. } | Step::Spin => tokio::task::yield_now().await,
                Step::Wait => {
                    turn = Turn::default();
                    let mut begun = false;
                    poll_fn(|cx| member.poll_wait(cx, &mut begun)).await;
                    task_waker.take();
                }
            }
        }
    }

    /// Waits for a future, and runs the dispatcher meanwhile, in the task that awaits this: a completion that the future waits for
    /// costs one wake of the task, and no other task. It is [`block_on`](Self::block_on) for a runtime of tokio with I/O enabled.
    ///
    /// While a thread runs the dispatcher, this one only waits for the future. It need not be polled for the dispatcher to be run: it
    /// may be one of several branches of a `select!`, or be forgotten.
    ///
    /// # Errors
    /// Tokio refuses the descriptor.
    pub async fn drive_with<F: Future>(&self, future: F) -> Result<F::Output> {
        let sleeper = self.inner.poller.sleeper();
        let mut future = pin!(future);
        let task_waker = Arc::new(TaskWaker::new(sleeper.woke().clone()));
        let waker = Waker::from(task_waker.clone());
        let leader = WithFuture { task_waker: &task_waker, waker: &waker };
        let mut member = Member::new(&self.inner.poller, &self.inner.stations, &task_waker);
        let mut turn = Turn::default();
        loop {
            while task_waker.take() {
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return Ok(output);
                }
            }
            if sleeper.is_forked() {
                // The dispatcher is the parent's. Its futures are ready, and this one waits for something else.
                poll_fn(|cx| if task_waker.wait(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }).await;
                continue;
            }
            match member.round(&leader)? {
                // The future is polled next, if it was woken.
                Step::Work { .. } if !turn.is_over(if task_waker.is_woken() { TURN } else { 2 }) => {}
                Step::Work { .. } | Step::Spin => tokio::task::yield_now().await,
                Step::Wait => {
                    turn = Turn::default();
                    let mut begun = false;
                    poll_fn(|cx| member.poll_wait(cx, &mut begun)).await;
                }
            }
        }
    }
}
