// SPDX-License-Identifier: MIT OR Apache-2.0
//! A child of fork(2) has its parent's dispatcher, but not the threads that run it. Its futures end with an error, nothing that it
//! does waits for a lock, and the parent continues. Each test has a process of its own, whose few pages a fork copies.
// UNSAFETY: calls fork(2) and _exit(2).
#![expect(unsafe_code)]

use crate::bed::{Bed, DEPTH, poll_once};
use crate::stream::{Stream, both, by_cm, close, read_to_end};
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use std::panic::catch_unwind;
use std::sync::Arc;
use uverbs_aio::{Clock, Error};
use uverbs_testkit::machine::in_own_process;

/// Runs `f` in a child. A child that waits for ever is killed by a signal.
fn in_child(f: impl FnOnce()) {
    // SAFETY: the child calls this crate only, and ends by `_exit`. The C library makes its allocator usable in a child.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).unwrap();
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
        nix::unistd::ForkResult::Child => {
            nix::unistd::alarm::set(60);
            let result = catch_unwind(AssertUnwindSafe(f));
            // SAFETY: ends the child without what the parent registered.
            unsafe { nix::libc::_exit(i32::from(result.is_err())) }
        }
    }
}

fn is_forked(error: &Error) -> bool {
    matches!(error, Error::Poll(uverbs::PollError::Forked))
}

/// A clock that stops the thread that runs the dispatcher while it reads the time, with a lock of the dispatcher.
#[derive(Debug, Default)]
struct Gate {
    closed: AtomicBool,
    waiting: AtomicBool,
}

impl Clock for Gate {
    fn now(&self) -> Duration {
        while self.closed.load(Ordering::Acquire) && std::thread::current().name() == Some("uverbs-aio") {
            self.waiting.store(true, Ordering::Release);
            std::thread::yield_now();
        }
        Duration::from_secs(1)
    }
}

