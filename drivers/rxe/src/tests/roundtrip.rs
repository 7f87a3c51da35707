// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random WRs through all three interfaces: decoding the slot gives the request.

use super::*;
use crate::Ah;
use crate::testing::{DecodedSend, KernelSide, Part, ah, decode_recv, decode_send, recv_queue, send_queue};
use core::ptr::null;
use proptest::prelude::*;
use uverbs_core::provider::op::{FlushArgs, MwBind};
use uverbs_core::provider::{
    Connected, InlineList, NoData, Operation, RecvQueue as _, SendBatch as _, SendQueue as _, To, Wr,
    WrBuilder,
};
use uverbs_core::wr::{
    IbvAh, IbvMr, IbvMw, IbvMwBindInfo, ImmData, RawAh, RecvWr, SendFlags, SendWr, WrAtomic, WrBindMw,
    WrOpcode, WrRdma, WrTail, WrUd, WrUnion,
};

const SLOTS: u32 = 8;

#[derive(Clone, Debug)]
enum Op {
    Send,
    SendImm(u32),
    SendInv(u32),
    Write(u64, u32),
    WriteImm(u64, u32, u32),
    Read(u64, u32),
    CmpSwp(u64, u32, u64, u64),
    FetchAdd(u64, u32, u64),
    LocalInv(u32),
    BindMw(MwBind),
    Flush(u64, u32, FlushArgs),
    AtomicWrite(u64, u32, [u8; 8]),
}

#[derive(Clone, Debug)]
enum Data {
    Sges(Vec<Sge>),
    Inline(Vec<Vec<u8>>),
}

#[derive(Clone, Debug)]
struct Request {
    wr_id: u64,
    flags: u32,
    op: Op,
    data: Data,
    /// AH number, byte of its address, QP number, queue key.
    to: Option<(u32, u8, u32, u32)>,
}

fn aligned() -> impl Strategy<Value = u64> {
    any::<u64>().prop_map(|a| a & !7)
}

fn connected_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        Just(Op::Send),
        any::<u32>().prop_map(Op::SendImm),
        any::<u32>().prop_map(Op::SendInv),
        any::<(u64, u32)>().prop_map(|(a, k)| Op::Write(a, k)),
        any::<(u64, u32, u32)>().prop_map(|(a, k, i)| Op::WriteImm(a, k, i)),
        any::<(u64, u32)>().prop_map(|(a, k)| Op::Read(a, k)),
        (aligned(), any::<(u32, u64, u64)>()).prop_map(|(a, (k, c, s))| Op::CmpSwp(a, k, c, s)),
        (aligned(), any::<(u32, u64)>()).prop_map(|(a, (k, v))| Op::FetchAdd(a, k, v)),
        any::<u32>().prop_map(Op::LocalInv),
        any::<(u32, u32, u32, u64, u64, u32)>().prop_map(|(mw_rkey, rkey, mr_lkey, addr, length, access)| {
            Op::BindMw(MwBind { mw_rkey, mw_type: 2, rkey, mr_lkey, addr, length, access })
        }),
        any::<(u64, u32, u32, u8, u8)>().prop_map(|(a, k, length, placement, level)| {
            Op::Flush(a, k, FlushArgs { length, placement, level })
        }),
        (aligned(), any::<(u32, [u8; 8])>()).prop_map(|(a, (k, d))| Op::AtomicWrite(a, k, d)),
    ]
}

fn data(inline: bool, atomic: bool) -> BoxedStrategy<Data> {
    let length = if atomic { 8_u32..1000 } else { 0..0x1fff_ffff };
    let sge = (any::<u64>(), length, any::<u32>()).prop_map(|(a, l, k)| sge(a, l, k));
    let sges = prop::collection::vec(sge, usize::from(atomic)..=4).prop_map(Data::Sges);
    let bufs =
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=16), 0..=4).prop_map(Data::Inline);
    if inline { prop_oneof![sges, bufs].boxed() } else { sges.boxed() }
}

