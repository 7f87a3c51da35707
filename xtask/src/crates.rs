// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask clients --crates`: crates that bind libibverbs, with their own tests and examples, on the software HCA or in the VM.
//!
//! cargo fetches them into its registry, and builds them in target/crates. They are not changed, and not part of the workspace:
//! two of them need CMake and libclang, and the first build takes minutes, so this is not a step of `cargo xtask test`.

use crate::{cargo, repo_root};
use anyhow::{Context, Result, ensure};
use core::time::Duration;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;
use uverbs_clients::harness;
use uverbs_clients::native::ends;
use uverbs_clients::process::Group;
use uverbs_clients::report::{Ends, Line, Report};
use uverbs_clients::row::{Family, Names, Place, Row};
use uverbs_clients::rows;
use uverbs_lab::{Share, run};

/// A crate and its version.
type Name = (&'static str, &'static str);

const IBVERBS: Name = ("ibverbs", "0.9.2");
const SIDEWAY: Name = ("sideway", "0.4.3");
const RDMA_IO: Name = ("rdma-io", "0.0.2");

/// The programs: the crate, cargo's kind and name of the target, and the name in the rows. Tests left out need the source
/// repository; the library of rdma-io has no tests, but must build and link.
const PROGRAMS: [(Name, &str, &str, &str); 14] = [
    (IBVERBS, "lib", "ibverbs", "ibverbs-tests"),
    (IBVERBS, "example", "loopback", "ibverbs-loopback"),
    (SIDEWAY, "lib", "sideway", "sideway-tests"),
    (SIDEWAY, "test", "test_atomic", "sideway-test_atomic"),
    (SIDEWAY, "test", "test_cq", "sideway-test_cq"),
    (SIDEWAY, "test", "test_mr_and_cq", "sideway-test_mr_and_cq"),
    (SIDEWAY, "test", "test_post_send", "sideway-test_post_send"),
    (SIDEWAY, "test", "test_qp", "sideway-test_qp"),
    (SIDEWAY, "example", "ibv_devinfo", "sideway-ibv_devinfo"),
    (SIDEWAY, "example", "show_gids", "sideway-show_gids"),
    (SIDEWAY, "example", "rc_pingpong", "sideway-rc_pingpong"),
    (SIDEWAY, "example", "rc_pingpong_split", "sideway-rc_pingpong_split"),
    (SIDEWAY, "example", "cmtime", "sideway-cmtime"),
    (RDMA_IO, "lib", "rdma_io", "rdma-io-tests"),
];

/// The first port of the servers.
const FIRST_PORT: u16 = 24_100;
/// The fabric ends with the run, at the latest then.
const FABRIC_LIMIT: Duration = Duration::from_secs(600);

/// Where cargo builds them.
fn folder() -> PathBuf {
    repo_root().join("target/crates")
}

/// Runs the tests and examples with the library in a folder, on the software HCA; prints the table.
pub(crate) fn main(library: &Path, filter: &[String]) -> Result<ExitCode> {
    let programs = build()?;
    let socket = folder().join("fabric");
    // One of an earlier run, if any.
    let _ = fs::remove_file(&socket);
    let mut group = Group::new(FABRIC_LIMIT)?;
    let fabric = group.start(Command::new(cargo::build_devices(false)?).arg("--fabric").arg(&socket))?;
    ensure!(group.wait_for_text(fabric, "join at"), "no fabric: {}", group.last_lines(fabric));
    let mut report = Report::default();
    let is_wanted = |row: &&Row| {
        let name = row.name();
        row.places.list.contains(&Place::Native)
            && (filter.is_empty() || filter.iter().any(|part| name.contains(part.as_str())))
    };
    for (row, port) in rows::crates().filter(is_wanted).zip(FIRST_PORT..) {
        let program = programs.iter().find(|share| share.guest == guest(row.program));
        let program = &program.with_context(|| format!("{} is not built", row.program))?.host;
        let names = Names {
            device: "hca0".into(),
            gid: "3".into(),
            port,
            host: "127.0.0.1".into(),
            address: String::new(),
            own: String::new(),
            macs: Default::default(),
            has_controller: false,
        };
        let command = |is_client: bool| {
            let mut cmd = Command::new(program);
            cmd.args(row.words(is_client, &names)).env("LD_LIBRARY_PATH", library).env("UVERBS_HCA", "2");
            if row.has_port() {
                cmd.env("UVERBS_HCA_FABRIC", &socket);
            }
            cmd
        };
        let start = Instant::now();
        let cell = if row.family == Family::Harness {
            let mut cmd = command(false);
            cmd.args(harness::NATIVE_SKIPS.iter().flat_map(|(test, _)| ["--skip", test]));
            let results = harness::run(cmd)?;
            let all: BTreeSet<&str> = results.keys().map(String::as_str).collect();
            harness::judge(&results, &all)
        } else {
            ends(row, port, command(false), command(true))?
        };
        eprintln!("clients: {} ({:.1} s)", row.name(), start.elapsed().as_secs_f32());
        report.add(Line { name: row.name(), cells: vec![(Ends::Ours, cell)] });
    }
    Ok(ExitCode::from(u8::from(!report.print())))
}

/// Builds the programs against the installed libraries, and returns them with their places in a guest.
pub(crate) fn build() -> Result<Vec<Share>> {
    let folder = folder();
    fs::create_dir_all(folder.join("src")).context("cannot make target/crates")?;
    let sources = fetch(&folder)?;
    let mut programs = Vec::new();
    for ((name, version), kind, target, program) in PROGRAMS {
        let mut cmd = Command::new(env!("CARGO"));
        match kind {
            "example" => cmd.args(["build", "--example", target]),
            "test" => cmd.args(["test", "--no-run", "--test", target]),
            _ => cmd.args(["test", "--no-run", "--lib"]),
        };
        cmd.args(["--locked", "--manifest-path"]).arg(sources.join(format!("{name}-{version}/Cargo.toml")));
        cmd.arg("--target-dir").arg(folder.join("target"));
        programs.push(Share { host: cargo::build(cmd, name, kind, target)?, guest: guest(program) });
    }
    Ok(programs)
}

/// The path of a program in the guest.
fn guest(program: &str) -> String {
    format!("/usr/bin/{program}")
}

/// Has cargo fetch the crates; the folder of its registry in which their sources are.
fn fetch(folder: &Path) -> Result<PathBuf> {
    let mut manifest = String::from(
        "[workspace]\n[package]\nname = \"fetched\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[dependencies]\n",
    );
    for (name, version) in [IBVERBS, SIDEWAY, RDMA_IO] {
        manifest.push_str(&format!("{name} = \"={version}\"\n"));
    }
    fs::write(folder.join("Cargo.toml"), manifest).context("cannot write a manifest")?;
    fs::write(folder.join("src/lib.rs"), "").context("cannot write a source file")?;
    let path = folder.join("Cargo.toml");
    run::inherit(Command::new(env!("CARGO")).arg("fetch").arg("--manifest-path").arg(&path))?;
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--format-version", "1", "--manifest-path"]).arg(&path);
    let text = run::output(&mut metadata)?;
    let wanted = format!("/{}-{}/Cargo.toml", IBVERBS.0, IBVERBS.1);
    let end = text.find(&wanted).context("cargo did not fetch the crates")?;
    let start = text[..end].rfind('"').map_or(0, |quote| quote + 1);
    Ok(PathBuf::from(&text[start..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_program() {
        let rows: BTreeSet<&str> = rows::crates().map(|row| row.program).collect();
        assert_eq!(rows, PROGRAMS.iter().map(|(.., program)| *program).collect());
    }
}
