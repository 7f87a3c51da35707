// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling: fields, sub-CQs, phases, the doorbell, and a device that writes anything.
#![expect(unsafe_code)]
// UNSAFETY: posts requests whose memory no device accesses.

use super::{post, sge, to};
use crate::testing::{CQ_BELL, Entry, Rig, Shape, send_config};
use crate::{Ah, Completion};
use core::mem::MaybeUninit;
use proptest::prelude::*;
use uverbs_core::Errno;
use uverbs_core::attr::Gid;
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, Notify as _, Op, PollError, RecvQueue as _, Wr,
};
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
use uverbs_testkit::{Face, handle};

fn rig() -> Rig {
    Rig::new(Shape::default(), send_config())
}

/// Posts sends with these ids, and returns their numbers.
fn sends(rig: &mut Rig, ids: impl IntoIterator<Item = u64>) -> Vec<u16> {
    let ah = handle(Ah(1));
    for id in ids {
        post(&mut rig.send, Face::Single, &[to(&ah, Wr::new(id, Op::Send))]).unwrap();
    }
    rig.device.take().0.iter().map(|sent| sent.req_id).collect()
}

/// Posts receives with these ids, and returns their numbers.
fn receives(rig: &mut Rig, ids: impl IntoIterator<Item = u64>) -> Vec<u16> {
    for id in ids {
        // SAFETY: there is no device that would access the memory.
        unsafe { rig.recv.post(id, &[sge(1, 1, 1)]) }.unwrap();
    }
    rig.device.take().1.iter().map(|posted| posted.req_id).collect()
}

#[test]
fn arrays_are_filled_from_the_front() {
    let mut rig = rig();
    let numbers = sends(&mut rig, 0..5);
    for number in [numbers[0], numbers[1], numbers[2], numbers[2], numbers[3]] {
        rig.device.complete(0, &rig.device.sent(number));
    }
    let mut wcs = [WorkCompletion::default(); 2];
    assert_eq!(rig.cq.poll_cq(&mut wcs), Ok(2));
    assert_eq!(wcs.map(|wc| (wc.wr_id, wc.qp_num)), [(0, 0x0102), (1, 0x0102)]);
    assert_eq!(rig.device.bells.take(), [(CQ_BELL, 2)]);
    let mut wcs = [MaybeUninit::uninit(); 4];
    assert_eq!(rig.cq.poll_cq_uninit(&mut wcs), Ok(1), "up to the error");
    assert_eq!(rig.device.bells.take(), [(CQ_BELL, 4)]);
    let mut wcs = [WorkCompletion::default(); 2];
    assert_eq!(rig.cq.poll_cq(&mut wcs), Err(PollError::Corrupt));
    assert_eq!((rig.cq.poll_cq(&mut wcs), wcs[0].wr_id), (Ok(1), 3));
    assert_eq!((rig.cq.poll_cq(&mut wcs), rig.cq.poll_cq(&mut [])), (Ok(0), Ok(0)));
}

fn poll(rig: &mut Rig) -> Vec<Completion> {
    let mut polled = Vec::new();
    rig.cq.poll_each(16, |completion| polled.push(*completion)).unwrap();
    polled
}

#[test]
fn a_completion_has_the_fields_of_its_entry() {
    let mut rig = rig();
    let sent = sends(&mut rig, [10, 11, 12]);
    for (number, op) in sent.into_iter().zip(0..) {
        rig.device.complete(0, &Entry { op, ..rig.device.sent(number) });
    }
    let opcodes: Vec<_> =
        poll(&mut rig).iter().map(|c| (c.wr_id(), c.opcode(), c.byte_len(), c.qp_num())).collect();
    let of = |id, opcode| (id, opcode, 0, 0x0102);
    assert_eq!(opcodes, [of(10, WcOpcode::SEND), of(11, WcOpcode::SEND), of(12, WcOpcode::RDMA_WRITE)]);

    let numbers = receives(&mut rig, [20, 21, 22]);
    let gid = core::array::from_fn(|i| i as u8);
    let entry = |i: usize| rig.device.received(numbers[i], 0x7654);
    let plain = Entry { imm: Some(0x0102_0304), ..entry(0) };
    let unknown = Entry { ah: 0xffff, gid: Some(gid), ..entry(1) };
    let write = Entry { op: 2, imm: Some(5), length: 0x0012_3456, ..entry(2) };
    for entry in [plain, unknown, write] {
        rig.device.complete(1, &entry);
    }
    let [plain, unknown, write] = poll(&mut rig).try_into().unwrap();
    assert_eq!(
        (plain.wr_id(), plain.opcode(), plain.byte_len(), plain.src_qp()),
        (20, WcOpcode::RECV, 0x7654, 0x77)
    );
    assert_eq!(
        (plain.wc_flags(), plain.imm_data_or_invalidated_rkey()),
        (WcFlags::WITH_IMM, 0x0102_0304_u32.to_be())
    );
    assert_eq!((plain.slid(), plain.source_ah(), plain.source_gid()), (9, Some(9), None));
    assert_eq!((unknown.wr_id(), unknown.wc_flags(), unknown.slid()), (21, WcFlags::empty(), 0xffff));
    assert_eq!(
        (unknown.source_ah(), unknown.source_gid(), unknown.byte_len()),
        (None, Some(Gid(gid)), 0x7654)
    );
    assert_eq!(
        (write.wr_id(), write.opcode(), write.byte_len()),
        (22, WcOpcode::RECV_RDMA_WITH_IMM, 0x0012_3456)
    );
    assert_eq!(write.received_len(), 0);
}

