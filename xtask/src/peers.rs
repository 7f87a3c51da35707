// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of further Debian packages for a guest: UCX, libfabric, qperf. They are unpacked in the lab.
//!
//! They are not in the guest's image: only a run that has rows of theirs fetches them.

use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use uverbs_lab::apt::{self, Suite};
use uverbs_lab::root::Root;
use uverbs_lab::{Lab, Share};

/// The packages; their dependencies are unpacked, too.
const PACKAGES: [&str; 3] = ["ucx-utils", "libfabric-bin", "qperf"];
/// The programs of those packages that rows run.
const PROGRAMS: [&str; 5] = ["ucx_perftest", "ucx_info", "fi_pingpong", "fi_info", "qperf"];
/// Where the guest has libraries.
const LIB_DIR: &str = "usr/lib/x86_64-linux-gnu";
/// Folders of modules that these libraries load, below [`LIB_DIR`].
const MODULES: [&str; 1] = ["ucx"];
/// Libraries to which a package makes a link when it is configured, and that link, in [`LIB_DIR`].
const ALTERNATIVES: [(&str, &str); 1] = [("../libpsm1/libpsm_infinipath.so.1.16", "libpsm_infinipath.so.1")];

/// The files of the programs for a guest whose programs are of this Debian suite.
pub(crate) fn shares(lab: &Lab, debian: &str) -> Result<Vec<Share>> {
    let _lock = lab.lock()?;
    let recipe = format!("{debian}\n{}\n2\n", PACKAGES.join(" "));
    let tree = lab.cached(&format!("peers-{debian}"), &recipe, |dir| {
        apt::unpack(&Suite::open(lab, debian)?.closure(&PACKAGES)?, dir)?;
        let libraries = dir.join(LIB_DIR);
        for (file, link) in ALTERNATIVES {
            if libraries.join(file).exists() {
                symlink(file, libraries.join(link)).with_context(|| format!("cannot make {link}"))?;
            }
        }
        Ok(())
    })?;
    let root = Root::at(&tree);
    let mut shares = Vec::new();
    let mut needing: Vec<PathBuf> = Vec::new();
    for name in PROGRAMS {
        let host = root.program(name)?;
        needing.push(host.clone());
        shares.push(Share { host, guest: format!("/usr/bin/{name}") });
    }
    for name in MODULES {
        let folder = tree.join(LIB_DIR).join(name);
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry.context("cannot list modules")?.path();
            // A module of librdmacm needs another module, which the loader does not find there. The guest has librdmacm.
            if !path.to_string_lossy().contains("rdmacm") {
                needing.push(path);
            }
        }
        shares.push(Share { host: folder, guest: format!("/{LIB_DIR}/{name}") });
    }
    for (name, host) in root.libraries_of(&needing)? {
        shares.push(Share { host, guest: format!("/{LIB_DIR}/{name}") });
    }
    Ok(shares)
}