#[test]
fn a_child_neither_waits_nor_takes_what_is_the_parents() {
    if !in_own_process("fork::a_child_neither_waits_nor_takes_what_is_the_parents") {
        return;
    }
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let gate = Arc::new(Gate::default());
    let dispatcher = a.dispatcher.another().clock(gate.clone()).spin(Duration::ZERO).build().unwrap();
    let srq = dispatcher.srq(&a.pd, &a.incoming, 8).unwrap();
    let [qp, shared] =
        [dispatcher.qp(&a.pd).depth(4, 4).pool(&a.incoming), dispatcher.qp(&a.pd).depth(4, 0).srq(&srq)]
            .map(|builder| builder.create().unwrap());
    let [peer, other] =
        [(); 2].map(|()| b.dispatcher.qp(&b.pd).depth(4, 4).pool(&b.incoming).create().unwrap());
    crate::bed::connect(&qp, &peer);
    crate::bed::connect(&shared, &other);
    let events = dispatcher.events();

    // The thread that leads is stopped while it has the lock of the timers, which the first sleep makes it look for.
    let driver = dispatcher.spawn().unwrap();
    let mut sleep = dispatcher.sleep(Duration::from_secs(1));
    gate.closed.store(true, Ordering::Release);
    assert!(poll_once(&mut sleep).is_pending());
    while !gate.waiting.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let domain = a.dispatcher.context().open_xrcd(None, true, false).unwrap();
    let queue = dispatcher.xrc_srq(&a.pd, &domain, &a.incoming, 4).unwrap();
    let target = dispatcher.dc_target(&a.pd, &srq, 1).unwrap();
    let (mut queued, mut targeted) = (queue.recv(), target.recv());
    assert!(poll_once(&mut queued).is_pending() && poll_once(&mut targeted).is_pending());
    let mut send = qp.send(a.filled(b"of the parent"));
    let mut recv = qp.recv();
    let mut batch = qp.batch();
    batch.send(a.filled(b"also"));
    assert!(poll_once(&mut send).is_pending() && poll_once(&mut recv).is_pending());
    assert!(poll_once(&mut batch).is_pending());

    // The child takes its copies; those of the parent stay.
    let mut all = Some((dispatcher, driver, qp, shared, srq, events));
    let mut futures = Some((send, recv, batch, sleep));
    let mut shares = Some((queue, target, queued, targeted));
    in_child(|| {
        let (dispatcher, driver, qp, shared, srq, mut events) = all.take().unwrap();
        let (send, recv, batch, sleep) = futures.take().unwrap();
        let failed = dispatcher.block_on(send).unwrap_err();
        assert!(is_forked(&failed.error) && failed.returned.is_none());
        assert!(is_forked(&dispatcher.block_on(recv).unwrap_err()));
        assert!(is_forked(&dispatcher.block_on(batch).unwrap_err()));
        dispatcher.block_on(sleep);
        let failed = dispatcher.block_on(qp.send(a.filled(b"of the child"))).unwrap_err();
        assert!(is_forked(&failed.error) && failed.returned.is_some_and(|buf| &*buf == b"of the child"));
        let waited = dispatcher.block_on(dispatcher.timeout(Duration::from_secs(9), qp.recv()));
        assert!(is_forked(&waited.unwrap_err()));
        assert!(qp.try_recv().is_none() && dispatcher.block_on(events.next()).is_none());
        for ended in [dispatcher.block_on(qp.shutdown()), dispatcher.block_on(shared.abort())] {
            assert!(is_forked(&ended.unwrap_err()));
        }
        assert!(is_forked(&dispatcher.poll_once().unwrap_err()) && dispatcher.spawn().is_err());
        assert!(is_forked(&dispatcher.after_sleep().unwrap_err()) && dispatcher.prepare_sleep().is_err());
        assert!(dispatcher.qp(&a.pd).create().is_err() && dispatcher.srq(&a.pd, &a.incoming, 4).is_err());
        assert!(is_forked(&dispatcher.block_on(dispatcher.readable(std::io::stdin())).unwrap_err()));
        let (queue, target, queued, targeted) = shares.take().unwrap();
        for recv in [queued, targeted, queue.recv(), target.recv()] {
            assert!(is_forked(&dispatcher.block_on(recv).unwrap_err()));
        }
        assert!(queue.try_recv().is_none() && target.try_recv().is_none());
        for ended in [queue.close(), target.close(), queue.srq_num().map(drop)] {
            assert!(is_forked(&ended.unwrap_err()));
        }
        assert!(target.start(&crate::bed::attr()).is_err() && dispatcher.dc_target(&a.pd, &srq, 1).is_err());
        drop((queue, target));
        // The thread, which the child does not have, is not joined.
        drop((events, driver, qp, shared, srq, dispatcher));
        assert!(a.dispatcher.poll_once().is_err());
    });

    gate.closed.store(false, Ordering::Release);
    let (dispatcher, ..) = all.as_ref().unwrap();
    let (queue, target, queued, targeted) = shares.take().unwrap();
    assert!(queue.srq_num().is_ok() && target.start(&crate::bed::attr()).is_ok());
    drop((queued, targeted, queue, target));
    let (mut send, mut recv, mut batch, sleep) = futures.take().unwrap();
    drop(sleep);
    let begin = std::time::Instant::now();
    let until = |done: &mut dyn FnMut() -> bool| {
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(120), "the parent's dispatcher does not run");
            bed.step();
            std::thread::yield_now();
        }
    };
    until(&mut || poll_once(&mut send).is_ready());
    until(&mut || poll_once(&mut batch).is_ready());
    assert_eq!(&*bed.run(peer.recv()).unwrap(), b"of the parent");
    assert_eq!(&*bed.run(peer.recv()).unwrap(), b"also");
    let mut answer = peer.send(b.filled(b"answer"));
    until(&mut || poll_once(&mut answer).is_ready());
    let mut received = None;
    until(&mut || {
        if let Poll::Ready(message) = poll_once(&mut recv) {
            received = Some(message);
        }
        received.is_some()
    });
    assert_eq!(&*received.unwrap().unwrap(), b"answer");
    drop((send, batch, recv));
    assert!(dispatcher.poll_once().is_ok());
    drop(all);
    bed.step();
    a.assert_no_leak(DEPTH);
}

