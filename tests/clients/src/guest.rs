// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows on the kernel's devices, inside the guest of the VM lab.
//!
//! The environment is that of `uverbs_lab::guest`. The server has the device at one end of the link, the client that at the
//! other end. Each row runs with rdma-core's library, which is installed in the guest, with ours, and with one end of each.
//!
//! In a pair of guests, the first one runs the rows. Their clients are in the second guest.

use crate::harness;
use crate::mpi::{self, Job};
use crate::native::ends;
use crate::process::{End, Group};
use crate::pyverbs;
use crate::remote;
use crate::report::{Cell, Ends, FINISHED, Line, Report, twice};
use crate::row::{Family, Names, Place, Row};
use crate::rows;
use crate::watch;
use anyhow::{Context, Result, bail};
use core::time::Duration;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The first port of the rows' servers; each run has another one.
const FIRST_PORT: u16 = 21_000;
/// A filter that begins with this selects tests of rdma-core's suite, whose names begin with the rest.
const TESTS: &str = "pyverbs ";
/// The time for which a client of librdmacm is repeated, because its server has no socket to wait for. On a busy machine a run
/// takes many times as long as on an idle one, where it takes a second.
const LIMIT: Duration = Duration::from_secs(90);
/// The processor time of a server of `raw_ethernet_lat` or `mckey` that has posted its receives and polls: it has no socket, and a
/// packet that comes earlier is lost.
const POLLING: Duration = Duration::from_millis(500);
/// The time after which such a server, if it still runs, has missed packets.
const AGAIN: Duration = Duration::from_secs(2);
/// Printed by perftest's client when it asks for its second connection before the server listens for it. perftest 25.01 of Debian 13
/// crashes then, with any library, and its server, which has the first connection, polls for ever.
const REJECTED: &str = "RDMA_CM_EVENT_REJECTED";
/// Pairs of a server and a client that are started if the client crashes so.
const PAIRS: u32 = 4;
/// The time limit of a job of MPI. Several processes poll on each emulated CPU.
const JOB_LIMIT: Duration = Duration::from_secs(300);

/// UCX's transports on libibverbs, which some packages of it lack: 1.23 of Debian 14.
const UCX_MODULE: &str = "/usr/lib/x86_64-linux-gnu/ucx/libuct_ib.so.0";

/// Runs a command with a terminal as its standard input: UCX that is built with MPI, as that of Debian 13, uses MPI instead of a
/// socket if it has none.
const TERMINAL: [&str; 4] = ["sh", "-c", "exec \"$@\" </dev/ttyS0", "sh"];

/// The combinations of libraries, and whether the server and the client have ours.
const ALL: [(Ends, bool, bool); 4] = [
    (Ends::C, false, false),
    (Ends::Ours, true, true),
    (Ends::CServesOurs, false, true),
    (Ends::OursServesC, true, false),
];

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The folder of our `libibverbs.so.1`.
    pub library: PathBuf,
    /// The folder of rdma-core's test suite and its runner, if it is installed in the guest.
    pub suite: Option<PathBuf>,
    /// The rows of published Rust crates, instead of all others.
    pub crates: bool,
    /// Only the short selection.
    pub short: bool,
    /// Only rows whose names contain one of these, if there are any.
    pub filter: Vec<String>,
    /// No row starts later than this.
    pub limit: Option<Duration>,
}

/// The ends of the link.
struct Link {
    devices: [String; 2],
    addresses: [String; 2],
    /// Of the network devices; empty on InfiniBand.
    macs: [String; 2],
    /// Commands that enter the network namespaces, or run a command in the other guest.
    prefixes: [Vec<String>; 2],
    host: String,
    gid: String,
    place: Place,
    has_controller: bool,
    is_pair: bool,
}

