// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs all libraries in a guest of the VM lab: each round has one connection of each, one after the other. Instructions are
//! counted by callgrind, of the client only.

use crate::profile::Profile;
use crate::stats::{Median, Run};
use crate::{Library, Test, work};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

/// The arguments of `compare`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; times are medians over them
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Messages, calls or writes of each connection
    #[arg(long, default_value_t = 500)]
    number: usize,
    /// Only these tests
    #[arg(long, value_enum)]
    test: Vec<Test>,
    /// Only these libraries
    #[arg(long, value_enum)]
    library: Vec<Library>,
    /// Do not measure times
    #[arg(long)]
    no_times: bool,
    /// Do not count instructions
    #[arg(long)]
    no_counts: bool,
    /// Count only clients that sleep before each message
    #[arg(long)]
    sleeping: bool,
    /// Print the functions with the most instructions
    #[arg(long)]
    profile: bool,
}

/// Messages of the shorter connection of a count; the other one has twice as many.
const COUNTED: usize = 200;
/// Microseconds before each answer while instructions are counted: long enough that the client sleeps before each one.
const PAUSE: u64 = 5000;

/// What a count depends on besides the library and the test: whether the client sleeps before each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pace {
    /// The server waits before each message.
    Sleeping,
    /// It does not.
    Busy,
}

/// The devices of the guest.
struct Place {
    device: String,
    address: String,
    server: Vec<String>,
    client: Vec<String>,
    port: u16,
}

impl Place {
    fn find() -> Result<Self> {
        let var =
            |name: &str| env::var(name).with_context(|| format!("{name} is not set: this runs in a guest"));
        let prefix =
            |name: &str| Ok::<_, anyhow::Error>(var(name)?.split_whitespace().map(Into::into).collect());
        let address = var("LAB_IP_B")?;
        ensure!(!address.is_empty(), "the devices have no addresses, which rdma-io needs: use RoCE");
        // Without namespaces the connection manager takes the server's device for the client, too.
        let server: Vec<String> = prefix("LAB_NS_B")?;
        let device = var("LAB_DEV_B")?;
        Ok(Self { device, address, client: prefix("LAB_NS_A")?, server, port: 20000 })
    }

    fn device_of_client(&self) -> Result<String> {
        if self.client.is_empty() { Ok(self.device.clone()) } else { Ok(env::var("LAB_DEV_A")?) }
    }
}

/// A server, which is killed when the client has ended.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `serve` or `ask`, under other programs if there are words before it.
fn command(words: &[String], arguments: &[String]) -> Result<Command> {
    let program = env::current_exe()?;
    let mut all = words.iter().map(Into::into).collect::<Vec<_>>();
    all.push(program.into_os_string());
    let mut command = Command::new(all.first().context("no program")?);
    command.args(&all[1..]).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// One connection: what the client has printed. `tool` are the words before the client.
fn connect(
    place: &mut Place,
    library: Library,
    test: Test,
    options: (&[String], &[String]),
    tool: &[String],
) -> Result<Run> {
    place.port += 1;
    let address = format!("{}:{}", place.address, place.port);
    let end = |role: &str, device: String, options: &[String]| {
        let mut all = vec![role.to_owned(), library.to_string(), test.to_string(), address.clone()];
        all.extend(["--device".to_owned(), device]);
        all.extend_from_slice(options);
        all
    };
    let mut child = command(&place.server, &end("serve", place.device.clone(), options.0))?.spawn()?;
    let mut out = BufReader::new(child.stdout.take().context("no output")?);
    let _server = Server(child);
    let mut line = String::new();
    out.read_line(&mut line)?;
    ensure!(line == "ready\n", "{library} {test}: the server printed {line:?}");
    let words: Vec<_> = place.client.iter().chain(tool).cloned().collect();
    let out = command(&words, &end("ask", place.device_of_client()?, options.1))?
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the client")?;
    ensure!(out.status.success(), "{library} {test}: the client failed: {}", out.status);
    String::from_utf8_lossy(&out.stdout).parse()
}

/// Instructions of a client in user space.
fn count(place: &mut Place, library: Library, test: Test, pace: Pace, number: usize) -> Result<Profile> {
    let file = format!("/tmp/callgrind.{library}.{test}.{pace:?}.{number}");
    let tool =
        ["valgrind", "-q", "--tool=callgrind", &format!("--callgrind-out-file={file}")].map(str::to_owned);
    let mut server = vec!["--number".to_owned(), number.to_string()];
    let mut client = server.clone();
    if pace == Pace::Sleeping {
        // The writer of a stream is the one that waits.
        let waits = if test == Test::Write { &mut client } else { &mut server };
        waits.extend(["--pause".to_owned(), PAUSE.to_string()]);
    }
    // The time for which it polls is a choice of the program; the others do not poll.
    client.extend(["--untimed", "--spin", "0"].map(str::to_owned));
    connect(place, library, test, (&server, &client), &tool)?;
    Profile::read(Path::new(&file))
}

/// The name of a column.
fn title(library: Library) -> &'static str {
    match library {
        Library::Uverbs => "uverbs-aio",
        Library::UverbsTokio => "uverbs-aio, tokio",
        Library::RdmaIo => "rdma-io",
        Library::Tcp => "TCP, tokio",
    }
}

