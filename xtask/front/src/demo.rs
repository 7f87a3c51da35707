// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask demo`: a short demonstration on two software HCAs in one process. It needs no root.
//!
//! It builds in the profile of `cargo test`, so the two commands of README share most of what they compile.

use crate::{cargo, run};
use std::time::Instant;

/// The commands of the demonstration.
const COMMANDS: [&[&str]; 4] = [
    &["devinfo", "-d", "hca0"],
    &["pingpong", "rc", "-d", "hca0", "-c"],
    &["perf", "write-bw", "-d", "hca0", "-a", "-n", "64", "-t", "64", "-l", "16"],
    &["selftest", "-d", "hca0"],
];

/// Runs it.
pub(crate) fn here() -> Result<(), String> {
    println!(
        "== A message from one software NIC to another: crates/hello/examples/hello.rs. The first build compiles it."
    );
    run(cargo().args(["run", "--package", "uverbs-hello", "--example", "hello"]))?;
    println!("\n== The program `uverbs`, which the first build compiles, too");
    run(cargo().args(["build", "--package", "uverbs-tools"]))?;
    let start = Instant::now();
    for words in COMMANDS {
        println!("\n== uverbs {}", words.join(" "));
        run(cargo().args(["run", "--quiet", "--package", "uverbs-tools", "--"]).args(words))?;
    }
    let seconds = start.elapsed().as_secs_f32();
    println!(
        "\n== {seconds:.1} s after the build, without root, kernel module or NIC; the build is not optimised"
    );
    println!("== Optimised: cargo run --release -p uverbs-tools -- perf write-bw -d hca0 -a");
    println!("== With a real kernel: cargo xtask demo --vm");
    Ok(())
}
