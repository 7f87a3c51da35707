// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests on each interface of a driver's queue, `uverbs_core::provider`.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests; the contracts of its functions require that the memory that they name stays valid.

use crate::list::{List, refused};
use crate::request::{Face, Refused};
use uverbs_core::provider::{
    Data, Dest, Head, Op, PostError, RemoteAddr, SendBatch, SendQueue, To, WireRemote, WireSge, Wr, WrBuilder,
};
use uverbs_core::wr::{RawAh, Sge};

/// Entries in the driver's form.
///
/// # Errors
/// If an entry is too long.
pub fn wire<S: WireSge>(sges: &[Sge]) -> Result<Vec<S>, PostError> {
    sges.iter().map(|s| S::new(s.addr, s.length, s.lkey)).collect()
}

/// An address of the peer in the driver's form.
#[must_use]
pub fn wire_remote<R: WireRemote>(at: RemoteAddr) -> R {
    R::new(at.addr, at.rkey)
}

/// Calls `f` with a request in the driver's form.
///
/// # Errors
/// If an entry has no form in the driver.
pub fn as_wire<A, S: WireSge, R: WireRemote, T>(
    req: &Wr<'_, RawAh<A>>,
    f: impl FnOnce(&Wr<'_, A, S, R>) -> T,
) -> Result<T, PostError> {
    let entries = wire(req.data.sges())?;
    let data = match req.data {
        Data::Sges(_) => Data::Sges(&entries[..]),
        Data::Inline(data) => Data::Inline(data),
    };
    let to = req.to.try_map(|ah| Some(&ah.driver)).ok_or(PostError::InvalidArgument)?;
    Ok(f(&Wr { wr_id: req.wr_id, flags: req.flags, to, op: req.op.map(wire_remote), data }))
}

/// Adds a request to a batch.
///
/// # Errors
/// If an entry has no form in the driver; then nothing is added.
///
/// # Safety
/// As [`SendBatch::push`].
pub unsafe fn push<B: SendBatch>(batch: &mut B, req: &Wr<'_, RawAh<B::Ah>>) -> Result<(), PostError> {
    // SAFETY: the request fulfils the contract of `SendBatch::push` (contract of this function).
    as_wire(req, |wr| unsafe { batch.push(wr) })
}

/// Posts a request at once.
///
/// # Errors
/// That of the post, or as [`push`].
///
/// # Safety
/// As [`SendBatch::push`].
pub unsafe fn single<Q: SendQueue>(queue: &mut Q, req: &Wr<'_, RawAh<Q::Ah>>) -> Result<(), PostError> {
    // SAFETY: the request fulfils the contract of `SendBatch::push` (contract of this function).
    as_wire(req, |wr| unsafe { queue.post(wr) })?
}

/// The builder of an operation, on the queue itself.
///
/// # Safety
/// As [`SendBatch::push`], if the operation is a bind.
pub unsafe fn begin<Q: WrBuilder>(queue: &mut Q, head: Head, op: Op<'_>) {
    // SAFETY: a bind fulfils the contract of `SendBatch::push` (contract of this function).
    unsafe { queue.wr_begin(head, op.map(wire_remote)) };
}

/// Adds a request to the session of a queue: builder and setters. The setters may be called in either order, so that of an
/// address is first for odd ids. The setter of a DC address is the driver's own; the caller calls it.
///
/// # Safety
/// As [`SendBatch::push`].
pub unsafe fn build<Q: WrBuilder>(queue: &mut Q, req: &Wr<'_, RawAh<Q::Ah>>) {
    // SAFETY: a bind fulfils the contract of `SendBatch::push` (contract of this function).
    unsafe { begin(queue, req.head(), req.op) };
    if !req.op.has_data() {
        return;
    }
    let address_first = req.wr_id % 2 == 1;
    if address_first {
        set_address(queue, &req.to);
    }
    match req.data {
        // SAFETY: the memory fulfils the contract of `SendBatch::push` (contract of this function).
        Data::Sges(sges) => unsafe { queue.wr_set_sges(sges) },
        Data::Inline(data) => queue.wr_set_inline(data),
    }
    if !address_first {
        set_address(queue, &req.to);
    }
}

fn set_address<Q: WrBuilder>(queue: &mut Q, dest: &Dest<'_, RawAh<Q::Ah>>) {
    match dest {
        Dest::Peer | Dest::Frame | Dest::Dc(_) => {}
        Dest::Ud(To { ah, remote_qpn, remote_qkey }) => {
            queue.wr_set_ud_addr(&ah.driver, *remote_qpn, *remote_qkey);
        }
        Dest::Xrc(srqn) => queue.wr_set_xrc_srqn(*srqn),
    }
}

/// Posts requests. Single posts stop at the first that is refused.
///
/// # Errors
/// The error of the post, and the index of the request if the interface names it.
///
/// # Safety
/// As [`SendBatch::push`].
pub unsafe fn post<Q: WrBuilder>(
    queue: &mut Q,
    face: Face,
    reqs: &[Wr<'_, RawAh<Q::Ah>>],
) -> Result<(), Refused> {
    match face {
        Face::List => {
            let list = List::new(reqs);
            // SAFETY: the list owns or borrows what its nodes point to; its handles are of this driver; the memory that
            // it names fulfils the contract of `SendBatch::push` (contract of this function).
            unsafe { queue.post_send(list.first()) }.map_err(|bad| refused(list.nodes(), &bad))
        }
        Face::Builder => {
            queue.wr_start();
            for req in reqs {
                // SAFETY: `build` and this function have the same contract.
                unsafe { build(queue, req) };
            }
            Ok(queue.wr_complete()?)
        }
        Face::Batch => {
            let mut batch = queue.batch();
            for req in reqs {
                // SAFETY: `push` and this function have the same contract.
                unsafe { push(&mut batch, req) }?;
            }
            Ok(batch.complete()?)
        }
        Face::Single => {
            for (i, req) in reqs.iter().enumerate() {
                // SAFETY: `single` and this function have the same contract.
                unsafe { single(queue, req) }.map_err(|e| Refused::new(e, Some(i)))?;
            }
            Ok(())
        }
    }
}
