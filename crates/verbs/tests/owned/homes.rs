// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools that are registered in several domains, of several devices: a post chooses the key.

use crate::bed::{BUFS, CAP, End, connect_self, loopback, srq};
use std::thread;
use uverbs::attr::{AccessFlags, MwType};
use uverbs::mlx5::Mlx5;
use uverbs::{
    Buf, BufList, BufPart, Cq, Exposed, Pool, PostError, Private, Rc, Shared, SharedBuf, WcStatus, Window,
};
use uverbs_hca::Fabric;

/// Two devices, each connected to itself, and a pool of both.
fn two() -> (End, End, Pool<Private, Mlx5>) {
    let fabric = Fabric::deterministic(7);
    let [a, b] = ["hca0", "hca1"].map(|name| {
        let end = End::new(fabric.device(name).build());
        loopback(&end);
        end
    });
    let pool = a.pd.pool_with(BUFS, 256).also_in(&b.pd).build().unwrap();
    (a, b, pool)
}

fn filled(pool: &Pool<Private, Mlx5>, data: &[u8]) -> Buf<Private, Mlx5> {
    let mut buf = pool.get().unwrap();
    buf.fill(data).unwrap();
    buf
}

fn clean(ends: [&End; 2]) {
    ends.iter().for_each(|end| assert_eq!(end.hca.violations(), []));
}

/// The message goes out of one NIC and into the same, and then the buffers of both go to the other one.
fn round(end: &mut End, source: Buf<Private, Mlx5>, target: Buf<Private, Mlx5>) -> [Buf<Private, Mlx5>; 2] {
    let text = source.to_vec();
    end.qp.rq().unwrap().post(9, target).unwrap();
    end.qp.sq().post(1).signaled().send(source).unwrap();
    let mut done = [end.next(), end.next()];
    done.sort_by_key(|done| done.wc.wr_id);
    let [source, target] = done.map(|done| {
        assert_eq!(done.wc.status, WcStatus::SUCCESS);
        done.buf().unwrap()
    });
    assert_eq!((&*source, &*target), (&*text, &*text));
    [source, target]
}

#[test]
fn a_buffer_is_posted_to_any_of_its_devices() {
    let (mut a, mut b, pool) = two();
    assert!(pool.is_of(&a.pd) && pool.is_of(&b.pd) && !pool.is_of(&a.context.alloc_pd().unwrap()));
    let (source, target) = (filled(&pool, b"to and fro"), pool.get().unwrap());
    let at = source.as_ptr();
    let [source, target] = round(&mut a, source, target);
    let [source, target] = round(&mut b, source, target);
    let [source, target] = round(&mut b, source, target);
    let [source, target] = round(&mut a, source, target);
    assert_eq!(source.as_ptr(), at);
    drop((source, target));
    assert_eq!(pool.available() as u32, BUFS);
    drop(pool);
    assert_eq!(
        (a.hca.objects().get("mr"), b.hca.objects().get("mr")),
        (Some(&1), Some(&1)),
        "those of the ends"
    );
    clean([&a, &b]);
}

