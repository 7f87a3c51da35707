// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wait for the next message of a receiver.
//!
//! A receive does not belong to a future. So a dropped future loses no message: the next one gets it.

use crate::error::{Error, Result};
use crate::fair_queue::Ticket;
use crate::life::{FORKED, Life};
use crate::qp::QpInner;
use crate::receives::{Message, Receives};
use crate::sync::{Lock, Short, lock};
use core::fmt;
use core::marker::PhantomData;
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use uverbs::Driver;
use uverbs_core::wake::{Caller, Wakes, discard};

/// What receives messages: the shared part of a QP, of a DC target or of a shared queue of XRC.
pub(crate) trait Receiver<D: Driver> {
    fn receives(&self) -> &Short<Receives<D>>;
    fn life(&self) -> &Arc<Life<D>>;

    /// Its receive queue is empty because its pool is.
    fn starved(&self);

    /// A message that has arrived already.
    fn try_take(&self) -> Option<Message<D>> {
        if self.life().sleeper().is_forked() {
            return None;
        }
        let (message, starved) = lock(self.receives()).take_first();
        if starved {
            self.starved();
        }
        message
    }
}

impl<D: Driver> Receiver<D> for QpInner<D> {
    #[inline]
    fn receives(&self) -> &Short<Receives<D>> {
        &self.receives
    }

    #[inline]
    fn life(&self) -> &Arc<Life<D>> {
        Self::life(self)
    }

    fn starved(&self) {
        Self::starved(self);
    }
}

/// The next message of a receiver.
pub(crate) struct Next<R: Receiver<D>, D: Driver> {
    at: Arc<R>,
    pub(crate) ticket: Ticket,
    _driver: PhantomData<fn() -> D>,
}

impl<R: Receiver<D>, D: Driver> fmt::Debug for Next<R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl<R: Receiver<D>, D: Driver> Next<R, D> {
    pub(crate) fn new(at: Arc<R>) -> Self {
        Self { at, ticket: Ticket::default(), _driver: PhantomData }
    }

    #[inline]
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Message<D>>> {
        let Self { at, ticket, .. } = self;
        if at.life().sleeper().is_forked() {
            return Poll::Ready(Err(FORKED));
        }
        let mut receives = lock(at.receives());
        let available = receives.available();
        if receives.waiters.pass_alone(ticket, 1, available) {
            if receives.refill_for(1) {
                return Self::take_last(&**at, receives);
            }
            if let Some(message) = receives.messages.pop_front() {
                return Poll::Ready(Ok(message));
            }
        }
        Self::wait(&**at, ticket, receives, cx.waker())
    }

    /// Takes a message whose receive can't be replaced: the queue and its pool are empty.
    #[cold]
    fn take_last(at: &R, mut receives: <Short<Receives<D>> as Lock>::Guard<'_>) -> Poll<Result<Message<D>>> {
        let message = receives.messages.pop_front();
        drop(receives);
        at.starved();
        message.map_or(Poll::Pending, |message| Poll::Ready(Ok(message)))
    }

    /// Waits for its turn, or takes the message.
    fn wait(
        at: &R,
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
            if message.is_none() && (receives.ended().is_some() || at.life().is_broken()) {
                let error =
                    receives.ended().cloned().or_else(|| at.life().failure()).unwrap_or(Error::Closed);
                caller.leave(receives.waiters.leave(ticket, available, &mut wakes));
                return Poll::Ready(Err(error));
            }
            // A queue with receives is refilled when messages arrive and are taken.
            let starved = (message.is_some() || receives.posted == 0) && receives.refill();
            drop(receives);
            if starved {
                at.starved();
            }
            if let Some(message) = message {
                return Poll::Ready(Ok(message));
            }
            if !caller.supply() {
                return Poll::Pending;
            }
            receives = lock(at.receives());
        }
    }

    /// The future is dropped while it waits.
    #[inline(never)]
    fn give_up(&mut self) {
        if !self.at.life().sleeper().is_forked() {
            let mut wakes = Wakes::new();
            let mut receives = lock(self.at.receives());
            let available = receives.available();
            let left = receives.waiters.leave(&mut self.ticket, available, &mut wakes);
            drop(receives);
            // A message for which this future was woken goes to the next one.
            wakes.wake();
            discard(left);
        }
    }
}

impl<R: Receiver<D>, D: Driver> Drop for Next<R, D> {
    #[inline]
    fn drop(&mut self) {
        if self.ticket.is_waiting() {
            self.give_up();
        }
    }
}