impl Link {
    fn from_env() -> Result<Self> {
        let get =
            |name: &str| env::var(name).with_context(|| format!("{name} is not set: not in the lab's guest"));
        let both = |name: &str| -> Result<[String; 2]> {
            Ok([get(&format!("{name}_A"))?, get(&format!("{name}_B"))?])
        };
        let place = match (get("LAB_DEVICE")?.as_str(), get("LAB_LINK")?.as_str()) {
            ("rxe", _) => Place::Rxe,
            ("siw", _) => Place::Siw,
            ("mlx5", "ib") => Place::Ib,
            ("mlx5", _) => Place::Roce,
            ("efa", _) => Place::Efa,
            (device, _) => bail!("no rows for {device}"),
        };
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect();
        // The route between two addresses of this guest goes by the server's device of iWARP, so the client has that one, too.
        let ends =
            |both: [String; 2]| if place == Place::Siw { [both[0].clone(), both[0].clone()] } else { both };
        Ok(Self {
            devices: ends(both("LAB_DEV")?),
            addresses: ends(both("LAB_IP")?),
            macs: both("LAB_NETDEV")?.map(|netdev| {
                let text = fs::read_to_string(format!("/sys/class/net/{netdev}/address"));
                text.unwrap_or_default().trim().to_owned()
            }),
            prefixes: both("LAB_NS")?.map(words),
            host: get("LAB_TCP_HOST_A")?,
            gid: get("LAB_GID_INDEX")?,
            place,
            // Its text about the options; `-h` is not one of them.
            has_controller: Command::new("cmtime").arg("-h").output().is_ok_and(|out| {
                [out.stdout, out.stderr].iter().any(|text| text.windows(13).any(|w| w == b"-C controller"))
            }),
            is_pair: false,
        })
    }

    /// The link between the first devices of two guests, for the first guest.
    fn between(own: String, peer: &str) -> Result<Self> {
        let mut link = Self::from_env()?;
        let netdev = env::var("LAB_NETDEV_A").unwrap_or_default();
        link.devices = [link.devices[0].clone(), link.devices[0].clone()];
        if !netdev.is_empty() {
            link.addresses[1] = remote::output(peer, &["sh", "-c", "echo $LAB_IP_A"])?;
            link.macs[1] = remote::output(peer, &["cat", &format!("/sys/class/net/{netdev}/address")])?;
        }
        link.prefixes = [Vec::new(), ["uverbs-clients", "at", peer, "--"].map(str::to_owned).to_vec()];
        link.host = own;
        link.is_pair = true;
        Ok(link)
    }
}

impl Guest {
    /// Runs the rows and prints the table. Returns whether there is no regression.
    ///
    /// # Errors
    /// This is not the lab's guest, or a program can't be started.
    pub fn run(&self) -> Result<bool> {
        let Ok(peer) = env::var("LAB_PEER") else { return self.table(&Link::from_env()?) };
        let own = env::var("LAB_ADDRESS").context("LAB_ADDRESS is not set")?;
        mpi::install_agent()?;
        if env::var("LAB_SIDE").is_ok_and(|side| side != "1") {
            return remote::serve().map(|()| true);
        }
        let _session = remote::session(&peer)?;
        self.table(&Link::between(own, &peer)?)
    }

