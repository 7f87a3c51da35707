// SPDX-License-Identifier: MIT OR Apache-2.0
//! A removed device is an error of posts and polls, in all faces, as soon as the library knows it.

use crate::bed::{BUFS, End, pair, real_time_pair, srq};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::thread;
use std::time::Instant;
use uverbs::attr::{EventType, SrqAttr, SrqInitAttr, WqInitAttr, WqState};
use uverbs::mlx5::Mlx5;
use uverbs::raw::{Qp as RawQp, Srq as RawSrq, Wq};
use uverbs::{Errno, EventSource, Exclusive, PollError, PostError, Rc, Shared, WcStatus};

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
    let error = raw.sq().lock().unwrap().post(1).send_inline(b"x").unwrap_err();
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
            let begin = Instant::now();
            while !begun.load(Ordering::Relaxed) {
                assert!(begin.elapsed() < Duration::from_secs(30), "nothing is posted");
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

/// Shared receive queues and work queues, in both faces, with and without receives, and those that are created later.
#[test]
fn shared_and_work_queues_take_no_receives_after_the_removal() {
    for by in [By::Event, By::TryEvent, By::Verb] {
        let end = End::new(uverbs_hca::Fabric::deterministic(3).device("hca0").build());
        let cq = end.context.create_cq(64, None).unwrap();
        let init = SrqInitAttr::new(SrqAttr::new(8));
        let mut front = srq(&end.pd, 8);
        let mut raw: RawSrq<Exclusive, Mlx5> = end.pd.create_srq(&init).unwrap();
        let locked: RawSrq<Shared, Mlx5> = end.pd.create_srq(&init).unwrap();
        let mut wq: Wq<Exclusive, Mlx5> = end.pd.create_wq(&cq, &WqInitAttr::new(8)).unwrap();
        wq.modify_state(WqState::RDY).unwrap();
        for _ in 0..2 {
            front.post(1, end.pool.get().unwrap()).unwrap();
            // SAFETY: receives without entries name no memory.
            #[expect(unsafe_code, reason = "posts of the raw face")]
            unsafe { raw.post(1, &[]) }.unwrap();
            // SAFETY: as above.
            #[expect(unsafe_code, reason = "posts of the raw face")]
            unsafe { wq.post(1, &[]) }.unwrap();
        }
        end.hca.unplug();
        tell(&end, by);
        for round in 0..20 {
            let rejected = front.post(2, end.pool.get().unwrap()).unwrap_err();
            assert!(rejected.error.to_string().starts_with("post_srq_recv(srq "), "{rejected}");
            assert!(
                rejected.error == PostError::Removed && rejected.returned.is_some(),
                "{by:?}, {round}: {rejected}"
            );
            assert_eq!(front.post_empty(3).unwrap_err(), PostError::Removed);
            let mut batch = front.batch();
            batch.push(4, end.pool.get().unwrap());
            assert_eq!(batch.complete().unwrap_err(), PostError::Removed);
            // SAFETY: as above.
            #[expect(unsafe_code, reason = "posts of the raw face")]
            let of_raw = unsafe { raw.post(2, &[]) }.unwrap_err();
            // SAFETY: as above.
            #[expect(unsafe_code, reason = "posts of the raw face")]
            let of_wq = unsafe { wq.post(2, &[]) }.unwrap_err();
            assert_eq!((of_raw.reason, of_wq.reason), (PostError::Removed, PostError::Removed));
            let wr = uverbs::wr::RecvWr {
                wr_id: 5,
                next: core::ptr::null_mut(),
                sg_list: core::ptr::null_mut(),
                num_sge: 0,
            };
            // SAFETY: a list of one receive without entries.
            #[expect(unsafe_code, reason = "posts of C")]
            let refused = unsafe { locked.post_srq_recv(&raw const wr) };
            assert_eq!(refused.unwrap_err().error, PostError::Removed);
        }
        assert_eq!(end.available(), BUFS - 2, "two receives are in flight");
        let pool = end.pool.clone();
        drop(front);
        assert_eq!(pool.available() as u32, BUFS);
    }
}

/// Threads post to a shared receive queue and to a work queue, which are full or not, while another one learns of the removal.
#[test]
fn posters_of_shared_and_work_queues_end_while_the_device_goes() {
    for by in [By::Event, By::Verb] {
        let end = End::new(uverbs_hca::Fabric::new(3).device("hca0").build());
        let cq = end.context.create_cq(64, None).unwrap();
        let init = SrqInitAttr::new(SrqAttr::new(1000));
        let mut srq: RawSrq<Exclusive, Mlx5> = end.pd.create_srq(&init).unwrap();
        let mut wq: Wq<Exclusive, Mlx5> = end.pd.create_wq(&cq, &WqInitAttr::new(1000)).unwrap();
        wq.modify_state(WqState::RDY).unwrap();
        thread::scope(|s| {
            // SAFETY: receives without entries name no memory.
            #[expect(unsafe_code, reason = "posts of the raw face")]
            let posts: [Box<dyn FnMut() -> Result<(), uverbs::QueueError> + Send>; 2] =
                [Box::new(|| unsafe { srq.post(1, &[]) }), Box::new(|| unsafe { wq.post(1, &[]) })];
            for mut post in posts {
                s.spawn(move || {
                    let begin = Instant::now();
                    loop {
                        match post() {
                            Err(error) if error == PostError::Removed => break,
                            Err(error) => assert_eq!(error, PostError::QueueFull),
                            Ok(()) => {}
                        }
                        assert!(begin.elapsed() < Duration::from_secs(30), "the posts go on");
                    }
                });
            }
            thread::sleep(Duration::from_micros(300));
            end.hca.unplug();
            tell(&end, by);
        });
    }
}
