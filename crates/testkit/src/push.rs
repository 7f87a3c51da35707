// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests on the typed interface of a driver's queue, `uverbs_core::provider`.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests; the contracts of its functions require that the memory that they name stays valid.

use crate::request::{Data, Dest, Op, Request};
use uverbs_core::provider::op::{self, Address};
use uverbs_core::provider::{
    Connected, Inline, InlineList, NoData, Operation, Payload, PostError, RemoteSrq, SendBatch, To,
    WireRemote, WireSge, Wr, WrBuilder,
};
use uverbs_core::wr::{ImmData, RawAh, SendFlags, Sge};

/// Entries in the driver's form.
///
/// # Errors
/// If an entry is too long.
pub fn wire<S: WireSge>(sges: &[Sge]) -> Result<Vec<S>, PostError> {
    sges.iter().map(|s| S::new(s.addr, s.length, s.lkey)).collect()
}

/// A function of any operation type.
pub trait Visit<R> {
    /// Calls the function.
    fn visit<O: Operation<Remote = R>>(self, op: O);
}

/// Calls a visitor with the operation as a type.
///
/// # Safety
/// As [`op::BindMw::new`], if the operation is a bind.
pub unsafe fn visit<R: WireRemote>(op: Op<'_>, v: impl Visit<R>) {
    match op {
        Op::Send => v.visit(op::Send::new()),
        Op::SendImm(imm) => v.visit(op::SendImm::new(ImmData::new(imm))),
        Op::SendInv(rkey) => v.visit(op::SendInv::new(rkey)),
        Op::Write(r) => v.visit(op::Write::new(r.wire())),
        Op::WriteImm(r, imm) => v.visit(op::WriteImm::new(r.wire(), ImmData::new(imm))),
        Op::Read(r) => v.visit(op::Read::new(r.wire())),
        Op::CmpSwp(r, compare, swap) => v.visit(op::CmpSwp::new(r.wire(), compare, swap)),
        Op::FetchAdd(r, add) => v.visit(op::FetchAdd::new(r.wire(), add)),
        Op::LocalInv(rkey) => v.visit(op::LocalInv::new(rkey)),
        // SAFETY: the bind fulfils the contract of `BindMw::new` (contract of this function).
        Op::BindMw(bind) => v.visit(unsafe { op::BindMw::new(bind) }),
        Op::Flush(r, args) => v.visit(op::Flush::new(r.wire(), args)),
        Op::AtomicWrite(r, data) => v.visit(op::AtomicWrite::new(r.wire(), data)),
        Op::Tso(args) => v.visit(op::Tso::new(args)),
    }
}

/// The builder of an operation, on the queue itself.
///
/// # Safety
/// As [`visit`].
pub unsafe fn begin<Q: WrBuilder>(queue: &mut Q, wr_id: u64, flags: SendFlags, op: Op<'_>) {
    struct Begin<'q, Q>(&'q mut Q, Wr);
    impl<Q: WrBuilder> Visit<Q::Remote> for Begin<'_, Q> {
        fn visit<O: Operation<Remote = Q::Remote>>(self, op: O) {
            self.0.wr_begin(self.1, op);
        }
    }
    // SAFETY: if `op` is a bind, it fulfils the contract of `BindMw::new` (contract of this function).
    unsafe { visit(op, Begin(queue, Wr { wr_id, flags })) };
}

/// Adds a request to a batch.
///
/// # Errors
/// If an entry has no form in the driver; then nothing is added.
///
/// # Safety
/// As [`SendBatch::push`].
pub unsafe fn push<B: SendBatch>(batch: &mut B, req: &Request<'_, RawAh<B::Ah>>) -> Result<(), PostError> {
    // SAFETY: the memory that `req` names, and its bind, fulfil the contract of `SendBatch::push` (contract of this function).
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one call of many is made")]
    unsafe {
        match req.data {
            Data::None => push_data(batch, req, NoData),
            Data::Sges(sges) => push_data(batch, req, &wire(sges)?[..]),
            Data::Inline(bytes) => push_data(batch, req, Inline(bytes)),
            Data::InlineList(list) => push_data(batch, req, InlineList(list)),
        }
    }
    Ok(())
}

/// # Safety
/// As [`SendBatch::push`].
unsafe fn push_data<B: SendBatch>(
    batch: &mut B,
    req: &Request<'_, RawAh<B::Ah>>,
    data: impl Payload<B::Sge>,
) {
    // SAFETY: the memory that `req` names, and its bind, fulfil the contract of `SendBatch::push` (contract of this function).
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one call of many is made")]
    unsafe {
        match req.dest {
            Dest::Peer => push_to(batch, req, Connected, data),
            Dest::Ud(to) => {
                let to = To { ah: &to.ah.driver, remote_qpn: to.qpn, remote_qkey: to.qkey };
                push_to(batch, req, to, data);
            }
            Dest::Xrc(srqn) => push_to(batch, req, RemoteSrq(srqn), data),
            Dest::Dc { ah, dctn, key } => {
                let to = op::DcTarget { ah: &ah.driver, remote_dctn: dctn, remote_dc_key: key };
                push_to(batch, req, to, data);
            }
        }
    }
}

/// # Safety
/// As [`SendBatch::push`].
unsafe fn push_to<B: SendBatch>(
    batch: &mut B,
    req: &Request<'_, RawAh<B::Ah>>,
    to: impl Address<B::Ah>,
    data: impl Payload<B::Sge>,
) {
    struct Push<'b, B, A, P>(&'b mut B, Wr, A, P);
    impl<B: SendBatch, A: Address<B::Ah>, P: Payload<B::Sge>> Visit<B::Remote> for Push<'_, B, A, P> {
        #[inline(never)]
        fn visit<O: Operation<Remote = B::Remote>>(self, op: O) {
            // SAFETY: the memory and a bind fulfil the contract of `SendBatch::push` (contract of `push_to`).
            unsafe { self.0.push(self.1, self.2, op, self.3) };
        }
    }
    let wr = Wr { wr_id: req.wr_id, flags: req.flags };
    // SAFETY: a bind fulfils the contract of `BindMw::new`, as `SendBatch::push` requires (contract of this function).
    unsafe { visit(req.op, Push(batch, wr, to, data)) };
}
