// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each mode permits and forbids, by the smallest programs that show it.

use crate::nodes::{End, LINE, Node, words};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;
use uverbs::attr::AccessFlags;
use uverbs::wr::SendFlags;
use uverbs::{ConnectAttr, WcStatus};
use uverbs_hca::Fabric;
use uverbs_hca::explore::{Explorer, Mode, Run, Thread};

use uverbs_tests::post::{Op, Req};
use uverbs_tests::sges::sge;

/// The modes with more than one order.
const WEAK: [Mode; 3] = [Mode::Pcie, Mode::Relaxed, Mode::Model];

/// The values that a program returned, of all orders.
fn outcomes(mode: Mode, program: impl Fn(&Run) -> u64) -> Vec<u64> {
    let seen = Mutex::new(BTreeSet::new());
    let report = Explorer::new().mode(mode).explore(|run| {
        let outcome = program(run);
        seen.lock().unwrap().insert(outcome);
    });
    assert!(report.is_complete, "{report:?}");
    println!("{mode}: {} runs, {} redundant", report.runs, report.redundant);
    seen.into_inner().unwrap().into_iter().collect()
}

fn nodes(run: &Run, access: AccessFlags) -> [Node; 2] {
    let nodes = ["hca0", "hca1"].map(|name| Node::new(run.fabric(), name, 4, access));
    for line in 0..4 {
        nodes[0].word(line).store(1, Ordering::Relaxed);
    }
    nodes
}

/// A writes two lines by one WRITE. B waits for the last word and reads the first.
fn last_byte(run: &Run, access: AccessFlags) -> u64 {
    let [a, b] = nodes(run, access);
    let (mut from, _to) = End::pair(&a, &b);
    let mut seen = 7;
    run.together([
        Thread::new("A", |cpu| {
            let data = [sge(&a.mr, 0..2 * LINE)];
            from.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
        }),
        Thread::new("B", |cpu| {
            cpu.wait_while(b.word(1), 0);
            seen = cpu.load(b.word(0));
        }),
    ]);
    seen
}

#[test]
fn the_last_line_may_come_first_only_if_the_mode_permits_it() {
    let none = AccessFlags::empty();
    let relaxed = AccessFlags::RELAXED_ORDERING;
    for (mode, access, expected) in [
        (Mode::Ordered, relaxed, &[1][..]),
        (Mode::Pcie, relaxed, &[1]),
        (Mode::Relaxed, none, &[1]),
        (Mode::Relaxed, relaxed, &[0, 1]),
        (Mode::Model, none, &[0, 1]),
    ] {
        assert_eq!(outcomes(mode, |run| last_byte(run, access)), expected, "{mode}, {access:?}");
    }
}

/// A writes a word, waits for its completion, and tells B by another way. B reads the word.
fn told(run: &Run, reads_after: bool) -> u64 {
    let [a, b] = nodes(run, AccessFlags::empty());
    let (mut from, _to) = End::pair(&a, &b);
    let (mut seen, way) = (7, AtomicU64::new(0));
    run.together([
        Thread::new("A", |cpu| {
            let data = words(&a, 0, 1);
            from.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
            from.wait(cpu);
            if reads_after {
                let data = words(&a, 2, 1);
                from.post(cpu, &[Req::new(2, Op::Read(b.remote(3))).signaled().sges(&data)]);
                from.wait(cpu);
            }
            cpu.store(&way, 1);
        }),
        Thread::new("B", |cpu| {
            cpu.wait_while(&way, 0);
            seen = cpu.load(b.word(0));
        }),
    ]);
    seen
}

#[test]
fn a_completion_of_a_write_is_no_visibility_at_the_peer() {
    assert_eq!(outcomes(Mode::Ordered, |run| told(run, false)), [1]);
    for mode in WEAK {
        assert_eq!(outcomes(mode, |run| told(run, false)), [0, 1], "{mode}");
        // A READ of the same connection comes after the write.
        assert_eq!(outcomes(mode, |run| told(run, true)), [1], "{mode}");
    }
}

#[test]
fn the_completion_of_a_receive_comes_after_all_earlier_writes() {
    for mode in WEAK {
        let seen = outcomes(mode, |run| {
            let [a, b] = nodes(run, AccessFlags::RELAXED_ORDERING);
            let (mut from, mut to) = End::pair(&a, &b);
            let mut seen = 7;
            run.together([
                Thread::new("A", |cpu| {
                    let (data, message) = (words(&a, 0, 1), words(&a, 1, 1));
                    let write = Req::new(1, Op::Write(b.remote(0))).sges(&data);
                    from.post(cpu, &[write, Req::new(2, Op::Send).signaled().sges(&message)]);
                }),
                Thread::new("B", |cpu| {
                    to.recv(cpu, 1, 2, 1);
                    to.wait(cpu);
                    seen = cpu.load(b.word(0)) + 10 * cpu.load(b.word(2));
                }),
            ]);
            seen
        });
        assert_eq!(seen, [11], "{mode}");
    }
}

#[test]
fn a_buffer_is_free_only_after_the_completion() {
    for mode in WEAK {
        for waits in [false, true] {
            let seen = outcomes(mode, |run| {
                let [a, b] = nodes(run, AccessFlags::empty());
                let (mut from, _to) = End::pair(&a, &b);
                run.together([Thread::new("A", |cpu| {
                    let data = words(&a, 0, 1);
                    from.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
                    if waits {
                        from.wait(cpu);
                    }
                    cpu.store(a.word(0), 2);
                })]);
                b.word(0).load(Ordering::Relaxed)
            });
            assert_eq!(seen, if waits { &[1][..] } else { &[1, 2] }, "{mode}");
        }
    }
}