    fn table(&self, link: &Link) -> Result<bool> {
        let mut report = Report::default();
        let mut port = FIRST_PORT;
        let begin = Instant::now();
        let wanted = |row: &&'static Row| {
            let name = row.name();
            let selected = self.filter.is_empty()
                || self
                    .filter
                    .iter()
                    .any(|part| name.contains(part.as_str()) || name == "pyverbs" && part.starts_with(TESTS));
            selected && (row.short || !self.short)
        };
        for row in rows::of(self.crates).filter(wanted) {
            let start = Instant::now();
            if !row.places.list.contains(&link.place) {
                report.leave_out(row.name(), row.places.why);
                continue;
            }
            // The version of rdma-core by which `cmtime` has a controller is newer than that of Debian 12.
            if rows::is_newer(row) && !link.has_controller {
                report.leave_out(
                    row.name(),
                    "perftest of this Debian release refuses writes and events with SRD",
                );
                continue;
            }
            if matches!(row.family, Family::Uct | Family::Ucp) && !Path::new(UCX_MODULE).exists() {
                report.leave_out(
                    row.name(),
                    "UCX of this Debian release is built without transports on libibverbs",
                );
                continue;
            }
            if row.packages().is_some() && !Path::new("/usr/bin").join(row.program).exists() {
                report.leave_out(row.name(), "its packages are not to be had for this Debian release");
                continue;
            }
            if link.is_pair && !row.is_for_pair() {
                report.leave_out(row.name(), "it has no server and client");
                continue;
            }
            if !link.is_pair && row.is_mpi() {
                report.leave_out(row.name(), "it needs two VMs");
                continue;
            }
            if self.limit.is_some_and(|limit| begin.elapsed() >= limit) {
                report.not_reached(row.name());
                continue;
            }
            let line = match (row.program, &self.suite) {
                ("pyverbs", None) => {
                    report.leave_out(row.name(), "its files are not installed");
                    continue;
                }
                ("pyverbs", Some(suite)) => self.suite(link, suite),
                ("ibv_devinfo", _) => self.output(link, row),
                ("ibv_asyncwatch", _) => self.events(link, row),
                _ if row.family == Family::Harness => self.harness(link, row),
                _ if row.is_mpi() => self.job(link, row),
                _ if row.family == Family::Mpich => self.ranks(link, row),
                _ => self.row(link, row, &mut port),
            };
            // Another row may still run.
            let line = line.unwrap_or_else(|error| Line {
                name: row.name(),
                cells: vec![(Ends::Ours, Cell::Fail(format!("{error:#}")))],
            });
            // At once, so that the results are known if the guest stops.
            println!("{FINISHED}{} ({:.1} s): {}", row.name(), start.elapsed().as_secs_f32(), line.text());
            report.add(line);
        }
        let passed = report.print();
        println!("{}", report.summary());
        Ok(passed)
    }

    fn use_ours(&self, cmd: &mut Command) {
        cmd.env("LD_LIBRARY_PATH", &self.library);
    }

    /// A row with each combination of libraries.
    fn row(&self, link: &Link, row: &Row, port: &mut u16) -> Result<Line> {
        let mut cells = Vec::new();
        // One process has one library.
        let kinds = if row.is_single() { &ALL[..2] } else { &ALL[..] };
        for &(kind, server, client) in kinds {
            *port += 1;
            let command = |is_client: bool, ours: bool| {
                let end = usize::from(is_client);
                let names = Names {
                    device: link.devices[end].clone(),
                    gid: link.gid.clone(),
                    port: *port,
                    host: link.host.clone(),
                    address: link.addresses[0].clone(),
                    own: link.addresses[end].clone(),
                    macs: [end, 1 - end].map(|end| link.macs[end].clone()),
                    has_controller: link.has_controller,
                };
                let words = [row.program.to_owned()].into_iter().chain(row.words(is_client, &names));
                // By env(1), because the program may run in the other guest.
                let ours = ours.then(|| format!("LD_LIBRARY_PATH={}", self.library.display()));
                let variables = row.variables().iter().map(|(name, value)| format!("{name}={value}"));
                let words = ["env".to_owned()].into_iter().chain(ours).chain(variables).chain(words);
                let terminal = matches!(row.family, Family::Uct | Family::Ucp).then_some(TERMINAL);
                let words = terminal.into_iter().flatten().map(str::to_owned).chain(words);
                let mut words = link.prefixes[end].iter().cloned().chain(words);
                let mut cmd = Command::new(words.next().unwrap_or_default());
                cmd.args(words);
                cmd
            };
            let run = || {
                if row.has_port() || row.is_single() {
                    ends(row, *port, command(false, server), command(true, client))
                } else {
                    connected(row, &mut command(false, server), || command(true, client))
                }
            };
            // If it fails with rdma-core's library, the other columns are for information.
            let cell = match cells.first() {
                Some((_, Cell::Fail(_))) => run(),
                _ => twice(&row.name(), run),
            };
            // A program that is not in the guest fails with both libraries.
            cells.push((kind, cell.unwrap_or_else(|error| Cell::Fail(format!("{error:#}")))));
        }
        Ok(Line { name: row.name(), cells })
    }

    /// A job of MPI in both guests. The first guest's ranks are those that serve.
    fn job(&self, link: &Link, row: &Row) -> Result<Line> {
        let library = self.library.to_string_lossy();
        let (transports, args) = row.args.split_once(' ').context("a row of MPI has no transports")?;
        let words: Vec<&str> = [row.program].into_iter().chain(args.split(' ')).collect();
        let mut cells = Vec::new();
        for (kind, first, second) in ALL {
            let job = Job {
                transports,
                words: &words,
                ranks: if args.starts_with("collectives") { 2 } else { 1 },
                devices: [0, 1].map(|end| link.devices[end].as_str()),
                libraries: [first, second].map(|ours| ours.then_some(&*library)),
            };
            let cell = twice(&row.name(), || {
                let mut group = Group::new(JOB_LIMIT)?;
                let process = group.start(&mut job.command())?;
                Ok(match group.wait(process) {
                    End::Exit(0) => {
                        println!("{}: {}\n{}", row.name(), kind.name(), group.output(process).trim_end());
                        Cell::Pass
                    }
                    // The reason is not among the last lines, which are advice.
                    end => Cell::Fail(format!("{end}\n{}", group.output(process))),
                })
            })?;
            cells.push((kind, cell));
        }
        Ok(Line { name: row.name(), cells })
    }

    /// A job of MPICH in this guest, each of its two ranks with a device and a library of its own.
    fn ranks(&self, link: &Link, row: &Row) -> Result<Line> {
        let (transports, args) = row.args.split_once(' ').context("a row of MPI has no transports")?;
        let library = self.library.to_string_lossy();
        let mut cells = Vec::new();
        for (kind, first, second) in ALL {
            let mut cmd = Command::new("mpiexec.hydra");
            // Ranks of one node would communicate by shared memory.
            cmd.args(["-launcher", "fork", "-iface", "lo"]).env("MPIR_CVAR_NOLOCAL", "1");
            cmd.env("UCX_TLS", transports).env("UCX_IB_GID_INDEX", &link.gid);
            for (rank, (device, ours)) in link.devices.iter().zip([first, second]).enumerate() {
                cmd.args((rank > 0).then_some(":")).args(["-n", "1", "env"]);
                cmd.args(ours.then(|| format!("LD_LIBRARY_PATH={library}")));
                cmd.arg(format!("UCX_NET_DEVICES={device}:1")).arg(row.program).args(args.split(' '));
            }
            let mut run = || {
                let mut group = Group::new(LIMIT)?;
                let process = group.start(&mut cmd)?;
                Ok(match group.wait(process) {
                    End::Exit(0) => Cell::Pass,
                    end => Cell::Fail(format!("{end}\n{}", group.output(process))),
                })
            };
            cells.push((kind, twice(&row.name(), &mut run)?));
        }
        Ok(Line { name: row.name(), cells })
    }

    /// A program whose output must be the same.
    fn output(&self, link: &Link, row: &Row) -> Result<Line> {
        let mut outputs = Vec::new();
        let mut cells = Vec::new();
        for kind in [Ends::C, Ends::Ours] {
            let mut cmd = Command::new(row.program);
            cmd.args(["-d", &link.devices[0]]).args(row.args.split_whitespace());
            if kind == Ends::Ours {
                self.use_ours(&mut cmd);
            }
            let out = cmd.output().with_context(|| format!("cannot start {}", row.program))?;
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let cell = match out.status.success() {
                true => Cell::Pass,
                false => Cell::Fail(String::from_utf8_lossy(&out.stderr).into_owned()),
            };
            cells.push((kind, cell));
            outputs.push(text);
        }
        if outputs[0] != outputs[1]
            && let Some((_, cell)) = cells.last_mut()
        {
            let differs = outputs[0].lines().zip(outputs[1].lines()).find(|(c, ours)| c != ours);
            *cell = Cell::Fail(format!("the output differs: {differs:?}"));
        }
        Ok(Line { name: row.name(), cells })
    }

    /// A program that prints events.
    fn events(&self, link: &Link, row: &Row) -> Result<Line> {
        let mut cells = Vec::new();
        for kind in [Ends::C, Ends::Ours] {
            let words = ["ibv_asyncwatch", "-d", &link.devices[0]].map(str::to_owned);
            let mut words = link.prefixes[0].iter().cloned().chain(words);
            let mut cmd = Command::new(words.next().unwrap_or_default());
            cmd.args(words);
            if kind == Ends::Ours {
                self.use_ours(&mut cmd);
            }
            cells.push((kind, twice(&row.name(), || watch::run(&mut cmd))?));
        }
        Ok(Line { name: row.name(), cells })
    }

    /// A test program of Rust's harness.
    fn harness(&self, link: &Link, row: &Row) -> Result<Line> {
        let run = |ours: bool| {
            let mut words = link.prefixes[0].iter().map(String::as_str).chain([row.program]);
            let mut cmd = Command::new(words.next().unwrap_or_default());
            cmd.args(words);
            if ours {
                self.use_ours(&mut cmd);
            }
            harness::run(cmd)
        };
        let c = run(false)?;
        let wanted = pyverbs::passed(&c);
        for line in harness::failed(&c) {
            println!("{}: C: {line}", row.name());
        }
        let ours = twice(&row.name(), || Ok(harness::judge(&run(true)?, &wanted)))?;
        // The tests that passed; what failed is above.
        let cell = harness::judge(&c, &wanted);
        Ok(Line { name: row.name(), cells: vec![(Ends::C, cell), (Ends::Ours, ours)] })
    }

    /// rdma-core's test suite.
    fn suite(&self, link: &Link, suite: &Path) -> Result<Line> {
        let parts = self.filter.iter().filter_map(|part| part.strip_prefix(TESTS)).collect::<Vec<_>>();
        let prefixes = if self.short { "test_q".to_owned() } else { parts.join(",") };
        let run = |ours: bool, prefixes: &str| {
            // Its tests of librdmacm need the addresses of the link.
            let words = link.prefixes[0].iter().map(String::as_str).chain([pyverbs::PYTHON]);
            let words: Vec<&str> = words.collect();
            let mut python = Command::new(words[0]);
            python.args(&words[1..]);
            if ours {
                self.use_ours(&mut python);
            }
            pyverbs::run(python, suite, prefixes, &link.devices[0], &link.gid)
        };
        let (c, mut ours) = (run(false, &prefixes)?, run(true, &prefixes)?);
        let again = pyverbs::unexpected(&ours, &pyverbs::passed(&c));
        if !again.is_empty() {
            // Once more, as with any row.
            eprintln!("clients: pyverbs: run again: {}", again.join(" "));
            ours.extend(run(true, &again.join(","))?);
        }
        for line in pyverbs::remarks(&c, &ours) {
            println!("pyverbs: {line}");
        }
        let cell = pyverbs::judge(link.place, &ours, &pyverbs::passed(&c));
        let c = Cell::Counts(pyverbs::counts(&c));
        Ok(Line {
            name: format!("pyverbs {prefixes}").trim_end().to_owned(),
            cells: vec![(Ends::C, c), (Ends::Ours, cell)],
        })
    }
}

