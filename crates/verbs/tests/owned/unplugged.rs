// SPDX-License-Identifier: MIT OR Apache-2.0
//! A removed device is an error of posts and polls, in all faces, as soon as the library knows it.

use crate::bed::{BUFS, End, pair, real_time_pair};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::thread;
use std::time::Instant;
use uverbs::attr::EventType;
use uverbs::mlx5::Mlx5;
use uverbs::raw::Qp as RawQp;
use uverbs::{Errno, EventSource, PollError, PostError, Rc, Shared, WcStatus};

/// How the library gets to know it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Event,
    TryEvent,
    Verb,
}

fn tell(end: &End, by: By) {
    match by {
        By::Event => {
            let event = end.context.get_async_event().unwrap();
            assert_eq!((event.event_type, event.source), (EventType::DEVICE_FATAL, EventSource::Device));
        }
        By::TryEvent => {
            let event = end.context.try_async_event().unwrap().expect("DEVICE_FATAL");
            assert_eq!(event.event_type, EventType::DEVICE_FATAL);
        }
        By::Verb => assert_eq!(end.context.query_device().unwrap_err().errno(), Errno::EIO),
    }
}

#[test]
fn posts_and_polls_fail_and_what_has_completed_is_polled_first() {
    for by in [By::Event, By::TryEvent, By::Verb] {
        let (mut a, mut b) = pair();
        b.receives(1);
        let buf = a.filled(b"before");
        a.qp.sq().post(1).signaled().send(buf).unwrap();
        a.hca.run();
        a.receives(2);
        assert!(!a.context.is_removed());
        a.hca.unplug();
        tell(&a, by);
        assert!(a.context.is_removed(), "{by:?}");
        let name = format!("(qp {:#x}): the device was removed", a.qp.qp_num());
        // The buffer comes back from a post; that of a receive, too.
        let buf = a.filled(b"after");
        let rejected = a.qp.sq().post(2).send(buf).unwrap_err();
        assert_eq!(rejected.error.to_string(), format!("post_send{name}"));
        assert_eq!((rejected.errno(), &*rejected.returned.unwrap()), (Errno::EIO, &b"after"[..]));
        let buf = a.pool.get().unwrap();
        let rejected = a.qp.rq().unwrap().post(2, buf).unwrap_err();
        assert_eq!(rejected.error.to_string(), format!("post_recv{name}"));
        drop(rejected);
        let mut batch = a.qp.sq().batch();
        batch.wr(3).send_inline(b"x");
        assert_eq!(batch.complete().unwrap_err(), PostError::Removed);
        let mut batch = a.qp.rq().unwrap().batch();
        batch.push(3, a.pool.get().unwrap());
        assert_eq!(batch.complete().unwrap_err(), PostError::Removed);
        // A state that a verb of the program stores does not open the queues again.
        let attr = uverbs::attr::QpAttr::new().qp_state(uverbs::attr::QpState::ERR);
        assert!(a.qp.control().modify(&attr, uverbs::attr::QpAttrMask::STATE).is_err());
        assert_eq!(a.qp.sq().post(4).send_inline(b"x").unwrap_err(), PostError::Removed);
        // What has completed before.
        let done = a.cq.poll_one().unwrap().expect("the completion of the send");
        assert_eq!((done.wc.wr_id, done.wc.status), (1, WcStatus::SUCCESS));
        drop(done);
        assert_eq!(a.cq.poll_one().unwrap_err(), PollError::Removed);
        assert_eq!(a.cq.poll_each(16, |_| ()).unwrap_err(), PollError::Removed);
        assert!(!a.cq.is_surely_empty(), "a poll reports the error");
        // Two receives are in flight: the device may use them until the objects are destroyed.
        assert_eq!(a.available(), BUFS - 2);
        let pool = a.pool.clone();
        a.qp.close().unwrap();
        assert_eq!(pool.available() as u32, BUFS);
    }
}

#[test]
fn the_typed_face_and_a_qp_that_is_created_later() {
    let mut end = End::new(uverbs_hca::Fabric::deterministic(3).device("hca0").build());
    let cq = end.context.create_cq(8, None).unwrap();
    let mut raw: RawQp<Rc, Shared, Mlx5> =
        end.pd.raw_qp::<Rc>().shared().cq(&cq).cap(crate::bed::CAP).create().unwrap();
    end.hca.unplug();
    assert!(end.context.try_async_event().unwrap().is_some());
    let error = raw.sq().unwrap().lock().unwrap().post(1).send_inline(b"x").unwrap_err();
    assert_eq!(error, PostError::Removed);
    let mut wc = [uverbs::WorkCompletion::default()];
    assert_eq!(cq.poll(&mut wc).unwrap_err(), PollError::Removed);
    assert_eq!(cq.poll_session(|_| ()).unwrap_err(), PollError::Removed);
    drop(raw.recv.take());
    assert_eq!(end.cq.poll_one().unwrap_err(), PollError::Removed);
    assert!(end.pd.qp::<Rc>().cq(&end.cq).cap(crate::bed::CAP).create().is_err());
}

/// Without events `None` comes at once, and each event is read once.
#[test]
fn an_event_that_is_not_there_is_none() {
    let (a, _b) = real_time_pair();
    let events = a.context.async_events();
    let mut seen = Vec::new();
    while let Some(event) = events.try_next().unwrap() {
        seen.push(event);
    }
    assert_eq!(events.try_next().unwrap(), None);
    a.hca.set_link_up(false);
    let begin = Instant::now();
    let event = loop {
        if let Some(event) = events.try_next().unwrap() {
            break event;
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
        thread::yield_now();
    };
    assert_eq!(event.event_type, EventType::PORT_ERR);
}

/// Threads post and poll while another one learns of the removal: each ends with the error, and none hangs.
#[test]
fn posters_and_pollers_end_while_the_device_goes() {
    for by in [By::Event, By::Verb] {
        let (a, mut b) = real_time_pair();
        b.receives(8);
        let End { qp, mut cq, context, hca, pool, pd } = a;
        let (mut send, recv, control) = qp.split();
        let begun = AtomicBool::new(false);
        thread::scope(|s| {
            s.spawn(|| {
                let begin = Instant::now();
                loop {
                    match send.post(1).signaled().send_inline(b"x") {
                        Ok(()) => begun.store(true, Ordering::Relaxed),
                        Err(error) if error == PostError::QueueFull => thread::yield_now(),
                        Err(error) => {
                            assert_eq!(error, PostError::Removed);
                            break;
                        }
                    }
                    assert!(begin.elapsed() < Duration::from_secs(30), "the post goes on");
                }
            });
            s.spawn(|| {
                let begin = Instant::now();
                while cq.poll_each(16, |_| ()) != Err(PollError::Removed) {
                    assert!(begin.elapsed() < Duration::from_secs(30), "the poll goes on");
                }
            });
            while !begun.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(5));
            hca.unplug();
            match by {
                By::Verb => assert!(context.query_device().is_err()),
                _ => while context.get_async_event().unwrap().event_type != EventType::DEVICE_FATAL {},
            }
        });
        drop((send, recv, control, pd, pool));
    }
}
