// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real time: timers by the thread, several threads on one fabric, its end; draining.

use super::rig::{BASE, End, on, pair};
use crate::engine::qp::{Qp, QpKind, State};
use crate::engine::{Notice, event};
use crate::fabric::Fabric;
use core::time::Duration;
use std::time::Instant;
use uverbs_fabric::Model as _;

pub(super) fn within<R>(limit: Duration, mut f: impl FnMut() -> Option<R>) -> R {
    let start = Instant::now();
    loop {
        if let Some(result) = f() {
            return result;
        }
        assert!(start.elapsed() < limit, "nothing within {limit:?}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

pub(super) const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_parked_message_continues_by_its_timer() {
    let fabric = Fabric::new(1);
    let (mut a, mut b) = pair(&fabric, QpKind::Rc, 0);
    a.send(0, 100);
    assert!(a.send_cq.poll().is_none());
    b.recv(0, 100);
    assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0);
    assert_eq!(b.recv_cq.poll().unwrap().bytes, 100);
    // A packet is lost, and there are no more doorbells.
    fabric.loss(1.0);
    a.write(0, 10, BASE, b.key);
    fabric.loss(0.0);
    assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0);
    // Receives that were posted to a queue in ERR are flushed.
    b.set_state(State::Err);
    b.recv(0, 10);
    assert_eq!(within(LIMIT, || b.recv_cq.poll()).syndrome, 5);
}

#[test]
fn delayed_packets_arrive_after_their_delay() {
    let fabric = Fabric::new(1);
    fabric.delay(Duration::from_millis(3));
    let (mut a, b) = pair(&fabric, QpKind::Rc, 0);
    let start = Instant::now();
    a.read(0, 2000, BASE, b.key);
    assert!(a.send_cq.poll().is_none());
    within(LIMIT, || a.send_cq.poll());
    assert!(start.elapsed() >= Duration::from_millis(6), "{:?}", start.elapsed());
}

#[test]
fn traffic_of_several_threads_stays_independent() {
    let fabric = Fabric::new(1);
    fabric.loss(0.001);
    std::thread::scope(|scope| {
        for seed in 0..4_u8 {
            let fabric = &fabric;
            scope.spawn(move || {
                let (mut a, mut b) = {
                    // Devices are numbered as they are built: one pair at a time has both ends on one device.
                    let hca = fabric.device("own").link(crate::Link::InfiniBand).build();
                    let lid = on(&hca, |_, cx| cx.net.ports[cx.me].lid);
                    let (a, b) = (End::new(&hca, QpKind::Rc), End::new(&hca, QpKind::Rc));
                    a.connect(b.qpn, lid, 0);
                    b.connect(a.qpn, lid, 0);
                    (a, b)
                };
                for i in 0..200_u8 {
                    let data = a.fill(0, 1500, seed.wrapping_mul(i));
                    b.recv(0, 1500);
                    a.send(0, 1500);
                    assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0);
                    within(LIMIT, || b.recv_cq.poll());
                    assert_eq!(b.memory.get(0, 1500), data);
                }
                assert_eq!(a.hca.violations(), []);
            });
        }
    });
}

#[test]
fn the_thread_ends_with_the_fabric() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let fabrics: Vec<_> = (0..50).map(Fabric::new).collect();
    assert!(threads() >= before + 40, "other tests end their threads meanwhile");
    let hcas: Vec<_> = fabrics.iter().map(|f| f.device("x").build()).collect();
    drop(fabrics);
    drop(hcas);
    within(LIMIT, || (threads() < before + 40).then_some(()));
}

#[test]
fn a_drained_queue_reports_it_and_continues() {
    let fabric = Fabric::deterministic(1);
    let (mut a, b) = pair(&fabric, QpKind::Rc, 0);
    fabric.loss(1.0);
    a.write(0, 10, BASE, b.key);
    a.hca.record_notices();
    a.attr(|attr| attr.notify_drained = true);
    a.set_state(State::Sqd);
    // Posted while draining: waits for RTS.
    a.write(0, 10, BASE, b.key);
    assert_eq!(a.hca.recorded_notices(), []);
    a.hca.record_notices();
    fabric.loss(0.0);
    fabric.run();
    assert_eq!(a.send_cq.poll().map(|wc| (wc.counter, wc.syndrome)), Some((0, 0)));
    assert!(a.send_cq.poll().is_none());
    assert_eq!(a.hca.recorded_notices(), [Notice::Qp { qpn: a.qpn, event: event::SQ_DRAINED }]);
    a.set_state(State::Rts);
    assert_eq!(a.send_cq.poll().map(|wc| (wc.counter, wc.syndrome)), Some((1, 0)));
}

