// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask test`: runs all tests, the fastest first.
//!
//! Unit, property and doc tests by `cargo test`, with the layouts of firmware commands against the kernel's header; programs of other
//! projects on the C library; EFA's formats against the headers of the kernel's driver; the packets of the software NIC with Wireshark;
//! the locks under loom's model checker; the instructions of posts and polls against their limits; every fuzz target for a short time;
//! tests for aarch64 under emulation; and the end-to-end suite in the VM:
//! all of it on rxe, then selections on the kernel's mlx5 driver, on siw and on the kernel's efa driver. The output names the kinds of
//! tests that a flag leaves out.
//!
//! After `cargo test`, what runs in the VM, on one emulated CPU most of the time, runs beside the others ([`steps`]).

use crate::cargo::Program;
use crate::steps::{self, Steps, Watch};
use crate::{aarch64, bench, cargo, ci, clients, fuzz, packets, repo_root, run, vm};
use anyhow::{Context, Result, ensure};
use std::process::{Command, ExitCode};
use uverbs_lab::args::LinkArg;
use uverbs_lab::{Kind, Series};

/// Run all tests: cargo test, those for aarch64, the C library's clients, the loom tests, the benchmark's counts, the fuzz targets, and the suite in the VM
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only the tests that most changes need; takes less than two minutes after the first build
    #[arg(long)]
    quick: bool,
    /// Do not run the VM
    #[arg(long)]
    no_vm: bool,
    /// Do not run the tests for aarch64, whose compiler the first run downloads from Debian's archive
    #[arg(long)]
    no_aarch64: bool,
    /// Do not run the fuzz targets
    #[arg(long)]
    no_fuzz: bool,
    /// Inputs for each fuzz target; targets that make devices and a connection for each input get a fifth of them
    #[arg(long, default_value_t = 25_000)]
    fuzz_runs: u32,
    /// Seed of the fuzz targets' random numbers; 0 selects a new one each time
    #[arg(long, default_value_t = 1)]
    fuzz_seed: u32,
    /// Run only this step, e.g. loom; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with = "quick")]
    only: Vec<String>,
    #[command(flatten)]
    vm: vm::TestArgs,
}

/// The first step, alone: some of its tests are in real time, and its build leaves no CPU idle.
const FIRST: &str = "cargo test";

/// Steps on this machine.
const HERE: [&str; 7] = [CLIENTS, CLIENTS_65, FORMATS, PACKETS, "gRPC", "loom", "bench"];
const CLIENTS: &str = "clients";
const CLIENTS_65: &str = "clients of rdma-core 65";
const FORMATS: &str = "formats of EFA";
const PACKETS: &str = "packets";
const AARCH64: &str = "aarch64";
const FUZZ: &str = "fuzz";

