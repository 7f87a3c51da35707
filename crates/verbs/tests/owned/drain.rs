// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of QPs that receive from a shared queue: every buffer comes back, also while other threads use the queue.

use crate::bed::{BUFS, CAP, End, attr, connect, connect_self, pair, srq};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::thread;
use uverbs::mlx5::Mlx5;
use uverbs::{Cq, Qp, Srq};
use uverbs::{
    Exclusive,
    attr::{QpState, SrqAttr, SrqInitAttr},
};
use uverbs::{PostError, Rc, Shared, WcOpcode};
use uverbs_hca::{Fabric, Hca};

/// A limit that only a bug reaches.
const LIMIT: Duration = Duration::from_secs(100);

#[test]
fn every_buffer_of_a_shared_queue_comes_back() {
    let fabric = Fabric::new(0);
    let [mut client, mut server] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build()));
    let mut queue = srq(&server.pd, 8);
    let qp = server.pd.qp::<Rc>().cq(&server.cq).srq(&queue).cap(CAP).create().unwrap();
    connect(&client.qp, &qp).unwrap();
    for i in 0..8 {
        queue.post(i, server.pool.get().unwrap()).unwrap();
    }
    for i in 0..3 {
        client.qp.sq().post(i).signaled().send_inline(b"not polled").unwrap();
        assert!(client.next().wc.status.is_success());
    }
    let mut messages = Vec::new();
    let drained = queue.drain(qp, &mut server.cq, LIMIT, |done| {
        messages.push((done.wc.wr_id, done.buf().expect("the buffer of a receive").to_vec()));
    });
    drained.map_err(|(_, error)| error).unwrap();
    assert_eq!(messages, [0, 1, 2].map(|i| (i, b"not polled".to_vec())));
    // The device took the others with no QP; they come back with the queue.
    assert_eq!(server.available(), BUFS - 5);
    queue.close().map_err(|(_, error)| error).unwrap();
    assert_eq!(server.available(), BUFS);
}

/// What a QP or DC target has taken and not reported comes back with its end, and the queue has room for as many as before.
#[test]
fn receives_whose_completions_are_removed_come_back() {
    const KEY: u64 = 5;
    let (mut client, mut server) = pair();
    let at = attr();
    let mut queue = srq(&server.pd, 8);
    let cap = CAP.max_recv_wr(0).max_recv_sge(0);
    let mut qp = server.pd.qp::<Rc>().cq(&server.cq).srq(&queue).cap(CAP).create().unwrap();
    // Another QP of the queue, whose completion is not polled either.
    let other = server.pd.qp::<Rc>().cq(&server.cq).srq(&queue).cap(CAP).create().unwrap();
    let mut sender = client.pd.qp::<Rc>().cq(&client.cq).cap(CAP).create().unwrap();
    connect(&sender, &other).unwrap();
    let mut initiator = client.pd.dci().cq(&client.cq).cap(cap).create().unwrap();
    initiator.control().connect_dci(&at).unwrap();
    let [from, to] = [&client, &server].map(|end| end.qp.control().endpoint(1, &at).unwrap());
    let ah = client.pd.create_ah(&at.ah_attr(&to)).unwrap();
    let fill = |queue: &mut Srq<Exclusive, Mlx5>, end: &End| {
        while let Some(buf) = end.pool.try_get()
            && queue.post(7, buf).is_ok()
        {}
        end.available()
    };
    let full = fill(&mut queue, &server);
    assert_eq!(full, BUFS - queue.attr().max_wr);
    sender.sq().post(1).signaled().send_inline(b"stays").unwrap();
    assert!(client.next().wc.status.is_success());
    for round in 0..12 {
        let target = server.pd.dct(&server.cq, &queue, KEY).unwrap();
        let dctn = target.connect(&at, &at.ah_attr(&from)).unwrap();
        client.qp.reset().unwrap();
        connect(&client.qp, &qp).unwrap();
        for i in 0..2 {
            initiator.sq().post_dc(i, &ah, dctn, KEY).signaled().send_inline(b"lost").unwrap();
            assert!(client.next().wc.status.is_success(), "round {round}");
            client.qp.sq().post(i).signaled().send_inline(b"lost").unwrap();
            assert!(client.next().wc.status.is_success(), "round {round}");
        }
        assert_eq!(server.available(), full);
        target.close().unwrap();
        assert_eq!(server.available(), full + 2, "round {round}: of the target");
        if round % 2 == 0 {
            qp.reset().unwrap();
        } else {
            qp.close().unwrap();
            qp = server.pd.qp::<Rc>().cq(&server.cq).srq(&queue).cap(CAP).create().unwrap();
        }
        assert_eq!(server.available(), full + 4, "round {round}: of the QP");
        assert_eq!(fill(&mut queue, &server), full, "round {round}");
    }
    assert_eq!(&*server.next().buf().unwrap(), b"stays");
    drop((qp, other));
    queue.close().map_err(|(_, error)| error).unwrap();
    assert_eq!(server.available(), BUFS);
}

