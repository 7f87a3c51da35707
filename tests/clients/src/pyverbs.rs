// SPDX-License-Identifier: MIT OR Apache-2.0
//! rdma-core's test suite, version 44, and its known results.
//!
//! The tests are those of the package python3-pyverbs, which are in its folder of documentation, some of them compressed.
//! `data/run_suite.py` runs each of them in a child.

use crate::process::{End, Group};
use crate::report::Cell;
use crate::row::Place;
use anyhow::{Context, Result, ensure};
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The folder in which the package has the tests.
pub const INSTALLED: &str = "/usr/share/doc/rdma-core/tests";
/// Runs the tests.
const RUNNER: &str = include_str!("../data/run_suite.py");
/// The interpreter for which the package has its modules; another one may come first in the path.
const PYTHON: &str = "/usr/bin/python3";
/// A line is a test and its results: see the head of the file.
const TABLE: &str = include_str!("../data/pyverbs-44.txt");
/// Each line has a prefix of names of tests, and the reason why they do not pass with our library in the VM.
const KNOWN: &str = include_str!("../data/pyverbs-known.txt");
/// All tests together. Each has a limit of its own.
const LIMIT: Duration = Duration::from_secs(900);

/// Copies the tests of `installed`, uncompressed, and the runner to a folder.
///
/// # Errors
/// The tests are not there, or gzip(1) fails.
pub fn unpack(installed: &Path, folder: &Path) -> Result<()> {
    let tests = folder.join("tests");
    fs::create_dir_all(&tests).context("cannot make a folder for the tests")?;
    let files = fs::read_dir(installed).context("the package python3-pyverbs is not installed")?;
    for entry in files {
        let path = entry.context("cannot list the tests")?.path();
        if let Some(name) = path.file_name() {
            fs::copy(&path, tests.join(name)).context("cannot copy a test")?;
        }
    }
    let status = Command::new("gzip").args(["-d", "-r", "-f"]).arg(&tests).status().context("no gzip")?;
    // 2 is a warning: a file that is not compressed.
    ensure!(matches!(status.code(), Some(0 | 2)), "gzip: {status}");
    fs::write(folder.join("run_suite.py"), RUNNER).context("cannot write the runner")
}

/// The results by test.
pub type Results = BTreeMap<String, (String, String)>;

/// Runs all tests whose names begin with `prefix` on a device.
///
/// # Errors
/// The interpreter can't be started, or the suite does not run to its end.
pub fn run(
    folder: &Path,
    prefix: &str,
    device: &str,
    gid: &str,
    env: &[(String, String)],
) -> Result<Results> {
    let mut group = Group::new(LIMIT)?;
    let mut cmd = Command::new(PYTHON);
    cmd.arg(folder.join("run_suite.py")).arg(folder.join("tests")).arg(prefix);
    cmd.args(["--dev", device, "--gid", gid]).env("PYTHONDONTWRITEBYTECODE", "1");
    cmd.envs(env.iter().map(|(name, value)| (name, value)));
    let python = group.start(&mut cmd)?;
    let end = group.wait(python);
    ensure!(end == End::Exit(0), "the suite: {end}\n{}", group.last_lines(python));
    Ok(parse(&group.output(python)))
}

fn parse(output: &str) -> Results {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (result, _seconds, name) = (words.next()?, words.next()?, words.next()?);
        Some((name.to_owned(), (result.to_owned(), words.collect::<Vec<_>>().join(" "))))
    };
    output.lines().filter_map(line).collect()
}

/// The results of the table for a place, with rdma-core's library or, natively, ours.
fn expected(place: Place) -> BTreeMap<&'static str, &'static str> {
    let column = match place {
        Place::Rxe => 1,
        Place::Ib => 2,
        Place::Roce => 3,
        Place::Native => 4,
    };
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let words = lines.map(|line| line.split(' ').collect::<Vec<_>>());
    words.filter_map(|words| Some((*words.first()?, *words.get(column)?))).collect()
}

/// The known reason why a test does not pass with ours in the VM.
fn known(test: &str) -> Option<&'static str> {
    let lines = KNOWN.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once(' '));
    pairs.into_iter().find(|(prefix, _)| test.starts_with(prefix)).map(|(_, reason)| reason)
}

/// The cell of a run with our library: it fails if a test does not pass that passes with rdma-core's library at this place,
/// by `c` or by the table, and no reason is known.
pub fn judge(place: Place, ours: &Results, c: Option<&Results>) -> Cell {
    let table = expected(place);
    let wanted = |test: &str| match c {
        Some(c) => c.get(test).is_some_and(|(result, _)| result == "ok"),
        None => table.get(test) == Some(&"ok"),
    };
    let mut wrong = Vec::new();
    let mut gaps = 0;
    let tests = ours.keys().map(String::as_str).chain(table.keys().copied());
    let mut tests: Vec<&str> = tests.filter(|test| wanted(test)).collect();
    tests.sort_unstable();
    tests.dedup();
    for test in tests {
        let (result, reason) = ours.get(test).map_or(("missing", ""), |(r, why)| (r.as_str(), why.as_str()));
        if result == "ok" {
            continue;
        }
        match known(test).filter(|_| place != Place::Native) {
            Some(_) => gaps += 1,
            None => wrong.push(format!("{test}: {result} {reason}")),
        }
    }
    let counts = match gaps {
        0 => counts(ours),
        _ => format!("{}, {gaps} known gaps", counts(ours)),
    };
    if wrong.is_empty() {
        Cell::Counts(counts)
    } else {
        Cell::Fail(format!("{counts}\n{}", wrong.join("\n")))
    }
}

/// The numbers of passed, skipped and failed tests.
pub fn counts(results: &Results) -> String {
    let count = |wanted: &str| results.values().filter(|(result, _)| result == wanted).count();
    let (ok, skipped) = (count("ok"), count("skipped"));
    format!("{ok} ok, {skipped} skipped, {} failed", results.len() - ok - skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_has_all_results() {
        for place in [Place::Native, Place::Rxe, Place::Ib, Place::Roce] {
            let table = expected(place);
            assert_eq!(table.len(), 273);
            assert!(table.values().filter(|result| **result == "ok").count() > 80);
        }
        for line in KNOWN.lines().filter(|line| !line.starts_with('#')) {
            let (prefix, reason) = line.split_once(' ').unwrap();
            assert!(reason.len() > 10, "{line}");
            assert!(TABLE.lines().any(|test| test.starts_with(prefix)), "no test begins with {prefix}");
        }
    }

    #[test]
    fn a_test_that_passes_with_c_must_pass() {
        let results = |text| parse(text);
        let c = results("ok 0.1 test_a.A.x\nskipped 0.1 test_a.A.y no reason\n");
        let good = results("ok 0.1 test_a.A.x\nfailed 0.2 test_a.A.y Assertion\n");
        assert_eq!(judge(Place::Rxe, &good, Some(&c)), Cell::Counts("1 ok, 0 skipped, 1 failed".into()));
        let bad = results("skipped 0.1 test_a.A.x why not\nok 0.1 test_a.A.y\n");
        let Cell::Fail(reason) = judge(Place::Rxe, &bad, Some(&c)) else { panic!("it is a regression") };
        assert!(reason.ends_with("test_a.A.x: skipped why not"), "{reason}");
        assert!(matches!(judge(Place::Native, &Results::new(), None), Cell::Fail(_)));
    }
}
