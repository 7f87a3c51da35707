// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random WRs through all three interfaces: decoding the slot gives the request.

use super::{config, sge};
use crate::Ah;
use crate::testing::{DecodedSend, KernelSide, Part, ah, decode_recv, decode_send, recv_queue, send_queue};
use proptest::prelude::*;
use uverbs_core::attr::QpType;
use uverbs_core::provider::op::{FlushArgs, MwBind};
use uverbs_core::provider::{InlineList, RecvQueue as _, SendBatch as _, SendQueue as _, WrBuilder as _};
use uverbs_core::wr::{ImmData, RawAh, SendFlags, Sge};
use uverbs_testkit::{Data, List, Op, Remote, To, begin, handle, has_data, push, recv_nodes};

const SLOTS: u32 = 8;

/// The data of a request, with the buffers that [`Data`] borrows.
#[derive(Clone, Debug)]
enum Owned {
    Sges(Vec<Sge>),
    Inline(Vec<Vec<u8>>),
}

#[derive(Clone, Debug)]
struct Request {
    wr_id: u64,
    flags: SendFlags,
    op: Op<'static>,
    data: Owned,
    /// AH number, byte of its address, QP number, queue key.
    to: Option<(u32, u8, u32, u32)>,
}

fn remote() -> impl Strategy<Value = Remote> {
    any::<(u64, u32)>().prop_map(|(addr, rkey)| Remote { addr, rkey })
}

fn aligned() -> impl Strategy<Value = Remote> {
    remote().prop_map(|r| Remote { addr: r.addr & !7, ..r })
}

fn connected_op() -> impl Strategy<Value = Op<'static>> {
    prop_oneof![
        Just(Op::Send),
        any::<u32>().prop_map(Op::SendImm),
        any::<u32>().prop_map(Op::SendInv),
        remote().prop_map(Op::Write),
        (remote(), any::<u32>()).prop_map(|(r, i)| Op::WriteImm(r, i)),
        remote().prop_map(Op::Read),
        (aligned(), any::<(u64, u64)>()).prop_map(|(r, (c, s))| Op::CmpSwp(r, c, s)),
        (aligned(), any::<u64>()).prop_map(|(r, v)| Op::FetchAdd(r, v)),
        any::<u32>().prop_map(Op::LocalInv),
        any::<(u32, u32, u32, u64, u64, u32)>().prop_map(|(mw_rkey, rkey, mr_lkey, addr, length, access)| {
            Op::BindMw(MwBind { mw_rkey, mw_type: 2, rkey, mr_lkey, addr, length, access })
        }),
        (remote(), any::<(u32, u8, u8)>())
            .prop_map(|(r, (length, placement, level))| Op::Flush(r, FlushArgs { length, placement, level })),
        (aligned(), any::<[u8; 8]>()).prop_map(|(r, d)| Op::AtomicWrite(r, d)),
    ]
}

fn data(inline: bool, atomic: bool) -> BoxedStrategy<Owned> {
    let length = if atomic { 8_u32..1000 } else { 0..0x1fff_ffff };
    let sge = (any::<u64>(), length, any::<u32>()).prop_map(|(a, l, k)| sge(a, l, k));
    let sges = prop::collection::vec(sge, usize::from(atomic)..=4).prop_map(Owned::Sges);
    let bufs =
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=16), 0..=4).prop_map(Owned::Inline);
    if inline { prop_oneof![sges, bufs].boxed() } else { sges.boxed() }
}

fn with_data(op: Op<'static>) -> impl Strategy<Value = (Op<'static>, Owned)> {
    let data = match op {
        _ if !has_data(op) => Just(Owned::Sges(Vec::new())).boxed(),
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
        .prop_map(|(wr_id, flags, (op, data), to)| Request {
            wr_id,
            flags: SendFlags::from_bits_retain(flags),
            op,
            data,
            to,
        })
        .boxed()
}

/// What the posters borrow beside the request.
struct Parts<'a> {
    request: &'a Request,
    ah: Option<RawAh<Ah>>,
    bufs: Vec<&'a [u8]>,
}

impl Parts<'_> {
    /// The request as the posters take it.
    fn posted(&self) -> uverbs_testkit::Request<'_, RawAh<Ah>> {
        let Request { wr_id, flags, op, ref data, to } = *self.request;
        let data = match data {
            Owned::Sges(sges) if sges.is_empty() => Data::None,
            Owned::Sges(sges) => Data::Sges(sges),
            Owned::Inline(_) => Data::InlineList(&self.bufs),
        };
        let to = self.ah.as_ref().zip(to).map(|(ah, (_, _, qpn, qkey))| To { ah, qpn, qkey });
        uverbs_testkit::Request::new(wr_id, op).flags(flags).data(data).to(to)
    }
}

