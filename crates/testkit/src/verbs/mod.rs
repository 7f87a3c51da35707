// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts on the queues of the `uverbs` crate, on each of their interfaces and with each locking.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests; the contracts of its functions require that the memory that they name stays valid.

mod lock;
mod typed;

pub use crate::request::Face;
pub use lock::{Lock, Lost, batch, recv_batch};
pub use typed::Typed;

use crate::request::{Handle, Refused};
use crate::{List, Session, refused};
use uverbs::provider::Wr;
use uverbs::qp::transport::Sends;
use uverbs::raw::SendQueue;
use uverbs::wr::IbvAh;
use uverbs::{AddressHandle, Driver, PostError};

/// A work request for a QP of this driver.
pub type Req<'a, D> = Wr<'a, AddressHandle<D>>;

impl<D: Driver> Handle for AddressHandle<D> {
    fn raw(&self) -> *const IbvAh {
        self.as_raw()
    }
}

/// Posts requests. Single posts stop at the first that is refused.
///
/// # Errors
/// The error of the post, and the index of the request if the interface names it.
///
/// # Safety
/// - Only this thread uses the queue, unless its locking is `Shared`.
/// - Registered memory that the requests name stays valid until they complete, as ibv_post_send(3) requires, and a
///   window is bound only over memory that the device may access.
pub unsafe fn post<D: Driver, T: Typed<D>, L: Lock>(
    sq: &mut SendQueue<T, L, D>,
    face: Face,
    reqs: &[Req<'_, D>],
) -> Result<(), Refused> {
    match face {
        // SAFETY: one thread uses the queue, unless it has a lock, and the memory that the requests name stays valid
        // (contract of this function). The list is unchanged since it was created; by its type, its handles are of
        // driver `D`.
        Face::List => unsafe { post_list(sq, &List::new(reqs)) },
        Face::Builder => {
            // SAFETY: one thread uses the queue, unless it has a lock, and the memory that the requests name stays
            // valid (contract of this function); the handles are of driver `D`.
            let mut session = unsafe { session(sq) }.ok_or(PostError::IllegalOpcode)?;
            session.start();
            session.requests(reqs);
            Ok(session.complete()?)
        }
        // SAFETY: the memory that the requests name stays valid until they complete (contract of this function).
        Face::Batch => Ok(unsafe { L::batch(sq, reqs, None) }?),
        Face::Single => {
            for (i, req) in reqs.iter().enumerate() {
                // SAFETY: the memory that `req` names stays valid until it completes (contract of this function).
                unsafe { L::single(sq, req) }.map_err(|e| Refused::new(e, Some(i)))?;
            }
            Ok(())
        }
    }
}

/// `ibv_post_send` of a list.
///
/// # Errors
/// As [`post`].
///
/// # Safety
/// As [`post`]. The address handles of the list are of driver `D`, and [`List::change`] left it well-formed.
pub unsafe fn post_list<D: Driver, T: Sends, L: Lock>(
    sq: &SendQueue<T, L, D>,
    list: &List<'_>,
) -> Result<(), Refused> {
    // SAFETY: `list` owns or borrows all that its nodes point to; it is well-formed. One thread uses the queue, unless
    // it has a lock, and the memory that the list names stays valid (contract of this function).
    unsafe { sq.post_send(list.first()) }.map_err(|bad| refused(list.nodes(), &bad))
}

/// The builder of a queue, if its QP was created with `send_ops_flags`.
///
/// # Safety
/// As [`post`], and as [`Session::new`] for the handles.
pub unsafe fn session<D: Driver, T: Sends, L: Lock>(sq: &SendQueue<T, L, D>) -> Option<Session<'_>> {
    // SAFETY: one thread uses the queue, unless it has a lock; the memory that the requests name stays valid; the
    // handles are of driver `D` (contract of this function).
    sq.qp_ex().map(|ex| unsafe { Session::new(ex) })
}
