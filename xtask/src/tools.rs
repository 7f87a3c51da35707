// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of other projects that the commands run, built by `cargo install`.
//!
//! Each has one version, so that a check gives the same result everywhere. `cargo xtask setup` builds them in
//! `target/tools`, not in the user's `~/.cargo`, which may have other versions. To change a version, change it here.

use crate::{cargo, repo_root, run};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

/// A program, installed by `cargo install`.
pub(crate) struct Tool {
    /// Its package, which is also the name of the executable.
    pub(crate) name: &'static str,
    version: &'static str,
    /// Options of `cargo install` that select its features.
    features: &'static [&'static str],
    /// Its purpose, for messages.
    pub(crate) purpose: &'static str,
}

/// The tools that the gate runs.
pub(crate) const GATE: [&Tool; 4] = [&DENY, &FUZZ, &MDBOOK, &SEMVER_CHECKS];

/// The tools of commands that are not in the gate.
pub(crate) const OTHER: [&Tool; 1] = [&MUTANTS];

/// Licences, forbidden packages and sources of dependencies.
pub(crate) const DENY: Tool =
    Tool { name: "cargo-deny", version: "0.20.2", features: &[], purpose: "the checks of dependencies" };

/// Builds and runs fuzz targets.
pub(crate) const FUZZ: Tool =
    Tool { name: "cargo-fuzz", version: "0.13.2", features: &[], purpose: "the fuzz targets" };

/// Builds the book, without its web server.
pub(crate) const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.4",
    features: &["--no-default-features", "--features=search"],
    purpose: "the book",
};

/// Changes the code, to find changes that no test detects.
pub(crate) const MUTANTS: Tool =
    Tool { name: "cargo-mutants", version: "27.1.0", features: &[], purpose: "the mutation tests" };

/// Compares the API with that of another revision.
pub(crate) const SEMVER_CHECKS: Tool = Tool {
    name: "cargo-semver-checks",
    version: "0.51.0",
    features: &[],
    purpose: "the check of the API's compatibility",
};

impl Tool {
    /// Whether it is installed in its version.
    pub(crate) fn installed(&self) -> bool {
        let mut list = cargo::cargo(&["install", "--list", "--root"]);
        run::output(list.arg(root())).is_ok_and(|text| listed(&text, self.name, self.version))
    }

    /// Builds and installs tools, and replaces other versions. They are built in one folder, because they share many packages.
    pub(crate) fn install_all(tools: &[&Self]) -> Result<()> {
        let installed = tools.iter().try_for_each(|tool| tool.install());
        match fs::remove_dir_all(build()) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                installed.and(Err(e).context("cannot remove the build of the tools"))
            }
            _ => installed,
        }
    }

    /// Builds and installs it.
    fn install(&self) -> Result<()> {
        eprintln!("setup: building {} {}", self.name, self.version);
        let mut cmd = cargo::cargo(&["install", "--quiet", "--locked", "--force", "--version"]);
        cmd.arg(format!("={}", self.version)).args(self.features).arg("--root").arg(root()).arg(self.name);
        // The user's flags are for this project.
        cmd.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS").env("CARGO_TARGET_DIR", build());
        // Building an optimised tool takes longer than running it without optimisation.
        for (key, value) in [("OPT_LEVEL", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "2"), ("DEBUG", "false")] {
            cmd.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
        }
        run::inherit(&mut cmd)
    }

    /// A call of the tool in the top directory of the repository. Fails if the tool is not installed.
    pub(crate) fn command(&self) -> Result<Command> {
        let path = root().join("bin").join(self.name);
        if !path.is_file() {
            bail!("{} is not installed; run `cargo xtask setup`", self.name);
        }
        let mut cmd = Command::new(path);
        // A plugin expects its own name first, as cargo gives it.
        cmd.args(self.name.strip_prefix("cargo-")).current_dir(repo_root());
        Ok(cmd)
    }
}

/// The folder of `cargo install`.
fn root() -> PathBuf {
    repo_root().join("target/tools")
}

/// Where they are built.
fn build() -> PathBuf {
    root().join("build")
}

/// Whether the output of `cargo install --list` has a package in a version.
fn listed(list: &str, name: &str, version: &str) -> bool {
    let line = format!("{name} v{version}:");
    list.lines().any(|l| l == line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_installed_in_its_version_only() {
        let list = "cargo-deny v0.20.2:\n    cargo-deny\ncargo-fuzz v0.13.20:\n    cargo-fuzz\n";
        assert!(listed(list, "cargo-deny", "0.20.2"));
        assert!(!listed(list, "cargo-fuzz", "0.13.2"));
        assert!(!listed(list, "deny", "0.20.2"));
    }
}
