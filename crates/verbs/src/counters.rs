// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the queues, CQs, pools and contexts of this process, as plain values (feature `counters`).
//!
//! They begin at 0 with the object, have 64 bits and do not decrease (a post that the driver is about to refuse may be counted for the
//! moment of the call). They may be read while other threads post and poll: each value is one that its counter had during the call, but
//! those of one struct are not read at the same instant. A RESET of a QP keeps them. [`Context::counters`] also has what objects have
//! counted that exist no longer. In a child of fork(2) they begin with the values of the time of the fork.
//!
//! They count what this process does with objects whose work requests own their buffers, not with those of [`raw`](crate::raw). What the
//! port and the device count is in sysfs: see [`stat`](crate::stat).
//!
//! ```
//! use uverbs::{Context, Rc, mlx5::Mlx5};
//! use uverbs_hca::Hca;
//!
//! # fn main() -> uverbs::Result<()> {
//! let ctx = Context::<Mlx5>::from_kernel(Hca::new().open())?;
//! let (pd, cq) = (ctx.alloc_pd()?, ctx.cq(64)?);
//! let mut qp = pd.qp::<Rc>().cq(&cq).depth(16, 16).create()?;
//! qp.init(&uverbs::ConnectAttr::new())?;
//! let pool = pd.pool(4, 4096)?;
//! qp.recv(pool.get()?)?;
//! let reader = qp.control().clone(); // for another thread
//! assert_eq!(reader.counters().recv.posts, 1);
//! drop((qp, reader));
//! assert_eq!(ctx.counters()?.recv.posts, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Cost
//! A post has one instruction more; a batch about five, and one for each receive; a poll two for a completion. Without the feature there is
//! none of them. `cargo xtask bench --check` counts both.

use crate::access::Access;
use crate::context::{Context, ContextInner};
use crate::cq::Cq;
use crate::flight::Flight;
use crate::id::CqId;
use crate::pool::Pool;
use crate::qp::transport::{Sends, Transport};
use crate::qp::{Qp, QpControl};
use crate::recv::{RecvQueue, Srq};
use crate::send::SendQueue;
use std::sync::{Arc, Weak};
use uverbs_core::Errno;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, QueueKind, QueueName};
use uverbs_core::sync::Locking;

/// Declares the counters of an object, with their sum and their names.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: u64,)*
        }

        impl $name {
            /// Adds those of another object.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }

            /// Each with its name and what it counts.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<> {
                [$((stringify!($field), concat!($($doc),*).trim_ascii(), self.$field),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Of a send queue, a receive queue or an SRQ.
    QueueCounters {
        /// Work requests that were posted.
        posts,
        /// Doorbells: one for each post of a work request and for each batch.
        doorbells,
        /// Work requests that are known to be complete, also those without a completion of their own.
        completed,
        /// Posts and batches that have failed because the queue was full.
        full,
        /// Posts and batches that have failed for another reason.
        refused,
        /// Completions with an error, except those that were flushed.
        errors,
        /// Completions of work requests that were flushed.
        flushed,
        /// Of `errors`: the peer had no receive for the message after all retries (`IBV_WC_RNR_RETRY_EXC_ERR`).
        rnr,
    }
}

counters! {
    /// Of a CQ.
    CqCounters {
        /// Completions that were polled.
        completions,
        /// Those with an error.
        errors,
    }
}

/// Of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpCounters {
    /// The send queue.
    pub send: QueueCounters,
    /// The receive queue; 0 if an SRQ takes the receives, which has [its own](Srq::counters).
    pub recv: QueueCounters,
}

/// Of a pool of buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolCounters {
    /// The buffers of the pool.
    pub buffers: u64,
    /// Those that are not lent now.
    pub available: u64,
    /// Calls of `get` and `try_get` that have found no buffer.
    pub empty: u64,
    /// Calls of `acquire`, and futures, that have waited for a buffer.
    pub waits: u64,
    /// Calls of `acquire` that got none in time.
    pub timeouts: u64,
}

/// The sums of a context, over the objects that exist and those that do no longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextCounters {
    /// All send queues.
    pub send: QueueCounters,
    /// All receive queues, and SRQs.
    pub recv: QueueCounters,
    /// All CQs.
    pub cq: CqCounters,
}

impl ContextCounters {
    fn of(&mut self, queue: QueueName) -> &mut QueueCounters {
        if queue.kind() == QueueKind::Send { &mut self.send } else { &mut self.recv }
    }
}

/// The sums of the queues of a context that exist no longer.
#[derive(Debug, Default)]
pub(crate) struct Gone(ContextCounters);

