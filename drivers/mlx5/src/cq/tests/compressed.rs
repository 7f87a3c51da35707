// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compressed entries, which a simulated device writes.

use super::*;
use proptest::prelude::*;

/// The format bits of a title.
const TITLE: u8 = 0xc;

fn compressing(entries: u32, cqe_size: u32, format: CqeCompression) -> Bench {
    bench_with(entries, cqe_size, CqeVersion::V1, Some(format))
}

impl Bench {
    /// Writes a whole entry at `position`; its last byte is as given.
    fn put(&self, position: u32, bytes: &[u8]) {
        let slot = (position & self.queue.cqe()) as usize;
        words(&self.buf, (slot + 1) * self.size - 64, bytes);
    }

    fn owner(&self, position: u32) -> u8 {
        u8::from(position & self.entries() != 0)
    }

    /// Writes a title that announces `count` completions, and these mini entries, which are 8 bytes each.
    fn block(&mut self, title: Cqe64, count: u32, minis: &[[u8; 8]]) {
        let start = self.producer;
        for (n, array) in minis.chunks(8).enumerate() {
            // A mini entry that no completion has may have any value.
            let mut bytes = [0xa5; 64];
            array.iter().enumerate().for_each(|(i, mini)| bytes[i * 8..i * 8 + 8].copy_from_slice(mini));
            self.put(start + if n == 0 { 1 } else { 8 * n as u32 }, &bytes);
        }
        let op_own = title.op_own & !1 | TITLE | self.owner(start);
        self.put(start, Cqe64 { byte_cnt: Be32::new(count), op_own, ..title }.as_bytes());
        self.producer += minis.len() as u32;
    }

    /// Writes these completions as one block.
    fn compressed(&mut self, cqes: &[Cqe64], format: CqeCompression) {
        let mini = |cqe: &Cqe64| {
            let (len, [counter, other]) =
                (cqe.byte_cnt.get().to_be_bytes(), cqe.wqe_counter.get().to_be_bytes());
            let [sum, m] = [cqe.rsvd20[2], cqe.rsvd20[3]];
            let [a, b, c, d] = match format {
                _ if cqe.op_own >> 4 == 0 => [counter, other, cqe.send_opcode(), 0],
                CqeCompression::Hash => [cqe.rsvd4[8], cqe.rsvd4[9], cqe.rsvd4[10], cqe.rsvd4[11]],
                CqeCompression::Checksum => [sum, m, 0, 0],
                CqeCompression::ChecksumAndStride => [sum, m, 0x77, 0x88],
            };
            [a, b, c, d, len[0], len[1], len[2], len[3]]
        };
        let minis: Vec<_> = cqes.iter().map(mini).collect();
        self.block(cqes[0], cqes.len() as u32, &minis);
    }
}

fn receive(qp: &QpShared, index: u32, len: u32) -> Cqe64 {
    Cqe64 { byte_cnt: Be32::new(len), ..cqe(2, qp, index) }
}

fn receives(qp: &QpShared, from: u32, count: u32) -> Vec<Cqe64> {
    (0..count).map(|n| receive(qp, from + n, 100 + n)).collect()
}

#[test]
fn a_block_by_hand_is_three_receives() {
    let mut b = compressing(8, 64, CqeCompression::Checksum);
    let qp = b.qp(0xa1, None);
    let mut title = [0; 64];
    title[32..36].copy_from_slice(&qp.uidx.to_be_bytes());
    title[44..48].copy_from_slice(&[0, 0, 0, 3]);
    title[56..62].copy_from_slice(&[0, 0, 0, 0xa1, 0, 14]);
    // A send arrived, solicited, title, first lap.
    title[63] = 0x2e;
    let mut array = [0xff; 64];
    array[..24].copy_from_slice(&[
        0x12, 0x34, 0, 0, 0, 0, 0, 7, 0x56, 0x78, 0, 0, 0, 0, 1, 0, 0x9a, 0xbc, 0, 0, 0, 1, 0, 0,
    ]);
    b.put(1, &array);
    b.put(0, &title);
    let mut wc = [WorkCompletion::default(); 4];
    assert_eq!(b.queue.poll_cq(&mut wc), Ok(3));
    let seen: Vec<_> = wc[..3].iter().map(|wc| (wc.wr_id, wc.byte_len, wc.opcode, wc.qp_num)).collect();
    let want = [(14, 7), (15, 0x100), (0, 0x1_0000)];
    assert_eq!(seen, want.map(|(index, len)| (recv_id(0xa1, index), len, WcOpcode::RECV, 0xa1)));
    assert_eq!(b.consumed(), 3);
    // The entries are what the device would have written without compression.
    let entry = |slot: usize| {
        let words = &b.buf.words()[slot * 8..slot * 8 + 8];
        words.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect::<Vec<_>>()
    };
    for (slot, (sum, index, len)) in
        [([0x12, 0x34], 14, 7_u32), ([0x56, 0x78], 15, 0x100), ([0x9a, 0xbc], 16, 0x1_0000)]
            .into_iter()
            .enumerate()
    {
        let mut want = title;
        want[20..22].copy_from_slice(&sum);
        want[44..48].copy_from_slice(&len.to_be_bytes());
        (want[61], want[63]) = (index, 0x22);
        assert_eq!(entry(slot), want, "{slot}");
    }
}

