// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives as futures.
//!
//! A receive does not belong to a future. So a dropped future loses no message: the next one gets it.

use crate::error::{Error, Result};
use crate::fair_queue::Ticket;
use crate::life::FORKED;
use crate::pair::Qp;
use crate::qp::QpInner;
use crate::receives::{Message, Receives};
use crate::sync::{Lock, Short, lock};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use uverbs::{AnyDriver, Driver, Rc};
use uverbs_core::wake::{Caller, Wakes, discard};

/// The next message; see [`Qp::recv`](crate::Qp::recv).
#[must_use = "futures do nothing unless they are polled"]
pub struct Recv<D: Driver = AnyDriver> {
    qp: Arc<QpInner<D>>,
    ticket: Ticket,
}

impl<D: Driver> fmt::Debug for Recv<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recv").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl<D: Driver> Recv<D> {
    pub(crate) fn new(qp: Arc<QpInner<D>>) -> Self {
        Self { qp, ticket: Ticket::default() }
    }
}

impl<D: Driver> Future for Recv<D> {
    type Output = Result<Message<D>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { qp, ticket } = &mut *self;
        if qp.is_forked() {
            return Poll::Ready(Err(FORKED));
        }
        let mut receives = lock(&qp.receives);
        let available = receives.available();
        if receives.waiters.pass_alone(ticket, 1, available) {
            if receives.refill_for(1) {
                return Self::take_last(qp, receives);
            }
            if let Some(message) = receives.messages.pop_front() {
                return Poll::Ready(Ok(message));
            }
        }
        Self::wait(qp, ticket, receives, cx.waker())
    }
}

impl<D: Driver> Recv<D> {
    /// Takes a message whose receive can't be replaced: the queue and its pool are empty.
    #[cold]
    fn take_last(
        qp: &QpInner<D>,
        mut receives: <Short<Receives<D>> as Lock>::Guard<'_>,
    ) -> Poll<Result<Message<D>>> {
        let message = receives.messages.pop_front();
        drop(receives);
        qp.starved();
        message.map_or(Poll::Pending, |message| Poll::Ready(Ok(message)))
    }

    /// Waits for its turn, or takes the message.
    fn wait(
        qp: &QpInner<D>,
        ticket: &mut Ticket,
        receives: <Short<Receives<D>> as Lock>::Guard<'_>,
        waker: &Waker,
    ) -> Poll<Result<Message<D>>> {
        let mut caller = Caller::new(waker);
        let mut wakes = Wakes::new();
        // Dropped before these.
        let mut receives = receives;
        loop {
            if receives.waiters.dismisses(ticket) {
                return Poll::Ready(Err(Error::Closed));
            }
            let available = receives.available();
            let message = receives.waiters.pass(ticket, 1, available, &mut caller);
            let message = message.then(|| receives.messages.pop_front()).flatten();
            if message.is_none() && (receives.ended().is_some() || qp.is_broken()) {
                let error = receives.ended().cloned().or_else(|| qp.failure()).unwrap_or(Error::Closed);
                caller.leave(receives.waiters.leave(ticket, available, &mut wakes));
                return Poll::Ready(Err(error));
            }
            // A queue with receives is refilled when messages arrive and are taken.
            let starved = (message.is_some() || receives.posted == 0) && receives.refill();
            drop(receives);
            if starved {
                qp.starved();
            }
            if let Some(message) = message {
                return Poll::Ready(Ok(message));
            }
            if !caller.supply() {
                return Poll::Pending;
            }
            receives = lock(&qp.receives);
        }
    }
}

impl<D: Driver> Drop for Recv<D> {
    #[inline]
    fn drop(&mut self) {
        if self.ticket.is_waiting() {
            self.give_up();
        }
    }
}

impl<D: Driver> Recv<D> {
    /// The future is dropped while it waits.
    #[inline(never)]
    fn give_up(&mut self) {
        if !self.qp.is_forked() {
            let mut wakes = Wakes::new();
            let mut receives = lock(&self.qp.receives);
            let available = receives.available();
            let left = receives.waiters.leave(&mut self.ticket, available, &mut wakes);
            drop(receives);
            // A message for which this future was woken goes to the next one.
            wakes.wake();
            discard(left);
        }
    }
}

impl<D: Driver> Qp<Rc, D> {
    /// The next message. Messages are in the order of their arrival, and so are the tasks that wait for them.
    ///
    /// # Errors
    /// After all messages that have arrived: the error of the QP, or [`Error::Closed`].
    pub fn recv(&self) -> Recv<D> {
        Recv::new(self.inner.clone())
    }

    /// A message that has arrived already.
    #[must_use]
    pub fn try_recv(&self) -> Option<Message<D>> {
        self.inner.try_recv()
    }
}
