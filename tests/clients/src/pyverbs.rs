// SPDX-License-Identifier: MIT OR Apache-2.0
//! rdma-core's test suite, versions 44 and 65, and its known results.
//!
//! The tests are those of the package python3-pyverbs, which are in its folder of documentation, some of them compressed.
//! `data/run_suite.py` runs each of them in a child.

use crate::process::{End, Group};
use crate::report::Cell;
use crate::row::Place;
use anyhow::{Context, Result, ensure};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The folder in which the package has the tests.
pub const INSTALLED: &str = "/usr/share/doc/rdma-core/tests";
/// Runs the tests.
const RUNNER: &str = include_str!("../data/run_suite.py");
/// The interpreter for which the package has its modules; another one may come first in the path.
pub const PYTHON: &str = "/usr/bin/python3";
/// Each line has a test, and the reason why it does not pass with our library in the VM.
const KNOWN: &str = include_str!("../data/pyverbs-known.txt");
/// All tests together. Each has a limit of its own.
const LIMIT: Duration = Duration::from_secs(2400);

/// The results of a test.
const RESULTS: [&str; 4] = ["ok", "skipped", "failed", "error"];
/// In the results, a run of the suite that did not reach its end.
const WHOLE: &str = "(all)";

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

/// A version of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Of Debian 12.
    V44,
    /// Of Debian 14.
    V65,
}

impl Version {
    /// A line is a test and its result with our library natively.
    fn table(self) -> &'static str {
        match self {
            Self::V44 => include_str!("../data/pyverbs-44.txt"),
            Self::V65 => include_str!("../data/pyverbs-65.txt"),
        }
    }

    /// The tests of EFA, all of which pass on the software EFA.
    pub fn efa(self) -> BTreeSet<&'static str> {
        let lines = include_str!("../data/pyverbs-efa.txt").lines().filter(|line| !line.starts_with('#'));
        let tests = lines.filter_map(|line| line.split_once(' '));
        tests.filter(|(since, _)| self == Self::V65 || *since == "44").map(|(_, test)| test).collect()
    }

    /// All tests, each with whether it passes natively.
    fn tests(self) -> impl Iterator<Item = (&'static str, bool)> {
        let lines = self.table().lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| line.split_once(' ')).map(|(test, result)| (test, result == "ok"))
    }

    /// The tests that pass natively.
    pub fn native(self) -> BTreeSet<&'static str> {
        self.tests().filter(|(_, passes)| *passes).map(|(test, _)| test).collect()
    }
}

/// The results by test.
pub type Results = BTreeMap<String, (String, String)>;

/// Runs all tests whose names begin with one of `prefixes`, separated by commas, on a device, with the interpreter that `cmd` starts.
///
/// # Errors
/// The interpreter can't be started.
pub fn run(mut cmd: Command, folder: &Path, prefixes: &str, device: &str, gid: &str) -> Result<Results> {
    let mut group = Group::new(LIMIT)?;
    cmd.arg(folder.join("run_suite.py")).arg(folder.join("tests")).arg(prefixes);
    cmd.args(["--dev", device, "--gid", gid]).env("PYTHONDONTWRITEBYTECODE", "1");
    let python = group.start(&mut cmd)?;
    let end = group.wait(python);
    let mut results = parse(&group.output(python));
    if end != End::Exit(0) {
        // The results before are kept. A line of output that is no test's result may be the reason.
        let reason = format!("{end}: {}", group.last_lines(python).replace('\n', "; "));
        results.insert(WHOLE.into(), ("error".into(), reason));
    }
    Ok(results)
}

fn parse(output: &str) -> Results {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (result, _seconds, name) = (words.next()?, words.next()?, words.next()?);
        Some((name.to_owned(), (result.to_owned(), words.collect::<Vec<_>>().join(" "))))
    };
    let results = output.lines().filter_map(line);
    results.filter(|(_, (result, _))| RESULTS.contains(&result.as_str())).collect()
}

/// The tests that passed.
pub fn passed(results: &Results) -> BTreeSet<&str> {
    let passed = results.iter().filter(|(_, (result, _))| result == "ok");
    passed.map(|(test, _)| test.as_str()).collect()
}

/// The known reason why a test does not pass with ours in the VM.
fn known(test: &str) -> Option<&'static str> {
    let lines = KNOWN.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once(' '));
    pairs.into_iter().find(|(name, _)| *name == test).map(|(_, reason)| reason)
}

/// The tests of `wanted` that did not pass.
pub fn missed<'a>(results: &Results, wanted: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let ok = |test: &&&str| results.get(**test).is_none_or(|(result, _)| result != "ok");
    wanted.iter().filter(ok).copied().collect()
}

