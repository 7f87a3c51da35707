// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reliable connections: every operation, its errors, its completions.

use super::rig::{BASE, End, SRQ_WQES, TestSrq, on, pair};
use crate::engine::packet::PSN;
use crate::engine::qp::{QpKind, State};
use crate::engine::{Notice, event};
use crate::fabric::{Fabric, Hca};
use uverbs_mlx5_hw::wqe::{MLX5_OPCODE_NOP, MLX5_OPCODE_SEND, MLX5_OPCODE_SEND_IMM};
use uverbs_mlx5_hw::{Be32, cqe as hw};
use zerocopy::IntoBytes;

fn rc() -> (End, End) {
    pair(&Fabric::deterministic(1), QpKind::Rc, 100)
}

/// The recorded notices of the device to its front.
pub(super) fn notices(hca: &Hca, f: impl FnOnce()) -> Vec<Notice> {
    hca.record_notices();
    f();
    hca.recorded_notices()
}

fn clean(ends: &[&End]) {
    for end in ends {
        assert_eq!(end.hca.violations(), []);
    }
}

#[test]
fn a_send_completes_its_receive() {
    let (mut a, mut b) = rc();
    let data = a.fill(64, 1000, 3);
    b.recv(4096, 2000);
    let index = a.send(64, 1000);
    let wc = a.send_cq.poll().unwrap();
    assert_eq!((wc.kind, wc.opcode, wc.counter, wc.uidx), (hw::MLX5_CQE_REQ, MLX5_OPCODE_SEND, index, 0x77));
    let wc = b.recv_cq.poll().unwrap();
    assert_eq!((wc.kind, wc.counter, wc.bytes, wc.qpn), (hw::MLX5_CQE_RESP_SEND, 0, 1000, b.qpn));
    assert_eq!(b.memory.get(4096, 1000), data);
    assert_eq!(b.memory.get(4096 + 1000, 1000), [0; 1000]);
    assert!(a.send_cq.poll().is_none() && b.recv_cq.poll().is_none());
    clean(&[&a, &b]);
}

#[test]
fn a_ping_pong_wraps_the_rings_and_the_sequence_numbers() {
    let (mut a, mut b) = pair(&Fabric::deterministic(1), QpKind::Rc, PSN - 5);
    for i in 0..500_u32 {
        for (from, to) in [(true, false), (false, true)] {
            let (x, y) = if from && !to { (&mut a, &mut b) } else { (&mut b, &mut a) };
            let data = x.fill(0, 600, i as u8);
            y.recv(8192, 600);
            x.send_imm(0, 600, i);
            assert_eq!(x.send_cq.poll().map(|wc| (wc.syndrome, wc.opcode)), Some((0, MLX5_OPCODE_SEND_IMM)));
            let wc = y.recv_cq.poll().unwrap();
            assert_eq!((wc.kind, wc.imm, wc.bytes), (hw::MLX5_CQE_RESP_SEND_IMM, i, 600));
            assert_eq!(y.memory.get(8192, 600), data);
        }
    }
    clean(&[&a, &b]);
}

#[test]
fn writes_and_reads_move_their_bytes() {
    let (mut a, mut b) = rc();
    for len in [0, 1, 255, 256, 257, 3000] {
        let data = a.fill(0, len as usize, len as u8);
        a.write(0, len, BASE + 10_000, b.key);
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        assert_eq!(b.memory.get(10_000, len as usize), data);
        assert_eq!(b.memory.get(10_000 + len as usize, 16), [0; 16]);
        a.read(20_000, len, BASE + 10_000, b.key);
        let wc = a.send_cq.poll().unwrap();
        assert_eq!((wc.syndrome, wc.bytes), (0, len));
        assert_eq!(a.memory.get(20_000, len as usize), data);
    }
    b.recv(0, 0);
    a.write_imm(0, 700, BASE + 30_000, b.key, 0xabc);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    let wc = b.recv_cq.poll().unwrap();
    assert_eq!((wc.kind, wc.imm, wc.bytes), (hw::MLX5_CQE_RESP_WR_IMM, 0xabc, 700));
    clean(&[&a, &b]);
}

