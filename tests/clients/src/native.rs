// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows on the software HCA, and on the software EFA, in each process: no VM, no kernel's device, no root.
//!
//! The programs are those of this machine's packages, or of another Debian release. `uverbs-hca --fabric` joins the processes. rdma-core's library has no
//! device here, so the only column is ours, and each row must pass. The C programs of `crates/ibverbs/tests/c` run under
//! valgrind(1) and AddressSanitizer; without them, `cargo test` runs them.

use crate::process::{End, Group};
use crate::pyverbs::{self, Version};
use crate::report::{Cell, Ends, Line, Report, twice};
use crate::row::{LIBFABRIC, Names, Place, Row};
use crate::rows;
use anyhow::{Context, Result, ensure};
use core::time::Duration;
use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The first port of the rows' servers; each row has another one.
const FIRST_PORT: u16 = 21_000;
/// The first port of the pairs of perftest and `uverbs perf`.
const FIRST_PERF_PORT: u16 = 21_500;
/// The first port of the rows on the software EFA.
const FIRST_EFA_PORT: u16 = 21_700;
/// The time limit of most rows. Two programs that poll and the fabric compete for two CPUs with other processes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// The maximum lifetime of the fabric, which normally ends with the run.
const FABRIC_LIMIT: Duration = Duration::from_secs(3600);
/// The software devices of a run.
#[derive(Clone, Copy)]
struct Devices {
    place: Place,
    /// The name of the first one.
    device: &'static str,
    /// The index of its GID.
    gid: &'static str,
    /// The variable with their number, and that with the socket of the fabric.
    variables: [&'static str; 2],
    /// In the names of rows.
    suffix: &'static str,
}

/// The software HCA. The GID is that of RoCE version 2 with an IPv4 address.
const HCA: Devices = Devices {
    place: Place::Native,
    device: "hca0",
    gid: "3",
    variables: ["UVERBS_HCA", "UVERBS_HCA_FABRIC"],
    suffix: "",
};
/// The software EFA.
const EFA: Devices = Devices {
    place: Place::NativeEfa,
    device: "efa0",
    gid: "0",
    variables: ["UVERBS_EFA", "UVERBS_EFA_FABRIC"],
    suffix: " (EFA)",
};
/// perftest of Debian 12 knows the PCI ids of the first two generations. It posts reads of the others by `ibv_post_send`, which EFA does not
/// have.
const EFA_OF_DEBIAN_12: (&str, &str) = ("UVERBS_EFA_GENERATION", "2");

/// C programs of this repository.
const OWN: [(&str, Devices); 6] =
    [("loopback", HCA), ("events", HCA), ("threads", HCA), ("fork", HCA), ("garbage", HCA), ("efa", EFA)];

/// Tests of perftest that also run with `uverbs perf` at one end, with the arguments of both.
const PERF: [(&str, &str); 12] = [
    ("send_lat", "-n 50 -e"),
    ("send_lat", "-n 50 -c UD"),
    ("write_lat", "-n 50"),
    ("write_lat", "-n 50 -c XRC"),
    ("read_lat", "-n 50"),
    ("atomic_lat", "-n 50 -A CMP_AND_SWAP"),
    ("send_bw", "-n 50 -c UC -q 2"),
    ("send_bw", "-n 20 -b -s 4096"),
    ("write_bw", "-n 50 -l 5 --report_gbits"),
    ("write_bw", "-D 1"),
    ("read_bw", "-n 50 -b -o 4"),
    ("atomic_bw", "-n 50"),
];

/// Programs that are not installed.
pub struct Tree<'a> {
    /// Starts a program of the tree with the tree's loader; libraries in the given folder are preferred to the tree's.
    pub command: &'a dyn Fn(&Path, &str) -> Result<Command>,
    /// The folder of the interpreter's libraries, and that of pyverbs.
    pub python: [PathBuf; 2],
    /// The folder of rdma-core's test suite and its runner.
    pub suite: PathBuf,
}

/// The parameters of a run.
pub struct Native<'a> {
    /// The folder of `libibverbs.so.1`, built with the software HCA.
    pub library: PathBuf,
    /// The program `uverbs-hca`.
    pub hca: PathBuf,
    /// The program `uverbs`.
    pub tools: PathBuf,
    /// The folder of the C programs.
    pub sources: PathBuf,
    /// Only rows whose names contain one of these, if there are any.
    pub filter: Vec<String>,
    /// The programs; `None` for those that are installed.
    pub tree: Option<Tree<'a>>,
    /// Starts a program that is [fetched](Row::is_fetched) for a run; an error is the reason why there is none.
    pub fetched: &'a dyn Fn(&Row) -> Result<Command>,
}

