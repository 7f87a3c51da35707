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

#[test]
fn top_prints_json() {
    let text = uverbs(&["top", "--once", "--json"]);
    assert!(text.starts_with("{\"devices\":[") && text.lines().count() == 1, "{text}");
}
