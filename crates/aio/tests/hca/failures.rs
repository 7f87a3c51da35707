// SPDX-License-Identifier: MIT OR Apache-2.0
//! Peers that die, devices that are removed, events.

use crate::bed::{BUFS, Bed, DEPTH, End, Task, connect, join, poll_once};
use uverbs::attr::EventType;
use uverbs::{EventSource, WcStatus};
use uverbs_aio::{Error, SleepLimit};

fn status(error: &Error) -> Option<WcStatus> {
    match error {
        Error::Completion { status, .. } => Some(*status),
        _ => None,
    }
}

#[test]
fn a_killed_peer_ends_the_operations() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let recv = a.qp.recv();
    let mut sends: Vec<_> = (0..3).map(|i| a.qp.send(a.filled(&[i]))).collect();
    bed.run(a.qp.send(a.filled(b"alive"))).unwrap();
    b.hca.kill();
    let mut waiting: Vec<_> = (0..DEPTH).map(|_| a.qp.send(a.filled(b"more"))).collect();
    assert!(sends.iter_mut().chain(&mut waiting).all(|send| poll_once(send).is_pending()));
    let mut statuses = Vec::new();
    for send in sends.into_iter().chain(waiting) {
        let failed = bed.run(send).unwrap_err();
        assert!(failed.returned.is_some(), "{failed}");
        statuses.extend(status(&failed.error));
    }
    assert_eq!(statuses[0], WcStatus::RETRY_EXC_ERR);
    assert!(statuses[1..].iter().all(|status| *status == WcStatus::WR_FLUSH_ERR), "{statuses:?}");
    // The receiver gets the cause, not that its receive was flushed.
    assert_eq!(status(&bed.run(recv).unwrap_err()), Some(WcStatus::RETRY_EXC_ERR));
    bed.step();
    a.assert_no_leak(0);
    bed.run(a.qp.shutdown()).unwrap();
}

#[test]
fn a_removed_device_ends_the_operations_and_the_events() {
    let bed = Bed::new();
    let a = &bed.a;
    let mut events = a.dispatcher.events();
    bed.fabric.loss(1.0);
    let mut send = a.qp.send(a.filled(b"x"));
    assert!(poll_once(&mut send).is_pending());
    let recv = a.qp.recv();
    a.hca.unplug();
    let failed = bed.run(send).unwrap_err();
    assert!(matches!(failed.error, Error::DeviceRemoved), "{failed}");
    assert!(failed.returned.is_none(), "the device may still use it");
    assert!(matches!(bed.run(recv), Err(Error::DeviceRemoved)));
    let event = bed.run(events.next()).expect("an event");
    assert_eq!((event.event_type, event.source), (EventType::DEVICE_FATAL, EventSource::Device));
    assert!(bed.run(events.next()).is_none(), "no event follows");
    assert!(bed.run(a.dispatcher.events().next()).is_none());
    let failed = bed.run(a.qp.send(a.filled(b"late"))).unwrap_err();
    assert!(matches!(failed.error, Error::DeviceRemoved) && failed.returned.is_some());
    drop(failed);
    assert!(matches!(bed.run(a.qp.shutdown()), Err(Error::DeviceRemoved)));
    assert!(a.dispatcher.qp(&a.pd).create().is_err());
    assert_eq!(a.pool.available() as u32, BUFS - 1, "one is leaked");
}

/// A QP that is dropped after the removal, and the rest of the service.
#[test]
fn a_removed_device_can_be_dropped_in_any_order() {
    for srq_first in [false, true] {
        let bed = Bed::new();
        let a = &bed.a;
        let srq = a.dispatcher.srq(&a.pd, &a.incoming, 8).unwrap();
        let qp = a.dispatcher.qp(&a.pd).depth(4, 0).srq(&srq).create().unwrap();
        connect(&qp, &bed.b.dispatcher.qp(&bed.b.pd).create().unwrap());
        let lingers = a.dispatcher.qp(&a.pd).depth(4, 0).srq(&srq).create().unwrap();
        connect(&lingers, &bed.b.dispatcher.qp(&bed.b.pd).create().unwrap());
        drop(lingers);
        let mut abort = Box::pin(qp.abort());
        assert!(poll_once(&mut abort).is_pending());
        a.hca.unplug();
        assert!(bed.run(&mut abort).is_err());
        drop(abort);
        if srq_first {
            drop(srq);
        }
        drop(qp);
        bed.step();
        // Nothing is left to do, so the dispatcher sleeps without a limit.
        assert_eq!(a.dispatcher.prepare_sleep().unwrap(), Some(SleepLimit(None)));
    }
}

