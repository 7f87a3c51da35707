// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mistakes of drivers are recorded, and have the same effects as on hardware.

use super::rig::{End, PAGE, on, pair};
use crate::decode::Malformed;
use crate::engine::qp::{QpKind, State};
use crate::fabric::Fabric;
use crate::violation::Mistake;
use uverbs_mlx5_hw::wqe::{MLX5_OPCODE_NOP, MLX5_OPCODE_SEND};
use zerocopy::IntoBytes;

fn rc() -> (End, End) {
    pair(&Fabric::deterministic(1), QpKind::Rc, 0)
}

fn mistakes(end: &End) -> Vec<Mistake> {
    end.hca.take_violations().into_iter().map(|v| v.mistake).collect()
}

/// Checks that only this violation was recorded, that the QP is in the error state, and that one completion reports it.
fn fatal(end: &mut End, mistake: Mistake) {
    assert_eq!(mistakes(end), [mistake]);
    assert_eq!(end.state(), State::Err);
}

#[test]
fn a_doorbell_before_its_wqe_is_reported() {
    let (mut a, _b) = rc();
    a.post(MLX5_OPCODE_NOP, 0, &[]);
    assert!(a.send_cq.poll().is_some());
    // The doorbell record and the doorbell have two more blocks, of which only one has a WQE.
    let index = a.write_wqe(MLX5_OPCODE_NOP, true, 0, &[]);
    a.record.set(4, &3_u32.to_be_bytes());
    let value = [0, 0, index as u8 + 1, 0, (a.qpn >> 16) as u8, (a.qpn >> 8) as u8, a.qpn as u8, 1];
    on(&a.hca, |device, cx| device.doorbell(cx, PAGE, 0x900, value, None));
    fatal(&mut a, Mistake::WrongIndex { found: 0 });
    let wcs = [a.send_cq.poll().unwrap(), a.send_cq.poll().unwrap()];
    assert_eq!(wcs.map(|wc| (wc.counter, wc.syndrome)), [(1, 0), (2, 2)]);
}

#[test]
fn wrong_sizes_numbers_and_opcodes_are_reported() {
    for (at, value, mistake) in [
        (7, 0, Mistake::DoorbellMismatch { doorbell: 0, record: 1 }),
        (7, 200, Mistake::DoorbellMismatch { doorbell: 0, record: 0xffcf }),
        (3, 0x3f, Mistake::Malformed(Malformed::Opcode(0x3f))),
        (0, 1, Mistake::Malformed(Malformed::NotZero(0))),
        (11, 0x60, Mistake::Malformed(Malformed::Mode(0x60))),
    ] {
        let (mut a, _b) = rc();
        a.write_wqe(MLX5_OPCODE_NOP, true, 0, &[]);
        a.sq.set(at, &[value]);
        a.ring(0);
        fatal(&mut a, mistake);
    }
}

#[test]
fn a_wqe_beyond_the_record_is_reported() {
    let (mut a, _b) = rc();
    a.write_wqe(MLX5_OPCODE_NOP, true, 0, &[]);
    let index = a.write_wqe(MLX5_OPCODE_NOP, true, 0, &[]);
    a.sq.set(7, &[9]);
    a.ring(index);
    fatal(&mut a, Mistake::WrongSize { ds: 9 });
}

#[test]
fn overruns_and_decreasing_records_are_reported() {
    let (mut a, _b) = rc();
    a.write_wqe(MLX5_OPCODE_NOP, true, 0, &[]);
    a.record.set(4, &65_u32.to_be_bytes());
    a.ring(0);
    fatal(&mut a, Mistake::RingOverrun { posted: 65, size: 64 });
    let (mut a, _b) = rc();
    a.post(MLX5_OPCODE_NOP, 0, &[]);
    a.record.set(4, &0_u32.to_be_bytes());
    a.ring(0);
    fatal(&mut a, Mistake::RingBackwards);
}