#[test]
fn atomics_are_executed_and_return_the_old_value() {
    let (mut a, b) = rc();
    b.memory.set(800, &41_u64.to_ne_bytes());
    a.fetch_add(16, BASE + 800, b.key, 1);
    a.cmp_swap(24, BASE + 800, b.key, 42, 7);
    a.cmp_swap(32, BASE + 800, b.key, 42, 9);
    for _ in 0..3 {
        let wc = a.send_cq.poll().unwrap();
        assert_eq!((wc.syndrome, wc.bytes), (0, 8));
    }
    let old: Vec<u64> =
        a.memory.get(16, 24).chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
    assert_eq!(old, [41, 42, 7]);
    assert_eq!(b.memory.get(800, 8), 7_u64.to_ne_bytes());
    // A misaligned one is refused.
    a.fetch_add(16, BASE + 804, b.key, 1);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
}

#[test]
fn inline_data_and_empty_messages_arrive() {
    let (mut a, mut b) = rc();
    b.recv(0, 100);
    b.recv(100, 100);
    let inline = [&(20_u32 | 1 << 31).to_be_bytes()[..], &[9; 20], &[0xee; 8]].concat();
    a.post(MLX5_OPCODE_SEND, 0, &[&inline]);
    a.post(MLX5_OPCODE_SEND, 0, &[]);
    a.post(MLX5_OPCODE_NOP, 0, &[]);
    assert_eq!(b.memory.get(0, 21), [&[9; 20][..], &[0]].concat());
    assert_eq!([b.recv_cq.poll().unwrap().bytes, b.recv_cq.poll().unwrap().bytes], [20, 0]);
    assert_eq!([(); 3].map(|()| a.send_cq.poll().unwrap().syndrome), [0; 3]);
    clean(&[&a, &b]);
}

#[test]
fn only_signaled_sends_complete_and_solicited_is_reported() {
    let (mut a, mut b) = rc();
    for i in 0..4 {
        b.recv(0, 64);
        let sge = a.sge(0, 8);
        let (ce, se) = (if i == 3 { 8 } else { 0 }, if i % 2 == 1 { 2 } else { 0 });
        let index = a.write_ctrl(MLX5_OPCODE_SEND, ce | se, 0, &[sge.as_bytes()]);
        a.ring(index);
        assert_eq!(b.recv_cq.poll().unwrap().solicited, i % 2 == 1);
    }
    assert_eq!(a.send_cq.poll().unwrap().counter, 3);
    assert!(a.send_cq.poll().is_none());
}

/// DPDK's send queues have such WQEs (`ce` of the control segment is 1: CQE_ON_FIRST_CQE_ERROR).
#[test]
fn only_the_first_failure_completes_a_send_that_asks_for_it() {
    const FIRST_ERROR: u8 = 1 << 2;
    let (mut a, mut b) = rc();
    b.recv(0, 64);
    let good = a.sge(0, 8);
    let index = a.write_ctrl(MLX5_OPCODE_SEND, FIRST_ERROR, 0, &[good.as_bytes()]);
    a.ring(index);
    assert!(b.recv_cq.poll().is_some());
    assert!(a.send_cq.poll().is_none());
    // The first one fails; of those behind it only the one that has a completion for each failure is reported.
    let mut bad = a.sge(0, 8);
    bad.lkey = Be32::new(0x7fff_ff00);
    let failed = a.write_ctrl(MLX5_OPCODE_SEND, FIRST_ERROR, 0, &[bad.as_bytes()]);
    a.write_ctrl(MLX5_OPCODE_SEND, FIRST_ERROR, 0, &[good.as_bytes()]);
    let any = a.write_ctrl(MLX5_OPCODE_SEND, 0, 0, &[good.as_bytes()]);
    let last = a.write_ctrl(MLX5_OPCODE_SEND, FIRST_ERROR, 0, &[good.as_bytes()]);
    a.ring(last);
    let wcs = [a.send_cq.poll().unwrap(), a.send_cq.poll().unwrap()];
    assert_eq!(
        wcs.map(|wc| (wc.counter, wc.syndrome)),
        [(failed, hw::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR), (any, hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR)]
    );
    assert!(a.send_cq.poll().is_none());
}

#[test]
fn a_message_without_a_receive_waits_for_it() {
    let (mut a, mut b) = rc();
    let data = a.fill(0, 500, 1);
    a.send(0, 500);
    assert!(a.send_cq.poll().is_none());
    // With no retry limit: time passes, and the send does not fail.
    a.hca.run();
    assert!(a.send_cq.poll().is_none());
    b.recv(0, 500);
    a.hca.run();
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    assert_eq!(b.memory.get(0, 500), data);
    clean(&[&a, &b]);
}

