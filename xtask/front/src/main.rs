// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `cargo xtask` runs. It has the demonstration; for any other command it builds the package `xtask` and runs that.
//!
//! This program has no dependencies, so a fresh clone shows its first output in the first second, and the demonstration needs
//! nothing of what the other commands need: the VM lab, charts, tables of clients.

mod demo;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The exit status if the command can't be run, as that of `xtask`.
const FAILED: u8 = 125;

/// The top folder of the repository.
fn repo_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("xtask/front is in the repository")
}

/// A call of Cargo in the top directory of the repository, with the toolchain that started this program.
fn cargo() -> Command {
    let mut cmd = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cmd.current_dir(repo_root());
    cmd
}

/// Runs a command with the streams of this process; an error has its name and status.
fn run(cmd: &mut Command) -> Result<(), String> {
    let shown = || cmd_line(cmd);
    let shown = shown();
    match cmd.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` failed: {status}")),
        Err(error) => Err(format!("cannot start `{shown}`: {error}")),
    }
}

fn cmd_line(cmd: &Command) -> String {
    let words: Vec<_> =
        [cmd.get_program()].into_iter().chain(cmd.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

/// Builds `xtask` and becomes it. Only the first build shows what it compiles: later ones take a moment, and the output of the
/// command stands alone.
fn become_xtask(args: &[OsString]) -> Result<ExitCode, String> {
    // Cargo puts the programs of a build into one folder.
    let here = env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
    let program: PathBuf = here.with_file_name("xtask");
    let mut build = cargo();
    build.args(["build", "--package", "xtask"]);
    if program.exists() {
        build.arg("--quiet");
    } else {
        eprintln!("xtask: the first call builds the commands of this repository");
    }
    run(&mut build)?;
    let error: io::Error = Command::new(&program).args(args).exec();
    Err(format!("cannot start {}: {error}", program.display()))
}

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let done = if args == ["demo"] { demo::here().map(|()| ExitCode::SUCCESS) } else { become_xtask(&args) };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(FAILED)
    })
}
