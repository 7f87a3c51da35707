// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control calls against posts and polls.
#![expect(unsafe_code)]
// UNSAFETY: posts requests whose memory no device accesses.

use super::{post, sge, to};
use crate::testing::{Rig, Shape, send_config};
use crate::{Ah, Completion};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::provider::requests::Poster;
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, Dest, Head, Inline, Op, PostError, RecvBatch as _, RecvQueue as _,
    SendBatch as _, SendQueue as _, To, Wr, WrBuilder as _,
};
use uverbs_core::wr::{SendFlags, Sge};
use uverbs_testkit::{Face, check_claims, handle};

fn rig() -> Rig {
    Rig::new(Shape::default(), send_config())
}

fn send(rig: &mut Rig, id: u64) -> Result<(), PostError> {
    let ah = handle(Ah(1));
    post(&mut rig.send, Face::Single, &[to(&ah, Wr::new(id, Op::Send))])
}

/// What `modify_qp` does for RESET, and the device with it.
fn reset(rig: &mut Rig) {
    rig.shared.close_all().unwrap();
    rig.device.reset();
    assert!(rig.shared.reset());
    rig.shared.open(QpState::RESET);
    rig.shared.open(QpState::RTS);
}

fn ids(rig: &mut Rig) -> Vec<u64> {
    let mut polled = Vec::new();
    rig.cq.poll_each(16, |completion| polled.push(completion.wr_id())).unwrap();
    rig.device.rung();
    polled
}

#[test]
fn a_reset_ends_batches_and_empties_the_queues() {
    let mut rig = rig();
    for id in 0..3 {
        send(&mut rig, id).unwrap();
    }
    let (sent, _) = rig.device.take();
    rig.device.complete(0, &rig.device.sent(sent[0].req_id));

    let shared = Arc::clone(&rig.shared);
    let mut batch = rig.send.batch();
    let wr: Wr<'_, Ah, Sge> =
        Wr::new(9, Op::Send).signaled().to(Dest::Ud(To { ah: &Ah(1), remote_qpn: 1, remote_qkey: 1 }));
    // SAFETY: no memory is named.
    unsafe { batch.push(&wr) };
    shared.close_all().unwrap();
    assert_eq!(batch.complete(), Err(PostError::BadState));
    assert_eq!(send(&mut rig, 4), Err(PostError::BadState));

    // The kernel refuses: the state is that of before, and so are the queues. A batch from before is still good.
    shared.open(QpState::RTS);
    let mut receives = rig.recv.batch();
    // SAFETY: there is no device that would access the memory.
    unsafe { receives.push(1, &[sge(1, 1, 1)]) };
    shared.close_all().unwrap();
    shared.open(QpState::RTS);
    assert_eq!(receives.complete(), Ok(()));
    send(&mut rig, 5).unwrap();
    rig.device.take();

    let mut batch = rig.send.batch();
    // SAFETY: no memory is named.
    unsafe { batch.push(&wr) };
    shared.close_all().unwrap();
    rig.device.reset();
    assert!(shared.reset());
    shared.open(QpState::RESET);
    shared.open(QpState::RTS);
    assert_eq!(batch.complete(), Err(PostError::BadState), "it began before the reset");
    assert_eq!(ids(&mut rig), [0; 0], "the completion is removed");

    // The queue begins with the first entry, and all of it is free.
    for id in 10..18 {
        send(&mut rig, id).unwrap();
    }
    assert_eq!(send(&mut rig, 18), Err(PostError::QueueFull));
    let (new, _) = rig.device.take();
    assert_eq!(new.len(), 8);
    // Numbers of before the reset are of another generation.
    rig.device.complete(0, &rig.device.sent(sent[1].req_id));
    rig.device.complete(0, &rig.device.sent(new[1].req_id));
    assert_eq!(ids(&mut rig), [11]);
}

/// The poller knows whose the completion before it was.
#[test]
fn a_late_completion_finds_no_request_of_after_the_reset() {
    let mut rig = rig();
    let post = |rig: &mut Rig, is_send, id| {
        if is_send {
            send(rig, id).unwrap();
        } else {
            // SAFETY: there is no device that would access the memory.
            unsafe { rig.recv.post(id, &[sge(1, 1, 1)]) }.unwrap();
        }
        let (sent, received) = rig.device.take();
        let number = if is_send { sent[0].req_id } else { received[0].req_id };
        if is_send { rig.device.sent(number) } else { rig.device.received(number, 1) }
    };
    for is_send in [true, false] {
        let old = [0, 1, 2].map(|id| post(&mut rig, is_send, id));
        rig.device.complete(0, &old[0]);
        assert_eq!(ids(&mut rig), [0]);
        reset(&mut rig);
        let new = [10, 11, 12].map(|id| post(&mut rig, is_send, id));
        for entry in [&old[1], &new[0], &old[2], &new[1]] {
            rig.device.complete(0, entry);
        }
        assert_eq!(ids(&mut rig), [10, 11], "sends: {is_send}");
    }
}

