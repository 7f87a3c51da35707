// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers with several owners: the source of several posts at once.

use crate::bed::{BUFS, CAP, End, connect, connect_self, pair, real_time_pair};
use crate::ends::{What, refusing};
use core::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use uverbs::attr::AccessFlags;
use uverbs::mlx5::Mlx5;
use uverbs::{BufList, Cq, Exclusive, PostError, Private, Qp, Rc, Shared, SharedBuf, WcStatus};
use uverbs_hca::{Fabric, Hca};

/// A second QP of an end, connected to one of another.
fn second(a: &End, b: &End) -> [Qp<Rc, Exclusive, Mlx5>; 2] {
    let qps = [a, b].map(|end| end.pd.qp::<Rc>().cq(&end.cq).cap(CAP).create().unwrap());
    connect(&qps[0], &qps[1]).unwrap();
    qps
}

/// The message arrives once for each post; the buffer comes back with the last one.
#[test]
fn one_buffer_is_the_source_of_several_posts() {
    let (mut a, mut b) = pair();
    let [mut other, mut peer] = second(&a, &b);
    b.receives(2);
    peer.rq().unwrap().post(102, b.pool.get().unwrap()).unwrap();
    let table = b.pd.pool_with(1, 64).exposed(AccessFlags::REMOTE_WRITE).build().unwrap().get().unwrap();

    let buf = a.filled(b"to all of them");
    let at = buf.as_ptr();
    let shared = buf.share();
    a.qp.sq().post(1).signaled().send(shared.clone()).unwrap();
    other.sq().post(2).signaled().send(shared.clone()).unwrap();
    a.qp.sq().post(3).signaled().write(shared.clone(), &table.remote_region()).unwrap();
    let mut batch = a.qp.sq().batch();
    batch.wr(4).signaled().send(shared.slice(3..6).unwrap());
    batch.complete().unwrap();
    // The program reads it during the posts.
    assert_eq!((&*shared, shared.as_ptr()), (&b"to all of them"[..], at));
    let shared = shared.try_unwrap().expect_err("work requests are in flight");
    drop(shared);
    assert_eq!(a.available(), BUFS - 1);

    let mut back = Vec::new();
    for _ in 0..4 {
        let done = a.next();
        assert_eq!(done.wc.status, WcStatus::SUCCESS);
        back.push(done.take::<SharedBuf<Private, Mlx5>>().expect("an owner of the buffer"));
    }
    assert!(back.iter().all(|owner| **owner == *b"to all of them"), "the whole buffer, also of a part");
    let mut arrived: Vec<_> = (0..3).map(|_| b.next().buf().unwrap().to_vec()).collect();
    arrived.sort();
    assert_eq!(arrived, [&b"all"[..], b"to all of them", b"to all of them"]);
    let mut copy = [0; 14];
    table.read_at(0, &mut copy).unwrap();
    assert_eq!(&copy, b"to all of them");

    // The last owner can change it again.
    let last = back.pop().unwrap().try_unwrap().expect_err("three others");
    back.clear();
    let mut buf = last.try_unwrap().expect("the only owner");
    assert_eq!((&*buf, buf.capacity()), (&b"to all of them"[..], 256));
    buf.fill(b"again").unwrap();
    drop(buf);
    assert_eq!(a.available(), BUFS);
    assert!(a.hca.violations().is_empty() && b.hca.violations().is_empty());
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "a range that must be refused")]
fn parts_of_a_shared_buffer_are_inside_it() {
    let (a, _b) = pair();
    let shared = a.filled(b"0123456789").share();
    let part = shared.slice(2..8).unwrap();
    assert_eq!((&*part, &*part.slice(1..3).unwrap()), (&b"234567"[..], &b"34"[..]));
    assert!(part.slice(6..6).unwrap().is_empty());
    // Not behind the part, nor behind the length of the buffer, though its capacity has more.
    for range in [0..7, 7..7, 5..2, 0..usize::MAX, usize::MAX - 1..usize::MAX] {
        let error = part.slice(range.clone()).unwrap_err().to_string();
        assert!(error.starts_with("shared_buf: invalid range"), "{range:?}: {error}");
    }
    assert!(shared.slice(0..11).is_err());
    drop((shared, part));
    assert_eq!(a.available(), BUFS);
}

