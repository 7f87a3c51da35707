// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posting by each face: C's list, the `wr_*` vtable, typed batches; and polling through C's calls.
#![expect(unsafe_code)]
// UNSAFETY: posting takes a promise about the memory that WRs name. None is touched by a device here: what is read at
// once (inline data, headers of raw packets) is `memory::DATA`, what completions scatter to is `memory::SCATTER`, both
// mapped for ever, and the rest is numbers. One thread uses every queue.

use crate::model::{self, Op};
use crate::request::{self, Data, Dest, Request, What};
use core::ptr;
use uverbs_core::provider::op::{self, Address, MwBind, Operation, TsoArgs};
use uverbs_core::provider::raw::{self, QpEx};
use uverbs_core::provider::{
    BadWr, Connected, InlineList, NoData, Payload, PollError, PostError, RecvBatch as _, RecvQueue as _,
    RemoteSrq, SendBatch, SendQueue as _, To, WireRemote as _, WireSge as _, Wr,
};
use uverbs_core::sync::{Exclusive, Locked};
use uverbs_core::wc::WorkCompletion;
use uverbs_core::wr::{
    IbvAh, IbvDataBuf, IbvMr, IbvMw, IbvMwBindInfo, ImmData, RawAh, RecvWr, SendFlags, SendWr, Sge, WrAtomic,
    WrBindMw, WrOpcode, WrRdma, WrTail, WrTso, WrUd, WrUnion,
};
use uverbs_mlx5::{Ah, CompletionQueue, RecvQueue, Remote, SendQueue, Sge as WireSge, SharedRecvQueue};
use uverbs_mlx5_hw::wqe::Av;
use zerocopy::FromBytes as _;

/// A call's result: errno-less, with the index that `bad_wr` names.
pub(crate) type Posted = Result<(), (PostError, Option<usize>)>;

pub(crate) type Send = Locked<SendQueue, Exclusive>;
pub(crate) type Recv = Locked<RecvQueue, Exclusive>;
pub(crate) type SrqRecv = Locked<SharedRecvQueue, Exclusive>;
pub(crate) type Cq = Locked<CompletionQueue, Exclusive>;

/// The driver's address handle of an address vector.
fn ah(av: &[u8]) -> Ah {
    Ah::new(&Av::read_from_bytes(av).expect("48 bytes"))
}

/// The data that nodes of a list point to.
#[derive(Default)]
struct Keep {
    sges: Vec<Vec<Sge>>,
    #[expect(clippy::vec_box, reason = "nodes point to them, so they must not move when there are more")]
    windows: Vec<Box<(IbvMw, IbvMr)>>,
    #[expect(clippy::vec_box, reason = "likewise")]
    ahs: Vec<Box<RawAh<Ah>>>,
    headers: Vec<Vec<u8>>,
    bytes: Vec<Vec<u8>>,
}

impl Keep {
    fn window(&mut self, bind: &MwBind) -> WrBindMw {
        let null = ptr::null_mut();
        let mw = IbvMw { context: null, pd: null, rkey: bind.mw_rkey, handle: 0, mw_type: bind.mw_type };
        let mr =
            IbvMr { context: null, pd: null, addr: null, length: 0, handle: 0, lkey: bind.mr_lkey, rkey: 0 };
        let both = Box::new((mw, mr));
        let bind_info = IbvMwBindInfo {
            mr: &raw const both.1,
            addr: bind.addr,
            length: bind.length,
            mw_access_flags: bind.access,
        };
        let mw = &raw const both.0;
        self.windows.push(both);
        WrBindMw { mw, rkey: bind.rkey, bind_info }
    }

    fn ah(&mut self, av: &[u8]) -> *const IbvAh {
        let null = ptr::null_mut();
        let base = IbvAh { context: null, pd: null, handle: 0 };
        self.ahs.push(Box::new(RawAh { base, driver: ah(av) }));
        self.ahs.last().map_or(ptr::null(), |ah| ptr::from_ref(&**ah).cast())
    }

    fn sges(&mut self, sges: Vec<Sge>, wr: &mut SendWr) {
        wr.num_sge = sges.len() as i32;
        wr.sg_list = sges.as_ptr();
        self.sges.push(sges);
    }

