// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs with an ordering bug that programs of others had, and their repaired forms. "Find the ordering bug" in the book has the list.
//!
//! Each bad program works without a mode. In the modes that it names it is found by 1,000 seeds, and by exploration. Its repaired form passes
//! every order of each mode, and 1,000 seeds of the weakest one.

use crate::nodes::{BED_LINES, Bed, End, LINE, Node, words};
use core::sync::atomic::{AtomicU64, Ordering};
use uverbs::attr::AccessFlags;
use uverbs::wr::{SendFlags, Sge};
use uverbs_hca::Fabric;
use uverbs_hca::explore::{Cpu, Explorer, Footprint, Mode, Run, Thread};
use uverbs_tests::post::{Op, Req};
use uverbs_tests::sges::sge;

/// The number of seeds.
const SEEDS: u64 = 1000;

/// The modes with more than one order.
const WEAK: &[Mode] = &[Mode::Pcie, Mode::Relaxed, Mode::Model];
/// The modes in which lines of regions with `IBV_ACCESS_RELAXED_ORDERING`, which those of the nodes here have, pass each other.
const LINES: &[Mode] = &[Mode::Relaxed, Mode::Model];

/// A form of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Bad,
    Repaired,
}
use Form::{Bad, Repaired};

/// Runs both forms of a program. `modes`: those in which it is bad.
#[track_caller]
fn check(modes: &[Mode], program: impl Fn(&Run, &Bed<'_>, Form)) {
    let fabric = Fabric::deterministic(0);
    let [a, b] = nodes(&fabric);
    let bed = Bed::new(&a, &b);
    let program = |run: &Run, form| {
        bed.reset();
        program(run, &bed, form);
    };
    for mode in Mode::ALL {
        let explorer = Explorer::new().mode(mode);
        let found = explorer.search_on(&fabric, |run| program(run, Bad));
        if modes.contains(&mode) {
            assert!(found.failure.is_some(), "{mode}: exploration finds nothing in {} runs", found.runs);
            let by_seed = explorer.seeds_on(&fabric, 0..SEEDS, |run| program(run, Bad));
            assert!(by_seed.failure.is_some(), "{mode}: {SEEDS} seeds find nothing");
            println!(
                "{mode}: found by run {} of the exploration, by run {} of the seeds",
                found.runs, by_seed.runs
            );
        } else {
            assert!(found.failure.is_none() && found.is_complete, "{mode} permits it: {found:?}");
        }
        let all = explorer.search_on(&fabric, |run| program(run, Repaired));
        assert!(all.failure.is_none(), "{mode}: the repaired form fails: {}", all.failure.unwrap());
        assert!(all.is_complete, "{mode}: {} runs do not suffice", all.runs);
        // No seed selects another order. Of the weakest mode they are run nevertheless.
        let seeds = if mode == Mode::Model { SEEDS } else { 10 };
        let by_seed = explorer.seeds_on(&fabric, 0..seeds, |run| program(run, Repaired));
        assert!(by_seed.failure.is_none(), "{mode}: the repaired form fails: {}", by_seed.failure.unwrap());
        println!("{mode}: the repaired form passes {} orders ({} redundant)", all.runs, all.redundant);
    }
}

/// Nodes whose regions have `IBV_ACCESS_RELAXED_ORDERING`.
fn nodes(fabric: &Fabric) -> [Node; 2] {
    ["hca0", "hca1"].map(|name| Node::new(fabric, name, BED_LINES, AccessFlags::RELAXED_ORDERING))
}

/// Waits until the peer has told that the data are there: in the bad form by a word, in the repaired one by the completion of a receive.
fn told(cpu: &Cpu<'_>, form: Form, word: &AtomicU64, to: &mut End<'_>) {
    match form {
        Bad => drop(cpu.wait_while(word, 0)),
        Repaired => drop(to.wait(cpu)),
    }
}

/// The first lines of a node, as an entry.
fn lines(node: &Node, lines: usize) -> [Sge; 1] {
    [sge(&node.mr, 0..lines * LINE)]
}

/// One WRITE of two lines. The peer polls on its last word, and reads the first one.
#[test]
fn poll_on_the_last_byte() {
    check(LINES, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, to) = &mut *bed.pair(0);
        to.ready(1, 6);
        run.together([
            Thread::new("A", |cpu| {
                let (data, to) = (lines(a, 2), b.remote(0));
                let op = if form == Bad { Op::Write(to) } else { Op::WriteImm(to, 1) };
                from.post(cpu, &[Req::new(1, op).signaled().sges(&data)]);
            }),
            Thread::new("B", |cpu| {
                told(cpu, form, b.word(1), to);
                assert_eq!(cpu.load(b.word(0)), 1, "the first line");
            }),
        ]);
    });
}

