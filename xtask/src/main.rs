// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every chore of this repository as one command.
//!
//! Each chore is a module with the arguments it takes; what several of them use is in [`cargo`], [`run`] and
//! [`lab`]. Chores end with a status of their own: failures of the chore itself, as opposed to what it runs, are 125.

mod aarch64;
mod bench;
mod cargo;
mod ci;
mod demo;
mod dist;
mod fuzz;
mod lab;
mod run;
mod sanitize;
mod setup;
mod test;
mod vm;

use clap::{Parser, Subcommand};
use std::path::Path;
use std::process::ExitCode;

/// Tests, checks and tools of this repository
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

/// The commands; their help is that of their arguments.
#[derive(Subcommand)]
enum Chore {
    Setup(setup::Args),
    Test(test::Args),
    Vm(vm::Args),
    Fuzz(fuzz::Args),
    Sanitize(sanitize::Args),
    Demo(demo::Args),
    Bench(bench::Args),
    Dist(dist::Args),
    Ci(ci::Args),
}

/// The top folder of the repository.
fn repo_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the repository")
}

fn main() -> ExitCode {
    let result = match Cli::parse().chore {
        Chore::Setup(args) => setup::main(&args),
        Chore::Test(args) => test::main(&args),
        Chore::Vm(args) => vm::main(args),
        Chore::Fuzz(args) => fuzz::main(&args),
        Chore::Sanitize(args) => sanitize::main(&args),
        Chore::Demo(args) => demo::main(&args),
        Chore::Bench(args) => bench::main(&args),
        Chore::Dist(args) => dist::main(&args),
        Chore::Ci(args) => ci::main(&args),
    };
    result.unwrap_or_else(|e| {
        eprintln!("error: {e:#}");
        ExitCode::from(125)
    })
}
