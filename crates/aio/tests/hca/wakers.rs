// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wakers whose drop uses the library, as that of a task does which only its wakers hold: it drops the task's future. So no waker
//! is dropped while a lock of the library is held.

use crate::bed::{Bed, DEPTH, connect, poll_once};
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use futures_core::Stream;
use std::sync::{Arc, Mutex};
use std::task::Wake;

type Last = Box<dyn FnOnce() + Send>;

/// Calls a function when it is dropped.
struct Task(Mutex<Option<Last>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(last) = self.0.get_mut().unwrap().take() {
            last();
        }
    }
}

/// The only waker of a task.
fn task(last: impl FnOnce() + Send + 'static) -> Waker {
    Waker::from(Arc::new(Task(Mutex::new(Some(Box::new(last))))))
}

/// Polls a future in this task, which ends.
fn poll_in<F: Future + Unpin>(future: &mut F, task: Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&task))
}

/// What a task drops and does at its end, and whether it has.
fn end(bed: &Bed) -> (impl FnOnce() + Send + use<>, Arc<AtomicBool>) {
    let (qp, dispatcher) = (bed.a.qp.clone(), bed.a.dispatcher.clone());
    let mut sleep = dispatcher.sleep(Duration::from_secs(9));
    let (mut send, mut recv, mut batch) = (qp.send_inline(b"of the task"), qp.recv(), qp.batch());
    batch.send(bed.a.filled(b"of the task"));
    assert!(poll_once(&mut send).is_pending() && poll_once(&mut recv).is_pending());
    assert!(poll_once(&mut batch).is_pending() && poll_once(&mut sleep).is_pending());
    let ended = Arc::new(AtomicBool::new(false));
    let flag = ended.clone();
    let last = move || {
        drop((send, recv, batch, sleep));
        assert!(
            qp.try_recv().is_none() && dispatcher.poll_once().is_ok() && dispatcher.after_sleep().is_ok()
        );
        flag.store(true, Ordering::Relaxed);
    };
    (last, ended)
}

/// A task polls the future and ends; another one polls it, or drops it.
fn moves<F: Future + Unpin>(make: impl Fn(&Bed) -> F) {
    for is_dropped in [false, true] {
        for is_full in [false, true] {
            let bed = Bed::new();
            let mut others: Vec<_> = (0..DEPTH).map(|_| bed.a.qp.send_inline(b"other")).collect();
            for other in others.iter_mut().filter(|_| is_full) {
                assert!(poll_once(other).is_pending());
            }
            let mut future = make(&bed);
            let (last, ended) = end(&bed);
            assert!(poll_in(&mut future, task(last)).is_pending());
            if is_dropped {
                drop(future);
            } else {
                let _ = poll_once(&mut future);
            }
            assert!(ended.load(Ordering::Relaxed), "dropped: {is_dropped}, queue full: {is_full}");
        }
    }
}

#[test]
fn a_send_that_moves_drops_its_waker_without_a_lock() {
    moves(|bed| bed.a.qp.send(bed.a.filled(b"x")));
}

#[test]
fn a_batch_that_moves_drops_its_wakers_without_a_lock() {
    moves(|bed| {
        let mut batch = bed.a.qp.batch();
        batch.send(bed.a.filled(b"x"));
        batch
    });
    moves(|bed| {
        let mut reads = bed.a.qp.read_batch();
        let to = bed.b.exposed().remote_region();
        reads.read(bed.a.pool.get().unwrap(), &to);
        reads
    });
}

#[test]
fn a_receive_that_moves_drops_its_waker_without_a_lock() {
    moves(|bed| bed.a.qp.recv());
}

#[test]
fn a_sleep_that_moves_drops_its_waker_without_a_lock() {
    moves(|bed| bed.a.dispatcher.sleep(Duration::from_secs(1)));
}

/// A detached operation that waits for an entry, and one whose turn has come before it was woken.
#[test]
fn a_detached_send_that_moves_drops_its_waker_without_a_lock() {
    for has_room in [false, true] {
        let bed = Bed::new();
        let mut others: Vec<_> = (0..DEPTH).map(|_| bed.a.qp.send_inline(b"other")).collect();
        assert!(others.iter_mut().all(|other| poll_once(other).is_pending()));
        let mut send = bed.a.qp.send_inline(b"x").detach();
        let (last, ended) = end(&bed);
        assert!(poll_in(&mut send, task(last)).is_pending());
        if has_room {
            bed.step();
        }
        assert_eq!(poll_once(&mut send).is_ready(), has_room);
        assert!(ended.load(Ordering::Relaxed));
    }
}