#[test]
fn a_write_without_a_receive_has_no_id() {
    let mut rig = Rig::new(Shape { unsolicited: true, ..Shape::default() }, send_config());
    let numbers = receives(&mut rig, [20]);
    let entry =
        Entry { op: 2, unsolicited: true, imm: Some(5), length: 3, ..rig.device.received(numbers[0], 0) };
    rig.device.complete(1, &entry);
    rig.device.complete(1, &rig.device.received(numbers[0], 1));
    let [write, recv] = poll(&mut rig).try_into().unwrap();
    assert!(write.is_unsolicited() && !recv.is_unsolicited());
    assert_eq!((write.wr_id(), write.opcode(), write.byte_len()), (0, WcOpcode::RECV_RDMA_WITH_IMM, 3));
    assert_eq!((recv.wr_id(), recv.opcode()), (20, WcOpcode::RECV));
}

/// Such a completion has the `wr_id` 0, which may be that of a request whose buffer the device still uses.
#[test]
fn a_qp_that_has_no_writes_without_receives_has_no_completion_of_them() {
    let mut rig = rig();
    let numbers = receives(&mut rig, [20]);
    let entry =
        Entry { op: 2, unsolicited: true, imm: Some(5), length: 3, ..rig.device.received(numbers[0], 0) };
    rig.device.complete(1, &entry);
    assert_eq!(rig.cq.poll_each(8, |_| ()), Err(PollError::Corrupt));
    rig.device.complete(1, &rig.device.received(numbers[0], 1));
    assert_eq!(poll(&mut rig).iter().map(Completion::wr_id).collect::<Vec<_>>(), [20]);
}

#[test]
fn every_status_of_the_device_has_one_of_the_verbs() {
    use WcStatus as S;
    let expected = [
        S::SUCCESS,
        S::WR_FLUSH_ERR,
        S::LOC_QP_OP_ERR,
        S::LOC_QP_OP_ERR,
        S::LOC_QP_OP_ERR,
        S::LOC_PROT_ERR,
        S::LOC_LEN_ERR,
        S::REM_ACCESS_ERR,
        S::REM_ABORT_ERR,
        S::REM_INV_RD_REQ_ERR,
        S::RNR_RETRY_EXC_ERR,
        S::REM_INV_REQ_ERR,
        S::BAD_RESP_ERR,
        S::RESP_TIMEOUT_ERR,
        S::REM_OP_ERR,
        S::RESP_TIMEOUT_ERR,
        S::GENERAL_ERR,
        S::GENERAL_ERR,
        S::REM_INV_REQ_ERR,
        S::GENERAL_ERR,
    ];
    let mut rig = rig();
    for (status, expected) in (0..).zip(expected) {
        let numbers = sends(&mut rig, [u64::from(status)]);
        rig.device.complete(0, &Entry { status, ..rig.device.sent(numbers[0]) });
        let [completion] = poll(&mut rig).try_into().unwrap();
        assert_eq!((completion.status(), completion.vendor_err()), (expected, status.into()));
    }
}

#[test]
fn sub_cqs_take_turns() {
    let mut rig = rig();
    let (sent, received) = (sends(&mut rig, 0..3), receives(&mut rig, 10..13));
    for (sent, received) in sent.into_iter().zip(received) {
        rig.device.complete(0, &rig.device.sent(sent));
        rig.device.complete(1, &rig.device.received(received, 1));
    }
    let ids: Vec<_> = poll(&mut rig).iter().map(Completion::wr_id).collect();
    assert_eq!(ids, [0, 10, 1, 11, 2, 12]);
    assert!(rig.cq.is_surely_empty());
}