/// A post that fails gives the same part back.
#[test]
fn a_refused_part_comes_back_as_it_was() {
    let (mut a, mut b) = pair();
    let part = b.filled(b"0123456789").share().slice(2..5).unwrap();
    let rejected = a.qp.sq().post(1).send(part).unwrap_err();
    let part = rejected.returned.unwrap();
    assert_eq!(
        (rejected.error.reason, &*part),
        (PostError::InvalidArgument, &b"234"[..]),
        "of another domain"
    );
    let short = a.filled(b"x").share();
    let to = uverbs::RemoteRegion::new(0, 2, 0).unwrap();
    let rejected = b.qp.sq().post(1).write(part, &to).unwrap_err();
    let part = rejected.returned.unwrap();
    assert_eq!((rejected.error.reason, &*part), (PostError::InvalidLength, &b"234"[..]));
    let mut posted = 0;
    let rejected = loop {
        match b.qp.sq().post(posted).send(part.clone()) {
            Ok(()) => posted += 1,
            Err(rejected) => break rejected,
        }
    };
    assert_eq!((rejected.error.reason, &*rejected.returned.unwrap()), (PostError::QueueFull, &b"234"[..]));
    // A batch drops what it refuses.
    let mut batch = a.qp.sq().batch();
    batch.wr(1).send(short.clone());
    batch.wr(2).send(part.clone());
    assert_eq!(batch.complete().unwrap_err(), PostError::InvalidArgument);
    assert!(short.try_unwrap().is_ok());
    b.qp.reset().unwrap();
    assert!(part.try_unwrap().is_ok());
    assert_eq!((a.available(), b.available()), (BUFS, BUFS));
}

/// Taken as another type, it is not given out as the only one.
#[test]
fn an_owner_is_not_given_out_as_a_buffer() {
    let (mut a, mut b) = pair();
    b.receives(2);
    let shared = a.filled(b"shared").share();
    for _ in 0..2 {
        a.qp.sq().post(1).signaled().send(shared.clone()).unwrap();
    }
    assert!(a.next().buf().is_none());
    assert!(a.next().take::<BufList<Private, Mlx5>>().is_none());
    assert!(shared.try_unwrap().is_ok(), "those that were not taken are dropped");
    assert_eq!(a.available(), BUFS);
}

/// Memory that peers may write, and memory that is not mapped, have several owners, too.
#[test]
fn exposed_buffers_have_several_owners() {
    let (mut a, mut b) = pair();
    b.receives(1);
    let pool = a.pd.pool_with(1, 64).exposed(AccessFlags::REMOTE_WRITE).build().unwrap();
    let buf = pool.get().unwrap();
    buf.write_at(0, b"exposed").unwrap();
    let shared = buf.share();
    let part = shared.slice(2..7).unwrap();
    a.qp.sq().post(1).signaled().send(part.clone()).unwrap();
    assert_eq!(&*b.next().buf().unwrap(), b"posed");
    let mut copy = [0; 3];
    part.read_at(2, &mut copy).unwrap();
    assert_eq!(&copy, b"sed");
    assert!(part.read_at(3, &mut copy).is_err() && part.read_at(usize::MAX, &mut copy).is_err());
    drop(shared);
    assert!(a.next().take::<SharedBuf<Private, Mlx5>>().is_none(), "of another kind of access");
    assert!(part.try_unwrap().is_ok());
    assert_eq!(pool.available(), 1);
}

