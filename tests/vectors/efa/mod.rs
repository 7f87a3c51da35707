// SPDX-License-Identifier: MIT OR Apache-2.0
//! EFA: what libefa wrote and returned for thousands of inputs, compared with the efa driver.
//!
//! `tests/efa-recorder` has made the recordings. Each case runs on the driver, opened on a kernel with the same answers ([`kernel`]): the
//! private input of the create commands, the sizes of the queues, the bytes of the entries, the last value of each doorbell, return codes
//! and completions must be the same, except for [`rules`](RULES). `UVERBS_EFA_VECTORS` is the absolute path of another file of the format.

mod control;
mod kernel;
mod model;
mod run;

use core::panic::AssertUnwindSafe;
use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// What differs, by the name of its rule, and why.
const RULES: &[(&str, &str)] = &[
    (
        "request-number",
        "numbers are given again in the order of completions, by libefa in the reverse order; \
         each is unique among the requests that the device has",
    ),
    (
        "known-doorbell",
        "a call that posts nothing does not ring; libefa rings with the value that the device has already",
    ),
    ("no-immediate", "without IBV_WC_WITH_IMM the field imm_data has no meaning"),
    (
        "immediate-of-send",
        "the device marks immediate data of receives only (efa_io_defs.h); \
         libefa's ibv_wc_read_wc_flags does not ask whose completion it is, and its ibv_poll_cq does",
    ),
    (
        "end-of-poll",
        "the end of each poll tells the device what was consumed; \
         libefa's ibv_end_poll does not if the poll has found the CQ empty",
    ),
    (
        "unknown-qp",
        "a completion of a QP that does not exist is late, of a destroyed QP, and is left out; a poll of libefa fails once with EINVAL",
    ),
    (
        "gid-of-write",
        "a write has the high half of its length where other completions have the GID of an unknown peer, so it has no GID; \
         libefa reports these bytes",
    ),
];

/// Runs the cases whose name has one of the words. Returns how many ran and how many differ.
pub(crate) fn run(folder: &Path, words: &[String], shown: usize) -> anyhow::Result<(usize, usize)> {
    let selection = std::env::var_os("UVERBS_EFA_VECTORS").map(PathBuf::from);
    let cases = model::read(selection.as_ref().unwrap_or(&folder.join("efa/efa-vectors.jsonl.gz")))?;
    let mut used = BTreeMap::<&str, usize>::new();
    let mut tallies = BTreeMap::<String, (usize, usize)>::new();
    for case in &cases {
        let name = format!("vectors::efa::{}/{}", case.category, case.id);
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        for typed in [false, true] {
            if typed && !run::is_typed(case) {
                continue;
            }
            let result = catch_unwind(AssertUnwindSafe(|| run::run(case, typed)));
            let why = match result {
                Ok(Ok(rules)) => {
                    rules.into_iter().for_each(|rule| *used.entry(rule).or_default() += 1);
                    None
                }
                Ok(Err(error)) => Some(format!("{error:#}")),
                Err(panic) => Some(format!("panic: {:?}", panic.downcast_ref::<String>())),
            };
            let tally =
                tallies.entry(format!("{}{}", case.category, if typed { " typed" } else { "" })).or_default();
            tally.0 += 1;
            if let Some(why) = why {
                tally.1 += 1;
                if tally.1 <= shown {
                    println!("efa {}/{} typed {typed} ({}): {why}", case.category, case.id, case.generation);
                }
            }
        }
    }
    for (category, (ran, failed)) in &tallies {
        println!("efa {category:<24} {ran:>6} run {failed:>6} failed");
    }
    let (ran, mut failed) = tallies.values().fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    if words.is_empty() {
        let (changed, unnoticed) = changed(&cases);
        println!("efa: {changed} cases with one changed bit, {unnoticed} of which passed");
        failed += unnoticed;
    }
    for (rule, why) in RULES {
        let cases = used.remove(rule).unwrap_or(0);
        println!("efa rule {rule}, {cases} cases: {why}");
        // The cases of the repository's own file need every rule.
        failed += usize::from(cases == 0 && selection.is_none() && words.is_empty());
    }
    for rule in used.keys() {
        println!("efa: the rule {rule} has no reason");
        failed += 1;
    }
    if words.is_empty() || words.iter().any(|word| "vectors::efa::control_trace".contains(word.as_str())) {
        let (commands, wrong) = control::run(&folder.join("efa/efa-control-trace.jsonl.gz"))?;
        wrong.iter().for_each(|wrong| println!("efa control trace: {wrong}"));
        println!("efa control trace: {commands} commands, {} differences without a reason", wrong.len());
        failed += wrong.len();
    }
    Ok((ran, failed))
}

/// Changes a bit of what some cases expect: each must fail.
fn changed(cases: &[model::Case]) -> (usize, usize) {
    let (mut changed, mut unnoticed) = (0, 0);
    for (n, case) in cases.iter().enumerate().filter(|(n, _)| n % 13 == 0) {
        let mut case = case.clone();
        if case.change(n) {
            changed += 1;
            let passed = matches!(catch_unwind(AssertUnwindSafe(|| run::run(&case, false))), Ok(Ok(_)));
            if passed {
                println!("efa {}/{}: a changed bit was not noticed", case.category, case.id);
                unnoticed += 1;
            }
        }
    }
    (changed, unnoticed)
}
