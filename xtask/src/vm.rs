// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask vm`: runs a command, or the test suite, in a VM that has two RDMA devices joined by a link.

use crate::cargo::{self, Program};
use crate::lab::HOME_SUITE;
use crate::lab::Lab;
use crate::lab::device::{Device, Link, Mkeys, Wire};
use crate::lab::guest::{Share, Task};
use crate::lab::kernel::{self, Series};
use crate::lab::qemu::Machine;
use crate::lab::vm::{self, Outcome, Spec};
use anyhow::{Context, Result, anyhow, ensure};
use core::time::Duration;
use std::process::ExitCode;
use std::time::Instant;

/// Run a command in a VM with two RDMA devices (rxe, or mlx5) joined by a link
///
/// The exit status is that of the command, 124 if the time limit was reached, or 125 if the guest's kernel or the lab
/// failed. The guest has the C tools of rdma-core (ibv_*, perftest, rping, ...), ip, rdma, tc, and these helpers:
/// lab-link up|down A|B, lab-netem A|B off|ARGS..., lab-counters, and with mlx5 lab-hca. Environment variables describe
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
/// connects the guests, so that programs can exchange their addresses. The command gets LAB_SIDE, 1 or 2, and LAB_PEER,
/// the address of the other guest; `uverbs` is installed. Without a command, rdma-core's programs and uverbs run
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
/// Builds `uverbs` and the suite (package uverbs-tests, test `vm`) statically, copies both to the guest as
/// /usr/bin/uverbs and /usr/bin/vm-suite, and runs the suite in one boot of each kernel.
#[derive(clap::Args, Clone)]
pub(crate) struct TestArgs {
    /// Run only tests whose name contains this; may be given several times
    #[arg(long, value_name = "F")]
    filter: Vec<String>,
    /// Run a short selection of tests of every kind, which takes one to two minutes
    #[arg(long, conflicts_with = "filter")]
    short: bool,
    /// Repeat a failed test up to N times; the notes at the end name it
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    #[command(flatten)]
    boot: BootArgs,
    /// Further arguments for the suite, e.g. --list or --exact
    #[arg(last = true)]
    args: Vec<String>,
}

impl TestArgs {
    /// The short selection on the kernel's mlx5 driver, InfiniBand and RoCE, to run after these arguments on rxe;
    /// `None` if the arguments select something else.
    pub(crate) fn short_on_mlx5(&self) -> Option<Self> {
        let special = !self.filter.is_empty() || !self.args.is_empty() || self.boot.device != DeviceArg::Rxe;
        let boot = BootArgs { device: DeviceArg::Mlx5, link: Some(LinkArg::All), ..self.boot.clone() };
        (!special).then(|| Self { short: true, boot, ..self.clone() })
    }
}

/// The options of every boot.
#[derive(clap::Args, Clone)]
pub(crate) struct BootArgs {
    /// The kernel: 6.1, 6.12, 7.2, or all of them one after the other
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// The RDMA devices: the kernel's software device, or the kernel's mlx5 driver on software ConnectX NICs
    #[arg(long, value_enum, default_value_t = DeviceArg::Rxe)]
    device: DeviceArg,
    /// Link layer of the ports of mlx5 devices [default: ib for a command, all for the suite]
    #[arg(long, value_enum)]
    link: Option<LinkArg>,
    /// How the guest's kernel registers memory with mlx5 devices
    #[arg(long, value_enum, default_value_t = MkeysArg::Command)]
    mkeys: MkeysArg,
    /// Stop the guest after this number of seconds, including the boot [default: 120 for a command, 900 for the suite]
    #[arg(long, value_name = "SECS")]
    timeout: Option<u64>,
    /// CPUs of the guest
    #[arg(long, value_name = "N", default_value_t = 2)]
    smp: u32,
    /// Memory of the guest in MiB [default: 1024 for a command, 2048 for the suite, which registers 1 GiB]
    #[arg(long, value_name = "MIB")]
    mem: Option<u32>,
    /// Copy a file or directory to the guest, to GUEST or to /usr/bin. Programs should be static, or use no libraries
    /// other than libc, libgcc_s, libibverbs and librdmacm
    #[arg(long = "file", value_name = "HOST[:GUEST]")]
    files: Vec<Share>,
    /// Set a variable for the command
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Further kernel arguments, e.g. loglevel=8
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// The Debian suite whose C tools and libc the guest has
    #[arg(long, value_name = "SUITE", default_value = HOME_SUITE)]
    peers: String,
    /// The Debian suite whose QEMU is used [default: bookworm; forky for mlx5]
    #[arg(long, value_name = "SUITE")]
    qemu: Option<String>,
    /// Boot a guest with busybox, the kernel's modules and the files of --file only: no libc, no C tools
    #[arg(long)]
    bare: bool,
    /// Keep the console's log even after a success
    #[arg(long)]
    keep_log: bool,
    /// Print timings and the guest's console
    #[arg(long, short)]
    verbose: bool,
}

