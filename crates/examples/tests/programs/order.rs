// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs under the orders of accesses to memory that software devices may have.

use crate::process::Process;
use std::io::Read as _;
use std::process::{Command, Stdio};

/// How a program ends with an order, and what it prints to stderr.
fn run(program: &str, args: &[&str], order: &str) -> (bool, String) {
    // A test that fails shows it, also if the program does not end.
    eprintln!("UVERBS_HCA_ORDER={order} {program} {}", args.join(" "));
    let mut command = Command::new(program);
    command.args(args).env("UVERBS_HCA_ORDER", order).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = Process::start(&mut command);
    let mut stderr = process.0.stderr.take().unwrap();
    let said = std::thread::spawn(move || {
        let mut said = String::new();
        stderr.read_to_string(&mut said).map(|_| said)
    });
    let passed = process.wait().success();
    let said = said.join().unwrap().unwrap();
    eprint!("{said}");
    (passed, said)
}

fn passes(program: &str, args: &[&str], order: &str) -> bool {
    run(program, args, order).0
}

#[test]
fn programs_pass_with_each_order() {
    let programs: [(&str, &[&str]); 7] = [
        (env!("CARGO_BIN_EXE_kv"), &["-c", "3", "-n", "30"]),
        (env!("CARGO_BIN_EXE_kv"), &["--async", "-c", "3", "-n", "20"]),
        (env!("CARGO_BIN_EXE_bulk"), &["-b", "8"]),
        (env!("CARGO_BIN_EXE_log"), &[]),
        (env!("CARGO_BIN_EXE_rpc"), &["-c", "5", "-n", "20"]),
        // A stream of bytes.
        (env!("CARGO_BIN_EXE_echo"), &[]),
        (env!("CARGO_BIN_EXE_flag"), &["--repaired"]),
    ];
    // Beside each other: they wait for each other's messages most of the time.
    std::thread::scope(|scope| {
        for order in ["pcie:1", "relaxed:2", "model:3", "model:4"] {
            scope.spawn(move || {
                for (program, args) in programs {
                    assert!(passes(program, args, order), "{program} {args:?} fails with the order {order}");
                }
            });
        }
    });
}

#[test]
fn the_bug_of_flag_is_found() {
    let flag = env!("CARGO_BIN_EXE_flag");
    assert!(passes(flag, &[], "ordered"), "it fails without a mode");
    assert!((0..1000).any(|seed| !passes(flag, &[], &format!("model:{seed}"))), "1,000 seeds find nothing");
}

#[test]
fn a_seed_that_was_drawn_is_printed_and_none_without_a_mode() {
    let echo = env!("CARGO_BIN_EXE_echo");
    let (passed, said) = run(echo, &[], "ordered");
    assert!(passed && !said.contains("UVERBS_HCA_ORDER"), "{said}");
    let (passed, said) = run(echo, &[], "pcie");
    assert!(passed && said.contains("UVERBS_HCA_ORDER=pcie:"), "{said}");
}