#[test]
fn a_wait_for_a_descriptor_that_moves_drops_its_waker_without_a_lock() {
    for is_dropped in [false, true] {
        let bed = Bed::new();
        let [(near, _near), (far, _far)] = [(); 2].map(|()| std::io::pipe().unwrap());
        let [mut readable, mut other] = [near, far].map(|end| bed.a.dispatcher.readable(end));
        assert!(poll_once(&mut other).is_pending());
        assert!(poll_in(&mut readable, task(move || drop(other))).is_pending());
        if is_dropped {
            drop(readable);
        } else {
            assert!(poll_once(&mut readable).is_pending());
        }
    }
}

/// The end of the task publishes an event to the stream.
#[test]
fn a_stream_of_events_that_moves_drops_its_waker_without_a_lock() {
    let bed = Bed::new();
    let mut events = bed.a.dispatcher.events();
    let (hca, dispatcher) = (bed.a.hca.clone(), bed.a.dispatcher.clone());
    let last = task(move || {
        hca.unplug();
        dispatcher.after_sleep().unwrap();
    });
    assert!(Pin::new(&mut events).poll_next(&mut Context::from_waker(&last)).is_pending());
    drop(last);
    let mut next = || Pin::new(&mut events).poll_next(&mut Context::from_waker(Waker::noop()));
    assert!(next().is_pending());
    assert!(matches!(next(), Poll::Ready(Some(_))));
}

/// Each of many ends of a QP is begun and dropped, one after the other and at the same time, while the QP can't end.
#[test]
fn ends_that_are_dropped_leave_nothing() {
    const ENDS: usize = 10_000;
    let bed = Bed::new();
    // Nothing arrives, so the send is in flight for long, and the receives of the QP with an SRQ are not given back.
    bed.fabric.loss(1.0);
    let srq = bed.a.dispatcher.srq(&bed.a.pd, &bed.a.incoming, 8).unwrap();
    let shared = [(); 2].map(|()| bed.a.dispatcher.qp(&bed.a.pd).depth(DEPTH, 0).srq(&srq).create().unwrap());
    connect(&shared[0], &shared[1]);
    let mut sends = [&bed.a.qp, &shared[0]].map(|qp| qp.send_inline(b"in flight"));
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    for (qp, is_abort) in [(&bed.a.qp, false), (&shared[0], false), (&shared[0], true)] {
        let tasks: Vec<_> = (0..ENDS).map(|_| Arc::new(Task(Mutex::new(None)))).collect();
        let alive = || tasks.iter().filter(|task| Arc::strong_count(task) > 1).count();
        let begin = |task: &Arc<Task>| {
            let qp = qp.clone();
            let mut end: Pin<Box<dyn Future<Output = uverbs_aio::Result<()>>>> = match is_abort {
                true => Box::pin(async move { qp.abort().await }),
                false => Box::pin(async move { qp.shutdown().await }),
            };
            for _ in 0..2 {
                assert!(poll_in(&mut end, task.clone().into()).is_pending());
            }
            end
        };
        tasks.iter().for_each(|task| drop(begin(task)));
        assert_eq!(alive(), 0);
        let ends: Vec<_> = tasks.iter().map(begin).collect();
        assert_eq!(alive(), ENDS);
        drop(ends);
        assert_eq!(alive(), 0);
    }
}

/// Each of many streams of events is dropped with its waker.
#[test]
fn streams_that_are_dropped_leave_nothing() {
    let bed = Bed::new();
    let tasks: Vec<_> = (0..10_000).map(|_| Arc::new(Task(Mutex::new(None)))).collect();
    for task in &tasks {
        let mut events = bed.a.dispatcher.events();
        let mut next = Box::pin(events.next());
        assert!(poll_in(&mut next, task.clone().into()).is_pending());
    }
    assert!(tasks.iter().all(|task| Arc::strong_count(task) == 1));
}
