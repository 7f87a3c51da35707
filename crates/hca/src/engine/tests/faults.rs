// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults of requests that were sent: which of both keys is reported, what the receive of a refused message gets, and
//! which messages are dropped (docs/src/reference/semantics.md, "Faults during execution").

use super::network::{av, dc};
use super::reliable::notices;
use super::rig::{BASE, End, PD, TestCq, TestSrq, on, pair, remote};
use super::windows::bind;
use crate::engine::mkey::{Kind, access};
use crate::engine::qp::{QpKind, State};
use crate::engine::{Notice, event};
use crate::fabric::Fabric;
use core::time::Duration;
use std::sync::Arc;
use uverbs_mlx5_hw::Be64;
use uverbs_mlx5_hw::cqe as hw;
use uverbs_mlx5_hw::wqe::{
    AtomicSeg, DataSeg, MLX5_OPCODE_ATOMIC_CS, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE_IMM,
    MLX5_OPCODE_SEND, MLX5_OPCODE_SEND_INVAL, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE as WRITE,
};
use zerocopy::IntoBytes;

const LOCAL_PROT: u8 = hw::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
const LOCAL_ACCESS: u8 = hw::MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR;
const REMOTE_ACCESS: u8 = hw::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
const FLUSH: u8 = hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR;

fn rc() -> (End, End) {
    pair(&Fabric::deterministic(1), QpKind::Rc, 100)
}

/// A request with an answer.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Read,
    FetchAdd,
    CmpSwap,
}

const ASKS: [Ask; 3] = [Ask::Read, Ask::FetchAdd, Ask::CmpSwap];

impl Ask {
    /// Posts it with the local key of `a`. The value is 2; the atomics make it 3.
    fn post(self, a: &mut End, raddr: u64, rkey: u32) {
        match self {
            Self::Read => a.read(0, 8, raddr, rkey),
            Self::FetchAdd => a.fetch_add(0, raddr, rkey, 1),
            Self::CmpSwap => a.cmp_swap(0, raddr, rkey, 2, 3),
        };
    }

    /// The value at the peer after its execution.
    fn left(self) -> u64 {
        if matches!(self, Self::Read) { 2 } else { 3 }
    }
}

/// The two ends with values that no request has changed.
fn asking() -> (End, End) {
    let (a, b) = rc();
    a.memory.set(0, &1_u64.to_ne_bytes());
    b.memory.set(0, &2_u64.to_ne_bytes());
    (a, b)
}

#[test]
fn local_keys_of_answers_are_checked_after_the_remote_ones() {
    for ask in ASKS {
        // (remote address, remote key good, status, value at the peer)
        for (raddr, rkey, expected, left) in [
            (BASE, true, LOCAL_PROT, ask.left()),
            (BASE, false, REMOTE_ACCESS, 2),
            (BASE - 8, true, REMOTE_ACCESS, 2),
            (BASE + 1, true, hw::MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, 2),
        ] {
            if matches!(ask, Ask::Read) && raddr == BASE + 1 {
                continue;
            }
            let (mut a, b) = asking();
            a.key += 1;
            ask.post(&mut a, raddr, if rkey { b.key } else { b.key + 1 });
            let wc = a.send_cq.poll().unwrap();
            assert_eq!(wc.syndrome, expected, "{ask:?} at {raddr:#x}, key {rkey}");
            assert_eq!(b.memory.get(0, 8), u64::to_ne_bytes(left), "{ask:?} at {raddr:#x}");
            assert_eq!(a.memory.get(0, 8), 1_u64.to_ne_bytes());
            assert_eq!(a.state(), State::Err);
            // The peer is not affected by an error of the requester's.
            assert_eq!(b.state(), if expected == LOCAL_PROT { State::Rts } else { State::Err });
        }
    }
}

