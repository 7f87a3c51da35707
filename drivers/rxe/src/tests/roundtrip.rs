// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random WRs through all interfaces: decoding the slot gives the request.

use super::{config, sge};
use crate::Ah;
use crate::testing::{DecodedSend, Part, ah, decode_recv, decode_send, recv_queue, send_queue};
use proptest::prelude::*;
use uverbs_core::attr::QpType;
use uverbs_core::provider::RecvQueue as _;
use uverbs_core::provider::op::{FlushArgs, MwBind};
use uverbs_core::provider::{Op, RemoteAddr};
use uverbs_core::wr::{ImmData, RawAh, SendFlags, Sge};
use uverbs_testkit::{Face, OwnedData, OwnedDest, OwnedRequest, handle, post, recv_nodes};
use zerocopy::IntoBytes as _;

const SLOTS: u32 = 8;
/// The QP's own queue key.
const OWN_QKEY: u32 = 0x1111_1111;

type Request = OwnedRequest<'static, RawAh<Ah>>;

fn remote() -> impl Strategy<Value = RemoteAddr> {
    any::<(u64, u32)>().prop_map(|(addr, rkey)| RemoteAddr { addr, rkey })
}

fn aligned() -> impl Strategy<Value = RemoteAddr> {
    remote().prop_map(|r| RemoteAddr { addr: r.addr & !7, ..r })
}

/// The operations of UC.
fn unreliable_op() -> impl Strategy<Value = Op<'static>> {
    prop_oneof![
        Just(Op::Send),
        any::<u32>().prop_map(Op::SendImm),
        any::<u32>().prop_map(Op::SendInv),
        remote().prop_map(Op::Write),
        (remote(), any::<u32>()).prop_map(|(r, i)| Op::WriteImm(r, i)),
        any::<u32>().prop_map(Op::LocalInv),
        any::<(u32, u32, u32, u64, u64, u32)>().prop_map(|(mw_rkey, rkey, mr_lkey, addr, length, access)| {
            Op::BindMw(MwBind { mw_rkey, mw_type: 2, rkey, mr_lkey, addr, length, access })
        }),
    ]
}

/// The operations of RC.
fn reliable_op() -> impl Strategy<Value = Op<'static>> {
    prop_oneof![
        7 => unreliable_op(),
        1 => remote().prop_map(Op::Read),
        1 => (aligned(), any::<(u64, u64)>()).prop_map(|(r, (c, s))| Op::CmpSwp(r, c, s)),
        1 => (aligned(), any::<u64>()).prop_map(|(r, v)| Op::FetchAdd(r, v)),
        1 => (remote(), any::<(u32, u8, u8)>())
            .prop_map(|(r, (length, placement, level))| Op::Flush(r, FlushArgs { length, placement, level })),
        1 => (aligned(), any::<[u8; 8]>()).prop_map(|(r, d)| Op::AtomicWrite(r, d)),
    ]
}

fn data(inline: bool, atomic: bool) -> BoxedStrategy<OwnedData> {
    let length = if atomic { 8_u32..1000 } else { 0..0x1fff_ffff };
    let sge = (any::<u64>(), length, any::<u32>()).prop_map(|(a, l, k)| sge(a, l, k));
    let sges = prop::collection::vec(sge, usize::from(atomic)..=4).prop_map(OwnedData::Sges);
    let bufs =
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=16), 0..=4).prop_map(OwnedData::Inline);
    if inline { prop_oneof![sges, bufs].boxed() } else { sges.boxed() }
}

fn with_data(op: Op<'static>) -> impl Strategy<Value = (Op<'static>, OwnedData)> {
    let data = match op {
        _ if !op.has_data() => Just(OwnedData::None).boxed(),
        Op::Read(..) => data(false, false),
        Op::CmpSwp(..) | Op::FetchAdd(..) => data(false, true),
        _ => data(true, false),
    };
    (Just(op), data)
}

fn request(qp_type: QpType) -> BoxedStrategy<Request> {
    let op = match qp_type {
        QpType::Ud => prop_oneof![Just(Op::Send), any::<u32>().prop_map(Op::SendImm)].boxed(),
        QpType::Uc => unreliable_op().boxed(),
        _ => reliable_op().boxed(),
    };
    let dest =
        any::<(u32, u8, u32, u32)>().prop_map(move |(num, byte, remote_qpn, remote_qkey)| match qp_type {
            QpType::Ud => OwnedDest::Ud { ah: handle(ah(num, byte)), remote_qpn, remote_qkey },
            _ => OwnedDest::Peer,
        });
    (any::<u64>(), 0_u32..8, op.prop_flat_map(with_data), dest)
        .prop_map(|(wr_id, flags, (op, data), to)| Request {
            wr_id,
            flags: SendFlags::from_bits_retain(flags),
            op,
            data,
            to,
        })
        .boxed()
}

