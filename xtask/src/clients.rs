// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask clients`: programs of other projects on the C library (package uverbs-clients).

use crate::cargo::{self, Program};
use crate::{crates, dist, nixl, peers, pyverbs, repo_root, vm, wheels};
use anyhow::{Context, Result, anyhow};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;
use uverbs_clients::native::{Native, Tree};
use uverbs_clients::report::{self, Summary};
use uverbs_clients::row::{Family, LIBFABRIC, NIXL, Place, Row};
use uverbs_clients::rows;
use uverbs_lab::args::{BootArgs, DeviceArg, LinkArg};
use uverbs_lab::root::Root;
use uverbs_lab::{Device, HOME_SUITE, Lab, Link, Outcome, Share, Task};

/// The folder of our libraries in the guest.
const OURS: &str = "/opt/uverbs";
/// Seconds for all rows of a device, each of which has a time limit of its own.
const TIMEOUT: u64 = 7200;

/// Run programs of rdma-core, perftest and others with the C library, and print a table
///
/// Natively, on the software HCA and the software EFA in each process, joined by a fabric, with the installed programs or those of
/// the Debian release of --peers; with --vm on the devices of a kernel, each program
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
    /// Build published Rust crates that bind libibverbs, and run their tests and examples in place of the other rows; needs
    /// CMake and libclang
    #[arg(long, conflicts_with = "short")]
    crates: bool,
    /// Run a short selection in the VM
    #[arg(long, requires = "vm")]
    short: bool,
    /// Run in two VMs whose mlx5 devices are on one fabric: the clients of each row in the second one, and OpenMPI in both,
    /// all by default with the programs of Debian 12
    #[arg(long, requires = "vm")]
    pair: bool,
    #[command(flatten)]
    boot: BootArgs,
}

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    match (args.vm, &args.boot.peers) {
        (true, _) => in_vm(args, &library(&format!("-{}", args.boot.device.name()))?),
        (false, _) if args.crates => crates::main(&library("")?, &args.filter),
        (false, None) => native(&args.filter),
        (false, Some(debian)) => of_release(debian, &args.filter),
    }
}

/// Runs the short selection in the VM.
pub(crate) fn short(boot: BootArgs) -> Result<ExitCode> {
    main(&Args { vm: true, filter: Vec::new(), crates: false, short: true, pair: false, boot })
}

/// Builds the library with the software devices inside. Returns its folder, whose name ends in `of`: native programs and each device of the VM
/// have a folder of their own, because a library in use must not be written again.
fn library(of: &str) -> Result<PathBuf> {
    let out = repo_root().join(format!("target/dist-clients{of}"));
    // The profile of the VM's tests: its artifacts are there, and checks are on.
    dist::main(&dist::Args { out: out.clone(), hca: true, profile: "vm".into(), symbols: false })?;
    Ok(out)
}

/// Runs the rows on the software devices with the installed programs; those whose names contain a part of the filter, if it
/// has any.
pub(crate) fn native(filter: &[String]) -> Result<ExitCode> {
    on_software(filter, HOME_SUITE, None)
}

/// The same, with the programs of another Debian release, under its own loader and libc.
pub(crate) fn of_release(debian: &str, filter: &[String]) -> Result<ExitCode> {
    let dir = pyverbs::root(&vm::lab(false)?, debian)?;
    let root = Root::at(&dir);
    let command = |library: &Path, program: &str| root.command_with(library, program);
    let python = [dir.join("usr"), dir.join("usr/lib/python3/dist-packages")];
    on_software(filter, debian, Some(Tree { command: &command, python, suite: dir.join(pyverbs::TESTS) }))
}

