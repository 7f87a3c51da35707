// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of Cargo for the other commands, and static builds for a guest that does not have this machine's libc.

use crate::{repo_root, run};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The only target of the lab. With an explicit target, `RUSTFLAGS` does not apply to build scripts and proc macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A call of Cargo in the top directory of the repository, with the toolchain that started this program.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut cmd = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cmd.args(args).current_dir(repo_root());
    cmd
}

/// Runs cargo and passes its output on.
pub(crate) fn call(args: &[&str]) -> Result<()> {
    run::inherit(&mut cargo(args))
}

/// A static executable to build.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program<'a> {
    /// A package's binary.
    Bin { package: &'a str, name: &'a str },
    /// The executable of a package's integration test.
    Test { package: &'a str, name: &'a str },
    /// A binary of a package that is a workspace of its own.
    Other { manifest: &'a str, package: &'a str, name: &'a str },
}

/// The packages that a build for the VM selects besides that of its program. With the same packages, cargo selects the same features, so
/// that their dependencies are built once, not with and without the features of the tests.
const TOGETHER: [&str; 7] = [
    "uverbs-clients",
    "uverbs-efa-pci",
    "uverbs-examples",
    "uverbs-hca-pci",
    "uverbs-ibverbs",
    "uverbs-tests",
    "uverbs-tools",
];

/// The folder of the builds for the VM.
pub(crate) fn lab_folder() -> PathBuf {
    repo_root().join("target/lab/cargo")
}

/// The folder below that with what a build for the VM makes.
pub(crate) fn lab_output() -> PathBuf {
    lab_folder().join(TARGET).join("vm")
}

/// The profile, flags and folder of the builds for the VM.
pub(crate) fn for_lab(cmd: &mut Command) {
    cmd.args(["--profile", "vm", "--target", TARGET]);
    // Other flags produce other artifacts; a separate folder keeps those of normal builds.
    cmd.arg("--target-dir").arg(lab_folder());
    cmd.env("RUSTFLAGS", "-C target-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
}

/// Builds a static executable with the profile `vm`. Returns its path.
pub(crate) fn build_static(program: Program<'_>) -> Result<PathBuf> {
    let (verb, package, kind, name) = match program {
        Program::Bin { package, name } => (&["build"][..], package, "bin", name),
        Program::Test { package, name } => (&["test", "--no-run"][..], package, "test", name),
        Program::Other { manifest, package, name } => {
            (&["build", "--locked", "--manifest-path", manifest][..], package, "bin", name)
        }
    };
    let mut cmd = cargo(verb);
    cmd.args(["--package", package, &format!("--{kind}"), name]);
    if !matches!(program, Program::Other { .. }) {
        cmd.args(TOGETHER.iter().filter(|other| **other != package).flat_map(|other| ["--package", other]));
    }
    for_lab(&mut cmd);
    build(cmd, package, kind, name)
}

/// Builds `uverbs-hca`, the process that implements mlx5 devices for a VM, or `uverbs-efa`, with the profile `vm`. Returns its path.
pub(crate) fn build_devices(efa: bool) -> Result<PathBuf> {
    let (package, name) =
        if efa { ("uverbs-efa-pci", "uverbs-efa") } else { ("uverbs-hca-pci", "uverbs-hca") };
    build_static(Program::Bin { package, name })
}

/// Runs a build. Returns the path of the executable.
pub(crate) fn build(mut cmd: Command, package: &str, kind: &str, name: &str) -> Result<PathBuf> {
    cmd.arg("--message-format=json-render-diagnostics");
    let out = cmd
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", run::shown(&cmd)))?;
    if !out.status.success() {
        bail!("`{}` failed: {}", run::shown(&cmd), out.status);
    }
    let messages = String::from_utf8(out.stdout).context("cargo printed something that is not UTF-8")?;
    executable(&messages, kind, name).with_context(|| format!("cargo built no {kind} {name} in {package}"))
}

/// The path of an executable in cargo's messages.
fn executable(messages: &str, kind: &str, name: &str) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let target = &message["target"];
        let wanted = message["reason"] == "compiler-artifact"
            && target["name"] == name
            && target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind));
        if wanted { message["executable"].as_str().map(PathBuf::from) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_among_the_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"vm"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"vm"},"executable":"/t/vm-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "test", "vm"), Some(PathBuf::from("/t/vm-1")));
        assert_eq!(executable(messages, "bin", "vm"), None);
    }
}