#[test]
fn each_local_check_of_an_answer_is_made() {
    // The number of the check in the list below.
    for check in 0..5 {
        for ask in ASKS {
            let (mut a, b) = asking();
            let memory: Arc<dyn crate::memory::Memory> = a.memory.clone();
            let len = memory.len();
            let region = |iova| Kind::Region { memory: Arc::clone(&memory), iova };
            let all = super::rig::ALL;
            let key = on(&a.hca, |device, _| match check {
                // Without the right to write; of another domain; freed; a window that is not bound; out of range.
                0 => device.mkeys.add(0, PD, all & !access::LOCAL_WRITE, region(BASE)).unwrap(),
                1 => device.mkeys.add(0, PD + 1, all, region(BASE)).unwrap(),
                2 => device.mkeys.add(0, PD, all, Kind::Free).unwrap(),
                3 => {
                    let window = device.mkeys.window(false);
                    device.mkeys.add(0, PD, all, window).unwrap()
                }
                _ => device.mkeys.add(0, PD, all, region(BASE - len + 7)).unwrap(),
            });
            a.key = key;
            ask.post(&mut a, BASE, b.key);
            assert_eq!(a.send_cq.poll().unwrap().syndrome, LOCAL_PROT, "{ask:?}, check {check}");
            assert_eq!(b.memory.get(0, 8), ask.left().to_ne_bytes());
            assert_eq!(a.memory.get(0, 8), 1_u64.to_ne_bytes());
        }
    }
}

#[test]
fn a_read_into_several_entries_fails_if_the_last_is_invalid() {
    // Within a packet, at its end, and in a later packet.
    for len in [100, 256, 1000] {
        let (mut a, mut b) = rc();
        let data = b.fill(0, 2000, 3);
        let bad = DataSeg::new(50, a.key + 1, BASE + 5000);
        let segments = [remote(BASE, b.key).as_bytes(), a.sge(0, len).as_bytes(), bad.as_bytes()].concat();
        a.post(MLX5_OPCODE_RDMA_READ, 0, &[&segments]);
        assert_eq!(a.send_cq.poll().unwrap().syndrome, LOCAL_PROT, "{len}");
        assert_eq!(a.memory.get(0, len as usize), data[..len as usize]);
        assert_eq!(a.memory.get(len as usize, 8000), [0; 8000]);
        assert_eq!(b.state(), State::Rts);
        // An entry behind the 8 bytes of an atomic is not used.
        let (mut c, d) = asking();
        let atomic = AtomicSeg { swap_add: Be64::new(3), compare: Be64::new(2) };
        let segments = [remote(BASE, d.key).as_bytes(), atomic.as_bytes(), c.sge(0, 8).as_bytes()].concat();
        c.post(MLX5_OPCODE_ATOMIC_CS, 0, &[&segments, bad.as_bytes()]);
        assert_eq!(c.send_cq.poll().unwrap().syndrome, 0);
        assert_eq!(c.memory.get(0, 8), 2_u64.to_ne_bytes());
        assert!(b.recv_cq.poll().is_none());
    }
}

#[test]
fn data_in_a_completion_are_checked_against_the_local_key() {
    for ask in ASKS {
        for good in [true, false] {
            let (mut a, b) = asking();
            a.qp(|_, _, qp| qp.scatter_req = 32);
            a.key += u32::from(!good);
            ask.post(&mut a, BASE, b.key);
            let wc = a.send_cq.poll().unwrap();
            assert_eq!(wc.syndrome, if good { 0 } else { LOCAL_PROT }, "{ask:?}");
            assert_eq!(b.memory.get(0, 8), ask.left().to_ne_bytes());
        }
    }
}