    fn tso(&mut self, header: &[u8], mss: u16) -> WrTail {
        self.headers.push(header.to_vec());
        let hdr = self.headers.last().map_or(ptr::null(), |h| h.as_ptr());
        WrTail { tso: WrTso { hdr, hdr_sz: header.len() as u16, mss } }
    }
}

fn rdma(addr: u64, rkey: u32) -> WrUnion {
    WrUnion { rdma: WrRdma { remote_addr: addr, rkey } }
}

fn list_of(keep: &mut Keep, nodes: Vec<SendWr>, send: &Send) -> Posted {
    let mut nodes = nodes;
    for i in 1..nodes.len() {
        nodes[i - 1].next = &raw const nodes[i];
    }
    let list = if nodes.is_empty() { ptr::null() } else { nodes.as_ptr() };
    // SAFETY: a list of live nodes that point to what `keep` owns; memory as described above; one thread.
    let result = unsafe { raw::post_send(send, list) };
    let _ = keep;
    result.map_err(|bad| bad_index(&bad, &nodes))
}

fn bad_index<W>(bad: &BadWr<W>, nodes: &[W]) -> (PostError, Option<usize>) {
    (bad.error, nodes.iter().position(|node| ptr::from_ref(node) == bad.wr))
}

/// `ibv_post_send` of what was recorded, node by node.
pub(crate) fn post_list(send: &Send, wrs: &[model::SendWr]) -> Posted {
    let mut keep = Keep::default();
    let mut nodes = Vec::new();
    for wr in wrs {
        let opcode = request::opcode(&wr.opcode);
        let mut node = SendWr::new(wr.wr_id.0, opcode);
        node.send_flags = request::flags(&wr.send_flags).bits();
        keep.sges(request::sges(&wr.sg_list), &mut node);
        if let Some(imm) = wr.imm_data {
            node.imm_data_or_invalidate_rkey = ImmData::new(imm.u32()).to_be();
        }
        if let Some(rkey) = wr.invalidate_rkey {
            node.imm_data_or_invalidate_rkey = rkey.u32();
        }
        let (addr, rkey) = (wr.remote_addr.map_or(0, |n| n.0), wr.rkey.map_or(0, |n| n.u32()));
        if let (Some(compare_add), Some(swap)) = (wr.compare_add, wr.swap) {
            node.wr = WrUnion {
                atomic: WrAtomic { remote_addr: addr, compare_add: compare_add.0, swap: swap.0, rkey },
            };
        } else if wr.remote_addr.is_some() {
            node.wr = rdma(addr, rkey);
        }
        if let Some(ud) = &wr.ud {
            let ah = keep.ah(&request::av(&ud.ah));
            let (remote_qpn, remote_qkey) = (ud.remote_qpn.u32(), ud.remote_qkey.u32());
            // Both are recorded where an opcode that UD has not is posted on it; it is refused before either is read.
            node.wr = WrUnion { ud: WrUd { ah, remote_qpn, remote_qkey } };
        }
        if let Some(srqn) = wr.xrc_remote_srqn {
            node.xrc_remote_srqn = srqn.u32();
        }
        if let Some(tso) = &wr.tso {
            node.tail = keep.tso(&tso.hdr.bytes().expect("a header"), tso.mss);
        }
        if let (Some(mw), Some(rkey), Some(info)) = (&wr.mw, wr.bind_rkey, &wr.bind_info) {
            node.tail = WrTail { bind_mw: keep.window(&request::bind(mw, rkey, info)) };
        }
        nodes.push(node);
    }
    list_of(&mut keep, nodes, send)
}