fn with_data(op: Op) -> impl Strategy<Value = (Op, Data)> {
    let none = Just(Data::Sges(Vec::new())).boxed();
    let data = match op {
        Op::LocalInv(_) | Op::BindMw(_) | Op::Flush(..) | Op::AtomicWrite(..) => none,
        Op::Read(..) => data(false, false),
        Op::CmpSwp(..) | Op::FetchAdd(..) => data(false, true),
        _ => data(true, false),
    };
    (Just(op), data)
}

fn request(datagram: bool) -> BoxedStrategy<Request> {
    let op = if datagram {
        prop_oneof![Just(Op::Send), any::<u32>().prop_map(Op::SendImm)].boxed()
    } else {
        connected_op().boxed()
    };
    let to = any::<(u32, u8, u32, u32)>()
        .prop_map(move |(n, b, q, k)| datagram.then_some((n, b, q, k & !(1 << 31))));
    (any::<u64>(), 0_u32..8, op.prop_flat_map(with_data), to)
        .prop_map(|(wr_id, flags, (op, data), to)| Request { wr_id, flags, op, data, to })
        .boxed()
}

impl Request {
    /// The expected contents of the WQE.
    fn expected(&self) -> DecodedSend {
        let rdma = |remote_addr, rkey| (Part::Rdma { remote_addr, rkey }, remote_addr);
        let (opcode, ex, (part, iova)) = match &self.op {
            Op::Write(a, k) => (0, 0, rdma(*a, *k)),
            Op::WriteImm(a, k, imm) => (1, *imm, rdma(*a, *k)),
            Op::Send => (2, 0, (Part::None, 0)),
            Op::SendImm(imm) => (3, *imm, (Part::None, 0)),
            Op::Read(a, k) => (4, 0, rdma(*a, *k)),
            Op::CmpSwp(a, k, c, s) => {
                (5, 0, (Part::Atomic { remote_addr: *a, compare_add: *c, swap: *s, rkey: *k }, *a))
            }
            Op::FetchAdd(a, k, v) => {
                (6, 0, (Part::Atomic { remote_addr: *a, compare_add: *v, swap: 0, rkey: *k }, *a))
            }
            Op::LocalInv(k) => (7, *k, (Part::None, 0)),
            Op::BindMw(b) => {
                let MwBind { mw_rkey, rkey, mr_lkey, addr, length, access, .. } = *b;
                (8, 0, (Part::Mw { addr, length, mr_lkey, mw_rkey, rkey, access }, 0))
            }
            Op::SendInv(k) => (9, *k, (Part::None, 0)),
            Op::Flush(a, k, f) => {
                let FlushArgs { length, placement, level } = *f;
                (14, 0, (Part::Flush { remote_addr: *a, length, rkey: *k, kind: placement, level }, *a))
            }
            Op::AtomicWrite(a, k, _) => (15, 0, rdma(*a, *k)),
        };
        let part = match self.to {
            Some((ah_num, byte, remote_qpn, remote_qkey)) => {
                Part::Ud { remote_qpn, remote_qkey, pkey_index: 0, ah_num, av: vec![byte; 88] }
            }
            None => part,
        };
        let (mut sges, mut inline, mut flags) = (Vec::new(), Vec::new(), self.flags);
        let length;
        match (&self.op, &self.data) {
            (Op::AtomicWrite(_, _, bytes), _) => {
                inline = bytes.to_vec();
                length = 8;
            }
            (Op::Flush(_, _, f), _) => length = f.length,
            (_, Data::Sges(list)) => {
                sges = list.iter().filter(|s| s.length != 0).map(|s| (s.addr, s.length, s.lkey)).collect();
                length = list.iter().map(|s| s.length).sum();
            }
            (_, Data::Inline(bufs)) => {
                inline = bufs.concat();
                flags |= 8;
                length = inline.len() as u32;
            }
        }
        DecodedSend {
            wr_id: self.wr_id,
            opcode,
            send_flags: flags,
            imm_or_key: ex,
            part,
            iova,
            length,
            resid: length,
            sges,
            inline,
            kernel_state_is_zero: true,
        }
    }

    fn wr(&self) -> Wr {
        Wr { wr_id: self.wr_id, flags: SendFlags::from_bits_retain(self.flags) }
    }
}