/// The receive of a message that is not complete has no completion; after the last one the queue is as long as before.
#[test]
fn receives_of_messages_that_are_not_complete_come_back() {
    const LONG: u32 = 1 << 16;
    let fabric = Fabric::deterministic(3);
    // Packets are lost, so the rest of the message comes later.
    fabric.delay(Duration::from_micros(20)).loss(0.1);
    let [mut client, mut server] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build()));
    let (mut queue, mut taken) = (srq(&server.pd, 8), 0);
    let [outgoing, incoming] = [&client, &server].map(|end| end.pd.pool(32, LONG).unwrap());
    let fill = |queue: &mut Srq<Exclusive, Mlx5>| {
        while let Some(buf) = incoming.try_get()
            && queue.post(7, buf).is_ok()
        {}
        incoming.available()
    };
    let full = fill(&mut queue);
    for round in 0..20 {
        let mut sender = client.pd.qp::<Rc>().cq(&client.cq).cap(CAP).create().unwrap();
        let mut qp = server.pd.qp::<Rc>().cq(&server.cq).srq(&queue).cap(CAP).create().unwrap();
        connect(&sender, &qp).unwrap();
        let mut long = outgoing.get().unwrap();
        long.set_len(LONG as usize).unwrap();
        sender.sq().post(1).signaled().send(long).unwrap();
        fabric.run_for(Duration::from_micros(21));
        match round % 3 {
            0 => drop(qp),
            1 => qp.reset().unwrap(),
            _ => qp.control().modify_state(QpState::RESET).unwrap(),
        }
        taken += incoming.available() - full;
        assert_eq!(fill(&mut queue), full, "round {round}");
    }
    // Of the others the first packet was lost.
    assert!(taken > 10, "{taken}");
    fabric.loss(0.0);
    let qp = server.pd.qp::<Rc>().cq(&server.cq).srq(&queue).cap(CAP).create().unwrap();
    connect(&client.qp, &qp).unwrap();
    for i in 0..queue.attr().max_wr.into() {
        client.qp.sq().post(i).signaled().send_inline(b"short").unwrap();
        assert!(client.next().wc.status.is_success(), "message {i}");
        assert_eq!(&*server.next().buf().unwrap(), b"short");
    }
    drop(qp);
    queue.close().map_err(|(_, error)| error).unwrap();
    assert_eq!(incoming.available(), 32);
    assert_eq!(server.hca.violations(), []);
}

#[test]
fn a_qp_without_a_shared_queue_is_drained_at_once() {
    let mut end = End::new(Hca::new());
    connect_self(&end.qp);
    end.receives(4);
    let buf = end.filled(b"sent");
    end.qp.sq().post(1).signaled().send(buf).unwrap();
    let End { qp, mut cq, pool, .. } = end;
    let mut bytes = Vec::new();
    let drained = qp.drain(&mut cq, LIMIT, |done| bytes.push(done.wc.opcode));
    drained.map_err(|(_, error)| error).unwrap();
    assert_eq!(pool.available() as u32, BUFS);
}

#[test]
fn a_queue_with_qps_refuses_its_end() {
    let end = End::new(Hca::new());
    let mut queue = srq(&end.pd, 8);
    let qp = end.pd.qp::<Rc>().cq(&end.cq).srq(&queue).cap(CAP).create().unwrap();
    queue.post(1, end.pool.get().unwrap()).unwrap();
    let (queue, error) = queue.close().unwrap_err();
    assert_eq!((error.errno(), end.available()), (uverbs::Errno::EBUSY, BUFS - 1));
    drop(qp);
    queue.close().map_err(|(_, error)| error).unwrap();
    assert_eq!(end.available(), BUFS);
}