#[test]
fn a_region_that_is_removed_before_the_answer_is_not_written() {
    for ask in ASKS {
        for scatter_req in [0, 32] {
            let fabric = Fabric::deterministic(1);
            let (mut a, b) = pair(&fabric, QpKind::Rc, 0);
            b.memory.set(0, &2_u64.to_ne_bytes());
            a.qp(|_, _, qp| qp.scatter_req = scatter_req);
            // The request was sent; the answer arrives after a repetition.
            fabric.loss(1.0);
            ask.post(&mut a, BASE, b.key);
            fabric.run_for(Duration::from_millis(1));
            assert!(a.send_cq.poll().is_none());
            fabric.loss(0.0);
            on(&a.hca, |device, _| device.mkeys.remove(a.key)).unwrap();
            fabric.run();
            assert_eq!(a.send_cq.poll().unwrap().syndrome, LOCAL_PROT, "{ask:?}");
            assert_eq!(a.memory.get(0, 8), [0; 8]);
            assert_eq!(b.memory.get(0, 8), ask.left().to_ne_bytes());
        }
    }
}

#[test]
fn requests_before_one_with_an_invalid_local_key_complete() {
    let (mut a, b) = asking();
    let good = a.key;
    for _ in 0..3 {
        let sge = a.sge(100, 8);
        a.write_wqe(MLX5_OPCODE_RDMA_READ, true, 0, &[remote(BASE, b.key).as_bytes(), sge.as_bytes()]);
    }
    a.key += 1;
    let sge = a.sge(0, 8);
    a.write_wqe(MLX5_OPCODE_RDMA_READ, false, 0, &[remote(BASE, b.key).as_bytes(), sge.as_bytes()]);
    a.key = good;
    a.write(0, 8, BASE + 8, b.key);
    let got = [(); 5].map(|()| a.send_cq.poll().unwrap().syndrome);
    // The write was sent before the answer arrived, and is flushed nevertheless.
    assert_eq!(got, [0, 0, 0, LOCAL_PROT, FLUSH]);
    assert_eq!(a.memory.get(100, 8), 2_u64.to_ne_bytes());
}

/// Posts a write with immediate data of `len` bytes to an invalid key.
fn refused_write(a: &mut End, len: u32, prefix: &[u8], rkey: u32) -> u8 {
    let segments = [remote(BASE, rkey).as_bytes().to_vec(), a.sge(0, len).as_bytes().to_vec()].concat();
    a.post(MLX5_OPCODE_RDMA_WRITE_IMM, 7, &[prefix, &segments]);
    a.hca.fabric().run();
    a.send_cq.poll().unwrap().syndrome
}

#[test]
fn the_receive_of_a_refused_write_with_immediate_data_has_an_access_error() {
    // A packet with immediate data consumes a receive. The first packet of several has none.
    for (len, first) in [(8, LOCAL_ACCESS), (256, LOCAL_ACCESS), (257, FLUSH), (1000, FLUSH)] {
        let (mut a, mut b) = rc();
        b.recv(0, 10);
        b.recv(0, 10);
        let rkey = b.key + 1;
        let got =
            notices(&b.hca.clone(), || assert_eq!(refused_write(&mut a, len, &[], rkey), REMOTE_ACCESS));
        assert_eq!(got, [Notice::Qp { qpn: b.qpn, event: event::QP_ACCESS_ERR }]);
        let wcs = [b.recv_cq.poll().unwrap(), b.recv_cq.poll().unwrap()];
        assert_eq!(
            wcs.map(|wc| (wc.kind, wc.counter)),
            [(hw::MLX5_CQE_RESP_ERR, 0), (hw::MLX5_CQE_RESP_ERR, 1)]
        );
        assert_eq!(wcs.map(|wc| wc.syndrome), [first, FLUSH], "{len} bytes");
        assert_eq!((a.state(), b.state()), (State::Err, State::Err));
        assert_eq!(b.memory.get(0, 1000), [0; 1000]);
    }
    // Without a receive, only the sender is told.
    let (mut a, mut b) = rc();
    let rkey = b.key + 1;
    assert_eq!(refused_write(&mut a, 8, &[], rkey), REMOTE_ACCESS);
    assert!(b.recv_cq.poll().is_none());
    // A write of 0 bytes uses no key.
    let (mut a, mut b) = rc();
    b.recv(0, 10);
    a.write_imm(0, 0, BASE, b.key + 1, 5);
    assert_eq!((a.send_cq.poll().unwrap().syndrome, b.recv_cq.poll().unwrap().syndrome), (0, 0));
}

