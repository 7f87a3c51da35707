// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures that are dropped, or forgotten, at every point.

use crate::bed::{BUFS, Bed, DEPTH, End, join, poll_once};
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;
use uverbs::Rc;
use uverbs::mlx5::Mlx5;
use uverbs_aio::{Error, Qp, Result};

/// Polls a future `n` times, with a step of the devices after each, and drops it. Returns whether it was ready before.
fn drop_after<F: Future + Unpin>(bed: &Bed, mut future: F, n: usize) -> bool {
    for _ in 0..n {
        if poll_once(&mut future).is_ready() {
            return true;
        }
        bed.step();
    }
    false
}

/// A message passes in both directions, after those that `skipped` sends may have caused.
fn still_works(bed: &Bed, mark: u8) {
    let pass = async |from: &Qp<Rc, Mlx5>, buf, to: &Qp<Rc, Mlx5>| -> Result<()> {
        let send = async { from.send(buf).await.map(drop).map_err(Error::from) };
        let recv = async {
            while to.recv().await?[0] != mark {}
            Ok(())
        };
        join(vec![Box::pin(send), Box::pin(recv)]).await
    };
    bed.run(pass(&bed.a.qp, bed.a.filled(&[mark]), &bed.b.qp)).unwrap();
    bed.run(pass(&bed.b.qp, bed.b.filled(&[mark]), &bed.a.qp)).unwrap();
    bed.step();
    bed.a.assert_no_leak(DEPTH);
    bed.b.assert_no_leak(DEPTH);
}

/// Drops what `make` makes after each number of polls, with and without packets that arrive, and with a full queue.
fn drop_everywhere<F: Future + Unpin>(make: impl Fn(&Bed) -> F) {
    let mut ready = 0;
    for loss in [0.0, 1.0] {
        for full in [false, true] {
            for n in 0..4 {
                let bed = Bed::new();
                bed.fabric.loss(loss);
                let fillers: Vec<_> = (0..if full { DEPTH } else { 0 })
                    .map(|_| {
                        let mut send = bed.a.qp.send(bed.a.filled(&[0]));
                        assert!(poll_once(&mut send).is_pending());
                        send
                    })
                    .collect();
                let future = make(&bed);
                ready += usize::from(drop_after(&bed, future, n));
                drop(fillers);
                bed.fabric.loss(0.0);
                still_works(&bed, 200);
            }
        }
    }
    assert!(ready > 0, "the future is never ready");
}

#[test]
fn sends_can_be_dropped_at_any_time() {
    drop_everywhere(|bed| bed.a.qp.send(bed.a.filled(&[1])));
    drop_everywhere(|bed| bed.a.qp.send_inline(&[1]));
}

#[test]
fn reads_writes_and_atomics_can_be_dropped_at_any_time() {
    // The peer's buffer has to live as long as the operations.
    let tables = core::cell::RefCell::new(Vec::new());
    let at = |bed: &Bed| {
        let table = bed.b.exposed();
        let at = table.remote_region();
        tables.borrow_mut().push(table);
        at
    };
    drop_everywhere(|bed| bed.a.qp.write(bed.a.filled(&[1; 100]), &at(bed)));
    drop_everywhere(|bed| bed.a.qp.read(bed.a.filled(&[0; 100]), &at(bed)));
    drop_everywhere(|bed| bed.a.qp.fetch_add(bed.a.filled(&[0; 8]), &at(bed), 1));
    drop_everywhere(|bed| bed.a.qp.compare_swap(bed.a.filled(&[0; 8]), &at(bed), 0, 1));
    drop_everywhere(|bed| {
        let (mut batch, at) = (bed.a.qp.read_batch(), at(bed));
        for _ in 0..3 {
            batch.read(bed.a.filled(&[0; 100]), &at);
            batch.fetch_add(bed.a.filled(&[0; 8]), &at, 1);
        }
        batch
    });
}

#[test]
fn receives_can_be_dropped_at_any_time_without_losing_messages() {
    for n in 0..4 {
        let bed = Bed::new();
        let mut seen = Vec::new();
        for i in 0..DEPTH as u8 {
            bed.run(bed.a.qp.send(bed.a.filled(&[i]))).unwrap();
            let mut recv = bed.b.qp.recv();
            for _ in 0..n {
                if let Poll::Ready(message) = poll_once(&mut recv) {
                    seen.push(message.unwrap()[0]);
                    break;
                }
                bed.step();
            }
        }
        while let Some(message) = bed.b.qp.try_recv() {
            seen.push(message[0]);
        }
        assert_eq!(seen, (0..DEPTH as u8).collect::<Vec<_>>(), "dropped after {n} polls");
    }
}