/// `ibv_post_send` of WRs that were recorded by another face.
pub(crate) fn post_requests(send: &Send, requests: &[Request]) -> Posted {
    let mut keep = Keep::default();
    let mut nodes = Vec::new();
    for r in requests {
        let mut node = SendWr::new(r.wr_id, r.opcode());
        node.send_flags = r.flags.bits();
        match &r.data {
            Data::None => {}
            Data::Sges(sges) => keep.sges(sges.clone(), &mut node),
            Data::Inline(bufs) => {
                node.send_flags |= SendFlags::INLINE.bits();
                let sges = bufs.iter().map(|b| {
                    let b = b.clone();
                    let sge =
                        Sge { addr: b.as_ptr().expose_provenance() as u64, length: b.len() as u32, lkey: 0 };
                    keep.bytes.push(b);
                    sge
                });
                let sges = sges.collect();
                keep.sges(sges, &mut node);
            }
        }
        match &r.what {
            What::Send => {}
            What::SendImm(imm) => node.imm_data_or_invalidate_rkey = ImmData::new(*imm).to_be(),
            What::SendInv(key) | What::LocalInv(key) => node.imm_data_or_invalidate_rkey = *key,
            What::Write(addr, rkey) | What::Read(addr, rkey) => node.wr = rdma(*addr, *rkey),
            What::WriteImm(addr, rkey, imm) => {
                node.wr = rdma(*addr, *rkey);
                node.imm_data_or_invalidate_rkey = ImmData::new(*imm).to_be();
            }
            What::CmpSwp(addr, rkey, compare, swap) => {
                node.wr = WrUnion {
                    atomic: WrAtomic { remote_addr: *addr, compare_add: *compare, swap: *swap, rkey: *rkey },
                };
            }
            What::FetchAdd(addr, rkey, add) => {
                node.wr = WrUnion {
                    atomic: WrAtomic { remote_addr: *addr, compare_add: *add, swap: 0, rkey: *rkey },
                };
            }
            What::BindMw(bind) => node.tail = WrTail { bind_mw: keep.window(bind) },
            What::Tso(header, mss) => node.tail = keep.tso(header, *mss),
        }
        match &r.dest {
            Dest::Peer => {}
            Dest::Ud { av, qpn, qkey } => {
                let ah = keep.ah(av);
                node.wr = WrUnion { ud: WrUd { ah, remote_qpn: *qpn, remote_qkey: *qkey } };
            }
            Dest::Xrc(srqn) => node.xrc_remote_srqn = *srqn,
            Dest::Dc { .. } => unreachable!("a list has no DC address"),
        }
        nodes.push(node);
    }
    list_of(&mut keep, nodes, send)
}

/// A single window bind, as posted by `ibv_bind_mw`.
pub(crate) fn post_bind(send: &Send, wr_id: u64, flags: SendFlags, bind: &MwBind) -> Posted {
    let mut keep = Keep::default();
    let mut node = SendWr::new(wr_id, WrOpcode::BIND_MW);
    node.send_flags = flags.bits();
    node.tail = WrTail { bind_mw: keep.window(bind) };
    list_of(&mut keep, vec![node], send)
}

/// A recorded session, call by call.
pub(crate) fn session(send: &Send, ops: &[Op]) -> Posted {
    let mut keep = Keep::default();
    let mut ex = QpEx::new(send);
    let mut result = Ok(());
    for op in ops {
        match op {
            Op::Set { wr_id, wr_flags } => {
                ex.wr_id = wr_id.0;
                ex.wr_flags = request::flags(wr_flags).bits();
            }
            // SAFETY: one thread; left by `Complete` or `Abort`, one of which ends every session.
            Op::Start => unsafe { ex.wr_start() },
            // SAFETY: this thread's session.
            Op::Complete => result = unsafe { ex.wr_complete() },
            // SAFETY: this thread's session.
            Op::Abort => unsafe { ex.wr_abort() },
            op => call(send, &mut ex, op, &mut keep),
        }
    }
    result.map_err(|error| (error, None))
}

/// A session of WRs that were recorded by another face.
pub(crate) fn session_of(send: &Send, requests: &[Request]) -> Posted {
    let mut keep = Keep::default();
    let mut ex = QpEx::new(send);
    // SAFETY: one thread; left below.
    unsafe { ex.wr_start() };
    for r in requests {
        (ex.wr_id, ex.wr_flags) = (r.wr_id, r.flags.bits());
        for op in ops_of(r) {
            call(send, &mut ex, &op, &mut keep);
        }
    }
    // SAFETY: this thread's session.
    unsafe { ex.wr_complete() }.map_err(|error| (error, None))
}

fn pattern(bytes: &[u8]) -> model::Pattern {
    model::Pattern(bytes.iter().copied().map(Some).collect())
}

