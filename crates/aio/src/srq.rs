// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues that are refilled from a pool.

use crate::deferred::{Ended, Recount};
use crate::error::{Error, Result};
use crate::life::Life;
use crate::route::RouteId;
use crate::sync::{Mutex, lock};
use core::fmt;
use std::sync::Arc;
use uverbs::{AnyDriver, Driver, Exclusive, Pool, Private};

struct State<D: Driver> {
    /// `None` only while it is dropped.
    queue: Option<uverbs::Srq<Exclusive, D>>,
    pool: Pool<Private, D>,
    depth: u32,
    posted: u32,
}

pub(crate) struct SrqInner<D: Driver> {
    state: Mutex<State<D>>,
    life: Arc<Life<D>>,
    route: RouteId,
    entries: u32,
}

impl<D: Driver> fmt::Debug for SrqInner<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq").field("depth", &self.entries).finish_non_exhaustive()
    }
}

/// A shared receive queue, whose receives are posted from a pool. Clones share it; QPs hold it.
///
/// ```
/// use uverbs::mlx5::Mlx5;
/// use uverbs::{ConnectAttr, Context};
/// use uverbs_aio::{Dispatcher, Result};
/// use uverbs_hca::Hca;
///
/// # fn main() -> Result<()> {
/// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// let (pd, dispatcher) = (context.alloc_pd()?, Dispatcher::new(&context)?);
/// let (pool, incoming) = (pd.pool(8, 4096)?, pd.pool(32, 4096)?);
/// let srq = dispatcher.srq(&pd, &incoming, 16)?;
/// // Any number of QPs may receive from it; these two are connected to each other.
/// let [a, b] = [(); 2].map(|()| dispatcher.qp(&pd).depth(8, 0).srq(&srq).create());
/// let (a, b, attr) = (a?, b?, ConnectAttr::default());
/// a.init(&attr)?;
/// b.init(&attr)?;
/// let (here, there) = (a.endpoint(1, &attr)?, b.endpoint(2, &attr)?);
/// a.connect(&here, &there, &attr)?;
/// b.connect(&there, &here, &attr)?;
///
/// dispatcher.block_on(async {
///     let mut buf = pool.get()?;
///     buf.fill(b"hello")?;
///     a.send(buf).await?;
///     // A message belongs to the QP at which it has arrived.
///     assert_eq!(&*b.recv().await?, b"hello");
///     a.shutdown().await?;
///     b.shutdown().await
/// })?;
/// # Ok(())
/// # }
/// ```
pub struct Srq<D: Driver = AnyDriver> {
    inner: Arc<SrqInner<D>>,
}

impl<D: Driver> Clone for Srq<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<D: Driver> fmt::Debug for Srq<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<D: Driver> Srq<D> {
    pub(crate) fn new(inner: Arc<SrqInner<D>>) -> Self {
        Self { inner }
    }

    /// Whether it is one of the dispatcher with this life.
    pub(crate) fn is_of(&self, life: &Arc<Life<D>>) -> bool {
        Arc::ptr_eq(&self.inner.life, life)
    }

    pub(crate) fn with_queue<R>(&self, f: impl FnOnce(&uverbs::Srq<Exclusive, D>) -> Result<R>) -> Result<R> {
        let state = lock(&self.inner.state);
        let queue = state.queue.as_ref().ok_or(Error::Closed)?;
        f(queue)
    }
}

impl<D: Driver> Recount for Srq<D> {
    fn recount(&self) {
        if self.inner.recount() {
            self.inner.life.starved(self.inner.route);
        }
    }
}

impl<D: Driver> SrqInner<D> {
    /// Of a queue that completes by `route`.
    pub(crate) fn new(
        queue: uverbs::Srq<Exclusive, D>,
        pool: &Pool<Private, D>,
        life: &Arc<Life<D>>,
        (route, entries): (RouteId, u32),
    ) -> Self {
        let state = State { queue: Some(queue), pool: pool.clone(), depth: entries, posted: 0 };
        Self { state: Mutex::new(state), life: life.clone(), route, entries }
    }

    /// A receive was completed. Returns whether the queue should be refilled.
    #[inline]
    pub(crate) fn taken(&self) -> bool {
        let mut state = lock(&self.state);
        state.posted = state.posted.saturating_sub(1);
        state.is_short()
    }

    /// As [`refill`](Self::refill), after the receives were counted.
    fn recount(&self) -> bool {
        let mut state = lock(&self.state);
        if let Some(queue) = &state.queue {
            state.posted = u32::try_from(queue.in_flight()).unwrap_or(u32::MAX);
        }
        state.refill(self.route)
    }

    /// Posts receives until the queue is full, or the pool is empty. Returns whether the queue is empty because the pool is.
    pub(crate) fn refill(&self) -> bool {
        lock(&self.state).refill(self.route)
    }
}

impl<D: Driver> State<D> {
    /// Whether so many receives are missing that a batch of them is worth a doorbell: a quarter of the queue, or all.
    fn is_short(&self) -> bool {
        let missing = self.depth.saturating_sub(self.posted);
        missing > 0 && (self.posted == 0 || missing >= self.depth / 4)
    }

    fn refill(&mut self, route: RouteId) -> bool {
        if !self.is_short() {
            return false;
        }
        let missing = self.depth.saturating_sub(self.posted);
        let Some(queue) = &mut self.queue else { return false };
        let mut batch = queue.batch();
        let mut pushed = 0;
        while pushed < missing
            && let Some(buf) = self.pool.try_get()
        {
            batch.push(route.receive(), buf);
            pushed += 1;
        }
        if pushed == 0 {
            drop(batch);
            return self.posted == 0;
        }
        match batch.complete() {
            Ok(()) => self.posted += pushed,
            Err(error) => uverbs::report!(warn, {}, "receives of an SRQ: {error}"),
        }
        false
    }
}

impl<D: Driver> Drop for SrqInner<D> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        drop(state.queue.take());
        if self.life.sleeper().is_forked() {
            return;
        }
        let (route, entries) = (self.route, self.entries);
        self.life.queue_ended(Ended { route, qp_num: None, entries, linger: None, life: None, srq: None });
    }
}