/// A WRITE of data and a WRITE of a flag. The peer sees the flag, and reads the data.
#[test]
fn flag_after_data() {
    check(LINES, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, to) = &mut *bed.pair(0);
        to.ready(1, 6);
        run.together([
            Thread::new("A", |cpu| {
                let (data, flag) = (words(a, 0, 1), words(a, 1, 1));
                let data = Req::new(1, Op::Write(b.remote(0))).sges(&data);
                let op = if form == Bad { Op::Write(b.remote(1)) } else { Op::WriteImm(b.remote(1), 1) };
                from.post(cpu, &[data, Req::new(2, op).signaled().sges(&flag)]);
            }),
            Thread::new("B", |cpu| {
                told(cpu, form, b.word(1), to);
                assert_eq!(cpu.load(b.word(0)), 1, "the data");
            }),
        ]);
    });
}

/// A large WRITE, and a WRITE of 8 bytes that tells that it is there.
#[test]
fn large_then_small() {
    check(LINES, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, to) = &mut *bed.pair(0);
        to.ready(1, 6);
        run.together([
            Thread::new("A", |cpu| {
                let (data, flag) = (lines(a, 3), words(a, 3, 1));
                let data = Req::new(1, Op::Write(b.remote(0))).sges(&data);
                let op = if form == Bad { Op::Write(b.remote(3)) } else { Op::WriteImm(b.remote(3), 1) };
                from.post(cpu, &[data, Req::new(2, op).signaled().sges(&flag)]);
            }),
            Thread::new("B", |cpu| {
                told(cpu, form, b.word(3), to);
                for line in 0..3 {
                    assert_eq!(cpu.load(b.word(line)), 1, "line {line}");
                }
            }),
        ]);
    });
}

/// Data, and a flag in the next line, or in the same line.
#[test]
fn flag_in_another_line() {
    check(LINES, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, _to) = &mut *bed.pair(0);
        let same = a.mr.atomic_u64(8).expect("a word");
        same.store(1, Ordering::Relaxed);
        run.together([
            Thread::new("A", |cpu| {
                let data = if form == Bad { lines(a, 2) } else { words(a, 0, 2) };
                from.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
            }),
            Thread::new("B", |cpu| {
                let flag = if form == Bad { b.word(1) } else { b.mr.atomic_u64(8).expect("a word") };
                cpu.wait_while(flag, 0);
                assert_eq!(cpu.load(b.word(0)), 1, "the data");
            }),
        ]);
    });
}

/// The data on a queue pair, and the signal on another one.
#[test]
fn put_with_signal_on_two_queue_pairs() {
    check(WEAK, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (puts, to) = &mut *bed.pair(0);
        let (signals, _to) = &mut *bed.pair(1);
        to.ready(1, 6);
        run.together([
            Thread::new("A", |cpu| {
                let (data, signal) = (words(a, 0, 1), words(a, 1, 1));
                puts.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
                match form {
                    Bad => signals.post(cpu, &[Req::new(2, Op::Write(b.remote(1))).signaled().sges(&signal)]),
                    Repaired => {
                        let signal = Req::new(2, Op::WriteImm(b.remote(1), 1)).signaled().sges(&signal);
                        puts.post(cpu, &[signal]);
                    }
                }
            }),
            Thread::new("B", |cpu| {
                told(cpu, form, b.word(1), to);
                assert_eq!(cpu.load(b.word(0)), 1, "the data");
            }),
        ]);
    });
}

