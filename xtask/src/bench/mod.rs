// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bench`: measures the cost of posts and polls on mlx5 and EFA, for this library, for libmlx5 and for
//! libefa.
//!
//! The programs are those of `tests/bench`: [`programs`] builds them, [`measure`] runs them, [`rows`] defines which of
//! their measurements are compared, and [`judge`] the limits of our counts, from the counts recorded in [`data`];
//! [`report`] and [`chart`] print the results. [`doorbell`] counts the costs of a doorbell besides instructions.
//! `docs/src/guides/bench.md` explains the figures.

mod any;
mod chart;
mod counters;
mod data;
mod doorbell;
mod exceptions;
mod hca;
mod judge;
mod limited;
/// The table of posts is that of the programs.
#[expect(unreachable_pub, reason = "the library of the programs exports some of it")]
#[cfg_attr(not(test), expect(dead_code, reason = "the programs and the tests use all of it"))]
#[path = "../../../tests/bench/src/matrix.rs"]
mod matrix;
mod measure;
mod owned;
mod programs;
mod report;
mod rows;

use anyhow::{Context, Result, bail, ensure};
use data::{Counts, File};
use exceptions::{EXCEPTIONS, Exception};
use judge::Judge;
use measure::Results;
use programs::{C, Ours};
use rows::{Face, Key, Line, Locking, Set};
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure instructions and nanoseconds of posts and polls on mlx5 and EFA, for this library, for libmlx5 and for libefa
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only rows whose "TITLE xBATCH" contains this; the case of letters is ignored
    #[arg(long, default_value = "")]
    filter: String,
    /// Do not measure nanoseconds
    #[arg(long)]
    no_ns: bool,
    /// Number of rounds, in each of which every program runs once; nanoseconds are medians over the rounds
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Also write all results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the instructions of exclusive queues into this SVG file
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// Do not count libmlx5 and libefa: compare with its recorded counts, and exit with status 1 if a row is above
    /// its limit
    #[arg(long, conflicts_with_all = ["json", "chart", "record"])]
    check: bool,
    /// Count fences, locked instructions and dirtied cache lines of doorbells instead
    #[arg(long, conflicts_with_all = ["json", "chart", "record", "check"])]
    doorbells: bool,
    /// Write the counts of libmlx5 and libefa to xtask/data, and lower the recorded counts of rows that are above their limits
    #[arg(long)]
    record: bool,
}

