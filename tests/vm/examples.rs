// SPDX-License-Identifier: MIT OR Apache-2.0
//! Examples on the devices: gRPC (`tests/grpc`), and the ports of programs for other libraries (`crates/examples`). The key-value
//! store and the bulk transfers are in `tools.rs`.

use crate::tools::{TOOL_LIMIT, both, both_when, client_of_cm, cm_listens};
use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Command, Stdio};
use uverbs_tests::child::{Child, spawn};
use uverbs_tests::env::End;
use uverbs_tests::{LabEnv, Outcome, Test, run};

/// The port of the first test; each has its own.
const FIRST_PORT: u16 = 19_040;

fn example(env: &LabEnv, end: End, name: &str) -> Command {
    let mut command = env.command(end, &format!("/usr/lib/examples/{name}"));
    command.stdin(Stdio::null());
    command
}

/// A server, until its client has ended, and a client.
fn grpc(env: &LabEnv) -> Outcome {
    if env.infiniband {
        // As for rping.
        return Ok(());
    }
    let address = format!("{}:{FIRST_PORT}", env.ip[0]);
    let grpc = |end: End, role: &str| {
        let mut command = example(env, end, "uverbs-grpc");
        command.args(["-d", env.dev(end), role, &address]);
        command
    };
    let mut server = spawn(&mut grpc(End::A, "--serve"))?;
    server.lowest_priority()?;
    cm_listens(&mut server, FIRST_PORT)?;
    let client = run(grpc(client_of_cm(env), "--connect").args(["-n", "200"]), TOOL_LIMIT);
    kill(Pid::from_raw(server.id().try_into()?), Signal::SIGTERM)?;
    let server = server.end(TOOL_LIMIT)?;
    let client = client.with_context(|| format!("server: {server:?}"))?;
    ensure!(client.starts_with("200 calls, "), "{client}");
    ensure!(server.status.success() && !server.output.contains("failed"), "{server:?}");
    uverbs_tests::runner::note(client.trim_end());
    Ok(())
}

/// The port of `ibv_rc_pingpong`, at one end or both.
fn rc_pingpong(env: &LabEnv, ours: [bool; 2], port: u16) -> Outcome {
    let pingpong = |end: End| {
        let mut command = match ours[end as usize] {
            true => example(env, end, "rc_pingpong"),
            false => env.command(end, "/usr/bin/ibv_rc_pingpong"),
        };
        // With events, because two polling processes wait for each other's time slices.
        command.args(["-d", env.dev(end), "-p", &port.to_string(), "-n", "100", "-e"]);
        // The C program fills its messages in another way.
        if ours == [true; 2] {
            command.arg("-c");
        }
        // InfiniBand goes by LIDs.
        if !env.infiniband {
            command.args(["-g", &env.gid_index.to_string()]);
        }
        command
    };
    for output in both(&mut pingpong(End::A), pingpong(End::B).arg(&env.tcp_host[0]), port)? {
        ensure!(output.contains("100 iters in "), "no result:\n{output}");
    }
    Ok(())
}

/// The port of a program that uses the first device.
fn loopback(env: &LabEnv) -> Outcome {
    let output = run(&mut example(env, End::A, "loopback"), TOOL_LIMIT)?;
    ensure!(output.contains("sent") && output.contains("received"), "{output}");
    Ok(())
}

/// The port of a program whose connections are made by IP address.
fn echo(env: &LabEnv, port: u16) -> Outcome {
    if env.infiniband {
        // As for rping.
        return Ok(());
    }
    let address = format!("{}:{port}", env.ip[0]);
    let echo = |end: End, messages: &[&str]| {
        let mut command = example(env, end, "echo");
        command.args([env.dev(end), &address]).args(messages);
        command
    };
    // The route to the server selects the device, which is the server's if both ends have one network namespace.
    let end = if env.ns[1].is_empty() { End::A } else { End::B };
    let listens = |server: &mut Child| cm_listens(server, port);
    let [served, _] = both_when(&mut echo(End::A, &["serve"]), &mut echo(end, &["one", "another"]), listens)?;
    ensure!(served == "10 bytes\n", "{served}");
    Ok(())
}

/// The tests of this file.
pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::without_devices("examples::grpc", grpc),
        Test::without_devices("examples::echo", |env| echo(env, FIRST_PORT + 1)),
    ];
    if LabEnv::get().is_some_and(|env| env.siw) {
        // The other two connect their QPs without the connection manager, which iWARP does not allow.
        return tests;
    }
    tests.push(Test::without_devices("examples::loopback", loopback));
    let roles = [("both", [true, true]), ("ours_serves_c", [true, false]), ("c_serves_ours", [false, true])];
    for ((name, ours), port) in roles.into_iter().zip(FIRST_PORT + 2..) {
        let run = move |env: &LabEnv| rc_pingpong(env, ours, port);
        tests.push(Test::without_devices(&format!("examples::rc_pingpong::{name}"), run));
    }
    tests
}
