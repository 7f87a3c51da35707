// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of "Order of memory accesses" in docs/src/reference/semantics.md: a program for each, which shows whether a mode keeps the order.

use crate::bench::Bench;
use uverbs::attr::AccessFlags;
use uverbs_hca::explore::Mode;
use uverbs_litmus::program::{From, MAILBOX, Op, Outcome, Program, Thread, Verb, WORDS};
use uverbs_tests::semantics::table::TEXT;

const X: u8 = 0;
const Y: u8 = 1;

/// A case: the steps of A and of B, and the outcomes that show that the order was not kept.
struct Case {
    row: (&'static str, &'static str),
    a: Vec<Op>,
    b: Vec<Op>,
    exchanged: fn(&End<'_>) -> bool,
}

/// The end of a run.
struct End<'o> {
    registers: &'o [u8],
    memory: &'o [u8],
}

impl End<'_> {
    fn a(&self, word: u8) -> u8 {
        self.memory[usize::from(word)]
    }

    fn b(&self, word: u8) -> u8 {
        self.memory[WORDS + usize::from(word)]
    }

    fn last(&self) -> u8 {
        *self.registers.last().expect("a register")
    }
}

fn on(link: u8, verb: Verb) -> Op {
    Op::Post { link, verb, fence: false }
}

fn write(to: u8, value: u8) -> Op {
    on(0, Verb::Write { to, from: From::Value(value) })
}

fn write_from(to: u8, from: u8) -> Op {
    on(0, Verb::Write { to, from: From::Word(from) })
}

fn read(to: u8, from: u8) -> Op {
    on(0, Verb::Read { to, from })
}

fn add(to: u8, at: u8) -> Op {
    on(0, Verb::Add { to, at, value: 16 })
}

fn send(value: u8) -> Op {
    on(0, Verb::Send { from: From::Value(value) })
}

fn cases() -> Vec<Case> {
    let other = on(1, Verb::Write { to: Y, from: From::Value(1) });
    let (wait, receive) = (Op::WaitSent(0), Op::WaitReceived(0));
    let sees_y_then_x = || vec![Op::Await(Y), Op::Load(X)];
    let case = |row, a: &[Op], b: &[Op], exchanged| Case { row, a: a.into(), b: b.into(), exchanged };
    vec![
        case(
            ("WRITE", "WRITE to another word, seen by the CPU"),
            &[write(X, 1), write(Y, 1)],
            &sees_y_then_x(),
            |end| end.last() == 0,
        ),
        case(("WRITE", "WRITE to the same word"), &[write(X, 1), write(X, 2)], &[], |end| end.b(X) == 1),
        case(
            ("WRITE", "SEND, and its receive completion"),
            &[write(X, 1), send(1)],
            &[receive, Op::Load(X)],
            |end| end.last() == 0,
        ),
        case(("WRITE", "READ of the same word"), &[write(X, 1), read(X, X)], &[], |end| end.a(X) == 0),
        case(("WRITE", "ATOMIC to the same word"), &[write(X, 1), add(X, X)], &[], |end| end.a(X) == 0),
        case(("WRITE", "WRITE of another connection"), &[write(X, 1), other], &sees_y_then_x(), |end| {
            end.last() == 0
        }),
        case(
            ("SEND", "WRITE, seen by the CPU before the receive completion"),
            &[send(1), write(Y, 1)],
            &[Op::Await(Y), Op::Load(MAILBOX)],
            |end| end.last() == 0,
        ),
        case(("SEND", "SEND to the same buffer"), &[send(1), send(2)], &[receive, receive], |end| {
            end.b(MAILBOX) == 1
        }),
        case(("READ", "WRITE to the word that is read"), &[read(X, X), write(X, 1)], &[], |end| {
            end.a(X) == 1
        }),
        case(
            ("READ", "WRITE from the buffer of the READ"),
            &[Op::Store(X, 3), read(X, X), write_from(Y, X)],
            &[],
            |end| end.b(Y) == 3,
        ),
        case(
            ("READ", "SEND, and a store of the peer after the receive"),
            &[read(X, X), send(1)],
            &[receive, Op::Store(X, 1)],
            |end| end.a(X) == 1,
        ),
        case(
            ("READ", "READ of another word"),
            &[read(X, X), read(Y, Y)],
            &[Op::Store(Y, 1), Op::Store(X, 1)],
            |end| end.a(X) == 1 && end.a(Y) == 0,
        ),
        case(("READ", "ATOMIC to the word that is read"), &[read(X, X), add(Y, X)], &[], |end| {
            end.a(X) == 16
        }),
        case(
            ("ATOMIC", "WRITE to another word, seen by the CPU"),
            &[add(X, X), write(Y, 1)],
            &sees_y_then_x(),
            |end| end.last() == 0,
        ),
        case(("ATOMIC", "WRITE to the same word"), &[add(X, X), write(X, 1)], &[], |end| end.b(X) == 16),
        case(("ATOMIC", "READ of the same word"), &[add(X, X), read(Y, X)], &[], |end| end.a(Y) == 0),
        case(("ATOMIC", "ATOMIC to the same word"), &[add(X, X), add(Y, X)], &[], |end| end.a(Y) == 0),
        case(
            ("ATOMIC", "SEND, and its receive completion"),
            &[add(X, X), send(1)],
            &[receive, Op::Load(X)],
            |end| end.last() == 0,
        ),
        case(
            ("ATOMIC", "store of the CPU between its read and its write"),
            &[add(X, X)],
            &[Op::Store(X, 3)],
            |end| end.b(X) == 16,
        ),
        case(
            ("send completion of a WRITE", "load of the peer's CPU"),
            &[write(X, 1), wait, other],
            &sees_y_then_x(),
            |end| end.last() == 0,
        ),
        case(
            ("send completion of a WRITE", "store to its buffer"),
            &[Op::Store(X, 1), write_from(X, X), wait, Op::Store(X, 2)],
            &[],
            |end| end.b(X) == 2,
        ),
        case(
            ("post of a WRITE", "store to its buffer"),
            &[Op::Store(X, 1), write_from(X, X), Op::Store(X, 2)],
            &[],
            |end| end.b(X) == 2,
        ),
        case(
            ("send completion of a READ", "load of its data"),
            &[Op::Store(X, 3), read(X, X), wait, Op::Load(X)],
            &[],
            |end| end.last() == 3,
        ),
        case(
            ("receive completion", "load of the data of the SEND"),
            &[send(1)],
            &[receive, Op::Load(MAILBOX)],
            |end| end.last() == 0,
        ),
    ]
}

