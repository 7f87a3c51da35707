// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of further Debian packages for a guest: UCX, libfabric, qperf, OpenMPI, fio, librpma, gloo, MPICH, DPDK. They are
//! unpacked in the lab, and programs of `tests/clients/c` are linked with their libraries.
//!
//! They are not in the guest's image: only a run that has rows of theirs fetches them.

use crate::repo_root;
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use uverbs_clients::row::LIBFABRIC;
use uverbs_lab::apt::{self, Suite};
use uverbs_lab::root::Root;
use uverbs_lab::{Lab, Share, run};

/// A set of packages, and what a guest gets of them.
pub(crate) struct Packages {
    /// The name of the unpacked tree.
    pub(crate) name: &'static str,
    /// The packages; their dependencies are unpacked, too.
    packages: &'static [&'static str],
    /// Packages with the headers for the program of this repository, and others; their dependencies are not needed.
    exact: &'static [&'static str],
    /// Programs, and their names in the guest.
    programs: &'static [(&'static str, &'static str)],
    /// Folders of modules that libraries load.
    modules: &'static [&'static str],
    /// Folders of data.
    data: &'static [&'static str],
    /// The program of this repository, if there is one.
    own: Option<Own>,
    /// Programs of `tests/clients/sh`.
    scripts: &'static [&'static str],
}

/// A C or C++ program of `tests/clients/c`.
struct Own {
    /// The name of the program.
    name: &'static str,
    /// Its source.
    source: &'static str,
    /// The library with which it is linked.
    library: &'static str,
    /// The folder of the library's headers.
    headers: &'static str,
}

/// Where the guest has libraries.
const LIB_DIR: &str = "usr/lib/x86_64-linux-gnu";

/// UCX, libfabric, qperf.
pub(crate) const PEERS: Packages = Packages {
    name: "peers",
    packages: &["ucx-utils", "libfabric-bin", "qperf"],
    exact: &["libfabric-dev"],
    programs: &[
        ("ucx_perftest", "ucx_perftest"),
        ("ucx_info", "ucx_info"),
        ("fi_pingpong", "fi_pingpong"),
        ("fi_info", "fi_info"),
        ("qperf", "qperf"),
    ],
    modules: &["usr/lib/x86_64-linux-gnu/ucx"],
    data: &[],
    own: Some(Own { name: "fi_rma", source: "fi_rma.c", library: "libfabric.so.1", headers: "usr/include" }),
    scripts: &[],
};

/// OpenMPI 4.
pub(crate) const MPI: Packages = Packages {
    name: "mpi",
    packages: &["openmpi-bin"],
    exact: &["libopenmpi-dev"],
    programs: &[("mpirun.openmpi", "mpirun"), ("orted", "orted")],
    modules: &[
        "usr/lib/x86_64-linux-gnu/ucx",
        "usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3",
        "usr/lib/x86_64-linux-gnu/pmix2/lib/pmix",
    ],
    data: &["etc/openmpi", "usr/share/openmpi"],
    own: Some(Own {
        name: "mpi_bench",
        source: "mpi_bench.c",
        library: "libmpi.so.40",
        headers: "usr/lib/x86_64-linux-gnu/openmpi/include",
    }),
    scripts: &[],
};

