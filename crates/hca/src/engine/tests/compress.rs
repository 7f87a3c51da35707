// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compressed entries, which a program that is written for these tests expands.

use super::rig::{End, TestCq, on, pair};
use crate::cqe::{Cqe, Syndrome};
use crate::engine::Notice;
use crate::engine::compress::MiniFormat;
use crate::engine::qp::{QpKind, State};
use crate::fabric::Fabric;
use crate::violation::{Mistake, Object};
use proptest::prelude::*;
use uverbs_mlx5_hw::wqe::MLX5_OPCODE_SEND;
use zerocopy::IntoBytes;

fn compress(end: &End, cqn: u32, format: MiniFormat) {
    on(&end.hca, |device, _| device.cqs.get_mut(&cqn).unwrap().compress(format));
}

/// A completion, as far as a compressed one has it: all bytes but timestamp, hash and owner bit.
fn seen(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[48..56].fill(0);
    bytes[63] &= 0xfe;
    bytes
}

/// All completions of a CQ, and the lengths of its blocks.
fn take(cq: &mut TestCq, format: MiniFormat) -> (Vec<Vec<u8>>, Vec<u32>) {
    let (mut all, mut blocks) = (Vec::new(), Vec::new());
    while let Some(title) = cq.peek() {
        if title[63] & 0xc != 0xc {
            all.push(seen(&title));
            cq.consume(1);
            continue;
        }
        let count = u32::from_be_bytes(title[44..48].try_into().unwrap());
        assert!((2..=64).contains(&count), "{count}");
        let first = u16::from_be_bytes([title[60], title[61]]);
        for n in 0..count {
            let array = cq.ahead(if n < 8 { 1 } else { n & !7 });
            let mini = &array[n as usize % 8 * 8..][..8];
            let mut bytes = title.clone();
            bytes[44..48].copy_from_slice(&mini[4..]);
            bytes[63] &= 0xf3;
            if bytes[63] >> 4 == 0 {
                bytes[60..62].copy_from_slice(&mini[..2]);
                bytes[56] = mini[2];
            } else {
                let counter = first.wrapping_add(n as u16).to_be_bytes();
                bytes[60..62].copy_from_slice(&counter);
                match format {
                    MiniFormat::Hash => assert_eq!(mini[..4], [0; 4]),
                    MiniFormat::Checksum => assert_eq!(mini[2..4], [0; 2]),
                    MiniFormat::ChecksumAndStride => assert_eq!(mini[2..4], counter),
                }
                if format != MiniFormat::Hash {
                    bytes[20..22].copy_from_slice(&mini[..2]);
                }
            }
            all.push(seen(&bytes));
        }
        cq.consume(count);
        blocks.push(count);
    }
    (all, blocks)
}

fn rc() -> (End, End) {
    pair(&Fabric::deterministic(1), QpKind::Rc, 0)
}

/// Posts receives and as many sends, whose only doorbell is the last one's. `se` are bits of the control segments.
fn send_together(a: &mut End, b: &mut End, lens: &[u32], se: u8) {
    lens.iter().for_each(|_| b.recv(0, 4096));
    let mut last = 0;
    for len in lens {
        let sge = a.sge(0, *len);
        last = a.write_ctrl(MLX5_OPCODE_SEND, 8 | se, 0, &[sge.as_bytes()]);
    }
    a.ring(last);
}

#[test]
fn the_receives_of_one_doorbell_are_one_block() {
    for format in [MiniFormat::Hash, MiniFormat::Checksum, MiniFormat::ChecksumAndStride] {
        let (mut a, mut b) = rc();
        compress(&a, a.send_cq.cqn, format);
        compress(&b, b.recv_cq.cqn, format);
        for round in 0..20 {
            let lens: Vec<u32> = (0..1 + round % 12).map(|n| 1 + n * 7).collect();
            send_together(&mut a, &mut b, &lens, 0);
            let (got, blocks) = take(&mut b.recv_cq, format);
            let of = |bytes: &Vec<u8>| u32::from_be_bytes(bytes[44..48].try_into().unwrap());
            assert_eq!(got.iter().map(of).collect::<Vec<_>>(), lens, "{format:?} {round}");
            assert!(got.iter().all(|bytes| bytes[63] == 0x20));
            let want = if lens.len() == 1 { vec![] } else { vec![lens.len() as u32] };
            assert_eq!(blocks, want, "{format:?} {round}");
            assert_eq!(take(&mut a.send_cq, format).0.len(), lens.len());
        }
    }
}

