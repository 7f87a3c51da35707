// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests on each interface of a driver's queue, `uverbs_core::provider`.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests; the contracts of its functions require that the memory that they name stays valid.

use crate::list::{List, refused};
use crate::request::{Data, Dest, Face, Op, Refused, Request, has_data};
use uverbs_core::provider::op::{self, Address};
use uverbs_core::provider::{
    Connected, Inline, InlineList, NoData, Operation, Payload, PostError, RemoteSrq, SendBatch, SendQueue,
    To, WireRemote, WireSge, Wr, WrBuilder,
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

/// Adds a request to the session of a queue: builder and setters. The setters may be called in either order, so that of an
/// address is first for odd ids. The setter of a DC address is the driver's own; the caller calls it.
///
/// # Safety
/// As [`SendBatch::push`].
pub unsafe fn build<Q: WrBuilder>(queue: &mut Q, req: &Request<'_, RawAh<Q::Ah>>) {
    // SAFETY: a bind fulfils the contract of `BindMw::new`, as `SendBatch::push` requires (contract of this function).
    unsafe { begin(queue, req.wr_id, req.flags, req.op) };
    if !has_data(req.op) {
        return;
    }
    let address_first = req.wr_id % 2 == 1;
    if address_first {
        set_address(queue, &req.dest);
    }
    match req.data {
        // SAFETY: names no memory.
        Data::None => unsafe { queue.wr_set_sges(&[]) },
        // SAFETY: the memory fulfils the contract of `SendBatch::push` (contract of this function).
        Data::Sges(sges) => unsafe { queue.wr_set_sges(sges) },
        Data::Inline(bytes) => queue.wr_set_inline(Inline(bytes)),
        Data::InlineList(list) => queue.wr_set_inline(InlineList(list)),
    }
    if !address_first {
        set_address(queue, &req.dest);
    }
}

fn set_address<Q: WrBuilder>(queue: &mut Q, dest: &Dest<'_, RawAh<Q::Ah>>) {
    match dest {
        Dest::Peer | Dest::Dc { .. } => {}
        Dest::Ud(to) => queue.wr_set_ud_addr(&to.ah.driver, to.qpn, to.qkey),
        Dest::Xrc(srqn) => queue.wr_set_xrc_srqn(*srqn),
    }
}

/// A queue as a batch that posts each request at once. Its result is that of the last post.
#[derive(Debug)]
pub struct AtOnce<'q, Q> {
    queue: &'q mut Q,
    last: Result<(), PostError>,
}

impl<'q, Q> AtOnce<'q, Q> {
    /// Posts to this queue.
    pub fn new(queue: &'q mut Q) -> Self {
        Self { queue, last: Ok(()) }
    }
}

impl<Q: SendQueue> SendBatch for AtOnce<'_, Q> {
    type Sge = Q::Sge;
    type Remote = Q::Remote;
    type Ah = Q::Ah;

    unsafe fn push<A, O, P>(&mut self, wr: Wr, to: A, op: O, data: P)
    where
        A: Address<Self::Ah>,
        O: Operation<Remote = Self::Remote>,
        P: Payload<Self::Sge>,
    {
        // SAFETY: the contract of this function is that of `SendBatch::push`, which `post` requires.
        self.last = unsafe { self.queue.post(wr, to, op, data) };
    }

    fn complete(self) -> Result<(), PostError> {
        self.last
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
    reqs: &[Request<'_, RawAh<Q::Ah>>],
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
                let mut single = AtOnce::new(queue);
                // SAFETY: `push` and this function have the same contract.
                let pushed = unsafe { push(&mut single, req) };
                pushed.and_then(|()| single.complete()).map_err(|e| Refused::new(e, Some(i)))?;
            }
            Ok(())
        }
    }
}