/// Sets without which a run can do: some of them are not in every Debian release. Their names are those of
/// [`Row::packages`](uverbs_clients::row::Row::packages).
pub(crate) const OPTIONAL: [Packages; 6] = [
    Packages { name: "fio", packages: &["fio"], programs: &[("fio", "fio")], ..NONE },
    Packages {
        name: "rpma",
        packages: &["librpma0"],
        exact: &["librpma-dev"],
        own: Some(Own {
            name: "rpma_rw",
            source: "rpma_rw.c",
            library: "librpma.so.0",
            headers: "usr/include",
        }),
        ..NONE
    },
    Packages {
        name: GLOO,
        packages: &["libgloo0"],
        exact: &["libgloo-dev"],
        own: Some(Own {
            name: "gloo_ring",
            source: "gloo_ring.cc",
            library: "libgloo.so.0",
            headers: "usr/include",
        }),
        ..NONE
    },
    Packages {
        name: "mpich",
        packages: &["mpich"],
        exact: &["libmpich-dev"],
        programs: &[("mpiexec.hydra", "mpiexec.hydra"), ("hydra_pmi_proxy", "hydra_pmi_proxy")],
        modules: &["usr/lib/x86_64-linux-gnu/ucx"],
        own: Some(Own {
            name: "mpich_bench",
            source: "mpi_bench.c",
            library: "libmpich.so.12",
            headers: "usr/include/x86_64-linux-gnu/mpich",
        }),
        ..NONE
    },
    Packages {
        name: "iser",
        packages: &["tgt", "libiscsi-bin"],
        programs: &[
            ("tgtd", "tgtd"),
            ("tgtadm", "tgtadm"),
            ("iscsi-inq", "iscsi-inq"),
            ("iscsi-readcapacity16", "iscsi-readcapacity16"),
            ("iscsi-test-cu", "iscsi-test-cu"),
        ],
        scripts: &["iser"],
        ..NONE
    },
    Packages {
        name: DPDK,
        exact: &["dpdk-dev"],
        programs: &[("dpdk-testpmd", "dpdk-testpmd")],
        scripts: &["testpmd"],
        ..NONE
    },
];

/// libfabric, for rows on the software EFA.
const FABRIC: Packages = Packages { name: LIBFABRIC, packages: &["libfabric-bin"], ..NONE };

/// gloo's set, which runs natively, too.
pub(crate) const GLOO: &str = "gloo";
/// DPDK's set.
const DPDK: &str = "dpdk";

/// Nothing.
const NONE: Packages = Packages {
    name: "",
    packages: &[],
    exact: &[],
    programs: &[],
    modules: &[],
    data: &[],
    own: None,
    scripts: &[],
};

/// The library that UCX's transports on mlx5 use.
const MLX5: &str = "libmlx5.so.1";
/// Libraries to which a package makes a link when it is configured, and that link, in [`LIB_DIR`].
const ALTERNATIVES: [(&str, &str); 1] = [("../libpsm1/libpsm_infinipath.so.1.16", "libpsm_infinipath.so.1")];

/// The unpacked packages of a set, with its program. The caller holds the lab's lock.
fn tree(lab: &Lab, debian: &str, set: &Packages) -> Result<PathBuf> {
    let recipe = format!("{debian}\n{} {}\n4\n", set.packages.join(" "), set.exact.join(" "));
    let tree = lab.cached(&format!("{}-{debian}", set.name), &recipe, |dir| {
        let suite = Suite::open(lab, debian)?;
        let needed = if set.name == DPDK { dpdk(&suite)? } else { Vec::new() };
        let packages = set.packages.iter().copied().chain(needed.iter().map(String::as_str));
        apt::unpack(&suite.closure(&packages.collect::<Vec<_>>())?, dir)?;
        let exact: Vec<String> = set.exact.iter().map(|name| (*name).to_owned()).collect();
        if !exact.is_empty() {
            apt::unpack(&suite.exact(&exact)?, dir)?;
        }
        let libraries = dir.join(LIB_DIR);
        for (file, link) in ALTERNATIVES {
            if libraries.join(file).exists() {
                symlink(file, libraries.join(link)).with_context(|| format!("cannot make {link}"))?;
            }
        }
        Ok(())
    })?;
    if let Some(own) = &set.own {
        compile(&tree, own)?;
    }
    Ok(tree)
}