/// The rows of the chapter.
fn rows() -> Vec<Vec<&'static str>> {
    let section =
        TEXT.split("\n## ").find(|part| part.starts_with("Order of memory accesses")).expect("the section");
    let lines = section.lines().filter(|line| line.starts_with('|')).skip(2);
    lines.map(|line| line.trim().trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Whether a mode keeps the order of a case.
fn keeps(bench: &Bench, case: &Case, mode: Mode, fenced: bool) -> &'static str {
    let mut a = case.a.clone();
    if fenced
        && let Some(Op::Post { fence, .. }) = a.iter_mut().rev().find(|op| matches!(op, Op::Post { .. }))
    {
        *fence = true;
    }
    let threads = vec![Thread { node: 0, ops: a }, Thread { node: 1, ops: case.b.clone() }];
    let program = Program { threads };
    let (outcomes, report) = bench.outcomes(&program, mode);
    assert!(report.failure.is_none() && report.is_complete, "{program}: {report:?}");
    let exchanged = |outcome: &Outcome| {
        let (registers, memory) = outcome.split_at(program.registers());
        (case.exchanged)(&End { registers, memory })
    };
    if outcomes.iter().any(exchanged) { "free" } else { "kept" }
}

#[test]
fn each_row_of_the_chapter_is_what_a_mode_does() {
    let cases = cases();
    let rows = rows();
    let names: Vec<(&str, &str)> = rows.iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(names, cases.iter().map(|case| case.row).collect::<Vec<_>>(), "the rows, and the programs");
    let bench = Bench::new(AccessFlags::RELAXED_ORDERING);
    let mut wrong = Vec::new();
    for (case, row) in cases.iter().zip(&rows) {
        let modes = Mode::ALL.map(|mode| keeps(&bench, case, mode, false));
        // A fence matters only behind a READ or an atomic.
        let fenced = if ["READ", "ATOMIC"].contains(&case.row.0) && modes[3] == "free" && row[6] != "-" {
            keeps(&bench, case, Mode::Model, true)
        } else {
            "-"
        };
        let found = [modes[0], modes[1], modes[2], modes[3], fenced];
        if row[2..7] != found {
            wrong.push(format!("{:?}: the chapter has {:?}, the device {found:?}", case.row, &row[2..7]));
        }
        assert!(row.len() == 8 && !row[7].is_empty(), "{:?}: no source", case.row);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