#[test]
fn a_message_for_a_dropped_future_wakes_the_next() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let mut first = b.qp.recv();
    assert!(poll_once(&mut first).is_pending());
    let second = b.qp.recv();
    bed.run(async {
        let mut second = core::pin::pin!(second);
        let polled = core::future::poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
        a.qp.send(a.filled(b"x")).await?;
        // It was woken, and is dropped before it is polled.
        drop(first);
        assert_eq!(&*second.await?, b"x");
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn an_operation_that_waits_for_an_entry_lets_the_next_pass_when_it_is_dropped() {
    let bed = Bed::new();
    let a = &bed.a;
    bed.fabric.loss(1.0);
    let mut sends: Vec<_> = (0..DEPTH + 2).map(|i| a.qp.send(a.filled(&[i as u8]))).collect();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    let (last, before) = (sends.pop().unwrap(), sends.pop().unwrap());
    drop(before);
    bed.fabric.loss(0.0);
    let mut received = Vec::new();
    let receive = async {
        while received.last() != Some(&(DEPTH as u8 + 1)) {
            received.push(bed.b.qp.recv().await?[0]);
        }
        Ok(())
    };
    let wait = async { last.await.map(drop).map_err(Error::from) };
    bed.run(join(vec![Box::pin(receive), Box::pin(wait)])).unwrap();
    assert!(!received.contains(&(DEPTH as u8)), "that was not posted");
}

#[test]
fn forgotten_futures_keep_their_buffers() {
    let bed = Bed::new();
    let a = &bed.a;
    let mut send = a.qp.send(a.filled(&[1]));
    assert!(poll_once(&mut send).is_pending());
    core::mem::forget(send);
    core::mem::forget(a.qp.send(a.filled(&[2])));
    bed.run(a.qp.send(a.filled(&[3]))).unwrap();
    bed.step();
    // One is the result that nobody takes, the other was never posted.
    assert_eq!(a.pool.available() as u32, BUFS - 2);
    assert_eq!(&*bed.run(bed.b.qp.recv()).unwrap(), [1]);
    assert_eq!(&*bed.run(bed.b.qp.recv()).unwrap(), [3]);
}

#[test]
fn a_qp_lives_as_long_as_its_futures() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let qp = a.dispatcher.qp(&a.pd).depth(4, 4).pool(&a.incoming).create().unwrap();
    let peer = b.dispatcher.qp(&b.pd).depth(4, 4).pool(&b.incoming).create().unwrap();
    crate::bed::connect(&qp, &peer);
    let send = qp.send(a.filled(b"last"));
    drop(qp);
    bed.run(send).unwrap();
    assert_eq!(&*bed.run(peer.recv()).unwrap(), b"last");
    drop(peer);
    bed.step();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
    assert_eq!(a.hca.objects().get("qp"), Some(&1));
}

struct Flag(Arc<AtomicBool>);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Nobody can run the dispatcher any more: its futures end, and its objects with them.
#[test]
fn futures_that_outlive_their_dispatcher_end() {
    let Bed { a, b, fabric } = Bed::new();
    fabric.loss(1.0);
    let srq = a.dispatcher.srq(&a.pd, &a.incoming, 8).unwrap();
    let shared = a.dispatcher.qp(&a.pd).depth(4, 0).srq(&srq).create().unwrap();
    let peer = b.dispatcher.qp(&b.pd).depth(4, 4).pool(&b.incoming).create().unwrap();
    crate::bed::connect(&shared, &peer);
    let mut sends = [a.qp.send(a.filled(b"1")), shared.send(a.filled(b"2")), a.qp.send(a.filled(b"3"))];
    let mut recv = shared.recv();
    assert!(sends[..2].iter_mut().all(|send| poll_once(send).is_pending()));
    assert!(poll_once(&mut recv).is_pending());
    let woken = Arc::new(AtomicBool::new(false));
    let waker = Waker::from(Arc::new(Flag(woken.clone())));
    assert!(Pin::new(&mut sends[0]).poll(&mut Context::from_waker(&waker)).is_pending());
    let End { qp, pool, incoming, pd, dispatcher, hca } = a;
    drop((qp, shared, srq, dispatcher));
    assert!(woken.load(Ordering::Relaxed), "nobody else ends it");
    for (i, send) in sends.iter_mut().enumerate() {
        let Poll::Ready(Err(failed)) = poll_once(send) else { panic!("{i}") };
        assert!(matches!(failed.error, Error::Closed), "{i}: {failed}");
    }
    assert!(matches!(poll_once(&mut recv), Poll::Ready(Err(Error::Closed))));
    drop((sends, recv));
    assert_eq!((pool.available(), incoming.available()), (BUFS as usize, BUFS as usize));
    drop((pool, incoming, pd));
    assert_eq!(hca.objects().get("qp").copied().unwrap_or(0), 0);
    assert_eq!(hca.violations(), []);
}

#[test]
fn a_qp_that_is_dropped_with_operations_in_flight_gives_their_buffers_back() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    bed.fabric.loss(1.0);
    let qp = a.dispatcher.qp(&a.pd).depth(4, 4).pool(&a.incoming).create().unwrap();
    let peer = b.dispatcher.qp(&b.pd).depth(4, 4).pool(&b.incoming).create().unwrap();
    crate::bed::connect(&qp, &peer);
    for i in 0..4 {
        let mut send = qp.send(a.filled(&[i]));
        assert!(poll_once(&mut send).is_pending());
    }
    drop((qp, peer));
    bed.step();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
    bed.fabric.loss(0.0);
    still_works(&bed, 200);
}

#[test]
fn batches_can_be_dropped_at_any_time() {
    drop_everywhere(|bed| {
        let mut batch = bed.a.qp.batch();
        for _ in 0..6 {
            batch.send(bed.a.filled(&[1]));
        }
        batch
    });
}
