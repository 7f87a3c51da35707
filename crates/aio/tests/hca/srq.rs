// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of QPs with a shared receive queue: it gets every receive back that they took.

use crate::bed::{BUFS, Bed, DEPTH, End, connect, poll_once};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;
use uverbs::Rc;
use uverbs::mlx5::Mlx5;
use uverbs_aio::{Clock, Error, Qp, Srq};
use uverbs_hca::{DeviceBuilder, Fabric};

const SRQ_DEPTH: u32 = 16;

fn srq(end: &End) -> Srq<Mlx5> {
    end.dispatcher.srq(&end.pd, &end.incoming, SRQ_DEPTH).unwrap()
}

/// A QP of `b` with the queue, and its peer.
fn pair(bed: &Bed, srq: &Srq<Mlx5>) -> (Qp<Rc, Mlx5>, Qp<Rc, Mlx5>) {
    let (a, b) = (&bed.a, &bed.b);
    let qp = b.dispatcher.qp(&b.pd).depth(4, 0).srq(srq).create().unwrap();
    let peer = a.dispatcher.qp(&a.pd).depth(8, 4).pool(&a.incoming).create().unwrap();
    connect(&peer, &qp);
    (qp, peer)
}

/// The queue has all its receives: so many messages arrive while nobody takes one.
fn assert_whole(bed: &Bed, srq: &Srq<Mlx5>) {
    bed.step();
    let posted = BUFS - DEPTH - bed.b.incoming.available() as u32;
    assert!(posted > SRQ_DEPTH * 3 / 4, "{posted} receives are posted");
    let (qp, peer) = pair(bed, srq);
    for i in 0..posted as u8 {
        bed.run(peer.send(bed.a.filled(&[i]))).unwrap();
    }
    bed.step();
    for i in 0..posted as u8 {
        assert_eq!(&*qp.try_recv().expect("it has arrived"), [i]);
    }
    bed.run(qp.abort()).unwrap();
}

/// Messages arrive, and their QP is dropped before the dispatcher polls. Without the wait for the last one, each such QP would
/// make the queue shorter.
#[test]
fn receives_of_dropped_qps_are_not_lost() {
    let bed = Bed::new();
    let srq = srq(&bed.b);
    for round in 0..3 * SRQ_DEPTH {
        let (qp, peer) = pair(&bed, &srq);
        let mut sends: Vec<_> = (0..4).map(|i| peer.send(bed.a.filled(&[i]))).collect();
        assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
        // The devices work; the dispatcher of the receiver does not poll.
        bed.fabric.run_for(Duration::from_micros(100));
        drop(qp);
        drop((sends, peer));
        bed.step();
        assert_eq!(bed.b.hca.objects().get("qp"), Some(&1), "round {round}: the QP was not destroyed");
    }
    assert_whole(&bed, &srq);
}

#[test]
fn a_qp_that_was_never_connected_is_destroyed_at_once() {
    let bed = Bed::new();
    let srq = srq(&bed.b);
    for init in [false, true] {
        let qp = bed.b.dispatcher.qp(&bed.b.pd).depth(4, 0).srq(&srq).create().unwrap();
        if init {
            qp.init(&crate::bed::attr()).unwrap();
        }
        bed.run(qp.abort()).unwrap();
        bed.run(qp.shutdown()).unwrap();
        drop(qp);
        assert_eq!(bed.b.hca.objects().get("qp"), Some(&1));
    }
    assert_whole(&bed, &srq);
}

/// The messages that had arrived are there when the shutdown has ended.
#[test]
fn an_abort_delivers_what_has_arrived() {
    let bed = Bed::new();
    let srq = srq(&bed.b);
    let (qp, peer) = pair(&bed, &srq);
    let mut sends: Vec<_> = (0..4).map(|i| peer.send(bed.a.filled(&[i]))).collect();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    bed.fabric.run_for(Duration::from_micros(100));
    bed.run(qp.abort()).unwrap();
    for i in 0..4 {
        assert_eq!(&*bed.run(qp.recv()).unwrap(), [i]);
    }
    assert!(matches!(bed.run(qp.recv()), Err(Error::Closed)));
    drop((qp, sends, peer));
    assert_whole(&bed, &srq);
}

/// As on rxe of kernel 6.1.
#[test]
fn an_abort_ends_if_the_device_does_not_report_the_last_receive() {
    let bed = Bed::of(Fabric::deterministic(7), DeviceBuilder::without_last_wqe);
    let srq = srq(&bed.b);
    let (qp, peer) = pair(&bed, &srq);
    let mut sends: Vec<_> = (0..4).map(|i| peer.send(bed.a.filled(&[i]))).collect();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    bed.fabric.run_for(Duration::from_micros(100));
    let before = bed.fabric.now();
    bed.run(qp.abort()).unwrap();
    let waited = bed.fabric.now() - before;
    assert!((Duration::from_millis(400)..Duration::from_secs(2)).contains(&waited), "{waited:?}");
    drop((qp, sends, peer));
    // One that is dropped lingers as long.
    let (qp, peer) = pair(&bed, &srq);
    drop((qp, peer));
    bed.step();
    assert_eq!(bed.b.hca.objects().get("qp"), Some(&2));
    bed.run(bed.b.dispatcher.sleep(Duration::from_secs(1)));
    assert_eq!(bed.b.hca.objects().get("qp"), Some(&1));
    assert_whole(&bed, &srq);
    drop(srq);
    bed.step();
    bed.b.assert_no_leak(DEPTH);
}

/// A clock that a test sets to its last time.
#[derive(Debug, Default)]
struct Late(AtomicBool);

impl Clock for Late {
    fn now(&self) -> Duration {
        if self.0.load(Ordering::Relaxed) { Duration::MAX } else { Duration::ZERO }
    }
}

#[test]
fn a_clock_at_its_last_time_ends_all_waits() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let clock = Arc::new(Late::default());
    let dispatcher = a.dispatcher.another().clock(clock.clone()).build().unwrap();
    let srq = dispatcher.srq(&a.pd, &a.incoming, 8).unwrap();
    let qp = dispatcher.qp(&a.pd).depth(4, 0).srq(&srq).create().unwrap();
    let peer = b.dispatcher.qp(&b.pd).depth(4, 4).pool(&b.incoming).create().unwrap();
    connect(&qp, &peer);
    let mut sleep = dispatcher.sleep(Duration::MAX);
    assert!(poll_once(&mut sleep).is_pending() && dispatcher.prepare_sleep().is_ok());
    clock.0.store(true, Ordering::Relaxed);
    assert!(poll_once(&mut sleep).is_ready());
    // It waits for the end of its receives.
    drop(qp);
    assert!(dispatcher.poll_once().is_ok());
}