/// The limit of a static C program's size, which has all drivers: 2.25 MiB.
const STATIC_SIZE: u64 = 9 << 18;

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let lines = Line::selected(&args.filter);
    ensure!(!lines.is_empty(), "no row title contains {:?}", args.filter);
    if args.check {
        return Ok(ExitCode::from(u8::from(!passes(&lines, args.filter.is_empty())?)));
    }
    if args.doorbells {
        return doorbells(&lines);
    }
    let (ours, c, judge) = (Ours::build()?, C::build()?, Judge::read()?);
    let mut results = Results::default();
    results.count_ours(&lines, &ours)?;
    for face in [Face::C, Face::Abi] {
        results.count_c(&lines, &c, face)?;
    }
    for _ in 0..if args.no_ns { 0 } else { args.rounds } {
        results.time(&lines, &ours, &c)?;
    }
    for locking in Locking::ALL.into_iter().filter(|l| lines.iter().any(|line| line.locking == *l)) {
        println!("{}\n", report::table(&lines, locking, &results, &judge));
    }
    println!(
        "instructions per operation; \"of C\" is the share of libmlx5's or libefa's (rdma-core {}); ns of C is the median",
        c.version
    );
    println!(
        "of the rounds' ratios and half the distance of its quartiles; floor: bare stores, loads and fences"
    );
    if args.record {
        record(&lines, &results, &judge)?;
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report::json(&lines, &results, &judge, &c.version))?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.chart {
        chart::draw(path, &lines, &results, &c.version)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the costs of doorbells besides instructions.
fn doorbells(lines: &[Line]) -> Result<ExitCode> {
    let (ours, c) = (Ours::build()?, C::build()?);
    for set in Set::all() {
        let mut found = HashMap::new();
        let names = doorbell::names(lines, set, &[Face::Typed, Face::Raw]);
        if names.is_empty() {
            continue;
        }
        found.extend(doorbell::trace(&names, |tool| ours.program(tool, &set.to_string()))?);
        for face in [Face::C, Face::Abi] {
            let names = doorbell::names(lines, set, &[face]);
            if !names.is_empty() {
                found.extend(doorbell::trace(&names, |tool| c.command(tool, set, face))?);
            }
        }
        println!("{}\n", report::doorbells(lines, set, &found));
    }
    println!("per doorbell: fences / locked instructions / lines of memory dirtied / bytes to the register,");
    println!("and of EFA: / bytes to write-combining memory, and doorbells of a call");
    Ok(ExitCode::SUCCESS)
}

/// `cargo xtask bench --check`, as a step of the tests.
pub(crate) fn check() -> Result<()> {
    if passes(&Line::selected(""), true)? { Ok(()) } else { bail!("a row is above its limit; see above") }
}

/// Our measurements that have a limit: line, face, count, limit.
fn judged(
    lines: &[Line],
    results: &Results,
    judge: &Judge,
    c: &Counts,
) -> Result<Vec<(Line, Face, f64, f64)>> {
    let mut judged = Vec::new();
    for line in lines {
        for face in Face::OURS {
            let Some(count) = results.instructions(line, face) else { continue };
            let key = line.key(Face::C).context("a row of C")?;
            let of_c = c.get(&key).with_context(|| format!("bench-c.tsv has no {:?}", key.name))?;
            if let Some(limit) = judge.limit(line, face, *of_c) {
                judged.push((*line, face, count, limit));
            }
        }
    }
    Ok(judged)
}

/// Whether our counts are within the limits that follow from the recorded counts of C. Prints the rows that are
/// not.
fn passes(lines: &[Line], owned: bool) -> Result<bool> {
    let (ours, program, judge, c) = (Ours::build()?, C::build()?, Judge::read()?, File::C.read()?);
    let mut results = Results::default();
    let any = !owned || limited::passes(&any::count(&ours)?);
    let hca = !owned || limited::passes(&hca::count(&ours)?);
    let observed = !owned || limited::passes(&counters::count(&ours)?);
    let owned = !owned || limited::passes(&owned::count(&ours)?);
    results.count_ours(lines, &ours)?;
    results.count_c(lines, &program, Face::Abi)?;
    let judged = judged(lines, &results, &judge, &c)?;
    let sentences: Vec<_> = judged
        .iter()
        .filter_map(|(line, face, count, limit)| report::sentence(line, *face, *count, *limit, &judge))
        .collect();
    sentences.iter().for_each(|sentence| eprintln!("bench: {sentence}"));
    let over = judged
        .iter()
        .filter(|(line, face, count, limit)| count > limit && judge.known(line, *face).is_some());
    let (all, over) = (judged.len(), over.count());
    eprintln!(
        "bench: {all} measurements have a limit; {over} are above it, as recorded; {} fail",
        sentences.len()
    );
    for Exception { what, face, share, reason, .. } in EXCEPTIONS {
        eprintln!("bench: {what}, {}: the limit is {share} of C: {reason}", face.name());
    }
    let needless = needless(&judged, &c);
    needless
        .iter()
        .for_each(|what| eprintln!("bench: {what}: within the limit of its row; remove the exception"));
    let size = program.static_size()?;
    eprintln!("bench: the static example has {size} bytes; its limit is {STATIC_SIZE}");
    Ok(sentences.is_empty() && needless.is_empty() && size <= STATIC_SIZE && owned && any && hca && observed)
}

/// The exceptions of which all measurements, if they were made, are within the limit that they would have without it.
fn needless(judged: &[(Line, Face, f64, f64)], c: &Counts) -> Vec<&'static str> {
    let is_within = |(line, face, count, _): &(Line, Face, f64, f64)| {
        let of_c = line.key(Face::C).and_then(|key| c.get(&key).copied());
        of_c.zip(line.row.limits.of_c(*face)).is_some_and(|(c, share)| *count <= share * c)
    };
    let is_needless = |exception: &&Exception| {
        let mut of = judged
            .iter()
            .filter(|(line, face, ..)| exception.is_of(*face, line.row.c, line.batch))
            .peekable();
        of.peek().is_some() && of.all(is_within)
    };
    EXCEPTIONS.iter().filter(is_needless).map(|exception| exception.what).collect()
}

/// Writes C's counts, and updates the list of rows that are above their limits.
fn record(lines: &[Line], results: &Results, judge: &Judge) -> Result<()> {
    let mut c = File::C.read()?;
    for line in lines {
        if let (Some(key), Some(count)) = (line.key(Face::C), results.instructions(line, Face::C)) {
            c.insert(key, count);
        }
    }
    let known: Vec<Option<Key>> = Line::selected("").iter().map(|line| line.key(Face::C)).collect();
    c.retain(|key, _| known.contains(&Some(key.clone())));
    File::C.write(&c)?;
    File::Over.write(&judge.tightened(&judged(lines, results, judge, &c)?))
}
