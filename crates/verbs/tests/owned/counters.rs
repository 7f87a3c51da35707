// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of queues, CQs, pools and contexts.

use crate::bed::{CAP, End, attr, connect, connect_self, loopback, pair, real_time_pair, srq};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use uverbs::attr::QpState;
use uverbs::{PostError, Rc, RemoteRegion};
use uverbs_hca::{Fabric, Hca};

#[test]
fn posts_doorbells_and_completions_are_counted() {
    let (mut a, mut b) = pair();
    b.receives(6);
    let data = a.filled(b"one");
    a.qp.sq().post(1).signaled().send(data).unwrap();
    // A batch: three work requests, one doorbell, one completion.
    let [first, second, third] = [a.filled(b"two"), a.filled(b"three"), a.filled(b"four")];
    let mut batch = a.qp.sq().batch();
    batch.wr(2).send(first);
    batch.wr(3).send(second);
    batch.wr(4).signaled().send(third);
    batch.complete().unwrap();
    // Nothing was posted by these.
    a.qp.sq().batch().complete().unwrap();
    let lost = a.filled(b"lost");
    let mut batch = a.qp.sq().batch();
    batch.wr(9).send(lost);
    batch.abort();
    let before = a.qp.counters().send;
    assert_eq!((before.posts, before.doorbells, before.completed), (4, 2, 0));
    for wr_id in [1, 4] {
        assert_eq!(a.next().wc.wr_id, wr_id);
    }
    let now = a.qp.counters();
    assert_eq!((now.send.posts, now.send.doorbells, now.send.completed), (4, 2, 4));
    assert_eq!((now.send.full, now.send.refused, now.send.errors, now.recv.posts), (0, 0, 0, 0));
    let cq = a.cq.counters();
    assert_eq!((cq.completions, cq.errors), (2, 0));
    for _ in 0..4 {
        drop(b.next());
    }
    let recv = b.qp.rq().unwrap().counters();
    assert_eq!((recv.posts, recv.doorbells, recv.completed), (6, 6, 4));
    assert_eq!(b.cq.counters().completions, 4);

    // Each half has its own; the other face and inline data count, too.
    a.qp.send_inline(b"five").unwrap();
    a.qp.recv(a.pool.get().unwrap()).unwrap();
    let pool = a.pool.clone();
    let mut batch = a.qp.rq().unwrap().batch();
    batch.push(1, pool.get().unwrap());
    batch.push_empty(2);
    batch.complete().unwrap();
    a.qp.rq().unwrap().post_empty(3).unwrap();
    let now = a.qp.counters();
    assert_eq!((now.send.posts, now.recv.posts, now.recv.doorbells), (5, 4, 3));
    assert_eq!(a.qp.sq().counters(), now.send);
}

#[test]
fn full_queues_and_other_refusals_are_counted() {
    let (mut a, b) = pair();
    let depth = a.qp.cap().max_send_wr;
    let filled = (0..depth).map(|i| a.qp.sq().post(i.into()).send_inline(b"x")).filter(Result::is_ok).count();
    assert_eq!(filled, depth as usize);
    for n in 1..4 {
        let error = a.qp.send_inline(b"x").unwrap_err();
        assert_eq!((error.reason, a.qp.counters().send.full), (PostError::QueueFull, n));
    }
    // A batch counts once.
    let mut batch = a.qp.sq().batch();
    batch.wr(1).send_inline(b"x");
    batch.wr(2).send_inline(b"x");
    batch.complete().unwrap_err();
    // A buffer of another domain.
    let foreign = b.pool.get().unwrap();
    drop(a.qp.recv(foreign).unwrap_err());
    let remote = RemoteRegion::new(0x1000, 4, 1).unwrap();
    let long = b.pool.get().unwrap();
    drop(a.qp.write(long, &remote).unwrap_err());
    let now = a.qp.counters();
    assert_eq!((now.send.full, now.send.refused, now.recv.refused), (4, 1, 1));
    assert_eq!((now.send.posts, now.send.doorbells), (depth.into(), depth.into()));

    let recvs = a.qp.cap().max_recv_wr;
    for _ in 0..recvs {
        a.qp.rq().unwrap().post_empty(1).unwrap();
    }
    a.qp.rq().unwrap().post_empty(1).unwrap_err();
    assert_eq!((a.qp.counters().recv.posts, a.qp.counters().recv.full), (recvs.into(), 1));
}