/// Calls a visitor with the request's operation as its type.
macro_rules! with_op {
    ($request:expr, |$op:ident| $body:expr) => {{
        let at = |addr, rkey| RemoteAddr { addr, rkey };
        match $request.op.clone() {
            Op::Send => {
                let $op = Send::new();
                $body
            }
            Op::SendImm(i) => {
                let $op = SendImm::new(ImmData::from_be(i));
                $body
            }
            Op::SendInv(k) => {
                let $op = SendInv::new(k);
                $body
            }
            Op::Write(a, k) => {
                let $op = Write::new(at(a, k));
                $body
            }
            Op::WriteImm(a, k, i) => {
                let $op = WriteImm::new(at(a, k), ImmData::from_be(i));
                $body
            }
            Op::Read(a, k) => {
                let $op = Read::new(at(a, k));
                $body
            }
            Op::CmpSwp(a, k, c, s) => {
                let $op = CmpSwp::new(at(a, k), c, s);
                $body
            }
            Op::FetchAdd(a, k, v) => {
                let $op = FetchAdd::new(at(a, k), v);
                $body
            }
            Op::LocalInv(k) => {
                let $op = LocalInv::new(k);
                $body
            }
            Op::BindMw(b) => {
                // SAFETY: the ring is in ordinary memory, so nothing is bound.
                let $op = unsafe { BindMw::new(b) };
                $body
            }
            Op::Flush(a, k, f) => {
                let $op = Flush::new(at(a, k), f);
                $body
            }
            Op::AtomicWrite(a, k, d) => {
                let $op = AtomicWrite::new(at(a, k), d);
                $body
            }
        }
    }};
}

type Queue = crate::SendQueue<crate::testing::FakeBell>;

fn by_batch(q: &mut Queue, requests: &[Request]) {
    fn push<O: Operation<Remote = RemoteAddr>>(
        batch: &mut crate::send::Batch<'_, crate::testing::FakeBell>,
        r: &Request,
        op: O,
    ) {
        let handle = r.to.map(|(num, byte, ..)| ah(num, byte));
        // SAFETY: the simulated kernel does not access the memory that is named.
        unsafe {
            match (&handle, r.to, &r.data) {
                (Some(ah), Some((_, _, remote_qpn, remote_qkey)), data) => {
                    let to = To { ah, remote_qpn, remote_qkey };
                    match data {
                        Data::Sges(sges) => batch.push(r.wr(), to, op, &sges[..]),
                        Data::Inline(bufs) => {
                            let bufs: Vec<&[u8]> = bufs.iter().map(Vec::as_slice).collect();
                            batch.push(r.wr(), to, op, InlineList(&bufs));
                        }
                    }
                }
                (_, _, Data::Sges(sges)) if sges.is_empty() => batch.push(r.wr(), Connected, op, NoData),
                (_, _, Data::Sges(sges)) => batch.push(r.wr(), Connected, op, &sges[..]),
                (_, _, Data::Inline(bufs)) => {
                    let bufs: Vec<&[u8]> = bufs.iter().map(Vec::as_slice).collect();
                    batch.push(r.wr(), Connected, op, InlineList(&bufs));
                }
            }
        }
    }
    let mut batch = q.batch();
    for r in requests {
        with_op!(r, |op| push(&mut batch, r, op));
    }
    batch.complete().unwrap();
}

fn by_builder(q: &mut Queue, requests: &[Request]) {
    fn begin<O: Operation<Remote = RemoteAddr>>(q: &mut Queue, r: &Request, op: O) -> bool {
        q.wr_begin(r.wr(), op);
        O::HAS_DATA
    }
    q.wr_start();
    for r in requests {
        let has_data = with_op!(r, |op| begin(q, r, op));
        if let Some((num, byte, qpn, qkey)) = r.to {
            q.wr_set_ud_addr(&ah(num, byte), qpn, qkey);
        }
        match &r.data {
            _ if !has_data => {}
            // SAFETY: the simulated kernel does not access the memory that is named.
            Data::Sges(sges) => unsafe { q.wr_set_sges(sges) },
            Data::Inline(bufs) => {
                let bufs: Vec<&[u8]> = bufs.iter().map(Vec::as_slice).collect();
                q.wr_set_inline(InlineList(&bufs));
            }
        }
    }
    q.wr_complete().unwrap();
}