impl Native<'_> {
    fn is_wanted(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| name.contains(part.as_str()))
    }

    /// Starts a program with our library and two devices of this kind.
    fn command(&self, devices: Devices, program: &str) -> Result<Command> {
        let mut cmd = match &self.tree {
            None => Command::new(program),
            Some(tree) => (tree.command)(&self.library, program)?,
        };
        cmd.envs(self.env(devices));
        Ok(cmd)
    }

    fn env(&self, devices: Devices) -> Vec<(&'static str, String)> {
        let mut env = own_env(devices, &self.library);
        if devices.place == Place::NativeEfa && self.tree.is_none() {
            let (name, value) = EFA_OF_DEBIAN_12;
            env.push((name, value.into()));
        }
        env
    }

    /// Runs the rows and prints the table. Returns whether there is no regression.
    ///
    /// # Errors
    /// A program is not installed, or the fabric does not start.
    pub fn run(&self) -> Result<bool> {
        let folder = tempfile::tempdir().context("cannot make a folder")?;
        let mut report = Report::default();
        let socket = folder.path().join("fabric");
        let mut group = Group::new(FABRIC_LIMIT)?;
        let fabric = group.start(Command::new(&self.hca).arg("--fabric").arg(&socket))?;
        ensure!(group.wait_for_text(fabric, "join at"), "no fabric: {}", group.last_lines(fabric));
        self.rows(HCA, &|_| Ok(socket.clone()), None, &mut report)?;
        self.perf(&socket, &mut report)?;
        if self.tree.is_none() {
            self.own(folder.path(), &mut report)?;
        }
        self.efa(folder.path(), &mut report)?;
        for devices in [HCA, EFA] {
            let name = format!("pyverbs{}", devices.suffix);
            if self.is_wanted(&name) {
                let cell = twice(&name, || self.suite(devices, folder.path()))?;
                report.add(Line { name, cells: vec![(Ends::Ours, cell)] });
            }
        }
        Ok(report.print())
    }

    /// The rows on the software EFA. Each has a fabric of its own, whose process is the program that starts first.
    fn efa(&self, folder: &Path, report: &mut Report) -> Result<()> {
        let sysfs = folder.join("sysfs");
        make_sysfs(&sysfs).context("cannot make files of sysfs")?;
        let socket = |port: u16| Ok(folder.join(format!("efa-{port}")));
        self.rows(EFA, &socket, Some(&sysfs), report)
    }

    /// rdma-core's test suite.
    fn suite(&self, devices: Devices, folder: &Path) -> Result<Cell> {
        let (python, suite, version) = match &self.tree {
            Some(tree) => {
                let mut python = self.command(devices, "python3")?;
                python.env("PYTHONHOME", &tree.python[0]).env("PYTHONPATH", &tree.python[1]);
                // It asks rdma(8) for the devices' network devices, of which there are none; without the kernel's modules
                // the program fails.
                let programs = folder.join("bin");
                fs::create_dir_all(&programs).context("cannot make a folder for a program")?;
                let rdma = programs.join("rdma");
                fs::write(&rdma, "#!/bin/sh\necho '[]'\n").context("cannot write a program")?;
                fs::set_permissions(&rdma, Permissions::from_mode(0o755))
                    .context("cannot write a program")?;
                let path = env::var("PATH").unwrap_or_default();
                python.env("PATH", format!("{}:{path}", programs.display()));
                (python, tree.suite.as_path(), Version::V65)
            }
            None => {
                if !folder.join("tests").exists() {
                    pyverbs::unpack(Path::new(pyverbs::INSTALLED), folder)?;
                }
                (self.command(devices, pyverbs::PYTHON)?, folder, Version::V44)
            }
        };
        // The other tests are those of the software HCA.
        let (prefixes, wanted) = match devices.place {
            Place::NativeEfa => ("test_efa", version.efa()),
            _ => ("", version.native()),
        };
        let results = pyverbs::run(python, suite, prefixes, devices.device, devices.gid)?;
        Ok(pyverbs::judge(Place::Native, &results, &wanted))
    }

    /// The programs of rdma-core and others on devices of a kind. `socket` is that of the fabric of the row whose server has a port; some
    /// programs look for their devices in `sysfs`.
    fn rows(
        &self,
        devices: Devices,
        socket: &dyn Fn(u16) -> Result<PathBuf>,
        sysfs: Option<&Path>,
        report: &mut Report,
    ) -> Result<()> {
        let named = |row: &Row| format!("{}{}", row.name(), devices.suffix);
        let rows =
            rows::all().filter(|row| row.places.list.contains(&devices.place) && self.is_wanted(&named(row)));
        let first = if devices.place == Place::Native { FIRST_PORT } else { FIRST_EFA_PORT };
        for (row, port) in rows.filter(|row| self.tree.is_some() || !rows::is_newer(row)).zip(first..) {
            let names = Names {
                device: devices.device.into(),
                gid: devices.gid.into(),
                port,
                host: "localhost".into(),
                address: String::new(),
                own: String::new(),
                macs: Default::default(),
                has_controller: false,
            };
            if row.is_fetched() && self.tree.is_some() && row.packages() != Some(LIBFABRIC) {
                continue;
            }
            if row.is_fetched()
                && let Err(error) = (self.fetched)(row)
            {
                report.leave_out(named(row), format!("{error:#}"));
                continue;
            }
            let command = |is_client| -> Result<Command> {
                let mut cmd = match row.is_fetched() {
                    false => self.command(devices, row.program)?,
                    true => (self.fetched)(row)?,
                };
                cmd.envs(self.env(devices)).envs(row.variables().iter().copied());
                cmd.args(row.words(is_client, &names)).env(devices.variables[1], socket(port)?);
                if let Some(sysfs) = sysfs {
                    cmd.env("SYSFS_PATH", sysfs);
                }
                Ok(cmd)
            };
            let start = Instant::now();
            let cell = twice(&named(row), || ends(row, port, command(false)?, command(true)?))?;
            eprintln!("clients: {} ({:.1} s)", named(row), start.elapsed().as_secs_f32());
            report.add(Line { name: named(row), cells: vec![(Ends::Ours, cell)] });
        }
        Ok(())
    }

    /// perftest with `uverbs perf` at the other end, in both roles.
    fn perf(&self, socket: &Path, report: &mut Report) -> Result<()> {
        let roles = [("uverbs serves perftest", true), ("perftest serves uverbs", false)];
        let tests =
            PERF.into_iter().flat_map(|(test, args)| roles.map(|(role, serves)| (test, args, role, serves)));
        for ((test, args, role, serves), port) in tests.zip(FIRST_PERF_PORT..) {
            let name = format!("{role}: ib_{test} {args}");
            if !self.is_wanted(&name) {
                continue;
            }
            let command = |is_ours: bool, host: &str| -> Result<Command> {
                let mut cmd = if is_ours {
                    let mut cmd = Command::new(&self.tools);
                    cmd.args(["perf", &test.replace('_', "-")]);
                    cmd
                } else {
                    self.command(HCA, &format!("ib_{test}"))?
                };
                let line = format!("-d {} -x {} -F -p {port} {args} {host}", HCA.device, HCA.gid);
                cmd.args(line.split_whitespace()).env("UVERBS_HCA_FABRIC", socket);
                Ok(cmd)
            };
            let run = || {
                pair(Some(port), false, LIMIT, &mut command(serves, "")?, &mut command(!serves, "127.0.0.1")?)
            };
            let cell = twice(&name, run)?;
            report.add(Line { name, cells: vec![(Ends::Ours, cell)] });
        }
        Ok(())
    }

    /// The C programs of this repository, under tools that check memory.
    fn own(&self, folder: &Path, report: &mut Report) -> Result<()> {
        for (program, devices) in OWN {
            for tool in ["valgrind", "address sanitizer"] {
                let name = format!("{program}.c ({tool})");
                if !self.is_wanted(&name) {
                    continue;
                }
                let is_valgrind = tool == "valgrind";
                let path = folder.join(format!("{program}-{}", &tool[..1]));
                self.compile(program, &path, is_valgrind)?;
                let command = || {
                    let mut cmd = Command::new(if is_valgrind { Path::new("valgrind") } else { &path });
                    if is_valgrind {
                        // Valgrind runs one thread at a time. A program that polls must not keep the device's threads from running.
                        cmd.args(["-q", "--fair-sched=try", "--error-exitcode=9"]).arg(&path);
                    }
                    // Python and others leave memory allocated at exit; so do these programs, intentionally.
                    cmd.envs(own_env(devices, &self.library)).env("ASAN_OPTIONS", "detect_leaks=0");
                    cmd
                };
                let cell = twice(&name, || single(command()))?;
                report.add(Line { name, cells: vec![(Ends::Ours, cell)] });
            }
        }
        Ok(())
    }

    fn compile(&self, program: &str, to: &Path, is_valgrind: bool) -> Result<()> {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu17", "-g", "-o"]).arg(to).arg(self.sources.join(format!("{program}.c")));
        if !is_valgrind {
            cc.arg("-fsanitize=address");
        }
        cc.arg("-L").arg(&self.library).args(["-lefa", "-libverbs", "-lpthread"]);
        let out = cc.output().context("no C compiler")?;
        ensure!(out.status.success(), "cc: {}", String::from_utf8_lossy(&out.stderr));
        Ok(())
    }
}