#[test]
fn receiver_not_ready_fails_after_the_set_retries() {
    let (mut a, b) = rc();
    a.qp(|_, _, qp| {
        qp.attr.rnr_retry = 2;
        qp.req = crate::engine::requester::Requester::new(100, &qp.attr);
    });
    a.send(0, 10);
    a.send(0, 10);
    a.hca.run();
    let wcs = [a.send_cq.poll().unwrap(), a.send_cq.poll().unwrap()];
    assert_eq!(wcs.map(|wc| wc.kind), [hw::MLX5_CQE_REQ_ERR; 2]);
    let expected = [hw::MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR];
    assert_eq!(wcs.map(|wc| wc.syndrome), expected);
    assert_eq!((a.state(), b.state()), (State::Err, State::Rts));
}

#[test]
fn an_unreachable_peer_ends_in_retries_exceeded() {
    let (mut a, b) = rc();
    b.set_state(State::Reset);
    a.write(0, 10, BASE, b.key);
    a.hca.run();
    assert_eq!(a.send_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
    // Eight times 4.096 us * 2^14.
    assert!(a.hca.fabric().now().as_millis() >= 8 * 67);
}

#[test]
fn access_is_checked_at_both_ends() {
    // (local key good, remote key good, remote address good)
    for (lkey, rkey, addr, expected) in [
        (false, true, true, hw::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR),
        (true, false, true, hw::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR),
        (true, true, false, hw::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR),
    ] {
        let (mut a, b) = rc();
        if !lkey {
            a.key += 1;
        }
        let raddr = if addr { BASE } else { BASE - 1 };
        a.write(0, 100, raddr, if rkey { b.key } else { b.key + 1 });
        assert_eq!(a.send_cq.poll().unwrap().syndrome, expected);
        assert_eq!(a.state(), State::Err);
        assert_eq!(
            b.state(),
            if expected == hw::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR { State::Rts } else { State::Err }
        );
        assert_eq!(b.memory.get(0, 200), [0; 200]);
    }
}

#[test]
fn a_refused_access_is_an_event_at_the_peer() {
    let (mut a, b) = rc();
    let got = notices(&b.hca.clone(), || {
        a.read(0, 10, BASE, b.key + 1);
    });
    assert_eq!(got, [Notice::Qp { qpn: b.qpn, event: event::QP_ACCESS_ERR }]);
}

#[test]
fn access_that_the_qp_does_not_allow_is_an_invalid_request() {
    let (mut a, b) = rc();
    b.attr(|attr| attr.access = 0x2);
    a.write(0, 10, BASE, b.key);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    a.read(0, 10, BASE, b.key);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
}

#[test]
fn a_message_that_is_too_long_fails_at_both_ends() {
    let (mut a, mut b) = rc();
    b.recv(0, 300);
    b.recv(0, 300);
    a.send(0, 301);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
    let wcs = [b.recv_cq.poll().unwrap(), b.recv_cq.poll().unwrap()];
    assert_eq!(wcs.map(|wc| wc.kind), [hw::MLX5_CQE_RESP_ERR; 2]);
    let expected = [hw::MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR];
    assert_eq!(wcs.map(|wc| wc.syndrome), expected);
}

#[test]
fn the_error_state_flushes_both_queues_and_later_posts() {
    let (mut a, mut b) = rc();
    b.recv(0, 10);
    a.send(0, 10);
    a.recv(0, 10);
    a.set_state(State::Err);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    assert_eq!(a.recv_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    let index = a.send(0, 10);
    let wc = a.send_cq.poll().unwrap();
    assert_eq!((wc.counter, wc.syndrome), (index, hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR));
    // A post of a receive rings no doorbell; the device finds the receive at its next check.
    a.recv(0, 10);
    assert!(a.recv_cq.poll().is_none());
    a.hca.run();
    assert_eq!(a.recv_cq.poll().unwrap().counter, 1);
}

#[test]
fn reads_are_limited_and_a_fence_waits_for_them() {
    let fabric = Fabric::deterministic(1);
    fabric.delay(core::time::Duration::from_micros(5));
    let (mut a, b) = pair(&fabric, QpKind::Rc, 0);
    b.fill(0, 4000, 9);
    for i in 0..8 {
        let sge = a.sge(i * 500, 500);
        let raddr = super::rig::remote(BASE + i * 500, b.key);
        a.write_wqe(0x10, true, 0, &[raddr.as_bytes(), sge.as_bytes()]);
    }
    // With a fence, because it overwrites the data of the reads.
    let sge = a.sge(10_000, 4000);
    let raddr = super::rig::remote(BASE, b.key);
    let index = a.write_ctrl(0x08, 8 | 0x80, 0, &[raddr.as_bytes(), sge.as_bytes()]);
    a.ring(index);
    a.hca.run();
    assert_eq!([(); 9].map(|()| a.send_cq.poll().unwrap().syndrome), [0; 9]);
    assert_eq!(a.memory.get(0, 4000), b.fill(0, 4000, 9));
    clean(&[&a, &b]);
}

#[test]
fn an_srq_serves_its_qps_and_reports_its_limit() {
    let (mut a, mut b) = rc();
    let mut srq = TestSrq::new(&b.hca, 2, None);
    b.qp(|_, _, qp| {
        qp.rq = None;
        qp.srqn = Some(srq.srqn);
    });
    for i in 0..3 {
        srq.recv(b.sge(i * 100, 100), u32::MAX);
    }
    let hca = b.hca.clone();
    let got = notices(&hca, || {
        for i in 0..3_u8 {
            let data = a.fill(0, 50, i);
            a.send(0, 50);
            let wc = b.recv_cq.poll().unwrap();
            // Reached through the QP: the entry has the QP's user index.
            assert_eq!((wc.counter, wc.uidx, wc.bytes), (u16::from(i), 0x77, 50));
            assert_eq!(b.memory.get(usize::from(i) * 100, 50), data);
        }
    });
    assert_eq!(got, [Notice::Srq { srqn: srq.srqn, event: event::SRQ_LIMIT_REACHED }]);
    // A completion has the index of the WQE, which wraps around at the end of the ring.
    for i in 0..7 {
        srq.recv(b.sge(i * 100, 100), u32::MAX);
        a.send(0, 10);
        assert_eq!(b.recv_cq.poll().unwrap().counter, ((3 + i) % 8) as u16);
    }
    clean(&[&a, &b]);
}

/// Only the low 16 bits of the doorbell record are used. The upper half is 0, as with libmlx5, or continues the count.
#[test]
fn an_srq_counts_its_receives_in_16_bits() {
    for mask in [0xffff, u32::MAX] {
        let (mut a, mut b) = rc();
        let mut srq = TestSrq::new(&b.hca, 0, None);
        b.qp(|_, _, qp| {
            qp.rq = None;
            qp.srqn = Some(srq.srqn);
        });
        for i in 0..66_000_u32 {
            srq.recv(b.sge(0, 100), mask);
            a.send(0, 4);
            assert_eq!(a.send_cq.poll().unwrap().syndrome, 0, "receive {i}");
            assert_eq!(u32::from(b.recv_cq.poll().unwrap().counter), i % SRQ_WQES, "receive {i}");
        }
        clean(&[&a, &b]);
    }
}

#[test]
fn xrc_names_the_srq_and_completes_to_its_cq() {
    let fabric = Fabric::deterministic(1);
    let (mut a, b) = pair(&fabric, QpKind::XrcSend, 0);
    b.qp(|_, _, qp| (qp.kind, qp.xrcd, qp.rq, qp.sq) = (QpKind::XrcRecv, 3, None, None));
    let mut cq = on(&b.hca, |device, _| super::rig::TestCq::new(device));
    let mut srq = TestSrq::new(&b.hca, 0, Some((3, cq.cqn)));
    srq.recv(b.sge(0, 100), u32::MAX);
    let data = a.fill(0, 80, 5);
    let (xrc, sge) = ([srq.srqn.to_be_bytes().to_vec(), vec![0xcc; 12]].concat(), a.sge(0, 80));
    a.post(MLX5_OPCODE_SEND, 0, &[&xrc, sge.as_bytes()]);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    let wc = cq.poll().unwrap();
    assert_eq!((wc.bytes, wc.uidx), (80, 0x99));
    assert_eq!(b.memory.get(0, 80), data);
    // Another domain's is refused.
    let other = TestSrq::new(&b.hca, 0, Some((4, cq.cqn)));
    let xrc = [other.srqn.to_be_bytes().to_vec(), vec![0xcc; 12]].concat();
    a.post(MLX5_OPCODE_SEND, 0, &[&xrc, sge.as_bytes()]);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
}
