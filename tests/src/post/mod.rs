// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posting one description of a work request through any face: C's list, the `wr_*` builder, a typed batch, a single
//! typed post; on a queue of any locking.
//! # Safety of the posts
//! Posting requires a promise about the memory that a request names. The objects of the suite keep it for all tests.
//! The entries of a request name either a region of the suite, or no region. Every region is a `MemoryRegion<_, _,
//! Exposed>`: it owns its pages until it is deregistered, and this process reaches them only by atomics and copies, so
//! a device may read or write them at any time. (The few private regions are not read while a request is outstanding,
//! and no window is bound to them.) The device refuses an entry that names no region, in tests of wrong keys. C's lists
//! and their arrays live until the call returns, and inline bytes are borrowed for it. So [`post`] and its like can be
//! safe functions, and the rest of the suite has no `unsafe`.
#![expect(unsafe_code)]
// UNSAFETY: posts receives, for the reason above; the other faces are in the modules below.

mod list;
mod lock;
mod req;
mod session;
mod typed;

pub use list::{List, post_prepared, recv_nodes, refused};
pub use lock::Lock;
pub use req::{Data, Face, Op, Refused, Remote, Req, To, has_data, opcode};
pub use session::{Session, session};
pub use typed::Typed;

use crate::sges::wire;
use core::ptr;
use list::post_list;
use session::post_builder;
use uverbs::provider::BadWr;
use uverbs::qp::{RecvQueue, SendQueue};
use uverbs::wr::{RecvWr, Sge};
use uverbs::{Driver, PostError, Qp, Shared, SharedReceiveQueue};

/// Posts requests through a face. Single posts stop at the first that is refused.
pub fn post<D: Driver, T: Typed, L: Lock>(
    qp: &mut Qp<D, T, L>,
    face: Face,
    reqs: &[Req<'_, D>],
) -> Result<(), Refused> {
    post_queue(qp.sq()?, face, reqs)
}

/// The same, to a send queue.
pub fn post_queue<D: Driver, T: Typed, L: Lock>(
    sq: &mut SendQueue<D, T, L>,
    face: Face,
    reqs: &[Req<'_, D>],
) -> Result<(), Refused> {
    match face {
        Face::List => post_list(sq, reqs),
        Face::Builder => Ok(post_builder(sq, reqs)?),
        Face::Batch => Ok(L::batch(sq, reqs)?),
        Face::Single => {
            for (i, req) in reqs.iter().enumerate() {
                L::single(sq, req).map_err(|e| Refused::new(e, Some(i)))?;
            }
            Ok(())
        }
    }
}

/// The same, to a send queue that other threads use, too.
pub fn post_shared<D: Driver, T: Typed>(
    sq: &SendQueue<D, T, Shared>,
    face: Face,
    reqs: &[Req<'_, D>],
) -> Result<(), Refused> {
    match face {
        Face::List => post_list(sq, reqs),
        Face::Builder => Ok(post_builder(sq, reqs)?),
        Face::Batch => {
            let mut guard = sq.lock().map_err(PostError::from)?;
            let mut batch = guard.batch();
            reqs.iter().for_each(|req| T::push(&mut batch, req));
            Ok(batch.complete()?)
        }
        Face::Single => {
            for (i, req) in reqs.iter().enumerate() {
                let mut guard = sq.lock().map_err(PostError::from)?;
                T::now_locked(&mut guard, req).map_err(|e| Refused::new(e, Some(i)))?;
            }
            Ok(())
        }
    }
}

/// Fills a batch, which is then forgotten, or dropped.
pub fn lose_shared<D: Driver, T: Typed>(
    sq: &SendQueue<D, T, Shared>,
    reqs: &[Req<'_, D>],
    forget: bool,
) -> Result<(), PostError> {
    let mut guard = sq.lock()?;
    let mut batch = guard.batch();
    reqs.iter().for_each(|req| T::push(&mut batch, req));
    if forget {
        core::mem::forget(batch);
    }
    Ok(())
}

/// Posts receives: as a list (C's face), as a batch, or one by one.
pub fn post_recv<D: Driver, L: Lock>(
    rq: &mut RecvQueue<D, L>,
    face: Face,
    recvs: &[(u64, &[Sge])],
) -> Result<(), Refused> {
    match face {
        // SAFETY: NULL or a list of live nodes, on one thread; memory as described above.
        Face::List => as_list(recvs, |list| unsafe { rq.post_recv(list) }),
        Face::Batch | Face::Builder => Ok(L::recv_batch(rq, recvs)?),
        Face::Single => one_by_one::<D>(recvs, |wr_id, sges| L::recv(rq, wr_id, sges)),
    }
}

/// As [`post_recv`], to a receive queue that other threads use, too.
pub fn post_recv_shared<D: Driver>(
    rq: &RecvQueue<D, Shared>,
    face: Face,
    recvs: &[(u64, &[Sge])],
) -> Result<(), Refused> {
    match face {
        // SAFETY: NULL or a list of live nodes; memory as described above.
        Face::List => as_list(recvs, |list| unsafe { rq.post_recv(list) }),
        Face::Batch | Face::Builder => {
            let mut guard = rq.lock().map_err(PostError::from)?;
            let mut batch = guard.batch();
            for (wr_id, sges) in recvs {
                let sges = wire::<D>(sges)?;
                // SAFETY: memory as described above.
                unsafe { batch.push(*wr_id, &sges) };
            }
            Ok(batch.complete()?)
        }
        // SAFETY: memory as described above.
        Face::Single => one_by_one::<D>(recvs, |wr_id, sges| unsafe { rq.lock()?.post(wr_id, sges) }),
    }
}

/// As [`post_recv`], for a shared receive queue.
pub fn post_srq_recv<D: Driver, L: Lock>(
    srq: &mut SharedReceiveQueue<D, L>,
    face: Face,
    recvs: &[(u64, &[Sge])],
) -> Result<(), Refused> {
    match face {
        // SAFETY: NULL or a list of live nodes, on one thread; memory as described above.
        Face::List => as_list(recvs, |list| unsafe { srq.post_srq_recv(list) }),
        Face::Batch | Face::Builder => Ok(L::srq_recv_batch(srq, recvs)?),
        Face::Single => one_by_one::<D>(recvs, |wr_id, sges| L::srq_recv(srq, wr_id, sges)),
    }
}

/// Calls `post` with receives as C's list: NULL if there are none.
fn as_list(
    recvs: &[(u64, &[Sge])],
    post: impl FnOnce(*const RecvWr) -> Result<(), BadWr<RecvWr>>,
) -> Result<(), Refused> {
    let nodes = recv_nodes(recvs);
    let list = if nodes.is_empty() { ptr::null() } else { nodes.as_ptr() };
    post(list).map_err(|bad| refused(&nodes, &bad))
}

/// Calls `post` for each receive, until one is refused.
fn one_by_one<D: Driver>(
    recvs: &[(u64, &[Sge])],
    mut post: impl FnMut(u64, &[D::Sge]) -> Result<(), PostError>,
) -> Result<(), Refused> {
    for (i, (wr_id, sges)) in recvs.iter().enumerate() {
        post(*wr_id, &wire::<D>(sges)?).map_err(|e| Refused::new(e, Some(i)))?;
    }
    Ok(())
}