#[test]
fn blocks_of_any_length_take_their_room_over_many_laps() {
    for (entries, size) in [(2, 64), (4, 128), (16, 64), (32, 128)] {
        for format in [CqeCompression::Hash, CqeCompression::Checksum, CqeCompression::ChecksumAndStride] {
            let mut b = compressing(entries, size, format);
            let qp = b.qp(0xa1, None);
            let mut index = 0;
            for round in 0..200 {
                let count = round % entries + 1;
                match count {
                    1 => b.complete(receive(&qp, index, 1)),
                    _ => b.compressed(&receives(&qp, index, count), format),
                }
                let want: Vec<_> = (0..count).map(|n| recv_id(0xa1, (index + n) % BLOCKS)).collect();
                assert_eq!(b.poll(64), Ok(want), "{entries} {size} {format:?} {round}");
                assert_eq!(b.poll(64), Ok(vec![]));
                assert_eq!(b.consumed(), b.producer & 0xff_ffff);
                index += count;
            }
        }
    }
}

#[test]
fn an_srq_has_its_elements_in_a_block() {
    let mut b = compressing(16, 64, CqeCompression::Hash);
    let srq = Arc::new(srq(0x55));
    let qp = b.qp(0xa1, Some(Arc::clone(&srq)));
    b.compressed(&receives(&qp, 3, 5), CqeCompression::Hash);
    assert_eq!(b.poll(64), Ok((3..8).map(|n| recv_id(0x55, n)).collect()));
    // The next counter names no element of the SRQ, of which there are 16.
    b.compressed(&receives(&qp, 15, 2), CqeCompression::Hash);
    assert_eq!(b.poll(64), Ok(vec![recv_id(0x55, 15)]));
    assert_eq!(b.poll(64), Err(PollError::Corrupt));
    assert_eq!(b.poll(64), Ok(vec![]));
}

#[test]
fn an_extended_poll_may_end_in_a_block() {
    let format = CqeCompression::Hash;
    let mut b = compressing(32, 64, format);
    let qp = b.qp(0xa1, None);
    b.compressed(&receives(&qp, 0, 12), format);
    b.complete(cqe(0, &qp, 0));
    for from in [0, 5, 10] {
        b.queue.start_poll().unwrap();
        for n in 0..5.min(12 - from) {
            if n != 0 {
                b.queue.next_poll().unwrap();
            }
            let c = b.queue.current().unwrap();
            assert_eq!((c.wr_id(), c.byte_len()), (recv_id(0xa1, from + n), 100 + from + n));
        }
        b.queue.end_poll();
        assert_eq!(b.consumed(), (from + 5).min(12));
    }
    assert_eq!(b.poll(3), Ok(vec![send_id(0xa1, 0)]));
}

#[test]
fn a_block_with_an_impossible_count_is_an_error_for_good() {
    for count in [0, 1, 17, u32::MAX] {
        let format = CqeCompression::Hash;
        let mut b = compressing(16, 64, format);
        let (qp, gone) = (b.qp(0xa1, None), b.qp(0xa2, None));
        b.complete(receive(&gone, 0, 1));
        b.complete(cqe(0, &qp, 0));
        b.block(receive(&qp, 0, 0), count, &[[0; 8]; 3]);
        assert_eq!(b.poll(1), Ok(vec![recv_id(0xa2, 0)]));
        b.shared.detach_qp(&gone);
        assert_eq!(b.poll(64), Ok(vec![send_id(0xa1, 0)]));
        let mut wc = [WorkCompletion::default(); 4];
        for _ in 0..3 {
            assert_eq!(b.poll(64), Err(PollError::Corrupt));
            assert_eq!(b.queue.poll_cq(&mut wc), Err(PollError::Corrupt));
            assert_eq!(b.queue.start_poll(), Err(PollError::Corrupt));
        }
        assert_eq!(b.consumed(), 2);
        // A resize finds no mark.
        let ring = CqRing::new(QueueBuf::new(64 * 64).unwrap(), 64, 64).unwrap();
        assert_eq!(b.queue.replace_ring(ring), Err(PollError::Corrupt));
        assert_eq!(b.poll(64), Err(PollError::Corrupt));
    }
}

