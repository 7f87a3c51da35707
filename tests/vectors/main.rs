// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reference vectors: what libmlx5 wrote and returned for thousands of inputs, compared with the mlx5 driver.
//!
//! Every case runs on the real driver, opened on a kernel port that gives the fixed answers of the reference run
//! (`kernel`), on every face that can express it (`faces`). WQEs, doorbell records, register writes, return codes and
//! completions must be the same, except for the rules in `rules`. Then the calls of the control trace are repeated,
//! ioctl by ioctl (`walk`).
//!
//! The environment variable `UVERBS_VECTORS` is the absolute path of another file of the same format: any selection of
//! cases in any order, with or without a header, compressed or not. Only the cases of the repository's own file must
//! need every rule.
//!
//! Arguments are words, one of which `CATEGORY/ID/FACE` must contain. `--list` prints the categories, and `--show=N`
//! prints up to N differences of each category.

/// Calls an `unsafe` verb of the driver.
macro_rules! played {
    ($call:expr) => {{
        // SAFETY: the kernel is simulated: only the case uses the queues, and the parts are those of one object.
        #[expect(unsafe_code, reason = "the contract of the driver's verbs")]
        let result = unsafe { $call };
        result
    }};
}

mod compare;
mod create;
mod efa;
mod faces;
mod kernel;
mod memory;
mod mkeys;
mod model;
mod request;
mod rig;
mod rules;
mod run;
mod trace;
mod walk;

use anyhow::{Result, anyhow};
use core::panic::AssertUnwindSafe;
use model::Case;
use run::Face;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use trace::Trace;

/// The number of differences shown per category, without `--show=N`.
const SHOWN: usize = 3;

#[derive(Default)]
struct Tally {
    run: usize,
    matched: usize,
    excepted: usize,
    failed: usize,
    rules: BTreeMap<&'static str, usize>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

/// The filters of the command line, in the form of libtest.
struct Filter(Vec<String>);

impl Filter {
    fn wants(&self, case: &Case, face: Face) -> bool {
        let name = format!("vectors::{}/{}/{}", case.category, case.id, face.name());
        self.0.is_empty() || self.0.iter().any(|word| name.contains(word.as_str()))
    }
}

impl Filter {
    fn wants_walk(&self) -> bool {
        self.0.is_empty() || self.0.iter().any(|word| "vectors::control_trace".contains(word.as_str()))
    }
}

/// Runs one case on one face. Returns the rules that apply to it, or the difference.
fn hold(case: &Case, face: Face, trace: &Arc<Trace>) -> Result<Vec<&'static str>, String> {
    let mut case = case.clone();
    let rules = rules::apply(&mut case, face, trace.null_mr());
    let result = catch_unwind(AssertUnwindSafe(|| match case.input {
        Some(_) => create::run(&case, trace),
        None => run::run(&case, face, trace),
    }));
    match result {
        Ok(Ok(())) => Ok(rules),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Runs the cases on each of their faces.
fn compared(
    cases: &[Case],
    filter: &Filter,
    shown: usize,
    trace: &Arc<Trace>,
) -> BTreeMap<(String, Face), Tally> {
    let mut tallies = BTreeMap::<(String, Face), Tally>::new();
    for case in cases {
        let faces = if case.input.is_some() { vec![Face::Raw] } else { run::faces_of(case) };
        for face in faces.into_iter().filter(|face| filter.wants(case, *face)) {
            let tally = tallies.entry((case.category.clone(), face)).or_default();
            tally.run += 1;
            match hold(case, face, trace) {
                Ok(rules) if rules.is_empty() => tally.matched += 1,
                Ok(rules) => {
                    tally.excepted += 1;
                    rules.into_iter().for_each(|rule| *tally.rules.entry(rule).or_default() += 1);
                }
                Err(why) => {
                    tally.failed += 1;
                    if tally.failed <= shown {
                        println!("{}/{}/{} ({}): {why}", case.category, case.id, face.name(), case.name);
                    }
                }
            }
        }
    }
    tallies
}

fn main() -> Result<ExitCode> {
    let (options, words): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|word| word.starts_with('-'));
    let selection = std::env::var_os("UVERBS_VECTORS").map(PathBuf::from);
    let cases = model::read(selection.as_ref().unwrap_or(&folder().join("mlx5-vectors.jsonl.gz")))?;
    if options.iter().any(|o| o == "--list") {
        let categories: BTreeSet<_> = cases.iter().map(|case| case.category.as_str()).collect();
        categories.iter().for_each(|c| println!("vectors::{c}: test"));
        return Ok(ExitCode::SUCCESS);
    }
    let shown = options.iter().find_map(|o| o.strip_prefix("--show=")?.parse().ok()).unwrap_or(SHOWN);
    let filter = Filter(words);
    let trace = Arc::new(Trace::read(&folder().join("mlx5-control-trace.jsonl.gz"))?);
    memory::map()?;
    std::panic::set_hook(Box::new(|_| {}));

    let filter = &filter;
    // Beside each other: each has queues of its own, and only the first ones write to the memory of `memory`.
    let (tallies, mkeys, efa) = thread::scope(|scope| {
        let mkeys = scope.spawn(|| mkeys::run(&folder(), &filter.0, shown, &trace));
        let efa = scope.spawn(|| efa::run(&folder(), &filter.0, shown));
        (compared(&cases, filter, shown, &trace), mkeys.join(), efa.join())
    });
    let [mkeys, efa] =
        [mkeys, efa].map(|run| run.unwrap_or_else(|_| Err(anyhow!("a panic outside of the cases"))));

    let mut all = Tally::default();
    println!(
        "{:<18} {:<8} {:>6} {:>8} {:>9} {:>7}",
        "category", "face", "run", "matched", "excepted", "failed"
    );
    for ((category, face), t) in &tallies {
        let rules: Vec<_> = t.rules.iter().map(|(rule, n)| format!("{rule} {n}")).collect();
        let line = format!(
            "{category:<18} {:<8} {:>6} {:>8} {:>9} {:>7}  {}",
            face.name(),
            t.run,
            t.matched,
            t.excepted,
            t.failed,
            rules.join(", ")
        );
        println!("{}", line.trim_end());
        all.run += t.run;
        all.matched += t.matched;
        all.excepted += t.excepted;
        all.failed += t.failed;
    }
    if filter.wants_walk() {
        let report = walk::run(&trace)?;
        report.wrong.iter().for_each(|wrong| println!("control trace: {wrong}"));
        println!(
            "control trace: {} ioctls, {} differences with a reason, {} without",
            report.ioctls,
            report.reasoned,
            report.wrong.len()
        );
        all.failed += report.wrong.len();
    }
    let (ran, failed) = mkeys?;
    all.run += ran;
    all.matched += ran - failed.min(ran);
    all.failed += failed;
    let (ran, failed) = efa?;
    println!("efa: {ran} run, {failed} failed");
    all.run += ran;
    all.matched += ran - failed;
    all.failed += failed;
    let met: BTreeSet<&str> = tallies.values().flat_map(|tally| tally.rules.keys().copied()).collect();
    let complete = selection.is_none() && filter.0.is_empty();
    if let Err(wrong) = rules::compare(complete.then_some(&met)) {
        println!("rules: {wrong:#}");
        all.failed += 1;
    }
    println!(
        "vectors: {} run, {} matched, {} excepted, {} failed",
        all.run, all.matched, all.excepted, all.failed
    );
    Ok(if all.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
