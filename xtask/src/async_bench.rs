// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask async-bench`: compares uverbs-aio with rdma-io and TCP in the VM lab (the programs of `tests/async-bench`).
//!
//! rdma-io runs on the C libraries of the guest, so the program is linked to them, and built on the Debian release whose
//! libraries the guest has. Instructions are counted by this machine's valgrind, which is copied to the guest.

use crate::{cargo, repo_root, run, vm};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::ExitCode;
use uverbs_lab::args::{BootArgs, DeviceArg, LinkArg};
use uverbs_lab::{Share, Task};

/// The manifest of the programs, which are a separate workspace.
pub(crate) const MANIFEST: &str = "tests/async-bench/Cargo.toml";

/// Seconds for all rounds and counts on a device.
const TIMEOUT: u64 = 1800;

/// Where Debian has valgrind's tools, and what callgrind needs of them.
const VALGRIND: &str = "/usr/libexec/valgrind";
const TOOLS: [&str; 3] = ["callgrind-amd64-linux", "default.supp", "vgpreload_core-amd64-linux.so"];

/// Measure messages and streams of uverbs-aio, rdma-io and TCP, on rxe and on the kernel's mlx5 driver
///
/// One VM for each device; in it all libraries run interleaved, one after the other in each round. Prints user instructions per
/// message, counted by callgrind, and messages per second and latencies as medians of the rounds. The machine must be
/// a Debian 12 with libibverbs-dev, librdmacm-dev and valgrind.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    boot: BootArgs,
    /// Arguments for the program in the guest, e.g. --test echo, --no-counts, --rounds 3; --help lists them
    #[arg(last = true)]
    args: Vec<String>,
}

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let mut build = cargo::cargo(&["build", "--quiet", "--locked", "--release", "--manifest-path", MANIFEST]);
    let target = repo_root().join("target/async-bench");
    run::inherit(build.arg("--target-dir").arg(&target))?;
    let name = "uverbs-async-bench";
    let mut boot = args.boot.clone();
    boot.files.push(Share { host: target.join("release").join(name), guest: format!("/usr/bin/{name}") });
    boot.files.push(Share { host: "/usr/bin/valgrind.bin".into(), guest: "/usr/bin/valgrind".into() });
    for tool in TOOLS {
        let host = Path::new(VALGRIND).join(tool);
        boot.files.push(Share { guest: host.display().to_string(), host });
    }
    for share in &boot.files {
        ensure!(share.host.exists(), "{} is missing: see `cargo xtask setup`", share.host.display());
    }
    boot.timeout.get_or_insert(TIMEOUT);
    // rdma-io's connection manager needs addresses.
    if boot.device == DeviceArg::Mlx5 {
        boot.link.get_or_insert(LinkArg::Roce);
    }
    let words = [name, "compare"].map(str::to_owned).into_iter();
    let task = Task::Command(words.chain(args.args.iter().cloned()).collect());
    let lab = vm::lab(boot.verbose)?;
    let devices = vm::devices(&boot, LinkArg::Roce).context("cannot build the devices")?;
    Ok(ExitCode::from(boot.run(&lab, &devices, &task)?.code()))
}
