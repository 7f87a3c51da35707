// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random sequences of calls, and random entries.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A step of a random sequence.
#[derive(Clone, Debug)]
enum Step {
    Complete { qp: usize, receive: bool, count: u32 },
    Poll(usize),
    Session(usize),
    Reset(usize),
    Replace(usize),
    Resize { log_entries: u32, wide: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3_usize, any::<bool>(), 1..5_u32).prop_map(|(qp, receive, count)| Step::Complete { qp, receive, count }),
        6 => (0..9_usize).prop_map(Step::Poll),
        4 => (1..9_usize).prop_map(Step::Session),
        1 => (0..3_usize).prop_map(Step::Reset),
        1 => (0..3_usize).prop_map(Step::Replace),
        1 => (2..6_u32, any::<bool>()).prop_map(|(log_entries, wide)| Step::Resize { log_entries, wide }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every completion is polled once, in order, except those of a QP that was reset or destroyed before.
    #[test]
    fn random_sequences_report_every_completion_once(
        version in prop_oneof![Just(CqeVersion::V0), Just(CqeVersion::V1)],
        wide in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut b = bench(8, if wide { 128 } else { 64 }, version);
        let number = |uidx| if version == CqeVersion::V1 { uidx } else { 0 };
        let mut qps: Vec<_> = (0..3).map(|i| b.qp(100 + i, None)).collect();
        let mut names = 200;
        // The completions in the ring: QP number and `wr_id`.
        let mut model = VecDeque::<(u32, u64)>::new();
        // The next WQE index of each QP's send and receive queue.
        let mut counters = [[0_u32; 2]; 3];
        for step in steps {
            match step {
                Step::Complete { qp, receive, count } => {
                    for _ in 0..count {
                        if b.producer.wrapping_sub(b.consumed()) & 0xff_ffff >= b.queue.cqe() {
                            break;
                        }
                        let counter = &mut counters[qp][usize::from(receive)];
                        let (index, qp) = (*counter, &qps[qp]);
                        *counter += 1;
                        let opcode = if receive { 2 } else { 0 };
                        b.complete(Cqe64 { srqn_uidx: Be32::new(number(qp.uidx)), ..cqe(opcode, qp, index) });
                        let id = if receive { recv_id } else { send_id };
                        model.push_back((qp.qp_num, id(qp.qp_num, index % BLOCKS)));
                    }
                }
                Step::Poll(max) => {
                    let want: Vec<_> = model.drain(..max.min(model.len())).map(|(_, id)| id).collect();
                    prop_assert_eq!(b.poll(max), Ok(want));
                }
                Step::Session(max) => {
                    let want: Vec<_> = model.drain(..max.min(model.len())).map(|(_, id)| id).collect();
                    let mut got = Vec::new();
                    let mut next = b.queue.start_poll();
                    while next.is_ok() {
                        got.push(b.queue.current().unwrap().wr_id());
                        if got.len() == max {
                            break;
                        }
                        next = b.queue.next_poll();
                    }
                    b.queue.end_poll();
                    prop_assert_eq!(got, want);
                }
                Step::Reset(i) => {
                    b.shared.reset_qp(&qps[i]);
                    qps[i].set_state(QpState::RESET);
                    counters[i] = [0; 2];
                    model.retain(|(qp, _)| *qp != qps[i].qp_num);
                }
                Step::Replace(i) => {
                    b.shared.detach_qp(&qps[i]);
                    model.retain(|(qp, _)| *qp != qps[i].qp_num);
                    // With version 0, the kernel may give the number to the next QP at once.
                    let name = if version == CqeVersion::V0 { qps[i].qp_num } else { names };
                    names += 1;
                    qps[i] = b.qp(name, None);
                    counters[i] = [0; 2];
                }
                Step::Resize { log_entries, wide } => {
                    let (entries, size) = (1 << log_entries, if wide { 128 } else { 64 });
                    if (model.len() as u32) < entries && b.producer.wrapping_sub(b.consumed()) & 0xff_ffff < b.entries() {
                        let buf = QueueBuf::new((entries * size) as usize).unwrap();
                        let ring = CqRing::new(Arc::clone(&buf), entries, size).unwrap();
                        ring.clear();
                        b.complete(Cqe64 { op_own: 0x50, ..Cqe64::default() });
                        // The position continues in the new ring.
                        let before = b.producer;
                        prop_assert_eq!(b.queue.replace_ring(ring), Ok(()));
                        (b.buf, b.size, b.producer) = (buf, size as usize, before);
                    }
                }
            }
        }
        let rest: Vec<_> = model.drain(..).map(|(_, id)| id).collect();
        prop_assert_eq!(b.poll(100), Ok(rest));
        prop_assert_eq!(b.consumed(), b.producer & 0xff_ffff);
    }

    /// For any bytes that a device writes, every call returns, with no more completions than requested.
    #[test]
    fn random_entries_end_every_call(
        version in prop_oneof![Just(CqeVersion::V0), Just(CqeVersion::V1)],
        wide in any::<bool>(),
        bytes in prop::collection::vec(any::<u64>(), 128),
        polls in prop::collection::vec((0..3_u8, 0..20_usize), 1..20),
    ) {
        let mut b = bench(8, if wide { 128 } else { 64 }, version);
        let shared = Arc::new(srq(3));
        let qps: [_; 2] = [b.qp(0, None), b.qp(1, Some(shared))];
        for (i, (word, value)) in b.buf.words().iter().zip(&bytes).enumerate() {
            // Most entries name an existing QP. Nothing is written to memory, because no posted WQE has entries.
            let value = match i % 8 {
                4 => (u64::from_be(*value) & 0x1_ffff_ffff).to_be(),
                _ => *value,
            };
            word.store(value, Relaxed);
        }
        for (how, max) in polls {
            match how {
                0 => {
                    let mut wc = vec![WorkCompletion::default(); max];
                    if let Ok(n) = b.queue.poll_cq(&mut wc) {
                        prop_assert!(n <= max && n <= 8);
                    }
                }
                1 => {
                    if b.queue.start_poll().is_ok() {
                        for _ in 0..max {
                            let c = b.queue.current().unwrap();
                            let _ = (c.to_wc(), c.completion_ts(), c.cvlan(), c.flow_tag(), c.completion_wallclock_ns());
                            if b.queue.next_poll().is_err() {
                                break;
                            }
                        }
                        b.queue.end_poll();
                    }
                }
                _ => b.shared.reset_qp(&qps[max % 2]),
            }
        }
    }
}
