// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outcomes of litmus programs: those that the explorer finds on software HCAs are those of the model of package `uverbs-litmus`.

use crate::bench::Bench;
use core::time::Duration;
use std::time::Instant;
use uverbs::attr::AccessFlags;
use uverbs_hca::explore::Mode;
use uverbs_litmus::generate::{SHAPES, Sample, sample};
use uverbs_litmus::oracle::{Rules, outcomes};
use uverbs_litmus::program::Program;

/// Sizes of the programs, in steps, and which of them are taken: `3/8,4/12000` are one of eight with up to three steps, and one of 12,000 with four.
/// `4/12000:7` are others of these, the part with the number 7; `4/12000:7-9` three parts.
const BOUND: &str = "UVERBS_TEST_LITMUS";
const DEFAULT_BOUND: &str = "3/8,4/12000";
/// The differences that are shown.
const SHOWN: usize = 12;

/// Programs of up to a size.
struct Bound {
    size: usize,
    every: usize,
    /// The first and the last part of them.
    parts: (usize, usize),
}

fn bounds() -> Vec<Bound> {
    let text = std::env::var(BOUND).unwrap_or_else(|_| DEFAULT_BOUND.into());
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{BOUND}={text}: not a number"));
    let bound = |range: &str| {
        let (range, parts) = range.split_once(':').unwrap_or((range, "0"));
        let (size, every) = range.split_once('/').unwrap_or((range, "1"));
        let (first, last) = parts.split_once('-').unwrap_or((parts, parts));
        Bound { size: number(size), every: number(every), parts: (number(first), number(last)) }
    };
    text.split(',').map(bound).collect()
}

fn equal(mode: Mode, rules: Rules) {
    let bench = Bench::new(AccessFlags::empty());
    let bounds = bounds();
    let largest = bounds.iter().map(|bound| bound.size).max().unwrap_or(0);
    let (mut count, mut hang, mut several, mut runs, mut redundant) = (0, 0, 0, 0, 0);
    let (mut of_model, mut of_device) = (Duration::ZERO, Duration::ZERO);
    let mut differences = Vec::new();
    let mut most = (0, 0, String::new());
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for size in 1..=largest {
            let Some(bound) = bounds.iter().find(|bound| size <= bound.size) else { continue };
            let (mut number, before) = (0_usize, (runs, redundant, of_device));
            let mut examine = |program: &Program| {
                number += 1;
                let start = Instant::now();
                let Ok(expected) = outcomes(program, rules) else {
                    hang += 1;
                    return;
                };
                let between = Instant::now();
                of_model += between - start;
                let (found, report) = bench.outcomes(program, mode);
                of_device += between.elapsed();
                count += 1;
                runs += report.runs;
                redundant += report.redundant;
                let all = report.runs + report.redundant;
                if all > most.0 {
                    most = (all, report.runs, program.to_string());
                }
                several += usize::from(expected.len() > 1);
                if let Some(failure) = &report.failure {
                    differences.push(format!("{program}: {failure}"));
                } else if found != expected {
                    let more: Vec<_> = found.difference(&expected).collect();
                    let less: Vec<_> = expected.difference(&found).collect();
                    differences.push(format!("{program}: the device has also {more:?}, and not {less:?}"));
                }
            };
            for part in bound.parts.0..=bound.parts.1 {
                sample(shape, size, Sample { every: bound.every, part }, &mut examine);
            }
            let (runs, redundant, time) = (runs - before.0, redundant - before.1, of_device - before.2);
            println!(
                "{mode}, shape {i}, {size} steps: {number} programs, {runs} runs, {redundant} redundant, {time:?}; {} of {count} differ so far",
                differences.len()
            );
        }
    }
    println!(
        "{mode}: {count} programs, {several} with several outcomes, {hang} that hang were left out; {runs} runs, {redundant} redundant; \
         model {of_model:?}, devices {of_device:?}; the most runs: {most:?}"
    );
    assert!(
        differences.is_empty(),
        "{mode}, {BOUND}={}: {} of {count} programs differ:\n{}",
        std::env::var(BOUND).unwrap_or_else(|_| DEFAULT_BOUND.into()),
        differences.len(),
        differences[..SHOWN.min(differences.len())].join("\n")
    );
    assert!(count > 0);
}

#[test]
fn the_model_of_pcie_has_the_same_outcomes() {
    equal(Mode::Pcie, Rules::Pcie);
}

#[test]
fn the_model_of_the_specification_has_the_same_outcomes() {
    equal(Mode::Model, Rules::Model);
}