#[test]
fn a_blueflame_burst_must_equal_the_wqe() {
    let (mut a, _b) = rc();
    a.write_wqe(MLX5_OPCODE_NOP, true, 0, &[]);
    let wqe = a.sq.get(0, 64);
    let ring = |a: &End, wqe: &[u8]| {
        let value = wqe[..8].try_into().unwrap();
        on(&a.hca, |device, cx| device.doorbell(cx, PAGE, 0x800, value, Some(wqe)));
    };
    ring(&a, &wqe);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    assert_eq!(mistakes(&a), []);
    let index = a.write_wqe(MLX5_OPCODE_NOP, true, 0, &[]);
    let mut wqe = a.sq.get(usize::from(index) * 64, 64);
    wqe[11] = 0;
    ring(&a, &wqe);
    fatal(&mut a, Mistake::BlueFlameDiffers);
}

#[test]
fn unknown_registers_objects_and_pages_are_reported() {
    let (mut a, _b) = rc();
    a.write_wqe(MLX5_OPCODE_NOP, true, 0, &[]);
    let value: [u8; 8] = a.sq.get(0, 8).try_into().unwrap();
    let doorbell = |page, offset, value| {
        on(&a.hca, |device, cx| device.doorbell(cx, page, offset, value, None));
    };
    doorbell(PAGE, 0x700, value);
    doorbell(PAGE + 1, 0x800, value);
    doorbell(PAGE, 0x800, [0, 0, 0, 0, 0xff, 0xff, 0xff, 1]);
    doorbell(PAGE, 0x20, [0, 0, 0, 0, 0, 0xff, 0xff, 1]);
    let expected = [
        Mistake::NoSuchRegister(0x700),
        Mistake::ForeignPage { page: PAGE + 1 },
        Mistake::NoSuchQp,
        Mistake::NoSuchCq,
    ];
    assert_eq!(mistakes(&a), expected);
    // `take_violations` removes the kinds that it is called with, and keeps the others.
    doorbell(PAGE, 0x700, value);
    doorbell(PAGE, 0x800, [0, 0, 0, 0, 0xff, 0xff, 0xff, 1]);
    let taken = a.hca.take_violations_if(|v| v.mistake.kind() == "NoSuchRegister");
    assert_eq!(taken.iter().map(|v| &v.mistake).collect::<Vec<_>>(), [&Mistake::NoSuchRegister(0x700)]);
    assert_eq!(mistakes(&a), [Mistake::NoSuchQp]);
    // None of them was executed.
    assert!(a.send_cq.poll().is_none());
    assert_eq!(a.state(), State::Rts);
}

#[test]
fn a_doorbell_before_rts_is_reported() {
    let (mut a, _b) = rc();
    a.set_state(State::Reset);
    a.write_wqe(MLX5_OPCODE_NOP, true, 0, &[]);
    a.ring(0);
    assert_eq!(mistakes(&a), [Mistake::NotReady]);
}

#[test]
fn a_cq_that_is_not_polled_overruns_once() {
    let (mut a, _b) = rc();
    for _ in 0..65 {
        a.post(MLX5_OPCODE_NOP, 0, &[]);
    }
    fatal(&mut a, Mistake::CqOverrun);
}

#[test]
fn receives_beyond_the_ring_or_with_bad_entries_are_reported() {
    let (mut a, mut b) = rc();
    for _ in 0..17 {
        b.recv(0, 10);
    }
    let sge = a.sge(0, 10);
    a.post(MLX5_OPCODE_SEND, 0, &[sge.as_bytes()]);
    fatal(&mut b, Mistake::RingOverrun { posted: 17, size: 16 });
    let (mut a, mut b) = rc();
    b.recv(0, 1 << 31 | 10);
    a.post(MLX5_OPCODE_SEND, 0, &[sge.as_bytes()]);
    fatal(&mut b, Mistake::ReceiveMalformed);
}
