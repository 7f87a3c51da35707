// SPDX-License-Identifier: MIT OR Apache-2.0
//! QPs that are moved to RESET with work in flight, and connected again.

use crate::bed::{BUFS, Bed, DEPTH, End, connect, poll_once};
use crate::stream::{by_cm, close};
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Poll;
use futures_io::{AsyncRead, AsyncWrite};
use uverbs::WcStatus;
use uverbs::attr::QpState;
use uverbs_aio::{Error, Result};
use uverbs_testkit::stress;

fn is_flushed(error: &Error) -> bool {
    matches!(error, Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. })
}

fn failed<T, E>(polled: Poll<core::result::Result<T, E>>) -> E {
    match polled {
        Poll::Ready(Err(error)) => error,
        Poll::Ready(Ok(_)) => panic!("it has succeeded"),
        Poll::Pending => panic!("it waits still"),
    }
}

fn reset(a: &End, b: &End) {
    a.qp.reset().unwrap();
    b.qp.reset().unwrap();
}

/// As many messages as the queues have entries, twice, in both directions.
fn exchange(bed: &Bed) {
    for (from, to) in [(&bed.a, &bed.b), (&bed.b, &bed.a)] {
        for i in 0..2 * DEPTH as u8 {
            let mut send = from.qp.send(from.filled(&[i]));
            assert!(poll_once(&mut send).is_pending());
            assert_eq!(*bed.run(to.qp.recv()).unwrap(), [i]);
            bed.run(send).unwrap();
        }
    }
}

fn connect_again(bed: &Bed) {
    connect(&bed.a.qp, &bed.b.qp);
    exchange(bed);
    bed.a.assert_no_leak(DEPTH);
    bed.b.assert_no_leak(DEPTH);
}

#[test]
fn receives_are_posted_again_after_a_reset() {
    for by_control in [false, true] {
        let bed = Bed::new();
        exchange(&bed);
        for end in [&bed.a, &bed.b] {
            if by_control {
                end.qp.control().modify_state(QpState::RESET).unwrap();
            }
            end.qp.reset().unwrap();
            assert_eq!(end.qp.control().state().unwrap(), QpState::RESET);
            assert_eq!(end.incoming.available() as u32, BUFS);
            end.qp.reset().unwrap();
        }
        connect_again(&bed);
    }
}

#[test]
fn work_in_flight_ends_with_a_reset() {
    for by_control in [false, true] {
        let bed = Bed::new();
        let (a, qp) = (&bed.a, &bed.a.qp);
        bed.fabric.loss(1.0);
        let remote = bed.b.exposed();
        let mut detached = qp.send_inline(b"detached").detach();
        assert!(poll_once(&mut detached).is_ready());
        let mut batch = qp.batch();
        (0..2 * DEPTH).for_each(|_| batch.send(a.filled(b"batch")));
        let mut reads = qp.read_batch();
        reads.read(a.pool.get().unwrap(), &remote.remote_region());
        let (mut send, mut dropped) = (qp.send(a.filled(b"send")), qp.send(a.filled(b"dropped")));
        assert!(poll_once(&mut send).is_pending() && poll_once(&mut dropped).is_pending());
        assert!(poll_once(&mut reads).is_pending() && poll_once(&mut batch).is_pending());
        drop(dropped);
        let mut waiting: Vec<_> = (0..2 * DEPTH).map(|_| qp.send_inline(b"waiting")).collect();
        waiting.iter_mut().for_each(|send| assert!(poll_once(send).is_pending()));
        let (mut recv, mut recv_dropped) = (qp.recv(), qp.recv());
        assert!(poll_once(&mut recv).is_pending() && poll_once(&mut recv_dropped).is_pending());
        bed.step();
        if by_control {
            qp.control().modify_state(QpState::RESET).unwrap();
            bed.step();
            assert!(poll_once(&mut send).is_pending() && poll_once(&mut recv).is_pending());
        }
        qp.reset().unwrap();
        assert_eq!(a.incoming.available() as u32, BUFS);
        bed.b.qp.reset().unwrap();
        // Those that wait are not part of the next connection, also if their tasks are late.
        bed.fabric.loss(0.0);
        connect(qp, &bed.b.qp);
        let error = failed(poll_once(&mut send));
        assert!(is_flushed(&error.error) && error.returned.is_none());
        assert!(is_flushed(&failed(poll_once(&mut reads))));
        assert!(matches!(failed(poll_once(&mut batch)), Error::Closed));
        assert!(matches!(failed(poll_once(&mut recv)), Error::Closed));
        // All entries were those of the batch.
        for send in &mut waiting {
            assert!(matches!(failed(poll_once(send)).error, Error::Closed));
        }
        drop((waiting, recv_dropped));
        exchange(&bed);
        bed.run(bed.b.qp.send(bed.b.filled(b"last"))).unwrap();
        assert_eq!(&*bed.run(qp.recv()).unwrap(), b"last");
        a.assert_no_leak(DEPTH);
    }
}