#[test]
fn completions_that_differ_in_more_are_in_blocks_of_their_own() {
    let (mut a, mut b) = rc();
    let format = MiniFormat::Hash;
    compress(&b, b.recv_cq.cqn, format);
    // The solicited bit is the title's.
    (0..7).for_each(|_| b.recv(0, 64));
    let mut last = 0;
    for se in [0, 0, 2, 2, 2, 0, 0] {
        let sge = a.sge(0, 4);
        last = a.write_ctrl(MLX5_OPCODE_SEND, 8 | se, 0, &[sge.as_bytes()]);
    }
    a.ring(last);
    let (got, blocks) = take(&mut b.recv_cq, format);
    assert_eq!((got.len(), blocks), (7, vec![2, 3, 2]));
}

#[test]
fn an_error_ends_a_block_and_is_an_entry() {
    let (mut a, mut b) = rc();
    let format = MiniFormat::Hash;
    compress(&b, b.recv_cq.cqn, format);
    (0..2).for_each(|_| b.recv(0, 64));
    b.recv(0, 2);
    (0..2).for_each(|_| b.recv(0, 64));
    let mut last = 0;
    for _ in 0..5 {
        let sge = a.sge(0, 4);
        last = a.write_ctrl(MLX5_OPCODE_SEND, 8, 0, &[sge.as_bytes()]);
    }
    a.ring(last);
    assert_eq!(b.state(), State::Err);
    let (got, blocks) = take(&mut b.recv_cq, format);
    assert_eq!(blocks, [2]);
    // The third does not fit, and the others are flushed.
    assert_eq!(got.iter().map(|bytes| bytes[63] >> 4).collect::<Vec<_>>(), [2, 2, 14, 14, 14]);
}

#[test]
fn a_block_raises_one_event_which_finds_it_written() {
    let (mut a, mut b) = rc();
    let format = MiniFormat::Hash;
    compress(&b, b.recv_cq.cqn, format);
    let hca = b.hca.clone();
    for round in 0..3 {
        b.recv_cq.arm(&hca, false);
        hca.record_notices();
        send_together(&mut a, &mut b, &[4; 10], 0);
        assert_eq!(hca.recorded_notices(), [Notice::Completion { cqn: b.recv_cq.cqn }], "{round}");
        assert_eq!(take(&mut b.recv_cq, format).1, [10]);
    }
}

#[test]
fn a_full_queue_is_an_overrun_with_compression_too() {
    let (a, _b) = rc();
    let (cqn, format) = (a.send_cq.cqn, MiniFormat::Hash);
    compress(&a, cqn, format);
    let cqe = |index| Cqe { wqe_counter: index, byte_cnt: 1, opcode: 10, ..Cqe::default() };
    on(&a.hca, |device, cx| (0..64).for_each(|index| device.complete_now(cx, cqn, cqe(index))));
    assert_eq!(a.hca.violations().len(), 0);
    on(&a.hca, |device, cx| device.complete_now(cx, cqn, cqe(64)));
    let violations = a.hca.violations();
    assert_eq!((violations[0].object, violations[0].mistake.clone()), (Object::Cq(cqn), Mistake::CqOverrun));
}