/// The devices of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeviceArg {
    /// The kernel's software device
    Rxe,
    /// The kernel's mlx5 driver, on software ConnectX NICs
    Mlx5,
}

/// The ports of `--link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LinkArg {
    /// InfiniBand
    Ib,
    /// Ethernet
    Roce,
    /// InfiniBand and Ethernet, one after the other
    All,
}

/// The ways of `--mkeys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MkeysArg {
    /// By page lists in commands
    Command,
    /// By the kernel's UMR queue (updates of memory keys)
    Umr,
}

/// Parses `NAME=VALUE`.
fn variable(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let valid = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    ensure!(valid, "`{name}` is not the name of a variable");
    Ok((name.to_owned(), value.to_owned()))
}

impl BootArgs {
    /// The selected kernels.
    pub(crate) fn kernels(&self) -> Result<Vec<Series>> {
        if self.kernel == "all" { Ok(kernel::ALL.to_vec()) } else { Ok(vec![Series::named(&self.kernel)?]) }
    }

    /// The lab to use.
    pub(crate) fn lab(&self) -> Result<Lab> {
        Lab::open(self.verbose)
    }

    /// The selected devices; builds the program that implements them.
    pub(crate) fn devices(&self, default: LinkArg) -> Result<Vec<Device>> {
        if self.device == DeviceArg::Rxe {
            ensure!(self.link.is_none_or(|link| link == LinkArg::Roce), "rxe has no other link than roce");
            ensure!(self.mkeys == MkeysArg::Command, "rxe has no queue for updates of memory keys");
            return Ok(vec![Device::Rxe]);
        }
        let program = cargo::build_hca()?;
        let links = match self.link.unwrap_or(default) {
            LinkArg::Ib => &[Link::Ib][..],
            LinkArg::Roce => &[Link::Roce],
            LinkArg::All => &Link::ALL,
        };
        let mkeys = match self.mkeys {
            MkeysArg::Command => Mkeys::Command,
            MkeysArg::Umr => Mkeys::Umr,
        };
        let device = |link: &Link| Device::Mlx5 { program: program.clone(), link: *link, mkeys };
        Ok(links.iter().map(device).collect())
    }

    /// One boot of a kernel.
    pub(crate) fn spec(&self, series: Series, device: Device, task: Task) -> Spec {
        Spec {
            peers: self.peers.clone(),
            qemu: self.qemu.clone(),
            bare: self.bare,
            machine: Machine { smp: self.smp, mem: self.mem.unwrap_or(1024) },
            timeout: Duration::from_secs(self.timeout.unwrap_or(120)),
            shares: self.files.clone(),
            env: self.env.clone(),
            append: self.append.clone(),
            keep_log: self.keep_log,
            ..Spec::new(series, device, task)
        }
    }
}

/// Runs the command.
pub(crate) fn main(args: Args) -> Result<ExitCode> {
    match &args.what {
        Some(What::Test(args)) => return test(args, None),
        Some(What::Pair(args)) => return pair(args),
        None => {}
    }
    let lab = args.boot.lab()?;
    let task = if args.shell { Task::Shell } else { Task::Command(args.command) };
    let devices = args.boot.devices(LinkArg::Ib)?;
    let outcome =
        each(&lab, &args.boot, &devices, |series, device| args.boot.spec(series, device, task.clone()))?;
    Ok(ExitCode::from(outcome.code()))
}

/// The tests that check within a minute that the kernel's driver, this library and the C programs work on a device.
const SHORT: [&str; 22] = [
    "opcodes::rc_exclusive",
    "opcodes::ud_shared",
    "errors::",
    "events::",
    "inline::",
    "srq::",
    "mcast::",
    "memory::",
    "mw::",
    "xrc_traffic::opcodes_exclusive",
    "dc::",
    "raw::",
    "threads::",
    "stress::",
    "peers::rc::we_serve_c::ecN",
    "peers::srq::c_serves_us::plain",
    "tools::devinfo",
    "tools::c::pingpong::",
    "tools::c::perftest::write_lat",
    "frames::",
    "lifecycle::",
    "removal::",
];

/// The commands of the guest for a whole suite on rxe: the driver's own tests on the device, then the suite. Both
/// always run.
const WHOLE: &str = "rxe-device --ignored --test-threads 1; device=$?; vm-suite && exit $device";

/// The commands of the bare guest, which has only the static `uverbs`.
const BARE: &str = include_str!("bare.sh");

