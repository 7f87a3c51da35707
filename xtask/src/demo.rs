// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask demo`: a short demonstration. It uses two software HCAs in one process, takes about a second and needs
//! no root. In the VM, it runs a ping-pong with the C library as the peer.

use crate::cargo::{self, Program};
use crate::vm;
use anyhow::Result;
use std::process::ExitCode;
use uverbs_lab::args::{BootArgs, LinkArg};
use uverbs_lab::{Share, Task};

/// The commands of the guest.
const SCRIPT: &str = include_str!("demo.sh");

/// Run a demonstration on two software HCAs in one process, without root, or with the C library in the VM
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run a ping-pong in the VM with the C library as the peer, over a link between two devices of a real kernel
    #[arg(long)]
    vm: bool,
    /// Client program in the VM
    #[arg(long, value_enum, default_value_t = Client::Uverbs, requires = "vm")]
    client: Client,
    #[command(flatten)]
    boot: BootArgs,
}

/// The client program; the server is always that of the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Client {
    /// `uverbs pingpong` of this repository
    Uverbs,
    /// ibv_rc_pingpong of the C library, to check the lab
    C,
}

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    if args.vm { in_vm(args) } else { here() }
}

/// On the software HCA: the program that `cargo xtask` starts has it.
fn here() -> Result<ExitCode> {
    cargo::call(&["run", "--quiet", "--package", "xtask-front", "--", "demo"])?;
    Ok(ExitCode::SUCCESS)
}

/// With the C library, on a real kernel.
fn in_vm(args: &Args) -> Result<ExitCode> {
    let mut boot = args.boot.clone();
    if args.client == Client::Uverbs {
        let host = cargo::build_static(Program::Bin { package: "uverbs-tools", name: "uverbs" })?;
        boot.files.push(Share { host, guest: "/usr/bin/uverbs".into() });
    }
    let name = if args.client == Client::Uverbs { "uverbs" } else { "c" };
    let devices = vm::devices(&boot, LinkArg::Ib)?;
    let outcome =
        boot.run(&vm::lab(boot.verbose)?, &devices, &Task::command(["sh", "-c", SCRIPT, "demo", name]))?;
    Ok(ExitCode::from(outcome.code()))
}
