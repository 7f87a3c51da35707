// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread that posts and one that polls, while others create and destroy queues.

use crate::bed::{BUFS, CAP, End, connect_self};
use core::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use uverbs::Private;
use uverbs::mlx5::Mlx5;
use uverbs::{Buf, Cq};
use uverbs::{PostError, Rc, Shared, WcOpcode};
use uverbs_hca::Hca;

/// Numbers of one message after the other, through buffers that go round.
#[test]
fn poster_and_poller_are_two_threads() {
    const MESSAGES: u64 = 3000;
    let end = End::new(Hca::new());
    let cq: Cq<Shared, Mlx5> = end.context.cq_with(64, None).unwrap();
    let qp = end.pd.qp::<Rc>().cq(&cq).cap(CAP).create().unwrap();
    connect_self(&qp);
    let (mut send, recv, _control) = qp.split();
    let mut recv = recv.unwrap();
    for i in 0..16 {
        recv.post(1000 + i, end.pool.get().unwrap()).unwrap();
    }
    let polled = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut expected = 0;
            let mut returned: Vec<Buf<Private, Mlx5>> = Vec::new();
            while expected < MESSAGES {
                let n = cq.poll_each(16, |done| {
                    assert!(done.status().is_success(), "{done:?}");
                    if done.opcode() == WcOpcode::RECV {
                        let buf = done.buf().unwrap();
                        assert_eq!(*buf, expected.to_ne_bytes());
                        expected += 1;
                        returned.push(buf);
                    }
                });
                for buf in returned.drain(..) {
                    recv.post(1000, buf).unwrap();
                }
                polled.store(expected, Ordering::Release);
                if n == Ok(0) {
                    thread::yield_now();
                }
            }
        });
        let mut number = 0_u64;
        while number < MESSAGES {
            let Some(mut buf) = end.pool.try_get() else {
                thread::yield_now();
                continue;
            };
            buf.fill(&number.to_ne_bytes()).unwrap();
            // Every fourth is signaled, and completes the three before it.
            let wr = send.post(number);
            let wr = if number % 4 == 3 { wr.signaled() } else { wr };
            match wr.send(buf) {
                Ok(()) => number += 1,
                Err(rejected) => {
                    assert_eq!(rejected.error, PostError::QueueFull);
                    thread::yield_now();
                }
            }
        }
    });
    assert_eq!(polled.load(Ordering::Acquire), MESSAGES);
    drop((send, recv));
    drop(_control);
    assert_eq!((end.available(), cq.unmatched()), (BUFS, Ok(0)));
    assert!(end.hca.violations().is_empty());
}

/// QPs with posts in flight are dropped while another thread polls their CQ.
#[test]
fn queues_end_while_their_cq_is_polled() {
    let end = End::new(Hca::new());
    let cq: Cq<Shared, Mlx5> = end.context.cq_with(512, None).unwrap();
    let cap = CAP.max_send_wr(4).max_recv_wr(4);
    let stop = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while stop.load(Ordering::Relaxed) < 2 {
                // A completion gives a buffer back, once; a second time would fill the pool above its size.
                if cq.poll_each(8, |done| drop(done.buf())) == Ok(0) {
                    thread::yield_now();
                }
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..100 {
                    let mut qp = end.pd.qp::<Rc>().cq(&cq).cap(cap).create().unwrap();
                    connect_self(&qp);
                    for i in 0..1 + round % 4 {
                        if let Some(buf) = end.pool.try_get() {
                            qp.rq().unwrap().post(i, buf).unwrap();
                        }
                        if let Some(mut buf) = end.pool.try_get() {
                            buf.fill(b"x").unwrap();
                            qp.sq().post(i).signaled().send(buf).unwrap();
                        }
                    }
                    if round % 2 == 0 {
                        qp.reset().unwrap();
                    }
                }
                stop.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!((end.available(), cq.unmatched()), (BUFS, Ok(0)));
    let End { qp, hca, .. } = end;
    drop(qp);
    assert!(hca.violations().is_empty(), "{:?}", hca.violations());
}