/// Builder and setters of a WR.
fn ops_of(r: &Request) -> Vec<Op> {
    use model::Num;
    let n = |v: u32| Num(v.into());
    let builder = match &r.what {
        What::Send => Op::Send,
        What::SendImm(imm) => Op::SendImm { imm_data: n(*imm) },
        What::SendInv(key) => Op::SendInv { invalidate_rkey: n(*key) },
        What::Write(addr, rkey) => Op::RdmaWrite { rkey: n(*rkey), remote_addr: Num(*addr) },
        What::WriteImm(addr, rkey, imm) => {
            Op::RdmaWriteImm { rkey: n(*rkey), remote_addr: Num(*addr), imm_data: n(*imm) }
        }
        What::Read(addr, rkey) => Op::RdmaRead { rkey: n(*rkey), remote_addr: Num(*addr) },
        What::CmpSwp(addr, rkey, compare, swap) => Op::AtomicCmpSwp {
            rkey: n(*rkey),
            remote_addr: Num(*addr),
            compare: Num(*compare),
            swap: Num(*swap),
        },
        What::FetchAdd(addr, rkey, add) => {
            Op::AtomicFetchAdd { rkey: n(*rkey), remote_addr: Num(*addr), add: Num(*add) }
        }
        What::LocalInv(key) => Op::LocalInv { invalidate_rkey: n(*key) },
        What::BindMw(b) => Op::BindMw {
            mw: model::Mw { mw_type: b.mw_type, rkey: n(b.mw_rkey) },
            bind_rkey: n(b.rkey),
            bind_info: model::BindInfo {
                mr_lkey: n(b.mr_lkey),
                addr: Num(b.addr),
                length: Num(b.length),
                access: b.access,
            },
        },
        What::Tso(header, mss) => {
            Op::SendTso { mss: *mss, hdr_sz: header.len() as u16, hdr: pattern(header) }
        }
    };
    let mut ops = vec![builder];
    match &r.data {
        Data::None => {}
        Data::Sges(sges) => ops.push(Op::SetSgeList {
            sg_list: sges
                .iter()
                .map(|s| model::Sge { addr: Num(s.addr), length: s.length, lkey: n(s.lkey) })
                .collect(),
        }),
        Data::Inline(bufs) => {
            ops.push(Op::SetInlineDataList { bufs: bufs.iter().map(|b| pattern(b)).collect() })
        }
    }
    let ah = |av: &[u8]| model::Ah { av: pattern(av) };
    match &r.dest {
        Dest::Peer => {}
        Dest::Ud { av, qpn, qkey } => {
            ops.push(Op::SetUdAddr { remote_qpn: n(*qpn), remote_qkey: n(*qkey), ah: ah(av) });
        }
        Dest::Xrc(srqn) => ops.push(Op::SetXrcSrqn { remote_srqn: n(*srqn) }),
        Dest::Dc { av, dctn, key, stream: None } => {
            ops.push(Op::SetDcAddr { remote_dctn: n(*dctn), dc_key: Num(*key), ah: ah(av) });
        }
        Dest::Dc { av, dctn, key, stream: Some(stream) } => ops.push(Op::SetDcAddrStream {
            remote_dctn: n(*dctn),
            dc_key: Num(*key),
            stream_id: *stream,
            ah: ah(av),
        }),
    }
    ops
}