fn on_software(filter: &[String], debian: &str, tree: Option<Tree<'_>>) -> Result<ExitCode> {
    let (library, hca) = (library("")?, cargo::build_devices(false)?);
    // The VM suite uses the same executable.
    let tools = cargo::build_static(Program::Bin { package: "uverbs-tools", name: "uverbs" })?;
    let sources = repo_root().join("crates/ibverbs/tests/c");
    let fetched = |row: &Row| -> Result<Command> {
        match row.family {
            Family::Wheel => wheels::command(row.program),
            _ if row.packages() == Some(LIBFABRIC) => {
                peers::libfabric(&vm::lab(false)?, debian, &library, row.program)
                    .context("its packages can't be fetched")
            }
            _ => peers::gloo(&vm::lab(false)?, HOME_SUITE, &library)
                .context("its packages can't be fetched or its program can't be built"),
        }
    };
    let fetched = &fetched;
    let passed =
        Native { library: library.clone(), hca, tools, sources, filter: filter.to_vec(), tree, fetched };
    let passed = passed.run()?;
    Ok(ExitCode::from(u8::from(!passed)))
}

/// Runs the rows on the devices of each selected kernel, also after a failure, and prints a table of all runs.
fn in_vm(args: &Args, library: &Path) -> Result<ExitCode> {
    let lab = vm::lab(args.boot.verbose)?;
    let mut boot = args.boot.clone();
    if args.pair {
        boot.device = DeviceArg::Mlx5;
    }
    let devices = vm::devices(&boot, LinkArg::All)?;
    let program = cargo::build_static(Program::Bin { package: "uverbs-clients", name: "uverbs-clients" })?;
    let mut shares = vec![Share { host: program, guest: "/usr/bin/uverbs-clients".into() }];
    for name in dist::SONAMES {
        shares.push(Share { host: library.join(name), guest: format!("{OURS}/{name}") });
    }
    if args.crates {
        // They are linked with this machine's libc, which is not newer than that of any guest.
        shares.extend(crates::build()?);
    }
    let timeout = args.boot.timeout.unwrap_or(TIMEOUT);
    // The last row, and the boot, may take the rest.
    let limit = (timeout - timeout / 8).to_string();
    let mut words = ["uverbs-clients", "--library", OURS, "--limit", &limit].map(str::to_owned).to_vec();
    words.extend(args.short.then(|| "--short".to_owned()));
    words.extend(args.crates.then(|| "--crates".to_owned()));
    // One word: a part may begin with a hyphen.
    words.extend(args.filter.iter().map(|part| format!("--filter={part}")));
    let is_wanted = |name: &str| args.filter.is_empty() || args.filter.iter().any(|part| name.contains(part));
    let has_suite = !args.pair
        && !args.crates
        && (is_wanted("pyverbs") || args.filter.iter().any(|part| part.starts_with("pyverbs ")));
    words.extend(has_suite.then_some(["--suite", pyverbs::FOLDER]).into_iter().flatten().map(str::to_owned));
    let wanted = rows::of(args.crates).filter(|row| is_wanted(&row.name()) && (row.short || !args.short));
    let places: Vec<Place> = devices.iter().map(place).collect();
    let has_peers = wanted.clone().any(Row::is_of_peers);
    let has_mpi = args.pair && wanted.clone().any(Row::is_mpi);
    let on = |row: &&Row| places.iter().any(|place| row.places.list.contains(place));
    let optional: BTreeSet<&str> = wanted.filter(on).filter_map(Row::packages).collect();
    let copies = tempfile::tempdir().context("cannot make a folder")?;
    let mut runs = Vec::new();
    for series in args.boot.kernels()? {
        let mut boot = boot.clone();
        series.name.clone_into(&mut boot.kernel);
        // OpenMPI 4 is that of Debian 12.
        let suite = if args.pair { HOME_SUITE } else { series.suite };
        boot.peers.get_or_insert_with(|| suite.to_owned());
        boot.timeout = Some(timeout);
        boot.mem.get_or_insert(2048);
        boot.files.extend(shares.iter().cloned());
        // Packages that can't be fetched for one kernel leave the others.
        let files = || -> Result<Vec<Share>> {
            let mut files = if has_suite { pyverbs::shares(&lab, boot.peers())? } else { Vec::new() };
            for (is_wanted, set) in [(has_peers, &peers::PEERS), (has_mpi, &peers::MPI)] {
                files.extend(if is_wanted { peers::shares(&lab, boot.peers(), set)? } else { Vec::new() });
            }
            // Their rows are left out if the Debian release lacks them.
            let mut extend = |name: &str, shares: Result<Vec<Share>>| match shares {
                Ok(shares) => files.extend(shares),
                Err(error) => eprintln!("clients: no {name} of Debian {}: {error:#}", boot.peers()),
            };
            for set in peers::OPTIONAL.iter().filter(|set| optional.contains(set.name)) {
                extend(set.name, peers::shares(&lab, boot.peers(), set));
            }
            if optional.contains(NIXL) {
                extend(NIXL, nixl::shares(&lab, boot.peers(), library, OURS));
            }
            // They have libraries in common.
            let mut seen = BTreeSet::new();
            files.retain(|share| seen.insert(share.guest.clone()));
            Ok(files)
        };
        let files = files();
        for device in devices.iter().map(|device| for_programs(device, &boot)) {
            let label = format!("{}{}", device.label(), if args.pair { ", two VMs" } else { "" });
            println!("Kernel {}, {label}, programs of Debian {}", series.name, boot.peers());
            let copy = copies.path().join(runs.len().to_string());
            let start = || {
                let files = files.as_ref().map_err(|error| anyhow!("{error:#}"))?;
                let mut spec = boot.spec(series, device.clone(), Task::Command(words.clone()));
                spec.shares.extend(files.iter().cloned());
                spec.copy = Some(copy.clone());
                if args.pair {
                    let [first, second] = lab.pair(&spec)?;
                    return Ok(first.or(second));
                }
                lab.run(&spec)
            };
            let mut run = Run::of(series.name, label, &copy, start);
            run.rdma_core = rdma_core(&lab, boot.peers());
            runs.push(run);
        }
    }
    println!("{}", table(&runs));
    Ok(ExitCode::from(code(&runs)))
}