/// Runs `child` in children, while a thread of the parent takes and releases the locks that it would take.
fn in_children(busy: impl Fn(&Bed) + Send + 'static, child: impl Fn(&Bed)) {
    let (bed, stop) = (Arc::new(Bed::new()), Arc::new(AtomicBool::new(false)));
    let thread = std::thread::spawn({
        let (bed, stop) = (bed.clone(), stop.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                busy(&bed);
            }
        }
    });
    for _ in 0..200 {
        in_child(|| child(&bed));
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}

#[test]
fn a_child_gets_a_stream_of_events_that_has_ended() {
    if !in_own_process("fork::a_child_gets_a_stream_of_events_that_has_ended") {
        return;
    }
    let events = |bed: &Bed| drop(bed.a.dispatcher.events());
    in_children(events, |bed| {
        let mut events = bed.a.dispatcher.events();
        assert!(matches!(poll_once(&mut Box::pin(events.next())), Poll::Ready(None)));
    });
}

#[test]
fn a_child_posts_no_receives() {
    if !in_own_process("fork::a_child_posts_no_receives") {
        return;
    }
    in_children(|bed| drop(bed.a.qp.try_recv()), |bed| bed.a.qp.post_receives());
}

/// The clock of the bed takes the lock of the software HCA.
#[test]
fn a_child_does_not_read_the_clock() {
    if !in_own_process("fork::a_child_does_not_read_the_clock") {
        return;
    }
    let sleep = |bed: &Bed| _ = poll_once(&mut bed.a.dispatcher.sleep(Duration::from_secs(1)));
    in_children(sleep, sleep);
}

/// Also one that waits for the peer in the parent.
#[test]
fn a_stream_ends_in_a_child() {
    if !in_own_process("fork::a_stream_ends_in_a_child") {
        return;
    }
    let bed = Bed::new();
    // The second stream has sent all that it may send.
    for full in [false, true] {
        let (mut near, far) = by_cm(&bed, 2, 1024);
        bed.step();
        let mut cx = Context::from_waker(Waker::noop());
        let mut write = |near: &mut Stream| Pin::new(near).poll_write(&mut cx, &[7; 100]);
        assert!(write(&mut near).is_ready());
        while full && write(&mut near).is_ready() {
            bed.step();
        }
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut near).poll_read(&mut cx, &mut [0; 8]).is_pending());
        let mut ends = Some((near, far));
        in_child(|| {
            let (mut near, far) = ends.take().unwrap();
            let is_over = |polled: Poll<std::io::Result<usize>>| match polled {
                Poll::Ready(Err(error)) => assert!(error.to_string().contains("fork"), "{error}"),
                other => panic!("{other:?}"),
            };
            is_over(Pin::new(&mut near).poll_read(&mut cx, &mut [0; 8]));
            is_over(Pin::new(&mut near).poll_fill_buf(&mut cx).map_ok(<[u8]>::len));
            is_over(Pin::new(&mut near).poll_write(&mut cx, b"of the child"));
            is_over(Pin::new(&mut near).poll_close(&mut cx).map_ok(|()| 0));
            assert!(
                bed.a.dispatcher.block_on(near.write_with(8, |_| 8)).is_err_and(|error| is_forked(&error))
            );
            assert!(bed.b.dispatcher.block_on(far.shutdown()).is_err_and(|error| is_forked(&error)));
            drop(near);
        });
        let (mut near, mut far) = ends.unwrap();
        // The parent goes on.
        let mut buf = [0; 100];
        let n = bed.run(core::future::poll_fn(|cx| Pin::new(&mut far).poll_read(cx, &mut buf))).unwrap();
        assert_eq!(buf[..n], [7; 100][..n]);
        let (closed, rest) = both(&bed, close(&mut near), read_to_end(&mut far));
        closed.unwrap();
        rest.unwrap();
    }
}
