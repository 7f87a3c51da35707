// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of further Debian packages for a guest: UCX, libfabric, qperf, OpenMPI. They are unpacked in the lab, and C
//! programs of `tests/clients/c` are linked with their libraries.
//!
//! They are not in the guest's image: only a run that has rows of theirs fetches them.

use crate::repo_root;
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use uverbs_lab::apt::{self, Suite};
use uverbs_lab::root::Root;
use uverbs_lab::{Lab, Share, run};

/// A set of packages, and what a guest gets of them.
pub(crate) struct Packages {
    /// The name of the unpacked tree.
    name: &'static str,
    /// The packages; their dependencies are unpacked, too.
    packages: &'static [&'static str],
    /// The package with the headers for the C program; its dependencies are not needed.
    headers: &'static str,
    /// Programs, and their names in the guest.
    programs: &'static [(&'static str, &'static str)],
    /// Folders of modules that libraries load.
    modules: &'static [&'static str],
    /// Folders of data.
    data: &'static [&'static str],
    /// The C program of this repository, its library and the folder of its headers.
    own: (&'static str, &'static str, &'static str),
}

/// Where the guest has libraries.
const LIB_DIR: &str = "usr/lib/x86_64-linux-gnu";

/// UCX, libfabric, qperf.
pub(crate) const PEERS: Packages = Packages {
    name: "peers",
    packages: &["ucx-utils", "libfabric-bin", "qperf"],
    headers: "libfabric-dev",
    programs: &[
        ("ucx_perftest", "ucx_perftest"),
        ("ucx_info", "ucx_info"),
        ("fi_pingpong", "fi_pingpong"),
        ("fi_info", "fi_info"),
        ("qperf", "qperf"),
    ],
    modules: &["usr/lib/x86_64-linux-gnu/ucx"],
    data: &[],
    own: ("fi_rma", "libfabric.so.1", "usr/include"),
};

/// OpenMPI 4.
pub(crate) const MPI: Packages = Packages {
    name: "mpi",
    packages: &["openmpi-bin"],
    headers: "libopenmpi-dev",
    programs: &[("mpirun.openmpi", "mpirun"), ("orted", "orted")],
    modules: &[
        "usr/lib/x86_64-linux-gnu/ucx",
        "usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3",
        "usr/lib/x86_64-linux-gnu/pmix2/lib/pmix",
    ],
    data: &["etc/openmpi", "usr/share/openmpi"],
    own: ("mpi_bench", "libmpi.so.40", "usr/lib/x86_64-linux-gnu/openmpi/include"),
};

/// The library that UCX's transports on mlx5 use.
const MLX5: &str = "libmlx5.so.1";
/// Libraries to which a package makes a link when it is configured, and that link, in [`LIB_DIR`].
const ALTERNATIVES: [(&str, &str); 1] = [("../libpsm1/libpsm_infinipath.so.1.16", "libpsm_infinipath.so.1")];

/// The files of the programs for a guest whose programs are of this Debian suite.
pub(crate) fn shares(lab: &Lab, debian: &str, set: &Packages) -> Result<Vec<Share>> {
    let _lock = lab.lock()?;
    let recipe = format!("{debian}\n{} {}\n3\n", set.packages.join(" "), set.headers);
    let tree = lab.cached(&format!("{}-{debian}", set.name), &recipe, |dir| {
        let suite = Suite::open(lab, debian)?;
        apt::unpack(&suite.closure(set.packages)?, dir)?;
        apt::unpack(&suite.exact(&[set.headers.to_owned()])?, dir)?;
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
    for (name, guest) in set.programs {
        let host = root.program(name)?;
        needing.push(host.clone());
        shares.push(Share { host, guest: format!("/usr/bin/{guest}") });
    }
    for name in set.modules {
        let folder = tree.join(name);
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry.context("cannot list modules")?.path();
            // Modules that need another module, which the loader does not find there. The guest has librdmacm.
            let name = path.to_string_lossy();
            if !name.contains("rdmacm") && !name.contains("ib_mlx5") {
                needing.push(path);
            }
        }
        shares.push(Share { host: folder, guest: format!("/{name}") });
    }
    for name in set.data {
        shares.push(Share { host: tree.join(name), guest: format!("/{name}") });
    }
    let own = compile(&tree, set)?;
    shares.push(Share { host: own.clone(), guest: format!("/usr/bin/{}", set.own.0) });
    needing.push(own);
    let mut libraries = root.libraries_of(&needing)?;
    // What the module for mlx5 needs besides; UCX 1.13 has it in another one.
    libraries.insert(MLX5.to_owned(), root.library(MLX5)?);
    for (name, host) in libraries {
        shares.push(Share { host, guest: format!("/{LIB_DIR}/{name}") });
    }
    Ok(shares)
}

/// Compiles the C program of a set with the libraries of its tree.
fn compile(tree: &Path, set: &Packages) -> Result<PathBuf> {
    let (name, library, headers) = set.own;
    let program = tree.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type", "-o"])
        .arg(&program);
    cc.arg(repo_root().join("tests/clients/c").join(format!("{name}.c")));
    cc.arg("-isystem").arg(tree.join(headers)).arg("-L").arg(tree.join(LIB_DIR));
    // The libraries need a libc that may be newer than this machine's.
    cc.arg(format!("-l:{library}")).arg("-Wl,--allow-shlib-undefined");
    run::output(&mut cc)?;
    Ok(program)
}
