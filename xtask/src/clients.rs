// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask clients`: programs of other projects on the C library (package uverbs-clients).

use crate::cargo::{self, Program};
use crate::{crates, dist, peers, pyverbs, repo_root, vm};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use uverbs_clients::native::{Native, Tree};
use uverbs_clients::rows;
use uverbs_lab::args::{BootArgs, LinkArg};
use uverbs_lab::root::Root;
use uverbs_lab::{Outcome, Share, Task};

/// Seconds for all rows of a device, each of which has a time limit of its own.
const TIMEOUT: u64 = 3600;

/// Run programs of rdma-core, perftest and others with the C library, and print a table
///
/// Natively, on the software HCA in each process, joined by a fabric, with the installed programs or those of the Debian
/// release of --peers; with --vm on the devices of a kernel, each program
/// with rdma-core's library, with ours, and with one end of each. The programs are those of the kernel's Debian release:
/// of rdma-core 44 on kernel 6.1, of rdma-core 65 on kernel 7.2. The exit status is 1 if a program passes with
/// rdma-core's library and not with ours.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Run in the VM lab, on the devices of --device
    #[arg(long)]
    vm: bool,
    /// Run only rows whose name contains this; may be given several times. In the VM, "pyverbs test_x" selects the tests
    /// of rdma-core's suite whose names begin with test_x
    #[arg(long, value_name = "F")]
    filter: Vec<String>,
    /// Build crates that bind libibverbs, and run their tests and examples natively; needs CMake and libclang
    #[arg(long, conflicts_with_all = ["vm", "filter"])]
    crates: bool,
    /// Run a short selection in the VM
    #[arg(long, requires = "vm")]
    short: bool,
    #[command(flatten)]
    boot: BootArgs,
}

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    if args.crates {
        return crates::main(&library()?);
    }
    match (args.vm, &args.boot.peers) {
        (true, _) => in_vm(args, &library()?),
        (false, None) => native(&args.filter),
        (false, Some(debian)) => of_release(debian, &args.filter),
    }
}

/// Runs the short selection in the VM.
pub(crate) fn short(boot: BootArgs) -> Result<ExitCode> {
    main(&Args { vm: true, filter: Vec::new(), crates: false, short: true, boot })
}

/// Builds the library with the software HCA inside; its folder.
fn library() -> Result<PathBuf> {
    let out = repo_root().join("target/dist-clients");
    // The profile of the VM's tests: its artifacts are there, and checks are on.
    dist::main(&dist::Args { out: out.clone(), hca: true, profile: "vm".into(), symbols: false })?;
    Ok(out)
}

/// Runs the rows on the software HCA with the installed programs; those whose names contain a part of the filter, if it
/// has any.
pub(crate) fn native(filter: &[String]) -> Result<ExitCode> {
    on_hca(filter, None)
}

/// The same, with the programs of another Debian release, under its own loader and libc.
pub(crate) fn of_release(debian: &str, filter: &[String]) -> Result<ExitCode> {
    let dir = pyverbs::root(&vm::lab(false)?, debian)?;
    let root = Root::at(&dir);
    let command = |library: &Path, program: &str| root.command_with(library, program);
    let python = [dir.join("usr"), dir.join("usr/lib/python3/dist-packages")];
    on_hca(filter, Some(Tree { command: &command, python, suite: dir.join(pyverbs::TESTS) }))
}

fn on_hca(filter: &[String], tree: Option<Tree<'_>>) -> Result<ExitCode> {
    let (library, hca) = (library()?, cargo::build_hca()?);
    let sources = repo_root().join("crates/ibverbs/tests/c");
    let passed = Native { library, hca, sources, filter: filter.to_vec(), tree }.run()?;
    Ok(ExitCode::from(u8::from(!passed)))
}

/// Runs the rows on the devices of each selected kernel; also after a failure.
fn in_vm(args: &Args, library: &Path) -> Result<ExitCode> {
    let lab = vm::lab(args.boot.verbose)?;
    let devices = vm::devices(&args.boot, LinkArg::All)?;
    let program = cargo::build_static(Program::Bin { package: "uverbs-clients", name: "uverbs-clients" })?;
    let mut shares = vec![Share { host: program, guest: "/usr/bin/uverbs-clients".into() }];
    for name in ["libibverbs.so.1", "libmlx5.so.1"] {
        shares.push(Share { host: library.join(name), guest: format!("/opt/uverbs/{name}") });
    }
    let mut words = vec!["uverbs-clients".to_owned(), "--library".into(), "/opt/uverbs".into()];
    words.extend(args.short.then(|| "--short".to_owned()));
    // One word: a part may begin with a hyphen.
    words.extend(args.filter.iter().map(|part| format!("--filter={part}")));
    let is_wanted = |name: &str| args.filter.is_empty() || args.filter.iter().any(|part| name.contains(part));
    let has_suite = is_wanted("pyverbs") || args.filter.iter().any(|part| part.starts_with("pyverbs "));
    words.extend(has_suite.then_some(["--suite", pyverbs::FOLDER]).into_iter().flatten().map(str::to_owned));
    let has_peers =
        rows::all().any(|row| row.is_of_peers() && is_wanted(&row.name()) && (row.short || !args.short));
    let mut first = Outcome::Exit(0);
    for series in args.boot.kernels()? {
        let mut boot = args.boot.clone();
        series.name.clone_into(&mut boot.kernel);
        boot.peers.get_or_insert_with(|| series.suite.to_owned());
        boot.timeout.get_or_insert(TIMEOUT);
        boot.mem.get_or_insert(2048);
        boot.files.extend(shares.iter().cloned());
        if has_suite {
            boot.files.extend(pyverbs::shares(&lab, boot.peers())?);
        }
        if has_peers {
            boot.files.extend(peers::shares(&lab, boot.peers())?);
        }
        for device in &devices {
            println!("Kernel {}, {}, programs of Debian {}", series.name, device.label(), boot.peers());
            first = first.or(boot.run(&lab, core::slice::from_ref(device), &Task::Command(words.clone()))?);
        }
    }
    Ok(ExitCode::from(first.code()))
}