/// Builds the suite and runs it in one boot of each kernel; a whole run also runs the static binary in a bare guest.
pub(crate) fn test(args: &TestArgs, default_retries: Option<u32>) -> Result<ExitCode> {
    let lab = args.boot.lab()?;
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
    for name in ["UVERBS_STRESS_SECONDS", "UVERBS_STRESS_SEED"] {
        if let Ok(value) = std::env::var(name) {
            boot.env.insert(0, (name.into(), value));
        }
    }
    boot.files.push(uverbs.clone());
    boot.files.push(Share { host: suite, guest: "/usr/bin/vm-suite".into() });
    let devices = boot.devices(LinkArg::All)?;
    let task = if whole && devices == [Device::Rxe] {
        let device = cargo::build_static(Program::Test { package: "uverbs-rxe", name: "device" })?;
        boot.files.push(Share { host: device, guest: "/usr/bin/rxe-device".into() });
        Task::Command(["sh", "-c", WHOLE].map(str::to_owned).to_vec())
    } else {
        let words = ["vm-suite"].map(str::to_owned).into_iter();
        Task::Command(words.chain(args.filter.iter().cloned()).chain(args.args.iter().cloned()).collect())
    };
    let outcome = each(&lab, &boot, &devices, |series, device| boot.spec(series, device, task.clone()))?;
    if !whole || outcome != Outcome::Exit(0) {
        return Ok(ExitCode::from(outcome.code()));
    }
    let bare = BootArgs { bare: true, files: vec![uverbs], timeout: Some(200), ..args.boot.clone() };
    let task = Task::Command(["sh", "-c", BARE].map(str::to_owned).to_vec());
    let outcome = each(&lab, &bare, &devices, |series, device| bare.spec(series, device, task.clone()))?;
    Ok(ExitCode::from(outcome.code()))
}

/// The default commands of `vm pair`, for both VMs.
const PAIR: &str = include_str!("pair.sh");

/// Boots two VMs that are on one fabric.
fn pair(args: &PairArgs) -> Result<ExitCode> {
    let lab = args.boot.lab()?;
    let mut boot = args.boot.clone();
    ensure!(boot.link.is_none_or(|link| link == LinkArg::Ib), "two VMs are joined by InfiniBand only");
    boot.device = DeviceArg::Mlx5;
    boot.timeout.get_or_insert(240);
    let uverbs = cargo::build_static(Program::Bin { package: "uverbs-tools", name: "uverbs" })?;
    boot.files.push(Share { host: uverbs, guest: "/usr/bin/uverbs".into() });
    let devices = boot.devices(LinkArg::Ib)?;
    let words = match args.command.is_empty() {
        true => ["sh", "-c", PAIR].map(str::to_owned).to_vec(),
        false => args.command.clone(),
    };
    let task = Task::Command(words);
    let name = format!("pair-{}", std::process::id());
    let dir = lab.path("run").join(&name);
    let mut first = Outcome::Exit(0);
    for series in boot.kernels()? {
        for device in &devices {
            // Sockets of another boot would be in the way.
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
            let run = |side| {
                let wire = Some(Wire { dir: format!("../{name}"), side });
                vm::run(&lab, &Spec { wire, ..boot.spec(series, device.clone(), task.clone()) })
            };
            let outcomes = std::thread::scope(|scope| {
                let both = [1, 2].map(|side| scope.spawn(move || run(side)));
                both.map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a VM's thread panicked"))))
            });
            for (side, outcome) in outcomes.into_iter().enumerate() {
                let outcome = outcome?;
                lab.say(format!("kernel {}, VM {}: status {}", series.name, side + 1, outcome.code()));
                if first == Outcome::Exit(0) {
                    first = outcome;
                }
            }
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
    Ok(ExitCode::from(first.code()))
}

/// Boots every selected kernel with each kind of devices, also after a failure. Returns the first outcome that is not a
/// success.
pub(crate) fn each(
    lab: &Lab,
    boot: &BootArgs,
    devices: &[Device],
    spec: impl Fn(Series, Device) -> Spec,
) -> Result<Outcome> {
    let kernels = boot.kernels()?;
    let several = kernels.len() * devices.len() > 1;
    let mut first = Outcome::Exit(0);
    for series in &kernels {
        for device in devices {
            let name = format!("kernel {}, {}", series.name, device.label());
            if several {
                lab.say(&name);
            }
            let start = Instant::now();
            let outcome = vm::run(lab, &spec(*series, device.clone()))?;
            if several {
                let seconds = start.elapsed().as_secs_f32();
                lab.say(format!("{name}: status {} after {seconds:.0} s", outcome.code()));
            }
            if first == Outcome::Exit(0) {
                first = outcome;
            }
        }
    }
    Ok(first)
}
