// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask fuzz`: the targets of `fuzz/`, built and run by cargo-fuzz under AddressSanitizer.
//!
//! cargo-fuzz selects the flags of the sanitizer and of libFuzzer. They are unstable; `RUSTC_BOOTSTRAP` enables them in
//! the pinned stable compiler, which has the sanitizer's run-time library.

use crate::{corpus, repo_root, run, tools, vm};
use anyhow::{Context, Result, bail, ensure};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::thread;
use uverbs_lab::HOME_SUITE;
use uverbs_lab::apt::{self, Suite};

/// Run fuzz targets
///
/// Each target runs on the packed inputs, and on those that earlier runs found (in target/fuzz/work/TARGET).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Targets; all of them if none is named
    targets: Vec<String>,
    #[command(flatten)]
    limits: Limits,
    /// Seed of the random numbers; 0 selects a new one each time
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// After the run, add the inputs that it found to the packed corpus, reduced to the few that reach most code
    #[arg(long, conflicts_with = "seed")]
    pack: bool,
}

/// The limits of a target; it ends at the first one that it reaches.
#[derive(Clone, Copy, clap::Args)]
struct Limits {
    /// Seconds for each target
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// Inputs for each target; -1 means no limit
    #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
    runs: i64,
}

/// Targets that make two devices and a connection for each input. [`run_all`] gives them a fifth of the inputs of another target.
const SLOW: [&str; 2] = ["aio_stream", "udp_datagrams"];

/// Targets that run at the same time.
const PARALLEL: usize = 2;

