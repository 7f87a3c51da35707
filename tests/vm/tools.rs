// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs on the devices: `uverbs` compared with rdma-core's programs; and rdma-core's programs with each other,
//! which must work on a software NIC as on any other NIC.

use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;
use uverbs_tests::child::{Child, spawn};
use uverbs_tests::env::End;
use uverbs_tests::wait::{LIMIT, until};
use uverbs_tests::{LabEnv, Outcome, Test, run};

/// The time limit of a program.
pub(crate) const TOOL_LIMIT: Duration = Duration::from_secs(90);

/// The time limit of `uverbs selftest`, which creates hundreds of QPs and takes about 15 s on idle CPUs.
const SELFTEST_LIMIT: Duration = Duration::from_secs(150);

/// The TCP port of the first pair; each has its own.
const FIRST_PORT: u16 = 18_900;
const FIRST_PERF_PORT: u16 = 18_950;

/// A hardware counter of an rxe device's port.
pub(crate) fn counter(device: &str, name: &str) -> Result<u64> {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{name}");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    text.trim().parse().with_context(|| format!("{path}: {text:?}"))
}

/// Runs a server at end A, then a client at end B. Both must succeed. Returns their outputs.
pub(crate) fn both(server: &mut Command, client: &mut Command, port: u16) -> Result<[String; 2]> {
    both_when(server, client, |server| server.wait_listening(port))
}

/// As [`both`], with a client that starts when `listens` has returned.
pub(crate) fn both_when(
    server: &mut Command,
    client: &mut Command,
    listens: impl FnOnce(&mut Child) -> Outcome,
) -> Result<[String; 2]> {
    let [server, client] = start(server, client, listens)?;
    let (client, server) = (client.end(TOOL_LIMIT), server.end(TOOL_LIMIT));
    match (client, server) {
        (Ok(client), Ok(server)) if client.status.success() && server.status.success() => {
            Ok([server.output, client.output])
        }
        (client, server) => anyhow::bail!("client: {client:?}\nserver: {server:?}"),
    }
}

/// Starts a server, and a client when `listens` has returned.
pub(crate) fn start(
    server: &mut Command,
    client: &mut Command,
    listens: impl FnOnce(&mut Child) -> Outcome,
) -> Result<[Child; 2]> {
    let mut server = spawn(server.stdin(Stdio::null()))?;
    server.lowest_priority()?;
    listens(&mut server)?;
    let client = spawn(client.stdin(Stdio::null()))?;
    client.lowest_priority()?;
    Ok([server, client])
}

/// Two C programs on the two devices. They test the device, not this library.
#[derive(Clone, Copy, Debug)]
struct Peers {
    name: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    /// The option for the GID index, if the program has one.
    gid: Option<&'static str>,
    /// A text that the client's output must contain.
    says: &'static str,
    port: u16,
}

impl Peers {
    fn command(&self, env: &LabEnv, end: End) -> Command {
        let mut command = env.command(end, self.program);
        command.args(["-d", env.dev(end), "-p", &self.port.to_string()]).args(self.args);
        // InfiniBand goes by LIDs.
        if let Some(option) = self.gid.filter(|_| !env.infiniband) {
            command.args([option, &env.gid_index.to_string()]);
        }
        command
    }

    fn run(&self, env: &LabEnv) -> Outcome {
        let start = Instant::now();
        let mut client = self.command(env, End::B);
        let [_, output] = both(&mut self.command(env, End::A), client.arg(&env.tcp_host[0]), self.port)?;
        ensure!(output.contains(self.says), "no `{}`:\n{output}", self.says);
        ensure!(!output.contains("invalid data"), "wrong data:\n{output}");
        uverbs_tests::runner::note(format_args!("{:.1} s", start.elapsed().as_secs_f32()));
        Ok(())
    }
}

const PINGPONG: [(&str, &str); 5] = [
    ("c::pingpong::rc", "ibv_rc_pingpong"),
    ("c::pingpong::uc", "ibv_uc_pingpong"),
    ("c::pingpong::ud", "ibv_ud_pingpong"),
    ("c::pingpong::srq", "ibv_srq_pingpong"),
    ("c::pingpong::xsrq", "ibv_xsrq_pingpong"),
];