/// One call inside a session.
fn call(send: &Send, ex: &mut QpEx<'_>, op: &Op, keep: &mut Keep) {
    // SAFETY: inside a session of this thread; pointers are to locals and to what `keep` owns; memory as described above.
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one call of many is made")]
    unsafe {
        match op {
            Op::Send => ex.wr_send(),
            Op::SendImm { imm_data } => ex.wr_send_imm(ImmData::new(imm_data.u32())),
            Op::SendInv { invalidate_rkey } => ex.wr_send_inv(invalidate_rkey.u32()),
            Op::RdmaWrite { rkey, remote_addr } => ex.wr_rdma_write(rkey.u32(), remote_addr.0),
            Op::RdmaWriteImm { rkey, remote_addr, imm_data } => {
                ex.wr_rdma_write_imm(rkey.u32(), remote_addr.0, ImmData::new(imm_data.u32()));
            }
            Op::RdmaRead { rkey, remote_addr } => ex.wr_rdma_read(rkey.u32(), remote_addr.0),
            Op::AtomicCmpSwp { rkey, remote_addr, compare, swap } => {
                ex.wr_atomic_cmp_swp(rkey.u32(), remote_addr.0, compare.0, swap.0);
            }
            Op::AtomicFetchAdd { rkey, remote_addr, add } => {
                ex.wr_atomic_fetch_add(rkey.u32(), remote_addr.0, add.0);
            }
            Op::LocalInv { invalidate_rkey } => ex.wr_local_inv(invalidate_rkey.u32()),
            Op::BindMw { mw, bind_rkey, bind_info } => {
                let bind = keep.window(&request::bind(mw, *bind_rkey, bind_info));
                let info: IbvMwBindInfo = bind.bind_info;
                ex.wr_bind_mw(bind.mw, bind.rkey, &raw const info);
            }
            Op::SendTso { mss, hdr_sz, hdr } => {
                let header = hdr.bytes().expect("a header");
                assert_eq!(header.len(), usize::from(*hdr_sz));
                ex.wr_send_tso(header.as_ptr(), *hdr_sz, *mss);
            }
            Op::SetSge { sge } => ex.wr_set_sge(sge.lkey.u32(), sge.addr.0, sge.length),
            Op::SetSgeList { sg_list } => {
                let sges = request::sges(sg_list);
                ex.wr_set_sge_list(sges.len(), sges.as_ptr());
            }
            Op::SetInlineData { length, data } => {
                let data = data.bytes().expect("data");
                assert_eq!(data.len(), *length);
                ex.wr_set_inline_data(data.as_ptr(), data.len());
            }
            Op::SetInlineDataList { bufs } => {
                let bufs: Vec<_> = bufs.iter().map(|b| b.bytes().expect("data")).collect();
                let list: Vec<_> =
                    bufs.iter().map(|b| IbvDataBuf { addr: b.as_ptr(), length: b.len() }).collect();
                ex.wr_set_inline_data_list(list.len(), list.as_ptr());
            }
            Op::SetUdAddr { remote_qpn, remote_qkey, ah } => {
                let ah = keep.ah(&request::av(ah));
                ex.wr_set_ud_addr(ah, remote_qpn.u32(), remote_qkey.u32());
            }
            Op::SetXrcSrqn { remote_srqn } => ex.wr_set_xrc_srqn(remote_srqn.u32()),
            Op::SetDcAddr { remote_dctn, dc_key, ah: vector } => {
                let ah = ah(&request::av(vector));
                send.entered().wr_set_dc_addr(&ah, remote_dctn.u32(), dc_key.0);
            }
            Op::SetDcAddrStream { remote_dctn, dc_key, stream_id, ah: vector } => {
                let ah = ah(&request::av(vector));
                send.entered().wr_set_dc_addr_stream(&ah, remote_dctn.u32(), dc_key.0, *stream_id);
            }
            Op::Start | Op::Set { .. } | Op::Complete | Op::Abort => unreachable!("not inside a session"),
        }
    }
}

/// A typed batch.
pub(crate) fn batch(send: &mut Send, requests: &[Request]) -> Posted {
    let mut batch = send.get_mut().batch();
    let mut wrong = None;
    for r in requests {
        let wr = Wr { wr_id: r.wr_id, flags: r.flags };
        match &r.data {
            Data::None => to(&mut batch, wr, r, NoData),
            Data::Sges(sges) => {
                let sges: Result<Vec<_>, _> =
                    sges.iter().map(|s| WireSge::new(s.addr, s.length, s.lkey)).collect();
                match sges {
                    Ok(sges) => to(&mut batch, wr, r, &sges[..]),
                    Err(error) => wrong = wrong.or(Some(error)),
                }
            }
            Data::Inline(bufs) => {
                let bufs: Vec<&[u8]> = bufs.iter().map(|b| &b[..]).collect();
                to(&mut batch, wr, r, InlineList(&bufs));
            }
        }
    }
    match wrong {
        Some(error) => Err((error, None)),
        None => batch.complete().map_err(|error| (error, None)),
    }
}

type Batch<'q> = <SendQueue as uverbs_core::provider::SendQueue>::Batch<'q>;

fn to<P: Payload<WireSge>>(batch: &mut Batch<'_>, wr: Wr, r: &Request, data: P) {
    match &r.dest {
        Dest::Peer => what(batch, wr, Connected, r, data),
        Dest::Ud { av, qpn, qkey } => {
            let ah = ah(av);
            what(batch, wr, To { ah: &ah, remote_qpn: *qpn, remote_qkey: *qkey }, r, data);
        }
        Dest::Xrc(srqn) => what(batch, wr, RemoteSrq(*srqn), r, data),
        Dest::Dc { av, dctn, key, stream: _ } => {
            let ah = ah(av);
            what(batch, wr, op::DcTarget { ah: &ah, remote_dctn: *dctn, remote_dc_key: *key }, r, data);
        }
    }
}

