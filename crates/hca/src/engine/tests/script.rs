// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults by script on the virtual clock: what each action does to two connected QPs.

use super::reliable::notices;
use super::rig::{BASE, End, on, pair};
use crate::engine::qp::{QpKind, State};
use crate::engine::requester::Requester;
use crate::engine::{Notice, event};
use crate::fabric::Fabric;
use core::time::Duration;
use uverbs_mlx5_hw::cqe as hw;
use uverbs_softkernel::Driver as _;

/// A pair whose fabric has this script.
fn scripted(kind: QpKind, text: &str) -> (Fabric, End, End) {
    let fabric = Fabric::deterministic(1);
    let (a, mut b) = pair(&fabric, kind, 100);
    (0..8).for_each(|i| b.recv(i * 512, 512));
    fabric.script(text).unwrap();
    (fabric, a, b)
}

/// The syndromes of the completions of a queue.
fn polled(cq: &mut super::rig::TestCq) -> Vec<u8> {
    core::iter::from_fn(|| cq.poll()).map(|wc| wc.syndrome).collect()
}

/// Sends 3 messages of two packets each under a script, until nothing is left to do, and returns the syndromes at both ends.
fn three(text: &str) -> (End, End, Vec<u8>, Vec<u8>) {
    let (fabric, mut a, mut b) = scripted(QpKind::Rc, text);
    (0..3).for_each(|_| {
        a.send(0, 300);
    });
    fabric.run();
    let (sends, receives) = (polled(&mut a.send_cq), polled(&mut b.recv_cq));
    (a, b, sends, receives)
}

#[test]
fn lost_and_reordered_packets_are_repaired() {
    for text in [
        "packet device=hca0 wr=2 packet=2 nth=1 : drop",
        "packet device=hca0 opcode=send wr=1 nth=1 : corrupt",
        "packet device=hca0 wr=1 packet=1 nth=1 : reorder 2",
        "packet device=hca1 opcode=ack nth=2-3 : drop",
        "packet device=hca0 wr=3 : duplicate 1",
        "packet device=hca0 psn=103 nth=1 : nak sequence",
        "packet device=hca0 wr=2 nth=1-3 : rnr 4",
    ] {
        let (a, b, sends, receives) = three(text);
        assert_eq!((sends, receives), (vec![0; 3], vec![0; 3]), "{text}");
        assert!(
            a.hca.repairs() + b.hca.repairs() > 0 || text.contains("rnr") || text.contains("nak"),
            "{text}"
        );
    }
}

#[test]
fn a_packet_that_is_always_lost_ends_the_connection() {
    let (_, _, sends, receives) = three("packet wr=2 packet=1 : drop");
    assert_eq!(receives, [0]);
    assert_eq!(sends, [0, hw::MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR]);
}

#[test]
fn refusals_have_their_status() {
    for (refusal, syndrome) in [
        ("invalid", hw::MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR),
        ("access", hw::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR),
        ("operation", hw::MLX5_CQE_SYNDROME_REMOTE_OP_ERR),
    ] {
        let (a, _, sends, receives) = three(&format!("packet wr=2 packet=1 : nak {refusal}"));
        assert_eq!(sends, [0, syndrome, hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR]);
        assert_eq!((receives, a.state()), (vec![0], State::Err));
    }
    // Datagrams have no NAK, so they arrive.
    let (fabric, mut a, mut b) = scripted(QpKind::Uc, "packet : nak invalid");
    a.send(0, 8);
    fabric.run();
    assert_eq!((polled(&mut a.send_cq), polled(&mut b.recv_cq)), (vec![0], vec![0]));
}

#[test]
fn without_retries_a_receiver_that_is_not_ready_is_an_error() {
    let (fabric, mut a, _b) = scripted(QpKind::Rc, "packet wr=1 : rnr 1");
    a.attr(|attr| attr.rnr_retry = 0);
    a.qp(|_, _, qp| qp.req = Requester::new(100, &qp.attr));
    a.send(0, 8);
    fabric.run();
    assert_eq!(polled(&mut a.send_cq), [hw::MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR]);
}

#[test]
fn opcodes_and_numbers_select_packets() {
    let (fabric, mut a, b) = scripted(QpKind::Rc, "packet opcode=read_response wr=2 nth=1 : drop");
    a.write(0, 8, BASE + 0x4000, b.key);
    a.read(0x100, 8, BASE + 0x4000, b.key);
    a.fetch_add(0x200, BASE + 0x4000, b.key, 1);
    fabric.run();
    assert_eq!(polled(&mut a.send_cq), [0; 3]);
    assert_eq!(b.hca.repairs() + a.hca.repairs(), 2);
    // An atomic is executed once, even if its answer is lost.
    fabric.script("packet opcode=atomic_response nth=1 : drop\npacket opcode=cmp_swap : drop").unwrap();
    let before = b.memory.get(0x4000, 8);
    a.fetch_add(0x200, BASE + 0x4000, b.key, 5);
    fabric.run();
    assert_eq!(polled(&mut a.send_cq), [0]);
    let value = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    assert_eq!(value(&b.memory.get(0x4000, 8)), value(&before).wrapping_add(5));
}

