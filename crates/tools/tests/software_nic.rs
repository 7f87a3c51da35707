// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program on software NICs, with its output in a pipe.

use core::time::Duration;
use std::io::{BufRead, BufReader};
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
/// end the other one.
#[test]
fn both_ends_end_when_the_reader_of_the_output_is_gone() {
    for events in ["", "-e"] {
        let mut child =
            uverbs(&format!("pingpong srq -d hca0 --timeout 0 -n 1000000000 {events}")).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..3 {
            lines.next().unwrap().unwrap();
        }
        drop(lines);
        assert!(!wait(child).success());
    }
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