/// A READ, and a WRITE of what it read.
#[test]
fn write_of_what_a_read_brings() {
    check(WEAK, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, _to) = &mut *bed.pair(0);
        b.word(0).store(5, Ordering::Relaxed);
        run.together([Thread::new("A", |cpu| {
            let data = words(a, 0, 1);
            let write = Req::new(2, Op::Write(b.remote(1))).signaled().sges(&data);
            let write = if form == Bad { write } else { write.flags(SendFlags::FENCE | SendFlags::SIGNALED) };
            from.post(cpu, &[Req::new(1, Op::Read(b.remote(0))).sges(&data), write]);
        })]);
        assert_eq!(b.word(1).load(Ordering::Relaxed), 5, "the copy");
    });
}

/// The buffer of a WRITE is filled again.
#[test]
fn buffer_reused_before_its_completion() {
    check(WEAK, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, _to) = &mut *bed.pair(0);
        run.together([Thread::new("A", |cpu| {
            let data = words(a, 0, 1);
            from.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
            if form == Repaired {
                from.wait(cpu);
            }
            cpu.store(a.word(0), 2);
        })]);
        assert_eq!(b.word(0).load(Ordering::Relaxed), 1, "the data");
    });
}

/// Two WRITEs, one of them signaled. After the completion both buffers are filled again.
#[test]
fn buffer_reused_after_the_completion_of_an_earlier_request() {
    check(WEAK, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, _to) = &mut *bed.pair(0);
        run.together([Thread::new("A", |cpu| {
            let data = [words(a, 0, 1), words(a, 1, 1)];
            let first = Req::new(1, Op::Write(b.remote(0))).sges(&data[0]);
            let second = Req::new(2, Op::Write(b.remote(1))).sges(&data[1]);
            match form {
                Bad => from.post(cpu, &[first.signaled(), second]),
                Repaired => from.post(cpu, &[first, second.signaled()]),
            }
            from.wait(cpu);
            cpu.store(a.word(0), 2);
            cpu.store(a.word(1), 2);
        })]);
        let seen = [0, 1].map(|line| b.word(line).load(Ordering::Relaxed));
        assert_eq!(seen, [1, 1], "the data");
    });
}

/// The completion of a WRITE is told to the peer by another way, and the peer reads its memory.
#[test]
fn completion_of_a_write_taken_for_visibility() {
    check(WEAK, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, _to) = &mut *bed.pair(0);
        let way = AtomicU64::new(0);
        run.together([
            Thread::new("A", |cpu| {
                let data = words(a, 0, 1);
                from.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
                from.wait(cpu);
                if form == Repaired {
                    let to = words(a, 4, 1);
                    from.post(cpu, &[Req::new(2, Op::Read(b.remote(3))).signaled().sges(&to)]);
                    from.wait(cpu);
                }
                cpu.store(&way, 1);
            }),
            Thread::new("B", |cpu| {
                cpu.wait_while(&way, 0);
                assert_eq!(cpu.load(b.word(0)), 1, "the data");
            }),
        ]);
    });
}

/// A READ on a queue pair, after the completion of a WRITE of the same memory on another one.
#[test]
fn read_after_write_on_two_queue_pairs() {
    check(WEAK, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (writes, _x) = &mut *bed.pair(0);
        let (reads, _y) = &mut *bed.pair(1);
        run.together([Thread::new("A", |cpu| {
            let (data, to) = (words(a, 0, 1), words(a, 4, 1));
            writes.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
            writes.wait(cpu);
            let end = if form == Bad { reads } else { writes };
            end.post(cpu, &[Req::new(2, Op::Read(b.remote(0))).signaled().sges(&to)]);
            end.wait(cpu);
            assert_eq!(cpu.load(a.word(4)), 1, "the data");
        })]);
    });
}