/// The memory that the nodes of a C list point to.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "lists point at the values, which must not move when the vector grows")]
struct Arena {
    sges: Vec<Vec<Sge>>,
    handles: Vec<Box<RawAh<Ah>>>,
    mrs: Vec<Box<IbvMr>>,
    mws: Vec<Box<IbvMw>>,
}

impl Arena {
    fn node(&mut self, r: &Request) -> SendWr {
        let opcode = WrOpcode(r.expected().opcode);
        let mut wr = SendWr::new(r.wr_id, opcode);
        wr.send_flags = r.flags;
        let sges: Vec<Sge> = match &r.data {
            Data::Sges(sges) => sges.clone(),
            Data::Inline(bufs) => {
                wr.send_flags |= 8;
                // The keys of inline entries are not used.
                bufs.iter()
                    .map(|b| sge(b.as_ptr().expose_provenance() as u64, b.len() as u32, 0xdead))
                    .collect()
            }
        };
        wr.num_sge = sges.len() as i32;
        wr.sg_list = if sges.is_empty() { null() } else { sges.as_ptr() };
        self.sges.push(sges);
        match &r.op {
            Op::SendImm(x) | Op::SendInv(x) | Op::LocalInv(x) => wr.imm_data_or_invalidate_rkey = *x,
            Op::Write(remote_addr, rkey) | Op::Read(remote_addr, rkey) => {
                wr.wr = WrUnion { rdma: WrRdma { remote_addr: *remote_addr, rkey: *rkey } };
            }
            Op::WriteImm(remote_addr, rkey, imm) => {
                wr.wr = WrUnion { rdma: WrRdma { remote_addr: *remote_addr, rkey: *rkey } };
                wr.imm_data_or_invalidate_rkey = *imm;
            }
            Op::CmpSwp(remote_addr, rkey, compare_add, swap) => {
                wr.wr = WrUnion {
                    atomic: WrAtomic {
                        remote_addr: *remote_addr,
                        compare_add: *compare_add,
                        swap: *swap,
                        rkey: *rkey,
                    },
                };
            }
            Op::FetchAdd(remote_addr, rkey, add) => {
                // Fetch-and-add does not use `swap`.
                wr.wr = WrUnion {
                    atomic: WrAtomic { remote_addr: *remote_addr, compare_add: *add, swap: !0, rkey: *rkey },
                };
            }
            Op::BindMw(b) => {
                let (context, pd) = (core::ptr::null_mut(), core::ptr::null_mut());
                self.mrs.push(Box::new(IbvMr {
                    context,
                    pd,
                    addr: core::ptr::null_mut(),
                    length: 0,
                    handle: 0,
                    lkey: b.mr_lkey,
                    rkey: 0,
                }));
                self.mws.push(Box::new(IbvMw {
                    context,
                    pd,
                    rkey: b.mw_rkey,
                    handle: 0,
                    mw_type: b.mw_type,
                }));
                wr.tail = WrTail {
                    bind_mw: WrBindMw {
                        mw: &raw const **self.mws.last().unwrap(),
                        rkey: b.rkey,
                        bind_info: IbvMwBindInfo {
                            mr: &raw const **self.mrs.last().unwrap(),
                            addr: b.addr,
                            length: b.length,
                            mw_access_flags: b.access,
                        },
                    },
                };
            }
            Op::Send => {}
            Op::Flush(..) | Op::AtomicWrite(..) => unreachable!("not in lists"),
        }
        if let Some((num, byte, remote_qpn, remote_qkey)) = r.to {
            let base = IbvAh { context: core::ptr::null_mut(), pd: core::ptr::null_mut(), handle: 0 };
            self.handles.push(Box::new(RawAh { base, driver: ah(num, byte) }));
            let handle = &raw const **self.handles.last().unwrap();
            wr.wr = WrUnion { ud: WrUd { ah: handle.cast(), remote_qpn, remote_qkey } };
        }
        wr
    }
}