/// A table in Markdown.
fn table(head: &str, libraries: &[Library], rows: &[(String, Vec<String>)]) {
    let columns: Vec<_> = libraries.iter().map(|library| title(*library)).collect();
    println!("\n| {head} | {} |", columns.join(" | "));
    println!("|---|{}", "---|".repeat(libraries.len()));
    for (name, cells) in rows {
        println!("| {name} | {} |", cells.join(" | "));
    }
}

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let mut place = Place::find()?;
    let all = |list: &[Test]| if list.is_empty() { Test::value_variants().to_vec() } else { list.to_vec() };
    let tests = all(&args.test);
    let libraries =
        if args.library.is_empty() { Library::value_variants().to_vec() } else { args.library.clone() };
    if !args.no_counts {
        counts(&mut place, &tests, &libraries, args)?;
    }
    if !args.no_times {
        times(&mut place, &tests, &libraries, args)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn counts(place: &mut Place, tests: &[Test], libraries: &[Library], args: &Args) -> Result<()> {
    let mut rows = Vec::new();
    for &test in tests {
        for pace in [Pace::Sleeping, Pace::Busy].into_iter().take(if args.sleeping { 1 } else { 2 }) {
            let mut cells = Vec::new();
            for &library in libraries {
                let [once, twice] = [COUNTED, 2 * COUNTED].map(|n| count(place, library, test, pace, n));
                let (once, twice) = (once?, twice?);
                let each = (twice.sum as f64 - once.sum as f64) / COUNTED as f64;
                eprintln!("{test}, {pace:?}, {library}: {each:.0} instructions");
                for (cost, function) in twice.most(&once, COUNTED as f64).into_iter().filter(|_| args.profile)
                {
                    eprintln!("{cost:8.1} {function}");
                }
                cells.push(format!("{each:.0}"));
            }
            let name = match pace {
                Pace::Sleeping => format!("{test}, waits for each"),
                Pace::Busy => format!("{test}, busy"),
            };
            rows.push((name, cells));
        }
    }
    table("user instructions", libraries, &rows);
    Ok(())
}

fn times(place: &mut Place, tests: &[Test], libraries: &[Library], args: &Args) -> Result<()> {
    let mut runs: BTreeMap<(usize, usize), Vec<Run>> = BTreeMap::new();
    let options = ["--number".to_owned(), args.number.to_string()];
    for round in 0..args.rounds {
        for (row, &test) in tests.iter().enumerate() {
            for (column, &library) in libraries.iter().enumerate() {
                let run = connect(place, library, test, (&options, &options), &[])?;
                runs.entry((row, column)).or_default().push(run);
            }
        }
        eprintln!("round {} of {}", round + 1, args.rounds);
    }
    let number = args.number as f64;
    let cells = |row: usize, value: &dyn Fn(&Run) -> f64| -> Result<Vec<String>> {
        (0..libraries.len())
            .map(|column| {
                let runs = runs.get(&(row, column)).context("no round")?;
                Ok(Median::of(runs.iter().map(value)).context("no round")?.to_string())
            })
            .collect()
    };
    let mut rows = Vec::new();
    for (row, &test) in tests.iter().enumerate() {
        match test {
            Test::Echo | Test::Rpc => {
                rows.push((format!("{test}: messages/s"), cells(row, &|run| number / run.total * 1e6)?));
                rows.push((format!("{test}: p50, us"), cells(row, &|run| run.p50)?));
                rows.push((format!("{test}: p99, us"), cells(row, &|run| run.p99)?));
            }
            Test::Write | Test::Read => {
                let kib = number * work::CHUNK as f64 / 1024.0;
                rows.push((format!("{test}: KiB/s"), cells(row, &|run| kib / run.total * 1e6)?));
            }
        }
    }
    if rows.is_empty() {
        bail!("no test");
    }
    table(&format!("{} rounds of {}", args.rounds, args.number), libraries, &rows);
    Ok(())
}