impl Request {
    fn parts(&self) -> Parts<'_> {
        let bufs = match &self.data {
            Owned::Sges(_) => Vec::new(),
            Owned::Inline(bufs) => bufs.iter().map(Vec::as_slice).collect(),
        };
        Parts { request: self, ah: self.to.map(|(num, byte, ..)| handle(ah(num, byte))), bufs }
    }

    /// The expected contents of the WQE.
    fn expected(&self) -> DecodedSend {
        let rdma = |r: Remote| (Part::Rdma { remote_addr: r.addr, rkey: r.rkey }, r.addr);
        let atomic = |r: Remote, compare_add, swap| {
            (Part::Atomic { remote_addr: r.addr, compare_add, swap, rkey: r.rkey }, r.addr)
        };
        let imm = |imm| ImmData::new(imm).to_be();
        let (opcode, ex, (part, iova)) = match self.op {
            Op::Write(r) => (0, 0, rdma(r)),
            Op::WriteImm(r, i) => (1, imm(i), rdma(r)),
            Op::Send => (2, 0, (Part::None, 0)),
            Op::SendImm(i) => (3, imm(i), (Part::None, 0)),
            Op::Read(r) => (4, 0, rdma(r)),
            Op::CmpSwp(r, c, s) => (5, 0, atomic(r, c, s)),
            Op::FetchAdd(r, v) => (6, 0, atomic(r, v, 0)),
            Op::LocalInv(k) => (7, k, (Part::None, 0)),
            Op::BindMw(b) => {
                let MwBind { mw_rkey, rkey, mr_lkey, addr, length, access, .. } = b;
                (8, 0, (Part::Mw { addr, length, mr_lkey, mw_rkey, rkey, access }, 0))
            }
            Op::SendInv(k) => (9, k, (Part::None, 0)),
            Op::Flush(r, f) => {
                let FlushArgs { length, placement, level } = f;
                let Remote { addr: remote_addr, rkey } = r;
                (14, 0, (Part::Flush { remote_addr, length, rkey, kind: placement, level }, remote_addr))
            }
            Op::AtomicWrite(r, _) => (15, 0, rdma(r)),
            Op::Tso(_) => unreachable!("not an operation of rxe"),
        };
        let part = match self.to {
            Some((ah_num, byte, remote_qpn, remote_qkey)) => {
                Part::Ud { remote_qpn, remote_qkey, pkey_index: 0, ah_num, av: vec![byte; 88] }
            }
            None => part,
        };
        let (mut sges, mut inline, mut flags) = (Vec::new(), Vec::new(), self.flags.bits());
        let length;
        match (&self.op, &self.data) {
            (Op::AtomicWrite(_, bytes), _) => {
                inline = bytes.to_vec();
                length = 8;
            }
            (Op::Flush(_, f), _) => length = f.length,
            (_, Owned::Sges(list)) => {
                sges = list.iter().filter(|s| s.length != 0).map(|s| (s.addr, s.length, s.lkey)).collect();
                length = list.iter().map(|s| s.length).sum();
            }
            (_, Owned::Inline(bufs)) => {
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
}

type Queue = crate::SendQueue<crate::testing::FakeBell>;

fn by_batch(q: &mut Queue, requests: &[Request]) {
    let mut batch = q.batch();
    for r in requests {
        // SAFETY: the simulated kernel does not access the memory that is named, and binds nothing.
        unsafe { push(&mut batch, &r.parts().posted()) }.unwrap();
    }
    batch.complete().unwrap();
}

fn by_builder(q: &mut Queue, requests: &[Request]) {
    q.wr_start();
    for r in requests {
        // SAFETY: the simulated kernel binds nothing.
        unsafe { begin(q, r.wr_id, r.flags, r.op) };
        if let Some((num, byte, qpn, qkey)) = r.to {
            q.wr_set_ud_addr(&ah(num, byte), qpn, qkey);
        }
        match &r.data {
            _ if !has_data(r.op) => {}
            // SAFETY: the simulated kernel does not access the memory that is named.
            Owned::Sges(sges) => unsafe { q.wr_set_sges(sges) },
            Owned::Inline(bufs) => {
                let bufs: Vec<&[u8]> = bufs.iter().map(Vec::as_slice).collect();
                q.wr_set_inline(InlineList(&bufs));
            }
        }
    }
    q.wr_complete().unwrap();
}

fn by_list(q: &mut Queue, requests: &[Request]) {
    let parts: Vec<_> = requests.iter().map(Request::parts).collect();
    let posted: Vec<_> = parts.iter().map(Parts::posted).collect();
    let mut list = List::new(&posted);
    for (i, request) in requests.iter().enumerate() {
        if matches!(request.op, Op::FetchAdd(..)) {
            // Fetch-and-add does not use `swap`.
            list.change(i, |wr| wr.wr.atomic.swap = !0);
        }
    }
    if !requests.is_empty() {
        // SAFETY: the list is well formed, and what it points to exists; the simulated kernel does not access the entries'
        // memory.
        unsafe { q.post_send(list.first()) }.unwrap();
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
            let recvs: Vec<_> = requests.iter().zip(&sges).map(|((id, _), sges)| (*id, &sges[..])).collect();
            let nodes = recv_nodes(&recvs);
            // SAFETY: the list is well formed; the simulated kernel does not access the entries' memory.
            unsafe { q.post_recv(nodes.as_ptr()) }.unwrap();
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
