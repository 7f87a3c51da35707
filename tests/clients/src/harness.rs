// SPDX-License-Identifier: MIT OR Apache-2.0
//! Test programs of Rust's test harness: the tests of published crates.
//!
//! As rdma-core's suite, such a program is a regression if one of its tests passes with rdma-core's library and not with ours.

use crate::process::{End, Group};
use crate::pyverbs::{Results, counts, missed};
use crate::report::Cell;
use anyhow::Result;
use core::time::Duration;
use std::collections::BTreeSet;
use std::process::Command;

/// All tests of a program, on emulated CPUs.
const LIMIT: Duration = Duration::from_secs(300);
/// The exit status if a test failed.
const FAILED: i32 = 101;
/// In the results, a program that did not reach its end.
const WHOLE: &str = "(all)";

/// The tests that can't run without a kernel's device, each with the reason.
pub const NATIVE_SKIPS: [(&str, &str); 1] = [(
    "test_query_gid_table_fallback",
    "compares an entry of the GID table with a file in /sys/class/infiniband",
)];

/// Runs all tests of a program.
///
/// # Errors
/// The program can't be started.
pub fn run(mut cmd: Command) -> Result<Results> {
    let mut group = Group::new(LIMIT)?;
    let process = group.start(&mut cmd)?;
    let end = group.wait(process);
    Ok(parse(&group.output(process), &end))
}

/// The results, each with the output of its test if it failed. A program that does not end as the harness does, or prints fewer
/// results than it has tests, has the result [`WHOLE`], too.
fn parse(output: &str, end: &End) -> Results {
    let mut results = Results::new();
    for line in output.lines() {
        let Some((test, result)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        else {
            continue;
        };
        let word = match result.split([',', ' ']).next().unwrap_or_default() {
            "ok" => "ok",
            "ignored" => "skipped",
            _ => "failed",
        };
        let reason = if word == "failed" { message(output, test) } else { String::new() };
        results.insert(test.to_owned(), (word.to_owned(), reason));
    }
    let number = |line: &str| line.strip_prefix("running ")?.split(' ').next()?.parse().ok();
    let is_whole = output.lines().find_map(number) == Some(results.len());
    if !is_whole || !matches!(end, End::Exit(0 | FAILED)) {
        let lines: Vec<_> = output.lines().rev().take(8).collect();
        let reason = lines.into_iter().rev().collect::<Vec<_>>().join("; ");
        results.insert(WHOLE.into(), ("error".into(), format!("{end}: {reason}")));
    }
    results
}

/// What a failed test has printed, in one line.
fn message(output: &str, test: &str) -> String {
    let begin = format!("---- {test} stdout ----\n");
    let Some((_, rest)) = output.split_once(&begin) else { return String::new() };
    let text = rest.split("\n----").next().unwrap_or_default();
    let text = text.split("\nfailures:").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("note: "));
    lines.collect::<Vec<_>>().join("; ")
}

/// The failures, with their reasons.
pub fn failed(results: &Results) -> impl Iterator<Item = String> {
    let failed = results.iter().filter(|(_, (result, _))| result != "ok" && result != "skipped");
    failed.map(|(test, (result, reason))| format!("{test}: {result} {reason}"))
}

/// The cell of a run: it fails if one of the tests `wanted` did not pass, or the program did not reach its end.
pub fn judge(results: &Results, wanted: &BTreeSet<&str>) -> Cell {
    if missed(results, wanted).is_empty() && !results.contains_key(WHOLE) {
        return Cell::Counts(counts(results));
    }
    let absent = wanted.iter().filter(|test| !results.contains_key(**test));
    let absent = absent.map(|test| format!("{test}: did not run"));
    let reasons: Vec<_> = failed(results).chain(absent).collect();
    Cell::Fail(format!("{}\n{}", counts(results), reasons.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pyverbs::passed;

    const OUTPUT: &str = "\nrunning 4 tests\ntest a::x ... ok\ntest a::y ... ignored, why\n\
        test a::z - should panic ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\n\
        thread 'b' panicked at b.rs:1:1:\nno GID\nnote: run with\n\n\nfailures:\n    b\n\n\
        test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";

    #[test]
    fn results_are_those_of_the_harness() {
        let results = parse(OUTPUT, &End::Exit(FAILED));
        assert_eq!(counts(&results), "2 ok, 1 skipped, 1 failed");
        assert_eq!(results["b"].1, "thread 'b' panicked at b.rs:1:1:; no GID");
        assert_eq!(passed(&results), BTreeSet::from(["a::x", "a::z - should panic"]));
    }

    #[test]
    fn a_test_that_passes_with_c_must_pass() {
        let c = parse(OUTPUT, &End::Exit(FAILED));
        assert_eq!(judge(&c, &passed(&c)), Cell::Counts("2 ok, 1 skipped, 1 failed".into()));
        let ours = parse(&OUTPUT.replace("x ... ok", "x ... FAILED"), &End::Exit(FAILED));
        let Cell::Fail(reason) = judge(&ours, &passed(&c)) else { panic!("it is a regression") };
        assert!(reason.contains("\na::x: failed "), "{reason}");
    }

    #[test]
    fn a_program_that_stops_has_failed() {
        let cut = &OUTPUT[..OUTPUT.find("test b").unwrap()];
        for (output, end) in [(cut, End::Exit(0)), (OUTPUT, End::Signal(11)), ("", End::Exit(0))] {
            let results = parse(output, &end);
            assert!(matches!(judge(&results, &BTreeSet::new()), Cell::Fail(_)), "{end}");
        }
        let none = parse("\nrunning 0 tests\n\ntest result: ok. 0 passed\n", &End::Exit(0));
        assert_eq!(judge(&none, &BTreeSet::new()), Cell::Counts("0 ok, 0 skipped, 0 failed".into()));
    }
}
