// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program on software NICs, with its output in a pipe.

use core::time::Duration;
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Long enough for a slow machine.
const LIMIT: Duration = Duration::from_secs(300);

fn uverbs(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uverbs"));
    command.args(line.split_whitespace()).stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Waits until the program exits, and kills it after a time limit.
fn wait(mut child: Child) -> std::process::ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the program does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Closes the pipe early, as `| head -3` does. There is no time limit, so only the failure of the end that prints can
/// end the other one. The pipe is smaller than what the ends print before they exchange messages, so one of them does fail.
#[test]
fn both_ends_end_when_the_reader_of_the_output_is_gone() {
    for events in ["", "-e"] {
        let (reader, writer) = std::io::pipe().unwrap();
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
        let child = uverbs(&format!("pingpong srq -d hca0 --timeout 0 -n 1000000000 -q 64 {events}"))
            .stdout(writer)
            .spawn()
            .unwrap();
        let mut lines = BufReader::with_capacity(64, reader).lines();
        for _ in 0..3 {
            lines.next().unwrap().unwrap();
        }
        drop(lines);
        assert!(!wait(child).success());
    }
}

/// The exit code tells of an error whose text can't be written.
#[test]
fn an_error_that_cannot_be_written_is_an_exit_code() {
    for line in ["devinfo -d none", "devinfo -d hca0 -i 7", "pingpong rc -d none"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let child = uverbs(line).stdout(Stdio::null()).stderr(full).spawn().unwrap();
        assert_eq!(wait(child).code(), Some(1), "{line}");
    }
}

/// Scripts that a sweep has found: the command said that it had done its work.
#[test]
fn an_object_that_is_not_destroyed_is_an_error() {
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("destroy.script");
    for verb in ["dereg_mr", "destroy_cq", "destroy_qp"] {
        std::fs::write(&script, format!("call verb={verb} nth=1 : errno EBUSY\n")).unwrap();
        let out = uverbs("perf send-bw -d hca0 -n 20").env("UVERBS_HCA_FAULTS", &script).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && text.contains("EBUSY"), "{verb}: {} {text}", out.status);
    }
    // A script that does not select a call changes nothing; one that is none is an error.
    for (text, code) in [("call verb=destroy_qp nth=1000 : errno EBUSY", 0), ("call verb : errno EBUSY", 1)] {
        std::fs::write(&script, text).unwrap();
        let child = uverbs("pingpong rc -d hca0 -n 20").env("UVERBS_HCA_FAULTS", &script).spawn().unwrap();
        assert_eq!(wait(child).code(), Some(code), "{text}");
    }
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    for line in ["--help", "--version", "perf send-bw --help", "help devinfo"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = uverbs(line).stdout(full).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && text.contains("No space left"), "{line}: {text}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(wait(uverbs(line).stdout(writer).spawn().unwrap()).code(), Some(1), "{line}");
    }
}

#[test]
fn an_error_of_the_output_says_so() {
    for line in
        ["perf send-bw -d hca0 -n 10", "pingpong rc -d hca0 --json", "devinfo -d hca0", "completions bash"]
    {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = uverbs(line).stdout(full).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && text.contains("cannot write the output: No space left"),
            "{line}: {text}"
        );
    }
}

/// A client sends the first messages of the exchange and closes the connection, so that a later write of the server fails with
/// `EPIPE`: the same error as that of its output without a reader, after which nothing is printed.
#[test]
fn a_connection_that_the_client_closes_is_an_error_with_a_text() {
    let socket = std::env::temp_dir().join(format!("uverbs-tools-closed-{}", std::process::id()));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let line = format!("perf send-lat -d hca0 --bind 127.0.0.1 -p {port} --timeout 250");
    let mut server = uverbs(&line).env("UVERBS_HCA_FABRIC", &socket).spawn().unwrap();
    // The server listens before it says so.
    let mut waiting = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut waiting).unwrap();
    assert!(waiting.contains(&port.to_string()), "{waiting:?}");
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // The version, the cycle, the cache line, the MTU.
    client.write_all(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\x405\0").unwrap();
    drop(client);
    let output = server.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.starts_with("uverbs: perf send-lat: "), "{text:?}");
    let _ = std::fs::remove_file(&socket);
}

#[test]
fn results_name_the_device_that_was_asked_for() {
    for line in ["pingpong rc -d hca0 -n 10 -s 1k --json", "perf write-bw -d hca0 -n 10 -s 1k --json"] {
        let output = uverbs(line).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("\"device\": \"hca0\"") && text.contains("1024"), "{text}");
        assert!(!text.contains("hca1"), "{text}");
    }
    let output = uverbs("pingpong rc -d hca0 -i 7").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && !text.contains("hca1"), "{text}");
}

/// The exchange and the connections by rdma_cm.
#[test]
fn perf_connects_by_rdma_cm() {
    for line in [
        "perf write-lat -z",
        "perf send-lat -R -T 32",
        "perf send-lat -R -c UD -e",
        "perf send-bw -R -c UD -s 1k",
        "perf send-bw -R -b -q 2",
        "perf write-bw -R -q 3",
        "perf read-lat -R -o 2",
        "perf atomic-bw -z -q 2",
    ] {
        let output = uverbs(&format!("{line} -d hca0 -n 40 --json --timeout 250")).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("\"iters\""), "{line}: {text}");
    }
    for line in ["perf write-lat -R -c UC", "perf send-lat -T 3", "perf send-bw -R -c XRC"] {
        assert!(!uverbs(&format!("{line} -d hca0")).output().unwrap().status.success(), "{line}");
    }
}

