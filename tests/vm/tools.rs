// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs on the devices: `uverbs` compared with rdma-core's programs; and rdma-core's programs with each other,
//! which must work on a software NIC as on any other NIC.

use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use std::process::{Command, Stdio};
use std::time::Instant;
use uverbs_tests::child::spawn;
use uverbs_tests::env::End;
use uverbs_tests::wait::{LIMIT, until};
use uverbs_tests::{LabEnv, Outcome, Test, run};

/// The time limit of a program.
const TOOL_LIMIT: Duration = Duration::from_secs(90);

/// The time limit of `uverbs selftest`, which creates hundreds of QPs and takes about 15 s on idle CPUs.
const SELFTEST_LIMIT: Duration = Duration::from_secs(150);

/// The TCP port of the first pair; each has its own.
const FIRST_PORT: u16 = 18_900;

/// Runs a server at end A, then a client at end B. Both must succeed. Returns their outputs.
fn both(server: &mut Command, client: &mut Command, port: u16) -> Result<[String; 2]> {
    let mut server = spawn(server.stdin(Stdio::null()))?;
    server.lowest_priority()?;
    server.wait_listening(port)?;
    let client = spawn(client.stdin(Stdio::null()))?;
    client.lowest_priority()?;
    let (client, server) = (client.end(TOOL_LIMIT), server.end(TOOL_LIMIT));
    match (client, server) {
        (Ok(client), Ok(server)) if client.status.success() && server.status.success() => {
            Ok([server.output, client.output])
        }
        (client, server) => anyhow::bail!("client: {client:?}\nserver: {server:?}"),
    }
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
    // Listeners of rdma_cm are not in the tables of TCP.
    until("rping listens", LIMIT, || {
        ensure!(server.is_running()?, "rping ended early");
        let all = run(Command::new("/usr/bin/rdma").args(["resource", "show", "cm_id"]), TOOL_LIMIT)?;
        Ok(all.lines().any(|l| l.contains(" state LISTEN ") && l.contains(&format!(":{port} "))))
    })?;
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

/// The test of this file on siw: `uverbs selftest` connects its QPs by itself, which iWARP does not allow.
pub(crate) fn siw_tests() -> Vec<Test> {
    vec![Test::without_devices("tools::devinfo", devinfo)]
}

/// The tests of this file. The C programs are tested with each other on the software NIC only, because rxe is not part
/// of this project.
pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::without_devices("tools::devinfo", devinfo),
        Test::long("tools::selftest", 2 * SELFTEST_LIMIT, || {
            selftest(&LabEnv::get().context("needs the VM")?)
        }),
    ];
    if LabEnv::get().is_none_or(|env| env.mlx5) {
        tests.extend(
            peers().map(|p| Test::without_devices(&format!("tools::{}", p.name), move |env| p.run(env))),
        );
        tests.push(Test::without_devices("tools::c::rping", rping));
    }
    tests
}
