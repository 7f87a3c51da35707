// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends that are posted during control calls: nothing is published under a state that has ended, and no control call waits
//! for the user's code.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs; no device reads the memory that they name.

use crate::testing::{BLUE_FLAME, QpAccess, Sends, heap_page, send_config, send_parts, send_parts_with};
use crate::{Remote, SendQueue, Sge};
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::{Arc, mpsc};
use uverbs_core::attr::{QpState, QpType};
use uverbs_core::kernel::{DoorbellPage, DoorbellPort};
use uverbs_core::provider::{
    Head, Op, PostError, SendBatch as _, SendQueue as _, WireRemote as _, WireSge as _, Wr, WrBuilder as _,
};
use uverbs_core::sync::ControlBarrier;
use uverbs_core::wr::{SendWr, WrOpcode};

fn remote() -> Remote {
    Remote::new(0x1000, 1)
}

fn one() -> [Sge; 1] {
    [Sge::new(0x2000, 8, 3).unwrap()]
}

/// Resets the QP and brings it to RTS again.
fn reset_and_restart(s: &Sends) {
    for state in [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS] {
        s.qp.set_state(state);
    }
}

/// Posts one WR through one interface.
type Post = fn(&mut SendQueue) -> Result<(), PostError>;

/// One function per interface.
const FACES: [Post; 5] = [
    // SAFETY: there is no device that would read the entry's memory.
    |q| unsafe { q.post(&Wr::new(0, Op::Write(remote())).sges(&one())) },
    // SAFETY: inline data are copied by the call, so no memory is used later.
    |q| unsafe { q.post(&Wr::new(0, Op::Send).inline(b"inline")) },
    |q| {
        let mut batch = q.batch();
        // SAFETY: there is no device that would read the entry's memory.
        unsafe { batch.push(&Wr::new(0, Op::Write(remote())).sges(&one())) };
        batch.complete()
    },
    |q| {
        let entry = uverbs_core::wr::Sge { addr: 1, length: 8, lkey: 2 };
        let mut wr = SendWr::new(1, WrOpcode::RDMA_WRITE);
        (wr.sg_list, wr.num_sge) = (&raw const entry, 1);
        // SAFETY: `wr` is a list of one node, and its entry is a local; there is no device that would read the entry's
        // memory.
        unsafe { q.post_send(&raw const wr) }.map_err(|bad| bad.error)
    },
    |q| {
        q.wr_start();
        build(q);
        q.wr_complete()
    },
];

/// Calls the builder of a WRITE and its setter.
fn build(q: &mut SendQueue) {
    // SAFETY: the operation is not a bind.
    unsafe { q.wr_begin(Head::default(), Op::Write(remote())) };
    // SAFETY: there is no device that would read the entry's memory.
    unsafe { q.wr_set_sges(&[uverbs_core::wr::Sge { addr: 1, length: 8, lkey: 2 }]) };
}

#[test]
fn a_batch_from_before_a_reset_is_refused_and_the_next_starts_at_0() {
    let mut s = Sends::new(&send_config(QpType::Rc), 64, BLUE_FLAME);
    FACES[0](&mut s.queue).unwrap();
    let mut batch = s.queue.batch();
    // SAFETY: there is no device that would read the entry's memory.
    unsafe { batch.push(&Wr::new(0, Op::Write(remote())).sges(&one())) };
    s.qp.set_state(QpState::RESET);
    s.record.set_send(0);
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        s.qp.set_state(state);
    }
    // SAFETY: there is no device that would read the entry's memory. The batch still has room below its limit.
    unsafe { batch.push(&Wr::new(0, Op::Write(remote())).sges(&one())) };
    assert_eq!(batch.complete(), Err(PostError::BadState));
    assert_eq!(s.posted(), 0);
    FACES[2](&mut s.queue).unwrap();
    assert_eq!((s.queue.published(), s.posted()), ((1, 1), 1));
}

#[test]
fn a_session_from_before_a_reset_is_refused_and_the_next_starts_at_0() {
    for fenced in [false, true] {
        let mut s = Sends::new(&send_config(QpType::Rc), 64, BLUE_FLAME);
        s.queue.wr_start();
        if fenced {
            // SAFETY: the operation is not a bind.
            unsafe { s.queue.wr_begin(Head::default(), Op::LocalInv(1)) };
        }
        build(&mut s.queue);
        reset_and_restart(&s);
        // The session is still open and excludes other posts.
        assert_eq!(FACES[0](&mut s.queue), Err(PostError::SessionOpen));
        build(&mut s.queue);
        assert_eq!(s.queue.wr_complete(), Err(PostError::BadState));
        assert_eq!(s.posted(), 0);
        FACES[4](&mut s.queue).unwrap();
        assert_eq!((s.queue.published(), s.posted()), ((1, 1), 1));
    }
}

#[test]
fn a_forgotten_batch_posts_nothing_and_no_control_call_waits_for_it() {
    let mut s = Sends::new(&send_config(QpType::Rc), 64, BLUE_FLAME);
    for reset in [false, true] {
        let before = s.posted();
        let mut batch = s.queue.batch();
        // SAFETY: there is no device that would read the entry's memory.
        unsafe { batch.push(&Wr::new(0, Op::Write(remote())).sges(&one())) };
        // SAFETY: the operation names no memory. A batch that is not completed does not leave a fence behind.
        unsafe { batch.push(&Wr::new(0, Op::LocalInv(1))) };
        let _forgotten = core::mem::ManuallyDrop::new(batch);
        assert_eq!(s.posted(), before);
        if reset {
            reset_and_restart(&s);
        }
        FACES[0](&mut s.queue).unwrap();
        assert_eq!(s.posted(), if reset { 1 } else { before + 1 });
    }
}

