// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ping-pongs between `uverbs` and rdma-core's C programs over the link: every transport, both directions, and the
//! flags that change the packets or the way of waiting.
//!
//! The server is always at end A. A test is named `peers::{transport}::{roles}::{flags}`, so the list is a matrix.

use crate::tools::counter;
use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use std::process::{Command, Stdio};
use uverbs_tests::child::spawn;
use uverbs_tests::env::End;
use uverbs_tests::{LabEnv, Outcome, Test};

/// The number of exchanges of a test. It is small, because two polling processes are slow under emulation.
const ITERS: u64 = 100;

/// The time limit of both programs.
const PEER_LIMIT: Duration = Duration::from_secs(90);

/// The TCP port of the first test; each has its own.
const FIRST_PORT: u16 = 18600;

/// The author of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Ours,
    C,
}

/// A transport, with the size of its message by default.
#[derive(Clone, Copy, Debug)]
struct Transport {
    name: &'static str,
    bytes: u64,
}

const TRANSPORTS: [Transport; 4] = [
    Transport { name: "rc", bytes: 4096 },
    Transport { name: "uc", bytes: 4096 },
    Transport { name: "ud", bytes: 1024 },
    Transport { name: "srq", bytes: 4096 },
];

/// The programs that serve and connect.
const ROLES: [(&str, Who, Who); 3] = [
    ("ours_serves_c", Who::Ours, Who::C),
    ("c_serves_ours", Who::C, Who::Ours),
    ("ours_serves_ours", Who::Ours, Who::Ours),
];

/// A name, the flags of both ends, and additional flags of our end.
type Flags = (&'static str, &'static [&'static str], &'static [&'static str]);

const FLAGS: [Flags; 5] = [
    ("plain", &[], &[]),
    ("e", &["-e"], &[]),
    ("c", &["-c"], &[]),
    ("N", &[], &["-N"]),
    ("ecN", &["-e", "-c"], &["-N"]),
];

/// On InfiniBand the others use LIDs only.
const GLOBAL_ROUTE: Flags = ("g", &["-g", "0"], &[]);

/// One test.
#[derive(Clone, Copy, Debug)]
struct Case {
    transport: Transport,
    server: Who,
    client: Who,
    both: &'static [&'static str],
    ours: &'static [&'static str],
    port: u16,
}

/// The tests of this file.
pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut port = FIRST_PORT;
    let on_infiniband = LabEnv::get().filter(|env| env.infiniband).map(|_| GLOBAL_ROUTE);
    for transport in TRANSPORTS {
        for (roles, server, client) in ROLES {
            for (flags, both, ours) in FLAGS.into_iter().chain(on_infiniband) {
                let case = Case { transport, server, client, both, ours, port };
                let name = format!("peers::{}::{roles}::{flags}", transport.name);
                tests.push(Test::without_devices(&name, move |env| case.run(env)));
                port += 1;
            }
        }
    }
    tests
}

/// The numbers of packets that each device has sent and received.
fn packets(env: &LabEnv) -> Result<[[u64; 2]; 2]> {
    let of = |device: &str| -> Result<[u64; 2]> {
        if env.mlx5 {
            let n = env.dev.iter().position(|d| d == device).unwrap_or(0);
            let answer = uverbs_tests::bed::hca(&["packets", &n.to_string()])?;
            let (sent, received) = answer.split_once(' ').with_context(|| answer.clone())?;
            return Ok([sent.parse()?, received.parse()?]);
        }
        Ok([counter(device, "sent_pkts")?, counter(device, "rcvd_pkts")?])
    };
    Ok([of(env.dev(End::A))?, of(env.dev(End::B))?])
}

impl Case {
    /// The program of one end, without the host.
    fn program(&self, env: &LabEnv, end: End, who: Who) -> Command {
        let Transport { name, .. } = self.transport;
        let mut command = match who {
            Who::C => env.command(end, &format!("/usr/bin/ibv_{name}_pingpong")),
            Who::Ours => {
                let mut command = env.command(end, "/usr/bin/uverbs");
                command.args(["pingpong", name, "--timeout", "60"]).args(self.ours);
                command
            }
        };
        command.args(["-d", env.dev(end)]);
        if !env.infiniband {
            command.args(["-g", &env.gid_index.to_string()]);
        }
        command.args(["-p", &self.port.to_string(), "-n", &ITERS.to_string()]).args(self.both);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, env: &LabEnv) -> Outcome {
        let before = packets(env)?;
        let mut server = spawn(&mut self.program(env, End::A, self.server))?;
        server.lowest_priority()?;
        server.wait_listening(self.port)?;
        let client = spawn(self.program(env, End::B, self.client).arg(&env.tcp_host[0]))?;
        client.lowest_priority()?;
        let client = client.end(PEER_LIMIT);
        let server = server.end(PEER_LIMIT);
        // If one program failed, the output of the other one often has the reason.
        let (client, server) = match (client, server) {
            (Ok(client), Ok(server)) => (client, server),
            (client, server) => anyhow::bail!("client: {client:?}\nserver: {server:?}"),
        };
        ensure!(
            client.status.success() && server.status.success(),
            "client: {}:\n{}\nserver: {}:\n{}",
            client.status,
            client.output,
            server.status,
            server.output
        );
        for (who, output) in [("client", &client.output), ("server", &server.output)] {
            self.check(output).with_context(|| format!("{who}:\n{output}"))?;
        }
        self.check_packets(before, packets(env)?)
    }

    /// Checks the output of a program: `819200 bytes in ...` and `100 iters in ...`.
    fn check(&self, output: &str) -> Result<()> {
        let bytes = self.transport.bytes * ITERS * 2;
        for start in [format!("{bytes} bytes in "), format!("{ITERS} iters in ")] {
            ensure!(output.lines().any(|line| line.starts_with(&start)), "no line `{start}...`");
        }
        for side in ["local address:", "remote address:"] {
            ensure!(output.contains(side), "no `{side}`");
        }
        ensure!(!output.contains("invalid data"), "wrong data");
        Ok(())
    }

    /// At least every message's packets crossed the link, both ways.
    fn check_packets(&self, before: [[u64; 2]; 2], after: [[u64; 2]; 2]) -> Result<()> {
        // The programs' path MTU, and the largest datagram, is 1024.
        let least = ITERS * self.transport.bytes.div_ceil(1024);
        for (device, (before, after)) in before.iter().zip(&after).enumerate() {
            for (what, (before, after)) in ["sent", "received"].iter().zip(before.iter().zip(after)) {
                let n = after.wrapping_sub(*before);
                ensure!(n >= least, "device {device} {what} {n} packets, expected at least {least}");
            }
        }
        Ok(())
    }
}