fn what<A: Address<Ah>, P: Payload<WireSge>>(batch: &mut Batch<'_>, wr: Wr, to: A, r: &Request, data: P) {
    let remote = |addr: &u64, rkey: &u32| Remote::new(*addr, *rkey);
    match &r.what {
        What::Send => push(batch, wr, to, op::Send::new(), data),
        What::SendImm(imm) => push(batch, wr, to, op::SendImm::new(ImmData::new(*imm)), data),
        What::SendInv(key) => push(batch, wr, to, op::SendInv::new(*key), data),
        What::Write(addr, rkey) => push(batch, wr, to, op::Write::new(remote(addr, rkey)), data),
        What::WriteImm(addr, rkey, imm) => {
            push(batch, wr, to, op::WriteImm::new(remote(addr, rkey), ImmData::new(*imm)), data);
        }
        What::Read(addr, rkey) => push(batch, wr, to, op::Read::new(remote(addr, rkey)), data),
        What::CmpSwp(addr, rkey, compare, swap) => {
            push(batch, wr, to, op::CmpSwp::new(remote(addr, rkey), *compare, *swap), data);
        }
        What::FetchAdd(addr, rkey, add) => {
            push(batch, wr, to, op::FetchAdd::new(remote(addr, rkey), *add), data);
        }
        What::LocalInv(key) => push(batch, wr, to, op::LocalInv::new(*key), data),
        What::BindMw(bind) => {
            // SAFETY: no device reads the ring: nothing is bound.
            let bind = unsafe { op::BindMw::new(*bind) };
            push(batch, wr, to, bind, data)
        }
        What::Tso(header, mss) => {
            push(batch, wr, to, op::Tso::new(TsoArgs { header, mss: *mss }), data);
        }
    }
}

#[inline(never)]
fn push<A, O, P>(batch: &mut Batch<'_>, wr: Wr, to: A, op: O, data: P)
where
    A: Address<Ah>,
    O: Operation<Remote = Remote>,
    P: Payload<WireSge>,
{
    // SAFETY: memory as described above.
    unsafe { batch.push(wr, to, op, data) };
}

fn recv_nodes(wrs: &[model::RecvWr]) -> (Vec<RecvWr>, Vec<Vec<Sge>>) {
    let sges: Vec<_> = wrs.iter().map(|wr| request::sges(&wr.sg_list)).collect();
    let node = |(wr, sges): (&model::RecvWr, &Vec<Sge>)| RecvWr {
        sg_list: sges.as_ptr(),
        num_sge: sges.len() as i32,
        ..RecvWr::new(wr.wr_id.0)
    };
    let mut nodes: Vec<_> = wrs.iter().zip(&sges).map(node).collect();
    for i in 1..nodes.len() {
        nodes[i - 1].next = &raw const nodes[i];
    }
    (nodes, sges)
}

macro_rules! receive {
    ($list:ident, $batch:ident, $queue:ty) => {
        /// A list of receives.
        pub(crate) fn $list(queue: &$queue, wrs: &[model::RecvWr]) -> Posted {
            let (nodes, _sges) = recv_nodes(wrs);
            let list = if nodes.is_empty() { ptr::null() } else { nodes.as_ptr() };
            // SAFETY: a list of live nodes and entries; memory as described above; one thread.
            let result = unsafe { raw::post_recv(queue, list) };
            result.map_err(|bad| bad_index(&bad, &nodes))
        }

        /// A typed batch of receives.
        pub(crate) fn $batch(queue: &mut $queue, wrs: &[model::RecvWr]) -> Posted {
            let mut batch = queue.get_mut().batch();
            for wr in wrs {
                let sges: Result<Vec<_>, _> =
                    wr.sg_list.iter().map(|s| WireSge::new(s.addr.0, s.length, s.lkey.u32())).collect();
                let sges = sges.map_err(|error| (error, None))?;
                // SAFETY: memory as described above.
                unsafe { batch.push(wr.wr_id.0, &sges) };
            }
            batch.complete().map_err(|error| (error, None))
        }
    };
}

receive!(recv_list, recv_batch, Recv);
receive!(srq_list, srq_batch, SrqRecv);

/// `ibv_poll_cq`.
pub(crate) fn poll_cq(cq: &Cq, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
    // SAFETY: one thread.
    unsafe { raw::poll_cq(cq, wc) }
}
