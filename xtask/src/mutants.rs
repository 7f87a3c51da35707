// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask mutants`: changes the code, one expression at a time, and runs the tests, which must fail.
//!
//! `.cargo/mutants.toml` has the changes that no test can detect. The files are here, because cargo-mutants would add those
//! of the command line to those of that file.

use crate::{cargo, repo_root, run, tools};
use anyhow::{Context, Result, bail};
use std::fs;
use std::process::{Command, ExitCode};

/// Change the encoders, the CQ parser and the queue indices, and list the changes that no test detects
///
/// `cargo xtask setup --mutants` installs cargo-mutants. It works in a copy of the repository and writes its results to
/// target/mutants/mutants.out.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The changes to test: those whose number modulo N is I. `0/1` tests all of them, for many hours
    #[arg(long, value_name = "I/N", default_value = SAMPLE)]
    shard: String,
    /// The files to change
    #[arg(long, value_name = "GLOB", default_values = FILES)]
    file: Vec<String>,
}

/// As many changes as are tested in less than an hour.
const SAMPLE: &str = "0/16";

/// The encoders, the CQ parser and the queue indices.
const FILES: [&str; 9] = [
    "drivers/mlx5/hw/src/{wqe,cqe,doorbell}.rs",
    "drivers/mlx5/src/wqe/*.rs",
    "drivers/mlx5/src/sq/{encoder,cursor,list,producer}.rs",
    "drivers/mlx5/src/cq/{parse,cqe,cursor,ring,scatter,entry,cached,compressed}.rs",
    "drivers/mlx5/src/memory/index.rs",
    "drivers/mlx5/src/rq/{producer,srq_producer}.rs",
    "drivers/mlx5/src/shared/user_index.rs",
    "drivers/soft/src/{memory,wqe,send,recv,producer,cq_state}.rs",
    "drivers/rxe/src/{wqe,ring}.rs",
];

/// The packages whose tests run for each change.
const PACKAGES: [&str; 5] = ["uverbs-mlx5-hw", "uverbs-mlx5", "uverbs-soft", "uverbs-rxe", "uverbs-tests"];

/// Their tests, in this order: unit tests, which detect most changes, the tables of semantics, and the reference vectors.
const TARGETS: [&str; 4] = ["--lib", "--test=headers", "--test=semantics", "--test=vectors"];

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    // cargo-mutants can't do this, because the changed packages do not have all of these tests.
    let packages = PACKAGES.map(|name| ["-p", name]);
    let tests = [&["test", "--quiet"], packages.as_flattened(), &TARGETS].concat();
    cargo::call(&tests).context("the tests must pass without a change")?;
    let folder = repo_root().join("target/mutants");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut cmd = command()?;
    cmd.arg(format!("--shard={}", args.shard)).args(args.file.iter().map(|glob| format!("--file={glob}")));
    cmd.arg("--output").arg(&folder).env("CARGO_TARGET_DIR", folder.join("cargo"));
    cmd.arg(format!("--test-package={}", PACKAGES.join(",")));
    // Arguments of all calls of cargo, so that the other tests are not built for each change.
    cmd.args(TARGETS.map(|target| format!("--cargo-arg={target}")));
    match run::status(&mut cmd)?.code() {
        // 3: the tests of a change do not end, so they detect it.
        Some(0 | 3) => Ok(ExitCode::SUCCESS),
        Some(2) => {
            eprintln!("mutants: for each missed change, add a test, or the reason to .cargo/mutants.toml");
            Ok(ExitCode::FAILURE)
        }
        _ => bail!("`{}` failed", run::shown(&cmd)),
    }
}

/// A call of cargo-mutants. Property tests have a fixed seed and store no failures, so a result does not depend on earlier
/// runs.
fn command() -> Result<Command> {
    let mut cmd = tools::MUTANTS.command()?;
    cmd.args(["--baseline=skip", "--timeout=120", "--no-shuffle"]);
    for (key, value) in [
        ("PROPTEST_RNG_SEED", "1"),
        ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true"),
        // Building costs more than running.
        ("CARGO_PROFILE_DEV_DEBUG", "0"),
        ("CARGO_PROFILE_TEST_DEBUG", "0"),
    ] {
        cmd.env(key, value);
    }
    Ok(cmd)
}
