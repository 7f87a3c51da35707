// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts of borrowed memory: the scope waits for requests that complete in any order.

use crate::bed::{End, QKEY, on_both};
use core::time::Duration;
use std::time::Instant;
use uverbs::attr::QpState;
use uverbs::{Driver, ScopeError, WcStatus};
use uverbs_efa_device::Fabric;

on_both! {
    borrowed_memory_is_sent_written_and_read
    a_scope_that_is_not_complete_in_time_flushes
    a_panic_in_the_closure_waits_too
    a_scope_ends_on_a_removed_device
}

const LONG: Duration = Duration::from_secs(60);

/// Two ends that need no thread to run their fabric.
fn ends<D: Driver>() -> [End<D>; 2] {
    let fabric = Fabric::new(5);
    ["efa_0", "efa_1"].map(|name| End::new(&fabric.device(name).build()))
}

fn borrowed_memory_is_sent_written_and_read<D: Driver>() {
    let [mut a, mut b] = ends::<D>();
    // A device answers only peers of which it has an address handle.
    let (to_b, to_a, qpn) = (a.ah(&b.here), b.ah(&a.here), b.here.qp_num);
    let mrs = a.device.objects().get("mr").copied();
    b.receives(1);
    let table = b.exposed.get().unwrap();
    let at = table.remote_region();
    let values: Vec<_> = (0..8_u8).map(|n| vec![n; 500]).collect();
    let mut back = vec![0_u8; 500];
    // In any order: each has a part of the peer's memory. An owned request of before is not one of the scope.
    let buf = a.filled(b"owned");
    a.qp.sq().post_to(7, &to_b, qpn, QKEY).send(buf).unwrap();
    let ops = a.qp.scope(&mut a.cq, LONG, |scope| {
        assert!(
            scope.to(&to_b, qpn, QKEY).write(&values[0], &at.slice(0..10).unwrap()).is_err(),
            "too short"
        );
        let parts = (0..8_u64).map(|n| at.slice(n * 500..(n + 1) * 500).unwrap());
        let ops = values.iter().zip(parts);
        ops.map(|(value, part)| scope.to(&to_b, qpn, QKEY).write(value, &part).unwrap()).collect::<Vec<_>>()
    });
    ops.unwrap().iter().for_each(|op| op.ok().unwrap());
    let op = a.qp.scope(&mut a.cq, LONG, |scope| {
        scope.to(&to_b, qpn, QKEY).read(&mut back, &at.slice(1500..2000).unwrap()).unwrap()
    });
    op.unwrap().ok().unwrap();
    assert_eq!(back, values[3]);
    assert_eq!(&*a.ok().buf().unwrap(), b"owned", "kept for the next poll");
    assert_eq!(&*wait(&mut b).buf().unwrap(), b"owned");

    let (text, mut received) = (*b"borrowed", [0; 32]);
    // The peer retries until the receive is there.
    b.qp.sq().post_to(1, &to_a, a.here.qp_num, QKEY).send_inline(b"early").unwrap();
    let op = a.qp.scope(&mut a.cq, LONG, |scope| scope.recv(&mut received).unwrap()).unwrap();
    assert_eq!(&received[..op.byte_len().unwrap()], b"early");
    assert_eq!(wait(&mut b).wc.wr_id, 1);
    b.receives(1);
    let op = a.qp.scope(&mut a.cq, LONG, |scope| scope.to(&to_b, qpn, QKEY).send(&text).unwrap()).unwrap();
    op.ok().unwrap();
    assert_eq!(&*wait(&mut b).buf().unwrap(), b"borrowed");
    assert_eq!(a.device.objects().get("mr").copied(), mrs, "the regions of the scopes ended with them");
    assert_eq!((a.device.violations(), b.device.violations()), (vec![], vec![]));
}

/// The next completion of a device with a clock of its own.
#[track_caller]
fn wait<D: Driver>(end: &mut End<D>) -> uverbs::Completed<D> {
    let limit = Instant::now() + LONG;
    let done = loop {
        match end.cq.poll_one().unwrap() {
            Some(done) => break done,
            None => std::thread::yield_now(),
        }
        assert!(Instant::now() < limit, "no completion");
    };
    assert!(done.wc.status.is_success(), "{:?}", done.error());
    done
}

fn a_scope_that_is_not_complete_in_time_flushes<D: Driver>() {
    let [mut a, _b] = ends::<D>();
    let mrs = a.device.objects().get("mr").copied();
    let (mut text, mut op) = ([0; 32], None);
    let ended = a.qp.scope(&mut a.cq, Duration::from_millis(10), |scope| {
        op = Some(scope.recv(&mut text).unwrap());
    });
    assert!(matches!(ended, Err(ScopeError::TimedOut)), "{ended:?}");
    assert_eq!(op.unwrap().status(), Some(WcStatus::WR_FLUSH_ERR));
    assert_eq!(a.qp.control().state().unwrap(), QpState::ERR);
    assert_eq!(a.device.objects().get("mr").copied(), mrs);
}

fn a_panic_in_the_closure_waits_too<D: Driver>() {
    let [mut a, b] = ends::<D>();
    let (to_b, mrs) = (a.ah(&b.here), a.device.objects().get("mr").copied());
    let value = vec![1_u8; 1000];
    let caught = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let _ = a.qp.scope(&mut a.cq, LONG, |scope| {
            // The peer has no receive: the device repeats it until the QP is in ERR.
            scope.to(&to_b, b.here.qp_num, QKEY).send(&value).unwrap();
            panic!("of the test");
        });
    }));
    assert_eq!(*caught.unwrap_err().downcast_ref::<&str>().unwrap(), "of the test");
    assert_eq!(a.qp.control().state().unwrap(), QpState::ERR);
    assert_eq!(a.device.objects().get("mr").copied(), mrs);
    assert_eq!(a.device.violations(), vec![]);
}

fn a_scope_ends_on_a_removed_device<D: Driver>() {
    let [mut a, _b] = ends::<D>();
    let (device, mut text) = (a.device.clone(), [0; 32]);
    let ended = a.qp.scope(&mut a.cq, Duration::MAX, |scope| {
        let op = scope.recv(&mut text).unwrap();
        device.unplug();
        op
    });
    assert!(matches!(ended, Err(ScopeError::Device(_))), "{ended:?}");
}
