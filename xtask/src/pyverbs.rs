// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of a Debian release that is not installed, unpacked in the lab: rdma-core's, perftest, and pyverbs with the
//! interpreter and the tests.
//!
//! Natively they run under their own loader. The guest gets the interpreter's standard library, pyverbs, and the libraries
//! that both need and the guest does not have.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use uverbs_clients::pyverbs;
use uverbs_lab::apt::{self, Suite};
use uverbs_lab::root::Root;
use uverbs_lab::{Lab, Share};

/// The packages: one with the tests, whose dependencies are the interpreter and rdma-core's libraries, and the programs.
const PACKAGES: [&str; 3] = ["python3-pyverbs", "ibverbs-utils", "perftest"];
/// The suite's folder in the guest.
pub(crate) const FOLDER: &str = "/root/suite";
/// Below the unpacked tree: the prepared tests.
pub(crate) const TESTS: &str = "suite";
/// Where the guest has libraries.
pub(crate) const LIB_DIR: &str = "/usr/lib/x86_64-linux-gnu";

/// The unpacked packages of a Debian release. The caller holds the lab's lock.
fn tree(lab: &Lab, debian: &str) -> Result<PathBuf> {
    let recipe = format!("{debian}\n{}\n4\n", PACKAGES.join(" "));
    lab.cached(&format!("clients-{debian}"), &recipe, |dir| {
        apt::unpack(&Suite::open(lab, debian)?.closure(&PACKAGES)?, dir)?;
        remove_dangling_links(dir)?;
        pyverbs::unpack(&dir.join(pyverbs::INSTALLED.trim_start_matches('/')), &dir.join(TESTS))
    })
}

/// The unpacked packages of a Debian release, to run natively.
pub(crate) fn root(lab: &Lab, debian: &str) -> Result<PathBuf> {
    let _lock = lab.lock()?;
    tree(lab, debian)
}

/// The files of the suite for a guest whose programs are of this Debian release.
pub(crate) fn shares(lab: &Lab, debian: &str) -> Result<Vec<Share>> {
    let _lock = lab.lock()?;
    let tree = tree(lab, debian)?;
    let mut shares = vec![Share { host: tree.join(TESTS), guest: FOLDER.into() }];
    shares.extend(interpreter(&tree)?);
    Ok(shares)
}

/// The interpreter of an unpacked tree, with its packages, for a guest.
pub(crate) fn interpreter(tree: &Path) -> Result<Vec<Share>> {
    let packages = tree.join("usr/lib/python3");
    let root = Root::at(tree);
    let mut needing = files(&packages)?;
    let mut shares = vec![Share { host: packages, guest: "/usr/lib/python3".into() }];
    for python in interpreters(tree)? {
        let name = python.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let program = root.program(&name)?;
        needing.push(program.clone());
        needing.extend(files(&python)?);
        shares.push(Share { host: program.clone(), guest: format!("/usr/bin/{name}") });
        shares.push(Share { host: program, guest: "/usr/bin/python3".into() });
        shares.push(Share { host: python, guest: format!("/usr/lib/{name}") });
    }
    needing.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(".so") || name.starts_with("python")
    });
    for (name, host) in root.libraries_of(&needing)? {
        shares.push(Share { host, guest: format!("{LIB_DIR}/{name}") });
    }
    Ok(shares)
}

/// The folders of standard libraries: `usr/lib/python3.11`.
pub(crate) fn interpreters(tree: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(tree.join("usr/lib")).context("no libraries in the tree")?;
    let paths = entries.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
    let is_one =
        |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3."));
    Ok(paths.into_iter().filter(is_one).collect())
}

/// All files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Removes links of an unpacked interpreter to files that its packages configure, which are not in the tree.
pub(crate) fn remove_dangling_links(tree: &Path) -> Result<()> {
    remove_dangling(&tree.join("usr/lib/python3"))?;
    interpreters(tree)?.iter().try_for_each(|python| remove_dangling(python))
}

/// Removes dangling links below a folder.
fn remove_dangling(folder: &Path) -> Result<()> {
    for path in files(folder)?.into_iter().filter(|path| path.is_symlink()) {
        // An absolute link leads out of the tree.
        if fs::read_link(&path)?.is_absolute() || !path.exists() {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