#[test]
fn each_completion_of_a_block_of_an_unknown_queue_is_an_error() {
    let format = CqeCompression::Hash;
    let mut b = compressing(16, 64, format);
    let qp = b.qp(0xa1, None);
    let unknown = |index| Cqe64 { srqn_uidx: Be32::new(0x999), ..receive(&qp, index, 1) };
    b.compressed(&[unknown(0), unknown(1), unknown(2)], format);
    b.complete(receive(&qp, 0, 1));
    for _ in 0..3 {
        assert_eq!(b.poll(64), Err(PollError::Corrupt));
    }
    assert_eq!(b.poll(64), Ok(vec![recv_id(0xa1, 0)]));
    assert_eq!(b.consumed(), 4);
}

/// As libmlx5: without compression both format bits mean data in the entry.
#[test]
fn a_queue_without_compression_has_no_titles() {
    let mut b = bench(16, 64, CqeVersion::V1);
    let qp = b.qp(0xa1, None);
    b.complete(Cqe64 { op_own: 0x20 | TITLE, ..receive(&qp, 0, 2) });
    b.complete(receive(&qp, 1, 2));
    assert_eq!(b.poll(64), Ok(vec![recv_id(0xa1, 0), recv_id(0xa1, 1)]));
}

#[test]
fn a_destroyed_qp_leaves_no_block() {
    let format = CqeCompression::Hash;
    for polled in [0, 1, 4, 9] {
        let mut b = compressing(64, 64, format);
        let (dead, alive) = (b.qp(0xa1, None), b.qp(0xa2, None));
        b.compressed(&receives(&alive, 0, 2), format);
        b.compressed(&receives(&dead, 0, 10), format);
        b.compressed(&receives(&alive, 2, 9), format);
        b.compressed(&[cqe(0, &dead, 0), cqe(0, &dead, 1)], format);
        let first = b.poll(polled).unwrap();
        b.shared.detach_qp(&dead);
        let ids = |number, from: usize, to| (from..to).map(move |n| recv_id(number, n as u32));
        let want: Vec<_> = ids(0xa2, 0, 2).chain(ids(0xa1, 0, 10)).take(polled).collect();
        assert_eq!(first, want);
        assert_eq!(b.poll(64), Ok(ids(0xa2, polled.min(2), 11).collect()));
        assert_eq!(b.consumed(), b.producer);
        // The removed entries are not those of the next lap.
        for _ in 0..20 {
            b.compressed(&receives(&alive, 0, 7), format);
            assert_eq!(b.poll(64), Ok(ids(0xa2, 0, 7).collect()));
        }
    }
}

#[test]
fn a_reset_in_a_callback_ends_the_block() {
    let format = CqeCompression::Hash;
    let mut b = compressing(64, 64, format);
    let (gone, other) = (b.qp(0xa1, None), b.qp(0xa2, None));
    b.compressed(&receives(&gone, 0, 12), format);
    b.compressed(&receives(&other, 0, 3), format);
    let (shared, mut ids) = (Arc::clone(&b.shared), Vec::new());
    let polled = b.queue.poll_each(64, |completion| {
        ids.push((completion.wr_id(), completion.byte_len()));
        if ids.len() == 3 {
            shared.reset_qp(&gone);
        }
    });
    assert_eq!(polled, Ok(3));
    assert_eq!(ids, [0, 1, 2].map(|n| (recv_id(0xa1, n), 100 + n)));
    assert_eq!(b.poll(64), Ok((0..3).map(|n| recv_id(0xa2, n)).collect()));
}

