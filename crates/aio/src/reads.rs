// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches of reads and atomics, which give their buffers back.
//!
//! As a [`Batch`](crate::Batch), it is posted in parts of at most half of the queue, each with one doorbell. Every work request
//! makes a completion, because only that gives the buffer back.

use crate::dispatcher::{FORKED, wake};
use crate::error::{Error, Result};
use crate::op::Request;
use crate::qp::{Qp, QpInner, Sends};
use crate::sync::lock;
use crate::turnstile::Ticket;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs::mr::Private;
use uverbs::owned::{Access, Buf};
use uverbs::{Driver, PostError, RemoteRegion, SendFlags, WcStatus};

/// Reads and atomics that are posted in their order, with one result: the buffers, in that order.
///
/// If one fails, the buffers go back to their pools. If the batch is dropped before it is ready, what was posted takes place, and
/// the rest does not.
#[must_use = "futures do nothing unless they are polled"]
pub struct ReadBatch<D: Driver, A: Access = Private> {
    qp: Arc<QpInner<D>>,
    items: VecDeque<(Request, Buf<D, A>)>,
    ticket: Ticket,
    /// Those in flight.
    keys: VecDeque<u64>,
    done: Vec<Buf<D, A>>,
}

/// Nothing in it is pinned.
impl<D: Driver, A: Access> Unpin for ReadBatch<D, A> {}

impl<D: Driver, A: Access> fmt::Debug for ReadBatch<D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBatch")
            .field("items", &self.items.len())
            .field("in_flight", &self.keys.len())
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Qp<D> {
    /// An empty batch of reads and atomics.
    pub fn read_batch<A: Access>(&self) -> ReadBatch<D, A> {
        ReadBatch {
            qp: self.inner.clone(),
            items: VecDeque::new(),
            ticket: Ticket::default(),
            keys: VecDeque::new(),
            done: Vec::new(),
        }
    }
}

impl<D: Driver, A: Access> ReadBatch<D, A> {
    /// Adds an `IBV_WR_RDMA_READ`; see [`Qp::read`].
    pub fn read(&mut self, buf: Buf<D, A>, from: &RemoteRegion) {
        self.items.push_back((Request::Read(*from), buf));
    }

    /// Adds an `IBV_WR_ATOMIC_FETCH_AND_ADD`; see [`Qp::fetch_add`].
    pub fn fetch_add(&mut self, buf: Buf<D, A>, at: &RemoteRegion, add: u64) {
        self.items.push_back((Request::FetchAdd(*at, add), buf));
    }

    /// Adds an `IBV_WR_ATOMIC_CMP_AND_SWP`; see [`Qp::compare_swap`].
    pub fn compare_swap(&mut self, buf: Buf<D, A>, at: &RemoteRegion, compare: u64, swap: u64) {
        self.items.push_back((Request::CompareSwap(*at, compare, swap), buf));
    }

    /// The number of operations that are not posted yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Posts the next `count` operations.
    fn post(&mut self, sends: &mut Sends<D>, count: u32, waker: &Waker) -> Result<()> {
        let first = self.keys.len();
        self.keys.extend((0..count).map_while(|_| sends.slots.insert(waker.clone())));
        let posted = match &mut sends.queue {
            Some(queue) if self.keys.len() - first == count as usize => {
                let route = self.qp.route();
                let mut batch = queue.batch();
                for ((request, buf), key) in self.items.drain(..count as usize).zip(self.keys.range(first..))
                {
                    let wr = batch.wr(route.send(*key)).flags(SendFlags::SIGNALED);
                    match request {
                        Request::FetchAdd(at, add) => wr.fetch_add(buf, &at, add),
                        Request::CompareSwap(at, compare, swap) => wr.compare_swap(buf, &at, compare, swap),
                        Request::Read(from) => wr.read(buf, &from),
                        // No other request is added.
                        _ => drop(wr),
                    }
                }
                batch.complete()
            }
            _ => Err(PostError::QueueFull),
        };
        match posted {
            Ok(()) => sends.free -= count,
            Err(PostError::Doorbell(_)) => {
                // The device may execute them, and completions may arrive: the caller abandons the keys.
                sends.free -= count;
            }
            Err(_) => {
                for key in self.keys.drain(first..) {
                    sends.slots.remove(key);
                }
            }
        }
        Ok(posted?)
    }

    /// Posts what fits, and takes the results of the first ones.
    fn step(&mut self, sends: &mut Sends<D>, waker: &Waker) -> Poll<Result<()>> {
        let most = (self.qp.depth() / 2).max(1);
        while !self.items.is_empty() {
            if let Some(error) = sends.closed.clone() {
                return Poll::Ready(Err(error));
            }
            let count = u32::try_from(self.items.len()).unwrap_or(u32::MAX).min(most);
            if !sends.turnstile.pass(&mut self.ticket, count, sends.free, waker) {
                break;
            }
            self.post(sends, count, waker)?;
        }
        while let Some(&key) = self.keys.front() {
            let Poll::Ready(outcome) = sends.slots.poll(key, waker) else { return Poll::Pending };
            self.keys.pop_front();
            let completed = outcome.unwrap_or(Err(Error::Closed))?;
            let (status, vendor_err) = (completed.wc.status, completed.wc.vendor_err);
            match completed.buf_of() {
                Some(buf) if status == WcStatus::SUCCESS => self.done.push(buf),
                _ => return Poll::Ready(Err(Error::Completion { status, vendor_err })),
            }
        }
        if self.items.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Leaves the queue to others.
    fn leave(&mut self, sends: &mut Sends<D>, wakes: &mut Vec<Waker>) {
        sends.leave(&mut self.ticket, wakes);
        for key in self.keys.drain(..) {
            drop(sends.slots.abandon(key));
        }
        // Others may have come while this one posted, and less is wanted now.
        sends.turnstile.wake(sends.free, wakes);
    }
}

impl<D: Driver, A: Access> Future for ReadBatch<D, A> {
    type Output = Result<Vec<Buf<D, A>>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.qp.is_forked() {
            return Poll::Ready(Err(FORKED));
        }
        let qp = this.qp.clone();
        let mut wakes = Vec::new();
        let mut sends = lock(&qp.sends);
        let result = this.step(&mut sends, cx.waker());
        if let Poll::Ready(Err(_)) = result {
            this.leave(&mut sends, &mut wakes);
        }
        drop(sends);
        let result = result.map(|result| {
            // Nothing remains of a batch that failed.
            this.items.clear();
            let done = core::mem::take(&mut this.done);
            result.map(|()| done)
        });
        wake(&mut wakes);
        result
    }
}

impl<D: Driver, A: Access> Drop for ReadBatch<D, A> {
    fn drop(&mut self) {
        if (self.ticket.is_waiting() || !self.keys.is_empty()) && !self.qp.is_forked() {
            let mut wakes = Vec::new();
            let qp = self.qp.clone();
            self.leave(&mut lock(&qp.sends), &mut wakes);
            wake(&mut wakes);
        }
    }
}
