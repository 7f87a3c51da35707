// SPDX-License-Identifier: MIT OR Apache-2.0
//! A Rust compiler with the standard library for aarch64, and an emulator of its processes: Debian's, unpacked and run in their
//! directories.
//!
//! The machine's own toolchain has the library for x86-64, and rustup can add others only from its own server, which a
//! build machine may not reach. A standard library fits only the compiler that it was built with, so both come from one suite.

use crate::run;
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use uverbs_lab::Lab;
use uverbs_lab::apt::{self, Suite};
use uverbs_lab::root::LOADER;

/// The oldest suite whose compiler is new enough for the workspace (`rust-version`).
const SUITE: &str = "forky";

/// Debian's name of the architecture.
const FOREIGN: &str = "arm64";

/// The target in Rust's terms.
pub(crate) const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// A script that starts the compiler with the tree's own loader, from any directory.
const SCRIPT: &str = r#"#!/bin/sh
root=$(cd "$(dirname "$0")" && pwd) || exit
lib=$root/usr/lib/x86_64-linux-gnu
exec "$lib/LOADER" --inhibit-cache --library-path "$lib" "$root/usr/bin/rustc" --sysroot "$root/usr" "$@"
"#;

/// Returns the compiler, and downloads it first if it is missing. The caller holds the lab's lock.
pub(crate) fn prepare(lab: &Lab) -> Result<PathBuf> {
    let script = SCRIPT.replace("LOADER", LOADER);
    let recipe = format!("{SUITE}\n{FOREIGN}\n{script}");
    let tree = lab.cached("rust-aarch64", &recipe, |dir| {
        let suite = Suite::open_with(lab, SUITE, FOREIGN)?;
        // The dependencies of `rustc` include a C compiler, which only linking needs.
        let mut debs = suite.closure(&["libstd-rust-dev"])?;
        debs.extend(suite.exact(&["rustc".into(), format!("libstd-rust-dev:{FOREIGN}")])?);
        apt::unpack(&debs, dir)?;
        let rustc = dir.join("rustc");
        fs::write(&rustc, &script).context("cannot write the script that starts rustc")?;
        fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755))
            .context("cannot make it executable")?;
        try_out(&rustc, dir)
    })?;
    Ok(tree.join("rustc"))
}

/// QEMU's emulator of processes for aarch64, as Debian has it: a static program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emulator {
    /// That of [`SUITE`]. Pages have the size of the machine's.
    Current,
    /// QEMU 7.2, in which pages can have another size (option `-p`). It ignores `MADV_WIPEONFORK`.
    AnyPages,
}

impl Emulator {
    pub(crate) const ALL: [Self; 2] = [Self::Current, Self::AnyPages];

    /// Suite, package and program.
    fn source(self) -> [&'static str; 3] {
        match self {
            Self::Current => [SUITE, "qemu-user", "qemu-aarch64"],
            Self::AnyPages => ["bookworm", "qemu-user-static", "qemu-aarch64-static"],
        }
    }

    /// Returns the program, and downloads it first if it is missing. The caller holds the lab's lock.
    pub(crate) fn prepare(self, lab: &Lab) -> Result<PathBuf> {
        let [suite, package, program] = self.source();
        let tree = lab.cached(&format!("qemu-user-{suite}"), package, |dir| {
            let debs = Suite::open(lab, suite)?.exact(&[package.into()])?;
            // The package has a program for each architecture.
            let unpacked = dir.join("unpacked");
            apt::unpack(&debs, &unpacked)?;
            fs::rename(unpacked.join("usr/bin").join(program), dir.join(program))
                .with_context(|| format!("{package} has no {program}"))?;
            fs::remove_dir_all(&unpacked).context("cannot remove the other emulators")?;
            run::output(Command::new(dir.join(program)).arg("--version")).map(drop)
        })?;
        Ok(tree.join(program))
    }
}

/// Compiles an empty library: fails if the compiler does not start, or does not fit the standard library.
fn try_out(rustc: &Path, dir: &Path) -> Result<()> {
    let empty = dir.join("empty.rs");
    fs::write(&empty, "").context("cannot write an empty library")?;
    let mut cmd = Command::new(rustc);
    cmd.args(["--target", AARCH64, "--crate-type", "lib", "--emit", "metadata", "--out-dir"]);
    run::output(cmd.arg(dir).arg(&empty)).map(drop)
}
