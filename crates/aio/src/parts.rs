// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work requests of a batch, posted in parts.
//!
//! A part is at most half of the queue, so that the device works on one part while the program posts the next; it has one doorbell.
//! [`Batch`](crate::Batch) and [`ReadBatch`](crate::ReadBatch) differ in where the buffers go, and so in what makes a completion: the
//! last work request of a part, or each one.

use crate::destination::To;
use crate::error::{Error, Result};
use crate::fair_queue::Ticket;
use crate::item::{Data, Item};
use crate::life::FORKED;
use crate::qp::QpInner;
use crate::sends::{Outcome, Sends};
use crate::slots::Left;
use crate::sync::lock;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs::{Access, AddressHandle, Buf, Driver, Operation, PostError, QueueError, SendFlags, WcStatus};
use uverbs_core::wake::{Caller, Wakes};

/// Where the buffers go, and so which work requests make a completion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffers {
    /// To their pools. Only the last work request of a part makes a completion, unless each one of the queue does.
    ToPools,
    /// Back to the caller, with a completion each.
    Back,
}

/// A completion that is still to come.
struct Pending<D: Driver> {
    key: u64,
    /// The address handles of its work requests, which live until then.
    addresses: Vec<Arc<AddressHandle<D>>>,
}

impl<D: Driver> Pending<D> {
    fn new(key: u64) -> Self {
        Self { key, addresses: Vec::new() }
    }

    /// Keeps the address handle of a destination. Work requests to the same one mostly follow each other.
    fn keep(&mut self, to: &To<D>) {
        if let Some(ah) = to.address()
            && !self.addresses.last().is_some_and(|last| Arc::ptr_eq(last, ah))
        {
            self.addresses.push(ah.clone());
        }
    }
}

/// Work requests that are posted in their order.
pub(crate) struct Parts<D: Driver, A: Access> {
    qp: Arc<QpInner<D>>,
    buffers: Buffers,
    items: VecDeque<Item<A, D>>,
    ticket: Ticket,
    pending: VecDeque<Pending<D>>,
    /// Address handles that are not used any more. Their end may be a control call, so they are dropped without the lock.
    unused: Vec<Arc<AddressHandle<D>>>,
    /// The buffers that came back.
    done: Vec<Buf<A, D>>,
    /// The resets of the QP before the first poll.
    resets: Option<u64>,
}

impl<D: Driver, A: Access> Parts<D, A> {
    pub(crate) fn new(qp: Arc<QpInner<D>>, buffers: Buffers) -> Self {
        let (items, pending) = (VecDeque::new(), VecDeque::new());
        let (unused, done) = (Vec::new(), Vec::new());
        Self { qp, buffers, items, ticket: Ticket::default(), pending, unused, done, resets: None }
    }

    pub(crate) fn push(&mut self, to: To<D>, op: Operation, data: Data<A, D>) {
        self.items.push_back(Item { to, op, data });
    }

    /// The number of work requests that are not posted yet.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it was never polled.
    pub(crate) fn is_new(&self) -> bool {
        self.resets.is_none()
    }

    /// Logs that it was dropped without a poll.
    #[cold]
    pub(crate) fn warn(&self) {
        self.qp.warn_forgotten();
    }

    /// The number of completions that are still to come.
    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Posts the next `count` work requests.
    ///
    /// The task waits for the first completion only, and then for the next one.
    fn post(&mut self, sends: &mut Sends<D>, count: u32, caller: &mut Caller<'_>) -> Result<()> {
        let first = self.pending.len();
        let each =
            self.buffers == Buffers::Back || sends.queue.as_ref().is_some_and(|queue| queue.signals_each());
        let completions = if each { count } else { 1 };
        if first == 0 {
            self.pending.extend(sends.insert_slot(caller).map(Pending::new));
        }
        let others = completions - (self.pending.len() - first) as u32;
        let slots = (0..others).map_while(|_| sends.slots.insert(Waker::noop().clone()).ok());
        self.pending.extend(slots.map(Pending::new));
        let posted = match &mut sends.queue {
            Some(queue) if self.pending.len() - first == completions as usize => {
                let (route, pending) = (self.qp.route(), &mut self.pending);
                queue.post_batch(self.items.drain(..count as usize).enumerate().map(|(i, item)| {
                    let of = &mut pending[first + if each { i } else { 0 }];
                    of.keep(&item.to);
                    if each || i as u32 + 1 == count {
                        (route.send(of.key), SendFlags::SIGNALED, item)
                    } else {
                        (route.part(of.key), SendFlags::empty(), item)
                    }
                }))
            }
            _ => Err(PostError::QueueFull.into()),
        };
        match posted.map_err(|error: QueueError| error.reason) {
            // After a failed doorbell the device may execute them, and completions may arrive: `leave` abandons them.
            Ok(()) | Err(PostError::Doorbell(_)) => {
                for pending in self.pending.range(first..) {
                    sends.posted(pending.key, count / completions);
                }
            }
            Err(_) => {
                for pending in self.pending.drain(first..) {
                    caller.leave(sends.slots.remove(pending.key).and_then(Left::waker));
                    self.unused.extend(pending.addresses);
                }
            }
        }
        Ok(posted?)
    }

