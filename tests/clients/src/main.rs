// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs-clients`: the rows of the guest's devices. `cargo xtask clients --vm` runs it in the VM.

use clap::Parser;
use core::time::Duration;
use std::path::PathBuf;
use std::process::ExitCode;
use uverbs_clients::guest::Guest;

/// Programs of other projects on the guest's devices, with rdma-core's library and with ours
#[derive(Parser)]
struct Cli {
    /// The folder of our libibverbs.so.1
    #[arg(long, value_name = "DIR")]
    library: PathBuf,
    /// The folder of rdma-core's test suite
    #[arg(long, value_name = "DIR")]
    suite: Option<PathBuf>,
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

fn main() -> ExitCode {
    let Cli { library, suite, short, filter, limit } = Cli::parse();
    let limit = limit.map(Duration::from_secs);
    match (Guest { library, suite, short, filter, limit }).run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("uverbs-clients: {error:#}");
            ExitCode::from(2)
        }
    }
}
