// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls that differ between the lockings: through `&mut`, or through a guard.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests; the contracts of its functions require that the memory that they name stays valid.

use super::{Req, Typed};
use crate::push::wire;
use uverbs::provider::recv::RecvQueue as Engine;
use uverbs::raw::RecvBatch;
use uverbs::wr::Sge;
use uverbs::{Driver, Exclusive, PostError, ProtectionDomain, Shared, raw::Srq};
use uverbs::{
    qp::Transport,
    raw::{Batch, QpBuilder, RecvQueue, SendQueue},
};
use uverbs_core::sync::Locking;

/// The end of a batch that is not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It is aborted.
    Abort,
    /// It is dropped.
    Drop,
    /// It is forgotten.
    Forget,
}

/// A locking, with the calls that differ.
///
/// # Errors
/// Of the functions: the error of the post.
///
/// # Safety
/// Of the functions: memory as for [`super::post`].
#[expect(clippy::missing_safety_doc, reason = "the trait has the contract of all")]
pub trait Lock: Locking {
    /// Its name in tests.
    const NAME: &'static str;
    /// Begins the creation of a QP.
    fn builder<D: Driver, T: Transport>(pd: &ProtectionDomain<D>) -> QpBuilder<'_, T, Self, D>;
    /// A batch, which is completed unless it is lost.
    unsafe fn batch<D: Driver, T: Typed<D>>(
        sq: &mut SendQueue<T, Self, D>,
        reqs: &[Req<'_, D>],
        lost: Option<Lost>,
    ) -> Result<(), PostError>;
    /// A single post.
    unsafe fn single<D: Driver, T: Typed<D>>(
        sq: &mut SendQueue<T, Self, D>,
        req: &Req<'_, D>,
    ) -> Result<(), PostError>;
    /// A single receive.
    unsafe fn recv<D: Driver>(
        rq: &mut RecvQueue<Self, D>,
        wr_id: u64,
        sges: &[D::Sge],
    ) -> Result<(), PostError>;
    /// A batch of receives.
    unsafe fn recv_batch<D: Driver>(
        rq: &mut RecvQueue<Self, D>,
        recvs: &[(u64, &[Sge])],
    ) -> Result<(), PostError>;
    /// A single receive of an SRQ.
    unsafe fn srq_recv<D: Driver>(
        srq: &mut Srq<Self, D>,
        wr_id: u64,
        sges: &[D::Sge],
    ) -> Result<(), PostError>;
    /// A batch of receives of an SRQ.
    unsafe fn srq_recv_batch<D: Driver>(
        srq: &mut Srq<Self, D>,
        recvs: &[(u64, &[Sge])],
    ) -> Result<(), PostError>;
}

/// Fills a batch, and ends it.
///
/// # Errors
/// The error of the batch.
///
/// # Safety
/// As [`super::post`].
pub unsafe fn batch<D: Driver, T: Typed<D>>(
    mut batch: Batch<'_, T, D>,
    reqs: &[Req<'_, D>],
    lost: Option<Lost>,
) -> Result<(), PostError> {
    for req in reqs {
        // SAFETY: the memory that `req` names stays valid until it completes (contract of this function).
        unsafe { T::push(&mut batch, req) }?;
    }
    match lost {
        None => batch.complete()?,
        Some(Lost::Abort) => batch.abort(),
        Some(Lost::Drop) => drop(batch),
        Some(Lost::Forget) => core::mem::forget(batch),
    }
    Ok(())
}

/// Fills a batch of receives, and completes it.
///
/// # Errors
/// The error of the batch.
///
/// # Safety
/// As [`super::post`].
pub unsafe fn recv_batch<Q: Engine>(
    mut batch: RecvBatch<'_, Q>,
    recvs: &[(u64, &[Sge])],
) -> Result<(), PostError> {
    for (wr_id, sges) in recvs {
        let sges = wire(sges)?;
        // SAFETY: the memory that the entries name stays valid until the receive completes (contract of this function).
        unsafe { batch.push(*wr_id, &sges) };
    }
    Ok(batch.complete()?)
}

macro_rules! lock {
    ($lock:ident, $name:literal, |$pd:ident| $builder:expr, $now:ident, |$queue:ident, $guard:ident| $enter:stmt) => {
        impl Lock for $lock {
            const NAME: &'static str = $name;
            fn builder<D: Driver, T: Transport>($pd: &ProtectionDomain<D>) -> QpBuilder<'_, T, Self, D> {
                $builder
            }
            unsafe fn batch<D: Driver, T: Typed<D>>(
                $queue: &mut SendQueue<T, Self, D>,
                reqs: &[Req<'_, D>],
                lost: Option<Lost>,
            ) -> Result<(), PostError> {
                $enter
                // SAFETY: the memory that the requests name stays valid until they complete (contract of the trait).
                unsafe { batch($guard.batch(), reqs, lost) }
            }
            unsafe fn single<D: Driver, T: Typed<D>>(
                $queue: &mut SendQueue<T, Self, D>,
                req: &Req<'_, D>,
            ) -> Result<(), PostError> {
                $enter
                // SAFETY: the memory that the requests name stays valid until they complete (contract of the trait).
                unsafe { T::$now($guard, req) }
            }
            unsafe fn recv<D: Driver>(
                $queue: &mut RecvQueue<Self, D>,
                wr_id: u64,
                sges: &[D::Sge],
            ) -> Result<(), PostError> {
                $enter
                // SAFETY: the memory that the entries name stays valid until they complete (contract of the trait).
                Ok(unsafe { $guard.post(wr_id, sges) }?)
            }
            unsafe fn recv_batch<D: Driver>(
                $queue: &mut RecvQueue<Self, D>,
                recvs: &[(u64, &[Sge])],
            ) -> Result<(), PostError> {
                $enter
                // SAFETY: the memory that the entries name stays valid until they complete (contract of the trait).
                unsafe { recv_batch($guard.batch(), recvs) }
            }
            unsafe fn srq_recv<D: Driver>(
                $queue: &mut Srq<Self, D>,
                wr_id: u64,
                sges: &[D::Sge],
            ) -> Result<(), PostError> {
                $enter
                // SAFETY: the memory that the entries name stays valid until they complete (contract of the trait).
                Ok(unsafe { $guard.post(wr_id, sges) }?)
            }
            unsafe fn srq_recv_batch<D: Driver>(
                $queue: &mut Srq<Self, D>,
                recvs: &[(u64, &[Sge])],
            ) -> Result<(), PostError> {
                $enter
                // SAFETY: the memory that the entries name stays valid until they complete (contract of the trait).
                unsafe { recv_batch($guard.batch(), recvs) }
            }
        }
    };
}

lock!(Exclusive, "exclusive", |pd| pd.raw_qp::<T>(), now, |queue, guard| let guard = queue);
lock!(Shared, "shared", |pd| pd.raw_qp::<T>().shared(), now_locked, |queue, guard| let guard = &mut queue.lock()?);
