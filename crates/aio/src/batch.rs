// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches: many sends or writes with one completion.
//!
//! A batch is posted in parts of at most half of the queue, so that the device works on one part while the program posts the next.
//! Only the last work request of a part makes a completion. The buffers of the others go back to their pools with it.

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
use uverbs::wr::ImmData;
use uverbs::{Driver, PostError, RemoteRegion, SendFlags, WcStatus};

/// Sends and writes that are posted in their order, with one result. As a future, it is ready when all are complete.
///
/// The buffers go back to their pools. If the batch is dropped before it is ready, what was posted takes place, and the rest does
/// not.
#[must_use = "futures do nothing unless they are polled"]
pub struct Batch<D: Driver, A: Access = Private> {
    qp: Arc<QpInner<D>>,
    items: VecDeque<(Request, Buf<D, A>)>,
    ticket: Ticket,
    /// The parts in flight.
    keys: VecDeque<u64>,
}

/// Nothing in it is pinned.
impl<D: Driver, A: Access> Unpin for Batch<D, A> {}

impl<D: Driver, A: Access> fmt::Debug for Batch<D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("items", &self.items.len()).field("parts", &self.keys.len()).finish()
    }
}

impl<D: Driver> Qp<D> {
    /// An empty batch.
    pub fn batch<A: Access>(&self) -> Batch<D, A> {
        Batch {
            qp: self.inner.clone(),
            items: VecDeque::new(),
            ticket: Ticket::default(),
            keys: VecDeque::new(),
        }
    }
}

impl<D: Driver, A: Access> Batch<D, A> {
    /// Adds an `IBV_WR_SEND`.
    pub fn send(&mut self, buf: Buf<D, A>) {
        self.items.push_back((Request::Send, buf));
    }

    /// Adds an `IBV_WR_SEND_WITH_IMM`.
    pub fn send_imm(&mut self, buf: Buf<D, A>, imm: ImmData) {
        self.items.push_back((Request::SendImm(imm), buf));
    }

    /// Adds an `IBV_WR_RDMA_WRITE` to the front of `to`.
    pub fn write(&mut self, buf: Buf<D, A>, to: &RemoteRegion) {
        self.items.push_back((Request::Write(*to), buf));
    }

    /// Adds an `IBV_WR_RDMA_WRITE_WITH_IMM`: at the end of a batch of writes it reports to the peer that they have arrived.
    pub fn write_imm(&mut self, buf: Buf<D, A>, to: &RemoteRegion, imm: ImmData) {
        self.items.push_back((Request::WriteImm(*to, imm), buf));
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
        let (Some(queue), Some(key)) = (&mut sends.queue, sends.slots.insert(waker.clone())) else {
            return Err(PostError::QueueFull.into());
        };
        let route = self.qp.route();
        let mut batch = queue.batch();
        for (i, (request, buf)) in self.items.drain(..count as usize).enumerate() {
            let wr = match i as u32 + 1 == count {
                true => batch.wr(route.send(key)).flags(SendFlags::SIGNALED),
                false => batch.wr(route.part(key)),
            };
            match request {
                Request::SendImm(imm) => wr.send_imm(buf, imm),
                Request::Write(to) => wr.write(buf, &to),
                Request::WriteImm(to, imm) => wr.write_imm(buf, &to, imm),
                _ => wr.send(buf),
            }
        }
        match batch.complete() {
            Ok(()) => {
                sends.posted(key, count);
                self.keys.push_back(key);
                Ok(())
            }
            Err(error) => {
                if let PostError::Doorbell(_) = error {
                    // The device may execute it, and completions may arrive.
                    sends.posted(key, count);
                    sends.slots.abandon(key);
                } else {
                    sends.slots.remove(key);
                }
                Err(error.into())
            }
        }
    }

    /// Posts what fits, and takes the results of the first parts.
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
            if status != WcStatus::SUCCESS {
                return Poll::Ready(Err(Error::Completion { status, vendor_err }));
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

impl<D: Driver, A: Access> Future for Batch<D, A> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
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
        if result.is_ready() {
            // The rest of a batch that failed.
            this.items.clear();
        }
        wake(&mut wakes);
        result
    }
}

impl<D: Driver, A: Access> Drop for Batch<D, A> {
    fn drop(&mut self) {
        if (self.ticket.is_waiting() || !self.keys.is_empty()) && !self.qp.is_forked() {
            let mut wakes = Vec::new();
            let qp = self.qp.clone();
            self.leave(&mut lock(&qp.sends), &mut wakes);
            wake(&mut wakes);
        }
    }
}
