// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report: a table of all runs, and a script for each finding.

use super::plan::{Kind, Trial};
use super::run::{Finding, Outcome, Ran};
use core::fmt::Write as _;
use std::collections::BTreeMap;
use uverbs_fabric::script::Script;

/// Findings of one kind that are printed with their output.
const SHOWN: usize = 3;

/// The report, and the number of findings.
pub(super) fn report(first: &Ran, results: &[(Trial, (Script, Ran))]) -> (String, usize) {
    let mut text = String::from(
        "| | runs | succeed | error | crash | hang | peer waits | leak | violation |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut kinds: Vec<Kind> = results.iter().map(|(trial, _)| trial.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let of = || results.iter().filter(|(trial, _)| trial.kind == kind).map(|(_, (_, ran))| ran);
        let found = |finding| of().filter(|ran| ran.finding(first) == Some(finding)).count();
        let is_clean = |ran: &&Ran| ran.finding(first).is_none();
        let succeed = of().filter(is_clean).filter(|ran| ran.outcome == Outcome::Ok).count();
        let errors = of().filter(is_clean).count() - succeed;
        let _ = write!(text, "| {} | {} | {succeed} | {errors} |", kind.name(), of().count());
        for finding in Finding::ALL {
            let _ = write!(text, " {} |", found(finding));
        }
        text.push('\n');
    }
    let findings = findings(first, results, &mut text);
    (text, findings)
}

/// What findings have in common.
type Group<'a> = (Finding, Kind, &'a str);

/// Appends the findings, those of a verb or queue together.
fn findings(first: &Ran, results: &[(Trial, (Script, Ran))], text: &mut String) -> usize {
    let mut groups: BTreeMap<Group<'_>, Vec<&(Script, Ran)>> = BTreeMap::new();
    for (trial, result) in results {
        if let Some(finding) = result.1.finding(first) {
            groups.entry((finding, trial.kind, trial.name.as_str())).or_default().push(result);
        }
    }
    for ((finding, _, name), runs) in &groups {
        let _ = writeln!(text, "\n{}: {name}, {} runs", finding.name(), runs.len());
        for (i, (script, ran)) in runs.iter().enumerate() {
            let _ = write!(text, "{script}");
            if i >= SHOWN {
                continue;
            }
            let _ = writeln!(text, "  # the program {}", ran.outcome);
            for ((process, object), count) in ran.left().iter().filter(|_| *finding == Finding::Leak) {
                let _ = writeln!(text, "  # process {process} left: {count} {object}");
            }
            for violation in ran.violations().iter().filter(|_| *finding == Finding::Violation) {
                let _ = writeln!(text, "  # {violation}");
            }
            for line in ran.output.lines().rev().take(2).collect::<Vec<_>>().into_iter().rev() {
                let _ = writeln!(text, "  # {line}");
            }
        }
    }
    groups.values().map(Vec::len).sum()
}
