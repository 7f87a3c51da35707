// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings of several sizes over many laps, with completions of several kinds.

use super::*;

/// Polls all completions through one interface and returns their `wr_id`s.
fn poll_by(b: &mut Bench, face: usize, max: usize) -> Vec<u64> {
    let mut ids = Vec::new();
    loop {
        let before = ids.len();
        match face {
            0 => ids.extend(b.poll(max).unwrap()),
            1 => {
                let mut wcs = vec![WorkCompletion::default(); max];
                let n = b.queue.poll_cq(&mut wcs).unwrap();
                ids.extend(wcs[..n].iter().map(|wc| wc.wr_id));
            }
            _ => {
                if b.queue.start_poll().is_ok() {
                    for n in 0..max {
                        ids.push(b.queue.current().unwrap().wr_id());
                        if n + 1 == max || b.queue.next_poll().is_err() {
                            break;
                        }
                    }
                    b.queue.end_poll();
                }
            }
        }
        if ids.len() == before {
            return ids;
        }
    }
}

#[test]
fn rings_of_any_size_keep_the_order() {
    for (entries, size) in [(1, 64), (2, 64), (2, 128), (4, 64), (8, 128), (32, 64)] {
        for (face, max) in [(0, 1), (0, 3), (0, 64), (1, 1), (1, 3), (1, 64), (2, 1), (2, 64)] {
            let mut b = bench(entries, size, CqeVersion::V1);
            let qps = [b.qp(1, None), b.qp(2, None)];
            let (mut sends, mut recvs) = ([0; 2], [0; 2]);
            let mut want = Vec::new();
            for step in 0..200_u32 {
                for n in 0..step % entries + 1 {
                    // Runs of sends and receives of both QPs, of various lengths.
                    let (which, is_send) = ((step / 3 + n / 5) as usize % 2, (step + n / 2) % 3 != 0);
                    let (qp, counts) = (&qps[which], if is_send { &mut sends } else { &mut recvs });
                    let index = counts[which] % BLOCKS;
                    counts[which] += 1;
                    let (opcode, id) = match is_send {
                        true => (0, send_id(qp.qp_num, index)),
                        false => (2, recv_id(qp.qp_num, index)),
                    };
                    want.push(id);
                    let cqe = cqe(opcode, qp, index);
                    b.complete(cqe);
                }
                let got = poll_by(&mut b, face, max);
                assert_eq!(got, want, "{entries} of {size}, face {face}, {max}, step {step}");
                assert_eq!(b.consumed(), b.producer & 0xff_ffff);
                want.clear();
            }
        }
    }
}
