// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs trace`, `uverbs decode` and `--pcap`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const UVERBS: &str = env!("CARGO_BIN_EXE_uverbs");

/// A directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uverbs-tools-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn uverbs(args: &[&str]) -> Output {
    Command::new(UVERBS).args(args).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_traced_program_prints_its_steps_and_a_chart() {
    let place = Place::new("trace");
    let (svg, file) = (place.file("t.svg"), place.file("t"));
    let run = [
        "trace", "--svg", &svg, "--write", &file, "--", UVERBS, "pingpong", "rc", "-d", "hca0", "-n", "2",
        "-s", "64",
    ];
    let text_of_run = text(&uverbs(&run));
    let lines: Vec<_> = text_of_run.lines().collect();
    let find = |kind: &str, words: &str| {
        let has = |line: &&str| line.contains(&format!("  {kind:<8}  ")) && line.contains(words);
        assert!(lines.iter().any(has), "no step {kind} with {words}:\n{text_of_run}");
    };
    find("wqe", "SEND of 64 bytes, WQE 0");
    find("sent", "SEND only, 64 bytes");
    find("receive", "with room for 64 bytes is taken");
    find("placed", "64 bytes to key");
    find("cqe", "SEND complete, WQE 0");
    find("state", "Rtr becomes Rts");
    // The program's own output is in front.
    assert!(lines[0].contains("address"), "{text_of_run}");
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains(">uverbs</text>") && drawn.matches("class=\"tip\"").count() >= 8, "{drawn}");
    // The file has the same steps.
    let again = text(&uverbs(&["trace", "--read", &file]));
    assert!(text_of_run.ends_with(&again), "{again}");
}

#[test]
fn what_cannot_be_traced_is_an_error() {
    let output = uverbs(&["trace", "--", UVERBS, "man", "--version"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "uverbs: trace: uverbs (exit status: 0) has used no software NIC, or not these QPs\n");
    let place = Place::new("not");
    let file = place.file("t");
    std::fs::write(&file, "1\t2\n").unwrap();
    let output = uverbs(&["trace", "--read", &file]);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "uverbs: trace: line 1 is not one of a trace\n");
    // The status of the program is that of the command.
    let failing = ["trace", "--", UVERBS, "perf", "write-lat", "-c", "SRD", "-d", "efa0"];
    assert!(!uverbs(&failing).status.success());
}

#[test]
fn packets_are_captured() {
    let place = Place::new("pcap");
    let file = place.file("p.pcapng");
    text(&uverbs(&["pingpong", "rc", "-d", "hca0", "-n", "3", "--pcap", &file]));
    let bytes = std::fs::read(&file).unwrap();
    // A section, interfaces of two ports, and more than a packet for each message and its ACK.
    let blocks = |kind: u32| {
        let (mut at, mut count) = (0, 0);
        while let Some(head) = bytes.get(at..at + 8) {
            let word = |i: usize| u32::from_le_bytes(head[i..i + 4].try_into().unwrap());
            count += usize::from(word(0) == kind);
            at += word(4) as usize;
        }
        assert_eq!(at, bytes.len());
        count
    };
    assert_eq!((blocks(0x0a0d_0d0a), blocks(1)), (1, 2));
    assert!(blocks(6) >= 12, "{}", blocks(6));
    for (args, reason) in [
        (
            &["pingpong", "srd", "-d", "efa0", "-n", "3"][..],
            "the packets of these devices have no public format",
        ),
        (&["completions", "bash"], "the command has used no software NIC (-d hca0)"),
    ] {
        let output = uverbs(&[args, &["--pcap", &file]].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(reason), "{error}");
    }
}

#[test]
fn entries_are_decoded_from_standard_input() {
    let decode = |args: &[&str], input: &[u8]| {
        let mut command = Command::new(UVERBS);
        command.arg("decode").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    };
    let line = "siw CQE: RECEIVE complete, id 0x5 of QP 0x000002, 7 bytes, written\n";
    let mut cqe = [0; 32];
    (cqe[0], cqe[8], cqe[9], cqe[12], cqe[24]) = (5, 1, 8, 7, 2);
    let hex: String = cqe.iter().map(|byte| format!("{byte:02x} ")).collect();
    for output in [
        decode(&["--device", "siw", "cqe"], hex.as_bytes()),
        decode(&["--device", "siw", "cqe", "--binary"], &cqe),
    ] {
        assert!(text(&output).starts_with(line), "{output:?}");
    }
    for (input, reason) in [
        (&b"xyz"[..], "uverbs: decode: line 1: \"xyz\" are not hexadecimal digits of whole bytes\n"),
        (b"", "uverbs: decode: there are no bytes\n"),
    ] {
        let output = decode(&["--device", "mlx5", "wqe"], input);
        assert_eq!(String::from_utf8(output.stderr).unwrap(), reason);
    }
}
