// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that the guides compare with those of other libraries, on software NICs, and their figures in the guides.

use std::fs;
use std::path::Path;
use std::process::Command;

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn loopback_sends_a_message_to_itself() {
    let text = run(env!("CARGO_BIN_EXE_loopback"), &[]);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["received", "sent"]);
}

#[test]
fn pingpong_exchanges_messages() {
    let program = env!("CARGO_BIN_EXE_rc_pingpong");
    for options in [&["-c"][..], &["-e", "-c", "-r", "3", "-s", "100"], &["-m", "5", "-s", "1", "-r", "1"]] {
        let text = run(program, &[&["-n", "50"], options].concat());
        assert!(text.contains("local address:") && text.contains("remote address:"), "{text}");
        assert!(text.contains("\n50 iters in "), "{text}");
    }
    let bytes = 2 * 50 * 4096;
    assert!(run(program, &["-n", "50"]).contains(&format!("\n{bytes} bytes in ")));
}

#[test]
fn echo_gets_its_messages_back() {
    assert_eq!(run(env!("CARGO_BIN_EXE_echo"), &[]), "45 bytes\n");
}

/// Lines that are neither blank nor only a comment, and `unsafe` blocks.
fn count(program: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/bin/{program}.rs"));
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<_> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).collect();
    let blocks = lines.iter().filter(|line| line.contains("unsafe {")).count();
    format!("{} lines, {blocks} `unsafe`", lines.len())
}

#[test]
fn the_guides_have_the_figures_of_the_programs() {
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/guides");
    for (guide, program) in [
        ("from-c.md", "rc_pingpong"),
        ("from-ibverbs.md", "loopback"),
        ("from-sideway.md", "rc_pingpong"),
        ("from-rdma-io.md", "echo"),
    ] {
        let text = fs::read_to_string(guides.join(guide)).unwrap();
        let figures = count(program);
        assert!(text.contains(&format!("| {figures} |")), "{guide}: the figures of {program} are {figures}");
    }
}
