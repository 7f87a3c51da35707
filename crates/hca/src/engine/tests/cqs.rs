// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues: events by arming, resizing.

use super::rig::{End, PAGE, Ram, area, on, pair};
use crate::engine::Notice;
use crate::engine::qp::QpKind;
use crate::fabric::Fabric;
use uverbs_mlx5_hw::cqe::MLX5_CQE_RESIZE_CQ;
use uverbs_mlx5_hw::doorbell::{CqDoorbell, MLX5_CQ_DB_REQ_NOT, MLX5_CQ_DB_REQ_NOT_SOL};
use uverbs_mlx5_hw::wqe::{MLX5_OPCODE_NOP, MLX5_OPCODE_SEND};
use zerocopy::IntoBytes;

fn rc() -> (End, End) {
    pair(&Fabric::deterministic(1), QpKind::Rc, 0)
}

fn arm(end: &End, cqn: u32, sn: u32, cmd: u32, ci: u32) {
    let doorbell = CqDoorbell::new(sn, cmd, ci, cqn);
    let value = doorbell.as_bytes().try_into().unwrap();
    on(&end.hca, |device, cx| device.doorbell(cx, PAGE, 0x20, value, None));
}

/// The number of events that the CQ raised during `f`.
fn events(end: &mut End, cqn: u32, f: impl FnOnce(&mut End)) -> usize {
    end.hca.record_notices();
    f(end);
    end.hca.recorded_notices().iter().filter(|n| **n == Notice::Completion { cqn }).count()
}

#[test]
fn an_armed_cq_raises_one_event_per_number() {
    let (mut a, _b) = rc();
    let cqn = a.send_cq.cqn;
    let nop = |a: &mut End| {
        a.post(MLX5_OPCODE_NOP, 0, &[]);
    };
    assert_eq!(events(&mut a, cqn, nop), 0);
    a.send_cq.poll().unwrap();
    arm(&a, cqn, 0, MLX5_CQ_DB_REQ_NOT, 1);
    assert_eq!(events(&mut a, cqn, nop), 1);
    assert_eq!(events(&mut a, cqn, nop), 0);
    // The same number again means that the event was not taken.
    assert_eq!(events(&mut a, cqn, |a| arm(a, cqn, 0, MLX5_CQ_DB_REQ_NOT, 3)), 0);
    assert_eq!(events(&mut a, cqn, nop), 0);
    // Arming raises an event immediately if there are unconsumed entries.
    assert_eq!(events(&mut a, cqn, |a| arm(a, cqn, 1, MLX5_CQ_DB_REQ_NOT, 3)), 1);
    assert_eq!(events(&mut a, cqn, |a| arm(a, cqn, 2, MLX5_CQ_DB_REQ_NOT, 4)), 0);
    assert_eq!(events(&mut a, cqn, nop), 1);
}

#[test]
fn solicited_only_raises_events_for_solicited_entries_and_errors() {
    let (mut a, mut b) = rc();
    let cqn = b.recv_cq.cqn;
    let mut send = |se: u8, b: &mut End| {
        b.recv(0, 10);
        let sge = a.sge(0, 4);
        let index = a.write_ctrl(MLX5_OPCODE_SEND, 8 | se, 0, &[sge.as_bytes()]);
        a.ring(index);
    };
    arm(&b, cqn, 0, MLX5_CQ_DB_REQ_NOT_SOL, 0);
    assert_eq!(events(&mut b, cqn, |b| send(0, b)), 0);
    assert_eq!(events(&mut b, cqn, |b| send(2, b)), 1);
    // There are two entries; the second one was solicited.
    assert_eq!(events(&mut b, cqn, |b| arm(b, cqn, 1, MLX5_CQ_DB_REQ_NOT_SOL, 2)), 0);
    b.recv(0, 10);
    let error = |b: &mut End| b.set_state(crate::engine::qp::State::Err);
    assert_eq!(events(&mut b, cqn, error), 1);
    // The error was reported, though not consumed.
    assert_eq!(events(&mut b, cqn, |b| arm(b, cqn, 2, MLX5_CQ_DB_REQ_NOT_SOL, 1)), 0);
}