#[test]
fn an_atomic_is_atomic_among_devices_only() {
    let with_cpu = |run: &Run| {
        let [a, b] = nodes(run, AccessFlags::empty());
        let (mut from, _to) = End::pair(&a, &b);
        run.together([
            Thread::new("A", |cpu| {
                let data = words(&a, 0, 1);
                from.post(cpu, &[Req::new(1, Op::FetchAdd(b.remote(0), 1)).signaled().sges(&data)]);
            }),
            Thread::new("B", |cpu| cpu.store(b.word(0), 10)),
        ]);
        b.word(0).load(Ordering::Relaxed)
    };
    assert_eq!(outcomes(Mode::Ordered, with_cpu), [10, 11]);
    let two_devices = |run: &Run| {
        let [a, b] = nodes(run, AccessFlags::empty());
        let c = Node::new(run.fabric(), "hca2", 4, AccessFlags::empty());
        let ((mut one, _x), (mut other, _y)) = (End::pair(&a, &b), End::pair(&c, &b));
        run.together([
            Thread::new("A", |cpu| {
                let data = words(&a, 0, 1);
                one.post(cpu, &[Req::new(1, Op::FetchAdd(b.remote(0), 1)).signaled().sges(&data)]);
            }),
            Thread::new("C", |cpu| {
                let data = words(&c, 0, 1);
                other.post(cpu, &[Req::new(1, Op::FetchAdd(b.remote(0), 1)).signaled().sges(&data)]);
            }),
        ]);
        b.word(0).load(Ordering::Relaxed)
    };
    for mode in WEAK {
        assert_eq!(outcomes(mode, with_cpu), [1, 10, 11], "{mode}");
        assert_eq!(outcomes(mode, two_devices), [2], "{mode}");
    }
}

#[test]
fn a_write_after_a_read_needs_a_fence_for_the_data_of_the_read() {
    for mode in WEAK {
        for fenced in [false, true] {
            let seen = outcomes(mode, |run| {
                let [a, b] = nodes(run, AccessFlags::empty());
                let (mut from, _to) = End::pair(&a, &b);
                b.word(0).store(5, Ordering::Relaxed);
                run.together([Thread::new("A", |cpu| {
                    let data = words(&a, 0, 1);
                    let write = Req::new(2, Op::Write(b.remote(1))).signaled().sges(&data);
                    let write =
                        if fenced { write.flags(SendFlags::FENCE | SendFlags::SIGNALED) } else { write };
                    from.post(cpu, &[Req::new(1, Op::Read(b.remote(0))).sges(&data), write]);
                })]);
                b.word(1).load(Ordering::Relaxed)
            });
            assert_eq!(seen, if fenced { &[5][..] } else { &[1, 5] }, "{mode}");
        }
    }
}

#[test]
fn an_access_that_no_completion_orders_is_reported_with_both_sides() {
    for (waits, expected) in [(false, true), (true, false)] {
        let found = Mutex::new(false);
        let report = Explorer::new().explore(|run| {
            let [a, b] = nodes(run, AccessFlags::empty());
            let (mut from, _to) = End::pair(&a, &b);
            run.fabric().check_races();
            run.together([Thread::new("A", |cpu| {
                let data = words(&a, 0, 1);
                from.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
                if waits {
                    from.wait(cpu);
                }
                a.mr.write_at(0, &[2; 8]).unwrap();
            })]);
            for race in run.fabric().take_races() {
                // The other tests of the program run at the same time, on fabrics of their own.
                assert!(race.program_writes && !race.device_writes, "{race}");
                assert!(race.to_string().contains("RDMA WRITE"), "{race}");
                *found.lock().unwrap() = true;
            }
        });
        assert!(report.is_complete);
        assert_eq!(found.into_inner().unwrap(), expected, "waits: {waits}");
    }
}

/// `ib_write_lat` and others with large messages have so many steps that they take longer than the timer of the connection, if the machine is
/// busy: no answer is late then, and no retry is counted.
#[test]
fn the_pauses_of_a_mode_are_no_timeout_of_a_connection() {
    for mode in WEAK {
        let fabric = Fabric::new(0);
        fabric.order(format!("{mode}:1").parse().expect("an order"));
        let [a, b] = ["hca0", "hca1"].map(|name| Node::new(&fabric, name, 512, AccessFlags::empty()));
        // 16.4 us, and no retry.
        let (mut from, _to) = End::pair_with(&a, &b, ConnectAttr::new().timeout(2).retry_cnt(0));
        let data = [sge(&a.mr, 0..512 * LINE)];
        for request in [Op::Write(b.remote(0)), Op::Read(b.remote(0))] {
            from.post_now(&[Req::new(1, request).signaled().sges(&data)]);
            let begin = Instant::now();
            let wc = loop {
                if let Some(wc) = from.poll_one() {
                    break wc;
                }
                assert!(begin.elapsed().as_secs() < 60, "{mode}: no completion");
                std::thread::yield_now();
            };
            assert_eq!(wc.status, WcStatus::SUCCESS, "{mode}");
        }
    }
}