#[test]
fn long_messages_arrive_complete_on_a_bad_network() {
    let fabric = Fabric::deterministic(9);
    let (mut a, b) = pair(&fabric, QpKind::Rc, 0xff_ff00);
    fabric.loss(0.01).reorder(0.01);
    // The message is as long as the memory. With an MTU of 16 bytes it has many more packets than may be in flight.
    for end in [&a, &b] {
        end.attr(|attr| attr.mtu = 16);
    }
    let len = 30_000;
    let data = b.fill(0, len as usize, 3);
    a.read(0, len, BASE, b.key);
    a.write(0, len, BASE + 32_000, b.key);
    fabric.run();
    assert_eq!([(); 2].map(|()| a.send_cq.poll().unwrap().syndrome), [0; 2]);
    assert_eq!(a.memory.get(0, len as usize), data);
    assert_eq!(b.memory.get(32_000, len as usize), a.memory.get(0, len as usize));
}

/// The shortest time of several tries.
fn fastest(mut f: impl FnMut()) -> Duration {
    let time = |()| {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    [(); 5].map(time).into_iter().min().unwrap()
}

#[test]
fn the_cost_of_a_doorbell_does_not_depend_on_the_number_of_queues() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric, QpKind::Rc, 0);
    let ring = || (0..50).for_each(|_| a.ring(0));
    let alone = fastest(ring);
    on(&a.hca, |device, _| {
        for qpn in 0x10_0000..0x12_0000 {
            device.add_qp(Qp::new(qpn, QpKind::Rc));
        }
    });
    let among_others = fastest(ring);
    assert!(among_others < alone * 50, "{alone:?}, with other queues {among_others:?}");
    // A queue in ERR is watched until it leaves that state.
    let watched = |end: &End| on(&end.hca, |device, _| device.watches());
    b.set_state(State::Err);
    assert!(watched(&b) && !watched(&a));
    b.set_state(State::Reset);
    assert!(!watched(&b));
}

/// A connection on which a message waits for a receive, and is tried again each 1.28 ms.
fn waiting(fabric: &Fabric, len: u32) -> (End, End) {
    let (mut a, b) = pair(fabric, QpKind::Rc, 0);
    b.attr(|attr| attr.min_rnr_timer = 14);
    a.send(0, len);
    assert!(a.send_cq.poll().is_none());
    (a, b)
}

#[test]
fn timers_do_not_multiply_while_a_message_waits_for_a_receive() {
    let fabric = Fabric::deterministic(1);
    let (mut a, mut b) = waiting(&fabric, 100);
    fabric.run_for(Duration::from_secs(5));
    // The timer of a lost answer is set at each try, and is in the network for 67 ms.
    let timers = on(&a.hca, |_, cx| cx.net.timers());
    assert!(timers < 100, "{timers} timers");
    b.recv(0, 100);
    fabric.run_for(Duration::from_millis(2));
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
}

#[test]
fn a_message_that_waits_for_a_receive_is_tried_with_one_packet() {
    for loss in [0.0, 0.1] {
        let fabric = Fabric::deterministic(3);
        let (mut a, mut b) = waiting(&fabric, 10_000);
        let data = a.fill(0, 10_000, 5);
        let sent = |end: &End| on(&end.hca, |_, cx| cx.net.ports[cx.me].sent);
        let before = sent(&a);
        fabric.loss(loss);
        fabric.run_for(Duration::from_millis(128));
        let tries = sent(&a) - before;
        assert!(tries < 110, "{tries} packets");
        b.recv(0, 10_000);
        fabric.run_for(Duration::from_secs(10));
        assert_eq!((a.send_cq.poll().unwrap().syndrome, b.recv_cq.poll().unwrap().bytes), (0, 10_000));
        assert_eq!(b.memory.get(0, 10_000), data);
        // The next message has a receive, and needs no answer to each packet.
        fabric.loss(0.0);
        b.recv(0, 10_000);
        let before = sent(&b);
        a.send(0, 10_000);
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        assert!(sent(&b) - before < 10);
    }
}
