// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a trace says.

use super::rig::{BASE, End, pair};
use crate::engine::qp::QpKind;
use crate::fabric::Fabric;
use crate::ring::{Queue, RingDump};
use crate::trace::{Step, StepKind, chart};
use std::sync::{Arc, Mutex};
use uverbs_decode::{Device, Format, What};
use uverbs_fabric::order::Mode;

type Steps = Arc<Mutex<Vec<Step>>>;

fn traced(fabric: &Fabric, qpns: &[u32]) -> Steps {
    let steps = Steps::default();
    let sink = Arc::clone(&steps);
    fabric.trace(qpns, Some(Box::new(move |step: &Step| sink.lock().unwrap().push(step.clone()))));
    steps
}

fn rc() -> (Fabric, End, End) {
    let fabric = Fabric::deterministic(1);
    let (a, b) = pair(&fabric, QpKind::Rc, 100);
    (fabric, a, b)
}

/// Kind and words of each step of the ports.
fn of(steps: &Steps, end: &End) -> Vec<(StepKind, String)> {
    let port = end.hca.clone();
    let number = super::rig::on(&port, |_, cx| cx.address().unwrap().number);
    let steps = steps.lock().unwrap();
    steps.iter().filter(|step| step.port == number).map(|step| (step.kind, step.words.clone())).collect()
}