#[test]
fn a_resize_in_the_call_comes_after_the_open_block() {
    let (mut a, _b) = rc();
    let (cqn, format) = (a.send_cq.cqn, MiniFormat::Hash);
    compress(&a, cqn, format);
    let ring = super::rig::Ram::new(128 * 64);
    ring.set(0, &vec![0xf1; 128 * 64]);
    let cqe = |index| Cqe { wqe_counter: index, byte_cnt: 1, opcode: 10, ..Cqe::default() };
    on(&a.hca, |device, cx| {
        (0..3).for_each(|index| device.complete_now(cx, cqn, cqe(index)));
        let cq = device.cqs.get_mut(&cqn).unwrap();
        assert!(cq.resize(super::rig::area(&ring), 64).unwrap());
        (3..7).for_each(|index| device.complete_now(cx, cqn, cqe(index)));
    });
    let (got, blocks) = take(&mut a.send_cq, format);
    assert_eq!((got.len(), blocks), (4, vec![3]));
    assert_eq!(got[3][63], 0x50, "the mark");
    let title = ring.get(4 * 64, 64);
    assert_eq!((title[63], &title[44..48]), (0x0c, &[0, 0, 0, 4][..]));
}

/// A completion: kind, immediate data, length, checksum, step of the counter, error.
fn cqes() -> impl Strategy<Value = Vec<Cqe>> {
    let one = (0..2_u32 << 16, any::<u16>(), prop_oneof![9 => Just(1_u16), 1 => 0..4_u16]);
    let run = (0..5_u8, 0..2_u32, 0..20_u8, prop::collection::vec(one, 1..90));
    prop::collection::vec(run, 1..6).prop_map(|runs| {
        let mut counter = 0_u16;
        let mut all = Vec::new();
        for (kind, imm, error, ones) in runs {
            for (byte_cnt, check_sum, step) in ones {
                counter = counter.wrapping_add(step);
                let syndrome = (error == 0).then_some(Syndrome::FLUSH);
                let opcode = if kind == 0 { (byte_cnt % 3) as u8 + 8 } else { 0 };
                let kind = match syndrome {
                    None => kind,
                    Some(_) => 13 + u8::from(kind != 0),
                };
                let (srqn_uidx, qpn) = (imm + 3, imm + 9);
                let check_sum = if kind == 0 { 0 } else { check_sum };
                let cqe = Cqe { kind, imm, byte_cnt, check_sum, opcode, qpn, srqn_uidx, ..Cqe::default() };
                all.push(Cqe { wqe_counter: counter, syndrome, ..cqe });
            }
        }
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_expanded_list_is_the_list_without_compression(
        cqes in cqes(),
        calls in prop::collection::vec(1..40_usize, 1..6),
        checksum in any::<bool>(),
    ) {
        let (mut a, _b) = rc();
        let format = if checksum { MiniFormat::Checksum } else { MiniFormat::Hash };
        compress(&a, a.recv_cq.cqn, format);
        let (plain, compressed) = (a.send_cq.cqn, a.recv_cq.cqn);
        let (mut left, mut calls) = (&cqes[..], calls.iter().cycle());
        let (mut shorter, mut follow) = (0, 0);
        let follows = |pair: &&[Cqe]| {
            let same = (pair[0].kind, pair[0].imm) == (pair[1].kind, pair[1].imm) && pair[1].syndrome.is_none();
            same && (pair[0].kind == 0 || pair[1].wqe_counter == pair[0].wqe_counter.wrapping_add(1))
        };
        while !left.is_empty() {
            let (now, rest) = left.split_at(left.len().min(*calls.next().unwrap()));
            left = rest;
            follow += now.windows(2).filter(follows).count();
            on(&a.hca, |device, cx| {
                for cqe in now {
                    device.complete_now(cx, plain, cqe.clone());
                    device.complete_now(cx, compressed, cqe.clone());
                }
            });
            let blank = |mut bytes: Vec<u8>| {
                // The checksum of all but the first is lost with hashes.
                if !checksum {
                    bytes[20..22].fill(0);
                }
                bytes
            };
            let (want, none) = take(&mut a.send_cq, format);
            let (got, blocks) = take(&mut a.recv_cq, format);
            prop_assert!(none.is_empty());
            shorter += blocks.iter().sum::<u32>() - blocks.len() as u32;
            prop_assert_eq!(want.len(), now.len());
            let blanked = |all: Vec<Vec<u8>>| all.into_iter().map(blank).collect::<Vec<_>>();
            prop_assert_eq!(blanked(got), blanked(want));
        }
        prop_assert_eq!(shorter as usize, follow);
    }
}
