// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receivers that are no QP of this side: a shared queue of XRC, and a target of dynamic connections.
//!
//! A queue of XRC has receives of its own. A target takes them from an [`Srq`], whose completions name the target.

use crate::deferred::{Ended, Recount};
use crate::error::{Error, Result};
use crate::life::{FORKED, Life};
use crate::next::{Next, Receiver};
use crate::receives::{Message, OwnQueue, Receives};
use crate::route::RouteId;
use crate::srq::Srq;
use crate::sync::{Mutex, Short, lock};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::{Arc, OnceLock};
use uverbs::attr::EventType;
use uverbs::{AnyDriver, Driver, Polled, Pool, Private};
use uverbs_core::wake::Wakes;

/// The target of a mailbox, and where it receives.
type Target<D> = (uverbs::DcTarget<D>, Srq<D>);

/// The shared part of a receiver. Futures hold it, so the receiver lives as long as they do.
pub(crate) struct Mailbox<D: Driver> {
    receives: Short<Receives<D>>,
    target: Mutex<Option<Target<D>>>,
    /// The number of the target, from its start on.
    number: OnceLock<u32>,
    life: Arc<Life<D>>,
    route: RouteId,
    /// Entries of the CQ that are reserved for it.
    entries: u32,
}

impl<D: Driver> fmt::Debug for Mailbox<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("number", &self.number.get()).finish_non_exhaustive()
    }
}

impl<D: Driver> Receiver<D> for Mailbox<D> {
    fn receives(&self) -> &Short<Receives<D>> {
        &self.receives
    }

    fn life(&self) -> &Arc<Life<D>> {
        &self.life
    }

    fn starved(&self) {
        self.life.starved(self.route);
    }
}

impl<D: Driver> Mailbox<D> {
    /// Of a queue that completes by `route`.
    pub(crate) fn of_xrc(
        queue: uverbs::Srq<uverbs::Exclusive, D>,
        pool: &Pool<Private, D>,
        life: &Arc<Life<D>>,
        (route, depth): (RouteId, u32),
    ) -> Self {
        let receives = Receives::new(Some(OwnQueue::Xrc(queue)), Some(pool.clone()), (depth, false), route);
        Self::new(receives, None, life, (route, depth))
    }

    /// Of a target, whose completions are those of its queue.
    pub(crate) fn of_target(target: Target<D>, life: &Arc<Life<D>>, route: RouteId) -> Self {
        Self::new(Receives::new(None, None, (0, false), route), Some(target), life, (route, 0))
    }

    fn new(
        receives: Receives<D>,
        target: Option<Target<D>>,
        life: &Arc<Life<D>>,
        (route, entries): (RouteId, u32),
    ) -> Self {
        Self {
            receives: Short::new(receives),
            target: Mutex::new(target),
            number: OnceLock::new(),
            life: life.clone(),
            route,
            entries,
        }
    }

    pub(crate) fn route(&self) -> RouteId {
        self.route
    }

    /// The number of the target, from its start on.
    pub(crate) fn number(&self) -> Option<u32> {
        self.number.get().copied()
    }

    /// The number of the queue, by which peers address it.
    pub(crate) fn srq_num(&self) -> Result<u32> {
        if self.life.sleeper().is_forked() {
            return Err(FORKED);
        }
        let receives = lock(&self.receives);
        Ok(receives.xrc_queue().ok_or(Error::Closed)?.srq_num()?)
    }

    /// Starts the target while no thread polls. Its number is known before a message arrives.
    pub(crate) fn start(
        &self,
        start: impl FnOnce(&uverbs::DcTarget<D>) -> uverbs::Result<u32>,
    ) -> Result<u32> {
        let target = lock(&self.target);
        let (target, _) = target.as_ref().ok_or(Error::Closed)?;
        let number = start(target)?;
        Ok(*self.number.get_or_init(|| number))
    }

    /// A receive is complete. Returns whether the queue should be refilled. One that has failed ends neither the queue nor the target:
    /// the error is that of one peer.
    pub(crate) fn received(&self, done: Polled<'_, '_, D>, wakes: &mut Vec<Waker>) -> bool {
        let own = self.entries > 0;
        let mut receives = lock(&self.receives);
        if done.status().is_success() {
            return receives.arrived(done, own, wakes);
        }
        uverbs::report!(debug, {}, "a receive of a shared queue: {}", done.status());
        receives.completed(own, wakes)
    }

    pub(crate) fn refill(&self) -> bool {
        lock(&self.receives).refill()
    }

    /// The target had an asynchronous event.
    pub(crate) fn event(&self, event_type: EventType, wakes: &mut Vec<Waker>) {
        if [EventType::QP_FATAL, EventType::QP_REQ_ERR, EventType::QP_ACCESS_ERR].contains(&event_type) {
            lock(&self.receives).end(Error::QpEvent(event_type), wakes);
        }
    }

    /// There are no more completions.
    pub(crate) fn fail(&self, error: &Error, wakes: &mut Vec<Waker>) {
        lock(&self.receives).fail(error.clone(), wakes);
    }

    /// Destroys it. Messages that were passed on can still be received. `between_polls` calls what it gets while no thread polls, unless
    /// the dispatcher has failed.
    pub(crate) fn close(
        &self,
        between_polls: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        if self.life.sleeper().is_forked() {
            return Err(FORKED);
        }
        let mut wakes = Wakes::new();
        let mut receives = lock(&self.receives);
        receives.end(Error::Closed, &mut wakes);
        let queue = receives.take_queue();
        drop(receives);
        wakes.wake();
        let target = lock(&self.target).take();
        if let Some((target, srq)) = target {
            let mut target = Some(target);
            // A failure to destroy it is logged.
            let ended = between_polls(&mut || {
                drop(target.take());
                srq.recount();
                Ok(())
            });
            drop(target);
            ended?;
        }
        queue.map_or(Ok(()), OwnQueue::close)
    }
}

impl<D: Driver> OwnQueue<D> {
    fn close(self) -> Result<()> {
        match self {
            Self::Qp(_) => Ok(()),
            Self::Xrc(queue) => Ok(queue.close().map_err(|(_, error)| error)?),
        }
    }
}

impl<D: Driver> Drop for Mailbox<D> {
    fn drop(&mut self) {
        drop(self.receives.get_mut().take_queue());
        let target = self.target.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let srq = target.map(|(target, srq)| {
            drop(target);
            Box::new(srq) as Box<dyn Recount>
        });
        if self.life.sleeper().is_forked() {
            return;
        }
        let (route, entries, qp_num) = (self.route, self.entries, self.number());
        self.life.queue_ended(Ended { route, qp_num, entries, linger: None, life: None, srq });
    }
}

/// The next message of an [`XrcSrq`](crate::XrcSrq) or a [`DcTarget`](crate::DcTarget).
#[must_use = "futures do nothing unless they are polled"]
#[derive(Debug)]
pub struct RecvShared<D: Driver = AnyDriver> {
    next: Next<Mailbox<D>, D>,
}

impl<D: Driver> RecvShared<D> {
    pub(crate) fn new(mailbox: Arc<Mailbox<D>>) -> Self {
        Self { next: Next::new(mailbox) }
    }
}

impl<D: Driver> Future for RecvShared<D> {
    type Output = Result<Message<D>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.next.poll(cx)
    }
}