/// With full fences on both sides the limit stays 0, and every interface posts.
#[test]
fn with_fences_the_limit_stays_0() {
    let access = QpAccess::new(ControlBarrier::Fence).unwrap();
    let mut s = Sends::with_access(&send_config(QpType::Rc), 64, BLUE_FLAME, access);
    let access = || QpAccess::new(ControlBarrier::Fence).unwrap();
    let config = send_config(QpType::Rc);
    let (mut mapped, qp, _, _) = send_parts_with(&config, 64, BLUE_FLAME, &heap_page(), None, access());
    for round in 0..2 {
        for (i, post) in FACES.iter().enumerate() {
            post(&mut s.queue).unwrap();
            post(&mut mapped).unwrap();
            assert_eq!((s.queue.published().1, s.posted()), (i as u32 + 1, i as u32 + 1), "round {round}");
            assert_eq!(s.bell.take().len(), 1);
            for qp in [&s.qp, &qp] {
                assert_eq!(qp.access().send.limit().load(Ordering::Relaxed), 0);
            }
        }
        reset_and_restart(&s);
        qp.set_state(QpState::RESET);
        assert_eq!(FACES.map(|post| post(&mut mapped)), [Err(PostError::BadState); 5]);
        qp.set_state(QpState::RTS);
    }
}

/// A doorbell that waits for `go_on`, or panics.
#[derive(Debug)]
struct SlowBell {
    entered: mpsc::SyncSender<()>,
    go_on: AtomicBool,
    panics: bool,
}

impl DoorbellPort for SlowBell {
    fn ring(&self, _: u32, _: [u8; 8]) {
        assert!(!self.panics, "the device has failed");
        let _ = self.entered.send(());
        while !self.go_on.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
    fn blueflame(&self, offset: u32, _: &[u8]) {
        self.ring(offset, [0; 8]);
    }
}

#[test]
fn a_reset_waits_for_the_post_in_progress() {
    for post in FACES {
        let (entered, when_entered) = mpsc::sync_channel(1);
        let bell = Arc::new(SlowBell { entered, go_on: AtomicBool::new(false), panics: false });
        let page = DoorbellPage::Port(bell.clone());
        let (mut queue, qp, _, record) = send_parts(&send_config(QpType::Rc), 64, BLUE_FLAME, &page, None);
        std::thread::scope(|threads| {
            let poster = threads.spawn(move || post(&mut queue));
            when_entered.recv().unwrap();
            let reset = threads.spawn(|| {
                qp.set_state(QpState::RESET);
                assert!(bell.go_on.load(Ordering::Acquire), "the reset overtook a post");
                assert_eq!(u32::from_be(record.word(1).load(Ordering::Relaxed)), 1);
            });
            std::thread::sleep(Duration::from_millis(20));
            bell.go_on.store(true, Ordering::Release);
            reset.join().unwrap();
            assert_eq!(poster.join().unwrap(), Ok(()));
        });
    }
}

#[test]
fn a_doorbell_that_panics_leaves_the_queue() {
    for post in FACES {
        let (entered, _) = mpsc::sync_channel(1);
        let bell = SlowBell { entered, go_on: AtomicBool::new(true), panics: true };
        let page = DoorbellPage::Port(Arc::new(bell));
        let (mut queue, qp, _, _) = send_parts(&send_config(QpType::Rc), 64, BLUE_FLAME, &page, None);
        assert!(catch_unwind(AssertUnwindSafe(|| post(&mut queue))).is_err());
        qp.set_state(QpState::RESET);
    }
}

/// Posts and resets in two threads: after each reset posts begin at index 0, and none from before it is published.
#[test]
fn no_post_of_another_thread_is_published_after_a_reset() {
    for barrier in [ControlBarrier::register(), ControlBarrier::Fence] {
        for post in FACES {
            let access = QpAccess::new(barrier).unwrap();
            let config = send_config(QpType::Rc);
            let (mut queue, qp, _, record) =
                send_parts_with(&config, 64, BLUE_FLAME, &heap_page(), None, access);
            let stop = AtomicBool::new(false);
            std::thread::scope(|threads| {
                let poster = threads.spawn(|| {
                    let mut posts = 0_u32;
                    while !stop.load(Ordering::Relaxed) {
                        match post(&mut queue) {
                            Ok(()) => posts += 1,
                            Err(PostError::BadState | PostError::QueueFull) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    posts
                });
                for _ in 0..50 {
                    qp.set_state(QpState::RESET);
                    record.set_send(0);
                    assert_eq!(record.word(1).load(Ordering::Relaxed), 0, "a WQE from before the reset");
                    qp.set_state(QpState::INIT);
                    assert_eq!(record.word(1).load(Ordering::Relaxed), 0, "a WQE from before the reset");
                    qp.set_state(QpState::RTS);
                    std::thread::yield_now();
                    assert!(u32::from_be(record.word(1).load(Ordering::Relaxed)) <= 16);
                }
                stop.store(true, Ordering::Relaxed);
                poster.join().unwrap();
            });
        }
    }
}
