// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modes of order: when data of SRD are read and become visible, and when completions do.

use super::rig::{End, Shape, pair, pattern};
use crate::Fabric;
use uverbs_efa_hw::io::EFA_IO_COMP_STATUS_OK as OK;
use uverbs_fabric::order::{Mode, Setting};
use uverbs_fabric::random::Random;

const WEAK: [Mode; 3] = [Mode::Pcie, Mode::Relaxed, Mode::Model];
const SEEDS: u64 = 60;

/// Two ends, and the first one's address handle of the second one. Steps are taken by [`finish`].
fn ends(mode: Mode) -> (Fabric, End, End, u16) {
    let (fabric, a, b) = pair(1);
    let shape = Shape { rnr_retry: 7, ..Shape::default() };
    let (x, y) = (End::written(&a, shape), End::written(&b, shape));
    let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
    fabric.order_by_hand(mode);
    (fabric, x, y, to_y)
}

/// Takes all steps, in an order of this seed. `look` is called after each of them.
fn finish(fabric: &Fabric, seed: u64, mut look: impl FnMut()) {
    let mut random = Random::new(seed);
    loop {
        let steps = fabric.steps();
        if steps.is_empty() {
            return;
        }
        assert!(fabric.take_step(steps[random.below(steps.len() as u64) as usize].step));
        look();
    }
}

/// Whether a program shows in some order of a mode what `shows` looks for.
fn is_seen(mode: Mode, program: impl Fn(Mode, u64) -> bool) -> bool {
    (0..SEEDS).any(|seed| program(mode, seed))
}

/// A WRITE of this many bytes, which are 1. Whether its last byte is there before its first one.
fn last_before_first(mode: Mode, seed: u64, len: usize) -> bool {
    let (fabric, mut x, mut y, to_y) = ends(mode);
    x.memory.put(0, &vec![1; len]);
    x.write(1, 0, len, &y, to_y, None);
    let mut seen = false;
    finish(&fabric, seed, || seen |= y.memory.get(len - 1, 1) == [1] && y.memory.get(0, 1) == [0]);
    assert_eq!((x.status(), y.poll(), y.memory.get(0, len)), (OK, None, vec![1; len]));
    seen
}

#[test]
fn lines_and_packets_of_a_write_become_visible_in_any_order() {
    for (mode, of_packet) in [(Mode::Pcie, false), (Mode::Relaxed, true), (Mode::Model, true)] {
        assert_eq!(
            is_seen(mode, |mode, seed| last_before_first(mode, seed, 256)),
            of_packet,
            "{mode}: a packet"
        );
        assert!(is_seen(mode, |mode, seed| last_before_first(mode, seed, 40_000)), "{mode}: several packets");
    }
}

#[test]
fn a_short_write_passes_a_long_one() {
    let program = |mode, seed| {
        let (fabric, mut x, y, to_y) = ends(mode);
        x.memory.put(0, &[1; 3000]);
        x.write(1, 0, 2000, &y, to_y, None);
        x.write(2, 2000, 8, &y, to_y, None);
        let mut seen = false;
        finish(&fabric, seed, || seen |= y.memory.get(2000, 8) == [1; 8] && y.memory.get(0, 1) == [0]);
        seen
    };
    for mode in WEAK {
        assert!(is_seen(mode, program), "{mode}");
    }
}

#[test]
fn a_completion_comes_after_all_data_of_its_message() {
    let (data, answer) = (pattern(10_000, 1), pattern(10_000, 9));
    let all_seeds = |mode| {
        for seed in 0..SEEDS / 3 {
            let (fabric, mut x, mut y, to_y) = ends(mode);
            x.memory.put(0, &data);
            y.memory.put(100_000, &answer);
            y.recv(5, 200_000, 3000);
            y.recv(6, 210_000, 3000);
            x.send(1, 0, 3000, &y, to_y);
            x.write(2, 0, 10_000, &y, to_y, Some(7));
            x.read(3, 100_000, 10_000, &y, to_y);
            let (mut sent, mut got) = (0, 0);
            finish(&fabric, seed, || {
                while let Some(done) = x.poll() {
                    sent += 1;
                    assert_eq!(done.status, OK);
                    if done.req_id == 3 {
                        assert!(x.memory.get(100_000, 10_000) == answer, "{mode}:{seed}: the data of a READ");
                    }
                }
                while let Some(done) = y.poll() {
                    got += 1;
                    assert_eq!(done.status, OK);
                    match done.imm {
                        Some(_) => assert!(y.memory.get(0, 10_000) == data, "{mode}:{seed}: a WRITE"),
                        None => {
                            let at = if done.req_id == 5 { 200_000 } else { 210_000 };
                            assert!(y.memory.get(at, 3000) == data[..3000], "{mode}:{seed}: a SEND");
                        }
                    }
                }
            });
            assert_eq!((sent, got), (3, 2), "{mode}:{seed}");
        }
    };
    std::thread::scope(|scope| {
        for mode in WEAK {
            let all_seeds = &all_seeds;
            scope.spawn(move || all_seeds(mode));
        }
    });
}

#[test]
fn a_buffer_is_free_only_after_the_completion() {
    for waits in [false, true] {
        let program = |mode, seed| {
            let (fabric, mut x, y, to_y) = ends(mode);
            x.memory.put(0, &[1; 64]);
            x.write(1, 0, 64, &y, to_y, None);
            if !waits {
                x.memory.put(0, &[2; 64]);
            }
            finish(&fabric, seed, || {
                if x.poll().is_some() {
                    x.memory.put(0, &[2; 64]);
                }
            });
            y.memory.get(0, 64) != [1; 64]
        };
        for mode in WEAK {
            assert_eq!(is_seen(mode, program), !waits, "{mode}");
        }
    }
}

#[test]
fn a_command_waits_for_the_accesses_before_it() {
    for mode in WEAK {
        let (fabric, mut x, y, to_y) = ends(mode);
        x.memory.put(0, &[1; 4000]);
        x.write(1, 0, 4000, &y, to_y, None);
        // The packet is on its way: its data were not read.
        let (memory, peer) = (x.memory, y.memory);
        drop(x);
        memory.put(0, &[2; 4000]);
        finish(&fabric, 3, || {});
        assert!(peer.get(0, 4000).iter().all(|byte| *byte != 2), "{mode}: memory was read after dereg_mr");
    }
}

#[test]
fn a_seed_gives_the_same_run_and_loses_nothing() {
    let run = |seed| {
        let (fabric, a, b) = pair(7);
        let shape = Shape { rnr_retry: 7, ..Shape::default() };
        let (mut x, mut y) = (End::written(&a, shape), End::written(&b, shape));
        let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
        assert_eq!(fabric.order(Setting { mode: Mode::Model, seed: Some(seed) }), seed);
        fabric.loss(0.1).duplicate(0.1);
        let mut order = Vec::new();
        for round in 0..20 {
            y.recv(round, 200_000, 2000);
            x.write(round, 0, 30_000, &y, to_y, None);
            x.send(round + 100, 0, 2000, &y, to_y);
            fabric.run();
            order
                .extend(x.all().into_iter().chain(y.all()).map(|done| (done.recv, done.req_id, done.status)));
        }
        assert_eq!(order.len(), 60);
        assert!(order.iter().all(|(.., status)| *status == OK));
        let text = fabric.schedule().to_string();
        assert!(
            text.contains("efa_1, QP") && text.contains(" RDMA WRITE ") && text.contains(" a completion "),
            "{text}"
        );
        order
    };
    assert_eq!(run(1), run(1));
}
