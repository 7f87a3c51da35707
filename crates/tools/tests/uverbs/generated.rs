// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completions and the man pages that the program generates, and `top` as a program.

use std::fs;
use std::process::Command;

fn uverbs(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_uverbs")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = uverbs(&["completions", shell]);
        assert!(text.contains("send-lat") && text.contains("completions"), "{shell}");
    }
}

#[test]
fn each_command_has_a_man_page() {
    let dir = std::env::temp_dir().join(format!("uverbs-man-{}", std::process::id()));
    uverbs(&["man", dir.to_str().unwrap()]);
    let page = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let perf = page("uverbs-perf-send-lat.1");
    assert!(perf.contains(".TH UVERBS-PERF-SEND-LAT 1") && perf.contains("qp\\-timeout"), "{perf}");
    assert!(page("uverbs.1").contains("devinfo") && page("uverbs-top.1").contains("interval"));
    fs::remove_dir_all(dir).unwrap();
}

/// What `uverbs-hca` answers to `stat 0` and `stat 1` of its control socket.
#[test]
fn top_shows_the_devices_of_another_process() {
    use std::io::{BufRead, BufReader, Write};
    let hca = uverbs_hca::Fabric::deterministic(1).device("hca4").build();
    let path = std::env::temp_dir().join(format!("uverbs-top-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let program = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
            let answer = match line.as_str() {
                "stat 0" => format!("ok {} {}", hca.name(), hca.stat()),
                _ => "error 1: no such device".to_owned(),
            };
            writeln!(stream, "{answer}").unwrap();
        }
    });
    let text = uverbs(&["top", "--once", "--json", "-d", "hca4", "--control", path.to_str().unwrap()]);
    program.join().unwrap();
    fs::remove_file(&path).unwrap();
    let start = "{\"devices\":[{";
    assert!(text.starts_with(start) && text.contains("\"name\":\"hca4\""), "{text}");
    assert!(text.contains("\"sent_pkts\":0") && text.contains("\"state\":\"ACTIVE\""), "{text}");
}

#[test]
fn top_prints_json() {
    let text = uverbs(&["top", "--once", "--json"]);
    assert!(text.starts_with("{\"devices\":[") && text.lines().count() == 1, "{text}");
}
