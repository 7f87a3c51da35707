// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs-clients`: the rows of the guest's devices. `cargo xtask clients --vm` runs it in the VM.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use core::time::Duration;
use std::path::PathBuf;
use std::process::ExitCode;
use uverbs_clients::guest::Guest;
use uverbs_clients::remote;

/// Programs of other projects on the guest's devices, with rdma-core's library and with ours
///
/// In a pair of guests, the first one runs the rows, with the clients in the second one.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    other: Option<Other>,
    /// The folder of our libibverbs.so.1
    #[arg(long, value_name = "DIR")]
    library: Option<PathBuf>,
    /// The folder of rdma-core's test suite
    #[arg(long, value_name = "DIR")]
    suite: Option<PathBuf>,
    /// The rows of published Rust crates, instead of all others
    #[arg(long)]
    crates: bool,
    /// Only a short selection
    #[arg(long)]
    short: bool,
    /// Only rows whose names contain this; may be given several times
    #[arg(long, value_name = "F")]
    filter: Vec<String>,
    /// Start no further row after this number of seconds
    #[arg(long, value_name = "SECS")]
    limit: Option<u64>,
}

/// What else the program does.
#[derive(Subcommand)]
enum Other {
    /// Run a command in the other guest of a pair, in which this program serves
    At {
        /// The other guest
        host: String,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

fn run() -> Result<u8> {
    let Cli { other, library, suite, crates, short, filter, limit } = Cli::parse();
    if let Some(Other::At { host, command }) = other {
        return remote::run(&host, &command);
    }
    let library = library.context("--library is missing")?;
    let limit = limit.map(Duration::from_secs);
    let passed = Guest { library, suite, crates, short, filter, limit }.run()?;
    Ok(u8::from(!passed))
}

fn main() -> ExitCode {
    run().map_or_else(
        |error| {
            eprintln!("uverbs-clients: {error:#}");
            ExitCode::from(2)
        },
        ExitCode::from,
    )
}
