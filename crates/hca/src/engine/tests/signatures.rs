// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signatures of indirect keys in memory and on the wire: generated, removed, copied, checked, reported.

use super::indirect::{ACCESS, FREE, LEN, Update, klm};
use super::rig::{BASE, End, PD, on, pair};
use crate::engine::qp::{QpKind, State};
use crate::fabric::Fabric;
use uverbs_mlx5_hw::cqe as hw;
use uverbs_mlx5_hw::wqe::{DataSeg, MLX5_OPCODE_SEND, MLX5_OPCODE_SET_PSV};
use zerocopy::IntoBytes;

const BSF_ENABLE: u32 = 1 << 30;
const BSF: u64 = 1 << 12;
const SIG_ERR: u64 = 1 << 9;

/// The blocks of a domain as libmlx5 encodes them: selector, block format, inline part.
#[derive(Clone, Copy, Debug)]
struct Domain {
    selector: u8,
    format: u8,
    inline: [u8; 16],
}

const NONE: Domain = Domain { selector: 0, format: 0, inline: [0; 16] };

fn crc(selector: u8, kind: u8) -> Domain {
    Domain { selector, format: kind | 2, inline: [0; 16] }
}

fn dif(selector: u8, is_crc: bool, app: u16, reference: u32, flags: u8) -> Domain {
    let mut inline = [0; 16];
    inline[0] = 0xc0;
    inline[2..4].copy_from_slice(&app.to_be_bytes());
    inline[4..8].copy_from_slice(&reference.to_be_bytes());
    inline[8] = if is_crc { 1 } else { 2 };
    inline[9] = 0x88;
    inline[13] = flags;
    inline[14..].fill(0xff);
    Domain { selector, format: 0, inline }
}

const CRC32: u8 = 0x20;
const CRC32C: u8 = 0x40;
const CRC64: u8 = 0x50;
const COUNTS: u8 = 1 << 6;

fn bsf(memory: Domain, wire: Domain, check: u8, copy: Option<u8>, psvs: [u32; 2]) -> Vec<u8> {
    let mut bsf = vec![0; 64];
    bsf[0] = 2 << 6 | u8::from(copy.is_some()) << 4;
    (bsf[1], bsf[2], bsf[3]) = (check, copy.unwrap_or(wire.selector), memory.selector);
    bsf[4..8].fill(0xff);
    bsf[8..12].copy_from_slice(&(u32::from(wire.format) << 24 | psvs[1]).to_be_bytes());
    bsf[12..16].copy_from_slice(&(u32::from(memory.format) << 24 | psvs[0]).to_be_bytes());
    bsf[32..48].copy_from_slice(&wire.inline);
    bsf[48..].copy_from_slice(&memory.inline);
    bsf
}

/// A key of `len` bytes at `at` of an end's memory.
fn key(end: &mut End, at: u64, len: u32, bsf: impl FnOnce([u32; 2]) -> Vec<u8>) -> u32 {
    let (key, psvs) = on(&end.hca, |device, _| {
        let kind = device.mkeys.indirect(false, 4, true);
        let psvs = [0, 1].map(|_| device.mkeys.psvs.add(PD).unwrap());
        (device.mkeys.add(0, PD, 0, kind).unwrap(), psvs)
    });
    assert_eq!(update(end, at, len, bsf(psvs)).post(end, key), 0);
    for psv in psvs {
        let mut segment = [0; 16];
        segment[..4].copy_from_slice(&psv.to_be_bytes());
        end.post(MLX5_OPCODE_SET_PSV, 0, &[&segment]);
        assert_eq!(end.send_cq.poll().unwrap().syndrome, 0);
    }
    key
}

fn update(end: &End, at: u64, len: u32, bsf: Vec<u8>) -> Update {
    let list = Update::list(&[klm(len, end.key, BASE + at)], len.into());
    Update {
        mask: FREE | LEN | ACCESS | BSF | SIG_ERR,
        flags_pd: BSF_ENABLE,
        union: 4,
        behind: [list.behind.clone(), bsf].concat(),
        ..list
    }
}