#[test]
fn errors_flushes_and_rnr_are_counted_without_a_look_at_them() {
    let (mut a, b) = pair();
    let wrong = RemoteRegion::new(0x1000, 64, 0x1234).unwrap();
    let buf = a.filled(b"12345678");
    a.qp.sq().post(7).signaled().write(buf, &wrong).unwrap();
    a.qp.sq().post(8).signaled().send_inline(b"x").unwrap();
    a.receives(2);
    a.hca.run();
    let mut polled = 0;
    while polled < 4 {
        // The closure takes neither the status nor the buffer.
        polled += a.cq.poll_each(8, |_done| ()).unwrap();
        a.hca.run();
    }
    let now = a.qp.counters();
    assert_eq!((now.send.errors, now.send.flushed, now.send.rnr), (1, 1, 0));
    assert_eq!((now.recv.errors, now.recv.flushed, now.recv.completed), (0, 2, 2));
    assert_eq!((a.cq.counters().completions, a.cq.counters().errors), (4, 4));
    drop(b);

    // The peer has no receive: after the retries the send fails.
    let fabric = Fabric::deterministic(3);
    let [mut a, b] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build()));
    let attr = attr().rnr_retry(1);
    let ends = [&a, &b].map(|end| {
        end.qp.init(&attr).unwrap();
        end.qp.control().endpoint(1, &attr).unwrap()
    });
    a.qp.connect(&ends[0], &ends[1], &attr).unwrap();
    b.qp.connect(&ends[1], &ends[0], &attr).unwrap();
    a.qp.send_inline(b"x").unwrap();
    drop(a.next());
    let now = a.qp.counters().send;
    assert_eq!((now.errors, now.flushed, now.rnr), (1, 0, 1));
}

#[test]
fn a_reset_keeps_them_and_counts_no_completion() {
    let (mut a, b) = pair();
    a.receives(5);
    for i in 0..3 {
        a.qp.sq().post(i).send_inline(b"x").unwrap();
    }
    a.qp.reset().unwrap();
    let now = a.qp.counters();
    assert_eq!((now.send.posts, now.send.completed, now.recv.posts, now.recv.completed), (3, 0, 5, 0));
    b.qp.control().modify_state(QpState::RESET).unwrap();
    connect(&a.qp, &b.qp).unwrap();
    let (mut a, mut b) = (a, b);
    b.receives(1);
    a.qp.send_inline(b"x").unwrap();
    drop(a.next());
    let now = a.qp.counters();
    assert_eq!((now.send.posts, now.send.completed), (4, 1));
}

#[test]
fn a_context_keeps_what_its_objects_have_counted() {
    let mut end = End::new(Hca::new());
    loopback(&end);
    let other = end.context.clone();
    for round in 1..4_u64 {
        end.receives(2);
        end.qp.send_inline(b"x").unwrap();
        for _ in 0..2 {
            drop(end.next());
        }
        let sums = other.counters().unwrap();
        assert_eq!((sums.send.posts, sums.recv.posts, sums.cq.completions), (round, 2 * round, 2 * round));
        assert_eq!((sums.send.completed, sums.recv.completed), (round, round));
        // Another QP and another CQ, in place of these.
        let queues = other.queue_counters().unwrap();
        assert_eq!(queues.iter().filter(|(queue, _)| queue.number() == end.qp.qp_num()).count(), 2);
        let id = end.cq.id();
        let cqs = other.cq_counters().unwrap();
        assert_eq!(cqs.iter().find(|(cq, _)| *cq == id).unwrap().1, end.cq.counters());
        let cq = end.context.cq_with(64, None).unwrap();
        end.qp = end.pd.qp::<Rc>().cq(&cq).cap(CAP).create().unwrap();
        end.cq = cq;
        connect_self(&end.qp);
        assert_eq!(other.counters().unwrap(), sums, "the objects are gone, their counts are not");
    }
}

