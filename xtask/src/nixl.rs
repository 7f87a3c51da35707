// SPDX-License-Identifier: MIT OR Apache-2.0
//! NIXL's wheel for a guest: the module for Python, its backend UCX with the transports on InfiniBand, and the libraries that
//! both need. The other nine tenths of the wheel stay out: other backends, CUDA, its modules for torch.
//!
//! pip(1) fetches the wheel for the interpreter of the guest's Debian release, which need not be this machine's. It is unpacked
//! in the lab, in a tree with that interpreter. The wheel has copies of libibverbs and libmlx5 under names of its own, which the
//! rows with rdma-core's library use; ours gets these names, too.

use crate::pyverbs::{self, LIB_DIR};
use crate::{dist, repo_root, run, wheels};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use uverbs_clients::row::NIXL;
use uverbs_lab::apt::{self, Suite};
use uverbs_lab::root::Root;
use uverbs_lab::{Lab, Share};

/// The package and its version.
const WHEEL: &str = "nixl-cu12==1.5.1";
/// The wheel of each interpreter, for manylinux_2_28 on x86-64: the version of Python, and the file's SHA-256.
const HASHES: [(&str, &str); 3] = [
    ("3.11", "341d0dfa499f941c054614252f1d8047d1380e33f29c87707372ff5ec7d3779a"),
    ("3.13", "a35c6d6b307bdd22a2de7f89698b8db9d4cd5fdad791bd3ad2a1df8e58dc1530"),
    ("3.14", "2781d8c65849b97f9a7703a47601be18b2ebbae19c0b2e065741cbd78bdc86c9"),
];
/// The interpreter, and what the wheel expects of the system.
const PACKAGES: [&str; 3] = ["python3", "libstdc++6", "libgcc-s1"];
/// The folder of the unpacked wheel, in the tree and in the guest.
const FOLDER: &str = "root/nixl";
/// The parts of the wheel of which the guest has files, and the beginnings of the names of those that are needed by their names.
/// Other libraries are found as dependencies of these.
const NEEDED: [(&str, &[&str]); 3] = [
    ("nixl_cu12", &["_bindings."]),
    (".nixl_cu12.mesonpy.libs/plugins", &["libplugin_UCX."]),
    ("nixl_cu12.libs/ucx", &["libuct_ib.so", "libuct_ib_mlx5.so"]),
];
/// The names of the wheel's copies begin with these, after which there is a hyphen and a hash.
const COPIES: [&str; 2] = ["libibverbs", "libmlx5"];

/// Files of `tests/clients`, and their places in the guest.
const FILES: [(&str, &str); 3] = [
    ("py/peer.py", "/root/nixl/peer.py"),
    ("py/with_nixl.py", "/root/nixl/with_nixl.py"),
    ("sh/nixl", "/usr/bin/nixl"),
];

/// The unpacked wheel with the interpreter of a Debian release. The caller holds the lab's lock.
fn tree(lab: &Lab, debian: &str) -> Result<PathBuf> {
    let recipe = format!("{debian}\n{} {WHEEL}\n{HASHES:?}\n1\n", PACKAGES.join(" "));
    lab.cached(&format!("{NIXL}-{debian}"), &recipe, |dir| {
        apt::unpack(&Suite::open(lab, debian)?.closure(&PACKAGES)?, dir)?;
        pyverbs::remove_dangling_links(dir)?;
        fetch(dir)
    })
}

