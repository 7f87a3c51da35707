// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches of reads and atomics, which give their buffers back.
//!
//! As a [`Batch`](crate::Batch), it is posted in parts of at most half of the queue, each with one doorbell. Every work request
//! makes a completion, because only that gives the buffer back.

use crate::error::Result;
use crate::op::Request;
use crate::pair::Qp;
use crate::parts::{Parts, Signaled};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use uverbs::mr::Private;
use uverbs::{Access, AnyDriver, Buf, Driver, Rc, RemoteRegion};

/// Reads and atomics that are posted in their order, with one result: the buffers, in that order.
///
/// If one fails, the buffers go back to their pools. If the batch is dropped before it is ready, what was posted takes place, and
/// the rest does not.
#[must_use = "futures do nothing unless they are polled"]
pub struct ReadBatch<A: Access = Private, D: Driver = AnyDriver> {
    parts: Parts<D, A>,
}

/// Nothing in it is pinned.
impl<D: Driver, A: Access> Unpin for ReadBatch<A, D> {}

impl<D: Driver, A: Access> fmt::Debug for ReadBatch<A, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBatch")
            .field("items", &self.parts.len())
            .field("in_flight", &self.parts.in_flight())
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Qp<Rc, D> {
    /// An empty batch of reads and atomics.
    pub fn read_batch<A: Access>(&self) -> ReadBatch<A, D> {
        ReadBatch { parts: Parts::new(self.inner.clone(), Signaled::Each) }
    }
}

impl<D: Driver, A: Access> ReadBatch<A, D> {
    /// Adds an `IBV_WR_RDMA_READ`; see [`Qp::read`].
    pub fn read(&mut self, buf: Buf<A, D>, from: &RemoteRegion) {
        self.parts.push(Request::Read(*from), buf);
    }

    /// Adds an `IBV_WR_ATOMIC_FETCH_AND_ADD`; see [`Qp::fetch_add`].
    pub fn fetch_add(&mut self, buf: Buf<A, D>, at: &RemoteRegion, add: u64) {
        self.parts.push(Request::FetchAdd(*at, add), buf);
    }

    /// Adds an `IBV_WR_ATOMIC_CMP_AND_SWP`; see [`Qp::compare_swap`].
    pub fn compare_swap(&mut self, buf: Buf<A, D>, at: &RemoteRegion, compare: u64, swap: u64) {
        self.parts.push(Request::CompareSwap(*at, compare, swap), buf);
    }

    /// The number of operations that are not posted yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.len() == 0
    }
}

impl<D: Driver, A: Access> Future for ReadBatch<A, D> {
    type Output = Result<Vec<Buf<A, D>>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().parts.poll(cx)
    }
}
