// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests by each of the three faces.
// UNSAFETY: posting is an `unsafe fn`. Memory that is read during the post stays (the arena, the request's own
// buffers); there is no device that accesses other memory. Lists live as long as the call.

use crate::request::{Data, Request, Shape, What};
use core::ptr::null;
use uverbs_core::attr::QpType;
use uverbs_core::provider::op::{self, Address, DcTarget, MwBind, TsoArgs};
use uverbs_core::provider::{
    Connected, InlineList, NoData, Operation, Payload, PostError, RemoteSrq, SendBatch as _, SendQueue as _,
    To, WireRemote as _, WireSge as _, Wr, WrBuilder as _,
};
use uverbs_core::wr::{
    IbvAh, IbvMr, IbvMw, IbvMwBindInfo, ImmData, RawAh, SendFlags, SendWr, Sge, WrAtomic, WrBindMw, WrRdma,
    WrTail, WrTso, WrUd, WrUnion,
};
use uverbs_mlx5::{Ah, Remote, SendQueue, Sge as WireSge};
use uverbs_mlx5_hw::wqe::Av;

/// The destination of datagrams and DC requests.
pub(crate) fn vector() -> Av {
    Av { stat_rate_sl: 3, rmac: [2, 0, 0, 0, 0, 1], hop_limit: 64, rgid: [7; 16], ..Av::default() }
}

/// The access key of a request's DC target.
pub(crate) fn dc_key(r: &Request) -> u64 {
    u64::from(r.key) << 7
}

fn wr_of(r: &Request, shape: Shape) -> Wr {
    Wr { wr_id: r.wr_id, flags: r.flags(shape) }
}

/// Does something with an operation, whichever it is.
trait Visit {
    fn visit<O: Operation<Remote = Remote>>(self, op: O);
}

fn visit(what: What, v: impl Visit) {
    let remote = |addr, rkey| Remote::new(what.at(addr), rkey);
    match what {
        What::Send => v.visit(op::Send::new()),
        What::SendImm(imm) => v.visit(op::SendImm::new(ImmData::new(imm))),
        What::SendInv(key) => v.visit(op::SendInv::new(key)),
        What::Write(addr, rkey) => v.visit(op::Write::new(remote(addr, rkey))),
        What::WriteImm(addr, rkey, imm) => {
            v.visit(op::WriteImm::new(remote(addr, rkey), ImmData::new(imm)));
        }
        What::Read(addr, rkey) => v.visit(op::Read::new(remote(addr, rkey))),
        What::CmpSwp(addr, rkey, compare, swap) => {
            v.visit(op::CmpSwp::new(remote(addr, rkey), compare, swap));
        }
        What::FetchAdd(addr, rkey, add) => v.visit(op::FetchAdd::new(remote(addr, rkey), add)),
        What::LocalInv(key) => v.visit(op::LocalInv::new(key)),
        What::BindMw(b) => {
            let bind = MwBind {
                mw_rkey: b.mw_rkey,
                mw_type: b.mw_type(),
                rkey: b.rkey,
                mr_lkey: b.mr_lkey,
                addr: b.addr,
                length: b.length(),
                access: b.access,
            };
            // SAFETY: the ring is in plain memory: nothing is bound.
            v.visit(unsafe { op::BindMw::new(bind) });
        }
        What::Tso(h) => v.visit(op::Tso::new(TsoArgs { header: &h.bytes(), mss: h.mss() })),
    }
}

type Batch<'q> = <SendQueue as uverbs_core::provider::SendQueue>::Batch<'q>;

/// Posts a typed batch, or drops it.
pub(crate) fn batch(
    queue: &mut SendQueue,
    shape: Shape,
    all: &[Request],
    lost: bool,
) -> Result<(), PostError> {
    let mut batch = queue.batch();
    for r in all {
        let wr = wr_of(r, shape);
        match &r.data {
            _ if r.what.is_local() => push_to(&mut batch, wr, r, shape, NoData),
            Data::Sges(_) => {
                // A typed entry that is too long can't be made; that ends the batch.
                let sges: Result<Vec<_>, _> =
                    r.sges(shape).iter().map(|s| WireSge::new(s.addr, s.length, s.lkey)).collect();
                match sges {
                    Ok(sges) => push_to(&mut batch, wr, r, shape, &sges[..]),
                    Err(_) if lost => {}
                    Err(error) => return Err(error),
                }
            }
            Data::Inline(bufs) => {
                let bufs: Vec<&[u8]> = bufs.iter().map(|b| &b[..]).collect();
                push_to(&mut batch, wr, r, shape, InlineList(&bufs));
            }
        }
    }
    if lost {
        drop(batch);
        return Ok(());
    }
    batch.complete()
}

