// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask clients --crates`: crates that bind libibverbs, with their own tests and examples, on the software HCA.
//!
//! cargo fetches them into its registry, and builds them in target/crates. They are not changed, and not part of the workspace:
//! two of them need CMake and libclang, and the first build takes minutes, so this is not a step of `cargo xtask test`.

use crate::{cargo, repo_root};
use anyhow::{Context, Result, ensure};
use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use uverbs_clients::native::{pair, single};
use uverbs_clients::process::Group;
use uverbs_clients::report::{Cell, Ends, Line, Report};
use uverbs_lab::run;

/// A crate and its version.
type Name = (&'static str, &'static str);

const IBVERBS: Name = ("ibverbs", "0.9.2");
const SIDEWAY: Name = ("sideway", "0.4.3");
const RDMA_IO: Name = ("rdma-io", "0.0.2");

/// The tests of each crate. Those left out need files of a kernel's device, or the source repository.
const TESTS: [(Name, &[&str]); 3] = [
    (IBVERBS, &["--lib"]),
    (
        SIDEWAY,
        // The skipped test compares an entry of the GID table with a file in /sys/class/infiniband, which the HCA lacks.
        &[
            "--lib",
            "--test",
            "test_atomic",
            "--test",
            "test_cq",
            "--test",
            "test_mr_and_cq",
            "--test",
            "test_post_send",
            "--test",
            "test_qp",
            "--",
            "--skip",
            "test_query_gid_table_fallback",
        ],
    ),
    // It has no tests in its package, but must build and link.
    (RDMA_IO, &["--lib"]),
];

/// Examples of one process.
const EXAMPLES: [(Name, &str); 3] = [(IBVERBS, "loopback"), (SIDEWAY, "ibv_devinfo"), (SIDEWAY, "show_gids")];

/// Examples with a server and a client, and their arguments.
const PAIRS: [(Name, &str); 2] = [(SIDEWAY, "rc_pingpong"), (SIDEWAY, "rc_pingpong_split")];

/// The first port of the servers.
const FIRST_PORT: u16 = 24_100;
/// The fabric ends with the run, at the latest then.
const FABRIC_LIMIT: Duration = Duration::from_secs(600);

/// Builds the crates and runs their tests and examples with the library in a folder; prints the table.
pub(crate) fn main(library: &Path) -> Result<ExitCode> {
    let folder = repo_root().join("target/crates");
    fs::create_dir_all(folder.join("src")).context("cannot make target/crates")?;
    let sources = fetch(&folder)?;
    let source = |name: Name| sources.join(format!("{}-{}", name.0, name.1));
    let command = |name: Name, verb: &str| {
        let mut cmd = Command::new(env!("CARGO"));
        cmd.args([verb, "--locked", "--manifest-path"]).arg(source(name).join("Cargo.toml"));
        cmd.arg("--target-dir").arg(folder.join("target")).env("LD_LIBRARY_PATH", library);
        cmd.env("UVERBS_HCA", "2");
        cmd
    };
    let mut report = Report::default();
    let mut add = |name: String, cell| report.add(Line { name, cells: vec![(Ends::Ours, cell)] });
    for (name, args) in TESTS {
        let passed = run::inherit(command(name, "test").args(args));
        let cell = passed.map_or_else(|error| Cell::Fail(format!("{error:#}")), |()| Cell::Pass);
        add(format!("{} {}: tests", name.0, name.1), cell);
    }
    let program = |name: Name, example: &str| -> Result<Command> {
        run::inherit(command(name, "build").args(["--example", example]))?;
        let mut cmd = Command::new(folder.join("target/debug/examples").join(example));
        cmd.env("LD_LIBRARY_PATH", library).env("UVERBS_HCA", "2");
        Ok(cmd)
    };
    for (name, example) in EXAMPLES {
        add(format!("{}: {example}", name.0), single(program(name, example)?)?);
    }
    let socket = folder.join("fabric");
    // One of an earlier run, if any.
    let _ = fs::remove_file(&socket);
    let mut group = Group::new(FABRIC_LIMIT)?;
    let fabric = group.start(Command::new(cargo::build_hca()?).arg("--fabric").arg(&socket))?;
    ensure!(group.wait_for_text(fabric, "join at"), "no fabric: {}", group.last_lines(fabric));
    for ((name, example), port) in PAIRS.into_iter().zip(FIRST_PORT..) {
        let end = |host: &[&str]| -> Result<Command> {
            let mut cmd = program(name, example)?;
            cmd.env("UVERBS_HCA_FABRIC", &socket).args(["-d", "hca0", "-g", "3", "-n", "100", "-p"]);
            cmd.arg(port.to_string()).args(host);
            Ok(cmd)
        };
        add(
            format!("{}: {example}", name.0),
            pair(Some(port), false, &mut end(&[])?, &mut end(&["127.0.0.1"])?)?,
        );
    }
    Ok(ExitCode::from(u8::from(!report.print())))
}

/// Has cargo fetch the crates; the folder of its registry in which their sources are.
fn fetch(folder: &Path) -> Result<PathBuf> {
    let mut manifest = String::from(
        "[workspace]\n[package]\nname = \"fetched\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[dependencies]\n",
    );
    for ((name, version), _) in TESTS {
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
