// SPDX-License-Identifier: MIT OR Apache-2.0
//! The typed calls for a request, by transport.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests, which takes a promise about the memory that they name; see the module above.

use super::req::{Data, Op, Req};
use crate::sges::wire;
use uverbs::provider::Address;
use uverbs::qp::transport::{HasPeer, Reliable, SendsImm};
use uverbs::qp::wr::{Sink, Wr};
use uverbs::qp::{Batch, SendGuard, SendQueue};
use uverbs::{Driver, Exclusive, ImmData, PostError, Rc, Uc, Ud, XrcSend};

/// A transport whose typed calls a [`Req`] can be turned into.
pub trait Typed: SendsImm {
    /// Adds a request to a batch.
    fn push<D: Driver>(batch: &mut Batch<'_, D, Self>, req: &Req<'_, D>)
    where
        Self: Sized;
    /// Posts a request at once.
    fn now<D: Driver>(sq: &mut SendQueue<D, Self, Exclusive>, req: &Req<'_, D>) -> Result<(), PostError>
    where
        Self: Sized;
    /// Posts a request at once, through a lock.
    fn now_locked<D: Driver>(sq: &mut SendGuard<'_, D, Self>, req: &Req<'_, D>) -> Result<(), PostError>
    where
        Self: Sized;
}

macro_rules! connected {
    ($($transport:ident by $fill:ident;)*) => {$(
        impl Typed for $transport {
            fn push<D: Driver>(batch: &mut Batch<'_, D, Self>, req: &Req<'_, D>) {
                $fill(batch.wr(req.wr_id).flags(req.flags), req);
            }
            fn now<D: Driver>(sq: &mut SendQueue<D, Self, Exclusive>, req: &Req<'_, D>) -> Result<(), PostError> {
                $fill(sq.post(req.wr_id).flags(req.flags), req)
            }
            fn now_locked<D: Driver>(sq: &mut SendGuard<'_, D, Self>, req: &Req<'_, D>) -> Result<(), PostError> {
                $fill(sq.post(req.wr_id).flags(req.flags), req)
            }
        }
    )*};
}

connected! {
    Rc by reliable;
    Uc by peer;
}

impl Typed for Ud {
    fn push<D: Driver>(batch: &mut Batch<'_, D, Self>, req: &Req<'_, D>) {
        let to = req.to.expect("a datagram has an address");
        message(batch.wr_to(req.wr_id, to.ah, to.qpn, to.qkey).flags(req.flags), req);
    }
    fn now<D: Driver>(sq: &mut SendQueue<D, Self, Exclusive>, req: &Req<'_, D>) -> Result<(), PostError> {
        let to = req.to.expect("a datagram has an address");
        message(sq.post_to(req.wr_id, to.ah, to.qpn, to.qkey).flags(req.flags), req)
    }
    fn now_locked<D: Driver>(sq: &mut SendGuard<'_, D, Self>, req: &Req<'_, D>) -> Result<(), PostError> {
        let to = req.to.expect("a datagram has an address");
        message(sq.post_to(req.wr_id, to.ah, to.qpn, to.qkey).flags(req.flags), req)
    }
}

impl Typed for XrcSend {
    fn push<D: Driver>(batch: &mut Batch<'_, D, Self>, req: &Req<'_, D>) {
        let srqn = req.srqn.expect("an XRC request has a remote SRQ");
        reliable(batch.wr_srq(req.wr_id, srqn).flags(req.flags), req);
    }
    fn now<D: Driver>(sq: &mut SendQueue<D, Self, Exclusive>, req: &Req<'_, D>) -> Result<(), PostError> {
        let srqn = req.srqn.expect("an XRC request has a remote SRQ");
        reliable(sq.post_srq(req.wr_id, srqn).flags(req.flags), req)
    }
    fn now_locked<D: Driver>(sq: &mut SendGuard<'_, D, Self>, req: &Req<'_, D>) -> Result<(), PostError> {
        let srqn = req.srqn.expect("an XRC request has a remote SRQ");
        reliable(sq.post_srq(req.wr_id, srqn).flags(req.flags), req)
    }
}

/// Sges as the typed face takes them. Tests give it none that are too long.
fn typed_sges<D: Driver>(req: &Req<'_, D>) -> Vec<D::Sge> {
    match req.data {
        Data::Sges(sges) => wire::<D>(sges).expect("entries that have a wire form"),
        _ => vec![],
    }
}

/// The operations of every transport.
fn message<S: Sink<D>, D: Driver, T: SendsImm, A: Address<D::Ah>>(
    wr: Wr<S, D, T, A>,
    req: &Req<'_, D>,
) -> S::Out {
    let sges = typed_sges(req);
    match (req.op, req.data) {
        (Op::Send, Data::Inline(bytes)) => wr.send_inline(bytes),
        (Op::Send, Data::InlineList(list)) => wr.send_inline_list(list),
        // SAFETY: see `super`.
        (Op::Send, _) => unsafe { wr.send(&sges) },
        (Op::SendImm(imm), Data::InlineList(list)) => wr.send_imm_inline_list(list, ImmData::new(imm)),
        (Op::SendImm(imm), Data::Inline(bytes)) => wr.send_imm_inline(bytes, ImmData::new(imm)),
        // SAFETY: see `super`.
        (Op::SendImm(imm), _) => unsafe { wr.send_imm(&sges, ImmData::new(imm)) },
        (op, _) => panic!("{op:?} does not compile on this transport"),
    }
}

/// The operations of connected transports.
fn peer<S: Sink<D>, D: Driver, T: HasPeer + SendsImm, A: Address<D::Ah>>(
    wr: Wr<S, D, T, A>,
    req: &Req<'_, D>,
) -> S::Out {
    let sges = typed_sges(req);
    match (req.op, req.data) {
        (Op::SendInv(rkey), Data::Inline(bytes)) => wr.send_inv_inline(bytes, rkey),
        (Op::SendInv(rkey), Data::InlineList(list)) => wr.send_inv_inline_list(list, rkey),
        // SAFETY: see `super`.
        (Op::SendInv(rkey), _) => unsafe { wr.send_inv(&sges, rkey) },
        (Op::Write(r), Data::Inline(bytes)) => wr.write_inline(bytes, r.wire::<D>()),
        (Op::Write(r), Data::InlineList(list)) => wr.write_inline_list(list, r.wire::<D>()),
        // SAFETY: see `super`.
        (Op::Write(r), _) => unsafe { wr.write(&sges, r.wire::<D>()) },
        (Op::WriteImm(r, imm), Data::Inline(bytes)) => {
            wr.write_imm_inline(bytes, r.wire::<D>(), ImmData::new(imm))
        }
        (Op::WriteImm(r, imm), Data::InlineList(list)) => {
            wr.write_imm_inline_list(list, r.wire::<D>(), ImmData::new(imm))
        }
        // SAFETY: see `super`.
        (Op::WriteImm(r, imm), _) => unsafe { wr.write_imm(&sges, r.wire::<D>(), ImmData::new(imm)) },
        (Op::LocalInv(rkey), _) => wr.local_inv(rkey),
        // SAFETY: see `super`.
        (Op::BindMw(bind), _) => unsafe { wr.bind_mw(bind) },
        _ => message(wr, req),
    }
}

/// The operations of reliable transports.
fn reliable<S: Sink<D>, D: Driver, T: Reliable + SendsImm, A: Address<D::Ah>>(
    wr: Wr<S, D, T, A>,
    req: &Req<'_, D>,
) -> S::Out {
    let sges = typed_sges(req);
    match req.op {
        // SAFETY: see `super`.
        Op::Read(r) => unsafe { wr.read(&sges, r.wire::<D>()) },
        // SAFETY: see `super`.
        Op::CmpSwp(r, compare, swap) => unsafe { wr.compare_swap(&sges, r.wire::<D>(), compare, swap) },
        // SAFETY: see `super`.
        Op::FetchAdd(r, add) => unsafe { wr.fetch_add(&sges, r.wire::<D>(), add) },
        Op::Flush(r, args) => wr.flush(r.wire::<D>(), args),
        Op::AtomicWrite(r, data) => wr.atomic_write(r.wire::<D>(), data),
        _ => peer(wr, req),
    }
}
