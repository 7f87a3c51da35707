// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask vm`: runs a command, or the test suite, in a VM of the lab (`crates/lab`).

use crate::cargo::{self, Program};
use crate::repo_root;
use anyhow::Result;
use std::process::ExitCode;
use uverbs_lab::args::{BootArgs, DeviceArg, LinkArg};
use uverbs_lab::{Device, Lab, Outcome, Share, Task};

/// Run a command in a VM with two RDMA devices (rxe, siw, mlx5 or efa) joined by a link
///
/// The exit status is that of the command, 124 if the time limit was reached, or 125 if the guest's kernel or the lab
/// failed. The guest has the C tools of rdma-core (ibv_*, perftest, rping, ...), ip, rdma, tc, and these helpers:
/// lab-link up|down A|B, lab-netem A|B off|ARGS..., lab-counters, and with mlx5 and efa lab-hca. Environment variables describe
/// its devices: LAB_KERNEL, LAB_DEVICE, LAB_LINK, LAB_MKEYS, LAB_DEV_A, LAB_DEV_B, LAB_IP_A, LAB_IP_B, LAB_GID_INDEX,
/// LAB_NETDEV_A, LAB_NETDEV_B, LAB_NS_A, LAB_NS_B (command prefixes, empty if no namespaces are needed),
/// LAB_TCP_HOST_A, LAB_TCP_HOST_B. All files are fetched on first use and kept in target/lab, which may be deleted at
/// any time.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Example:\n  cargo xtask vm --kernel all -- sh -c \
    'ibv_rc_pingpong -d $LAB_DEV_A -g 1 & sleep 1; ibv_rc_pingpong -d $LAB_DEV_B -g 1 $LAB_TCP_HOST; lab-counters'")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    boot: BootArgs,
    /// Start an interactive shell instead of a command
    #[arg(long, conflicts_with = "command")]
    shell: bool,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "shell")]
    command: Vec<String>,
}

/// The subcommands, other than a command for the guest.
#[derive(clap::Subcommand)]
enum What {
    Test(TestArgs),
    Pair(PairArgs),
}

/// Boot two VMs whose mlx5 devices are on one fabric, and run a command in both
///
/// Each VM has its own device process; the second one joins the fabric of the first (`uverbs-hca --join`). A network
/// connects the guests, so that programs can exchange their addresses. The command gets LAB_SIDE, 1 or 2, and LAB_ADDRESS
/// and LAB_PEER, the addresses of this guest and of the other one; `uverbs` is installed. Without a command, rdma-core's programs and uverbs run
/// pingpongs and bandwidth tests between the guests.
#[derive(clap::Args, Clone)]
pub(crate) struct PairArgs {
    #[command(flatten)]
    boot: BootArgs,
    /// The command and its arguments
    #[arg(last = true)]
    command: Vec<String>,
}

/// Run the end-to-end suite in the VM
///
/// Builds `uverbs`, the examples, and the suite (package uverbs-tests, test `vm`) statically, copies them to /usr/bin of the
/// guest, the suite as vm-suite, the examples to /usr/lib/examples, and runs the suite in one boot of each kernel.
#[derive(clap::Args, Clone)]
pub(crate) struct TestArgs {
    /// Run only tests whose name contains this; may be given several times
    #[arg(long, value_name = "F")]
    filter: Vec<String>,
    /// Run a short selection of tests of every kind; takes one to two minutes
    #[arg(long, conflicts_with = "filter")]
    short: bool,
    /// Repeat a failed test up to N times; the notes at the end of the output name the test
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    #[command(flatten)]
    pub(crate) boot: BootArgs,
    /// Further arguments for the suite, e.g. --list or --exact
    #[arg(last = true)]
    args: Vec<String>,
}

impl TestArgs {
    /// The short selections on the kernel's mlx5 driver, InfiniBand and RoCE, on siw and on EFA, to run after these arguments on rxe;
    /// `None` if the arguments select something else.
    pub(crate) fn short_on_others(&self) -> Option<[Self; 3]> {
        let special = !self.filter.is_empty() || !self.args.is_empty() || self.boot.device != DeviceArg::Rxe;
        let short = |device, link| {
            let boot = BootArgs { device, link, ..self.boot.clone() };
            Self { short: true, boot, ..self.clone() }
        };
        (!special).then(|| {
            [
                short(DeviceArg::Mlx5, Some(LinkArg::All)),
                short(DeviceArg::Siw, None),
                short(DeviceArg::Efa, None),
            ]
        })
    }
}

/// The lab of this checkout.
pub(crate) fn lab(verbose: bool) -> Result<Lab> {
    Ok(Lab::open(repo_root().join("target/lab"))?.verbose(verbose))
}

/// The selected devices; builds the program that implements mlx5 or EFA devices.
pub(crate) fn devices(boot: &BootArgs, default: LinkArg) -> Result<Vec<Device>> {
    boot.devices(default, |device| cargo::build_devices(device == DeviceArg::Efa))
}

/// Runs the command.
pub(crate) fn main(args: Args) -> Result<ExitCode> {
    match &args.what {
        Some(What::Test(args)) => return test(args, None),
        Some(What::Pair(args)) => return pair(args),
        None => {}
    }
    let task = if args.shell { Task::Shell } else { Task::Command(args.command) };
    let devices = devices(&args.boot, LinkArg::Ib)?;
    let outcome = args.boot.run(&lab(args.boot.verbose)?, &devices, &task)?;
    Ok(ExitCode::from(outcome.code()))
}