/// Steps in the VM, the longest first. The others follow unless the arguments select something for the first one.
const VM: &str = "VM suite";
const OTHER_VMS: [&str; 5] = [
    "VM suite on mlx5",
    "VM suite on siw",
    "VM suite on efa",
    "clients in the VM, rxe",
    "clients in the VM, mlx5",
];

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    if args.quick {
        return quick();
    }
    steps::known(&args.only, &[&[FIRST][..], &HERE, &[AARCH64, FUZZ, VM], &OTHER_VMS].concat())?;
    if !args.only.is_empty() {
        for name in &args.only {
            let code = one(name, args)?;
            if code != ExitCode::SUCCESS {
                return Ok(code);
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let calls = Steps::of_this_call()?;
    step(FIRST, first)?;
    let (mut here, mut vms) = (HERE.to_vec(), Vec::new());
    if args.no_aarch64 {
        eprintln!("test: left out: tests for aarch64 (--no-aarch64)");
    } else {
        here.push(AARCH64);
    }
    if args.no_fuzz {
        eprintln!("test: left out: fuzz targets (--no-fuzz)");
    } else {
        here.push(FUZZ);
    }
    if args.no_vm {
        eprintln!("test: left out: the end-to-end suite in the VM (--no-vm)");
    } else {
        vms.push(VM);
    }
    if !args.no_vm && args.vm.short_on_others().is_some() {
        vms.extend(OTHER_VMS);
    } else if !args.no_vm {
        eprintln!(
            "test: left out: the VM suite on mlx5, siw and efa, clients in the VM (another selection was requested)"
        );
    }
    calls.run(&[&vms, &here])
}

/// Seconds for a run of the suite in the VM, beside another step.
const SUITE_LIMIT: u64 = 1800;

/// Variables of `cargo test`: stress tests are longer here, and generated cases more, than for a person who waits for it.
const OF_FIRST: [(&str, &str); 3] =
    [("UVERBS_PROGRAMS", "200"), ("UVERBS_TEST_LITMUS", "3/2,4/3000"), vm::STRESS];

/// Runs `cargo test`. A test that a user's machine may skip, because a program or a header is missing, fails: `setup` has installed all.
fn first() -> Result<()> {
    let mut test = cargo::cargo(&["test", "--workspace"]);
    // This program has the number of cases of `.cargo/config.toml`, or one that was asked for.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(0);
    test.env("CI", "1").env("PROPTEST_CASES", cases.max(256_u32).to_string());
    run::inherit(test.envs(OF_FIRST.into_iter().filter(|(name, _)| std::env::var_os(name).is_none())))
}

/// Runs one step.
fn one(name: &str, args: &Args) -> Result<ExitCode> {
    let others = || args.vm.short_on_others().context("the arguments select something else");
    let suite = |mut vm: vm::TestArgs| {
        vm.boot.timeout.get_or_insert(SUITE_LIMIT);
        in_vm(name, &vm)
    };
    let run: &dyn Fn() -> Result<()> = match name {
        FIRST => &first,
        CLIENTS => &|| no_regression(clients::native(&[])?),
        CLIENTS_65 => &|| no_regression(clients::of_release("forky", &[])?),
        FORMATS => &efa_formats,
        PACKETS => &packets::check,
        "gRPC" => &grpc,
        "loom" => &loom,
        "bench" => &bench::check,
        AARCH64 => &aarch64::test,
        FUZZ => &|| fuzz::run_all(args.fuzz_runs, args.fuzz_seed),
        VM => return suite(args.vm.clone()),
        "VM suite on mlx5" => return suite(others()?[0].clone()),
        "VM suite on siw" => return suite(others()?[1].clone()),
        "VM suite on efa" => return suite(others()?[2].clone()),
        "clients in the VM, rxe" => &|| no_regression(clients::short(args.vm.boot.clone())?),
        // On InfiniBand fewer clients have rows, and the suite, which has C programs as peers, runs there.
        _ => &|| {
            let mut boot = others()?[0].boot.clone();
            boot.link = Some(LinkArg::Roce);
            no_regression(clients::short(boot)?)
        },
    };
    step(name, run).map(|()| ExitCode::SUCCESS)
}

/// Fails unless the table of clients, which is printed, has no regression.
fn no_regression(code: ExitCode) -> Result<()> {
    ensure!(code == ExitCode::SUCCESS, "the table above has regressions");
    Ok(())
}

/// The long tests of the suite on the software HCA, which `--quick` leaves out.
pub(crate) const LONG: [&str; 4] = ["stress::", "programs::", "process::", "constructors::"];

/// Runs the tests of `--quick`.
fn quick() -> Result<ExitCode> {
    step("format", ci::format)?;
    // All steps have --workspace, so that they use the same features, and therefore the same artifacts.
    step("units", || {
        // The unit tests of these packages, which are optimised, are tests of `uverbs-tests`, which is not.
        let optimised = ["--exclude", "uverbs-hca", "--exclude", "uverbs-fabric"];
        let targets = ["--lib", "--bins", "--test", "hca-units", "--test", "fabric-units"];
        cargo::call(&[&["test", "--workspace"], &optimised[..], &targets[..]].concat())
    })?;
    step("tables, vectors, documentation", || {
        let targets = ["--test", "semantics", "--test", "vectors", "--test", "book", "--test", "uverbs"];
        cargo::call(&[&["test", "--workspace"], &targets[..]].concat())
    })?;
    step("software HCA", || {
        let mut args = vec!["test", "--workspace", "--test", "hca", "--"];
        args.extend(LONG.iter().flat_map(|name| ["--skip", *name]));
        cargo::call(&args)
    })?;
    step("doc tests", || cargo::call(&["test", "--workspace", "--doc"]))?;
    eprintln!(
        "test: left out by --quick: {} of the suite; aarch64, clients, loom, gRPC, bench, fuzz, VM",
        LONG.join(", ")
    );
    Ok(ExitCode::SUCCESS)
}

/// Runs the suite in the VM, which prints its failures, and prints the time that it took.
fn in_vm(name: &str, args: &vm::TestArgs) -> Result<ExitCode> {
    let watch = Watch::start();
    eprintln!("test: {name}");
    let code = vm::test(args, Some(1))?;
    let how = if code == ExitCode::SUCCESS { "passed" } else { "FAILED" };
    eprintln!("test: {name} {how} in {watch}");
    Ok(code)
}

/// Compares the formats of EFA with the headers of the kernel's driver, which are in the source from which the lab builds it. `cargo test` says
/// that it does not compare them.
fn efa_formats() -> Result<()> {
    let headers = vm::lab(false)?.source(Kind::Efa, Series::named("7.2")?)?;
    let mut cmd = cargo::cargo(&["test", "--workspace", "--test", "headers", "every_declaration"]);
    run::inherit(cmd.env("UVERBS_EFA_HEADERS", headers))
}

/// The manifest of gRPC over RDMA, which is a separate workspace.
pub(crate) const GRPC: &str = "tests/grpc/Cargo.toml";

/// The program, which also runs in the VM.
pub(crate) fn grpc_program() -> Program<'static> {
    let name = "uverbs-grpc";
    Program::Other { manifest: GRPC, package: name, name }
}

/// Runs a client and a server of tonic over streams of `uverbs-aio`.
fn grpc() -> Result<()> {
    run::inherit(&mut Command::new(cargo::build_static(grpc_program())?))
}

/// Tests the locks, and the data that posters and pollers share, in all relevant interleavings.
fn loom() -> Result<()> {
    let mut cmd = cargo::cargo(&["test", "--lib"]);
    cmd.args(["uverbs-core", "uverbs-mlx5", "uverbs-aio"].iter().flat_map(|name| ["--package", name]));
    // Other flags produce other artifacts; a separate folder keeps those of normal builds.
    cmd.env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_ENCODED_RUSTFLAGS");
    // loom's threads have small stacks, which the frames of a build with less optimisation overflow.
    cmd.env("CARGO_PROFILE_DEV_OPT_LEVEL", "2");
    // Of the other packages only loom, what it calls at each step, and the switch of its threads take time.
    let level = |package: &str, level: u8| format!("profile.dev.package.{package}.opt-level={level}");
    cmd.args(["--config", &level("\"*\"", 0)]);
    for package in ["loom", "generator", "scoped-tls", "smallvec", "tracing", "tracing-core"] {
        cmd.args(["--config", &level(package, 2)]);
    }
    // Each execution maps and unmaps the stacks of its threads, and tests in one process would wait for each other's calls.
    cmd.env("RUST_TEST_THREADS", "1");
    cmd.arg("--target-dir").arg(repo_root().join("target/loom")).arg("loom");
    run::inherit(&mut cmd)
}

/// Runs a step and prints the time that it took.
fn step(name: &str, f: impl FnOnce() -> Result<()>) -> Result<()> {
    let watch = Watch::start();
    eprintln!("test: {name}");
    f().with_context(|| format!("test: {name} failed"))?;
    eprintln!("test: {name} passed in {watch}");
    Ok(())
}
