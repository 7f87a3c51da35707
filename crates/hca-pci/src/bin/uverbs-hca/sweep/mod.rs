// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs-hca sweep`: runs a program once for each of its verb calls and completions, with that one failing.

mod plan;
mod run;
mod shrink;
mod table;
#[cfg(test)]
mod tests;

use anyhow::{Context as _, Result, ensure};
use core::hash::BuildHasher;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use indicatif::{ProgressBar, ProgressStyle};
use plan::{Kind, Trial};
use run::{Outcome, Program, Ran};
use std::hash::RandomState;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use uverbs_fabric::script::Script;

/// Run a program once for each of its verb calls and completions, failing that one, and report what becomes of it
///
/// The program runs on software HCAs in its process: a C program with the library of --library, a program of this project as it is. The
/// first run has no faults; it must succeed, and records the calls of verbs, the posts of the C library and the completions. Then there
/// is a run for each of them in which that call fails, or that completion has an error. A run ends well, with an error (any other exit
/// status), by a crash (a signal) or by its time limit (a hang). With --server, a process whose peer ended with an error has a quarter of
/// the limit to end, too; otherwise its peer waits. Objects that are left when a process exits, and were not left by the first
/// run, are a leak, and mistakes that a NIC would not report are violations. The report has a script for each finding, which repeats it:
/// UVERBS_HCA_FAULTS=FILE PROGRAM.
///
/// `{port}` in the arguments is a TCP port that is different in each run. The exit status is 1 if a run crashed, hung, leaked or had
/// violations.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Time limit of a run, s
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Runs at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// Directory of a libibverbs.so.1 that was built with `cargo xtask dist --hca`
    #[arg(long, value_name = "DIR")]
    library: Option<PathBuf>,
    /// A command that runs at the same time as PROGRAM, and begins before it: its server. The devices of both are on one fabric
    #[arg(long, value_name = "COMMAND")]
    server: Option<String>,
    /// Processes of PROGRAM are on one fabric
    #[arg(long)]
    shared: bool,
    /// Runs for each verb, and for the completions of each kind of queue, in each process, at most; more are spread over all
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    most: u32,
    /// Only calls, posts or completions whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Runs the program with this script instead, and shortens the script if that fails
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Further runs, with random scripts of several rules, which are shortened if they fail
    #[arg(long, value_name = "N", default_value_t = 0)]
    random: u32,
    /// Seed of the random scripts; without it, one is drawn. The report has it
    #[arg(long, value_name = "N", requires = "random")]
    seed: Option<u64>,
    /// Writes the report to a file, too
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let folder = tempfile::tempdir().context("no folder for the runs")?;
    let program = Program {
        words: args.program.clone(),
        server: args.server.clone(),
        is_shared: args.shared || args.server.is_some(),
        library: args.library.clone(),
        limit: Duration::from_secs(args.limit),
        folder: folder.path().to_path_buf(),
        next: AtomicUsize::new(0),
    };
    let first = program.run(&Script::default())?;
    ensure!(
        first.outcome == Outcome::Ok,
        "without faults the program {}; its output ends with\n{}",
        first.outcome,
        first.output
    );
    ensure!(
        first.has_reports(),
        "the program made no software device, or did not end by exit(3): {}",
        "UVERBS_HCA selects devices of a library that has them (--library)"
    );
    if let Some(path) = &args.script {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let script: Script = text.parse().with_context(|| path.display().to_string())?;
        let trial = Trial { kind: Kind::Script, name: "script".into(), script };
        let ran = run_trial(&program, &first, &trial)?;
        return finish(args, &first, vec![(trial, ran)], "");
    }
    let mut trials = plan::trials(&first, args.most);
    trials.retain(|trial| {
        args.only.is_empty() || args.only.iter().any(|part| trial.name.contains(part.as_str()))
    });
    let seed = args.seed.unwrap_or_else(drawn);
    trials.extend(plan::random(&first, args.random, seed));
    let results = run_all(args, &program, &first, trials)?;
    let note = match args.random {
        0 => String::new(),
        count => format!("\nThe random scripts are those of --random {count} --seed {seed}.\n"),
    };
    finish(args, &first, results, &note)
}

/// A seed that differs from run to run.
fn drawn() -> u64 {
    // The keys of the map's hash are random.
    BuildHasher::hash_one(&RandomState::new(), std::process::id()) >> 32
}

/// A run of a trial; a script of several rules that fails is shortened.
fn run_trial(program: &Program, first: &Ran, trial: &Trial) -> Result<(Script, Ran)> {
    let ran = program.run(&trial.script)?;
    if trial.script.0.len() < 2 || ran.finding(first).is_none() {
        return Ok((trial.script.clone(), ran));
    }
    let fault = ran.finding(first);
    let rules = shrink::shortest(&trial.script.0, |rules| {
        program.run(&Script(rules.to_vec())).is_ok_and(|again| again.finding(first) == fault)
    });
    Ok((Script(rules), ran))
}

/// Runs all trials, several at the same time. Shows the progress on a terminal.
fn run_all(
    args: &Args,
    program: &Program,
    first: &Ran,
    trials: Vec<Trial>,
) -> Result<Vec<(Trial, (Script, Ran))>> {
    let bar = if std::io::stderr().is_terminal() {
        ProgressBar::new(trials.len() as u64)
    } else {
        ProgressBar::hidden()
    };
    if let Ok(style) = ProgressStyle::with_template("{pos}/{len} [{bar:40}] {msg}, {eta} left") {
        bar.set_style(style);
    }
    let next = AtomicUsize::new(0);
    let (results, errors) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                while let Some((i, trial)) = {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    trials.get(i).map(|trial| (i, trial))
                } {
                    bar.set_message(trial.name.clone());
                    match run_trial(program, first, trial) {
                        Ok(ran) => push(&results, (i, ran)),
                        Err(error) => return push(&errors, error),
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    if let Some(error) = taken(errors).pop() {
        return Err(error);
    }
    let mut results = taken(results);
    results.sort_by_key(|(i, _)| *i);
    Ok(trials.into_iter().zip(results.into_iter().map(|(_, ran)| ran)).collect())
}

fn push<T>(all: &Mutex<Vec<T>>, value: T) {
    all.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(value);
}

fn taken<T>(all: Mutex<Vec<T>>) -> Vec<T> {
    all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Prints the report, with a note behind it.
fn finish(args: &Args, first: &Ran, results: Vec<(Trial, (Script, Ran))>, note: &str) -> Result<ExitCode> {
    let (mut text, findings) = table::report(first, &results);
    text.push_str(note);
    print!("{text}");
    if let Some(path) = &args.report {
        std::fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::from(u8::from(findings > 0)))
}