#[test]
fn a_key_that_is_removed_within_a_write_fails_its_receive() {
    // Of the message, only a part arrives.
    let half = |seed| {
        let fabric = Fabric::deterministic(seed);
        fabric.loss(0.5);
        let (mut a, mut b) = pair(&fabric, QpKind::Rc, 0);
        b.recv(0, 10);
        a.write_imm(0, 500, BASE, b.key, 7);
        fabric.run_for(Duration::from_millis(1));
        fabric.loss(0.0);
        b.qp(|_, _, qp| qp.resp.writing.is_some()).then_some((fabric, a, b))
    };
    let (fabric, mut a, mut b) = (0..1000).find_map(half).unwrap();
    on(&b.hca, |device, _| device.mkeys.remove(b.key)).unwrap();
    fabric.run();
    assert_eq!(a.send_cq.poll().unwrap().syndrome, REMOTE_ACCESS);
    assert_eq!(b.recv_cq.poll().unwrap().syndrome, LOCAL_ACCESS);
}

#[test]
fn receives_of_shared_queues_have_the_access_error_too() {
    // A QP with an SRQ: its next receives stay for others.
    let (mut a, mut b) = rc();
    let mut srq = TestSrq::new(&b.hca, 0, None);
    b.qp(|_, _, qp| (qp.rq, qp.srqn) = (None, Some(srq.srqn)));
    srq.recv(b.sge(0, 10), u32::MAX);
    srq.recv(b.sge(0, 10), u32::MAX);
    let rkey = b.key + 1;
    assert_eq!(refused_write(&mut a, 8, &[], rkey), REMOTE_ACCESS);
    assert_eq!(b.recv_cq.poll().unwrap().syndrome, LOCAL_ACCESS);
    assert!(b.recv_cq.poll().is_none());
    // XRC: the receive is that of the SRQ that the request names.
    let (mut a, b, mut srq, mut cq) = xrc();
    srq.recv(b.sge(0, 10), u32::MAX);
    let rkey = b.key + 1;
    assert_eq!(refused_write(&mut a, 8, &named(&srq), rkey), REMOTE_ACCESS);
    assert_eq!(cq.poll().unwrap().syndrome, LOCAL_ACCESS);
    // DC: the target serves other initiators.
    let (mut a, mut b, address) = dc(&Fabric::deterministic(1));
    b.recv(0, 10);
    let rkey = b.key + 1;
    assert_eq!(refused_write(&mut a, 8, address.as_bytes(), rkey), REMOTE_ACCESS);
    assert_eq!(b.recv_cq.poll().unwrap().syndrome, LOCAL_ACCESS);
    assert_eq!(b.state(), State::Rts);
}

/// A connected XRC pair, an SRQ of the target's domain, and its CQ.
fn xrc() -> (End, End, TestSrq, TestCq) {
    let (a, b) = pair(&Fabric::deterministic(1), QpKind::XrcSend, 0);
    b.qp(|_, _, qp| (qp.kind, qp.xrcd, qp.rq, qp.sq) = (QpKind::XrcRecv, 3, None, None));
    let cq = on(&b.hca, |device, _| TestCq::new(device));
    let srq = TestSrq::new(&b.hca, 0, Some((3, cq.cqn)));
    (a, b, srq, cq)
}

/// The segment of a WQE that names an SRQ.
fn named(srq: &TestSrq) -> Vec<u8> {
    [srq.srqn.to_be_bytes().to_vec(), vec![0xcc; 12]].concat()
}

/// Posts a send with invalidation; the completion of the sender within this time.
fn send_inval(a: &mut End, rkey: u32, prefix: &[u8], time: Duration) -> Option<u8> {
    let sge = a.sge(0, 16);
    a.post(MLX5_OPCODE_SEND_INVAL, rkey, &[prefix, sge.as_bytes()]);
    a.hca.fabric().run_for(time);
    a.send_cq.poll().map(|wc| wc.syndrome)
}

