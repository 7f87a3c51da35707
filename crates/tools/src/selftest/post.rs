// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posting one work request by any face, on any transport.
#![expect(unsafe_code)]
// UNSAFETY: posts scatter/gather entries and calls C's faces. All entries name regions of the selftest, which live longer
// than its QPs, also those that windows are bound over, and are reached by this process by atomics and copies only; nodes and arrays live until the call returns.

use core::ptr;
use uverbs::provider::DcDriver;
use uverbs::provider::op::{Address, FlushArgs, MwBind};
use uverbs::provider::raw::QpEx;
use uverbs::provider::{WireRemote, WireSge};
use uverbs::qp::recv::RecvBatch;
use uverbs::qp::transport::{HasPeer, Reliable, SendsImm};
use uverbs::qp::wr::{Sink, Wr};
use uverbs::qp::{Batch, QpControl, SendQueue};
use uverbs::wr::{
    IbvMr, IbvMw, IbvMwBindInfo, SendWr, Sge, WrAtomic, WrBindMw, WrOpcode, WrRdma, WrTail, WrUd, WrUnion,
};
use uverbs::{
    AddressHandle, CompletionQueue, ConnectAttr, DcTarget, Dci, Driver, Endpoint, Exclusive, ImmData,
    PostError, ProtectionDomain, Rc, SendFlags, Shared, SharedReceiveQueue, Uc, Ud, XrcSend,
};

/// The key of the DC targets.
pub(super) const DC_KEY: u64 = 0x1122_3344_5566_7788;

/// The objects of a DC target.
pub(super) struct Parts<'a, D: Driver> {
    pub(super) pd: &'a ProtectionDomain<D>,
    pub(super) cq: &'a CompletionQueue<D, Shared>,
    pub(super) srq: &'a SharedReceiveQueue<D>,
}

/// A DC target.
#[derive(Debug)]
pub(super) struct Target<D: Driver> {
    _dct: DcTarget<D>,
    pub(super) number: u32,
}

/// A way to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Face {
    /// `ibv_post_send`: a list of one.
    List,
    /// `ibv_wr_start` .. `ibv_wr_complete`.
    Builder,
    /// A typed batch of one.
    Batch,
    /// A typed post.
    Post,
    /// A typed batch of one, behind the lock of a shared queue.
    Locked,
}

impl Face {
    pub(super) const ALL: [Self; 5] = [Self::List, Self::Builder, Self::Batch, Self::Post, Self::Locked];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::List => "post_send",
            Self::Builder => "wr_*",
            Self::Batch => "batch",
            Self::Post => "post",
            Self::Locked => "locked",
        }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) addr: u64,
    pub(super) rkey: u32,
}

/// The operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Send,
    SendImm(u32),
    SendInv(u32),
    Write(Remote),
    WriteImm(Remote, u32),
    Read(Remote),
    CmpSwp(Remote, u64, u64),
    FetchAdd(Remote, u64),
    LocalInv(u32),
    BindMw(MwBind),
    Flush(Remote, FlushArgs),
    AtomicWrite(Remote, [u8; 8]),
}

impl Op {
    /// Whether it takes data.
    const fn has_data(self) -> bool {
        !matches!(self, Self::LocalInv(_) | Self::BindMw(_) | Self::Flush(..) | Self::AtomicWrite(..))
    }
}

/// The data of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

/// The destination, as far as the transport needs one.
#[derive(Debug)]
pub(super) struct To<'a, D: Driver> {
    pub(super) ah: Option<&'a AddressHandle<D>>,
    pub(super) qpn: u32,
    pub(super) qkey: u32,
    pub(super) srqn: u32,
    /// Of a DC target, whose number is `qpn`.
    pub(super) dc_key: Option<u64>,
}

impl<D: Driver> Clone for To<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Driver> Copy for To<'_, D> {}

/// A signaled work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) wr_id: u64,
    pub(super) op: Op,
    pub(super) data: Data<'a>,
}

