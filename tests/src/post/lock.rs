// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls that differ between the lockings: through `&mut`, or through a guard.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests, which takes a promise about the memory that they name; see the module above.

use super::req::Req;
use super::typed::Typed;
use crate::sges::wire;
use uverbs::qp::{Batch, QpBuilder, RecvQueue, SendQueue, Transport};
use uverbs::wr::Sge;
use uverbs::{Driver, Exclusive, PostError, ProtectionDomain, Shared, SharedReceiveQueue};
use uverbs_core::sync::Locking;

/// A locking, with the calls that differ.
pub trait Lock: Locking {
    /// Its name in tests.
    const NAME: &'static str;
    /// Begins the creation of a QP.
    fn builder<D: Driver, T: Transport>(pd: &ProtectionDomain<D>) -> QpBuilder<'_, D, T, Self>;
    /// A batch.
    fn batch<D: Driver, T: Typed>(
        sq: &mut SendQueue<D, T, Self>,
        reqs: &[Req<'_, D>],
    ) -> Result<(), PostError>;
    /// A batch that is filled and then aborted, or dropped.
    fn batch_lost<D: Driver, T: Typed>(
        sq: &mut SendQueue<D, T, Self>,
        reqs: &[Req<'_, D>],
        abort: bool,
    ) -> Result<(), PostError>;
    /// A single post.
    fn single<D: Driver, T: Typed>(sq: &mut SendQueue<D, T, Self>, req: &Req<'_, D>)
    -> Result<(), PostError>;
    /// A single receive.
    fn recv<D: Driver>(rq: &mut RecvQueue<D, Self>, wr_id: u64, sges: &[D::Sge]) -> Result<(), PostError>;
    /// A batch of receives.
    fn recv_batch<D: Driver>(rq: &mut RecvQueue<D, Self>, recvs: &[(u64, &[Sge])]) -> Result<(), PostError>;
    /// A single receive of an SRQ.
    fn srq_recv<D: Driver>(
        srq: &mut SharedReceiveQueue<D, Self>,
        wr_id: u64,
        sges: &[D::Sge],
    ) -> Result<(), PostError>;
    /// A batch of receives of an SRQ.
    fn srq_recv_batch<D: Driver>(
        srq: &mut SharedReceiveQueue<D, Self>,
        recvs: &[(u64, &[Sge])],
    ) -> Result<(), PostError>;
}

fn fill<D: Driver, T: Typed>(
    mut batch: Batch<'_, D, T>,
    reqs: &[Req<'_, D>],
    abort: Option<bool>,
) -> Result<(), PostError> {
    for req in reqs {
        T::push(&mut batch, req);
    }
    match abort {
        None => batch.complete(),
        Some(true) => {
            batch.abort();
            Ok(())
        }
        Some(false) => {
            drop(batch);
            Ok(())
        }
    }
}

macro_rules! recv_batch {
    ($D:ty, $batch:expr, $recvs:expr) => {{
        let mut batch = $batch;
        for (wr_id, sges) in $recvs {
            let sges = wire::<$D>(sges)?;
            // SAFETY: see `super`.
            unsafe { batch.push(*wr_id, &sges) };
        }
        batch.complete()
    }};
}

impl Lock for Exclusive {
    const NAME: &'static str = "exclusive";
    fn builder<D: Driver, T: Transport>(pd: &ProtectionDomain<D>) -> QpBuilder<'_, D, T, Self> {
        pd.qp::<T>()
    }
    fn batch<D: Driver, T: Typed>(
        sq: &mut SendQueue<D, T, Self>,
        reqs: &[Req<'_, D>],
    ) -> Result<(), PostError> {
        fill(sq.batch(), reqs, None)
    }
    fn batch_lost<D: Driver, T: Typed>(
        sq: &mut SendQueue<D, T, Self>,
        reqs: &[Req<'_, D>],
        abort: bool,
    ) -> Result<(), PostError> {
        fill(sq.batch(), reqs, Some(abort))
    }
    fn single<D: Driver, T: Typed>(
        sq: &mut SendQueue<D, T, Self>,
        req: &Req<'_, D>,
    ) -> Result<(), PostError> {
        T::now(sq, req)
    }
    fn recv<D: Driver>(rq: &mut RecvQueue<D, Self>, wr_id: u64, sges: &[D::Sge]) -> Result<(), PostError> {
        // SAFETY: see `super`.
        unsafe { rq.post(wr_id, sges) }
    }
    fn recv_batch<D: Driver>(rq: &mut RecvQueue<D, Self>, recvs: &[(u64, &[Sge])]) -> Result<(), PostError> {
        recv_batch!(D, rq.batch(), recvs)
    }
    fn srq_recv<D: Driver>(
        srq: &mut SharedReceiveQueue<D, Self>,
        wr_id: u64,
        sges: &[D::Sge],
    ) -> Result<(), PostError> {
        // SAFETY: see `super`.
        unsafe { srq.post(wr_id, sges) }
    }
    fn srq_recv_batch<D: Driver>(
        srq: &mut SharedReceiveQueue<D, Self>,
        recvs: &[(u64, &[Sge])],
    ) -> Result<(), PostError> {
        recv_batch!(D, srq.batch(), recvs)
    }
}

impl Lock for Shared {
    const NAME: &'static str = "shared";
    fn builder<D: Driver, T: Transport>(pd: &ProtectionDomain<D>) -> QpBuilder<'_, D, T, Self> {
        pd.qp::<T>().shared()
    }
    fn batch<D: Driver, T: Typed>(
        sq: &mut SendQueue<D, T, Self>,
        reqs: &[Req<'_, D>],
    ) -> Result<(), PostError> {
        fill(sq.lock()?.batch(), reqs, None)
    }
    fn batch_lost<D: Driver, T: Typed>(
        sq: &mut SendQueue<D, T, Self>,
        reqs: &[Req<'_, D>],
        abort: bool,
    ) -> Result<(), PostError> {
        fill(sq.lock()?.batch(), reqs, Some(abort))
    }
    fn single<D: Driver, T: Typed>(
        sq: &mut SendQueue<D, T, Self>,
        req: &Req<'_, D>,
    ) -> Result<(), PostError> {
        T::now_locked(&mut sq.lock()?, req)
    }
    fn recv<D: Driver>(rq: &mut RecvQueue<D, Self>, wr_id: u64, sges: &[D::Sge]) -> Result<(), PostError> {
        // SAFETY: see `super`.
        unsafe { rq.lock()?.post(wr_id, sges) }
    }
    fn recv_batch<D: Driver>(rq: &mut RecvQueue<D, Self>, recvs: &[(u64, &[Sge])]) -> Result<(), PostError> {
        let mut guard = rq.lock()?;
        recv_batch!(D, guard.batch(), recvs)
    }
    fn srq_recv<D: Driver>(
        srq: &mut SharedReceiveQueue<D, Self>,
        wr_id: u64,
        sges: &[D::Sge],
    ) -> Result<(), PostError> {
        let mut guard = srq.lock()?;
        // SAFETY: see `super`.
        unsafe { guard.post(wr_id, sges) }
    }
    fn srq_recv_batch<D: Driver>(
        srq: &mut SharedReceiveQueue<D, Self>,
        recvs: &[(u64, &[Sge])],
    ) -> Result<(), PostError> {
        let mut guard = srq.lock()?;
        recv_batch!(D, guard.batch(), recvs)
    }
}