/// The tests that check within a minute that the kernel's driver, this library and the C programs work on a device.
const SHORT: [&str; 34] = [
    "opcodes::rc_exclusive",
    "opcodes::ud_shared",
    "errors::",
    "aio::",
    "events::",
    "inline::",
    "srq::",
    "mcast::",
    "memory::",
    "mw::",
    "xrc::every_opcode_works_exclusive",
    "dc::",
    "devx::",
    "raw::",
    "threads::",
    "stress::",
    "peers::rc::ours_serves_c::ecN",
    "peers::srq::c_serves_ours::plain",
    "cm::greeting::",
    "cm::errors",
    "cm::rping::ours_serves_c::ipv4",
    "cm::rstream::c_serves_ours::ipv4",
    "cm::xrc",
    "tools::devinfo",
    "tools::kv::",
    "tools::bulk",
    "tools::c::pingpong::",
    "tools::c::perftest::write_lat",
    "examples::",
    "frames::",
    "lifecycle::",
    "removal::",
    "siw::",
    "efa::",
];

/// The commands of the bare guest, which has only the static `uverbs`.
const BARE: &str = include_str!("bare.sh");

/// The whole programs of `crates/examples`, and gRPC.
fn examples() -> impl Iterator<Item = (&'static str, Program<'static>)> {
    let names = ["kv", "bulk", "rc_pingpong", "loopback", "echo"];
    let of_package = names.map(|name| (name, Program::Bin { package: "uverbs-examples", name }));
    of_package.into_iter().chain([("uverbs-grpc", crate::test::grpc_program())])
}

/// The duration of stress tests in seconds, more than that of `cargo test`.
pub(crate) const STRESS: (&str, &str) = ("UVERBS_STRESS_SECONDS", "3");
const SEED: &str = "UVERBS_STRESS_SEED";

/// Builds the suite and runs it in one boot of each kernel; a whole run also runs the static binary in a bare guest.
pub(crate) fn test(args: &TestArgs, default_retries: Option<u32>) -> Result<ExitCode> {
    let lab = lab(args.boot.verbose)?;
    let mut args = args.clone();
    if args.short {
        args.filter = SHORT.map(str::to_owned).to_vec();
    }
    let args = &args;
    let whole = args.filter.is_empty() && args.args.is_empty();
    let uverbs = cargo::build_static(Program::Bin { package: "uverbs-tools", name: "uverbs" })?;
    let suite = cargo::build_static(Program::Test { package: "uverbs-tests", name: "vm" })?;
    let uverbs = Share { host: uverbs, guest: "/usr/bin/uverbs".into() };
    let mut boot = args.boot.clone();
    boot.timeout.get_or_insert(900);
    boot.mem.get_or_insert(2048);
    boot.env.insert(0, ("RUST_BACKTRACE".into(), "1".into()));
    if let Some(n) = args.retries.or(default_retries) {
        boot.env.insert(0, ("UVERBS_TEST_RETRIES".into(), n.to_string()));
    }
    boot.env.insert(0, (STRESS.0.into(), std::env::var(STRESS.0).unwrap_or_else(|_| STRESS.1.into())));
    if let Ok(seed) = std::env::var(SEED) {
        boot.env.insert(0, (SEED.into(), seed));
    }
    boot.files.push(uverbs.clone());
    // EFA has no connections, which the examples need.
    for (name, program) in examples().filter(|_| boot.device != DeviceArg::Efa).collect::<Vec<_>>() {
        let host = cargo::build_static(program)?;
        // Not in /usr/bin, which has another echo.
        boot.files.push(Share { host, guest: format!("/usr/lib/examples/{name}") });
    }
    boot.files.push(Share { host: suite, guest: "/usr/bin/vm-suite".into() });
    let devices = devices(&boot, LinkArg::All)?;
    let words = ["vm-suite"].map(str::to_owned).into_iter();
    let task =
        Task::Command(words.chain(args.filter.iter().cloned()).chain(args.args.iter().cloned()).collect());
    let outcome = boot.run(&lab, &devices, &task)?;
    if !whole || outcome != Outcome::Exit(0) {
        return Ok(ExitCode::from(outcome.code()));
    }
    let bare = BootArgs { bare: true, files: vec![uverbs], timeout: Some(400), ..args.boot.clone() };
    let outcome = bare.run(&lab, &devices, &Task::command(["sh", "-c", BARE]))?;
    Ok(ExitCode::from(outcome.code()))
}

/// The default commands of `vm pair`, for both VMs.
const PAIR: &str = include_str!("pair.sh");

/// Boots two VMs that are on one fabric.
fn pair(args: &PairArgs) -> Result<ExitCode> {
    let mut boot = args.boot.clone();
    if boot.device != DeviceArg::Efa {
        boot.device = DeviceArg::Mlx5;
    }
    boot.timeout.get_or_insert(480);
    let uverbs = cargo::build_static(Program::Bin { package: "uverbs-tools", name: "uverbs" })?;
    boot.files.push(Share { host: uverbs, guest: "/usr/bin/uverbs".into() });
    let devices = devices(&boot, LinkArg::Ib)?;
    let words = match args.command.is_empty() {
        true => ["sh", "-c", PAIR].map(str::to_owned).to_vec(),
        false => args.command.clone(),
    };
    let outcome = boot.pair(&lab(boot.verbose)?, &devices, &Task::Command(words))?;
    Ok(ExitCode::from(outcome.code()))
}
