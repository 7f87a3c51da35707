// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts of the suite, on each interface and with each locking, as safe functions.
//!
//! # Safety of the posts
//!
//! The contract of a post is about the memory that the request names. The objects of the suite fulfil it for all tests.
//! The entries of a request name either a region of the suite, or no region. Every region is a `MemoryRegion<_, //! Exposed, _>`: it owns its pages until it is deregistered, and this process accesses them only by atomics and copies, so
//! a device may read or write them at any time. (The few private regions are not read while a request is outstanding,
//! and no window is bound to them.) The device refuses an entry that names no region, in tests of wrong keys. Lists and
//! sessions borrow inline bytes and address handles, and a queue that is not `Shared` is used by one thread at a time.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests, for the reason above.

pub use uverbs::provider::{Data, Dest, Inline, RemoteAddr, To};
pub use uverbs_testkit::verbs::{Face, Lock, Lost, Req, Typed};
pub use uverbs_testkit::{List, Refused, Session, recv_nodes};

use uverbs::raw::{RecvQueue, SendQueue};
use uverbs::wr::Sge;
use uverbs::{
    Driver, PostError, Shared,
    raw::{Qp, Srq},
};
use uverbs_testkit::{as_recv_list, verbs, wire};

/// An operation, without a header that is borrowed.
pub type Op = uverbs::provider::Op<'static>;

