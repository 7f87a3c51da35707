// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts of borrowed memory: the scope waits, whatever the closure does.

use crate::bed::{BUFS, real_time_pair as pair};
use core::time::Duration;
use uverbs::ScopeError;
use uverbs::attr::{AccessFlags, QpState};
use uverbs::{WcOpcode, WcStatus};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn borrowed_memory_is_written_and_read() {
    let (mut a, b) = pair();
    let rights = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let table = b.pd.pool_with(1, 4096).exposed(rights).build().unwrap().get().unwrap();
    let to = table.remote_region();
    let (value, mut back) = (vec![7_u8; 1000], vec![0_u8; 1000]);
    a.qp.scope(&mut a.cq, LONG, |scope| {
        assert!(scope.write(&value, &to.slice(0..10).unwrap()).is_err(), "too short");
        [scope.write(&value, &to).unwrap(), scope.read(&mut back, &to).unwrap()]
    })
    .unwrap()
    .iter()
    .for_each(|op| op.ok().unwrap());
    assert_eq!(value, back);
    assert_eq!(a.hca.objects().get("mr"), Some(&1), "the regions of the scope ended with it");
}

#[test]
fn a_post_that_fails_is_an_error_of_its_op_and_not_of_the_scope() {
    let (mut a, b) = pair();
    let table = b.pd.pool_with(1, 4096).exposed(AccessFlags::REMOTE_WRITE).build().unwrap().get().unwrap();
    let to = table.remote_region();
    drop(table);
    // As the example of the module does, with `??.ok()`.
    let op = a.qp.scope(&mut a.cq, LONG, |scope| scope.write(&[7; 1000], &to)).unwrap().unwrap();
    assert_eq!((op.status(), op.byte_len()), (Some(WcStatus::REM_ACCESS_ERR), None));
    // The QP is in ERR, so the next one is flushed.
    let op = a.qp.scope(&mut a.cq, LONG, |scope| scope.write(&[7; 1000], &to)).unwrap().unwrap();
    assert_eq!(op.ok().unwrap_err().status(), WcStatus::WR_FLUSH_ERR);
}

#[test]
fn other_completions_are_kept_for_the_next_poll() {
    let (mut a, mut b) = pair();
    b.receives(2);
    let buf = a.filled(b"owned");
    a.qp.sq().post(7).signaled().send(buf).unwrap();
    let text = *b"borrowed";
    let op = a.qp.scope(&mut a.cq, LONG, |scope| scope.send(&text).unwrap()).unwrap();
    assert_eq!((op.status(), op.ok().is_ok()), (Some(WcStatus::SUCCESS), true));
    let kept = a.next();
    assert_eq!((kept.wc.wr_id, kept.wc.opcode), (7, WcOpcode::SEND));
    assert_eq!(&*kept.buf().unwrap(), b"owned");
    assert_eq!(&*b.next().buf().unwrap(), b"owned");

    // A receive into borrowed memory: its length is known after the scope.
    let mut text = [0; 32];
    // The peer retries until the receive is there.
    b.qp.sq().post(1).send_inline(b"answer").unwrap();
    let op = a.qp.scope(&mut a.cq, LONG, |scope| scope.recv(&mut text).unwrap()).unwrap();
    assert_eq!(&text[..op.byte_len().unwrap()], b"answer");
}

#[test]
fn a_scope_that_is_not_complete_in_time_flushes() {
    let (mut a, _b) = pair();
    let mut text = [0; 32];
    let mut op = None;
    let ended = a.qp.scope(&mut a.cq, Duration::from_millis(10), |scope| {
        op = Some(scope.recv(&mut text).unwrap());
    });
    assert!(matches!(ended, Err(ScopeError::TimedOut)), "{ended:?}");
    assert_eq!(op.unwrap().status(), Some(WcStatus::WR_FLUSH_ERR));
    assert_eq!(a.qp.control().state().unwrap(), QpState::ERR);
    assert_eq!(a.hca.objects().get("mr"), Some(&1));
}

#[test]
fn a_panic_in_the_closure_waits_too() {
    let (mut a, _b) = pair();
    let mut text = [0; 32];
    let caught = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let _ = a.qp.scope(&mut a.cq, LONG, |scope| {
            scope.recv(&mut text).unwrap();
            panic!("of the test");
        });
    }));
    assert!(caught.is_err());
    assert_eq!(a.qp.control().state().unwrap(), QpState::ERR);
    assert_eq!((a.hca.objects().get("mr"), a.available()), (Some(&1), BUFS));
    assert!(a.hca.violations().is_empty());
}

/// It need not abort the process, because the device has no memory of it.
#[test]
fn a_scope_without_memory_ends_on_a_removed_device() {
    let (mut a, _b) = pair();
    a.hca.unplug();
    let mut op = None;
    let ended = a.qp.scope(&mut a.cq, Duration::from_millis(10), |scope| op = scope.send(b"").ok());
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(op.unwrap().status(), None);
}

/// The end of the wait is a time that the clock does not have: the scope waits nevertheless, also if the closure panics.
#[test]
fn a_limit_beyond_the_clock_is_none() {
    let (mut a, mut b) = pair();
    b.receives(1);
    let text = *b"borrowed";
    let op = a.qp.scope(&mut a.cq, Duration::MAX, |scope| scope.send(&text).unwrap()).unwrap();
    assert!(op.ok().is_ok());
    let mut text = [0; 32];
    let caught = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let _ = a.qp.scope(&mut a.cq, Duration::MAX, |scope| {
            scope.recv(&mut text).unwrap();
            panic!("of the test");
        });
    }));
    assert_eq!(*caught.unwrap_err().downcast_ref::<&str>().unwrap(), "of the test");
    assert_eq!(a.qp.control().state().unwrap(), QpState::ERR);
    assert_eq!((a.hca.objects().get("mr"), a.available()), (Some(&1), BUFS));
    assert!(a.hca.violations().is_empty());
}