fn requests(qp_type: QpType) -> impl Strategy<Value = Vec<Request>> {
    prop::collection::vec(request(qp_type), 0..SLOTS as usize)
}

/// The expected contents of the WQE.
fn expected(request: &Request) -> DecodedSend {
    let rdma = |r: RemoteAddr| (Part::Rdma { remote_addr: r.addr, rkey: r.rkey }, r.addr);
    let atomic = |r: RemoteAddr, compare_add, swap| {
        (Part::Atomic { remote_addr: r.addr, compare_add, swap, rkey: r.rkey }, r.addr)
    };
    let imm = |imm| ImmData::new(imm).to_be();
    let (opcode, ex, (part, iova)) = match request.op {
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
            let RemoteAddr { addr: remote_addr, rkey } = r;
            (14, 0, (Part::Flush { remote_addr, length, rkey, kind: placement, level }, remote_addr))
        }
        Op::AtomicWrite(r, _) => (15, 0, rdma(r)),
        Op::Tso(_) => unreachable!("not an operation of rxe"),
    };
    let part = match &request.to {
        OwnedDest::Ud { ah, remote_qpn: qpn, remote_qkey: qkey } => Part::Ud {
            remote_qpn: *qpn,
            // With the top bit the QP's own key is sent.
            remote_qkey: if qkey >> 31 == 1 { OWN_QKEY } else { *qkey },
            pkey_index: 0,
            ah_num: ah.driver.num,
            av: ah.driver.av.as_bytes().to_vec(),
        },
        _ => part,
    };
    let (mut sges, mut inline, mut flags) = (Vec::new(), Vec::new(), request.flags.bits());
    let length;
    match (&request.op, &request.data) {
        (Op::AtomicWrite(_, bytes), _) => {
            inline = bytes.to_vec();
            length = 8;
        }
        (Op::Flush(_, f), _) => length = f.length,
        (_, OwnedData::None) => length = 0,
        (_, OwnedData::Sges(list)) => {
            sges = list.iter().filter(|s| s.length != 0).map(|s| (s.addr, s.length, s.lkey)).collect();
            length = list.iter().map(|s| s.length).sum();
        }
        (_, OwnedData::Inline(bufs)) => {
            inline = bufs.concat();
            flags |= 8;
            length = inline.len() as u32;
        }
    }
    DecodedSend {
        wr_id: request.wr_id,
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

fn run(qp_type: QpType, requests: &[Request], dirt: u8) {
    let datagram = qp_type == QpType::Ud;
    let (mut q, kernel, bell, shared) = send_queue(SLOTS, &config(qp_type)).unwrap();
    shared.own().set(OWN_QKEY);
    for face in Face::ALL {
        let can_express =
            |op: Op<'_>| face != Face::List || !matches!(op, Op::Flush(..) | Op::AtomicWrite(..));
        let expressible: Vec<_> = requests.iter().filter(|r| can_express(r.op)).collect();
        if expressible.is_empty() && face == Face::List {
            // NULL is not a list.
            continue;
        }
        kernel.fill(if face == Face::Builder { !dirt } else { dirt });
        let rings = bell.rings();
        let posted = OwnedRequest::with_wrs(requests, |lent| {
            let lent: Vec<_> = lent.iter().filter(|r| can_express(r.op)).copied().collect();
            // SAFETY: the simulated kernel does not access the memory that is named, and binds nothing.
            unsafe { post(&mut q, face, &lent) }
        });
        posted.unwrap();
        for r in &expressible {
            let bytes = kernel.consume().expect("published");
            assert_eq!(decode_send(&bytes, datagram), expected(r), "{face:?}: {r:?}");
        }
        assert!(kernel.consume().is_none(), "{face:?}: published too much");
        let n = expressible.len() as u32;
        assert_eq!(bell.rings() - rings, if face == Face::Single { n } else { n.min(1) }, "doorbells");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn wrs_of_rc_decode_to_the_request(requests in requests(QpType::Rc), dirt: u8) {
        run(QpType::Rc, &requests, dirt);
    }

    #[test]
    fn wrs_of_uc_decode_to_the_request(requests in requests(QpType::Uc), dirt: u8) {
        run(QpType::Uc, &requests, dirt);
    }

    #[test]
    fn wrs_of_ud_decode_to_the_request(requests in requests(QpType::Ud), dirt: u8) {
        run(QpType::Ud, &requests, dirt);
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