fn rc() -> (End, End) {
    pair(&Fabric::deterministic(1), QpKind::Rc, 0)
}

/// The signature error at the head of a queue: key, syndrome, domain, expected, actual, offset.
fn error(queue: &mut super::rig::TestCq) -> Option<(u32, u16, u8, u64, u64, u64)> {
    let bytes = queue.peek()?;
    assert_eq!(queue.poll()?.kind, hw::MLX5_CQE_SIG_ERR);
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let pair = |high: usize, low: usize| u64::from(word(high)) << 32 | u64::from(word(low));
    Some((
        word(36),
        u16::from_be_bytes([bytes[32], bytes[33]]),
        bytes[35],
        pair(16, 24),
        pair(20, 28),
        pair(40, 44),
    ))
}

/// CRC-32 of a block bit by bit.
fn slow_crc32(polynomial: u32, data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { polynomial } else { 0 })
    })
}

#[test]
fn a_signature_in_memory_is_checked_and_removed_and_one_is_written() {
    for (kind, polynomial) in [(CRC32, 0xedb8_8320), (CRC32C, 0x82f6_3b78)] {
        let (mut a, mut b) = rc();
        // Two blocks and a part of one, each with its signature; the receiver's have another size.
        let data: Vec<u8> = (0..1124).map(|i| (i * 13 % 251) as u8).collect();
        for block in 0..2 {
            let block_data = &data[block * 512..][..512];
            a.memory.set(block * 516, block_data);
            a.memory.set(block * 516 + 512, &slow_crc32(polynomial, block_data).to_le_bytes());
        }
        a.memory.set(1032, &data[1024..]);
        let mine = key(&mut a, 0, 1132, |psvs| bsf(crc(1, kind), NONE, 0xf0, None, psvs));
        let theirs = key(&mut b, 3000, 1140, |psvs| bsf(crc(2, CRC64), NONE, 0, None, psvs));
        b.recv_to(DataSeg::new(1124, theirs, 0));
        a.post(MLX5_OPCODE_SEND, 0, &[DataSeg::new(1124, mine, 0).as_bytes()]);
        assert_eq!(a.send_cq.poll().unwrap().kind, hw::MLX5_CQE_REQ);
        assert_eq!(b.recv_cq.poll().unwrap().bytes, 1124);
        for block in 0..2 {
            assert_eq!(b.memory.get(3000 + block * 528, 520), &data[block * 520..][..520]);
            assert_ne!(b.memory.get(3000 + block * 528 + 520, 8), [0; 8]);
        }
        assert_eq!(b.memory.get(3000 + 1056, 84), &data[1040..]);
        // Read back through the key, its own signatures are right.
        a.read(6000, 1124, 0, theirs);
        assert_eq!(a.send_cq.poll().unwrap().kind, hw::MLX5_CQE_REQ);
        assert_eq!((a.memory.get(6000, 1124), error(&mut b.recv_cq)), (data, None));
    }
}

#[test]
fn the_wire_has_signatures_that_the_receiver_checks_and_removes() {
    let (mut a, mut b) = rc();
    let data = a.fill(0, 1024, 5);
    let flags = COUNTS;
    let wire = |app| move |psvs| bsf(NONE, dif(1, true, app, 7, flags), 0xff, None, psvs);
    let mine = key(&mut a, 0, 1024, wire(0xabcd));
    // As bytes on the wire: a peer without signatures reads them.
    b.read(0, 1040, 0, mine);
    assert_eq!(b.send_cq.poll().unwrap().syndrome, 0);
    assert_eq!(b.memory.get(0, 512), &data[..512]);
    assert_eq!(b.memory.get(514, 6), [0xab, 0xcd, 0, 0, 0, 7]);
    assert_eq!(b.memory.get(520 + 514, 6), [0xab, 0xcd, 0, 0, 0, 8]);
    assert_eq!(b.memory.get(520, 512), &data[512..]);
    b.read(0, 1, 1040, mine);
    assert_eq!(b.send_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);

    for (app, syndrome) in [(0xabcd, 0), (0xabcc, 1 << 12)] {
        let (mut a, mut b) = rc();
        let data = a.fill(0, 1024, 5);
        let mine = key(&mut a, 0, 1024, wire(0xabcd));
        let theirs = key(&mut b, 0, 1024, wire(app));
        a.post(
            uverbs_mlx5_hw::wqe::MLX5_OPCODE_RDMA_WRITE,
            0,
            &[super::rig::remote(0, theirs).as_bytes(), DataSeg::new(1040, mine, 0).as_bytes()],
        );
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        assert_eq!(b.memory.get(0, 1024), data);
        let found = error(&mut b.recv_cq);
        assert_eq!(found.map_or(0, |found| found.1), syndrome);
        if let Some((key, _, domain, expected, actual, offset)) = found {
            assert_eq!((key, domain, offset), (theirs, 0, 512));
            assert_eq!((expected >> 32 & 0xffff, actual >> 32 & 0xffff), (0xabcd, 0xabcc));
        }
        // The second block is wrong, too, and only the first error is reported.
        assert_eq!(error(&mut b.recv_cq), None);
    }
}