/// The error of the last connection is not that of the next one.
#[test]
fn a_qp_can_be_connected_after_its_end() {
    let bed = Bed::new();
    // The peer takes nothing.
    bed.b.qp.control().modify_state(QpState::ERR).unwrap();
    let lost = bed.run(bed.a.qp.send(bed.a.filled(b"lost"))).unwrap_err();
    assert!(!is_flushed(&lost.error), "{}", lost.error);
    drop(lost);
    assert!(bed.run(bed.a.qp.recv()).is_err());
    bed.run(bed.b.qp.abort()).unwrap();
    assert!(bed.run(bed.b.qp.send(bed.b.filled(b"x"))).is_err());
    reset(&bed.a, &bed.b);
    connect_again(&bed);
    bed.a.qp.control().modify_state(QpState::ERR).unwrap();
    assert!(is_flushed(&bed.run(bed.a.qp.recv()).unwrap_err()));
    for end in [&bed.a, &bed.b] {
        bed.run(end.qp.abort()).unwrap();
        assert!(matches!(bed.run(end.qp.send_inline(b"x")).unwrap_err().error, Error::Closed));
        end.qp.reset().unwrap();
    }
    connect_again(&bed);
}

#[test]
fn messages_that_have_arrived_outlive_a_reset() {
    let bed = Bed::new();
    bed.run(bed.b.qp.send(bed.b.filled(b"first"))).unwrap();
    reset(&bed.a, &bed.b);
    assert_eq!(&*bed.run(bed.a.qp.recv()).unwrap(), b"first");
    assert!(bed.a.qp.try_recv().is_none());
    connect_again(&bed);
}

/// An SRQ would lose what the QP has taken.
#[test]
fn a_qp_with_an_srq_is_shut_down_before_its_reset() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let srq = a.dispatcher.srq(&a.pd, &a.incoming, 4).unwrap();
    let shared = a.dispatcher.qp(&a.pd).depth(4, 0).srq(&srq).create().unwrap();
    let peer = b.dispatcher.qp(&b.pd).depth(4, 4).pool(&b.incoming).create().unwrap();
    for _ in 0..3 {
        connect(&shared, &peer);
        bed.run(peer.send(b.filled(b"x"))).unwrap();
        assert_eq!(&*bed.run(shared.recv()).unwrap(), b"x");
        assert!(matches!(shared.reset(), Err(Error::Verbs(_))));
        bed.run(shared.abort()).unwrap();
        shared.reset().unwrap();
        peer.reset().unwrap();
    }
}

/// Threads post, drop futures and poll meanwhile.
#[test]
fn resets_among_posts_of_other_threads() {
    let fabric = uverbs_hca::Fabric::new(7);
    let [a, b] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build(), false));
    let stop = AtomicBool::new(false);
    let resets = 17 * stress::length().as_secs().max(1);
    let work = async |end: &End, i: usize| -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let _ = match i {
                0 => end.qp.send_inline(b"x").await.map_err(|failed| failed.error),
                1 => end.qp.send_inline(b"x").detach().await.map_err(|failed| failed.error),
                2 => {
                    let mut batch = end.qp.batch();
                    end.pool.get().into_iter().for_each(|buf| batch.send(buf));
                    batch.await
                }
                3 => {
                    if let Some(buf) = end.pool.try_get() {
                        let mut send = core::pin::pin!(end.qp.send(buf));
                        poll_fn(|cx| Poll::Ready(send.as_mut().poll(cx).is_ready())).await;
                    }
                    Ok(())
                }
                _ => end.qp.recv().await.map(drop),
            };
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for end in [&a, &b] {
            for i in 0..5 {
                let work = &work;
                scope.spawn(move || end.dispatcher.block_on(work(end, i)).unwrap());
            }
        }
        for _ in 0..resets {
            connect(&a.qp, &b.qp);
            std::thread::sleep(core::time::Duration::from_millis(2));
            reset(&a, &b);
        }
        stop.store(true, Ordering::Relaxed);
        // What was posted or waits since then.
        for _ in 0..resets {
            std::thread::sleep(core::time::Duration::from_millis(2));
            reset(&a, &b);
        }
    });
    for end in [&a, &b] {
        while end.qp.try_recv().is_some() {}
        end.qp.reset().unwrap();
        assert_eq!((end.pool.available() as u32, end.incoming.available() as u32), (BUFS, BUFS));
        assert_eq!(end.hca.violations(), []);
    }
    connect(&a.qp, &b.qp);
    let end = async { a.qp.send(a.filled(b"end")).await.map(drop) };
    a.dispatcher.block_on(end).unwrap();
    assert_eq!(&*b.dispatcher.block_on(b.qp.recv()).unwrap(), b"end");
}

/// Its messages are lost. The tasks that read and write it have an error, also those that wait for credits of the peer.
#[test]
fn a_stream_whose_qp_is_reset_ends() {
    let bed = Bed::new();
    for waits in [false, true] {
        let (mut near, _far) = by_cm(&bed, 1, 64);
        bed.step();
        let mut write = poll_fn(|cx| {
            while Pin::new(&mut near).poll_write(cx, &[7; 100])?.is_ready() {}
            Poll::<Result<(), std::io::Error>>::Pending
        });
        assert!(bed.try_run(&mut write).is_none());
        let qp = near.qp().clone();
        if waits {
            assert!(bed.try_run(poll_fn(|cx| Pin::new(&mut near).poll_read(cx, &mut [0; 8]))).is_none());
        }
        qp.reset().unwrap();
        bed.run(poll_fn(|cx| Pin::new(&mut near).poll_read(cx, &mut [0; 8]))).unwrap_err();
        bed.run(poll_fn(|cx| Pin::new(&mut near).poll_write(cx, &[7; 100]))).unwrap_err();
        bed.run(close(&mut near)).unwrap_err();
    }
}