#[test]
fn the_doorbell_has_consumer_index_and_events() {
    let mut rig = rig();
    let numbers = sends(&mut rig, 0..3);
    assert_eq!(rig.cq.req_notify(false), Ok(()));
    assert_eq!(rig.device.bells.take(), [(CQ_BELL, 0x8000_0000)]);
    assert_eq!(rig.cq.req_notify(true), Err(PollError::Arm(Errno::EOPNOTSUPP)));
    assert_eq!(poll(&mut rig), []);
    assert_eq!(rig.device.bells.take(), [], "an empty poll");
    for number in numbers {
        rig.device.complete(0, &rig.device.sent(number));
    }
    assert_eq!(poll(&mut rig).len(), 3);
    let event = |rig: &Rig| rig.cq.bell().as_ref().unwrap().events().cq_event();
    event(&rig);
    assert_eq!(rig.cq.req_notify(false), Ok(()));
    assert_eq!(rig.device.bells.take(), [(CQ_BELL, 3), (CQ_BELL, 0xa000_0003)]);
    for _ in 0..4 {
        event(&rig);
    }
    rig.cq.req_notify(false).unwrap();
    assert_eq!(rig.device.bells.take(), [(CQ_BELL, 0xa000_0003)], "modulo 4");
}

#[test]
fn an_extended_poll_has_one_completion_at_a_time() {
    let mut rig = rig();
    let numbers = sends(&mut rig, 5..7);
    assert_eq!((rig.cq.start_poll(), rig.cq.next_poll()), (Err(PollError::Empty), Err(PollError::NoSession)));
    for number in numbers {
        rig.device.complete(0, &rig.device.sent(number));
    }
    rig.cq.start_poll().unwrap();
    assert_eq!(rig.cq.current().map(|c| c.wr_id()), Some(5));
    assert_eq!(rig.cq.poll_each(1, |_| ()), Err(PollError::SessionOpen));
    assert_eq!(rig.device.bells.take(), []);
    rig.cq.next_poll().unwrap();
    assert_eq!(rig.cq.next_poll(), Err(PollError::Empty));
    rig.cq.end_poll();
    assert_eq!((rig.cq.current(), rig.cq.last().map(|c| c.wr_id())), (None, Some(6)));
    assert_eq!(rig.device.bells.take(), [(CQ_BELL, 2)]);
}

#[test]
fn a_completion_of_an_earlier_queue_is_left_out() {
    let mut rig = rig();
    let numbers = sends(&mut rig, [5]);
    // An earlier generation, another QP, and a role that the QP has not in this CQ; then the right one.
    for wrong in [
        Entry { req_id: numbers[0] - 8, ..rig.device.sent(0) },
        Entry { qp_num: 9, ..rig.device.sent(numbers[0]) },
    ] {
        rig.device.complete(0, &wrong);
    }
    rig.device.complete(0, &rig.device.sent(numbers[0]));
    let ids: Vec<_> = poll(&mut rig).iter().map(Completion::wr_id).collect();
    assert_eq!(ids, [5]);
}

#[test]
fn a_number_that_was_completed_before_is_an_error_after_the_others() {
    let mut rig = rig();
    let numbers = sends(&mut rig, [5, 6]);
    for number in [numbers[0], numbers[0], numbers[1]] {
        rig.device.complete(0, &rig.device.sent(number));
    }
    assert_eq!(poll(&mut rig).len(), 1);
    assert!(!rig.cq.is_surely_empty());
    assert_eq!(rig.cq.poll_each(8, |_| ()), Err(PollError::Corrupt));
    assert_eq!(poll(&mut rig).iter().map(Completion::wr_id).collect::<Vec<_>>(), [6]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever the device writes, a poll ends, reports only ids of outstanding requests, and each of them once.
    #[test]
    fn a_device_that_writes_anything_is_no_harm(rounds in prop::collection::vec((any::<[u8; 32]>(), 0..3_u8), 1..200)) {
        let shape = Shape { cqes: 4, sends: 4, receives: 4, descriptors: 4, ..Shape::default() };
        let mut rig = Rig::new(shape, send_config());
        let mut outstanding: Vec<u64> = Vec::new();
        for (id, (mut bytes, like)) in (1_u64..).zip(rounds) {
            let ah = handle(Ah(1));
            if post(&mut rig.send, Face::Single, &[to(&ah, Wr::new(id, Op::Send))]).is_ok() {
                outstanding.push(id);
            }
            // Most bytes are ignored, so some of them are like those of a completion.
            if like > 0 {
                bytes[4..6].copy_from_slice(&0x0102_u16.to_le_bytes());
                bytes[0] = bytes[0] & 3 | 3 << 2;
                bytes[1] = 0;
            }
            if like > 1 {
                bytes[3] = bytes[3] & 0x71 | 2;
            }
            rig.device.cq().put(usize::from(bytes[31] % 8) * 32, &bytes);
            let mut polled = Vec::new();
            let result = rig.cq.poll_each(100, |completion| polled.push(*completion));
            prop_assert!(matches!(result, Ok(0..=8) | Err(PollError::Corrupt)));
            for completion in polled {
                let at = outstanding.iter().position(|id| *id == completion.wr_id());
                prop_assert!(at.is_some());
                outstanding.swap_remove(at.unwrap_or_default());
            }
            rig.device.bells.take();
        }
    }
}