#[test]
fn a_resize_keeps_the_blocks_of_both_rings() {
    let format = CqeCompression::Checksum;
    for (polled, dead_in_old) in [(0, false), (1, false), (4, false), (0, true), (1, true)] {
        let mut b = compressing(16, 64, format);
        let (qp, dead) = (b.qp(0xa1, None), b.qp(0xa2, None));
        // The block wraps at the end of the ring.
        b.compressed(&receives(&qp, 0, 12), format);
        assert_eq!(b.poll(64).unwrap().len(), 12);
        b.compressed(&receives(&qp, 12, 3), format);
        b.compressed(&receives(&dead, 0, 3), format);
        b.compressed(&receives(&qp, 15, 2), format);
        let ids = |from, to| (from..to).map(|n| recv_id(0xa1, n % BLOCKS));
        let of_dead = (0..3).map(|n| recv_id(0xa2, n));
        let old: Vec<_> = ids(12, 15).chain(of_dead.clone()).chain(ids(15, 17)).collect();
        assert_eq!(b.poll(polled), Ok(old[..polled].to_vec()));
        if dead_in_old {
            b.shared.detach_qp(&dead);
        }
        let buf = QueueBuf::new(64 * 64).unwrap();
        let ring = CqRing::new(Arc::clone(&buf), 64, 64).unwrap().with_compression(Some(format));
        ring.clear();
        assert!(b.shared.begin_resize(ring.clone()));
        b.complete(Cqe64 { op_own: 0x50, ..Cqe64::default() });
        // The device writes to the new ring.
        let mut new = compressing(64, 64, format);
        (new.buf, new.producer) = (buf, b.producer);
        new.compressed(&receives(&qp, 17, 9), format);
        new.compressed(&receives(&dead, 3, 2), format);
        if !dead_in_old {
            // Both rings have entries of it.
            b.shared.detach_qp(&dead);
        }
        new.compressed(&receives(&qp, 26, 3), format);
        assert_eq!(b.queue.finish_resize(ring), Ok(()));
        let rest = old.iter().copied().enumerate().filter(|(n, id)| *n >= polled && id >> 32 & 0xff == 0xa1);
        let mut want: Vec<_> = rest.map(|(_, id)| id).chain(ids(17, 26)).collect();
        // The QP is not attached any more: an error after the completions before.
        if dead_in_old {
            assert_eq!(b.poll(64), Ok(want), "{polled}");
            assert_eq!(b.poll(64), Err(PollError::Corrupt));
            assert_eq!(b.poll(64), Err(PollError::Corrupt));
            want = Vec::new();
        }
        want.extend(ids(26, 29));
        assert_eq!(b.poll(64), Ok(want), "{polled} {dead_in_old}");
        assert_eq!(b.consumed(), new.producer);
    }
}

/// A completion of a program: queue, kind, length, immediate data, solicited bit.
type Fact = (usize, u8, u32, u32, bool);

fn facts() -> impl Strategy<Value = Vec<Fact>> {
    // Neighbours are often of one kind.
    let fact = (0..2_usize, 0..5_u8, 0..3_u32, any::<bool>());
    let run = (fact, prop::collection::vec(0..1_u32 << 31, 1..20));
    prop::collection::vec(run, 1..8).prop_map(|runs| {
        let facts = runs.into_iter().flat_map(|((queue, kind, imm, solicited), lens)| {
            lens.into_iter().map(move |len| (queue, kind, len, imm, solicited))
        });
        facts.collect()
    })
}

/// The entries that a device without compression writes.
fn entries_of(facts: &[Fact], qps: &[Arc<QpShared>; 2]) -> Vec<Cqe64> {
    let mut next = [[0_u32; 2]; 2];
    let entry = |(n, (queue, kind, len, imm, solicited)): (usize, &Fact)| {
        let (qp, next) = (&qps[*queue], &mut next[*queue][usize::from(*kind == 0)]);
        let index = *next;
        *next += 1;
        let mut cqe = Cqe64 {
            imm_inval_pkey: Be32::new(*imm),
            timestamp: Be64::new(1000),
            flags_rqpn: Be32::new(*imm << 24 | 5),
            byte_cnt: Be32::new(*len),
            ..cqe(*kind, qp, index)
        };
        cqe.op_own |= u8::from(*solicited) << 1;
        if *kind == 0 {
            let opcode = [0x0a_u32, 0x08, 0x10][n % 3];
            cqe.sop_drop_qpn = Be32::new(opcode << 24 | qp.qp_num);
        } else {
            cqe.rsvd4[8..12].copy_from_slice(&(n as u32).to_be_bytes());
        }
        cqe
    };
    facts.iter().enumerate().map(entry).collect()
}

/// Whether a block may have both, one after the other.
fn is_of_one_block(a: &Cqe64, b: &Cqe64) -> bool {
    let rest = |cqe: &Cqe64| {
        let mut rest = Cqe64 { byte_cnt: Be32::new(0), wqe_counter: Be16::new(0), ..*cqe };
        rest.rsvd4[8..12].fill(0);
        if cqe.op_own >> 4 == 0 {
            rest.sop_drop_qpn = Be32::new(cqe.qpn());
        }
        rest
    };
    let follows = a.op_own >> 4 == 0 || b.wqe_counter.get() == a.wqe_counter.get().wrapping_add(1);
    rest(a) == rest(b) && follows
}

