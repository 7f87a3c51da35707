// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask fuzz`: the targets of `fuzz/`, under AddressSanitizer.
//!
//! They are built by cargo with the flags in `fuzz/.cargo/config.toml`, so cargo-fuzz need not be installed. Only the
//! nightly compiler has the sanitizer.

use crate::{repo_root, run};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// Run fuzz targets
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Targets; all of them if none is named
    targets: Vec<String>,
    #[command(flatten)]
    limits: Limits,
    /// Seed of the random numbers; 0 selects a new one each time
    #[arg(long, default_value_t = 0)]
    seed: u32,
}

/// When a target ends: at the limit that it reaches first.
#[derive(Clone, Copy, clap::Args)]
struct Limits {
    /// Seconds for each target
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// Inputs for each target; -1 means no limit
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    runs: i64,
}

/// The target that `fuzz/.cargo/config.toml` names, next to the sanitizer's flags.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Targets that run at the same time.
const PARALLEL: usize = 2;

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    run_some(&args.targets, args.limits, args.seed)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs every target for a number of inputs; fails on the first finding.
///
/// A number, so that a fast machine does not test more than a slow one. The inputs still differ from run to run, because
/// libFuzzer chooses them by what it observes, addresses among it. The limit in seconds only ends a target that became very
/// slow.
pub(crate) fn run_all(runs: u32, seed: u32) -> Result<()> {
    run_some(&[], Limits { seconds: 300, runs: runs.into() }, seed)
}

fn run_some(names: &[String], limits: Limits, seed: u32) -> Result<()> {
    let all = targets()?;
    if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
        bail!("no fuzz target {unknown}; there are {}", all.join(", "));
    }
    let chosen = if names.is_empty() { &all[..] } else { names };
    ensure!(!chosen.is_empty(), "there are no fuzz targets");
    let bin = build()?;
    for group in chosen.chunks(PARALLEL) {
        let running = group
            .iter()
            .map(|name| Ok((name, start(&bin, name, limits, seed)?)))
            .collect::<Result<Vec<_>>>()?;
        for (name, mut child) in running {
            let status = child.wait().with_context(|| format!("fuzz target {name}"))?;
            let log = fs::read(log_of(name)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            if !status.success() {
                bail!("fuzz target {name} found something: {status}\n{log}");
            }
            let done = log.lines().rev().find(|l| l.contains("Done ")).unwrap_or("no count").trim();
            println!("fuzz: {name}: {done}");
        }
    }
    Ok(())
}

/// The targets, by their files.
fn targets() -> Result<Vec<String>> {
    let dir = repo_root().join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs")
            && let Some(stem) = path.file_stem().and_then(|s| s.to_str())
        {
            names.push(stem.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Builds all targets; the folder with the executables.
fn build() -> Result<PathBuf> {
    let target_dir = repo_root().join("target/fuzz");
    // Not `$CARGO`: that is the pinned toolchain's. The proxy in PATH picks the one that the variable names.
    let mut cmd = Command::new("cargo");
    cmd.args(["build", "--release", "--bins"]).arg("--target-dir").arg(&target_dir);
    cmd.current_dir(repo_root().join("fuzz"));
    cmd.env("RUSTUP_TOOLCHAIN", "nightly");
    for var in ["CARGO", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTC", "RUSTDOC"] {
        cmd.env_remove(var);
    }
    run::inherit(&mut cmd)
        .context("fuzzing needs the nightly toolchain (`rustup toolchain install nightly`)")?;
    Ok(target_dir.join(TARGET).join("release"))
}

/// The file for a target's output.
fn log_of(name: &str) -> PathBuf {
    repo_root().join("target/fuzz/work").join(name).join("log")
}

/// Starts a target on a copy of its corpus, so that the committed one stays small.
fn start(bin: &Path, name: &str, limits: Limits, seed: u32) -> Result<Child> {
    let work = repo_root().join("target/fuzz/work").join(name);
    // The inputs that earlier runs found would change the inputs of a seed.
    let corpus = work.join(if seed == 0 { "corpus" } else { "seeded" });
    if seed != 0 && corpus.exists() {
        fs::remove_dir_all(&corpus).with_context(|| format!("cannot remove {}", corpus.display()))?;
    }
    fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    let mut cmd = Command::new(bin.join(name));
    cmd.arg(&corpus);
    let committed = repo_root().join("fuzz/corpus").join(name);
    if committed.is_dir() {
        cmd.arg(committed);
    }
    cmd.args([format!("-max_total_time={}", limits.seconds), format!("-runs={}", limits.runs)]);
    cmd.arg(format!("-seed={seed}"));
    // A target that hangs on one input is a finding, too.
    cmd.args(["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"]);
    cmd.arg(format!("-artifact_prefix={}/", work.display()));
    // A file, not a pipe, because a pipe is not read while another target is awaited.
    let log =
        fs::File::create(log_of(name)).with_context(|| format!("cannot make {}", log_of(name).display()))?;
    cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    cmd.spawn().with_context(|| format!("cannot start `{}`", run::shown(&cmd)))
}