const PERFTEST: [(&str, &str); 8] = [
    ("c::perftest::send_lat", "ib_send_lat"),
    ("c::perftest::send_bw", "ib_send_bw"),
    ("c::perftest::write_lat", "ib_write_lat"),
    ("c::perftest::write_bw", "ib_write_bw"),
    ("c::perftest::read_lat", "ib_read_lat"),
    ("c::perftest::read_bw", "ib_read_bw"),
    ("c::perftest::atomic_lat", "ib_atomic_lat"),
    ("c::perftest::atomic_bw", "ib_atomic_bw"),
];

fn peers() -> impl Iterator<Item = Peers> {
    let pingpong = PINGPONG.into_iter().map(|(name, program)| Peers {
        name,
        program,
        // With events, because two polling processes wait for each other's time slices.
        args: if program == "ibv_xsrq_pingpong" { &["-n", "100", "-e"] } else { &["-n", "100", "-e", "-c"] },
        gid: Some("-g"),
        says: if program == "ibv_xsrq_pingpong" { "success" } else { "100 iters in " },
        port: 0,
    });
    let perftest = PERFTEST.into_iter().map(|(name, program)| Peers {
        name,
        program,
        args: &["-n", "100", "-F"],
        gid: Some("-x"),
        says: "#bytes",
        port: 0,
    });
    pingpong.chain(perftest).zip(FIRST_PORT..).map(|(peers, port)| Peers { port, ..peers })
}

/// `uverbs perf` with perftest at the other end.
#[derive(Clone, Copy, Debug)]
struct Perf {
    /// perftest's name of the test, without `ib_`.
    test: &'static str,
    /// Arguments of both ends. With `-R` or `-z` the exchange is that of rdma_cm.
    args: &'static str,
    ours_serves: bool,
    port: u16,
}

impl Perf {
    fn is_by_cm(&self) -> bool {
        self.args.starts_with("-R") || self.args.starts_with("-z")
    }

    fn command(&self, env: &LabEnv, end: End) -> Command {
        let is_ours = (end == End::A) == self.ours_serves;
        let program =
            if is_ours { "/usr/bin/uverbs".to_owned() } else { format!("/usr/bin/ib_{}", self.test) };
        let mut command = env.command(end, &program);
        if is_ours {
            command.args(["perf", &self.test.replace('_', "-")]);
        }
        command.args(["-p", &self.port.to_string(), "-n", "100", "-F"]).args(self.args.split_whitespace());
        // rdma_cm selects the device by the address, which is end A's device if both have one network namespace.
        if !(is_ours && self.is_by_cm()) {
            let device = if self.is_by_cm() && end == End::B { client_of_cm(env) } else { end };
            command.args(["-d", env.dev(device)]);
        }
        // InfiniBand goes by LIDs, and iWARP by addresses.
        if !env.infiniband && !env.siw {
            command.args(["-x", &env.gid_index.to_string()]);
        }
        command
    }

    fn run(&self, env: &LabEnv) -> Outcome {
        let (mut server, mut client) = (self.command(env, End::A), self.command(env, End::B));
        let outputs = if self.is_by_cm() {
            if env.infiniband {
                // rdma_cm needs an IP address, and there is no IPoIB.
                return Ok(());
            }
            both_when(&mut server, client.arg(&env.ip[0]), |server| cm_listens(server, self.port))?
        } else {
            both(&mut server, client.arg(&env.tcp_host[0]), self.port)?
        };
        // The server of a test of reads or atomics with latencies measures nothing.
        let rows =
            |output: &String| output.lines().filter(|l| l.trim_start().starts_with(char::is_numeric)).count();
        ensure!(outputs[1].contains("#bytes") && rows(&outputs[1]) > 0, "no result:\n{}", outputs[1]);
        Ok(())
    }
}

/// Tests with the exchange of rdma_cm: name, test, arguments.
const BY_CM: [(&str, &str, &str); 6] = [
    ("cm::exchange", "write_lat", "-z"),
    ("cm::send_lat", "send_lat", "-R -T 32"),
    ("cm::send_lat_ud", "send_lat", "-R -c UD"),
    ("cm::send_bw_ud", "send_bw", "-R -c UD -s 1024"),
    ("cm::write_bw", "write_bw", "-R -q 2"),
    ("cm::read_lat", "read_lat", "-R"),
];

