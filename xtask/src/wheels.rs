// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wheels whose packages use libibverbs, for the programs in `tests/clients/py`. pip(1) fetches them into target/wheels; they
//! are not installed, and their dependencies are not fetched.
//!
//! Each has one version, so that a run gives the same result everywhere. To change a version, change it here.

use crate::{repo_root, run};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A wheel: the name in the rows, the package, its version, and the module that loads its library.
type Wheel = (&'static str, &'static str, &'static str, &'static str);

/// The wheels. Of mooncake there are several; this one needs no library of a GPU.
const WHEELS: [Wheel; 3] = [
    ("mooncake", "mooncake-transfer-engine-non-cuda", "0.3.13.post1", "mooncake.engine"),
    ("peercache", "peercache", "0.8.4", "peercache._peercache"),
    ("dlslime", "dlslime", "0.1.23", "dlslime._slime_c"),
];

/// The interpreter.
const PYTHON: &str = "python3";

/// A call of a row's program, whose wheel is fetched first.
///
/// # Errors
/// There is no interpreter with pip, the wheel can't be fetched, or it does not load with rdma-core's library either.
pub(crate) fn command(name: &str) -> Result<Command> {
    let wheel = WHEELS.iter().find(|wheel| wheel.0 == name).with_context(|| format!("no wheel {name}"))?;
    let folder = fetch(wheel)?;
    let mut cmd = Command::new(PYTHON);
    cmd.arg(repo_root().join(format!("tests/clients/py/with_{name}.py")));
    cmd.env("PYTHONPATH", folder).env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(cmd)
}

/// A call of pip that unpacks a wheel, without its dependencies, in a folder.
pub(crate) fn install(folder: &Path) -> Command {
    let mut pip = Command::new(PYTHON);
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    pip.args(["--retries", "1", "--no-deps", "--only-binary=:all:", "--no-compile", "--target"]).arg(folder);
    pip
}

/// The folder with the unpacked wheel.
fn fetch((name, package, version, module): &Wheel) -> Result<PathBuf> {
    let mut python = Command::new(PYTHON);
    // The wheel of one interpreter does not load in another one.
    let tag = run::output(python.args(["-c", "import sys; print(sys.implementation.cache_tag)"]))
        .context("no Python")?;
    let folder = repo_root().join(format!("target/wheels/{package}-{version}-{}", tag.trim()));
    if folder.exists() {
        return Ok(folder);
    }
    eprintln!("clients: fetching {package} {version}");
    let parts = folder.with_file_name(format!("{name}.part"));
    if parts.exists() {
        fs::remove_dir_all(&parts).context("cannot remove a part of a wheel")?;
    }
    let mut pip = install(&parts);
    pip.arg(format!("{package}=={version}"));
    let out = pip.output().context("cannot start Python")?;
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    let reason = text.lines().rev().find(|line| line.starts_with("ERROR")).unwrap_or("no reason was printed");
    ensure!(out.status.success(), "its wheel can't be fetched: {reason}");
    // Without ours: a library that is not installed leaves the row out, but a symbol that ours lacks must not.
    let mut load = Command::new(PYTHON);
    load.args(["-c", &format!("import {module}")]).env("PYTHONPATH", &parts).env_remove("LD_LIBRARY_PATH");
    let out = load.output().context("cannot start Python")?;
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    let reason = text.lines().last().unwrap_or("no reason was printed");
    ensure!(out.status.success(), "its wheel does not load with rdma-core's library: {reason}");
    fs::rename(&parts, &folder).context("cannot move a wheel")?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use uverbs_clients::row::{Family, Place, Row};
    use uverbs_clients::rows;

    #[test]
    fn each_row_has_a_wheel_and_a_program() {
        let native = |row: &&Row| row.family == Family::Wheel && row.places.list.contains(&Place::Native);
        let rows: BTreeSet<&str> = rows::all().filter(native).map(|row| row.program).collect();
        assert_eq!(rows, WHEELS.iter().map(|wheel| wheel.0).collect());
        for name in rows {
            assert!(repo_root().join(format!("tests/clients/py/with_{name}.py")).exists());
        }
    }
}