    /// Posts what fits, and takes the results of the first ones.
    fn step(&mut self, sends: &mut Sends<D>, caller: &mut Caller<'_>) -> Poll<Result<()>> {
        let most = (self.qp.depth() / 2).max(1);
        let is_reset = *self.resets.get_or_insert(sends.resets) != sends.resets;
        while !self.items.is_empty() {
            let refusal = sends.refusal(&mut self.ticket).or(is_reset.then_some(Error::Closed));
            if let Some(error) = refusal {
                return Poll::Ready(Err(error));
            }
            let count = u32::try_from(self.items.len()).unwrap_or(u32::MAX).min(most);
            if !sends.waiters.pass(&mut self.ticket, count, sends.free, caller) {
                break;
            }
            self.post(sends, count, caller)?;
        }
        while let Some(pending) = self.pending.front_mut() {
            let Poll::Ready(outcome) = sends.slots.poll(pending.key, caller) else { return Poll::Pending };
            self.unused.append(&mut pending.addresses);
            self.pending.pop_front();
            let completed = outcome.unwrap_or(Err(Error::Closed))?;
            let uverbs::WorkCompletion { status, vendor_err, qp_num, .. } = completed.wc;
            let buf = match self.buffers {
                Buffers::ToPools => None,
                Buffers::Back => completed.buf_of(),
            };
            if status != WcStatus::SUCCESS || (self.buffers == Buffers::Back && buf.is_none()) {
                return Poll::Ready(Err(Error::Completion { status, vendor_err, qp_num }));
            }
            self.done.extend(buf);
        }
        if self.items.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Gives up its place in the queue, and abandons what is in flight. The caller drops the result without its lock.
    fn leave(&mut self, sends: &mut Sends<D>, wakes: &mut Vec<Waker>) -> Vec<Left<Outcome<D>>> {
        let place = sends.leave(&mut self.ticket, wakes).map(Left::Waker);
        let mut left = Vec::from_iter(place);
        for mut pending in self.pending.drain(..) {
            left.extend(sends.abandon_part(pending.key, &mut pending.addresses));
            self.unused.append(&mut pending.addresses);
        }
        // Others may have come while this one posted, and less is wanted now.
        sends.waiters.wake(sends.free, wakes);
        left
    }

    /// Ready when all work requests are complete or one has failed. Returns the buffers that are given back.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Buf<A, D>>>> {
        if self.qp.is_forked() {
            return Poll::Ready(Err(FORKED));
        }
        let qp = self.qp.clone();
        let mut wakes = Wakes::new();
        let mut caller = match self.items.is_empty() {
            true => Caller::new(cx.waker()),
            false => Caller::with_clone(cx.waker()),
        };
        let result = loop {
            let mut left = Vec::new();
            let mut sends = lock(&qp.sends);
            let result = self.step(&mut sends, &mut caller);
            if matches!(result, Poll::Ready(Err(_))) {
                left = self.leave(&mut sends, &mut wakes);
            }
            drop(sends);
            wakes.wake();
            left.into_iter().for_each(Left::discard);
            self.unused.clear();
            if result.is_ready() || !caller.supply() {
                break result;
            }
        };
        result.map(|result| {
            // Nothing remains of a batch that failed.
            self.items.clear();
            let done = core::mem::take(&mut self.done);
            result.map(|()| done)
        })
    }
}

impl<D: Driver, A: Access> Drop for Parts<D, A> {
    fn drop(&mut self) {
        if (self.ticket.is_waiting() || !self.pending.is_empty()) && !self.qp.is_forked() {
            let mut wakes = Wakes::new();
            let qp = self.qp.clone();
            let left = self.leave(&mut lock(&qp.sends), &mut wakes);
            wakes.wake();
            left.into_iter().for_each(Left::discard);
        }
    }
}