/// The variables of a program with the library in a folder and two devices.
fn own_env(devices: Devices, library: &Path) -> Vec<(&'static str, String)> {
    let [count, _] = devices.variables;
    vec![("LD_LIBRARY_PATH", library.display().to_string()), (count, "2".into())]
}

/// Makes the files of sysfs that libfabric reads of an EFA device: the version of uverbs, the place of the PCI device, and its driver.
fn make_sysfs(root: &Path) -> std::io::Result<()> {
    let driver = root.join("bus/pci/drivers/efa");
    fs::create_dir_all(&driver)?;
    fs::create_dir_all(root.join("class/infiniband_verbs"))?;
    fs::write(root.join("class/infiniband_verbs/abi_version"), "6\n")?;
    for i in 0..2 {
        let (device, pci) = (
            root.join(format!("class/infiniband/efa{i}")),
            root.join(format!("devices/pci0000:00/0000:00:0{}.0", 5 + i)),
        );
        fs::create_dir_all(&device)?;
        fs::create_dir_all(&pci)?;
        symlink(&pci, device.join("device"))?;
        symlink(&driver, pci.join("driver"))?;
    }
    Ok(())
}

/// Runs a program of one process.
///
/// # Errors
/// It can't be started.
pub fn single(mut cmd: Command) -> Result<Cell> {
    let mut group = Group::new(LIMIT)?;
    let process = group.start(&mut cmd)?;
    let end = group.wait(process);
    Ok(match end {
        End::Exit(0) => Cell::Pass,
        end => Cell::Fail(format!("{end}\n{}", group.last_lines(process))),
    })
}