/// Both roles of each test.
fn perf() -> impl Iterator<Item = (String, Perf)> {
    let plain = PERFTEST.into_iter().map(|(name, _)| name.trim_start_matches("c::perftest::"));
    let all = plain.map(|test| (test, test, "")).chain(BY_CM);
    let tests = all.flat_map(|(name, test, args)| [(name, test, args, true), (name, test, args, false)]);
    tests.zip(FIRST_PERF_PORT..).map(|((name, test, args, ours_serves), port)| {
        let roles = if ours_serves { "ours_serves_c" } else { "c_serves_ours" };
        (format!("perf::{name}::{roles}"), Perf { test, args, ours_serves, port })
    })
}

/// `uverbs pingpong` at both ends, connected by rdma_cm.
fn pingpong_by_cm(env: &LabEnv, program: &str, port: u16) -> Outcome {
    let pingpong = |end: End| {
        let mut command = env.command(end, "/usr/bin/uverbs");
        command.args(["pingpong", program, "--cm", "-p", &port.to_string(), "-n", "100", "-e", "-c"]);
        command
    };
    let mut client = pingpong(client_of_cm(env));
    let listens = |server: &mut Child| cm_listens(server, port);
    let [_, output] = both_when(&mut pingpong(End::A), client.arg(&env.ip[0]), listens)?;
    ensure!(output.contains("100 iters in "), "no result:\n{output}");
    Ok(())
}

/// Waits until a server of rdma_cm listens. Its listeners are not in the tables of TCP.
pub(crate) fn cm_listens(server: &mut Child, port: u16) -> Outcome {
    until("the server listens", LIMIT, || {
        ensure!(server.is_running()?, "the server ended early");
        let all = run(Command::new("/usr/bin/rdma").args(["resource", "show", "cm_id"]), TOOL_LIMIT)?;
        Ok(all.lines().any(|l| l.contains(" state LISTEN ") && l.contains(&format!(":{port} "))))
    })
}

/// rdma_cm of C over RoCE: addresses, the connection's handshake over the GSI QP, and traffic.
fn rping(env: &LabEnv) -> Outcome {
    if env.infiniband {
        // rdma_cm needs an IP address, and there is no IPoIB.
        return Ok(());
    }
    let port = FIRST_PORT + 100;
    let rping = |end: End, role: &str| {
        let mut command = env.command(end, "/usr/bin/rping");
        command.args([role, "-a", &env.ip[0], "-p", &port.to_string(), "-C", "20", "-V"]);
        command
    };
    let start = Instant::now();
    let mut server = spawn(rping(End::A, "-s").stdin(Stdio::null()))?;
    cm_listens(&mut server, port)?;
    let client = spawn(rping(End::B, "-c").stdin(Stdio::null()))?.end(TOOL_LIMIT);
    let server = server.end(TOOL_LIMIT);
    match (&client, &server) {
        (Ok(client), Ok(server)) if client.status.success() && server.status.success() => {
            uverbs_tests::runner::note(format_args!("{:.1} s", start.elapsed().as_secs_f32()));
            Ok(())
        }
        _ => anyhow::bail!("client: {client:?}\nserver: {server:?}"),
    }
}

/// The lines of the C program. An older one prints the bits of flags that it does not name in one line, which is
/// replaced by our names.
fn named(c: Vec<String>, ours: &[String]) -> Vec<String> {
    const UNKNOWN: &str = "Unknown flags: 0x";
    let mut lines = Vec::new();
    for line in c {
        let Some((indent, bits)) = line.split_once(UNKNOWN) else {
            lines.push(line);
            continue;
        };
        let count = u64::from_str_radix(bits, 16).map_or(0, u64::count_ones) as usize;
        let names = ours.iter().skip(lines.len()).take(count);
        let names: Vec<_> =
            names.filter(|ours| ours.starts_with(&format!("{indent}SUPPORT_"))).cloned().collect();
        lines.extend(if names.len() == count { names } else { vec![line] });
    }
    lines
}

/// `uverbs devinfo` prints the same lines as `ibv_devinfo`.
fn devinfo(env: &LabEnv) -> Outcome {
    for end in [End::A, End::B] {
        for verbose in [&[][..], &["-v"]] {
            let says = |program: &mut Command| -> Result<Vec<String>> {
                let text = run(program.args(["-d", env.dev(end)]).args(verbose), TOOL_LIMIT)?;
                Ok(text.lines().map(str::to_owned).collect())
            };
            let ours = says(Command::new("/usr/bin/uverbs").arg("devinfo"))?;
            let c = named(says(&mut Command::new("/usr/bin/ibv_devinfo"))?, &ours);
            let differ: Vec<_> = ours.iter().zip(&c).filter(|(ours, c)| ours != c).collect();
            ensure!(differ.is_empty(), "{} differ, ours and C's: {differ:#?}", env.dev(end));
            ensure!(ours.len() == c.len(), "{} lines, C has {}:\n{ours:#?}\n{c:#?}", ours.len(), c.len());
            ensure!(c.len() > 10, "{c:?}");
        }
    }
    Ok(())
}