fn push_to<P: Payload<WireSge>>(batch: &mut Batch<'_>, wr: Wr, r: &Request, shape: Shape, data: P) {
    let ah = Ah::new(&vector());
    match shape.qp_type() {
        QpType::Ud => {
            let to = To { ah: &ah, remote_qpn: r.number, remote_qkey: r.key };
            visit(r.what, Push { batch, wr, to, data });
        }
        QpType::XrcSend => visit(r.what, Push { batch, wr, to: RemoteSrq(r.number), data }),
        QpType::Driver => {
            let to = DcTarget { ah: &ah, remote_dctn: r.number, remote_dc_key: dc_key(r) };
            visit(r.what, Push { batch, wr, to, data });
        }
        _ => visit(r.what, Push { batch, wr, to: Connected, data }),
    }
}

struct Push<'a, 'q: 'a, A, P> {
    batch: &'a mut Batch<'q>,
    wr: Wr,
    to: A,
    data: P,
}

impl<A: Address<Ah>, P: Payload<WireSge>> Visit for Push<'_, '_, A, P> {
    fn visit<O: Operation<Remote = Remote>>(self, op: O) {
        // SAFETY: memory that is read now is in the arena; there is no device that accesses the other memory.
        unsafe { self.batch.push(self.wr, self.to, op, self.data) };
    }
}

struct Begin<'q>(&'q mut SendQueue, Wr);

impl Visit for Begin<'_> {
    fn visit<O: Operation<Remote = Remote>>(self, op: O) {
        self.0.wr_begin(self.1, op);
    }
}

/// Posts by the builders, or aborts.
pub(crate) fn session(
    queue: &mut SendQueue,
    shape: Shape,
    all: &[Request],
    lost: bool,
) -> Result<(), PostError> {
    queue.wr_start();
    for r in all {
        visit(r.what, Begin(queue, wr_of(r, shape)));
        if r.what.is_local() {
            continue;
        }
        let ah = Ah::new(&vector());
        let set_address = |queue: &mut SendQueue| match shape.qp_type() {
            QpType::Ud => queue.wr_set_ud_addr(&ah, r.number, r.key),
            QpType::XrcSend => queue.wr_set_xrc_srqn(r.number),
            QpType::Driver => queue.wr_set_dc_addr(&ah, r.number, dc_key(r)),
            _ => {}
        };
        // In either order.
        let late = r.wr_id & 1 == 0;
        if !late {
            set_address(queue);
        }
        match &r.data {
            // SAFETY: memory that is read now is in the arena; there is no device that accesses the other memory.
            Data::Sges(_) => unsafe { queue.wr_set_sges(&r.sges(shape)) },
            Data::Inline(bufs) => {
                let bufs: Vec<&[u8]> = bufs.iter().map(|b| &b[..]).collect();
                queue.wr_set_inline(InlineList(&bufs));
            }
        }
        if late {
            set_address(queue);
        }
    }
    if lost {
        queue.wr_abort();
        return Ok(());
    }
    queue.wr_complete()
}

/// Posts a C list. An error comes with the index of the WR that it names.
pub(crate) fn list(
    queue: &mut SendQueue,
    shape: Shape,
    all: &[Request],
) -> Result<(), (PostError, Option<usize>)> {
    let mut keep = Keep::default();
    let nodes = keep.nodes(all, shape);
    let first = if nodes.is_empty() { null() } else { nodes.as_ptr() };
    // SAFETY: a list of live nodes, whose entries are the arena's where they are read.
    unsafe { queue.post_send(first) }
        .map_err(|bad| (bad.error, nodes.iter().position(|n| core::ptr::from_ref(n) == bad.wr)))
}

/// The data that the nodes of a list point to.
#[derive(Default)]
struct Keep {
    sges: Vec<Vec<Sge>>,
    bytes: Vec<Vec<u8>>,
    windows: Vec<Box<(IbvMw, IbvMr)>>,
    ah: Option<Box<RawAh<Ah>>>,
}

