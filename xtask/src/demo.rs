// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask demo`: the shortest way to see it work, a ping-pong with the C library as the peer, in the VM.

use crate::cargo::{self, Program};
use crate::lab::guest::{Share, Task};
use crate::vm;
use anyhow::Result;
use std::process::ExitCode;

/// What the guest runs.
const SCRIPT: &str = include_str!("demo.sh");

/// Show a ping-pong between this provider and the C library over a link, in the VM
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Who plays the client
    #[arg(long, value_enum, default_value_t = Client::Uverbs)]
    client: Client,
    #[command(flatten)]
    boot: vm::BootArgs,
}

/// Who plays the client; the server is always the C library's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Client {
    /// This repository's `uverbs pingpong`
    Uverbs,
    /// The C library, too: shows that the lab works
    C,
}

/// Runs the chore.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let lab = args.boot.lab()?;
    let mut shares = Vec::new();
    if args.client == Client::Uverbs {
        let host = cargo::build_static(Program::Bin { package: "uverbs-tools", name: "uverbs" })?;
        shares.push(Share { host, guest: "/usr/bin/uverbs".into() });
    }
    let name = if args.client == Client::Uverbs { "uverbs" } else { "c" };
    let task = Task::Command(["sh", "-c", SCRIPT, "demo", name].map(str::to_owned).to_vec());
    let outcome = vm::each_kernel(&lab, &args.boot, |series| {
        let mut spec = args.boot.spec(series, task.clone());
        spec.shares.extend(shares.iter().cloned());
        spec
    })?;
    Ok(ExitCode::from(outcome.code()))
}