/// Polls up to `max` completions by one of the interfaces.
fn poll_some(b: &mut Bench, face: u8, max: usize) -> Vec<String> {
    let mut wcs = Vec::new();
    match face {
        0 => {
            let mut some = vec![WorkCompletion::default(); max];
            let n = b.queue.poll_cq(&mut some).unwrap();
            wcs.extend(some[..n].iter().map(|wc| format!("{wc:?}")));
        }
        1 => {
            b.queue.poll_each(max, |c| wcs.push(format!("{:?}", c.to_wc()))).unwrap();
        }
        _ if max != 0 && b.queue.start_poll().is_ok() => {
            wcs.push(format!("{:?}", b.queue.current().unwrap().to_wc()));
            while wcs.len() < max && b.queue.next_poll().is_ok() {
                wcs.push(format!("{:?}", b.queue.current().unwrap().to_wc()));
            }
            b.queue.end_poll();
        }
        _ => {}
    }
    wcs
}

proptest! {
    #[test]
    fn a_compressed_list_of_completions_is_the_list(
        facts in facts(),
        polls in prop::collection::vec((0..3_u8, 0..12_usize), 1..10),
        most in 1..20_usize,
        wide in any::<bool>(),
    ) {
        let size = if wide { 128 } else { 64 };
        let format = CqeCompression::Hash;
        let (mut plain, mut compressed) = (bench(64, size, CqeVersion::V1), compressing(64, size, format));
        let of = |b: &Bench| [b.qp(0xa1, None), b.qp(0xa2, None)];
        let (of_plain, of_compressed) = (of(&plain), of(&compressed));
        let entries = entries_of(&facts, &of_plain);
        prop_assert_eq!(&entries, &entries_of(&facts, &of_compressed));
        let mut polls = polls.iter().cycle();
        let (mut want, mut got) = (Vec::new(), Vec::new());
        // Blocks of several completions, and single ones as plain entries.
        let mut left = &entries[..];
        while !left.is_empty() {
            let more = left.windows(2).take_while(|pair| is_of_one_block(&pair[0], &pair[1])).count();
            let (block, rest) = left.split_at((more + 1).min(most));
            left = rest;
            match block {
                [one] => compressed.complete(*one),
                _ => compressed.compressed(block, format),
            }
            block.iter().for_each(|cqe| plain.complete(*cqe));
            prop_assert_eq!(compressed.producer, plain.producer);
            let (face, max) = *polls.next().unwrap();
            let polled = poll_some(&mut compressed, face, max);
            prop_assert_eq!(poll_some(&mut plain, face, max), &polled[..]);
            prop_assert_eq!(compressed.consumed(), plain.consumed());
            got.extend(polled);
            while compressed.producer - compressed.consumed() > 40 {
                got.extend(poll_some(&mut compressed, face, 7));
                poll_some(&mut plain, face, 7);
            }
        }
        got.extend(poll_some(&mut compressed, 1, 64));
        let mut all = bench(256, 64, CqeVersion::V1);
        let of_all = of(&all);
        entries_of(&facts, &of_all).iter().for_each(|cqe| all.complete(*cqe));
        want.extend(poll_some(&mut all, 1, 256));
        prop_assert_eq!(got, want);
    }
}

/// The poll that finds the block, and the control call that removes its queue, expand it by turns.
#[test]
fn a_block_is_polled_while_its_qp_is_destroyed() {
    let format = CqeCompression::Hash;
    let mut b = compressing(64, 64, format);
    let shared = Arc::clone(&b.shared);
    for round in 0..200_u32 {
        let (qp, stays) = (b.qp(1000 + round, None), b.qp(5000 + round, None));
        b.compressed(&receives(&qp, 0, 10), format);
        b.compressed(&receives(&stays, 0, 9), format);
        let ids = std::thread::scope(|scope| {
            scope.spawn(|| shared.detach_qp(&qp));
            b.poll(64).unwrap()
        });
        let (of_qp, mut of_other): (Vec<u64>, Vec<u64>) =
            ids.into_iter().partition(|id| id >> 32 & 0xfff_ffff == u64::from(1000 + round));
        let want: Vec<_> = (0..of_qp.len() as u32).map(|n| recv_id(1000 + round, n)).collect();
        assert_eq!(of_qp, want);
        of_other.extend(b.poll(64).unwrap());
        assert_eq!(of_other, (0..9).map(|n| recv_id(5000 + round, n)).collect::<Vec<_>>());
        assert_eq!(b.consumed(), b.producer & 0xff_ffff);
        b.shared.detach_qp(&stays);
    }
}