/// A transport of the selftest, of drivers that have it.
pub(super) trait Kind<D: Driver>: SendsImm + Sized {
    /// Adds the request to a batch.
    fn push(batch: &mut Batch<'_, D, Self>, to: To<'_, D>, req: &Request<'_>) -> Result<(), PostError>;
    /// Posts it at once.
    fn now(sq: &mut SendQueue<D, Self, Exclusive>, to: To<'_, D>, req: &Request<'_>)
    -> Result<(), PostError>;
    /// The DC target that receives for it, if it is one.
    fn target(
        parts: &Parts<'_, D>,
        attr: &ConnectAttr,
        here: &Endpoint,
    ) -> uverbs::Result<Option<Target<D>>> {
        let _ = (parts, attr, here);
        Ok(None)
    }
    /// The sender from RESET to RTS.
    fn connect(
        control: &QpControl<D>,
        here: &Endpoint,
        there: &Endpoint,
        attr: &ConnectAttr,
    ) -> uverbs::Result<()> {
        control.init(attr)?;
        control.connect(here, there, attr)
    }
}

macro_rules! kinds {
    ($($transport:ident [$driver:ident]: $wr:ident, $post:ident, $fill:ident, |$to:ident| ($($arg:expr),*), {$($more:item)*};)*) => {$(
        impl<D: $driver> Kind<D> for $transport {
            $($more)*
            fn push(
                batch: &mut Batch<'_, D, Self>,
                $to: To<'_, D>,
                req: &Request<'_>,
            ) -> Result<(), PostError> {
                let _ = &$to;
                $fill(batch.$wr(req.wr_id, $($arg),*).signaled(), req).map(drop)
            }
            fn now(
                sq: &mut SendQueue<D, Self, Exclusive>,
                $to: To<'_, D>,
                req: &Request<'_>,
            ) -> Result<(), PostError> {
                let _ = &$to;
                $fill(sq.$post(req.wr_id, $($arg),*).signaled(), req)?
            }
        }
    )*};
}

kinds! {
    Rc [Driver]: wr, post, reliable, |to| (), {};
    Uc [Driver]: wr, post, peer, |to| (), {};
    Ud [Driver]: wr_to, post_to, message, |to| (to.ah.ok_or(PostError::InvalidArgument)?, to.qpn, to.qkey), {};
    XrcSend [Driver]: wr_srq, post_srq, reliable, |to| (to.srqn), {};
    Dci [DcDriver]: wr_dc, post_dc, reliable, |to| (
        to.ah.ok_or(PostError::InvalidArgument)?,
        to.qpn,
        to.dc_key.ok_or(PostError::InvalidArgument)?
    ), {
        fn target(
            parts: &Parts<'_, D>,
            attr: &ConnectAttr,
            here: &Endpoint,
        ) -> uverbs::Result<Option<Target<D>>> {
            let target = parts.pd.create_dct(parts.cq, parts.srq, DC_KEY)?;
            let number = target.connect(attr, &attr.ah_attr(here))?;
            Ok(Some(Target { _dct: target, number }))
        }
        fn connect(
            control: &QpControl<D>,
            _: &Endpoint,
            _: &Endpoint,
            attr: &ConnectAttr,
        ) -> uverbs::Result<()> {
            control.connect_dci(attr)
        }
    };
}

fn wire<D: Driver>(data: Data<'_>) -> Result<Vec<D::Sge>, PostError> {
    match data {
        Data::Sges(sges) => sges.iter().map(|s| D::Sge::new(s.addr, s.length, s.lkey)).collect(),
        Data::Inline(_) => Ok(vec![]),
    }
}

fn at<D: Driver>(r: Remote) -> D::Remote {
    D::Remote::new(r.addr, r.rkey)
}

/// The operations of every transport.
fn message<S: Sink<D>, D: Driver, T: SendsImm, A: Address<D::Ah>>(
    wr: Wr<S, D, T, A>,
    req: &Request<'_>,
) -> Result<S::Out, PostError> {
    let sges = wire::<D>(req.data)?;
    Ok(match (req.op, req.data) {
        (Op::Send, Data::Inline(bytes)) => wr.send_inline(bytes),
        // SAFETY: see the head of this module.
        (Op::Send, Data::Sges(_)) => unsafe { wr.send(&sges) },
        (Op::SendImm(imm), Data::Inline(bytes)) => wr.send_imm_inline(bytes, ImmData::new(imm)),
        // SAFETY: see the head of this module.
        (Op::SendImm(imm), Data::Sges(_)) => unsafe { wr.send_imm(&sges, ImmData::new(imm)) },
        _ => return Err(PostError::IllegalOpcode),
    })
}

/// The operations of connected transports.
fn peer<S: Sink<D>, D: Driver, T: HasPeer + SendsImm, A: Address<D::Ah>>(
    wr: Wr<S, D, T, A>,
    req: &Request<'_>,
) -> Result<S::Out, PostError> {
    let sges = wire::<D>(req.data)?;
    Ok(match (req.op, req.data) {
        (Op::SendInv(rkey), Data::Inline(bytes)) => wr.send_inv_inline(bytes, rkey),
        // SAFETY: see the head of this module.
        (Op::SendInv(rkey), Data::Sges(_)) => unsafe { wr.send_inv(&sges, rkey) },
        (Op::Write(r), Data::Inline(bytes)) => wr.write_inline(bytes, at::<D>(r)),
        // SAFETY: see the head of this module.
        (Op::Write(r), Data::Sges(_)) => unsafe { wr.write(&sges, at::<D>(r)) },
        (Op::WriteImm(r, imm), Data::Inline(bytes)) => {
            wr.write_imm_inline(bytes, at::<D>(r), ImmData::new(imm))
        }
        // SAFETY: see the head of this module.
        (Op::WriteImm(r, imm), Data::Sges(_)) => unsafe {
            wr.write_imm(&sges, at::<D>(r), ImmData::new(imm))
        },
        (Op::LocalInv(rkey), _) => wr.local_inv(rkey),
        // SAFETY: see the head of this module.
        (Op::BindMw(bind), _) => unsafe { wr.bind_mw(bind) },
        _ => return message(wr, req),
    })
}

/// The operations of reliable transports.
fn reliable<S: Sink<D>, D: Driver, T: Reliable + SendsImm, A: Address<D::Ah>>(
    wr: Wr<S, D, T, A>,
    req: &Request<'_>,
) -> Result<S::Out, PostError> {
    let sges = wire::<D>(req.data)?;
    Ok(match req.op {
        // SAFETY: see the head of this module.
        Op::Read(r) => unsafe { wr.read(&sges, at::<D>(r)) },
        // SAFETY: see the head of this module.
        Op::CmpSwp(r, compare, swap) => unsafe { wr.compare_swap(&sges, at::<D>(r), compare, swap) },
        // SAFETY: see the head of this module.
        Op::FetchAdd(r, add) => unsafe { wr.fetch_add(&sges, at::<D>(r), add) },
        Op::Flush(r, args) => wr.flush(at::<D>(r), args),
        Op::AtomicWrite(r, data) => wr.atomic_write(at::<D>(r), data),
        _ => return peer(wr, req),
    })
}

/// Posts to an exclusive queue, by any face but [`Face::Locked`].
pub(super) fn post<D: Driver, T: Kind<D>>(
    sq: &mut SendQueue<D, T, Exclusive>,
    face: Face,
    to: To<'_, D>,
    req: &Request<'_>,
) -> Result<(), PostError> {
    match face {
        Face::List => list(to, req, |node| {
            // SAFETY: a list of one; see the head of this module.
            unsafe { sq.post_send(node) }.map_err(|bad| bad.error)
        }),
        Face::Builder => build(sq.qp_ex().ok_or(PostError::IllegalOpcode)?, to, req),
        Face::Post => T::now(sq, to, req),
        Face::Batch | Face::Locked => {
            let mut batch = sq.batch();
            T::push(&mut batch, to, req)?;
            batch.complete()
        }
    }
}

/// Posts to a shared queue.
pub(super) fn post_locked<D: Driver, T: Kind<D>>(
    sq: &SendQueue<D, T, Shared>,
    to: To<'_, D>,
    req: &Request<'_>,
) -> Result<(), PostError> {
    let mut guard = sq.lock()?;
    let mut batch = guard.batch();
    T::push(&mut batch, to, req)?;
    batch.complete()
}

/// Posts a receive.
pub(super) fn post_recv<Q: uverbs::provider::recv::RecvQueue>(
    mut batch: RecvBatch<'_, Q>,
    wr_id: u64,
    sges: &[Sge],
) -> Result<(), PostError> {
    let sges: Vec<Q::Sge> =
        sges.iter().map(|s| Q::Sge::new(s.addr, s.length, s.lkey)).collect::<Result<_, _>>()?;
    // SAFETY: see the head of this module.
    unsafe { batch.push(wr_id, &sges) };
    batch.complete()
}

/// C's structs of a window and a region, with the keys that the bind names.
fn window(bind: &MwBind) -> (IbvMw, IbvMr) {
    let null = ptr::null_mut();
    let mw = IbvMw { context: null, pd: null, rkey: bind.mw_rkey, handle: 0, mw_type: bind.mw_type };
    let mr = IbvMr { context: null, pd: null, addr: null, length: 0, handle: 0, lkey: bind.mr_lkey, rkey: 0 };
    (mw, mr)
}

fn bind_info(bind: &MwBind, mr: &IbvMr) -> IbvMwBindInfo {
    IbvMwBindInfo { mr, addr: bind.addr, length: bind.length, mw_access_flags: bind.access }
}

/// Makes C's node and has it posted.
fn list<D: Driver>(
    to: To<'_, D>,
    req: &Request<'_>,
    post: impl FnOnce(*const SendWr) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let (opcode, word) = match req.op {
        Op::Send => (WrOpcode::SEND, 0),
        Op::SendImm(imm) => (WrOpcode::SEND_WITH_IMM, ImmData::new(imm).to_be()),
        Op::SendInv(rkey) => (WrOpcode::SEND_WITH_INV, rkey),
        Op::Write(_) => (WrOpcode::RDMA_WRITE, 0),
        Op::WriteImm(_, imm) => (WrOpcode::RDMA_WRITE_WITH_IMM, ImmData::new(imm).to_be()),
        Op::Read(_) => (WrOpcode::RDMA_READ, 0),
        Op::CmpSwp(..) => (WrOpcode::ATOMIC_CMP_AND_SWP, 0),
        Op::FetchAdd(..) => (WrOpcode::ATOMIC_FETCH_AND_ADD, 0),
        Op::LocalInv(rkey) => (WrOpcode::LOCAL_INV, rkey),
        Op::BindMw(_) => (WrOpcode::BIND_MW, 0),
        Op::Flush(..) | Op::AtomicWrite(..) => return Err(PostError::IllegalOpcode),
    };
    let mut wr = SendWr::new(req.wr_id, opcode);
    wr.send_flags = SendFlags::SIGNALED.bits();
    wr.imm_data_or_invalidate_rkey = word;
    let inline;
    let sges: &[Sge] = match req.data {
        _ if !req.op.has_data() => &[],
        Data::Sges(sges) => sges,
        Data::Inline(bytes) => {
            wr.send_flags |= SendFlags::INLINE.bits();
            let addr = bytes.as_ptr().expose_provenance() as u64;
            inline = [Sge { addr, length: bytes.len() as u32, lkey: 0 }];
            &inline
        }
    };
    wr.sg_list = sges.as_ptr();
    wr.num_sge = sges.len() as i32;
    let atomic = |r: Remote, compare_add, swap| WrUnion {
        atomic: WrAtomic { remote_addr: r.addr, compare_add, swap, rkey: r.rkey },
    };
    let objects;
    match req.op {
        Op::Write(r) | Op::WriteImm(r, _) | Op::Read(r) => {
            wr.wr = WrUnion { rdma: WrRdma { remote_addr: r.addr, rkey: r.rkey } };
        }
        Op::CmpSwp(r, compare, swap) => wr.wr = atomic(r, compare, swap),
        Op::FetchAdd(r, add) => wr.wr = atomic(r, add, 0),
        Op::BindMw(bind) => {
            objects = window(&bind);
            let info = bind_info(&bind, &objects.1);
            wr.tail =
                WrTail { bind_mw: WrBindMw { mw: &raw const objects.0, rkey: bind.rkey, bind_info: info } };
        }
        _ => {}
    }
    if let Some(ah) = to.ah {
        wr.wr = WrUnion { ud: WrUd { ah: ah.as_raw(), remote_qpn: to.qpn, remote_qkey: to.qkey } };
    }
    if to.srqn != 0 {
        wr.xrc_remote_srqn = to.srqn;
    }
    post(&raw const wr)
}

/// One session of the builder.
fn build<D: Driver>(mut qp: QpEx<'_>, to: To<'_, D>, req: &Request<'_>) -> Result<(), PostError> {
    qp.wr_id = req.wr_id;
    qp.wr_flags = SendFlags::SIGNALED.bits();
    // SAFETY: this thread alone uses the queue.
    unsafe { qp.wr_start() };
    // SAFETY: inside the session; pointers are to locals that outlive the call, memory as in the head of this module.
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one call of many is made")]
    unsafe {
        match req.op {
            Op::Send => qp.wr_send(),
            Op::SendImm(imm) => qp.wr_send_imm(ImmData::new(imm)),
            Op::SendInv(rkey) => qp.wr_send_inv(rkey),
            Op::Write(r) => qp.wr_rdma_write(r.rkey, r.addr),
            Op::WriteImm(r, imm) => qp.wr_rdma_write_imm(r.rkey, r.addr, ImmData::new(imm)),
            Op::Read(r) => qp.wr_rdma_read(r.rkey, r.addr),
            Op::CmpSwp(r, compare, swap) => qp.wr_atomic_cmp_swp(r.rkey, r.addr, compare, swap),
            Op::FetchAdd(r, add) => qp.wr_atomic_fetch_add(r.rkey, r.addr, add),
            Op::LocalInv(rkey) => qp.wr_local_inv(rkey),
            Op::BindMw(bind) => {
                let objects = window(&bind);
                let info = bind_info(&bind, &objects.1);
                qp.wr_bind_mw(&raw const objects.0, bind.rkey, &raw const info);
            }
            Op::Flush(r, a) => qp.wr_flush(r.rkey, r.addr, a.length as usize, a.placement, a.level),
            Op::AtomicWrite(r, data) => qp.wr_atomic_write(r.rkey, r.addr, data.as_ptr()),
        }
        if let Some(ah) = to.ah {
            qp.wr_set_ud_addr(ah.as_raw(), to.qpn, to.qkey);
        }
        if to.srqn != 0 {
            qp.wr_set_xrc_srqn(to.srqn);
        }
        match req.data {
            _ if !req.op.has_data() => {}
            Data::Sges([one]) => qp.wr_set_sge(one.lkey, one.addr, one.length),
            Data::Sges(sges) => qp.wr_set_sge_list(sges.len(), sges.as_ptr()),
            Data::Inline(bytes) => qp.wr_set_inline_data(bytes.as_ptr(), bytes.len()),
        }
    }
    // SAFETY: this thread opened the session.
    unsafe { qp.wr_complete() }
}
