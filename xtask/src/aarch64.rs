// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks of `cargo xtask ci` for architectures: that libraries and programs compile for aarch64, and that the barriers are
//! the expected instructions on x86-64 and on aarch64. `emulated` runs tests.

mod emulated;

pub(crate) use emulated::{Args, main, test};

use crate::rust::{self, AARCH64, Emulator};
use crate::{cargo, repo_root, run, vm};
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages that no machine with aarch64 needs: they build, test and measure the others.
const TOOLS: [&str; 8] = [
    "uverbs-book",
    "uverbs-clients",
    "uverbs-dist",
    "uverbs-lab",
    "uverbs-litmus",
    "uverbs-tests",
    "xtask",
    "xtask-front",
];

/// `cargo check` of the libraries and programs that [`test()`] does not build. Their tests run on x86-64.
pub(crate) fn check() -> Result<()> {
    let mut cmd = call("check")?;
    cmd.args(["--workspace", "--lib", "--bins", "--examples"]);
    cmd.args(emulated::PACKAGES.iter().chain(&TOOLS).flat_map(|package| ["--exclude", *package]));
    run::inherit(&mut cmd)
}

/// A call of cargo that builds for aarch64.
fn call(verb: &str) -> Result<Command> {
    let mut cmd = cargo::cargo(&[verb]);
    // Its unit tests take a quarter of the time so. Without the emulation, optimising it costs more than it saves.
    cmd.args(["--config", "profile.dev.package.uverbs-efa-device.opt-level=1"]);
    // Another compiler produces other artifacts; a separate folder keeps those of normal builds.
    cmd.args(["--target", AARCH64, "--target-dir"]).arg(repo_root().join("target/aarch64"));
    cmd.env("RUSTC", compiler()?).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    Ok(cmd)
}

/// The functions of the source file, and their accesses to memory and barriers, in order.
type Expected = [(&'static str, [&'static str; 3]); 5];

const SOURCE: &str = "crates/core/tests/asm/barriers.rs";

/// The CPU keeps loads and stores of write-back memory in order, except a store before a load. No barrier here is for
/// that case.
const ON_X86_64: Expected = [
    ("to_device", ["store", "", "store"]),
    ("from_device", ["load", "", "load"]),
    ("release_to_device", ["load", "", "store"]),
    ("write_combining_start", ["store", "sfence", "store"]),
    ("write_combining_flush", ["store", "sfence", "store"]),
];

const ON_AARCH64: Expected = [
    ("to_device", ["store", "dmb oshst", "store"]),
    ("from_device", ["load", "dmb oshld", "load"]),
    ("release_to_device", ["load", "dmb oshld", "store"]),
    ("write_combining_start", ["store", "dsb st", "store"]),
    ("write_combining_flush", ["store", "dsb st", "store"]),
];

/// Compiles the barriers and compares their instructions.
pub(crate) fn barriers() -> Result<()> {
    let own = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    compare(Path::new(&own), "x86_64-unknown-linux-gnu", x86_64, &ON_X86_64)?;
    compare(&compiler()?, AARCH64, aarch64, &ON_AARCH64)
}

/// An emulator of processes.
fn emulator(which: Emulator) -> Result<PathBuf> {
    let lab = vm::lab(false)?;
    let _lock = lab.lock()?;
    which.prepare(&lab).context("no emulator for aarch64 (without a network, use --no-aarch64)")
}

fn compiler() -> Result<PathBuf> {
    let lab = vm::lab(false)?;
    let _lock = lab.lock()?;
    rust::prepare(&lab).context(
        "no compiler for aarch64 (without a network, use --without-aarch64 of `ci`, --no-aarch64 of `test`)",
    )
}

/// The meaning of an instruction: `load`, `store`, the barrier, or `None` for others.
type Meaning = fn(&str) -> Result<Option<&str>>;

fn compare(rustc: &Path, target: &str, meaning: Meaning, expected: &Expected) -> Result<()> {
    let dir = repo_root().join("target/aarch64");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let out = dir.join(format!("barriers-{target}.s"));
    let mut cmd = Command::new(rustc);
    cmd.args(["--edition", "2024", "--crate-type", "lib", "-O", "-C", "debuginfo=0", "--cap-lints", "allow"]);
    cmd.args(["--target", target, "--emit"]).arg(format!("asm={}", out.display())).arg(SOURCE);
    run::output(cmd.current_dir(repo_root()))?;
    let text = fs::read_to_string(&out).with_context(|| format!("cannot read {}", out.display()))?;
    for (function, want) in expected {
        let want: Vec<_> = want.iter().copied().filter(|what| !what.is_empty()).collect();
        let got =
            instructions(&text, function, meaning).with_context(|| format!("{function} on {target}"))?;
        ensure!(got == want, "{function} on {target}: {got:?}, should be {want:?} ({})", out.display());
    }
    Ok(())
}

/// The loads, stores and barriers in a function of an assembler file.
fn instructions<'a>(text: &'a str, function: &str, meaning: Meaning) -> Result<Vec<&'a str>> {
    let label = format!("{function}:");
    let mut found = Vec::new();
    let body = text.lines().skip_while(|line| *line != label).skip(1);
    for line in body.take_while(|line| !line.trim_start().starts_with(".cfi_endproc")) {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with(['.', '#', '/']) && !line.ends_with(':') {
            found.extend(meaning(line)?);
        }
    }
    ensure!(!found.is_empty(), "the function is missing");
    Ok(found)
}

fn x86_64(line: &str) -> Result<Option<&str>> {
    let (name, operands) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if name.ends_with("fence") || name == "lock" || name.starts_with("xchg") {
        return Ok(Some(line));
    }
    // The last operand is the destination.
    Ok(match (operands.contains('('), operands.trim_end().ends_with(')')) {
        _ if name.starts_with("lea") => None,
        (false, _) => None,
        (true, true) if name.starts_with("mov") => Some("store"),
        (true, false) if name.starts_with("mov") => Some("load"),
        _ => bail!("`{line}` is neither a load nor a store"),
    })
}

fn aarch64(line: &str) -> Result<Option<&str>> {
    let name = line.split_whitespace().next().unwrap_or_default();
    Ok(match name {
        "dmb" | "dsb" | "isb" => Some(barrier_name(line)?),
        _ if name.starts_with("ld") => Some("load"),
        _ if name.starts_with("st") => Some("store"),
        _ => None,
    })
}

/// The name of a barrier in the table, or the text of another one.
fn barrier_name(line: &str) -> Result<&str> {
    let words: Vec<_> = line.split_whitespace().collect();
    let known =
        ON_AARCH64.iter().map(|(_, what)| what[1]).find(|known| known.split(' ').eq(words.iter().copied()));
    Ok(known.unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_and_barriers_are_found_in_a_function() {
        let text = "first:\n\t.cfi_startproc\n\tldr\tx8, [x0]\n\t//APP\n\tdmb\toshld\n\t//NO_APP\n\tmov\tw9, #1\n\
                    \tstr\tw9, [x1]\n\tret\n.Lfunc_end0:\n\t.cfi_endproc\nsecond:\n\tsfence\n\
                    \tmovq\t(%rdi), %rax\n\tmovl\t$1, (%rsi)\n\tretq\n\t.cfi_endproc\n";
        assert_eq!(instructions(text, "first", aarch64).unwrap(), ["load", "dmb oshld", "store"]);
        assert_eq!(instructions(text, "second", x86_64).unwrap(), ["sfence", "load", "store"]);
        assert!(instructions(text, "third", x86_64).is_err());
        assert!(x86_64("addl\t$1, (%rsi)").is_err());
    }
}