#[test]
fn batches_lists_parts_and_shared_queues_choose_the_key() {
    let (mut a, mut b, pool) = two();
    let cap = CAP.max_send_sge(4).max_recv_sge(4);
    for end in [&mut a, &mut b] {
        let mut srq = srq(&end.pd, 8);
        end.qp = end.pd.qp::<Rc>().cq(&end.cq).cap(cap).create().unwrap();
        loopback(end);
        // One is at the first device still, the other where the last round has left it.
        let list = BufList::from([filled(&pool, b"a list "), filled(&pool, b"of parts")]);
        let to = BufList::from([pool.get().unwrap(), pool.get().unwrap()]);
        let mut batch = end.qp.rq().unwrap().batch();
        batch.push(10, to);
        batch.push(11, pool.get().unwrap().part(100..150).unwrap());
        batch.complete().unwrap();
        let mut batch = end.qp.sq().batch();
        batch.wr(1).signaled().send(list);
        batch.wr(2).signaled().send(filled(&pool, b"only a part of it").part(5..11).unwrap());
        batch.complete().unwrap();
        let mut done: Vec<_> = (0..4).map(|_| end.next()).collect();
        done.sort_by_key(|done| done.wc.wr_id);
        assert!(done.iter().all(|done| done.wc.status.is_success()));
        let mut done = done.into_iter();
        let list: BufList<Private, Mlx5> = done.next().unwrap().take().unwrap();
        let part: BufPart<Private, Mlx5> = done.next().unwrap().take().unwrap();
        assert_eq!((list.total(), part.range()), (15, 5..11));
        let to: BufList<Private, Mlx5> = done.next().unwrap().take().unwrap();
        assert_eq!(&to[0][..15], b"a list of parts");
        let into = done.next().unwrap().buf().unwrap();
        assert_eq!(&into[100..], b"a part");
        // An SRQ, single and in a batch.
        let mut qp = end.pd.qp::<Rc>().cq(&end.cq).srq(&srq).cap(CAP).create().unwrap();
        connect_self(&qp);
        srq.post(20, into).unwrap();
        let mut batch = srq.batch();
        batch.push(21, part.into_buf());
        batch.complete().unwrap();
        for i in 0..2 {
            qp.sq().post(i).send_inline(b"to the srq").unwrap();
            assert_eq!(&*end.next().buf().unwrap(), b"to the srq");
        }
        drop((qp, srq, list, to));
        assert_eq!(pool.available() as u32, BUFS);
    }
    clean([&a, &b]);
}

#[test]
fn a_shared_buffer_is_in_flight_on_both_devices() {
    let (mut a, mut b, pool) = two();
    let shared = filled(&pool, b"on both").share();
    for end in [&mut a, &mut b] {
        end.receives(2);
        end.qp.sq().post(1).signaled().send(shared.clone()).unwrap();
        end.qp.sq().post(2).signaled().send(shared.slice(3..7).unwrap()).unwrap();
    }
    for end in [&mut a, &mut b] {
        let mut done: Vec<_> = (0..4).map(|_| end.next()).collect();
        done.sort_by_key(|done| done.wc.wr_id);
        assert!(done.iter().all(|done| done.wc.status.is_success()));
        let mut done = done.into_iter();
        for _ in 0..2 {
            let owner: SharedBuf<Private, Mlx5> = done.next().unwrap().take().unwrap();
            assert_eq!(&*owner, b"on both");
        }
        assert_eq!(&*done.next().unwrap().buf().unwrap(), b"on both");
        assert_eq!(&*done.next().unwrap().buf().unwrap(), b"both");
    }
    let buf = shared.try_unwrap().unwrap();
    // The only owner again, wherever the last one was.
    let other = pool.get().unwrap();
    let [buf, other] = round(&mut b, buf, other);
    drop((buf, other));
    assert_eq!(pool.available() as u32, BUFS);
    clean([&a, &b]);
}

/// A part leaves its entry at the home that it came from.
#[test]
fn a_part_that_was_moved_is_a_whole_buffer_again() {
    let (mut a, mut b, _) = two();
    let pool = a.pd.pool_with(1, 256).also_in(&b.pd).build().unwrap();
    for end in [&mut b, &mut a] {
        end.receives(1);
        end.qp.sq().post(1).signaled().send(filled(&pool, b"0123456789").part(4..6).unwrap()).unwrap();
        for _ in 0..2 {
            drop(end.next());
        }
        let buf = pool.get().unwrap();
        assert_eq!((buf.len(), &buf[..4]), (256, &b"0123"[..]));
        end.receives(1);
        end.qp.sq().post(1).signaled().send(buf).unwrap();
        for _ in 0..2 {
            let done = end.next();
            assert!(done.wc.status.is_success() && &done.buf().unwrap()[..4] == b"0123");
        }
    }
    clean([&a, &b]);
}