/// `uverbs top` has the ports' counters, and the QPs that the kernel's MAD layer has on each port.
fn top(env: &LabEnv) -> Outcome {
    for end in [End::A, End::B] {
        let mut command = Command::new("/usr/bin/uverbs");
        let text = run(command.args(["top", "--once", "--json", "-d", env.dev(end)]), TOOL_LIMIT)?;
        let value: serde_json::Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let device = &value["devices"][0];
        ensure!(device["name"] == env.dev(end) && device["error"].is_null(), "{text}");
        let port = &device["ports"][0];
        ensure!(port["state"] == "ACTIVE", "{text}");
        ensure!(port["counters"].as_object().is_some_and(|counters| !counters.is_empty()), "{text}");
        let qps = device["qps"].as_array().context("no QPs")?;
        ensure!(qps.iter().any(|qp| qp["type"] == "GSI" && qp["state"] == "RTS"), "{text}");
    }
    Ok(())
}

/// Runs `uverbs selftest`: every opcode on every face, in loopback.
fn selftest(env: &LabEnv) -> Outcome {
    for end in [End::A, End::B] {
        let mut command = env.command(end, "/usr/bin/uverbs");
        command.args(["selftest", "-d", env.dev(end), "-g", &env.gid_index.to_string()]);
        let report = run(&mut command, SELFTEST_LIMIT).context("uverbs selftest")?;
        ensure!(report.contains(" 0 failed"), "{report}");
        // mlx5 lacks only the features that no mlx5 device has; rxe lacks transports, too.
        let line = report.lines().last().unwrap_or_default().to_owned();
        uverbs_tests::runner::note(format_args!("{}: {line}", env.dev(end)));
    }
    Ok(())
}

/// The tests of this file on siw. The other programs connect their QPs without the connection manager, which iWARP does not allow.
pub(crate) fn siw_tests() -> Vec<Test> {
    let mut tests = vec![
        Test::without_devices("tools::devinfo", devinfo),
        Test::without_devices("tools::bulk_cm", |env| bulk(env, true)),
    ];
    tests.extend(KV.into_iter().filter(|kv| kv.cm).map(Kv::test));
    // The other tests have datagrams, or an exchange by TCP or rdma_cm of QPs that are connected without it.
    const PERF: [&str; 3] = ["perf::cm::send_lat::", "perf::cm::write_bw::", "perf::cm::read_lat::"];
    let is_of_siw = |name: &String| PERF.iter().any(|test| name.starts_with(test));
    tests.extend(
        perf()
            .filter(|(name, _)| is_of_siw(name))
            .map(|(name, p)| Test::without_devices(&format!("tools::{name}"), move |env| p.run(env))),
    );
    for (program, port) in ["rc", "srq"].into_iter().zip(FIRST_PORT + 120..) {
        let run = move |env: &LabEnv| pingpong_by_cm(env, program, port);
        tests.push(Test::without_devices(&format!("tools::pingpong::cm::{program}"), run));
    }
    tests
}

/// The key-value store of `crates/examples`: a server at end A, three clients at end B, each of which compares its results with
/// those of a map.
#[derive(Clone, Copy, Debug)]
struct Kv {
    name: &'static str,
    args: &'static [&'static str],
    cm: bool,
    port: u16,
}

const KV: [Kv; 5] = [
    Kv { name: "immediate", args: &[], cm: false, port: FIRST_PORT + 110 },
    Kv { name: "write_then_send", args: &["--no-imm"], cm: false, port: FIRST_PORT + 111 },
    Kv { name: "asynchronous", args: &["--async"], cm: false, port: FIRST_PORT + 115 },
    Kv { name: "connection_manager", args: &[], cm: true, port: FIRST_PORT + 112 },
    Kv { name: "async_connection_manager", args: &["--async"], cm: true, port: FIRST_PORT + 114 },
];