/// Runs a server and a client of librdmacm, several times if perftest's client crashes because it is too early.
fn connected(row: &Row, server: &mut Command, client: impl Fn() -> Command) -> Result<Cell> {
    for _ in 1..PAIRS {
        if let Some(cell) = attempt(row, server, &client, true)? {
            return Ok(cell);
        }
        eprintln!("clients: {}: the client has crashed after a rejection, both start again", row.name());
    }
    let last = attempt(row, server, &client, false)?;
    Ok(last.unwrap_or_else(|| Cell::Fail("no result".into())))
}

/// Runs a server and a client of librdmacm. The client is repeated until the server accepts it. With `may_crash`, `None` if the
/// client crashes after a rejection.
fn attempt(
    row: &Row,
    server: &mut Command,
    client: &impl Fn() -> Command,
    may_crash: bool,
) -> Result<Option<Cell>> {
    let mut group = Group::new(LIMIT)?;
    let server = group.start(server)?;
    let has_no_connection = matches!(row.family, Family::Ethernet | Family::Multicast);
    if has_no_connection {
        group.wait_for_cpu_time(server, POLLING);
    }
    let (number, client) = loop {
        let number = group.start(&mut client())?;
        let end = match group.wait(number) {
            End::Exit(0) if row.proof().is_some_and(|text| !group.output(number).contains(text)) => {
                End::Exit(1)
            }
            end => end,
        };
        // The server may have accepted a part of its connections, so another client could wait for ever.
        if end.is_crash() {
            if may_crash && group.output(number).contains(REJECTED) {
                return Ok(None);
            }
            break (number, end);
        }
        // Packets of a client that is too early are lost: the next one sends them again.
        let has_sent = has_no_connection && end == End::Exit(0) && group.wait_for(server, AGAIN).is_none();
        if !has_sent && (end == End::Exit(0) || end == End::Timeout || !group.runs(server)) {
            break (number, end);
        }
    };
    if client == End::Exit(0) && row.is_endless() {
        return Ok(Some(Cell::Pass));
    }
    if client != End::Exit(0) {
        group.hurry();
    }
    let end = group.wait(server);
    if client == End::Exit(0) && end == End::Exit(0) {
        return Ok(Some(Cell::Pass));
    }
    let (server, last) = (group.last_lines(server), group.last_lines(number));
    Ok(Some(Cell::Fail(format!("server: {end}\n{server}\nclient: {client}\n{last}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut cmd = Command::new("sh");
        cmd.args(["-c", script]);
        cmd
    }

    /// The result of a server that waits for a file, and of a client that counts its runs in a file of a folder.
    fn result(client: &str) -> (Cell, usize) {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().display();
        let row = rows::all().find(|row| row.name() == "ib_write_lat -n 20 -R").unwrap();
        let mut server = shell(&format!("until [ -e {dir}/end ]; do sleep 0.02; done"));
        let client = format!("cd {dir}; echo run >>runs; {client}");
        let cell = connected(row, &mut server, || shell(&client)).unwrap();
        (cell, fs::read_to_string(folder.path().join("runs")).unwrap().lines().count())
    }

    #[test]
    fn a_client_is_repeated_until_the_server_accepts_it() {
        let client = "if [ $(wc -l <runs) -lt 3 ]; then exit 1; fi; touch end";
        assert_eq!(result(client), (Cell::Pass, 3));
    }

    #[test]
    fn both_start_again_if_the_client_crashes_after_a_rejection() {
        let crash = format!("echo {REJECTED}; kill -SEGV $$");
        let client = format!("if [ $(wc -l <runs) -lt 2 ]; then {crash}; fi; touch end");
        assert_eq!(result(&client), (Cell::Pass, 2));
        let (cell, runs) = result(&crash);
        assert!(matches!(cell, Cell::Fail(_)));
        assert_eq!(runs, PAIRS as usize);
    }

    #[test]
    fn a_client_that_succeeds_without_its_proof_is_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().display();
        let row = rows::all().find(|row| row.program == "fio").unwrap();
        let mut server = shell(&format!("until [ -e {dir}/end ]; do sleep 0.02; done"));
        let proof = row.proof().unwrap();
        let client =
            format!("cd {dir}; echo >>runs; [ $(wc -l <runs) = 2 ] && echo {proof} && touch end; exit 0");
        assert_eq!(connected(row, &mut server, || shell(&client)).unwrap(), Cell::Pass);
        assert_eq!(fs::read_to_string(folder.path().join("runs")).unwrap().lines().count(), 2);
    }

    #[test]
    fn another_crash_is_a_failure() {
        let (cell, runs) = result("kill -SEGV $$");
        let Cell::Fail(reason) = cell else { panic!("it has crashed") };
        assert!(reason.contains("client: signal 11"), "{reason}");
        assert_eq!(runs, 1);
    }
}