#[track_caller]
fn assert_steps(found: &[(StepKind, String)], expected: &[(StepKind, &str)]) {
    let found: Vec<_> = found.iter().map(|(kind, words)| (*kind, words.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_send_is_told_from_its_request_to_its_completions() {
    let (fabric, mut a, mut b) = rc();
    let steps = traced(&fabric, &[]);
    b.recv(4096, 2000);
    a.send(64, 100);
    let (qa, qb) = (a.qpn, b.qpn);
    assert_steps(
        &of(&steps, &a),
        &[
            (StepKind::Request, &format!("SEND of 100 bytes, WQE 0 of QP {qa:#08x}, signaled")),
            (StepKind::Sent, "SEND only, 100 bytes, PSN 100, asks for an ACK"),
            (StepKind::Received, "ACK, PSN 100, MSN 1"),
            (StepKind::Completion, &format!("SEND complete, WQE 0 of QP {qa:#08x}, 100 bytes")),
        ],
    );
    let key = b.key;
    assert_steps(
        &of(&steps, &b),
        &[
            (StepKind::Received, "SEND only, 100 bytes, PSN 100, asks for an ACK"),
            (StepKind::Receive, "WQE 0 with room for 2000 bytes is taken"),
            (StepKind::Placed, &format!("100 bytes to key {key:#x} + 4096")),
            (StepKind::Completion, &format!("SEND received, WQE 0 of QP {qb:#08x}, 100 bytes")),
            (StepKind::Sent, "ACK, PSN 100, MSN 1"),
        ],
    );
    let steps = steps.lock().unwrap();
    let placed = steps.iter().find(|step| step.kind == StepKind::Placed).unwrap();
    assert_eq!(placed.detail, format!("{:#x} to {:#x}", BASE + 4096, BASE + 4196));
    assert_eq!(steps[0].detail, format!("100 bytes at {:#x} (lkey {:#x})", BASE + 64, a.key));
    // The two steps of a packet have its number.
    let hop = |kind, words: &str| {
        let step = steps.iter().find(|step| step.kind == kind && step.words.starts_with(words)).unwrap();
        step.hop.unwrap()
    };
    let (sent, arrived) = (hop(StepKind::Sent, "SEND"), hop(StepKind::Received, "SEND"));
    assert_eq!((sent.id, sent.peer_qpn, arrived.peer_qpn), (arrived.id, qb, qa));
    assert_ne!(sent.id, 0);
}

#[test]
fn a_receiver_that_is_not_ready_is_told_with_its_time() {
    let (fabric, mut a, mut b) = rc();
    b.attr(|attr| attr.min_rnr_timer = 0);
    a.attr(|attr| attr.rnr_retry = 7);
    let steps = traced(&fabric, &[]);
    a.send(0, 10);
    b.recv(0, 10);
    fabric.run();
    let kinds: Vec<_> = of(&steps, &a).into_iter().map(|(kind, _)| kind).collect();
    let expected = [
        StepKind::Request,
        StepKind::Sent,
        StepKind::Received,
        // The clock is virtual: the doorbell looks once more before the receive is posted.
        StepKind::Timer,
        StepKind::Sent,
        StepKind::Received,
        StepKind::Timer,
        StepKind::Sent,
        StepKind::Received,
        StepKind::Completion,
    ];
    assert_eq!(kinds, expected);
    let steps = steps.lock().unwrap();
    let rnr = steps.iter().find(|step| step.words.starts_with("RNR NAK")).unwrap();
    assert_eq!(rnr.words, "RNR NAK: no receive, wait 655.36 ms, PSN 100");
    let timer = steps.iter().find(|step| step.kind == StepKind::Timer).unwrap();
    assert_eq!(timer.words, "the wait for a receiver is over, retries without limit");
    assert_eq!(timer.at - rnr.at, 655_360_000);
    let svg = chart("title <&>", &steps);
    assert!(svg.contains("655.360 ms pass") && svg.contains("title &lt;&amp;&gt;"), "{svg}");
}

#[test]
fn lost_packets_and_errors_are_told() {
    let (fabric, mut a, b) = rc();
    let steps = traced(&fabric, &[]);
    fabric.loss(1.0);
    a.write(0, 10, BASE, b.key);
    fabric.loss(0.0);
    fabric.run();
    a.write(0, 10, BASE, b.key + 1);
    fabric.run();
    let told = of(&steps, &a);
    let has = |kind: StepKind, words: &str| told.iter().any(|(k, w)| *k == kind && w.contains(words));
    assert!(has(StepKind::Lost, "RDMA WRITE only, 10 bytes, PSN 100, asks for an ACK: lost"), "{told:#?}");
    assert!(has(StepKind::Timer, "no answer came"), "{told:#?}");
    assert!(has(StepKind::Received, "NAK: remote access error"), "{told:#?}");
    assert!(has(StepKind::Completion, "RDMA_WRITE failed: IBV_WC_REM_ACCESS_ERR"), "{told:#?}");
    assert!(has(StepKind::State, "Rts becomes Err"), "{told:#?}");
    let (kind, words) = of(&steps, &b).pop().unwrap();
    assert_eq!((kind, words.as_str()), (StepKind::Event, "IBV_EVENT_QP_ACCESS_ERR"));
}

/// In a mode of order each access is told when it takes place, not when the device has begun it.
#[test]
fn accesses_of_a_mode_are_told_when_they_take_place() {
    let (fabric, mut a, b) = rc();
    let steps = traced(&fabric, &[]);
    fabric.order_by_hand(Mode::Model);
    a.write(0, 100, BASE, b.key);
    let kinds = || steps.lock().unwrap().iter().map(|step| step.kind).collect::<Vec<_>>();
    assert_eq!(kinds(), [StepKind::Request, StepKind::Sent]);
    while let Some(possible) = fabric.steps().first() {
        assert!(fabric.take_step(possible.step));
    }
    let count = |kind| kinds().into_iter().filter(|other| *other == kind).count();
    // Two lines are read and written; the packet and its ACK arrive; a completion is written.
    let all = [StepKind::Fetched, StepKind::Placed, StepKind::Sent, StepKind::Received, StepKind::Completion];
    assert_eq!(all.map(count), [2, 2, 2, 2, 1]);
    let steps = steps.lock().unwrap();
    let ids = |kind| {
        let mut ids: Vec<_> = steps.iter().filter(|s| s.kind == kind).map(|s| s.hop.unwrap().id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ids(StepKind::Sent), ids(StepKind::Received));
    let placed = steps.iter().find(|step| step.kind == StepKind::Placed).unwrap();
    assert!(placed.words.contains(" bytes are written ("), "{placed}");
}

/// The memory of queues, which `uverbs decode` shows.
#[test]
fn queues_are_read_with_the_next_slot() {
    let (_fabric, mut a, mut b) = rc();
    b.recv(4096, 2000);
    a.send(64, 100);
    let sq = a.hca.queue(a.qpn, Queue::Send).unwrap();
    assert_eq!((sq.device.as_str(), sq.what.as_str(), sq.kind.as_str()), ("mlx5", "wqe", "rc"));
    assert_eq!((sq.stride, sq.next), (64, 1));
    let words = |dump: &RingDump, what| {
        uverbs_decode::decode(Format::new(Device::Mlx5, what), &dump.bytes[..dump.stride as usize]).summary()
    };
    assert_eq!(words(&sq, What::Send), format!("SEND of 100 bytes, WQE 0 of QP {:#08x}, signaled", a.qpn));
    let cq = a.hca.queue(a.qpn, Queue::SendCq).unwrap();
    assert_eq!((cq.stride, cq.next), (64, 1));
    assert!(words(&cq, What::Cqe).starts_with("SEND complete, WQE 0"), "{}", words(&cq, What::Cqe));
    let rq = b.hca.queue(b.qpn, Queue::Recv).unwrap();
    assert_eq!((words(&rq, What::Recv).as_str(), rq.next), ("receive with room for 2000 bytes", 1));
    assert_eq!(a.hca.queue(a.qpn + 100, Queue::Send), None);
}

#[test]
fn answers_are_placed_and_a_filter_shows_one_qp() {
    let (fabric, mut a, b) = rc();
    let other = End::new(&a.hca, QpKind::Rc);
    let steps = traced(&fabric, &[other.qpn]);
    a.read(8, 100, BASE, b.key);
    assert_eq!(steps.lock().unwrap().len(), 0);
    let steps = traced(&fabric, &[a.qpn]);
    a.read(8, 100, BASE, b.key);
    a.fetch_add(16, BASE, b.key, 5);
    let told = of(&steps, &a);
    let placed: Vec<_> =
        told.iter().filter(|(kind, _)| *kind == StepKind::Placed).map(|(_, words)| words).collect();
    let place = |len, at| format!("{len} bytes to key {:#x} + {at}", a.key);
    assert_eq!(placed, [&place(100, 8), &place(8, 16)]);
    // After the end of the trace nothing is shown.
    fabric.trace(&[], None);
    let before = steps.lock().unwrap().len();
    a.read(8, 100, BASE, b.key);
    assert_eq!(steps.lock().unwrap().len(), before);
}