impl Gone {
    pub(crate) fn add<D: Driver>(&mut self, flight: &Flight<D>) {
        self.0.of(flight.label.name()).add(&flight.counters());
    }
}

impl<D: Driver> Flight<D> {
    /// Looks at each slot.
    pub(crate) fn counters(&self) -> QueueCounters {
        self.counts.read(|| self.slab.len() as u64)
    }
}

/// Sums of the flights of a QP.
fn of_qp<D: Driver>(flights: &[Arc<Flight<D>>]) -> QpCounters {
    let mut sums = ContextCounters::default();
    flights.iter().for_each(|flight| sums.of(flight.label.name()).add(&flight.counters()));
    QpCounters { send: sums.send, recv: sums.recv }
}

impl<D: Driver, T: Transport + Sends, L: Locking> Qp<T, L, D> {
    /// What was counted since the QP was created. It looks at each slot of the queues. [`QpControl::counters`] is for another thread.
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        self.control.counters()
    }
}

impl<D: Driver> QpControl<D> {
    /// As [`Qp::counters`]; 0 for a QP of [`raw`](crate::raw).
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        of_qp(self.holds().all())
    }
}

impl<D: Driver, T: Sends, L: Locking> SendQueue<T, L, D> {
    /// What was counted since the QP was created. It looks at each slot.
    #[must_use]
    pub fn counters(&self) -> QueueCounters {
        self.flight().counters()
    }
}

impl<D: Driver, L: Locking> RecvQueue<L, D> {
    /// What was counted since the QP was created. It looks at each slot.
    #[must_use]
    pub fn counters(&self) -> QueueCounters {
        self.flight().counters()
    }
}

impl<D: Driver, L: Locking> Srq<L, D> {
    /// What was counted since it was created. It looks at each slot.
    #[must_use]
    pub fn counters(&self) -> QueueCounters {
        self.flight().counters()
    }
}

impl<D: Driver, A: Access> Pool<A, D> {
    /// What was counted since the pool was created, and its buffers.
    #[must_use]
    pub fn counters(&self) -> PoolCounters {
        let [empty, waits, timeouts] = self.counts().read();
        let (buffers, available) = (self.buffers().into(), self.available() as u64);
        PoolCounters { buffers, available, empty, waits, timeouts }
    }
}

/// A child of fork(2) whose parent had a lock at that time.
fn forked() -> Error {
    Error::os("counters", "context of the parent process", Errno::ESTALE)
}

/// The queues that exist, and the sums of the others.
fn queues<D: Driver>(context: &ContextInner<D>) -> Result<(Vec<Arc<Flight<D>>>, ContextCounters)> {
    let flights = context.flights();
    let queues = flights.queues.lock().map_err(|_| forked())?;
    let gone = flights.gone.lock().map_err(|_| forked())?.0;
    Ok((queues.iter().filter_map(Weak::upgrade).collect(), gone))
}

impl<D: Driver> Context<D> {
    /// What the queues and CQs of this context have counted, with those that were destroyed. It looks at each slot of each queue: not for
    /// the data path.
    ///
    /// # Errors
    /// `ESTALE` in a child of fork(2), if a thread of its parent created or destroyed a queue at the time of the fork.
    pub fn counters(&self) -> Result<ContextCounters> {
        let (queues, mut sums) = queues(self.inner())?;
        queues.iter().for_each(|flight| sums.of(flight.label.name()).add(&flight.counters()));
        let (cqs, gone) = self.inner().cq_totals().read().ok_or_else(forked)?;
        sums.cq = gone;
        cqs.iter().for_each(|(_, cq)| sums.cq.add(cq));
        Ok(sums)
    }

    /// The counters of each queue that exists.
    ///
    /// # Errors
    /// As [`counters`](Self::counters).
    pub fn queue_counters(&self) -> Result<Vec<(QueueName, QueueCounters)>> {
        let (queues, _) = queues(self.inner())?;
        Ok(queues.iter().map(|flight| (flight.label.name(), flight.counters())).collect())
    }

    /// The counters of each CQ that exists.
    ///
    /// # Errors
    /// As [`counters`](Self::counters).
    pub fn cq_counters(&self) -> Result<Vec<(CqId, CqCounters)>> {
        let (cqs, _) = self.inner().cq_totals().read().ok_or_else(forked)?;
        Ok(cqs.into_iter().map(|(cq, counters)| (CqId(cq), counters)).collect())
    }
}

impl<L: Locking, D: Driver> Cq<L, D> {
    /// What was counted since the CQ was created. A thread that can't have the CQ finds it by its [`id`](Self::id) in
    /// [`Context::cq_counters`].
    #[must_use]
    pub fn counters(&self) -> CqCounters {
        self.counts().read()
    }
}