/// IBA 11.4.2.2: of two requests before an event, the one for any completion is in force, in either order.
#[test]
fn a_request_for_any_completion_is_not_narrowed() {
    let (any, solicited) = (MLX5_CQ_DB_REQ_NOT, MLX5_CQ_DB_REQ_NOT_SOL);
    for (first, second) in [(any, solicited), (solicited, any)] {
        let (mut a, mut b) = rc();
        let cqn = b.recv_cq.cqn;
        let mut send = |b: &mut End| {
            b.recv(0, 10);
            let sge = a.sge(0, 4);
            let index = a.write_ctrl(MLX5_OPCODE_SEND, 8, 0, &[sge.as_bytes()]);
            a.ring(index);
        };
        arm(&b, cqn, 0, first, 0);
        assert_eq!(events(&mut b, cqn, |b| arm(b, cqn, 0, second, 0)), 0);
        assert_eq!(events(&mut b, cqn, &mut send), 1, "{first:#x}, {second:#x}");
        assert_eq!(events(&mut b, cqn, &mut send), 0);
        // After its event, neither request is in force: the next one is alone.
        b.recv_cq.poll().unwrap();
        b.recv_cq.poll().unwrap();
        arm(&b, cqn, 1, solicited, 2);
        assert_eq!(events(&mut b, cqn, &mut send), 0);
        // With an entry that was not consumed, a request for any completion raises its event at once, and the later one
        // for solicited completions has the same number and raises none.
        assert_eq!(events(&mut b, cqn, |b| arm(b, cqn, 1, any, 2)), 1);
        assert_eq!(events(&mut b, cqn, |b| arm(b, cqn, 1, solicited, 2)), 0);
        assert_eq!(events(&mut b, cqn, &mut send), 0);
    }
}

/// A program that arms before it polls, as perftest does, gets one event for each completion.
#[test]
fn an_entry_raises_one_event_although_it_is_not_consumed() {
    let (mut a, _b) = rc();
    let cqn = a.send_cq.cqn;
    let nop = |a: &mut End| {
        a.post(MLX5_OPCODE_NOP, 0, &[]);
    };
    assert_eq!(events(&mut a, cqn, nop), 0);
    assert_eq!(events(&mut a, cqn, |a| arm(a, cqn, 0, MLX5_CQ_DB_REQ_NOT, 0)), 1, "it was there before");
    assert_eq!(events(&mut a, cqn, |a| arm(a, cqn, 1, MLX5_CQ_DB_REQ_NOT, 0)), 0, "it was reported");
    assert_eq!(events(&mut a, cqn, nop), 1);
    assert_eq!(events(&mut a, cqn, nop), 0);
    assert_eq!(events(&mut a, cqn, |a| arm(a, cqn, 2, MLX5_CQ_DB_REQ_NOT, 0)), 1, "the third was not");
}

/// Indices have 24 bits on the doorbell: a solicited entry that was consumed long ago is not taken for one that waits.
#[test]
fn a_solicited_entry_of_the_last_lap_raises_no_event() {
    let (mut a, mut b) = rc();
    let cqn = b.recv_cq.cqn;
    b.recv(0, 10);
    let sge = a.sge(0, 4);
    let index = a.write_ctrl(MLX5_OPCODE_SEND, 8 | 2, 0, &[sge.as_bytes()]);
    a.ring(index);
    b.recv_cq.poll().unwrap();
    // After 2^24 - 5 entries, the lower 24 bits of the solicited entry's index are those of one of the next few
    // entries.
    on(&b.hca, |device, _| device.cqs.get_mut(&cqn).unwrap().skip((1 << 24) - 5));
    assert_eq!(events(&mut b, cqn, |b| arm(b, cqn, 0, MLX5_CQ_DB_REQ_NOT_SOL, (1 << 24) - 4)), 0);
}

#[test]
fn a_resize_marks_the_end_of_the_old_ring() {
    let (mut a, _b) = rc();
    for _ in 0..3 {
        a.post(MLX5_OPCODE_NOP, 0, &[]);
    }
    let new = Ram::new(16 * 64);
    new.set(0, &[0xf1; 16 * 64]);
    let cqn = a.send_cq.cqn;
    let resized = |ring: &std::sync::Arc<Ram>| {
        on(&a.hca, |device, _| device.cqs.get_mut(&cqn).unwrap().resize(area(ring), 64))
    };
    // Too small for the unconsumed entries and the marker; not a power of two.
    assert_eq!(resized(&Ram::new(2 * 64)), Ok(false));
    assert_eq!(resized(&Ram::new(12 * 64)), Ok(false));
    assert_eq!(resized(&new), Ok(true));
    a.post(MLX5_OPCODE_NOP, 0, &[]);
    let kinds: Vec<u8> = (0..5).map_while(|_| a.send_cq.poll()).map(|wc| wc.kind).collect();
    assert_eq!(kinds, [0, 0, 0, MLX5_CQE_RESIZE_CQ]);
    // The fourth completion is in the new ring, moved by one.
    let op_own = |slot: usize| new.get(slot * 64 + 63, 1)[0];
    assert_eq!((op_own(3), op_own(4) >> 4, op_own(4) & 1), (0xf1, 0, 0));
}
