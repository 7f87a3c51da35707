// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask setup`: installs the system packages that building and testing need, from this machine's own suite, and
//! builds the tools that the checks run.

use crate::rust::Emulator;
use crate::tools::Tool;
use crate::{fuzz, run, rust, tools, vm};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use uverbs_lab::{Device, Link, Mkeys, Series, Spec, Task};

/// The packages, and their purposes.
const PACKAGES: [(&str, &str); 16] = [
    ("codespell", "the check of spelling"),
    ("gcc", "linking, and compiling the C programs that tests compare with"),
    ("tshark", "the dissection of the software NIC's packets"),
    (
        "g++",
        "the library of libFuzzer, which the fuzz targets link, and the program for gloo of `cargo xtask clients`",
    ),
    ("gcc-aarch64-linux-gnu", "linking the tests for aarch64"),
    ("libc6-dev-arm64-cross", "the same, and running them"),
    ("libc6-dev", "static programs for the VM"),
    ("linux-libc-dev", "the kernel's headers, with which the ABI is compared"),
    ("linux-headers-amd64", "mlx5_ifc.h, with which the layouts of the PCI front's commands are compared"),
    ("ibverbs-providers", "libmlx5 and libefa, which the modules of python3-pyverbs are linked with"),
    ("ibverbs-utils", "pingpongs on the C library"),
    ("libibverbs-dev", "the C library's headers, with which names and layouts are compared"),
    ("librdmacm-dev", "the same, for connection management"),
    ("perftest", "latency and bandwidth tests on the C library"),
    ("python3-pyverbs", "rdma-core's test suite on the C library"),
    ("valgrind", "memory checks and instruction counts"),
];

/// Install the packages (Debian, as root) and build the tools that building and testing need
///
/// Does nothing if all are installed. The packages come from this machine's own Debian suite. Tools are built by `cargo
/// install` in target/tools. The VM lab unpacks other packages that it needs in target/lab, without installing them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also fetch everything that the VM lab, the checks for aarch64 and the fuzz targets need, so that later runs need no network
    #[arg(long)]
    lab: bool,
    /// Also build the tool of `cargo xtask mutants`
    #[arg(long)]
    mutants: bool,
    /// Only print what is missing; the exit status is 1 if something is missing
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let missing: Vec<_> = PACKAGES.into_iter().filter(|(name, _)| !installed(name)).collect();
    for (name, purpose) in &missing {
        eprintln!("setup: {name} is missing: {purpose}");
    }
    let other: &[&Tool] = if args.mutants { &tools::OTHER } else { &[] };
    let unbuilt: Vec<_> =
        tools::GATE.into_iter().chain(other.iter().copied()).filter(|tool| !tool.installed()).collect();
    for tool in &unbuilt {
        eprintln!("setup: {} is missing: {}", tool.name, tool.purpose);
    }
    if args.check {
        return Ok(ExitCode::from(u8::from(!missing.is_empty() || !unbuilt.is_empty())));
    }
    if missing.is_empty() && unbuilt.is_empty() {
        let tools = tools::GATE.len() + other.len();
        eprintln!("setup: all {} packages and {tools} tools are installed", PACKAGES.len());
    }
    // The tools need none of the packages, which are downloaded meanwhile.
    thread::scope(|scope| {
        let building = scope.spawn(|| Tool::install_all(&unbuilt));
        if !missing.is_empty() {
            install(&missing.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
        }
        building.join().expect("building does not panic")
    })?;
    if args.lab {
        let lab = vm::lab(true)?;
        // The fetched packages do not depend on the program or on the link.
        let mlx5 = Device::Mlx5 { program: PathBuf::new(), link: Link::Ib, mkeys: Mkeys::Command };
        for series in Series::ALL {
            let efa = Device::Efa { program: PathBuf::new(), generation: 3 };
            for device in [Device::Rxe, Device::Siw, mlx5.clone(), efa] {
                lab.prepare(&Spec::new(series, device, Task::Shell))?;
            }
        }
        fuzz::fetch_libfuzzer()?;
        let _lock = lab.lock()?;
        rust::prepare(&lab)?;
        Emulator::ALL.into_iter().try_for_each(|emulator| emulator.prepare(&lab).map(drop))?;
        eprintln!(
            "setup: the VM lab, the compiler and the emulators for aarch64, and libFuzzer are complete"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a package is installed.
fn installed(name: &str) -> bool {
    run::output(Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}\n", name]))
        .is_ok_and(|text| text.lines().any(|line| line == "installed"))
}

fn install(names: &[&str]) -> Result<()> {
    let command = format!("apt-get update && apt-get install -y --no-install-recommends {}", names.join(" "));
    let status = fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let root =
        status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"));
    if !root {
        bail!("only root can install packages; run this as root:\n  {command}");
    }
    let mut update = Command::new("apt-get");
    update.args(["update", "-qq"]);
    // Old package lists may be sufficient; if not, the installation reports the error.
    if let Err(e) = run::inherit(&mut update) {
        eprintln!("setup: note: {e:#}");
    }
    let mut install = Command::new("apt-get");
    install.args(["install", "-y", "-qq", "--no-install-recommends"]).args(names);
    run::inherit(install.env("DEBIAN_FRONTEND", "noninteractive"))
}