#[test]
fn receives_of_an_srq_are_its_own() {
    let mut end = End::new(Hca::new());
    let mut shared = srq(&end.pd, 8);
    let mut qp = end.pd.qp::<Rc>().cq(&end.cq).srq(&shared).cap(CAP).create().unwrap();
    connect_self(&qp);
    for i in 0..4 {
        shared.post(i, end.pool.get().unwrap()).unwrap();
    }
    qp.send_inline(b"x").unwrap();
    for _ in 0..2 {
        drop(end.next());
    }
    let now = shared.counters();
    assert_eq!((now.posts, now.doorbells, now.completed), (4, 4, 1));
    assert_eq!((qp.counters().send.completed, qp.counters().recv.posts), (1, 0));
    drop(qp);
    drop(shared);
    let sums = end.context.counters().unwrap();
    assert_eq!((sums.recv.posts, sums.recv.completed, sums.cq.completions), (4, 1, 2));
}

#[test]
fn pools_count_those_that_find_no_buffer() {
    let end = End::new(Hca::new());
    let pool = end.pd.pool(1, 64).unwrap();
    let buf = pool.get().unwrap();
    assert_eq!((pool.counters().buffers, pool.counters().available, pool.counters().empty), (1, 0, 0));
    assert!(pool.get().is_err() && pool.try_get().is_none());
    assert!(pool.acquire(Duration::from_millis(1)).is_err());
    let now = pool.counters();
    assert_eq!((now.empty, now.waits, now.timeouts), (2, 1, 1));
    drop(buf);
    drop(pool.acquire(Duration::ZERO).unwrap());
    let now = pool.counters();
    assert_eq!((now.available, now.empty, now.waits, now.timeouts), (1, 2, 1, 1));
}

#[test]
fn another_thread_reads_while_this_one_posts_and_polls() {
    let (mut a, mut b) = real_time_pair();
    let (control, context) = (a.qp.control().clone(), a.context.clone());
    let [begun, done] = [false; 2].map(AtomicBool::new);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut qp, mut sums, mut reads) = (control.counters(), context.counters().unwrap(), 0_u64);
            loop {
                let ends = done.load(Ordering::Acquire);
                let (next, all) = (control.counters(), context.counters().unwrap());
                assert!(next.send.posts >= qp.send.posts && next.send.doorbells >= qp.send.doorbells);
                assert!(next.send.completed >= qp.send.completed, "{next:?} after {qp:?}");
                assert!(next.send.completed <= next.send.posts);
                assert!(all.cq.completions >= sums.cq.completions);
                (qp, sums, reads) = (next, all, reads + 1);
                begun.store(true, Ordering::Release);
                if ends {
                    return (qp, sums, reads);
                }
            }
        });
        // On a busy machine a thread may begin late.
        while !begun.load(Ordering::Acquire) && !reader.is_finished() {
            std::thread::yield_now();
        }
        for _ in 0..500 {
            b.receives(1);
            a.qp.send_inline(b"x").unwrap();
            drop(a.cq.wait().unwrap());
            drop(b.cq.wait().unwrap());
        }
        done.store(true, Ordering::Release);
        let (qp, sums, reads) = reader.join().unwrap();
        assert!(reads > 1);
        assert_eq!((qp.send.posts, qp.send.completed, sums.cq.completions), (500, 500, 500));
    });
}

#[test]
fn a_child_of_fork_has_the_values_of_its_parent() {
    let (mut a, mut b) = pair();
    b.receives(2);
    a.qp.send_inline(b"x").unwrap();
    drop((a.next(), b.next()));
    let (before, sums) = (a.qp.counters(), a.context.counters().unwrap());
    // SAFETY: the child calls this crate only, which takes no lock that another thread can hold (the fabric has no thread), and ends by
    // `_exit`.
    #[expect(unsafe_code, reason = "fork")]
    let child = unsafe { nix::unistd::fork() }.unwrap();
    if let nix::unistd::ForkResult::Parent { child } = child {
        let status = nix::sys::wait::waitpid(child, None).unwrap();
        assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        a.qp.send_inline(b"x").unwrap();
        drop((a.next(), b.next()));
        let now = a.qp.counters().send;
        assert_eq!((now.posts, now.completed, now.refused), (2, 2, 0), "the child has changed nothing");
        return;
    }
    let result = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        assert_eq!((a.qp.counters(), a.context.counters().unwrap()), (before, sums));
        a.qp.send_inline(b"x").unwrap_err();
        let now = a.qp.counters().send;
        assert_eq!((now.posts, now.completed, now.refused), (1, 1, 1));
    }));
    // SAFETY: ends the child without what the parent registered.
    #[expect(unsafe_code, reason = "_exit")]
    unsafe {
        nix::libc::_exit(i32::from(result.is_err()))
    }
}