#[test]
fn other_domains_refuse_it_as_before() {
    let (a, mut b, pool) = two();
    let other = a.context.alloc_pd().unwrap();
    let mut qp = other.qp::<Rc>().cq(&a.cq).cap(CAP).create().unwrap();
    connect_self(&qp);
    let rejected = qp.sq().post(1).send(filled(&pool, b"refused").part(2..5).unwrap()).unwrap_err();
    let part = rejected.returned.unwrap();
    assert_eq!((rejected.error.reason, part.range()), (PostError::InvalidArgument, 2..5));
    let rejected = qp.rq().unwrap().post(1, part.into_buf()).unwrap_err();
    let buf = rejected.returned.unwrap();
    assert_eq!((rejected.error.reason, &*buf), (PostError::InvalidArgument, &b"refused"[..]));
    let mut batch = qp.rq().unwrap().batch();
    batch.push(1, buf);
    assert_eq!(batch.complete().map_err(|e| e.reason), Err(PostError::InvalidArgument));
    let mut batch = qp.sq().batch();
    batch.wr(1).send(filled(&pool, b"refused").share());
    assert_eq!(batch.complete().map_err(|e| e.reason), Err(PostError::InvalidArgument));
    // Only one of a list is in the domain.
    let list = BufList::from([pool.get().unwrap(), a.pool.get().unwrap()]);
    let rejected = b.qp.sq().post(1).send(list).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    drop(rejected);
    // A full queue says so, to a buffer that it could have moved.
    let full = loop {
        let mut batch = b.qp.sq().batch();
        batch.wr(1).send(pool.get().unwrap());
        match batch.complete() {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(full, PostError::QueueFull);
    let rejected = b.qp.sq().post(1).send(pool.get().unwrap()).unwrap_err();
    assert_eq!((rejected.error.reason, rejected.returned.is_some()), (PostError::QueueFull, true));
    b.qp.reset().unwrap();
    drop(rejected);
    assert_eq!((pool.available() as u32, a.available()), (BUFS, BUFS));
}

/// A transfer goes on by the other NIC, without a copy.
#[test]
fn the_other_device_takes_over() {
    let (mut a, mut b, pool) = two();
    let shared = filled(&pool, b"must arrive").share();
    a.qp.sq().post(1).signaled().send(shared.clone()).unwrap();
    let own = filled(&pool, b"and this");
    a.hca.unplug();
    b.receives(1);
    b.qp.sq().post(2).signaled().send(shared.clone()).unwrap();
    let mut done = [b.next(), b.next()];
    done.sort_by_key(|done| done.wc.wr_id);
    assert!(done.iter().all(|done| done.wc.status.is_success()));
    let [sent, received] = done;
    assert_eq!(&*received.buf().unwrap(), b"must arrive");
    drop(sent);
    let End { qp, cq, pd, context, .. } = a;
    drop((qp, cq, pd, context));
    let buf = shared.try_unwrap().expect("the removed device has it no more");
    let [buf, own] = round(&mut b, own, buf);
    drop((buf, own));
    assert_eq!((pool.available() as u32, b.hca.violations()), (BUFS, vec![]));
}

#[test]
fn peers_have_a_key_for_each_device() {
    let (mut a, mut b, _) = two();
    let rights = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::MW_BIND;
    let pool = a.pd.pool_with(2, 64).exposed(rights).also_in(&b.pd).build().unwrap();
    let table = pool.get().unwrap();
    for (end, text) in [(&mut a, b"by the first"), (&mut b, b"by the other")] {
        let to = table.remote_region_in(&end.pd).unwrap();
        end.qp.sq().post(1).signaled().write_inline(text, &to).unwrap();
        assert_eq!(end.next().wc.status, WcStatus::SUCCESS);
        let mut copy = [0; 12];
        table.read_at(0, &mut copy).unwrap();
        assert_eq!(&copy, text);
    }
    assert_eq!(table.remote_region(), table.remote_region_in(&a.pd).unwrap());
    let other = a.context.alloc_pd().unwrap();
    assert!(table.remote_region_in(&other).unwrap_err().to_string().contains("not in this domain"));
    // A window of the second device.
    let window = Window::new(b.pd.alloc_mw(MwType::Type2).unwrap(), table);
    b.qp.sq().post(2).signaled().bind(window, AccessFlags::REMOTE_WRITE).unwrap();
    let window: Window<Mlx5> = b.next().take().unwrap();
    b.qp.sq().post(3).signaled().write_inline(b"by a window", &window.remote_region().unwrap()).unwrap();
    assert_eq!(b.next().wc.status, WcStatus::SUCCESS);
    let mut copy = [0; 11];
    window.read_at(0, &mut copy).unwrap();
    assert_eq!(&copy, b"by a window");
    // The buffer is at the window's device now, and the pool describes it so.
    let buf: Buf<Exposed, Mlx5> = window.close().unwrap();
    assert_eq!(buf.remote_region(), buf.remote_region_in(&b.pd).unwrap());
    drop(buf);
    let window = Window::new(other.alloc_mw(MwType::Type2).unwrap(), pool.get().unwrap());
    let rejected = a.qp.sq().post(4).bind(window, AccessFlags::REMOTE_WRITE).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    drop(rejected);
    assert_eq!(pool.available(), 2);
    clean([&a, &b]);
}

/// What was registered is deregistered, if another device refuses.
#[test]
fn a_device_that_refuses_ends_the_creation() {
    let (a, b, _) = two();
    b.hca.unplug();
    let before = a.hca.objects().get("mr").copied();
    assert!(a.pd.pool_with(4, 64).also_in(&b.pd).build().is_err());
    assert_eq!(a.hca.objects().get("mr").copied(), before);
    // The same domain twice is one.
    let pool = a.pd.pool_with(4, 64).also_in(&a.pd).build().unwrap();
    assert_eq!(a.hca.objects().get("mr").copied(), before.map(|n| n + 1));
    drop(pool);
}

/// Owners of the same buffers are posted to both devices by two threads, and dropped while a third polls.
#[test]
fn two_threads_post_the_same_buffers() {
    const ROUNDS: u64 = 300;
    let fabric = Fabric::new(7);
    let ends = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build()));
    let pool = ends[0].pd.pool_with(8, 64).also_in(&ends[1].pd).build().unwrap();
    let tables = [0, 1].map(|i| {
        let end: &End = &ends[i];
        end.pd.pool_with(1, 64).exposed(AccessFlags::REMOTE_WRITE).build().unwrap().get().unwrap()
    });
    thread::scope(|scope| {
        let posters = [0, 1].map(|i| {
            let (sender, shares) = std::sync::mpsc::channel::<SharedBuf<Private, Mlx5>>();
            let (end, to): (&End, _) = (&ends[i], tables[i].remote_region());
            scope.spawn(move || {
                let cq: Cq<Shared, Mlx5> = end.context.cq_with(64, None).unwrap();
                let mut qp = end.pd.qp::<Rc>().cq(&cq).cap(CAP).create().unwrap();
                connect_self(&qp);
                let mut flying = 0;
                for shared in shares {
                    flying += u32::from(qp.sq().post(1).signaled().write(shared, &to).is_ok());
                    cq.poll_each(8, |done| {
                        assert!(done.status().is_success());
                        flying -= 1;
                    })
                    .unwrap();
                }
                while flying > 0 {
                    cq.poll_each(8, |_| flying -= 1).unwrap();
                    thread::yield_now();
                }
            });
            sender
        });
        for round in 0..ROUNDS {
            let mut buf = pool.acquire(core::time::Duration::from_secs(20)).unwrap();
            buf.fill(&[round as u8; 16]).unwrap();
            let shared = buf.share();
            for poster in &posters {
                poster.send(shared.slice(0..8 + round as usize % 8).unwrap()).unwrap();
            }
        }
        drop(posters);
    });
    assert_eq!(pool.available(), 8);
    ends.iter().for_each(|end| assert_eq!(end.hca.violations(), []));
}