/// The length of inputs in a packed corpus, in bytes.
const PACKED_LEN: u32 = 512;

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let chosen = run_some(&args.targets, |_| args.limits, args.seed)?;
    if args.pack {
        for name in &chosen {
            pack(name)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs every target for a number of inputs, the [slow](SLOW) ones for a part of it; fails on the first finding.
///
/// The limit is a number of inputs, so that all machines test the same amount. The inputs still differ between runs,
/// because libFuzzer chooses them by its observations, which include addresses. The limit in seconds only ends a target
/// that became very slow.
pub(crate) fn run_all(runs: u32, seed: u32) -> Result<()> {
    let of = |target: &str| {
        let runs = if SLOW.contains(&target) { runs.div_ceil(5) } else { runs };
        Limits { seconds: 300, runs: runs.into() }
    };
    run_some(&[], of, seed).map(|_| ())
}

/// Runs targets, each with its limits, and returns their names.
fn run_some(names: &[String], limits: impl Fn(&str) -> Limits + Sync, seed: u32) -> Result<Vec<String>> {
    let all = targets()?;
    if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
        bail!("no fuzz target {unknown}; the targets are {}", all.join(", "));
    }
    let chosen = if names.is_empty() { all } else { names.to_vec() };
    ensure!(!chosen.is_empty(), "there are no fuzz targets");
    run::inherit(cargo_fuzz("build")?.args(if let [one] = &chosen[..] { Some(one) } else { None }))?;
    // Each thread takes the next target when its own ends, so that a slow target does not delay the others.
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let worker = || -> Result<()> {
        while !failed.load(Relaxed)
            && let Some(name) = chosen.get(next.fetch_add(1, Relaxed))
        {
            run_one(name, limits(name), seed).inspect_err(|_| failed.store(true, Relaxed))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    Ok(chosen)
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

/// A call of cargo-fuzz. All calls have the same options for the build, so that targets are built once.
fn cargo_fuzz(command: &str) -> Result<Command> {
    let mut cmd = tools::FUZZ.command()?;
    // One unit, which is cargo-fuzz's default, builds on one core only.
    cmd.args([command, "--codegen-units=4", "--target-dir"]).arg(repo_root().join("target/fuzz"));
    cmd.env("RUSTC_BOOTSTRAP", "1").env_remove("CARGO_ENCODED_RUSTFLAGS");
    // cargo-fuzz adds its flags to these.
    cmd.env("RUSTFLAGS", "--cfg uverbs_sanitize");
    if let Some(library) = debian_libfuzzer() {
        // The crate libfuzzer-sys links this in place of its copy.
        cmd.env("CUSTOM_LIBFUZZER_PATH", library);
    }
    Ok(cmd)
}

/// libFuzzer as Debian has it, which is optimised. Compiling the copy of the crate libfuzzer-sys takes a minute, and with the little
/// optimisation of the targets it takes a third of their time. `None` if it can't be fetched: the copy is compiled.
fn debian_libfuzzer() -> Option<&'static Path> {
    static FETCHED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let fetch = || {
        fetch_libfuzzer()
            .inspect_err(|e| {
                eprintln!("fuzz: libFuzzer is compiled, because Debian's can't be fetched: {e:#}")
            })
            .ok()
    };
    FETCHED.get_or_init(fetch).as_deref()
}

/// Returns the library of Debian's package, and downloads it first if it is missing.
pub(crate) fn fetch_libfuzzer() -> Result<PathBuf> {
    // Without the compiler on which the package depends.
    const PACKAGE: &str = "libfuzzer-14-dev";
    ensure!(cfg!(target_arch = "x86_64"), "the lab has packages for x86-64 only");
    let lab = vm::lab(false)?;
    let _lock = lab.lock()?;
    let tree = lab.cached("libfuzzer", &format!("{HOME_SUITE} {PACKAGE}\n"), |dir| {
        apt::unpack(&Suite::open(&lab, HOME_SUITE)?.exact(&[PACKAGE.into()])?, dir)
    })?;
    let library = tree.join("usr/lib/llvm-14/lib/libFuzzer.a");
    ensure!(library.exists(), "{PACKAGE} has no libFuzzer.a");
    Ok(library)
}

/// A call of libFuzzer on corpora. New inputs are written to the first.
fn libfuzzer(name: &str, corpora: &[&Path]) -> Result<Command> {
    let mut cmd = cargo_fuzz("run")?;
    cmd.arg(name).args(corpora).arg("--");
    // A target that hangs on an input is reported, too.
    cmd.args(["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"]);
    Ok(cmd)
}

/// The folder for what runs of a target write.
fn work_of(name: &str) -> PathBuf {
    repo_root().join("target/fuzz/work").join(name)
}

/// The file for a target's output.
fn log_of(name: &str) -> PathBuf {
    work_of(name).join("log")
}

/// Runs a target on its packed corpus, and on what earlier runs without a seed found.
fn run_one(name: &str, limits: Limits, seed: u32) -> Result<()> {
    let work = work_of(name);
    let (found, packed) = (work.join(if seed == 0 { "corpus" } else { "seeded" }), work.join("packed"));
    if seed == 0 {
        fs::create_dir_all(&found).with_context(|| format!("cannot create {}", found.display()))?;
    } else {
        // The inputs that earlier runs found would change the inputs of a seed.
        corpus::empty(&found)?;
    }
    corpus::unpack(&corpus::archive(name), &packed)?;
    let mut cmd = libfuzzer(name, &[&found, &packed])?;
    cmd.args([format!("-max_total_time={}", limits.seconds), format!("-runs={}", limits.runs)]);
    cmd.arg(format!("-seed={seed}"));
    if limits.runs >= 0 {
        // The choice of inputs by their rare features takes up to half of the time. In a short run it reaches hardly more code.
        cmd.arg("-entropic=0");
    }
    let log = log_of(name);
    let file = fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let status = cmd.status().with_context(|| format!("cannot start `{}`", run::shown(&cmd)))?;
    let output = fs::read(&log).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    ensure!(status.success(), "fuzz target {name} found something: {status}\n{output}");
    let done = output.lines().rev().find(|l| l.contains("Done ")).unwrap_or("no count").trim();
    println!("fuzz: {name}: {done}");
    Ok(())
}

/// Replaces the packed corpus of a target. From the packed inputs and those that runs found, libFuzzer selects a subset
/// with the same coverage, ordered by the coverage that each adds. The first of them are packed.
fn pack(name: &str) -> Result<()> {
    let work = work_of(name);
    let selected = work.join("selected");
    corpus::empty(&selected)?;
    let mut cmd = libfuzzer(name, &[&selected, &work.join("corpus"), &work.join("packed")])?;
    cmd.args(["-set_cover_merge=1", "-use_counters=0"]).arg(format!("-max_len={PACKED_LEN}"));
    run::output(&mut cmd)?;
    corpus::trim(&selected)?;
    let archive = corpus::archive(name);
    corpus::pack(&selected, &archive)?;
    println!("fuzz: {name}: packed {}", archive.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slow_targets_exist() {
        let targets = targets().unwrap();
        assert!(SLOW.iter().all(|slow| targets.iter().any(|target| target == slow)));
    }
}