/// As libefa: the index begins with 0, and the phase is not changed. The device of the test checks it.
#[test]
fn the_phase_continues_after_a_reset() {
    let mut rig = rig();
    for posts in [8, 3, 11, 0, 13, 8, 8] {
        for id in 0..posts {
            send(&mut rig, id).unwrap();
            let (sent, _) = rig.device.take();
            rig.device.complete(0, &rig.device.sent(sent[0].req_id));
            assert_eq!(ids(&mut rig), [id]);
        }
        reset(&mut rig);
    }
}

#[test]
fn an_open_session_does_not_survive_a_reset() {
    for (mapped, requests) in [(false, 0), (false, 1), (true, 0), (true, 1), (true, 2)] {
        let mut rig = Rig::new(Shape { mapped, ..Shape::default() }, send_config());
        begin_session(&mut rig, requests);
        reset(&mut rig);
        assert_eq!(rig.send.wr_complete(), Err(PostError::BadState));
        assert_eq!(rig.device.rung(), [], "{mapped} {requests}");
        assert_eq!(send(&mut rig, 1), Ok(()));
        assert_eq!(rig.device.take().0.len(), 1);
    }
}

/// A state that is not the one that the session began in does not end it, if it allows posts.
#[test]
fn an_open_session_survives_another_state() {
    for (mapped, requests) in [(false, 1), (true, 1), (true, 2)] {
        let mut rig = Rig::new(Shape { mapped, ..Shape::default() }, send_config());
        begin_session(&mut rig, requests);
        rig.shared.close_all().unwrap();
        rig.shared.open(QpState::SQD);
        assert_eq!(rig.send.wr_complete(), Ok(()));
        assert_eq!(rig.device.take().0.len(), requests, "{mapped}");
    }
}

/// Begins a session of this many requests.
fn begin_session(rig: &mut Rig, requests: usize) {
    rig.send.wr_start();
    for id in 0..requests {
        let head = Head { wr_id: id as u64, flags: SendFlags::SIGNALED };
        // SAFETY: not a bind.
        unsafe { rig.send.wr_begin(head, Op::Send) };
        rig.send.wr_set_ud_addr(&Ah(1), 1, 1);
        rig.send.wr_set_inline(Inline::Bytes(b"x"));
    }
}

#[test]
fn states_allow_what_libefa_allows() {
    for (state, expected) in [
        (QpState::RESET, false),
        (QpState::INIT, false),
        (QpState::RTR, false),
        (QpState::RTS, true),
        (QpState::SQD, true),
        (QpState::SQE, false),
        (QpState::ERR, false),
    ] {
        let mut rig = Rig::in_state(Shape::default(), send_config(), state);
        let result = if expected { Ok(()) } else { Err(PostError::BadState) };
        assert_eq!(send(&mut rig, 1), result, "{state:?}");
    }
}

#[test]
fn a_removed_device_says_so() {
    let mut rig = rig();
    rig.shared.open(StateWord::REMOVED);
    assert_eq!(send(&mut rig, 1), Err(PostError::Removed));
    // SAFETY: there is no device that would access the memory.
    assert_eq!(unsafe { rig.recv.post(1, &[sge(1, 1, 1)]) }, Err(PostError::Removed));
    rig.shared.open(QpState::RTS);
    assert_eq!(send(&mut rig, 1), Err(PostError::Removed));
}

/// The table of the completion before is remembered: not beyond the QP.
#[test]
fn a_completion_of_a_destroyed_qp_finds_no_request_right_after_one_that_did() {
    let shape = Shape::default();
    let mut one = Rig::new(shape, send_config());
    for id in 1..3 {
        send(&mut one, id).unwrap();
    }
    let (sent, _) = one.device.take();
    one.device.complete(0, &one.device.sent(sent[0].req_id));
    assert_eq!(ids(&mut one), [1]);
    one.shared.close_all().unwrap();
    one.shared.detach();
    one.device.complete(0, &one.device.sent(sent[1].req_id));
    assert_eq!(ids(&mut one), [0; 0]);

    // Another QP gets its number.
    let cq = one.cq.shared();
    let barrier = uverbs_core::sync::ControlBarrier::register();
    let qp = (shape.qp_num, one.shared.behind());
    let other = crate::QpShared::create(QpState::RTS, barrier, qp, (8, 8), (cq, cq), false).unwrap();
    assert!(other.attach());
    let poster = Poster::new(&other.send.requests);
    let number = poster.slots().prepare(0, 77) as u16;
    poster.slots().publish(1);
    one.device.complete(0, &one.device.sent(number));
    one.device.complete(0, &one.device.sent(sent[1].req_id));
    assert_eq!(ids(&mut one), [77], "the late completion of the first QP is left out");
}