type SharedSrq = Srq<Shared, Mlx5>;
type SharedCq = Cq<Shared, Mlx5>;

#[test]
fn other_threads_post_and_poll_while_qps_are_drained() {
    let unmatched = other_threads_post_and_poll(20, |_, qp, queue, cq| {
        queue.drain(qp, cq, LIMIT, drop).map_err(|(_, error)| error).unwrap();
    });
    assert_eq!(unmatched, 0);
}

/// The receives that the QPs have taken come back, and their numbers and the QPs' are used again. A poll takes what a completion names
/// before the end of the QP goes on, so each completion finds its work request.
#[test]
fn other_threads_post_and_poll_while_qps_are_dropped_and_reset() {
    let unmatched = other_threads_post_and_poll(60, |round, mut qp, _, _| {
        if round % 2 == 0 {
            qp.reset().unwrap();
            connect_self(&qp);
            qp.sq().post(9).signaled().send_inline(b"again").unwrap();
        }
        drop(qp);
    });
    assert_eq!(unmatched, 0);
}

/// One thread posts receives and sends, one polls, and a third ends QPs of the same queue one after the other, by `end_qp`.
/// Returns the number of unmatched completions.
fn other_threads_post_and_poll(
    rounds: u32,
    end_qp: impl Fn(u32, Qp<Rc, Exclusive, Mlx5>, &SharedSrq, &SharedCq),
) -> u64 {
    let end = End::new(Hca::new());
    let cq: SharedCq = end.context.cq_with(512, None).unwrap();
    let limits = SrqAttr::new(16);
    let queue: SharedSrq = end.pd.srq(&SrqInitAttr::new(limits)).unwrap();
    let cap = CAP.max_send_wr(8).max_recv_wr(0).max_recv_sge(0);
    let qp = || {
        let qp = end.pd.qp::<Rc>().cq(&cq).srq(&queue).cap(cap).create().unwrap();
        connect_self(&qp);
        qp
    };
    let (stop, received) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        // The poller, of completions of all QPs.
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let polled = cq.poll_each(8, |done| {
                    let is_message = done.opcode() == WcOpcode::RECV && done.status().is_success();
                    received.fetch_add(is_message.into(), Ordering::Relaxed);
                    drop(done.buf());
                });
                if polled == Ok(0) {
                    thread::yield_now();
                }
            }
        });
        // The poster of receives, and of sends of a QP that lives as long as the test.
        scope.spawn(|| {
            let mut steady = qp();
            let mut number = 0;
            while !stop.load(Ordering::Acquire) {
                number += 1;
                if let Some(buf) = end.pool.try_get() {
                    match queue.lock().unwrap().post(number, buf) {
                        Ok(()) => {}
                        Err(rejected) => assert_eq!(rejected.error, PostError::QueueFull),
                    }
                }
                match steady.sq().post(number).signaled().send_inline(b"steady") {
                    Ok(()) => {}
                    Err(error) if error == PostError::QueueFull => {}
                    Err(error) => panic!("{error}"),
                }
                thread::yield_now();
            }
            queue.drain(steady, &cq, LIMIT, drop).map_err(|(_, error)| error).unwrap();
        });
        for round in 0..rounds {
            let mut qp = qp();
            for i in 0..round % 8 {
                qp.sq().post(i.into()).signaled().send_inline(b"a few").unwrap();
            }
            end_qp(round, qp, &queue, &cq);
        }
        // The queue has receives still: messages arrive.
        let before = received.load(Ordering::Relaxed);
        while received.load(Ordering::Relaxed) == before {
            thread::yield_now();
        }
        stop.store(true, Ordering::Release);
    });
    // Nothing is taken any more: what is missing is in the queue, and comes back with it.
    queue.close().map_err(|(_, error)| error).unwrap();
    while cq.poll_each(8, |done| drop(done)).unwrap() > 0 {}
    assert_eq!(end.available(), BUFS);
    let unmatched = cq.unmatched().unwrap();
    let End { qp, hca, .. } = end;
    drop(qp);
    assert!(hca.violations().is_empty(), "{:?}", hca.violations());
    unmatched
}