fn by_list(q: &mut Queue, requests: &[Request]) {
    let mut arena = Arena::default();
    let mut nodes: Vec<SendWr> = requests.iter().map(|r| arena.node(r)).collect();
    for i in (1..nodes.len()).rev() {
        let next = &raw const nodes[i];
        nodes[i - 1].next = next;
    }
    if let Some(first) = nodes.first() {
        // SAFETY: the list is well formed, and what it points to exists; the simulated kernel does not access the entries'
        // memory.
        unsafe { q.post_send(first) }.unwrap();
    }
}

fn check(kernel: &KernelSide, requests: &[Request], face: &str) {
    for r in requests {
        let bytes = kernel.consume().expect("published");
        assert_eq!(decode_send(&bytes, r.to.is_some()), r.expected(), "{face}: {r:?}");
    }
    assert!(kernel.consume().is_none(), "{face}: published too much");
}

fn run(datagram: bool, requests: &[Request], dirt: u8) {
    let qp_type = if datagram { QpType::Ud } else { QpType::Rc };
    let (mut q, kernel, bell, _) = send_queue(SLOTS, &config(qp_type)).unwrap();
    kernel.fill(dirt);
    by_batch(&mut q, requests);
    check(&kernel, requests, "batch");
    kernel.fill(!dirt);
    by_builder(&mut q, requests);
    check(&kernel, requests, "builder");
    kernel.fill(dirt);
    let listed: Vec<_> =
        requests.iter().filter(|r| !matches!(r.op, Op::Flush(..) | Op::AtomicWrite(..))).cloned().collect();
    by_list(&mut q, &listed);
    check(&kernel, &listed, "list");
    let rings = 2 * u32::from(!requests.is_empty()) + u32::from(!listed.is_empty());
    assert_eq!(bell.rings(), rings, "one doorbell per batch that is not empty");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn wrs_of_connected_qps_decode_to_the_request(requests in prop::collection::vec(request(false), 0..SLOTS as usize), dirt: u8) {
        run(false, &requests, dirt);
    }

    #[test]
    fn wrs_of_datagram_qps_decode_to_the_request(requests in prop::collection::vec(request(true), 0..SLOTS as usize), dirt: u8) {
        run(true, &requests, dirt);
    }

    #[test]
    fn receives_decode_to_the_request(
        requests in prop::collection::vec(
            (any::<u64>(), prop::collection::vec((any::<u64>(), 0_u32..0x1fff_ffff, any::<u32>()), 0..=4)),
            1..SLOTS as usize,
        ),
        dirt: u8,
        by_list: bool,
    ) {
        let (mut q, kernel, bell, _) = recv_queue(SLOTS, 4).unwrap();
        kernel.fill(dirt);
        let sges: Vec<Vec<Sge>> =
            requests.iter().map(|(_, s)| s.iter().map(|s| sge(s.0, s.1, s.2)).collect()).collect();
        if by_list {
            let mut nodes: Vec<RecvWr> = requests.iter().zip(&sges).map(|((id, _), sges)| {
                RecvWr { sg_list: sges.as_ptr(), num_sge: sges.len() as i32, ..RecvWr::new(*id) }
            }).collect();
            for i in (1..nodes.len()).rev() {
                let next = &raw const nodes[i];
                nodes[i - 1].next = next;
            }
            // SAFETY: the list is well formed; the simulated kernel does not access the entries' memory.
            unsafe { q.post_recv(&raw const nodes[0]) }.unwrap();
        } else {
            for ((id, _), sges) in requests.iter().zip(&sges) {
                // SAFETY: the simulated kernel does not access the entries' memory.
                unsafe { q.post(*id, sges) }.unwrap();
            }
        }
        for (id, sges) in &requests {
            let got = decode_recv(&kernel.consume().unwrap());
            let want: Vec<_> = sges.iter().filter(|s| s.1 != 0).copied().collect();
            prop_assert_eq!(got.wr_id, *id);
            prop_assert_eq!((got.length, got.resid), (want.iter().map(|s| s.1).sum(), got.length));
            prop_assert_eq!(got.sges, want);
            prop_assert!(got.kernel_state_is_zero);
        }
        prop_assert!(kernel.consume().is_none());
        prop_assert_eq!(bell.flushes(), 0);
    }
}
