// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches of reads and atomics, which give their buffers back.
//!
//! As a [`Batch`](crate::Batch), it is posted in parts of at most half of the queue, each with one doorbell. Every work request
//! makes a completion, because only that gives the buffer back.

use crate::destination::{Addressed, To};
use crate::error::Result;
use crate::item::Data;
use crate::pair::Qp;
use crate::parts::{Buffers, Parts};
use crate::payload::sealed::Payload as _;
use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};
use uverbs::mr::Private;
use uverbs::qp::transport::{Reads, Reliable};
use uverbs::{Access, AnyDriver, Buf, BufPart, Driver, Operation, Rc, RemoteRegion};

/// The memory of a work request of a [`ReadBatch`]: it is made of a [`Buf`] or a [`BufPart`].
pub struct ReadData<A: Access = Private, D: Driver = AnyDriver>(Data<A, D>);

impl<A: Access, D: Driver> fmt::Debug for ReadData<A, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadData")
    }
}

impl<A: Access, D: Driver> From<Buf<A, D>> for ReadData<A, D> {
    fn from(buf: Buf<A, D>) -> Self {
        Self(Data::Buf(buf))
    }
}

impl<A: Access, D: Driver> From<BufPart<A, D>> for ReadData<A, D> {
    fn from(part: BufPart<A, D>) -> Self {
        Self(Data::Part(part))
    }
}

impl<A: Access, D: Driver> ReadData<A, D> {
    /// Limited to the 8 bytes of an atomic operation.
    fn word(self) -> Data<A, D> {
        match self.0 {
            Data::Buf(buf) => Data::Buf(buf.into_word()),
            data => data,
        }
    }
}

/// Reads and atomics that are posted in their order, with one result: the whole buffers, in that order.
///
/// If one fails, the buffers go back to their pools. If the batch is dropped before it is ready, what was posted takes place, and
/// the rest does not.
#[must_use = "futures do nothing unless they are polled"]
pub struct ReadBatch<A: Access = Private, D: Driver = AnyDriver, T = Rc> {
    parts: Parts<D, A>,
    _transport: PhantomData<fn() -> T>,
}

/// Nothing in it is pinned.
impl<D: Driver, A: Access, T> Unpin for ReadBatch<A, D, T> {}

impl<D: Driver, A: Access, T> fmt::Debug for ReadBatch<A, D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBatch")
            .field("items", &self.parts.len())
            .field("in_flight", &self.parts.in_flight())
            .finish_non_exhaustive()
    }
}

impl<D: Driver, T> Qp<T, D> {
    /// An empty batch of reads and atomics.
    pub fn read_batch<A: Access>(&self) -> ReadBatch<A, D, T> {
        ReadBatch { parts: Parts::new(self.inner.clone(), Buffers::Back), _transport: PhantomData }
    }
}

impl<D: Driver, A: Access> ReadBatch<A, D> {
    /// Adds an `IBV_WR_RDMA_READ`; see [`Qp::read`].
    pub fn read(&mut self, data: impl Into<ReadData<A, D>>, from: &RemoteRegion) {
        self.parts.push(To::Peer, Operation::Read(*from), data.into().0);
    }

    /// Adds an `IBV_WR_ATOMIC_FETCH_AND_ADD`; see [`Qp::fetch_add`].
    pub fn fetch_add(&mut self, data: impl Into<ReadData<A, D>>, at: &RemoteRegion, add: u64) {
        self.parts.push(To::Peer, Operation::FetchAdd(*at, add), data.into().word());
    }

    /// Adds an `IBV_WR_ATOMIC_CMP_AND_SWP`; see [`Qp::compare_swap`].
    pub fn compare_swap(
        &mut self,
        data: impl Into<ReadData<A, D>>,
        at: &RemoteRegion,
        compare: u64,
        swap: u64,
    ) {
        self.parts.push(To::Peer, Operation::CmpSwp(*at, compare, swap), data.into().word());
    }
}

impl<D: Driver, A: Access, T: Addressed + Reads> ReadBatch<A, D, T> {
    /// Adds an `IBV_WR_RDMA_READ`; see [`Qp::read_from`].
    pub fn read_from(&mut self, data: impl Into<ReadData<A, D>>, region: &RemoteRegion, from: &T::To<D>) {
        self.parts.push(T::to(from), Operation::Read(*region), data.into().0);
    }
}

impl<D: Driver, A: Access, T: Addressed + Reliable> ReadBatch<A, D, T> {
    /// Adds an `IBV_WR_ATOMIC_FETCH_AND_ADD`; see [`Qp::fetch_add_to`].
    pub fn fetch_add_to(
        &mut self,
        data: impl Into<ReadData<A, D>>,
        at: &RemoteRegion,
        add: u64,
        to: &T::To<D>,
    ) {
        self.parts.push(T::to(to), Operation::FetchAdd(*at, add), data.into().word());
    }

    /// Adds an `IBV_WR_ATOMIC_CMP_AND_SWP`; see [`Qp::compare_swap_to`].
    pub fn compare_swap_to(
        &mut self,
        data: impl Into<ReadData<A, D>>,
        at: &RemoteRegion,
        (compare, swap): (u64, u64),
        to: &T::To<D>,
    ) {
        self.parts.push(T::to(to), Operation::CmpSwp(*at, compare, swap), data.into().word());
    }
}

impl<D: Driver, A: Access, T> ReadBatch<A, D, T> {
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

impl<D: Driver, A: Access, T> Future for ReadBatch<A, D, T> {
    type Output = Result<Vec<Buf<A, D>>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().parts.poll(cx)
    }
}
