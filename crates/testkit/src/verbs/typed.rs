// SPDX-License-Identifier: MIT OR Apache-2.0
//! The typed calls for a request, by transport.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests; the contracts of its functions require that the memory that they name stays valid.

use super::Req;
use crate::push::{wire, wire_remote};
use uverbs::provider::{Data, DcDriver, DcTarget, Dest, Inline, Op, To};
use uverbs::qp::transport::{HasPeer, Reads, Reliable, SendsImm, Writes};
use uverbs::raw::{Batch, SendGuard, SendQueue};
use uverbs::raw::{PostTo, Wr};
use uverbs::{Dci, Driver, Exclusive, ImmData, PostError, Rc, Srd, Uc, Ud, XrcSend};

/// A transport of a driver, with the typed calls for a [`Req`].
///
/// # Errors
/// Of the functions: the error of the post. `IllegalOpcode` and `InvalidArgument` also for an operation and for a
/// destination that do not compile on the transport.
///
/// # Safety
/// Of the functions: registered memory that the request names stays valid, as for the typed calls.
#[expect(clippy::missing_safety_doc, reason = "the trait has the contract of all")]
pub trait Typed<D: Driver>: SendsImm + Sized {
    /// Adds a request to a batch.
    unsafe fn push(batch: &mut Batch<'_, Self, D>, req: &Req<'_, D>) -> Result<(), PostError>;
    /// Posts a request at once.
    unsafe fn now(sq: &mut SendQueue<Self, Exclusive, D>, req: &Req<'_, D>) -> Result<(), PostError>;
    /// Posts a request at once, through a lock.
    unsafe fn now_locked(sq: &mut SendGuard<'_, Self, D>, req: &Req<'_, D>) -> Result<(), PostError>;
}

macro_rules! typed {
    ($($transport:ident [$driver:ident]: $wr:ident, $post:ident, $fill:ident, $dest:pat => ($($arg:expr),*);)*) => {$(
        impl<D: $driver> Typed<D> for $transport {
            unsafe fn push(batch: &mut Batch<'_, Self, D>, req: &Req<'_, D>) -> Result<(), PostError> {
                let $dest = req.to else { return Err(PostError::InvalidArgument) };
                // SAFETY: the memory that `req` names stays valid (contract of the trait).
                unsafe { $fill(batch.$wr(req.wr_id, $($arg),*).flags(req.flags), req) }
            }
            unsafe fn now(sq: &mut SendQueue<Self, Exclusive, D>, req: &Req<'_, D>) -> Result<(), PostError> {
                let $dest = req.to else { return Err(PostError::InvalidArgument) };
                // SAFETY: the memory that `req` names stays valid (contract of the trait).
                Ok(unsafe { $fill(sq.$post(req.wr_id, $($arg),*).flags(req.flags), req) }??)
            }
            unsafe fn now_locked(sq: &mut SendGuard<'_, Self, D>, req: &Req<'_, D>) -> Result<(), PostError> {
                let $dest = req.to else { return Err(PostError::InvalidArgument) };
                // SAFETY: the memory that `req` names stays valid (contract of the trait).
                Ok(unsafe { $fill(sq.$post(req.wr_id, $($arg),*).flags(req.flags), req) }??)
            }
        }
    )*};
}

typed! {
    Rc [Driver]: wr, post, reliable, Dest::Peer => ();
    Uc [Driver]: wr, post, peer, Dest::Peer => ();
    Ud [Driver]: wr_to, post_to, message, Dest::Ud(To { ah, remote_qpn, remote_qkey }) => (ah, remote_qpn, remote_qkey);
    Srd [Driver]: wr_to, post_to, unordered, Dest::Ud(To { ah, remote_qpn, remote_qkey }) => (ah, remote_qpn, remote_qkey);
    XrcSend [Driver]: wr_srq, post_srq, reliable, Dest::Xrc(srqn) => (srqn);
    Dci [DcDriver]: wr_dc, post_dc, reliable, Dest::Dc(DcTarget { ah, remote_dctn, remote_dc_key }) => (ah, remote_dctn, remote_dc_key);
}

fn sges<D: Driver>(req: &Req<'_, D>) -> Result<Vec<D::Sge>, PostError> {
    wire(req.data.sges())
}

/// The operations of every transport.
///
/// # Safety
/// As [`Typed::push`].
unsafe fn message<S: PostTo<D>, D: Driver, T: SendsImm>(
    wr: Wr<'_, S, T, D>,
    req: &Req<'_, D>,
) -> Result<S::Out, PostError> {
    let sges = sges(req)?;
    Ok(match (req.op, req.data) {
        (Op::Send, Data::Inline(Inline::Bytes(bytes))) => wr.send_inline(bytes),
        (Op::Send, Data::Inline(Inline::List(list))) => wr.send_inline_list(list),
        // SAFETY: the memory that the entries name stays valid (contract of this function).
        (Op::Send, _) => unsafe { wr.send(&sges) },
        (Op::SendImm(imm), Data::Inline(Inline::Bytes(bytes))) => {
            wr.send_imm_inline(bytes, ImmData::new(imm))
        }
        (Op::SendImm(imm), Data::Inline(Inline::List(list))) => {
            wr.send_imm_inline_list(list, ImmData::new(imm))
        }
        // SAFETY: the memory that the entries name stays valid (contract of this function).
        (Op::SendImm(imm), _) => unsafe { wr.send_imm(&sges, ImmData::new(imm)) },
        _ => return Err(PostError::IllegalOpcode),
    })
}

/// The operations of SRD.
///
/// # Safety
/// As [`Typed::push`].
unsafe fn unordered<S: PostTo<D>, D: Driver, T: Reads + Writes + SendsImm>(
    wr: Wr<'_, S, T, D>,
    req: &Req<'_, D>,
) -> Result<S::Out, PostError> {
    match req.op {
        // SAFETY: the memory that the entries name stays valid (contract of this function).
        Op::Read(r) => Ok(unsafe { wr.read(&sges(req)?, wire_remote(r)) }),
        // SAFETY: `write` and this function have the same contract.
        Op::Write(_) | Op::WriteImm(..) => unsafe { write(wr, req) },
        // SAFETY: `message` and this function have the same contract.
        _ => unsafe { message(wr, req) },
    }
}

/// RDMA writes.
///
/// # Safety
/// As [`Typed::push`].
unsafe fn write<S: PostTo<D>, D: Driver, T: Writes + SendsImm>(
    wr: Wr<'_, S, T, D>,
    req: &Req<'_, D>,
) -> Result<S::Out, PostError> {
    let sges = sges(req)?;
    Ok(match (req.op, req.data) {
        (Op::Write(r), Data::Inline(Inline::Bytes(bytes))) => wr.write_inline(bytes, wire_remote(r)),
        (Op::Write(r), Data::Inline(Inline::List(list))) => wr.write_inline_list(list, wire_remote(r)),
        // SAFETY: the memory that the entries name stays valid (contract of this function).
        (Op::Write(r), _) => unsafe { wr.write(&sges, wire_remote(r)) },
        (Op::WriteImm(r, imm), Data::Inline(Inline::Bytes(bytes))) => {
            wr.write_imm_inline(bytes, wire_remote(r), ImmData::new(imm))
        }
        (Op::WriteImm(r, imm), Data::Inline(Inline::List(list))) => {
            wr.write_imm_inline_list(list, wire_remote(r), ImmData::new(imm))
        }
        // SAFETY: the memory that the entries name stays valid (contract of this function).
        (Op::WriteImm(r, imm), _) => unsafe { wr.write_imm(&sges, wire_remote(r), ImmData::new(imm)) },
        _ => return Err(PostError::IllegalOpcode),
    })
}

/// The operations of connected transports.
///
/// # Safety
/// As [`Typed::push`].
unsafe fn peer<S: PostTo<D>, D: Driver, T: HasPeer + SendsImm>(
    wr: Wr<'_, S, T, D>,
    req: &Req<'_, D>,
) -> Result<S::Out, PostError> {
    let sges = sges(req)?;
    Ok(match (req.op, req.data) {
        (Op::SendInv(rkey), Data::Inline(Inline::Bytes(bytes))) => wr.send_inv_inline(bytes, rkey),
        (Op::SendInv(rkey), Data::Inline(Inline::List(list))) => wr.send_inv_inline_list(list, rkey),
        // SAFETY: the memory that the entries name stays valid (contract of this function).
        (Op::SendInv(rkey), _) => unsafe { wr.send_inv(&sges, rkey) },
        // SAFETY: `write` and this function have the same contract.
        (Op::Write(_) | Op::WriteImm(..), _) => return unsafe { write(wr, req) },
        (Op::LocalInv(rkey), _) => wr.local_inv(rkey),
        // SAFETY: the bound memory stays valid (contract of this function).
        (Op::BindMw(bind), _) => unsafe { wr.bind_mw(bind) },
        // SAFETY: `message` and this function have the same contract.
        _ => return unsafe { message(wr, req) },
    })
}

/// The operations of reliable transports.
///
/// # Safety
/// As [`Typed::push`].
unsafe fn reliable<S: PostTo<D>, D: Driver, T: Reliable + SendsImm>(
    wr: Wr<'_, S, T, D>,
    req: &Req<'_, D>,
) -> Result<S::Out, PostError> {
    let sges = sges(req)?;
    Ok(match req.op {
        // SAFETY: the memory that the entries name stays valid (contract of this function).
        Op::Read(r) => unsafe { wr.read(&sges, wire_remote(r)) },
        // SAFETY: the memory that the entries name stays valid (contract of this function).
        Op::CmpSwp(r, compare, swap) => unsafe { wr.compare_swap(&sges, wire_remote(r), compare, swap) },
        // SAFETY: the memory that the entries name stays valid (contract of this function).
        Op::FetchAdd(r, add) => unsafe { wr.fetch_add(&sges, wire_remote(r), add) },
        Op::Flush(r, args) => wr.flush(wire_remote(r), args),
        Op::AtomicWrite(r, data) => wr.atomic_write(wire_remote(r), data),
        // SAFETY: `peer` and this function have the same contract.
        _ => return unsafe { peer(wr, req) },
    })
}