#[test]
fn a_failed_invalidation_has_no_answer() {
    for retries in [true, false] {
        // An unknown key, a region, an unbound window, a bound window of type 1, another QP's window.
        for (what, two) in [(0, true), (1, true), (2, true), (3, false), (3, true)] {
            let (mut a, mut b) = rc();
            let mut other = End::new(&b.hca, QpKind::Rc);
            other.connect(0, 0, 0);
            if !retries {
                a.attr(|attr| attr.timeout = 0);
            }
            let window = on(&b.hca, |device, _| {
                let window = device.mkeys.window(two);
                device.mkeys.add(0, PD, 0, window).unwrap()
            });
            let rkey = match what {
                0 => window + 1,
                1 => b.key,
                2 => window,
                _ => bind(if two { &mut other } else { &mut b }, window, two, 1, 0, 100, WRITE).0,
            };
            b.recv(1000, 16);
            b.recv(2000, 16);
            let data = a.fill(0, 16, 5);
            let got = notices(&b.hca.clone(), || {
                assert_eq!(send_inval(&mut a, rkey, &[], Duration::from_millis(60)), None, "{what} {two}");
            });
            assert_eq!(got, []);
            let wcs = [b.recv_cq.poll().unwrap(), b.recv_cq.poll().unwrap()];
            let expected = [hw::MLX5_CQE_SYNDROME_MW_BIND_ERR, FLUSH];
            assert_eq!(wcs.map(|wc| (wc.counter, wc.syndrome)), [(0, expected[0]), (1, expected[1])]);
            assert_eq!(b.memory.get(1000, 16), data);
            assert_eq!((a.state(), b.state()), (State::Rts, State::Err));
            // Later receives are flushed, and the sender retries until its retries are exceeded, if it has a timeout.
            b.recv(0, 16);
            a.hca.fabric().run_for(Duration::from_secs(10));
            assert_eq!(b.recv_cq.poll().unwrap().syndrome, FLUSH);
            let retry = hw::MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR;
            assert_eq!(a.send_cq.poll().map(|wc| wc.syndrome), retries.then_some(retry));
        }
    }
}