impl Keep {
    fn nodes(&mut self, all: &[Request], shape: Shape) -> Vec<SendWr> {
        let base = IbvAh { context: core::ptr::null_mut(), pd: core::ptr::null_mut(), handle: 0 };
        let ah = self.ah.insert(Box::new(RawAh { base, driver: Ah::new(&vector()) }));
        let ah: *const IbvAh = core::ptr::from_ref(&**ah).cast();
        let mut nodes: Vec<_> = all.iter().map(|r| self.node(r, shape, ah)).collect();
        for i in 1..nodes.len() {
            nodes[i - 1].next = &raw const nodes[i];
        }
        nodes
    }

    fn node(&mut self, r: &Request, shape: Shape, ah: *const IbvAh) -> SendWr {
        let mut node = SendWr::new(r.wr_id, r.what.opcode());
        node.send_flags = r.flags(shape).bits();
        let sges = match &r.data {
            Data::Sges(_) => r.sges(shape),
            Data::Inline(_) if r.what.is_local() => Vec::new(),
            Data::Inline(bufs) => {
                node.send_flags |= SendFlags::INLINE.bits();
                bufs.iter().map(|buf| by_address(self.keep_bytes(buf.clone()))).collect()
            }
        };
        (node.sg_list, node.num_sge) = (sges.as_ptr(), sges.len() as i32);
        self.sges.push(sges);
        let rdma = |addr, rkey| WrUnion { rdma: WrRdma { remote_addr: r.what.at(addr), rkey } };
        let atomic = |addr, rkey, compare_add, swap| {
            let remote_addr = r.what.at(addr);
            WrUnion { atomic: WrAtomic { remote_addr, compare_add, swap, rkey } }
        };
        match r.what {
            What::Send => {}
            What::SendImm(imm) => node.imm_data_or_invalidate_rkey = ImmData::new(imm).to_be(),
            What::SendInv(key) | What::LocalInv(key) => node.imm_data_or_invalidate_rkey = key,
            What::Write(addr, rkey) | What::Read(addr, rkey) => node.wr = rdma(addr, rkey),
            What::WriteImm(addr, rkey, imm) => {
                node.wr = rdma(addr, rkey);
                node.imm_data_or_invalidate_rkey = ImmData::new(imm).to_be();
            }
            What::CmpSwp(addr, rkey, compare, swap) => node.wr = atomic(addr, rkey, compare, swap),
            What::FetchAdd(addr, rkey, add) => node.wr = atomic(addr, rkey, add, 0),
            What::BindMw(bind) => node.tail = WrTail { bind_mw: self.window(bind) },
            What::Tso(header) => {
                let hdr = self.keep_bytes(header.bytes());
                let (hdr, hdr_sz) = (hdr.as_ptr(), hdr.len() as u16);
                node.tail = WrTail { tso: WrTso { hdr, hdr_sz, mss: header.mss() } };
            }
        }
        match shape.qp_type() {
            QpType::Ud => node.wr = WrUnion { ud: WrUd { ah, remote_qpn: r.number, remote_qkey: r.key } },
            QpType::XrcSend => node.xrc_remote_srqn = r.number,
            _ => {}
        }
        node
    }

    fn keep_bytes(&mut self, bytes: Vec<u8>) -> &[u8] {
        self.bytes.push(bytes);
        self.bytes.last().map_or(&[], |b| b)
    }

    fn window(&mut self, bind: crate::request::Bind) -> WrBindMw {
        let none = core::ptr::null_mut;
        let mw =
            IbvMw { context: none(), pd: none(), rkey: bind.mw_rkey, handle: 0, mw_type: bind.mw_type() };
        let mr = IbvMr {
            context: none(),
            pd: none(),
            addr: none(),
            length: 0,
            handle: 0,
            lkey: bind.mr_lkey,
            rkey: 0,
        };
        self.windows.push(Box::new((mw, mr)));
        let (mw, mr) = &**self.windows.last().expect("just pushed");
        let bind_info =
            IbvMwBindInfo { mr, addr: bind.addr, length: bind.length(), mw_access_flags: bind.access };
        WrBindMw { mw, rkey: bind.rkey, bind_info }
    }
}

/// An entry of a list with `INLINE`: where the bytes are.
fn by_address(bytes: &[u8]) -> Sge {
    Sge { addr: bytes.as_ptr().expose_provenance() as u64, length: bytes.len() as u32, lkey: 0 }
}