#[test]
fn perf_prints_one_figure_and_checks_limits() {
    for line in ["send-lat --output latency", "write-bw --output bandwidth", "read-bw --output message_rate"]
    {
        let output = uverbs(&format!("perf {line} -d hca0 -n 40")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && text.trim().parse::<f64>().is_ok_and(|n| n > 0.0),
            "{line}: {text}"
        );
    }
    for (limit, passes) in [("-w 0.000001", true), ("-w 1e12", false), ("-y 1e12", false)] {
        let output = uverbs(&format!("perf write-bw -d hca0 -n 40 {limit}")).output().unwrap();
        assert_eq!(output.status.success(), passes, "{limit}: {output:?}");
    }
    assert!(!uverbs("perf send-lat -d hca0 --output bandwidth").output().unwrap().status.success());
}

/// Runs a server and a client on the fabric of several processes, and waits until the client measures.
fn measuring(line: &str, socket: &Path) -> [Child; 2] {
    let start = |host: &str| {
        let mut command = uverbs(&format!("{line} -d hca0 {host}"));
        command.env("UVERBS_HCA_FABRIC", socket).spawn().unwrap()
    };
    let line_with = |child: &mut Child, text: &str| {
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        lines
            .find_map(|line| line.ok().filter(|line| line.contains(text)))
            .unwrap_or_else(|| panic!("no {text}"))
    };
    let mut server = start("");
    let first = line_with(&mut server, "Waiting for a client");
    let address = first.split_whitespace().find(|word| word.starts_with("10.77."));
    let mut client = start(address.map_or("127.0.0.1", |address| address.trim_end_matches(',')));
    line_with(&mut client, "#bytes");
    [server, client]
}

/// Nothing of the device shows a sender of datagrams, or of messages of UC, that nobody receives them.
#[test]
fn an_end_whose_peer_is_killed_ends() {
    let ends = |number: usize, line: &str, kills_server: bool| {
        let socket = std::env::temp_dir().join(format!("uverbs-tools-kill-{}-{number}", std::process::id()));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let [server, client] = measuring(&format!("{line} -p {port}"), &socket);
        let [mut killed, left] = if kills_server { [server, client] } else { [client, server] };
        killed.kill().unwrap();
        killed.wait().unwrap();
        let begin = Instant::now();
        let output = left.wait_with_output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(300), "{line}");
        assert!(
            output.status.code() == Some(1) && text.contains("the other end has ended the connection"),
            "{line}: {text:?}"
        );
        let _ = std::fs::remove_file(&socket);
    };
    let lines = [
        ("perf send-bw -c UD -s 64 -D 600 -b --timeout 900", true),
        ("perf send-bw -c UD -s 64 -D 600 -b -z --timeout 900", false),
        ("perf write-bw -c UC -s 64 -D 600 --timeout 900", true),
        ("perf send-bw -c UD -s 64 -n 100000000 -e --timeout 900", false),
    ];
    // Beside each other: an end waits until it takes the silence for the end of the other one.
    std::thread::scope(|scope| {
        for (number, (line, kills_server)) in lines.into_iter().enumerate() {
            scope.spawn(move || ends(number, line, kills_server));
        }
    });
}

/// Each model has a variable for the socket of its own fabric.
#[test]
fn processes_share_a_fabric_of_their_model() {
    for (device, variable, line) in [
        ("hca0", "UVERBS_HCA_FABRIC", "perf write-bw -s 64 -n 40"),
        ("efa0", "UVERBS_EFA_FABRIC", "perf send-bw -c SRD -s 64 -n 40"),
    ] {
        let socket = std::env::temp_dir().join(format!("uverbs-tools-{device}-{}", std::process::id()));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let end = |host: &str| {
            let mut command = uverbs(&format!("{line} -d {device} -p {port} {host}"));
            command.env(variable, &socket);
            command
        };
        let mut server = end("").spawn().unwrap();
        let mut output = BufReader::new(server.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        assert!(first.contains("Waiting for a client") && socket.exists(), "{device}: {first:?}");
        let client = end("127.0.0.1").output().unwrap();
        assert!(client.status.success(), "{device}: {client:?}");
        std::io::copy(&mut output, &mut std::io::sink()).unwrap();
        assert!(wait(server).success(), "{device}");
        let _ = std::fs::remove_file(&socket);
    }
}

/// Two processes on one fabric, which rdma_cm connects.
#[test]
fn processes_of_a_fabric_connect_by_rdma_cm() {
    let connect = |number: usize, line: &str| {
        let socket = std::env::temp_dir().join(format!("uverbs-tools-cm-{}-{number}", std::process::id()));
        let end = |host: &str| {
            let mut command = uverbs(&format!("{line} -d hca0 {host}"));
            command.env("UVERBS_HCA_FABRIC", &socket);
            command
        };
        let mut server = end("").spawn().unwrap();
        // Its first line has its address on the fabric.
        let mut output = BufReader::new(server.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        let address = first.split_whitespace().find(|word| word.starts_with("10.77."));
        let address = address.unwrap_or_else(|| panic!("no address: {first}")).trim_end_matches(',');
        let client = end(address).output().unwrap();
        assert!(client.status.success(), "{line}: {client:?}");
        // It must not wait for the reader of its output.
        std::io::copy(&mut output, &mut std::io::sink()).unwrap();
        assert!(wait(server).success(), "{line}");
        let _ = std::fs::remove_file(&socket);
    };
    let lines = [
        "perf send-bw -R -c UD -s 512 -b -n 40 --timeout 250",
        "pingpong srq -q 3 --cm -n 40 --timeout 250",
        // The server sees no progress, and must wait for the whole test, which takes longer than the time limit.
        "perf write-bw -R -D 3 --timeout 2",
    ];
    std::thread::scope(|scope| {
        lines.iter().enumerate().for_each(|(number, line)| _ = scope.spawn(move || connect(number, line)));
    });
}
