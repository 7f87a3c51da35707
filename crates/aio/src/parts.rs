// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work requests of a batch, posted in parts.
//!
//! A part is at most half of the queue, so that the device works on one part while the program posts the next; it has one doorbell.
//! [`Batch`](crate::Batch) and [`ReadBatch`](crate::ReadBatch) differ in what makes a completion: the last work request of a part,
//! or each one.

use crate::error::{Error, Result};
use crate::fair_queue::Ticket;
use crate::life::FORKED;
use crate::qp::QpInner;
use crate::sends::{Outcome, Queue, Sends};
use crate::slots::Left;
use crate::sync::lock;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs::{
    Access, Buf, BufPart, Driver, Operation, PostError, QueueError, SendFlags, SharedBuf, WcStatus,
};
use uverbs_core::wake::{Caller, Wakes};

/// Which work requests make a completion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signaled {
    /// The last one of a part. The buffers of the part go back to their pools with it.
    Last,
    /// Each one, because only its completion gives the buffer back.
    Each,
}

/// The memory of a work request.
pub(crate) enum Data<A: Access, D: Driver> {
    Buf(Buf<A, D>),
    Part(BufPart<A, D>),
    Shared(SharedBuf<A, D>),
}

/// Work requests that are posted in their order.
pub(crate) struct Parts<D: Driver, A: Access> {
    qp: Arc<QpInner<D>>,
    signaled: Signaled,
    items: VecDeque<(Operation, Data<A, D>)>,
    ticket: Ticket,
    /// The completions that are still to come.
    keys: VecDeque<u64>,
    /// The buffers that came back, if each work request is signaled.
    done: Vec<Buf<A, D>>,
    /// The resets of the QP before the first poll.
    resets: Option<u64>,
}

impl<D: Driver, A: Access> Parts<D, A> {
    pub(crate) fn new(qp: Arc<QpInner<D>>, signaled: Signaled) -> Self {
        let (items, keys) = (VecDeque::new(), VecDeque::new());
        Self { qp, signaled, items, ticket: Ticket::default(), keys, done: Vec::new(), resets: None }
    }

    pub(crate) fn push(&mut self, op: Operation, data: Data<A, D>) {
        self.items.push_back((op, data));
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
        self.keys.len()
    }

    /// Posts the next `count` work requests.
    ///
    /// The task waits for the first completion only, and then for the next one.
    fn post(&mut self, sends: &mut Sends<D>, count: u32, caller: &mut Caller<'_>) -> Result<()> {
        let first = self.keys.len();
        let keys = if self.signaled == Signaled::Each { count } else { 1 };
        if first == 0 {
            self.keys.extend(sends.insert_slot(caller));
        }
        let others = keys - (self.keys.len() - first) as u32;
        self.keys.extend((0..others).map_while(|_| sends.slots.insert(Waker::noop().clone()).ok()));
        let posted = match &mut sends.queue {
            Some(Queue::Rc(queue)) if self.keys.len() - first == keys as usize => {
                let route = self.qp.route();
                let mut batch = queue.batch();
                for (i, (op, data)) in self.items.drain(..count as usize).enumerate() {
                    let wr = match self.signaled {
                        Signaled::Each => {
                            batch.wr(route.send(self.keys[first + i])).flags(SendFlags::SIGNALED)
                        }
                        Signaled::Last if i as u32 + 1 == count => {
                            batch.wr(route.send(self.keys[first])).flags(SendFlags::SIGNALED)
                        }
                        Signaled::Last => batch.wr(route.part(self.keys[first])),
                    };
                    match data {
                        Data::Buf(buf) => wr.op_with(&op, buf),
                        Data::Part(part) => wr.op_with(&op, part),
                        Data::Shared(shared) => wr.op(&op, shared),
                    }
                }
                batch.complete()
            }
            _ => Err(PostError::QueueFull.into()),
        };
        match posted.map_err(|error: QueueError| error.reason) {
            // After a failed doorbell the device may execute them, and completions may arrive: `leave` abandons the keys.
            Ok(()) | Err(PostError::Doorbell(_)) => {
                for key in self.keys.range(first..) {
                    sends.posted(*key, count / keys);
                }
            }
            Err(_) => {
                for key in self.keys.drain(first..) {
                    caller.leave(sends.slots.remove(key).and_then(Left::waker));
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
        while let Some(&key) = self.keys.front() {
            let Poll::Ready(outcome) = sends.slots.poll(key, caller) else { return Poll::Pending };
            self.keys.pop_front();
            let completed = outcome.unwrap_or(Err(Error::Closed))?;
            let uverbs::WorkCompletion { status, vendor_err, qp_num, .. } = completed.wc;
            let buf = match self.signaled {
                Signaled::Last => None,
                Signaled::Each => completed.buf_of(),
            };
            if status != WcStatus::SUCCESS || (self.signaled == Signaled::Each && buf.is_none()) {
                return Poll::Ready(Err(Error::Completion { status, vendor_err, qp_num }));
            }
            self.done.extend(buf);
        }
        if self.items.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Gives up its place in the queue, and abandons what is in flight. The caller drops the result without its lock.
    fn leave(&mut self, sends: &mut Sends<D>, wakes: &mut Vec<Waker>) -> Vec<Left<Outcome<D>>> {
        let place = sends.leave(&mut self.ticket, wakes).map(Left::Waker);
        let slots = self.keys.drain(..).filter_map(|key| sends.slots.abandon(key));
        let left = place.into_iter().chain(slots).collect();
        // Others may have come while this one posted, and less is wanted now.
        sends.waiters.wake(sends.free, wakes);
        left
    }

    /// Ready when all work requests are complete or one has failed. Returns the buffers if each work request is signaled.
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
        if (self.ticket.is_waiting() || !self.keys.is_empty()) && !self.qp.is_forked() {
            let mut wakes = Wakes::new();
            let qp = self.qp.clone();
            let left = self.leave(&mut lock(&qp.sends), &mut wakes);
            wakes.wake();
            left.into_iter().for_each(Left::discard);
        }
    }
}