/// The libraries of DPDK's programs: the package depends on headers, too. One of the modules, for rings of buffers, is needed
/// besides.
fn dpdk(suite: &Suite) -> Result<Vec<String>> {
    let mut packages = suite.depends("dpdk-dev")?;
    packages.retain(|name| name.starts_with("lib") && !name.ends_with("-dev"));
    let version = packages.iter().find_map(|name| name.strip_prefix("librte-mempool")?.parse::<u32>().ok());
    packages.push(format!("librte-mempool-ring{}", version.context("dpdk-dev has no librte-mempool")?));
    Ok(packages)
}

/// A command that runs gloo's program natively, with its loader and libraries and with ours.
pub(crate) fn gloo(lab: &Lab, debian: &str, library: &Path) -> Result<Command> {
    let _lock = lab.lock()?;
    let set = OPTIONAL.iter().find(|set| set.name == GLOO).context("no set for gloo")?;
    Root::at(tree(lab, debian, set)?).command_with(library, "gloo_ring")
}

/// A command that runs a program of libfabric natively, with its loader and libraries and with ours.
pub(crate) fn libfabric(lab: &Lab, debian: &str, library: &Path, program: &str) -> Result<Command> {
    let _lock = lab.lock()?;
    Root::at(tree(lab, debian, &FABRIC)?).command_with(library, program)
}

/// The files of the programs for a guest whose programs are of this Debian suite.
pub(crate) fn shares(lab: &Lab, debian: &str, set: &Packages) -> Result<Vec<Share>> {
    let _lock = lab.lock()?;
    let tree = tree(lab, debian, set)?;
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
    if let Some(own) = &set.own {
        let host = root.program(own.name)?;
        needing.push(host.clone());
        shares.push(Share { host, guest: format!("/usr/bin/{}", own.name) });
    }
    for name in set.scripts {
        let host = repo_root().join("tests/clients/sh").join(name);
        shares.push(Share { host, guest: format!("/usr/bin/{name}") });
    }
    let mut libraries = root.libraries_of(&needing)?;
    if set.name == DPDK {
        // Loaded by its name.
        let name = "librte_mempool_ring.so";
        let versions = fs::read_dir(tree.join(LIB_DIR)).context("no libraries of DPDK")?.flatten();
        let found = versions.map(|entry| entry.path()).find(|path| {
            path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&format!("{name}.")))
        });
        libraries.insert(name.to_owned(), found.context("DPDK has no module for rings of buffers")?);
    }
    if !set.modules.is_empty() {
        // What the module for mlx5 needs besides; UCX 1.13 has it in another one.
        libraries.insert(MLX5.to_owned(), root.library(MLX5)?);
    }
    for (name, host) in libraries {
        shares.push(Share { host, guest: format!("/{LIB_DIR}/{name}") });
    }
    Ok(shares)
}

/// Compiles the program of a set with the libraries of its tree, as one of the tree's programs.
fn compile(tree: &Path, own: &Own) -> Result<()> {
    let source = repo_root().join("tests/clients/c").join(own.source);
    let programs = tree.join("usr/bin");
    let time = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let program = programs.join(own.name);
    if time(&program).is_some_and(|made| time(&source).is_some_and(|changed| changed < made)) {
        return Ok(());
    }
    let mut cc = match own.source.ends_with(".cc") {
        true => Command::new("g++"),
        false => Command::new("cc"),
    };
    match own.source.ends_with(".cc") {
        true => cc.args(["-std=c++17", "-O1", "-Wall", "-Wextra"]),
        false => cc.args(["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type"]),
    };
    fs::create_dir_all(&programs).context("cannot make a folder for a program")?;
    cc.arg("-o").arg(&program).arg(source);
    cc.arg("-isystem").arg(tree.join(own.headers));
    cc.arg("-L").arg(tree.join(LIB_DIR)).arg("-L").arg(tree.join("usr/lib"));
    // The libraries need a libc that may be newer than this machine's.
    cc.arg(format!("-l:{}", own.library)).args([
        "-Wl,--allow-shlib-undefined",
        "-Wl,--as-needed",
        "-l:libibverbs.so.1",
    ]);
    run::output(&mut cc)?;
    Ok(())
}
