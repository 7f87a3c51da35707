// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches: many sends or writes with one completion.
//!
//! A batch is posted in parts of at most half of the queue, so that the device works on one part while the program posts the next.
//! Only the last work request of a part makes a completion. The buffers of the others go back to their pools with it. (Each datagram
//! makes one, because on some devices they complete in any order.)

use crate::destination::{Addressed, To};
use crate::error::Result;
use crate::item::Data;
use crate::pair::Qp;
use crate::parts::{Buffers, Parts};
use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};
use uverbs::mr::Private;
use uverbs::qp::transport::Writes;
use uverbs::wr::ImmData;
use uverbs::{Access, AnyDriver, Buf, BufPart, Driver, Operation, Rc, RemoteRegion, SharedBuf};

/// The memory of a work request of a [`Batch`]: it is made of a [`Buf`], a [`BufPart`] or a [`SharedBuf`].
pub struct BatchData<A: Access = Private, D: Driver = AnyDriver>(Data<A, D>);

impl<A: Access, D: Driver> fmt::Debug for BatchData<A, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BatchData")
    }
}

impl<A: Access, D: Driver> From<Buf<A, D>> for BatchData<A, D> {
    fn from(buf: Buf<A, D>) -> Self {
        Self(Data::Buf(buf))
    }
}

impl<A: Access, D: Driver> From<BufPart<A, D>> for BatchData<A, D> {
    fn from(part: BufPart<A, D>) -> Self {
        Self(Data::Part(part))
    }
}

impl<A: Access, D: Driver> From<SharedBuf<A, D>> for BatchData<A, D> {
    fn from(shared: SharedBuf<A, D>) -> Self {
        Self(Data::Shared(shared))
    }
}

/// Sends and writes that are posted in their order, with one result. As a future, it is ready when all are complete.
///
/// The buffers go back to their pools. If the batch is dropped before it is ready, what was posted takes place, and the rest does
/// not. The first batch of a QP that is dropped with work requests, and was never polled, logs a warning.
///
/// ```
/// use uverbs::attr::AccessFlags;
/// use uverbs::mlx5::Mlx5;
/// use uverbs::{ConnectAttr, Context};
/// use uverbs_aio::{Dispatcher, Result};
/// use uverbs_hca::Hca;
///
/// # fn main() -> Result<()> {
/// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// let (pd, dispatcher) = (context.alloc_pd()?, Dispatcher::new(&context)?);
/// let (pool, incoming) = (pd.pool(8, 4096)?, pd.pool(8, 64)?);
/// let attr = ConnectAttr::new().access(AccessFlags::REMOTE_WRITE);
/// // A QP that is connected to itself, and a buffer to which the peer may write.
/// let qp = dispatcher.qp(&pd).depth(8, 8).pool(&incoming).create()?;
/// qp.init(&attr)?;
/// let end = qp.endpoint(1, &attr)?;
/// qp.connect(&end, &end, &attr)?;
/// let table = pd.pool_with(1, 4 * 4096).exposed(AccessFlags::REMOTE_WRITE).build()?.get()?;
/// let region = table.remote_region();
///
/// dispatcher.block_on(async {
///     let mut batch = qp.batch();
///     for n in 0..4 {
///         let mut buf = pool.get()?;
///         buf.fill(&[n; 4096])?;
///         let at = u64::from(n) * 4096;
///         batch.write(buf, &region.slice(at..at + 4096)?);
///     }
///     // Half of the queue's entries: one doorbell, and one completion.
///     batch.await
/// })?;
/// let mut byte = [0];
/// table.read_at(3 * 4096, &mut byte)?;
/// assert_eq!(byte, [3]);
/// # Ok(())
/// # }
/// ```
///
/// The work requests of a QP without a peer of its own, or with several queues there, name their destinations; see
/// [`send_to`](Self::send_to).
#[must_use = "futures do nothing unless they are polled"]
pub struct Batch<A: Access = Private, D: Driver = AnyDriver, T = Rc> {
    parts: Parts<D, A>,
    _transport: PhantomData<fn() -> T>,
}