/// A request that is executed at its receiver at once: the error belongs to the queue in whose data it is, also if the receiver's is one of
/// the same device.
#[test]
fn an_error_is_reported_at_its_own_queue() {
    for is_virtual in [false, true] {
        let fabric = if is_virtual { Fabric::deterministic(1) } else { Fabric::new(1) };
        let hca = fabric.device("hca0").link(crate::Link::InfiniBand).build();
        let (mut a, mut b) = (End::new(&hca, QpKind::Rc), End::new(&hca, QpKind::Rc));
        a.connect(b.qpn, 1, 0);
        b.connect(a.qpn, 1, 0);
        let mine = key(&mut a, 0, 516, |psvs| bsf(crc(1, CRC32), NONE, 0xf0, None, psvs));
        a.memory.set(512, &[1, 2, 3, 4]);
        b.recv(0, 512);
        a.post(MLX5_OPCODE_SEND, 0, &[DataSeg::new(512, mine, 0).as_bytes()]);
        assert_eq!(error(&mut a.send_cq).map(|found| found.0), Some(mine));
        assert_eq!(a.send_cq.poll().unwrap().kind, hw::MLX5_CQE_REQ);
        assert_eq!(b.recv_cq.poll().unwrap().bytes, 512);
        assert!(b.recv_cq.peek().is_none());
    }
}

#[test]
fn an_error_is_before_the_completion_and_is_reported_again_after_an_update() {
    let (mut a, mut b) = rc();
    let bad = |psvs| bsf(crc(1, CRC32), NONE, 0xf0, None, psvs);
    let mine = key(&mut a, 0, 516, bad);
    a.memory.set(512, &[1, 2, 3, 4]);
    let send = |a: &mut End, b: &mut End| {
        b.recv(0, 512);
        a.post(MLX5_OPCODE_SEND, 0, &[DataSeg::new(512, mine, 0).as_bytes()]);
    };
    send(&mut a, &mut b);
    let (named, syndrome, domain, expected, actual, offset) = error(&mut a.send_cq).unwrap();
    assert_eq!((named, syndrome, domain, offset), (mine, 1 << 13, 1, 512));
    assert_eq!((expected >> 32, actual >> 32), (0x0403_0201, u64::from(slow_crc32(0xedb8_8320, &[0; 512]))));
    assert_eq!(a.send_cq.poll().unwrap().kind, hw::MLX5_CQE_REQ);
    send(&mut a, &mut b);
    assert_eq!(a.send_cq.poll().unwrap().kind, hw::MLX5_CQE_REQ);
    let again = Update { flags: 1 << 7, mask: FREE | SIG_ERR, ..Update::default() };
    assert_eq!(again.post(&mut a, mine), 0);
    send(&mut a, &mut b);
    assert!(error(&mut a.send_cq).is_some());
    assert_eq!(a.send_cq.poll().unwrap().kind, hw::MLX5_CQE_REQ);
    // Without the signature, the memory is as it is.
    let off = Update { flags: 1 << 7, mask: FREE | SIG_ERR | BSF, ..Update::default() };
    assert_eq!(off.post(&mut a, mine), 0);
    b.recv(0, 516);
    a.post(MLX5_OPCODE_SEND, 0, &[DataSeg::new(516, mine, 0).as_bytes()]);
    assert_eq!(a.send_cq.poll().unwrap().kind, hw::MLX5_CQE_REQ);
    assert_eq!(b.memory.get(512, 4), [1, 2, 3, 4]);
}