/// Fetches the wheel for the tree's interpreter, and unpacks it there.
fn fetch(tree: &Path) -> Result<()> {
    let python = pyverbs::interpreters(tree)?;
    let version = python.iter().find_map(|path| path.file_name()?.to_str()?.strip_prefix("python"));
    let version = version.context("no interpreter in the tree")?;
    let hash = HASHES.iter().find(|(python, _)| *python == version);
    let (_, hash) = hash.with_context(|| format!("no wheel is known for Python {version}"))?;
    // pip compares hashes only of what a file requires.
    let list = tree.join("wheel.txt");
    fs::write(&list, format!("{WHEEL} --hash=sha256:{hash}\n")).context("cannot write pip's list")?;
    let mut pip = wheels::install(&tree.join(FOLDER));
    pip.arg("--require-hashes");
    pip.args(["--implementation", "cp", "--platform", "manylinux_2_28_x86_64", "--python-version", version]);
    pip.arg("--requirement").arg(&list);
    run::output(&mut pip).context("its wheel can't be fetched")?;
    // Large, and not needed: three copies for versions of torch.
    fs::remove_dir_all(tree.join(FOLDER).join("nixl_ep_cu12")).context("cannot remove a part of the wheel")
}

/// The files for a guest whose programs are of this Debian release; ours are in the folder `library`, and in `ours` there.
pub(crate) fn shares(lab: &Lab, debian: &str, library: &Path, ours: &str) -> Result<Vec<Share>> {
    let _lock = lab.lock()?;
    let tree = fs::canonicalize(tree(lab, debian)?).context("no tree")?;
    let root = Root::at(&tree);
    let mut shares = pyverbs::interpreter(&tree)?;
    let wheel = tree.join(FOLDER);
    let mut needing = Vec::new();
    for (folder, names) in NEEDED {
        let folder = wheel.join(folder);
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry.context("cannot list the wheel")?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if names.iter().any(|start| name.starts_with(start)) {
                needing.push(path);
            }
        }
    }
    let expected: usize = NEEDED.iter().map(|(_, names)| names.len()).sum();
    ensure!(needing.len() == expected, "the wheel has other files: {needing:?}");
    let mut copies = 0;
    for (name, path) in root.libraries_of(&needing)? {
        // By a way with `..`, which the wheel's libraries name.
        let path = fs::canonicalize(&path).with_context(|| format!("no {}", path.display()))?;
        match path.starts_with(&wheel) {
            true => needing.push(path),
            false => shares.push(Share { host: path, guest: format!("{LIB_DIR}/{name}") }),
        }
        if let Some(copy) = COPIES.iter().find(|copy| name.starts_with(&format!("{copy}-"))) {
            let host = dist::SONAMES.iter().find(|soname| soname.starts_with(copy));
            let host = library.join(host.with_context(|| format!("no {copy} of ours"))?);
            shares.push(Share { host, guest: format!("{ours}/{name}") });
            copies += 1;
        }
    }
    ensure!(copies == COPIES.len(), "the wheel has {copies} copies of {COPIES:?}");
    needing.sort();
    needing.dedup();
    for host in needing {
        let guest = host.strip_prefix(&tree).context("a library of another tree")?;
        shares.push(Share { guest: format!("/{}", guest.display()), host: host.clone() });
    }
    for (name, guest) in FILES {
        shares.push(Share { host: repo_root().join("tests/clients").join(name), guest: guest.into() });
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use uverbs_clients::rows;

    #[test]
    fn the_rows_have_their_program() {
        let mut rows = rows::all().filter(|row| row.packages() == Some(NIXL));
        assert!(rows.any(|row| row.short));
        assert_eq!(FILES[2].1, format!("/usr/bin/{NIXL}"));
        for (name, guest) in FILES {
            let file = fs::metadata(repo_root().join("tests/clients").join(name)).unwrap();
            assert!(!guest.starts_with("/usr/bin") || file.permissions().mode() & 0o111 == 0o111, "{name}");
        }
        for (_, guest) in &FILES[..2] {
            assert!(guest.starts_with(&format!("/{FOLDER}/")), "{guest}");
        }
    }

    #[test]
    fn ours_takes_the_place_of_each_copy() {
        for copy in COPIES {
            assert!(dist::SONAMES.iter().any(|soname| soname.starts_with(copy)), "{copy}");
        }
    }
}