/// The owners of the program are dropped by another thread, while the completions are polled.
#[test]
fn owners_are_dropped_during_polls() {
    const ROUNDS: u64 = 400;
    let end = End::new(Hca::new());
    let cq: Cq<Shared, Mlx5> = end.context.cq_with(64, None).unwrap();
    let mut qp = end.pd.qp::<Rc>().cq(&cq).cap(CAP).create().unwrap();
    connect_self(&qp);
    let table = end.pd.pool_with(1, 64).exposed(AccessFlags::REMOTE_WRITE).build().unwrap().get().unwrap();
    let stop = AtomicBool::new(false);
    let (owners, dropper) = std::sync::mpsc::channel::<SharedBuf<Private, Mlx5>>();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if cq.poll_each(8, |done| drop(done)) == Ok(0) {
                    thread::yield_now();
                }
            }
        });
        scope.spawn(move || {
            for owner in dropper {
                assert!(owner.iter().all(|byte| *byte == owner[0]), "{:?}", &*owner);
                if let Ok(mut buf) = owner.try_unwrap() {
                    buf.fill(&[0xff; 8]).unwrap();
                }
            }
        });
        let mut round = 0;
        while round < ROUNDS {
            let Some(mut buf) = end.pool.try_get() else {
                thread::yield_now();
                continue;
            };
            buf.fill(&[round as u8; 32]).unwrap();
            let shared = buf.share();
            for _ in 0..3 {
                let wr = qp.sq().post(round).signaled();
                if let Err(rejected) = wr.write(shared.clone(), &table.remote_region()) {
                    assert_eq!(rejected.error, PostError::QueueFull);
                    thread::yield_now();
                }
            }
            owners.send(shared).unwrap();
            round += 1;
        }
        drop(owners);
        while end.available() < BUFS {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(end.available(), BUFS, "each buffer came back once");
    assert!(end.hca.violations().is_empty());
}

/// The queues end while the program has owners, too, and in the other order.
#[test]
fn queues_end_with_shared_buffers_in_flight() {
    for steps in 0..8 {
        for reset in [false, true] {
            let (mut a, b) = pair();
            let [mut other, _peer] = second(&a, &b);
            let shared = a.filled(b"shared").share();
            for qp in [&mut a.qp, &mut other] {
                qp.sq().post(1).send(shared.clone()).unwrap();
                qp.sq().post(2).signaled().send(shared.slice(1..3).unwrap()).unwrap();
            }
            for _ in 0..steps {
                a.hca.fabric().run_for(core::time::Duration::from_nanos(400));
            }
            if reset {
                a.qp.reset().unwrap()
            } else {
                drop(a.qp)
            }
            let shared = shared.try_unwrap().expect_err("the other queue has it");
            other.reset().unwrap();
            while let Some(done) = a.cq.poll_one().unwrap() {
                drop(done);
            }
            let buf = shared.try_unwrap().expect("no queue has it");
            assert_eq!(&*buf, b"shared");
            drop(buf);
            assert_eq!(a.pool.available() as u32, BUFS, "steps {steps}");
            assert_eq!((a.hca.violations(), b.hca.violations()), (vec![], vec![]));
        }
    }
}

/// The work request is in flight until the kernel has destroyed the queue, which it does after the removal.
#[test]
fn a_device_is_removed_with_shared_buffers_in_flight() {
    let (mut a, b) = real_time_pair();
    b.hca.set_link_up(false);
    let shared = a.filled(b"shared").share();
    a.qp.sq().post(1).signaled().send(shared.clone()).unwrap();
    a.hca.unplug();
    let shared = shared.try_unwrap().expect_err("the queue has it");
    let End { qp, cq, pool, hca, pd, context, .. } = a;
    thread::spawn(move || drop((qp, cq, pd, context))).join().unwrap();
    assert_eq!(&*shared, b"shared");
    drop(shared.try_unwrap().expect("the queue has ended"));
    assert_eq!((pool.available() as u32, hca.violations()), (BUFS, vec![]));
}

/// What the device may use stays mapped: the owners of the program go on, and the pool never has the buffer again.
#[test]
fn a_kernel_that_refuses_keeps_shared_buffers() {
    let (mut a, refuse) = refusing(What::Everything);
    let shared = a.filled(b"shared").share();
    a.qp.sq().post(1).signaled().send(shared.clone()).unwrap();
    refuse.store(true, Ordering::Relaxed);
    let End { qp, cq, pool, pd, context, hca } = a;
    drop((qp, cq, pd, context));
    let shared = shared.try_unwrap().expect_err("the queue has it for ever");
    assert_eq!((&*shared, pool.available() as u32), (&b"shared"[..], BUFS - 1));
    drop((shared, pool));
    assert_eq!(hca.objects().get("mr"), Some(&1), "the memory stays registered, and mapped");
}

#[test]
fn forgotten_owners_keep_the_buffer() {
    let a = End::new(Fabric::deterministic(7).device("hca0").build());
    let shared = a.filled(b"kept").share();
    core::mem::forget(shared.clone());
    let shared = shared.try_unwrap().unwrap_err();
    drop(shared);
    assert_eq!(a.available(), BUFS - 1);
}