/// Nothing in it is pinned.
impl<D: Driver, A: Access, T> Unpin for Batch<A, D, T> {}

impl<D: Driver, A: Access, T> fmt::Debug for Batch<A, D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("items", &self.parts.len())
            .field("parts", &self.parts.in_flight())
            .finish()
    }
}

impl<D: Driver, T> Qp<T, D> {
    /// An empty batch.
    pub fn batch<A: Access>(&self) -> Batch<A, D, T> {
        Batch { parts: Parts::new(self.inner.clone(), Buffers::ToPools), _transport: PhantomData }
    }
}

impl<D: Driver, A: Access> Batch<A, D> {
    /// Adds an `IBV_WR_SEND`.
    pub fn send(&mut self, data: impl Into<BatchData<A, D>>) {
        self.parts.push(To::Peer, Operation::Send, data.into().0);
    }

    /// Adds an `IBV_WR_SEND_WITH_IMM`.
    pub fn send_imm(&mut self, data: impl Into<BatchData<A, D>>, imm: ImmData) {
        self.parts.push(To::Peer, Operation::SendImm(imm.get()), data.into().0);
    }

    /// Adds an `IBV_WR_RDMA_WRITE` to the front of `to`.
    pub fn write(&mut self, data: impl Into<BatchData<A, D>>, to: &RemoteRegion) {
        self.parts.push(To::Peer, Operation::Write(*to), data.into().0);
    }

    /// Adds an `IBV_WR_RDMA_WRITE_WITH_IMM`: at the end of a batch of writes it reports to the peer that they have arrived.
    pub fn write_imm(&mut self, data: impl Into<BatchData<A, D>>, to: &RemoteRegion, imm: ImmData) {
        self.parts.push(To::Peer, Operation::WriteImm(*to, imm.get()), data.into().0);
    }
}

impl<D: Driver, A: Access, T: Addressed> Batch<A, D, T> {
    /// Adds an `IBV_WR_SEND` to this destination. A batch may have work requests to several ones; an address handle lives until the last
    /// work request that uses it is complete.
    pub fn send_to(&mut self, data: impl Into<BatchData<A, D>>, to: &T::To<D>) {
        self.parts.push(T::to(to), Operation::Send, data.into().0);
    }

    /// Adds an `IBV_WR_SEND_WITH_IMM` to this destination.
    pub fn send_imm_to(&mut self, data: impl Into<BatchData<A, D>>, imm: ImmData, to: &T::To<D>) {
        self.parts.push(T::to(to), Operation::SendImm(imm.get()), data.into().0);
    }
}

impl<D: Driver, A: Access, T: Addressed + Writes> Batch<A, D, T> {
    /// Adds an `IBV_WR_RDMA_WRITE` to the front of `region`, which is memory of this destination.
    pub fn write_to(&mut self, data: impl Into<BatchData<A, D>>, region: &RemoteRegion, to: &T::To<D>) {
        self.parts.push(T::to(to), Operation::Write(*region), data.into().0);
    }

    /// Adds an `IBV_WR_RDMA_WRITE_WITH_IMM`; see [`write_imm`](Batch::write_imm). On [`Srd`](uverbs::Srd) it may arrive before the writes.
    pub fn write_imm_to(
        &mut self,
        data: impl Into<BatchData<A, D>>,
        region: &RemoteRegion,
        imm: ImmData,
        to: &T::To<D>,
    ) {
        self.parts.push(T::to(to), Operation::WriteImm(*region, imm.get()), data.into().0);
    }
}

impl<D: Driver, A: Access, T> Batch<A, D, T> {
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

/// A batch that was never polled was forgotten: a warning says so, once for each QP. One that was polled was cancelled.
impl<D: Driver, A: Access, T> Drop for Batch<A, D, T> {
    fn drop(&mut self) {
        if self.parts.is_new() && !self.is_empty() {
            self.parts.warn();
        }
    }
}

impl<D: Driver, A: Access, T> Future for Batch<A, D, T> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().parts.poll(cx).map_ok(drop)
    }
}
