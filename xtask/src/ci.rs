// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask ci`: the static checks.

use crate::{aarch64, cargo, repo_root, run};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Run the static checks: format, lints, documentation, licence headers, forbidden dependencies, aarch64
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out the checks that need the compiler for aarch64, which is fetched once from Debian's archive
    #[arg(long)]
    without_aarch64: bool,
}

/// A check and its name.
type Step = (&'static str, fn() -> Result<()>);

const STEPS: [Step; 6] = [
    ("format", format),
    ("licence headers", licence_headers),
    ("dependencies", dependencies),
    ("lints", || {
        cargo::call(&["clippy", "--workspace", "--all-targets", ALL[0], ALL[1], "--", "-D", "warnings"])
    }),
    ("lints of the benchmark", || {
        cargo::call(&[
            "clippy",
            "--manifest-path",
            BENCH,
            "--target-dir",
            "target/bench",
            "--",
            "-D",
            "warnings",
        ])
    }),
    ("documentation", documentation),
];

/// A workspace of its own.
const BENCH: &str = "tests/bench/Cargo.toml";

/// Checks with a compiler for aarch64.
const AARCH64_STEPS: [Step; 2] = [("barriers", aarch64::barriers), ("aarch64", aarch64::check)];

/// What no build has by default, for checks of all the code.
const ALL: [&str; 2] = ["--features", "uverbs-ibverbs/hca"];

/// Packages that would bring C, or somebody else's bindings, back in (`deny.toml` has the same list).
const FORBIDDEN: [&str; 5] = ["bindgen", "cmake", "ibverbs-sys", "rdma-sys", "rdma-mummy-sys"];

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let foreign: &[Step] = if args.without_aarch64 { &[] } else { &AARCH64_STEPS };
    for (name, check) in STEPS.iter().chain(foreign) {
        let start = Instant::now();
        check().with_context(|| format!("ci: {name} failed"))?;
        eprintln!("ci: {name} passed in {:.1} s", start.elapsed().as_secs_f32());
    }
    if args.without_aarch64 {
        eprintln!("ci: NOT CHECKED, as asked by --without-aarch64: barriers, aarch64");
    }
    Ok(ExitCode::SUCCESS)
}

/// Every Rust file has the format of rustfmt.
pub(crate) fn format() -> Result<()> {
    cargo::call(&["fmt", "--all", "--check"])?;
    cargo::call(&["fmt", "--manifest-path", BENCH, "--check"])
}

fn documentation() -> Result<()> {
    let mut cmd = cargo::cargo(&["doc", "--workspace", "--no-deps", ALL[0], ALL[1]]);
    run::inherit(cmd.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Every Rust file of ours begins with its licence.
fn licence_headers() -> Result<()> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--", "*.rs"]).current_dir(repo_root());
    let files = run::output(&mut git)?;
    ensure!(!files.is_empty(), "git lists no Rust file");
    let without: Vec<_> = files
        .lines()
        .filter(|file| {
            let text = fs::read_to_string(repo_root().join(file)).unwrap_or_default();
            !text.starts_with("// SPDX-License-Identifier: MIT OR Apache-2.0\n")
        })
        .collect();
    if !without.is_empty() {
        bail!("no SPDX line in {}", without.join(", "));
    }
    Ok(())
}

fn dependencies() -> Result<()> {
    let tree =
        run::output(&mut cargo::cargo(&["tree", "--workspace", "--prefix", "none", "--edges", "all"]))?;
    let found: Vec<_> =
        tree.lines().filter(|line| FORBIDDEN.contains(&line.split(' ').next().unwrap_or_default())).collect();
    if !found.is_empty() {
        bail!("forbidden: {}", found.join(", "));
    }
    Ok(())
}