/// Posts requests to the send queue of a QP. Single posts stop at the first that is refused.
pub fn post<D: Driver, T: Typed<D>, L: Lock>(
    qp: &mut Qp<T, L, D>,
    face: Face,
    reqs: &[Req<'_, D>],
) -> Result<(), Refused> {
    post_queue(qp.sq_mut(), face, reqs)
}

/// As [`post`], to a send queue.
pub fn post_queue<D: Driver, T: Typed<D>, L: Lock>(
    sq: &mut SendQueue<T, L, D>,
    face: Face,
    reqs: &[Req<'_, D>],
) -> Result<(), Refused> {
    // SAFETY: as described above.
    unsafe { verbs::post(sq, face, reqs) }
}

/// As [`post`], to a send queue that is shared with other threads.
pub fn post_shared<D: Driver, T: Typed<D>>(
    sq: &SendQueue<T, Shared, D>,
    face: Face,
    reqs: &[Req<'_, D>],
) -> Result<(), Refused> {
    match face {
        Face::List => post_prepared(sq, &List::new(reqs)),
        Face::Builder => Ok(session(sq, |wr| wr.requests(reqs))?),
        Face::Batch => {
            let mut guard = sq.lock().map_err(PostError::from)?;
            // SAFETY: as described above.
            Ok(unsafe { verbs::batch(guard.batch(), reqs, None) }?)
        }
        Face::Single => {
            for (i, req) in reqs.iter().enumerate() {
                let mut guard = sq.lock().map_err(PostError::from)?;
                // SAFETY: as described above.
                unsafe { T::now_locked(&mut guard, req) }.map_err(|e| Refused::new(e, Some(i)))?;
            }
            Ok(())
        }
    }
}

/// Fills a batch that is not completed.
pub fn lose<D: Driver, T: Typed<D>, L: Lock>(
    sq: &mut SendQueue<T, L, D>,
    reqs: &[Req<'_, D>],
    lost: Lost,
) -> Result<(), PostError> {
    // SAFETY: as described above.
    unsafe { L::batch(sq, reqs, Some(lost)) }
}

/// As [`lose`], on a send queue that is shared with other threads.
pub fn lose_shared<D: Driver, T: Typed<D>>(
    sq: &SendQueue<T, Shared, D>,
    reqs: &[Req<'_, D>],
    lost: Lost,
) -> Result<(), PostError> {
    // SAFETY: as described above.
    unsafe { verbs::batch(sq.lock()?.batch(), reqs, Some(lost)) }
}

/// `ibv_post_send` of an existing list.
pub fn post_prepared<D: Driver, T: Typed<D>, L: Lock>(
    sq: &SendQueue<T, L, D>,
    list: &List<'_>,
) -> Result<(), Refused> {
    // SAFETY: as described above.
    unsafe { verbs::post_list(sq, list) }
}

/// The builder of a queue, with no session open.
///
/// # Panics
/// If the QP was created without `send_ops_flags`.
pub fn builder<D: Driver, T: Typed<D>, L: Lock>(sq: &SendQueue<T, L, D>) -> Session<'_> {
    // SAFETY: as described above.
    unsafe { verbs::session(sq) }.expect("the QP has wr_* builders")
}

/// Opens a session, builds, and completes it.
pub fn session<D: Driver, T: Typed<D>, L: Lock>(
    sq: &SendQueue<T, L, D>,
    build: impl FnOnce(&mut Session<'_>),
) -> Result<(), PostError> {
    let mut session = builder(sq);
    session.start();
    build(&mut session);
    session.complete()
}

/// Posts receives: as C's list, as a batch, or one by one.
pub fn post_recv<D: Driver, L: Lock>(
    rq: &mut RecvQueue<L, D>,
    face: Face,
    recvs: &[(u64, &[Sge])],
) -> Result<(), Refused> {
    match face {
        // SAFETY: NULL or a list of live nodes; memory as described above.
        Face::List => as_recv_list(recvs, |list| unsafe { rq.post_recv(list) }),
        // SAFETY: as described above.
        Face::Batch | Face::Builder => Ok(unsafe { L::recv_batch(rq, recvs) }?),
        // SAFETY: as described above.
        Face::Single => one_by_one::<D>(recvs, |wr_id, sges| unsafe { L::recv(rq, wr_id, sges) }),
    }
}

/// As [`post_recv`], to a receive queue that is shared with other threads.
pub fn post_recv_shared<D: Driver>(
    rq: &RecvQueue<Shared, D>,
    face: Face,
    recvs: &[(u64, &[Sge])],
) -> Result<(), Refused> {
    match face {
        // SAFETY: NULL or a list of live nodes; memory as described above.
        Face::List => as_recv_list(recvs, |list| unsafe { rq.post_recv(list) }),
        Face::Batch | Face::Builder => {
            let mut guard = rq.lock().map_err(PostError::from)?;
            // SAFETY: as described above.
            Ok(unsafe { verbs::recv_batch(guard.batch(), recvs) }?)
        }
        // SAFETY: as described above.
        Face::Single => one_by_one::<D>(recvs, |wr_id, sges| Ok(unsafe { rq.lock()?.post(wr_id, sges) }?)),
    }
}

/// As [`post_recv`], for a shared receive queue.
pub fn post_srq_recv<D: Driver, L: Lock>(
    srq: &mut Srq<L, D>,
    face: Face,
    recvs: &[(u64, &[Sge])],
) -> Result<(), Refused> {
    match face {
        // SAFETY: NULL or a list of live nodes; memory as described above.
        Face::List => as_recv_list(recvs, |list| unsafe { srq.post_srq_recv(list) }),
        // SAFETY: as described above.
        Face::Batch | Face::Builder => Ok(unsafe { L::srq_recv_batch(srq, recvs) }?),
        // SAFETY: as described above.
        Face::Single => one_by_one::<D>(recvs, |wr_id, sges| unsafe { L::srq_recv(srq, wr_id, sges) }),
    }
}

/// Calls `post` for each receive until one is refused.
fn one_by_one<D: Driver>(
    recvs: &[(u64, &[Sge])],
    mut post: impl FnMut(u64, &[D::Sge]) -> Result<(), PostError>,
) -> Result<(), Refused> {
    for (i, (wr_id, sges)) in recvs.iter().enumerate() {
        post(*wr_id, &wire(sges)?).map_err(|e| Refused::new(e, Some(i)))?;
    }
    Ok(())
}
