// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask sanitize`: the suite on the software HCA, and unit tests, under AddressSanitizer (with LeakSanitizer)
//! or ThreadSanitizer.
//!
//! This uses the pinned stable compiler, which has the sanitizers' runtimes; `RUSTC_BOOTSTRAP` enables their flag. The
//! standard library is not instrumented. This has little effect on the address sanitizer, because it replaces the
//! allocator and the `mem*` functions. The thread sanitizer does not see the order that std's locks establish;
//! `tests/sanitizers/thread.supp` has the exclusions for that.

use crate::{cargo, repo_root, run};
use anyhow::Result;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Run the suite on the software HCA under a sanitizer
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sanitizer
    #[arg(default_value = "address")]
    which: Which,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// A sanitizer.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    /// Memory that is out of bounds, freed or leaked
    Address,
    /// Data races
    Thread,
}

/// With an explicit target, the flags apply to the tests only, not to build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    // Only the tests in real time use several threads; the others have one.
    let filter = args.filter.as_deref().or((args.which == Which::Thread).then_some("real_time"));
    run::inherit(test(args.which, &["--package", "uverbs-tests", "--test", "hca"]).arg("--").args(filter))?;
    let units: &[&str] = match args.which {
        Which::Address => &[
            "uverbs-core",
            "uverbs-mlx5",
            "uverbs-efa",
            "uverbs-fabric",
            "uverbs-softkernel",
            "uverbs-hca",
            "uverbs-efa-device",
        ],
        // Few unit tests of other crates use threads, and those are threads of the software HCA.
        Which::Thread => &["uverbs-core", "uverbs-mlx5", "uverbs-efa"],
    };
    let units: Vec<&str> = units.iter().flat_map(|package| ["--package", package]).chain(["--lib"]).collect();
    let mut cmd = test(args.which, &units);
    cmd.arg("--").args(&args.filter);
    if args.which == Which::Thread {
        // Tests that run in parallel share the harness and one-time initialisations of std, whose order the sanitizer
        // does not see. Races between a test's own threads are still reported.
        cmd.arg("--test-threads=1");
        // The test maps memory at the addresses of the vectors, which the sanitizer reserves for itself.
        cmd.args(["--skip", "reference_vectors"]);
    }
    run::inherit(&mut cmd)?;
    eprintln!("sanitize: passed in {:.1} s", start.elapsed().as_secs_f32());
    Ok(ExitCode::SUCCESS)
}

/// A call of `cargo test` with a sanitizer.
fn test(which: Which, what: &[&str]) -> Command {
    let mut cmd = cargo::cargo(&["test", "--target", TARGET]);
    cmd.args(what);
    let supp = |name: &str| repo_root().join("tests/sanitizers").join(name).display().to_string();
    let (flags, dir) = match which {
        Which::Address => {
            cmd.env("LSAN_OPTIONS", format!("suppressions={}:print_suppressions=0", supp("leak.supp")));
            ("-Zsanitizer=address --cfg uverbs_sanitize", "target/sanitize-address")
        }
        Which::Thread => {
            let supp = supp("thread.supp");
            cmd.env("TSAN_OPTIONS", format!("suppressions={supp}:print_suppressions=0:history_size=4"));
            // The sanitizer starts a program to resolve function names, also for suppressions. Two pipes of it stay
            // open, so a test that counts open files fails if this happens while it runs. If it is repeated, the pipes
            // are already open. Races are reported by the sanitizer, not by a test.
            cmd.env("UVERBS_TEST_RETRIES", "1");
            // Without this the compiler refuses to link a standard library that was built without the sanitizer.
            (
                "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg uverbs_sanitize",
                "target/sanitize-thread",
            )
        }
    };
    // Reports name lines.
    cmd.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        .env("CARGO_PROFILE_TEST_DEBUG", "line-tables-only");
    cmd.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags).env_remove("CARGO_ENCODED_RUSTFLAGS");
    // Other flags produce other artifacts; a separate folder keeps those of normal builds.
    cmd.arg("--target-dir").arg(repo_root().join(dir));
    cmd
}