/// The cell of a run with our library: it fails if one of the tests `wanted` does not pass, and no reason is known.
pub fn judge(place: Place, ours: &Results, wanted: &BTreeSet<&str>) -> Cell {
    let (gaps, mut wrong): (Vec<&str>, Vec<&str>) =
        missed(ours, wanted).into_iter().partition(|test| place != Place::Native && known(test).is_some());
    wrong.extend(ours.contains_key(WHOLE).then_some(WHOLE));
    let counts = match gaps.len() {
        0 => counts(ours),
        gaps => format!("{}, {gaps} known gaps", counts(ours)),
    };
    if wrong.is_empty() {
        return Cell::Counts(counts);
    }
    let lines: Vec<String> = wrong.iter().map(|test| format!("{test}: {}", shown(ours, test))).collect();
    Cell::Fail(format!("{counts}\n{}", lines.join("\n")))
}

/// A test's result and its reason.
fn shown(results: &Results, test: &str) -> String {
    results.get(test).map_or("missing".to_owned(), |(result, reason)| format!("{result} {reason}"))
}

/// The tests that neither pass nor are skipped with rdma-core's library, and the known gaps of ours, with their reasons; and known
/// gaps that have passed, whose lines can be removed.
pub fn remarks(c: &Results, ours: &Results) -> Vec<String> {
    let failed = c.iter().filter(|(_, (result, _))| result != "ok" && result != "skipped");
    let failed =
        failed.map(|(test, _)| format!("{test}: C: {}; ours: {}", shown(c, test), shown(ours, test)));
    let gaps = missed(ours, &passed(c)).into_iter();
    let gaps = gaps.filter_map(|test| Some(format!("{test}: {}; {}", shown(ours, test), known(test)?)));
    let stale = passed(ours).into_iter().filter(|test| known(test).is_some());
    let stale = stale.map(|test| format!("{test}: ours: ok, although it is listed as a known gap"));
    failed.chain(gaps).chain(stale).collect()
}

/// The tests of `wanted` that did not pass and are no known gaps.
pub fn unexpected<'a>(results: &Results, wanted: &BTreeSet<&'a str>) -> Vec<&'a str> {
    missed(results, wanted).into_iter().filter(|test| known(test).is_none()).collect()
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
    fn the_tables_have_all_tests() {
        for (version, tests) in [(Version::V44, 273), (Version::V65, 390)] {
            assert_eq!(version.tests().map(|(test, _)| test).collect::<BTreeSet<_>>().len(), tests);
            assert!(version.native().len() > 120);
            let all: BTreeSet<_> = version.tests().map(|(test, _)| test).collect();
            assert!(version.efa().is_subset(&all) && version.efa().len() >= 16);
        }
    }

    #[test]
    fn a_known_gap_is_a_test_and_has_a_reason() {
        for line in KNOWN.lines().filter(|line| !line.starts_with('#')) {
            let (name, reason) = line.split_once(' ').unwrap();
            assert!(reason.len() > 10, "{line}");
            let mut tests = [Version::V44, Version::V65].into_iter().flat_map(Version::tests);
            assert!(tests.any(|(test, _)| test == name), "there is no test {name}");
        }
    }

    #[test]
    fn a_test_that_passes_with_c_must_pass() {
        let results = |text| parse(text);
        let c = results("ok 0.1 test_a.A.x\nskipped 0.1 test_a.A.y no reason\n");
        let good = results("ok 0.1 test_a.A.x\nfailed 0.2 test_a.A.y Assertion\n");
        assert_eq!(judge(Place::Rxe, &good, &passed(&c)), Cell::Counts("1 ok, 0 skipped, 1 failed".into()));
        let bad = results("skipped 0.1 test_a.A.x why not\nok 0.1 test_a.A.y\n");
        let Cell::Fail(reason) = judge(Place::Rxe, &bad, &passed(&c)) else { panic!("it is a regression") };
        assert!(reason.ends_with("test_a.A.x: skipped why not"), "{reason}");
        assert!(matches!(judge(Place::Native, &Results::new(), &Version::V44.native()), Cell::Fail(_)));
        // A run that did not reach its end, though all wanted tests passed before.
        let mut cut = parse("ok 0.1 test_a.A.x\nTraceback of nothing\n");
        assert_eq!(cut.len(), 1);
        cut.insert(WHOLE.into(), ("error".into(), "time limit reached".into()));
        assert!(matches!(judge(Place::Rxe, &cut, &passed(&c)), Cell::Fail(_)));
    }
}