#[test]
fn completions_have_another_status() {
    let flush = hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
    let retry = hw::MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR;
    let (a, _, sends, receives) = three("completion device=hca0 queue=send wr=2 : status RETRY_EXC_ERR");
    assert_eq!((sends, a.state()), (vec![0, retry, flush], State::Err));
    assert_eq!(receives[..2], [0, 0]);
    // The peer of a receive with an error is told.
    let (_, b, sends, receives) = three("completion queue=recv wr=2 : status LOC_PROT_ERR");
    assert_eq!(receives[..2], [0, hw::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR]);
    assert_eq!(sends, [0, hw::MLX5_CQE_SYNDROME_REMOTE_OP_ERR, flush]);
    assert!(receives[2..].iter().all(|syndrome| *syndrome == flush) && b.state() == State::Err);
    // Requests of an unreliable transport move the QP to SQE.
    let (fabric, mut a, _b) =
        scripted(QpKind::Uc, "completion queue=send opcode=send : status LOC_QP_OP_ERR");
    a.send(0, 8);
    fabric.run();
    assert_eq!(polled(&mut a.send_cq), [hw::MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR]);
    assert_eq!(a.state(), State::Sqe);
}

#[test]
fn a_full_queue_ends_its_qps() {
    let (fabric, mut a, b) = scripted(QpKind::Rc, "completion queue=recv nth=2 : full");
    let seen = notices(&b.hca, || {
        (0..3).for_each(|_| {
            a.send(0, 8);
        });
        fabric.run();
    });
    let (cqn, qpn) = (b.recv_cq.cqn, b.qpn);
    assert_eq!(b.state(), State::Err);
    assert!(on(&b.hca, |device, _| device.cqs.get(&cqn).unwrap().is_broken()));
    assert!(
        seen.contains(&Notice::CqError { cqn }) && seen.contains(&Notice::Qp { qpn, event: event::QP_FATAL })
    );
    // It is not the program's mistake.
    assert_eq!(b.hca.violations(), []);
}

#[test]
fn a_device_is_killed_or_removed_at_a_request() {
    for action in ["kill", "remove"] {
        let (fabric, mut a, b) =
            scripted(QpKind::Rc, &format!("packet device=hca0 wr=2 packet=1 : {action} on hca1"));
        let _context = b.hca.open();
        (0..3).for_each(|_| {
            a.send(0, 8);
        });
        fabric.run();
        // These QPs are of no context, so they would go on.
        assert_eq!(b.hca.with_kernel(|kernel| kernel.tables().numbers()), [], "{action}");
        if action == "remove" {
            assert!(!b.hca.stat().up);
            assert!(polled(&mut a.send_cq).contains(&hw::MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR));
        }
    }
}

#[test]
fn addresses_change_at_a_time() {
    let (fabric, _a, b) = scripted(
        QpKind::Rc,
        "clock time=1ms device=hca1 : gid add fe80::77\nclock time=2ms device=hca1 : lid 9\n\
         clock time=3ms device=hca1 : gid remove 0",
    );
    fabric.run_for(Duration::from_millis(5));
    let (gids, lid) = on(&b.hca, |_, port| {
        let address = port.address().unwrap();
        (address.gids.clone(), address.lid)
    });
    assert_eq!(lid, 9);
    assert_eq!(gids[0].0, [0; 16]);
    assert_eq!(gids.last().unwrap().0, "fe80::77".parse::<core::net::Ipv6Addr>().unwrap().octets());
}

#[test]
fn numbers_begin_anew_after_a_reset() {
    let (fabric, mut a, b) = scripted(QpKind::Uc, "packet device=hca0 wr=1 : drop");
    a.send(0, 8);
    a.set_state(State::Reset);
    (a.posted, _) = (0, a.record.set(4, &[0; 4]));
    a.connect(b.qpn, 2, 100);
    a.send(0, 8);
    a.send(0, 8);
    fabric.run();
    assert_eq!(polled(&mut a.send_cq), [0; 3]);
    assert_eq!(b.hca.stat().received, 1);
}

#[test]
fn rules_without_effect_are_refused_with_their_line() {
    let fabric = Fabric::deterministic(0);
    for action in ["drop", "delay 2ms"] {
        let text = format!("# late\ncompletion device=hca0    : {action}");
        for error in [fabric.script(&text), fabric.add_rules(&text)] {
            let error = error.unwrap_err();
            assert_eq!((error.line, error.column), (2, 29), "{error}");
            assert!(error.message.contains("completions of a software ConnectX"), "{error}");
        }
        let error = fabric.set_script(text.parse().unwrap()).unwrap_err();
        assert!(error.message.contains(action) && error.line == 1, "{error}");
    }
    assert_eq!(fabric.rules(), None);
    fabric.script("packet : delay 2ms\npacket : drop\ncompletion : full").unwrap();
}