#[test]
fn the_completions_of_a_destroyed_qp_leave_room_for_others() {
    let mut one = rig();
    let shape = Shape { qp_num: 0x0203, ..Shape::default() };
    // A second QP on the CQ of the first.
    let other = crate::QpShared::create(
        QpState::RTS,
        uverbs_core::sync::ControlBarrier::register(),
        (shape.qp_num, [8, 8]),
        (8, 8),
        (one.cq.shared(), one.cq.shared()),
        false,
    );
    let other = other.unwrap();
    assert!(other.attach());
    let poster = Poster::new(&other.send.requests);
    let other_number = poster.slots().prepare(0, 77) as u16;
    poster.slots().publish(1);

    for id in 0..8 {
        send(&mut one, id).unwrap();
    }
    let (sent, _) = one.device.take();
    for sent in &sent[..7] {
        one.device.complete(0, &one.device.sent(sent.req_id));
    }
    let entry = crate::testing::Entry { qp_num: shape.qp_num, ..one.device.sent(other_number) };
    one.device.complete(0, &entry);
    one.device.complete(0, &one.device.sent(sent[7].req_id));
    one.shared.close_all().unwrap();
    one.shared.detach();
    // The device writes a whole round to the ring, which has room for it.
    for position in 1..17 {
        let number = poster.slots().prepare(position, position.into()) as u16;
        poster.slots().publish(1);
        one.device.complete(0, &crate::testing::Entry { req_id: number, ..entry });
        if position == 1 {
            assert_eq!(ids(&mut one), [77, 1], "what is kept comes first");
        } else {
            assert_eq!(ids(&mut one), [u64::from(position)]);
        }
    }
    // A late completion of the destroyed QP.
    one.device.complete(0, &one.device.sent(sent[0].req_id));
    assert_eq!(ids(&mut one), [0; 0]);
    other.detach();
}

#[test]
fn control_calls_wait_for_claims_only() {
    let mut rig = rig();
    for id in 0..2 {
        send(&mut rig, id).unwrap();
    }
    for sent in rig.device.take().0 {
        rig.device.complete(0, &rig.device.sent(sent.req_id));
    }
    let shared = Arc::clone(rig.cq.shared());
    check_claims(&mut rig.cq, 2, || {
        shared.stopped(|_| ()).unwrap();
    });
}

#[test]
fn a_callback_may_make_control_calls() {
    let mut rig = rig();
    for id in 0..3 {
        send(&mut rig, id).unwrap();
    }
    for sent in rig.device.take().0 {
        rig.device.complete(0, &rig.device.sent(sent.req_id));
    }
    let shared = Arc::clone(&rig.shared);
    let mut polled = Vec::new();
    let n = rig.cq.poll_each(8, |completion: &Completion| {
        polled.push(completion.wr_id());
        shared.close_all().unwrap();
        assert!(shared.reset());
        shared.open(QpState::RESET);
    });
    assert_eq!((n, polled), (Ok(1), vec![0]), "the reset has removed the others");
}

/// Threads that post and poll while another resets: nothing is reported twice, or from before a reset.
#[test]
fn posts_polls_and_resets_in_parallel() {
    for (face, mapped) in [(Face::Single, false), (Face::Builder, false), (Face::Builder, true)] {
        post_poll_and_reset(face, mapped);
    }
}

fn post_poll_and_reset(face: Face, mapped: bool) {
    const ROUNDS: u64 = 100;
    let shape = Shape { mapped, ..Shape::default() };
    let Rig { mut send, recv: _recv, mut cq, shared, device } = Rig::new(shape, send_config());
    let stop = AtomicBool::new(false);
    let device = std::sync::Mutex::new(device);
    std::thread::scope(|scope| {
        // A thread that fails ends the others.
        let _end = Stop(&stop);
        scope.spawn(|| {
            let ah = handle(Ah(1));
            let mut id = 0;
            while !stop.load(Ordering::Relaxed) {
                let result = post(&mut send, face, &[to(&ah, Wr::new(id, Op::Send))]);
                match result {
                    Ok(()) => id += 1,
                    Err(PostError::QueueFull | PostError::BadState) => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
                let mut device = device.lock().unwrap();
                let bells = device.rung();
                for sent in device.sends(&bells) {
                    let entry = device.sent(sent.req_id);
                    device.complete(0, &entry);
                }
            }
        });
        scope.spawn(|| {
            let mut last = None;
            while !stop.load(Ordering::Relaxed) {
                cq.poll_each(4, |completion| {
                    assert!(last < Some(completion.wr_id()), "{last:?}, then {}", completion.wr_id());
                    last = Some(completion.wr_id());
                })
                .unwrap();
            }
            assert!(last.is_some());
        });
        for _ in 0..ROUNDS {
            shared.close_all().unwrap();
            {
                let mut device = device.lock().unwrap();
                // What was rung before the reset counts: the phase of the entries continues behind it.
                device.take();
                device.reset();
                assert!(shared.reset());
            }
            shared.open(QpState::RESET);
            shared.open(QpState::RTS);
            std::thread::yield_now();
        }
        std::thread::sleep(core::time::Duration::from_millis(20));
    });
}

/// Sets the flag when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