/// The device for the programs of this boot: perftest of Debian 12 knows the first two generations of EFA, and posts reads of others in a way
/// that EFA does not have.
fn for_programs(device: &Device, boot: &BootArgs) -> Device {
    match device {
        Device::Efa { program, .. } if boot.generation.is_none() && boot.peers() == HOME_SUITE => {
            Device::Efa { program: program.clone(), generation: 2 }
        }
        device => device.clone(),
    }
}

/// The rows of a device.
fn place(device: &Device) -> Place {
    match (device, device.link()) {
        (Device::Rxe, _) => Place::Rxe,
        (Device::Siw, _) => Place::Siw,
        (Device::Mlx5 { .. }, Link::Ib) => Place::Ib,
        (Device::Mlx5 { .. }, _) => Place::Roce,
        (Device::Efa { .. }, _) => Place::Efa,
    }
}

/// The exit status: that of the first run that failed.
fn code(runs: &[Run]) -> u8 {
    runs.iter().fold(Outcome::Exit(0), |first, run| first.or(run.outcome)).code()
}

/// The version of rdma-core in a Debian release: the library is named libibverbs.so.1.14.44.0 for version 44.
fn rdma_core(lab: &Lab, debian: &str) -> String {
    let link = lab.path(format!("root-{debian}/usr/lib/x86_64-linux-gnu/libibverbs.so.1"));
    let name = fs::read_link(link).unwrap_or_default().to_string_lossy().into_owned();
    name.split('.').nth(4).unwrap_or("?").to_owned()
}

/// One boot.
struct Run {
    kernel: &'static str,
    device: String,
    rdma_core: String,
    outcome: Outcome,
    output: String,
    minutes: f32,
}