/// The peer is told that the SEND is complete, and reads the buffer of its receive.
#[test]
fn receive_buffer_read_before_its_completion() {
    check(WEAK, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, to) = &mut *bed.pair(0);
        let way = AtomicU64::new(0);
        to.ready(1, 0);
        run.together([
            Thread::new("A", |cpu| {
                let data = words(a, 0, 1);
                from.post(cpu, &[Req::new(1, Op::Send).signaled().sges(&data)]);
                from.wait(cpu);
                cpu.store(&way, 1);
            }),
            Thread::new("B", |cpu| {
                told(cpu, form, &way, to);
                assert_eq!(cpu.load(b.word(0)), 1, "the message");
            }),
        ]);
    });
}

/// A counter that a peer increments by an atomic, and the CPU by one of its own.
#[test]
fn atomics_of_a_device_and_of_a_cpu() {
    check(WEAK, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, _x) = &mut *bed.pair(0);
        let (own, _y) = &mut *bed.own();
        run.together([
            Thread::new("A", |cpu| {
                let old = words(a, 4, 1);
                from.post(cpu, &[Req::new(1, Op::FetchAdd(b.remote(0), 1)).signaled().sges(&old)]);
            }),
            Thread::new("B", |cpu| match form {
                Bad => {
                    let at = Some((b.word(0).as_ptr().addr() as u64, 8));
                    let footprint = Footprint { reads: at, writes: at, ..Footprint::default() };
                    cpu.step(footprint, || (b.word(0).fetch_add(1, Ordering::SeqCst), "adds 1".into()));
                }
                Repaired => {
                    let old = words(b, 4, 1);
                    own.post(cpu, &[Req::new(1, Op::FetchAdd(b.remote(0), 1)).signaled().sges(&old)]);
                }
            }),
        ]);
        assert_eq!(b.word(0).load(Ordering::Relaxed), 2, "the counter");
    });
}

/// One READ of data and of the flag behind them, which tells that they are complete.
#[test]
fn read_of_data_and_flag() {
    check(WEAK, |run, bed, form| {
        let (a, b) = (bed.a, bed.b);
        let (from, _to) = &mut *bed.pair(0);
        for line in 0..2 {
            a.word(line).store(0, Ordering::Relaxed);
        }
        run.together([
            Thread::new("A", |cpu| {
                let [data, flag] = [words(a, 0, 1), words(a, 1, 1)];
                if form == Bad {
                    let both = lines(a, 2);
                    from.post(cpu, &[Req::new(1, Op::Read(b.remote(0))).signaled().sges(&both)]);
                    from.wait(cpu);
                } else {
                    from.post(cpu, &[Req::new(1, Op::Read(b.remote(1))).signaled().sges(&flag)]);
                    from.wait(cpu);
                    from.post(cpu, &[Req::new(2, Op::Read(b.remote(0))).signaled().sges(&data)]);
                    from.wait(cpu);
                }
                if cpu.load(a.word(1)) == 1 {
                    assert_eq!(cpu.load(a.word(0)), 1, "the data");
                }
            }),
            Thread::new("B", |cpu| {
                cpu.store(b.word(0), 1);
                cpu.store(b.word(1), 1);
            }),
        ]);
    });
}

/// The schedule has the names of the devices, and the lines of a request.
#[test]
fn the_schedule_has_words_of_the_program() {
    let report = Explorer::new().seeds(0..SEEDS, |run| {
        let [a, b] = nodes(run.fabric());
        let (mut from, _to) = End::pair(&a, &b);
        a.word(0).store(1, Ordering::Relaxed);
        a.word(1).store(1, Ordering::Relaxed);
        run.together([
            Thread::new("A", |cpu| {
                from.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&lines(&a, 2))]);
            }),
            Thread::new("B", |cpu| {
                cpu.wait_while(b.word(1), 0);
                assert_eq!(cpu.load(b.word(0)), 1, "the first line");
            }),
        ]);
    });
    let text = report.failure.expect("the bug").to_string();
    println!("{text}");
    for words in [
        "A posts to QP",
        "hca0, QP ",
        "hca1, QP ",
        "line 2 of 2 (64 bytes at ",
        " RDMA WRITE ",
        "B loads 0x1 from",
    ] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
}