#[test]
fn events_of_ports_are_a_stream() {
    let bed = Bed::new();
    let a = &bed.a;
    let [mut one, mut two] = [a.dispatcher.events(), a.dispatcher.another().build().unwrap().events()];
    a.hca.set_link_up(false);
    a.hca.set_link_up(true);
    for events in [&mut one, &mut two] {
        for expected in [EventType::PORT_ERR, EventType::PORT_ACTIVE] {
            let event = bed.run(events.next()).expect("an event");
            assert_eq!((event.event_type, event.source), (expected, EventSource::Port(1)));
        }
    }
}

#[test]
fn an_error_of_a_qp_with_an_srq_ends_its_receives_and_not_those_of_others() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let srq = b.dispatcher.srq(&b.pd, &b.incoming, 16).unwrap();
    let pair = || {
        let here = b.dispatcher.qp(&b.pd).depth(4, 0).srq(&srq).create().unwrap();
        let there = a.dispatcher.qp(&a.pd).depth(4, 4).pool(&a.incoming).create().unwrap();
        connect(&here, &there);
        (here, there)
    };
    let ((bad, bad_peer), (good, good_peer)) = (pair(), pair());
    let recv = bad.recv();
    // A peer's memory that is not exposed.
    let nowhere = uverbs::RemoteRegion::new(4096, 8, 1).unwrap();
    let failed = bed.run(bad.write(b.filled(b"x"), &nowhere)).unwrap_err();
    assert_eq!(status(&failed.error), Some(WcStatus::REM_ACCESS_ERR));
    drop(failed);
    assert_eq!(status(&bed.run(recv).unwrap_err()), Some(WcStatus::REM_ACCESS_ERR));
    let pass: Vec<Task<'_>> = vec![
        Box::pin(async { good_peer.send(a.filled(b"y")).await.map(drop).map_err(Error::from) }),
        Box::pin(async { good.recv().await.map(|message| assert_eq!(&*message, b"y")) }),
    ];
    bed.run(join(pass)).unwrap();
    bed.run(bad.shutdown()).unwrap();
    drop((bad, bad_peer, good, good_peer, srq));
    bed.step();
    b.assert_no_leak(DEPTH);
}

/// Posts that are refused return their buffer, and the entry of the queue.
#[test]
fn refused_posts_return_their_buffer() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let foreign = b.filled(b"of another domain");
    let failed = bed.run(a.qp.send(foreign)).unwrap_err();
    assert!(matches!(failed.error, Error::Post(e) if e == uverbs::PostError::InvalidArgument), "{failed}");
    assert!(failed.returned.is_some_and(|buf| &*buf == b"of another domain"));
    let short = b.exposed().remote_region().slice(0..4).unwrap();
    let failed = bed.run(a.qp.write(a.filled(b"longer"), &short)).unwrap_err();
    assert!(matches!(failed.error, Error::Post(e) if e == uverbs::PostError::InvalidLength), "{failed}");
    let failed = bed.run(a.qp.send_inline(&[0; 5000])).unwrap_err();
    assert!(matches!(failed.error, Error::Post(e) if e == uverbs::PostError::InlineTooLong), "{failed}");
    let fresh = End::new(a.hca.clone(), true);
    let failed = bed.run(fresh.qp.send(fresh.filled(b"not connected"))).unwrap_err();
    assert!(matches!(failed.error, Error::Post(e) if e == uverbs::PostError::BadState), "{failed}");
    for _ in 0..2 * DEPTH {
        bed.run(a.qp.send_inline(b"works")).unwrap();
        bed.run(b.qp.recv()).unwrap();
    }
}