#[test]
fn bytes_of_a_signature_are_copied_between_equal_blocks() {
    let (mut a, mut b) = rc();
    // The application tag is not that of the format; it is copied, the rest is computed.
    let domain = |reference| dif(1, false, 0x1111, reference, COUNTS);
    let mine = key(&mut a, 0, 520, |psvs| bsf(domain(1), domain(9), 0, Some(0x30), psvs));
    a.fill(0, 512, 3);
    a.memory.set(512, &[0xff, 0xff, 0xab, 0xcd, 0xff, 0xff, 0xff, 0xff]);
    b.read(0, 520, 0, mine);
    assert_eq!(b.send_cq.poll().unwrap().syndrome, 0);
    assert_eq!(b.memory.get(514, 6), [0xab, 0xcd, 0, 0, 0, 9]);
    // And in the other direction, in parts that split the signature.
    b.memory.set(514, &[0x12, 0x34]);
    for (at, len) in [(0, 515), (515, 5)] {
        b.write(at, len, at, mine);
        assert_eq!(b.send_cq.poll().unwrap().syndrome, 0);
    }
    assert_eq!(a.memory.get(512, 8)[2..], [0x12, 0x34, 0, 0, 0, 1]);
    assert_eq!(a.memory.get(512, 2), b.memory.get(512, 2));
}

#[test]
fn a_queue_that_drains_stops_before_the_request_behind_an_error() {
    let (mut a, mut b) = rc();
    a.qp(|_, _, qp| qp.drain_sigerr = true);
    let mine = key(&mut a, 0, 516, |psvs| bsf(crc(1, CRC32), NONE, 0xf0, None, psvs));
    b.recv(0, 512);
    b.recv(1000, 16);
    a.post(MLX5_OPCODE_SEND, 0, &[DataSeg::new(512, mine, 0).as_bytes()]);
    a.send(0, 16);
    assert!(error(&mut a.send_cq).is_some());
    assert_eq!(a.send_cq.poll().unwrap().counter, a.posted.wrapping_sub(2));
    assert_eq!((a.send_cq.poll(), a.state()), (None, State::Sqd));
    assert!(b.recv_cq.poll().is_some());
    assert_eq!(b.recv_cq.poll(), None);
    a.set_state(State::Rts);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    assert!(b.recv_cq.poll().is_some());
}

#[test]
fn invalid_formats_are_refused() {
    let good = |psvs| bsf(crc(1, CRC32), NONE, 0xf0, None, psvs);
    for (at, value) in [(3, 9), (3, 5), (12, 0x70), (15, 0x77)] {
        let (mut a, _b) = rc();
        let (new, psvs) = on(&a.hca, |device, _| {
            let kind = device.mkeys.indirect(false, 4, true);
            let psvs = [0, 1].map(|_| device.mkeys.psvs.add(PD).unwrap());
            (device.mkeys.add(0, PD, 0, kind).unwrap(), psvs)
        });
        let mut bsf = good(psvs);
        bsf[at] = value;
        let syndrome = update(&a, 0, 516, bsf).post(&mut a, new);
        assert_eq!(syndrome, hw::MLX5_CQE_SYNDROME_MW_BIND_ERR, "{at} {value:#x}");
    }
    // A value of another domain, or none.
    let (mut a, _b) = rc();
    let psv = on(&a.hca, |device, _| device.mkeys.psvs.add(PD + 1).unwrap());
    let mut segment = [0; 16];
    segment[..4].copy_from_slice(&psv.to_be_bytes());
    a.post(MLX5_OPCODE_SET_PSV, 0, &[&segment]);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
}
