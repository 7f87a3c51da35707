// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues that end, or whose device is removed, with batches in flight.

use crate::bed::{BUFS, End, pair, real_time_pair};
use uverbs::Cq;
use uverbs::{Exclusive, mlx5::Mlx5};

/// Posts a batch whose last work request is signaled.
fn batch(end: &mut End, n: u64) {
    let bufs: Vec<_> = (0..n).map(|_| end.filled(b"batch")).collect();
    let mut batch = end.qp.sq().batch();
    for (i, buf) in bufs.into_iter().enumerate() {
        let wr = batch.wr(i as u64);
        if i as u64 + 1 == n { wr.signaled().send(buf) } else { wr.send(buf) }
    }
    batch.complete().unwrap();
}

fn received(end: &mut End, n: u64) {
    let bufs: Vec<_> = (0..n).map(|_| end.pool.get().unwrap()).collect();
    let mut batch = end.qp.rq().unwrap().batch();
    bufs.into_iter().enumerate().for_each(|(i, buf)| batch.push(100 + i as u64, buf));
    batch.complete().unwrap();
}

/// Both ends with receives, and with batches on their way.
fn with_batches((mut a, mut b): (End, End)) -> (End, End) {
    received(&mut a, 8);
    received(&mut b, 8);
    batch(&mut a, 8);
    batch(&mut b, 4);
    (a, b)
}

/// In each state of the transfer, and in each order of the drops.
#[test]
fn a_qp_is_dropped_with_batches_in_flight() {
    for steps in 0..12 {
        for polled in [false, true] {
            for cq_first in [false, true] {
                let (mut a, mut b) = with_batches(pair());
                for _ in 0..steps {
                    a.hca.fabric().run_for(core::time::Duration::from_nanos(400));
                }
                let kept: Vec<_> = if polled {
                    (0..3).filter_map(|_| a.cq.poll_one().unwrap()).collect()
                } else {
                    Vec::new()
                };
                let End { qp, mut cq, pool, hca, .. } = a;
                if cq_first {
                    drop(cq);
                    drop(qp);
                } else {
                    drop(qp);
                    assert!(cq.poll_one().unwrap().is_none(), "no completion of a QP that is gone");
                    drop(cq);
                }
                drop(kept);
                assert_eq!(pool.available() as u32, BUFS, "steps {steps}");
                hca.run();
                assert_eq!((hca.violations(), hca.objects().get("qp")), (vec![], None));
                b.qp.reset().unwrap();
                while b.cq.poll_one().unwrap().is_some() {}
                assert_eq!(b.available(), BUFS);
                assert_eq!(b.hca.violations(), []);
            }
        }
    }
}

/// Whatever the device has reported until then comes back; the rest when the QP is dropped, or is leaked.
#[test]
fn a_device_is_removed_with_batches_in_flight() {
    for steps in 0..12 {
        let (mut a, mut b) = with_batches(pair());
        for _ in 0..steps {
            a.hca.fabric().run_for(core::time::Duration::from_nanos(400));
        }
        a.hca.unplug();
        a.hca.run();
        let mut done = 0;
        while let Ok(Some(_)) = a.cq.poll_one() {
            done += 1;
        }
        assert!(done <= 12 + 4, "{done}");
        assert!(a.qp.reset().is_err() && a.qp.control().state().is_err());
        let _ = a.qp.sq().post(9).signaled().send_inline(b"late");
        let own = a.pool.get().unwrap();
        let End { qp, cq, pool, pd, context, hca } = a;
        drop((qp, cq, pd, context));
        let available = pool.available() as u32;
        assert!(available < BUFS, "{available}");
        drop((pool, own));
        assert_eq!(hca.violations(), []);
        b.hca.run();
        while b.cq.poll_one().unwrap().is_some() {}
        b.qp.reset().unwrap();
        assert_eq!(b.available(), BUFS, "steps {steps}");
    }
}

/// The fabric runs by itself, and another thread polls.
#[test]
fn queues_end_at_any_time() {
    for i in 0..60 {
        let (mut a, mut b) = real_time_pair();
        received(&mut a, 8);
        received(&mut b, 8);
        let drains = |cq: &mut Cq<Exclusive, Mlx5>| while let Ok(Some(_)) = cq.poll_one() {};
        batch(&mut a, 8);
        std::thread::sleep(core::time::Duration::from_micros(i * 5));
        drains(&mut b.cq);
        let End { qp, mut cq, pool, hca, pd, context, .. } = a;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..100).for_each(|_| _ = cq.poll_one()));
            if i % 2 == 0 {
                drop(qp);
            } else {
                hca.unplug();
                drop(qp);
            }
        });
        if i % 2 == 0 {
            assert_eq!(pool.available() as u32, BUFS);
        }
        drop((cq, pool, pd, context));
        assert_eq!(hca.violations(), []);
    }
}