impl Kv {
    fn test(self) -> Test {
        Test::without_devices(&format!("tools::kv::{}", self.name), move |env| self.run(env))
    }

    fn run(&self, env: &LabEnv) -> Outcome {
        if self.cm && env.infiniband {
            // As for rping.
            return Ok(());
        }
        let kv = |end: End, role: &str, host: &str| {
            let mut command = env.command(end, "/usr/lib/examples/kv");
            command.args(["-d", env.dev(end), role, &format!("{host}:{}", self.port)]).args(self.args);
            match self.cm {
                true => command.arg("--cm"),
                false => command.args(["-g", &env.gid_index.to_string()]),
            };
            command.stdin(Stdio::null());
            command
        };
        let mut server = spawn(&mut kv(End::A, "--serve", if self.cm { &env.ip[0] } else { "0.0.0.0" }))?;
        server.lowest_priority()?;
        if self.cm {
            cm_listens(&mut server, self.port)?;
        } else {
            server.wait_listening(self.port)?;
        }
        let host = if self.cm { &env.ip[0] } else { &env.tcp_host[0] };
        let start = Instant::now();
        let end = if self.cm { client_of_cm(env) } else { End::B };
        let client = run(kv(end, "--connect", host).args(["-c", "3", "-n", "100"]), TOOL_LIMIT);
        kill(Pid::from_raw(server.id().try_into()?), Signal::SIGTERM)?;
        let server = server.end(TOOL_LIMIT)?;
        let client = client.with_context(|| format!("server: {server:?}"))?;
        ensure!(client.contains("every result was right"), "{client}");
        ensure!(server.status.success(), "{server:?}");
        ensure!(server.output.contains("(0 malformed, 0 connections broken)"), "{server:?}");
        uverbs_tests::runner::note(format_args!("{:.1} s", start.elapsed().as_secs_f32()));
        Ok(())
    }
}

/// The device of a program that selects it by the IP address that is its GID, and connects to end A by the connection manager: siw has
/// no such GID, and the route to the server goes by the server's device.
pub(crate) fn client_of_cm(env: &LabEnv) -> End {
    if env.siw { End::A } else { End::B }
}

/// The bulk transfer of `crates/examples`, from end B to end A.
fn bulk(env: &LabEnv, cm: bool) -> Outcome {
    if cm && env.infiniband {
        // As for rping.
        return Ok(());
    }
    let port = FIRST_PORT + if cm { 115 } else { 113 };
    let bulk = |end: End, role: &str, host: &str| {
        let mut command = env.command(end, "/usr/lib/examples/bulk");
        command.args(["-d", env.dev(end), role, &format!("{host}:{port}")]);
        match cm {
            true => command.args(["--cm", &env.ip[0]]),
            false => command.args(["-g", &env.gid_index.to_string()]),
        };
        command.args(["-b", "100", "-s", "2000", "-q", "2", "-n", "3", "--depth", "16"]);
        command
    };
    let mut server = bulk(End::A, "--serve", "0.0.0.0");
    let end = if cm { client_of_cm(env) } else { End::B };
    let [received, sent] = both(&mut server, &mut bulk(end, "--connect", &env.tcp_host[0]), port)?;
    ensure!(received.contains("all data were right"), "{received}");
    let line = sent.lines().last().unwrap_or_default().to_owned();
    uverbs_tests::runner::note(line);
    Ok(())
}

/// The tests of this file. The C programs are tested with each other on the software NIC only, because rxe is not part
/// of this project.
pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::without_devices("tools::devinfo", devinfo),
        Test::without_devices("tools::bulk", |env| bulk(env, false)),
        Test::without_devices("tools::bulk_cm", |env| bulk(env, true)),
        Test::long("tools::selftest", 2 * SELFTEST_LIMIT, || {
            selftest(&LabEnv::get().context("needs the VM")?)
        }),
    ];
    tests.extend(
        perf().map(|(name, p)| Test::without_devices(&format!("tools::{name}"), move |env| p.run(env))),
    );
    tests.push(Test::without_devices("tools::top", top));
    tests.extend(KV.map(Kv::test));
    if LabEnv::get().is_none_or(|env| env.mlx5) {
        tests.extend(
            peers().map(|p| Test::without_devices(&format!("tools::{}", p.name), move |env| p.run(env))),
        );
        tests.push(Test::without_devices("tools::c::rping", rping));
    }
    tests
}