impl Run {
    /// Boots a guest, whose output goes to the file `copy`. An error is a result, too: other kernels follow.
    fn of(kernel: &'static str, device: String, copy: &Path, boot: impl FnOnce() -> Result<Outcome>) -> Self {
        let start = Instant::now();
        let mut outcome = boot().unwrap_or_else(|error| {
            eprintln!("clients: kernel {kernel}, {device}: {error:#}");
            Outcome::Broken
        });
        let output = String::from_utf8_lossy(&fs::read(copy).unwrap_or_default()).into_owned();
        // A command that succeeds without its table has not run the rows.
        if outcome == Outcome::Exit(0) && Summary::find(&output).is_none() {
            outcome = Outcome::Broken;
        }
        let minutes = start.elapsed().as_secs_f32() / 60.0;
        Self { kernel, device, rdma_core: String::new(), outcome, output, minutes }
    }
}

/// A line for each boot.
fn table(runs: &[Run]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header([
        "kernel",
        "device",
        "rdma-core",
        "rows",
        "regressions",
        "failed with C",
        "left out",
        "pyverbs: C",
        "pyverbs: ours",
        "minutes",
        "verdict",
    ]);
    for run in runs {
        let summary = Summary::find(&run.output);
        // Without the guest's table, the rows that it has finished.
        let finished = || run.output.lines().filter(|line| line.starts_with(report::FINISHED)).count();
        let verdict = match (run.outcome, &summary) {
            (Outcome::Exit(0), Some(_)) => "ok".to_owned(),
            (Outcome::Timeout, _) => format!("TIME LIMIT after {} rows", finished()),
            (Outcome::Broken, _) => format!("BROKEN after {} rows", finished()),
            (Outcome::Exit(_), Some(summary)) if summary.unreached > 0 => {
                format!("FAILED, {} rows not reached", summary.unreached)
            }
            (Outcome::Exit(code), _) => format!("FAILED ({code})"),
        };
        let summary = summary.unwrap_or_default();
        let [c, ours] = summary.suite;
        table.add_row([
            run.kernel.to_owned(),
            run.device.clone(),
            run.rdma_core.clone(),
            summary.rows.to_string(),
            summary.regressions.to_string(),
            summary.failed_with_c.to_string(),
            summary.left_out.to_string(),
            c,
            ours,
            format!("{:.1}", run.minutes),
            verdict,
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_kernels_follow_one_that_fails() {
        let folder = tempfile::tempdir().unwrap();
        let copy = |kernel: &str| folder.path().join(kernel);
        let summary = Summary { rows: 7, ..Summary::default() };
        let runs = [
            Run::of("6.1", "rxe".into(), &copy("6.1"), || Err(anyhow!("no packages"))),
            // The command has printed nothing.
            Run::of("6.12", "rxe".into(), &copy("6.12"), || Ok(Outcome::Exit(0))),
            Run::of("7.2", "rxe".into(), &copy("7.2"), || {
                fs::write(copy("7.2"), format!("{summary}\n"))?;
                Ok(Outcome::Exit(0))
            }),
        ];
        assert_eq!(
            runs.each_ref().map(|run| run.outcome),
            [Outcome::Broken, Outcome::Broken, Outcome::Exit(0)]
        );
        assert_eq!(code(&runs), Outcome::Broken.code());
        assert_eq!(code(&runs[2..]), 0);
        let text = table(&runs).to_string();
        assert_eq!(text.matches("| BROKEN after 0 rows").count(), 2, "{text}");
        assert!(text.contains("| 7.2 ") && text.contains("| ok "), "{text}");
    }

    #[test]
    fn a_run_without_a_table_has_its_line() {
        let run = |outcome, output: &str| Run {
            kernel: "7.2",
            device: "mlx5 ib".into(),
            rdma_core: "65".into(),
            outcome,
            output: output.into(),
            minutes: 1.0,
        };
        let summary = Summary { rows: 7, ..Summary::default() };
        let runs = [
            run(Outcome::Exit(0), &format!("{summary}\n")),
            run(Outcome::Broken, &format!("{}a\nx\n{}b\n", report::FINISHED, report::FINISHED)),
            run(Outcome::Timeout, ""),
        ];
        let text = table(&runs).to_string();
        for verdict in ["| ok", "| BROKEN after 2 rows", "| TIME LIMIT after 0 rows"] {
            assert!(text.contains(verdict), "{text}");
        }
    }
}