/// Runs a row: its only process, or a server and a client.
///
/// # Errors
/// A program can't be started.
pub fn ends(row: &Row, port: u16, mut server: Command, mut client: Command) -> Result<Cell> {
    if row.is_single() {
        return single(server);
    }
    pair(row.has_port().then_some(port), row.is_endless(), row.limit(), &mut server, &mut client)
}

/// Runs a server and a client. The client starts when the server listens at its TCP port, if it has one. A server that is
/// endless is killed when the client has ended.
///
/// # Errors
/// A program can't be started.
pub fn pair(
    port: Option<u16>,
    is_endless: bool,
    limit: Duration,
    server: &mut Command,
    client: &mut Command,
) -> Result<Cell> {
    let mut group = Group::new(limit)?;
    let first = group.start(server)?;
    let mut second = None;
    if port.is_none_or(|port| group.wait_for_port(first, port)) {
        second = Some(group.start(client)?);
    }
    // If the client has failed, the server would wait for it until the time limit.
    let client = second.map(|second| (second, group.wait(second)));
    if client.as_ref().is_none_or(|(_, end)| *end != End::Exit(0)) {
        group.hurry();
    }
    if is_endless && matches!(client, Some((_, End::Exit(0)))) {
        return Ok(Cell::Pass);
    }
    let server = group.wait(first);
    if server == End::Exit(0) && matches!(client, Some((_, End::Exit(0)))) {
        return Ok(Cell::Pass);
    }
    let mut text = format!("server: {server}\n{}", group.last_lines(first));
    if let Some((second, end)) = client {
        text.push_str(&format!("\nclient: {end}\n{}", group.last_lines(second)));
    }
    Ok(Cell::Fail(text))
}
