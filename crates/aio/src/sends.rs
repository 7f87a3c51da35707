// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue of a QP, and the work requests in flight.

use crate::error::{Error, Result};
use crate::fair_queue::{FairQueue, Ticket};
use crate::slots::Slots;
use core::task::Waker;
use uverbs::{Completed, Driver, Exclusive, Rc, SendQueue, WcStatus};
use uverbs_core::wake::{Caller, Waiters};

/// The result of a send, or why it has none.
pub(crate) type Outcome<D> = Result<Completed<D>>;

/// What posts sends, and the sends in flight.
pub(crate) struct Sends<D: Driver> {
    /// `None` only while the QP is dropped.
    pub(crate) queue: Option<SendQueue<Rc, Exclusive, D>>,
    pub(crate) slots: Slots<Outcome<D>>,
    /// Work requests that can be posted.
    pub(crate) free: u32,
    pub(crate) waiters: FairQueue,
    /// Why nothing can be posted any more.
    pub(crate) closed: Option<Error>,
    /// Work requests in flight of which only the last makes a completion.
    pub(crate) batches: Vec<Together>,
    /// Detached work requests without a completion, since the last one that makes one.
    pub(crate) silent: u32,
    /// How often the QP was [reset](crate::Qp::reset).
    pub(crate) resets: u64,
    /// Those that wait until no send is in flight.
    pub(crate) draining: Waiters,
}

/// Work requests of which only the last makes a completion: it has the slot.
pub(crate) struct Together {
    pub(crate) key: u64,
    pub(crate) count: u32,
    /// The first error of one that is not the last.
    pub(crate) fault: Option<Error>,
}

impl<D: Driver> Sends<D> {
    /// Of a queue with `depth` entries.
    pub(crate) fn new(queue: SendQueue<Rc, Exclusive, D>, depth: u32) -> Self {
        Self {
            queue: Some(queue),
            slots: Slots::new(),
            free: depth,
            waiters: FairQueue::default(),
            closed: None,
            batches: Vec::new(),
            silent: 0,
            resets: 0,
            draining: Waiters::default(),
        }
    }

    /// A slot for a work request that is about to be posted, with the clone of the caller's waker. `None` if there are too many.
    #[inline]
    pub(crate) fn insert_slot(&mut self, caller: &mut Caller<'_>) -> Option<u64> {
        match self.slots.insert(caller.take()?) {
            Ok(key) => Some(key),
            Err(waker) => {
                caller.leave(Some(waker));
                None
            }
        }
    }

    /// `count` work requests were posted, of which only the last one makes a completion: with this key.
    #[inline]
    pub(crate) fn posted(&mut self, key: u64, count: u32) {
        self.free -= count;
        let count = count + core::mem::take(&mut self.silent);
        if count > 1 {
            self.batches.push(Together { key, count, fault: None });
        }
    }

    /// Why a task with this ticket can post nothing.
    #[inline]
    pub(crate) fn refusal(&self, ticket: &mut Ticket) -> Option<Error> {
        match &self.closed {
            Some(error) => Some(error.clone()),
            None => self.waiters.dismisses(ticket).then_some(Error::Closed),
        }
    }

    /// The QP was moved to RESET: what was posted has no completions.
    pub(crate) fn reset(&mut self, depth: u32, wakes: &mut Vec<Waker>) {
        (self.free, self.silent, self.closed) = (depth, 0, None);
        self.resets += 1;
        self.batches.clear();
        let (status, vendor_err) = (WcStatus::WR_FLUSH_ERR, 0);
        self.slots.discard_all(|| Err(Error::Completion { status, vendor_err }), wakes);
        self.waiters.dismiss_all(wakes);
        self.draining.wake_all(wakes);
    }

    /// Wakes those that wait for an entry.
    #[inline]
    pub(crate) fn released(&mut self, depth: u32, wakes: &mut Vec<Waker>) {
        if !self.waiters.is_empty() {
            self.waiters.wake(self.free, wakes);
        }
        if self.free + self.silent == depth {
            self.draining.wake_all(wakes);
        }
    }

    /// Gives up a place among those that wait for entries, as [`FairQueue::leave`].
    pub(crate) fn leave(&mut self, ticket: &mut Ticket, wakes: &mut Vec<Waker>) -> Option<Waker> {
        self.waiters.leave(ticket, self.free, wakes)
    }
}