#[test]
fn a_failed_invalidation_of_an_xrc_or_dc_message_consumes_one_receive() {
    let (mut a, b, mut srq, mut cq) = xrc();
    srq.recv(b.sge(0, 16), u32::MAX);
    srq.recv(b.sge(0, 16), u32::MAX);
    let retry = Some(hw::MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
    assert_eq!(send_inval(&mut a, 0x77, &named(&srq), Duration::from_secs(10)), retry);
    assert_eq!(cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_MW_BIND_ERR);
    assert!(cq.poll().is_none());
    assert_eq!(b.state(), State::Err);
    // The repeated requests of a DC initiator are dropped, until it begins a new session.
    let fabric = Fabric::deterministic(1);
    let (mut a, mut b, address) = dc(&fabric);
    b.recv(0, 16);
    b.recv(0, 16);
    assert_eq!(send_inval(&mut a, 0x77, address.as_bytes(), Duration::from_secs(10)), retry);
    assert_eq!(b.recv_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_MW_BIND_ERR);
    assert!(b.recv_cq.poll().is_none());
    assert_eq!(b.state(), State::Rts);
    a.set_state(State::Reset);
    a.posted = 0;
    a.connect(0, 2, 0);
    let sge = a.sge(0, 16);
    a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
    fabric.run();
    assert_eq!((a.send_cq.poll().unwrap().syndrome, b.recv_cq.poll().unwrap().syndrome), (0, 0));
}

#[test]
fn a_datagram_that_is_longer_than_the_receive_is_dropped() {
    for shared in [false, true] {
        let (mut a, mut b) = pair(&Fabric::deterministic(1), QpKind::Ud, 0);
        let mut srq = TestSrq::new(&b.hca, 2, None);
        if shared {
            b.qp(|_, _, qp| (qp.rq, qp.srqn) = (None, Some(srq.srqn)));
        }
        let address = av(b.qpn, 2, 0x1234);
        let send = |a: &mut End, len: u32| {
            let sge = a.sge(0, len);
            a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
            assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        };
        let data = a.fill(0, 200, 9);
        for (i, room) in [41, 139].into_iter().enumerate() {
            if shared {
                srq.recv(b.sge(1000 * i as u64, room), u32::MAX);
            } else {
                b.recv(1000 * i as u64, room);
            }
        }
        let got = notices(&b.hca.clone(), || {
            for len in [2, 100, 200] {
                send(&mut a, len);
                assert!(b.recv_cq.poll().is_none(), "{len} bytes");
            }
        });
        // No event of the QP; the limit of the SRQ counts receives that were taken.
        assert_eq!(got, []);
        assert_eq!(b.memory.get(0, 2000), [0; 2000]);
        assert_eq!(b.state(), State::Rts);
        // Both receives are used, in order, by datagrams that fit.
        for (i, len) in [(0, 1), (1, 99)] {
            send(&mut a, len);
            let wc = b.recv_cq.poll().unwrap();
            assert_eq!((wc.syndrome, wc.counter, wc.bytes), (0, i, 40 + len));
            assert_eq!(b.memory.get(1000 * usize::from(i) + 40, len as usize), data[..len as usize]);
        }
    }
}

#[test]
fn a_message_of_an_unreliable_connection_that_is_too_long_is_dropped() {
    // One packet; several, of which the first fits or does not.
    for len in [101, 300, 1000] {
        for immediate in [false, true] {
            let (mut a, mut b) = pair(&Fabric::deterministic(1), QpKind::Uc, 7);
            b.recv(0, if len == 1000 { 600 } else { 100 });
            b.recv(4000, 100);
            let data = a.fill(0, 2000, 3);
            a.send(0, len);
            assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
            assert!(b.recv_cq.poll().is_none(), "{len} bytes");
            assert_eq!(b.memory.get(600, 3000), [0; 3000]);
            // The next message uses the receive, and the one behind it the next receive.
            for (i, at) in [(0, 0), (1, 4000)] {
                if immediate && i == 0 {
                    a.write_imm(10, 40, BASE + 5000, b.key, 1);
                } else {
                    a.send(10, 40);
                }
                assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
                let wc = b.recv_cq.poll().unwrap();
                assert_eq!((wc.syndrome, wc.counter, wc.bytes), (0, i, 40));
                let at = if immediate && i == 0 { 5000 } else { at };
                assert_eq!(b.memory.get(at, 40), data[10..50]);
            }
            assert_eq!((a.state(), b.state()), (State::Rts, State::Rts));
        }
    }
    // The kept receive is flushed in the error state.
    let (mut a, mut b) = pair(&Fabric::deterministic(1), QpKind::Uc, 7);
    b.recv(0, 100);
    b.recv(0, 100);
    a.send(0, 101);
    b.set_state(State::Err);
    let wcs = [b.recv_cq.poll().unwrap(), b.recv_cq.poll().unwrap()];
    assert_eq!(wcs.map(|wc| (wc.counter, wc.syndrome)), [(0, FLUSH), (1, FLUSH)]);
}

#[test]
fn a_refused_write_of_an_unreliable_connection_takes_no_receive() {
    let (mut a, mut b) = pair(&Fabric::deterministic(1), QpKind::Uc, 7);
    b.recv(0, 100);
    let rkey = b.key + 1;
    assert_eq!(refused_write(&mut a, 8, &[], rkey), 0);
    assert!(b.recv_cq.poll().is_none());
    a.write_imm(0, 8, BASE, b.key, 5);
    let wc = b.recv_cq.poll().unwrap();
    assert_eq!((wc.syndrome, wc.imm, wc.counter), (0, 5, 0));
    assert_eq!(b.state(), State::Rts);
}
