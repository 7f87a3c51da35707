// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that are measured: a C program, with rdma-core's library and with this project's, and Rust programs.
//! All use the fake device of the preload library.

use super::rows::{Device, Face, Locking, Set};
use crate::{cargo, dist, repo_root, run, vm};
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use uverbs_lab::apt::{self, Suite};

/// The Debian suite of the C library.
const SUITE: &str = "forky";
/// The packages of the C library; their dependencies include the suite's loader and libc.
const PACKAGES: [&str; 2] = ["libibverbs-dev", "ibverbs-providers"];
/// Debian's directory of libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Our programs, built, and the preload libraries.
pub(crate) struct Ours {
    target: PathBuf,
    shims: Shims,
}

/// The preload libraries.
struct Shims {
    mlx5: PathBuf,
    efa: PathBuf,
}

impl Shims {
    fn of(&self, device: Device) -> &Path {
        match device {
            Device::Mlx5 => &self.mlx5,
            Device::Efa => &self.efa,
        }
    }

    /// Builds them.
    fn build() -> Result<Self> {
        let efa = repo_root().join("tests/efa-recorder/device.c");
        Ok(Self {
            mlx5: build_shim("shim.so", &["shim.c", "kernel.c"].map(|file| sources().join(file)))?,
            efa: build_shim("efa-shim.so", &[sources().join("efa/shim.c"), efa])?,
        })
    }
}

/// The C programs, built, and the libraries that they run with.
pub(crate) struct C {
    folder: PathBuf,
    shims: Shims,
    /// With rdma-core's libibverbs, and the loader and the libc of all runs.
    libraries: PathBuf,
    /// With this project's libibverbs.
    dist: PathBuf,
    /// The version of rdma-core.
    pub(crate) version: String,
}

/// The folder for the programs that this module builds.
pub(crate) fn folder() -> Result<PathBuf> {
    let dir = repo_root().join("target/bench");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

fn sources() -> PathBuf {
    repo_root().join("tests/bench/c")
}

/// The compiler, as for any C program: -O2.
fn gcc() -> Command {
    let mut cmd = Command::new("gcc");
    cmd.args(["-O2", "-Wall", "-Wextra"]);
    cmd
}

/// Builds a preload library.
fn build_shim(name: &str, files: &[PathBuf]) -> Result<PathBuf> {
    let shim = folder()?.join(name);
    let mut cmd = gcc();
    cmd.args(["-Wno-unused-parameter", "-fPIC", "-shared", "-o"]).arg(&shim);
    run::inherit(cmd.args(files))?;
    Ok(shim)
}

/// The folder, in the form of /sys, in which libibverbs finds a device.
fn sysfs(device: Device) -> Result<PathBuf> {
    Ok(folder()?.join(match device {
        Device::Mlx5 => "sysfs",
        Device::Efa => "sysfs-efa",
    }))
}

/// Makes this folder.
fn make_sysfs(device: Device) -> Result<()> {
    let dir = sysfs(device)?;
    let (name, node_type, modalias) = match device {
        // A ConnectX-6 Dx.
        Device::Mlx5 => ("mlx5_0", "1: CA", "pci:v000015B3d0000101Dsv000015B3sd00000016bc02sc00i00"),
        Device::Efa => ("efa_0", "7: unspecified", "pci:v00001D0Fd0000EFA2sv00001D0Fsd0000EFA2bc02sc00i00"),
    };
    for (file, text) in [
        ("class/infiniband_verbs/abi_version", "6"),
        ("class/infiniband_verbs/uverbs0/abi_version", "1"),
        // The number that the preload library gives the device file.
        ("class/infiniband_verbs/uverbs0/dev", "231:192"),
        ("class/infiniband_verbs/uverbs0/ibdev", name),
        (&*format!("class/infiniband/{name}/node_type"), node_type),
        (&*format!("class/infiniband/{name}/device/modalias"), modalias),
    ] {
        let path = dir.join(file);
        fs::create_dir_all(path.parent().unwrap_or(&dir))?;
        fs::write(&path, format!("{text}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

impl Ours {
    /// Builds the programs.
    pub(crate) fn build() -> Result<Self> {
        let programs = fs::read_dir(repo_root().join("tests/bench/src/bin")).context("no programs")?;
        let names = programs.map(|file| Ok(file?.path().file_stem().context("odd name")?.to_owned()));
        Self::build_in("plain", &[], &names.collect::<Result<Vec<_>>>()?)
    }

    /// Builds the program of exclusive queues, which is measured with a feature of the crate `uverbs`, too.
    pub(crate) fn build_with(feature: &str) -> Result<Self> {
        Self::build_in(feature, &["--features", feature], &[Locking::Exclusive.to_string().into()])
    }

    /// Builds programs and copies them, because a build with other features replaces them. They have most dependencies in common.
    fn build_in(kind: &str, features: &[&str], names: &[OsString]) -> Result<Self> {
        let mut cmd =
            cargo::cargo(&["build", "--quiet", "--release", "--manifest-path", "tests/bench/Cargo.toml"]);
        for name in names {
            cmd.arg("--bin").arg(name);
        }
        run::inherit(cmd.args(features).arg("--target-dir").arg(folder()?))?;
        let target = folder()?.join(kind);
        fs::create_dir_all(target.join("release")).context("cannot make a folder for programs")?;
        for name in names {
            let [built, copy] = [folder()?, target.clone()].map(|folder| folder.join("release").join(name));
            fs::copy(&built, copy).with_context(|| format!("cannot copy {}", built.display()))?;
        }
        Ok(Self { target: target.join("release"), shims: Shims::build()? })
    }

    /// A call of a locking's program of mlx5, under a tool if there are words before it.
    pub(crate) fn command(&self, tool: &[String], locking: Locking) -> Command {
        self.program(tool, &locking.to_string())
    }

    /// As [`Ours::command`], of the program with this name.
    pub(crate) fn program(&self, tool: &[String], name: &str) -> Command {
        let mut cmd = command(tool, &self.target.join(name));
        let device = if name.starts_with("efa") { Device::Efa } else { Device::Mlx5 };
        cmd.env("LD_PRELOAD", self.shims.of(device));
        cmd
    }
}

impl C {
    /// Downloads rdma-core, once, and builds the program and this project's library. Without the archive, this
    /// machine's rdma-core is used.
    pub(crate) fn build() -> Result<Self> {
        let (include, libraries) = match fetch() {
            Ok(root) => (root.join("include"), root.join(LIBRARIES)),
            Err(e) if Path::new("/usr/include/infiniband/mlx5dv.h").exists() => {
                eprintln!("bench: this machine's libibverbs is C's library: {e:#}");
                (PathBuf::from("/usr/include"), Path::new("/").join(LIBRARIES))
            }
            Err(e) => return Err(e),
        };
        for device in [Device::Mlx5, Device::Efa] {
            make_sysfs(device)?;
            let program = folder()?.join(Self::program(device));
            let mut cmd = gcc();
            cmd.arg("-I").arg(&include).arg("-o").arg(&program);
            let own = match device {
                Device::Mlx5 => ["bench.c", "ops.c", "world.c"],
                Device::Efa => ["efa/bench.c", "efa/ops.c", "efa/world.c"],
            };
            cmd.args(["measure.c", "post.c"].iter().chain(&own).map(|file| sources().join(file)));
            cmd.arg(libraries.join("libibverbs.so.1"));
            run::inherit(cmd.args(["-Wl,--allow-shlib-undefined", "-ldl"]))?;
        }
        let dist = folder()?.join("dist");
        dist::release(&dist)?;
        Ok(Self { folder: folder()?, shims: Shims::build()?, version: version(&libraries)?, libraries, dist })
    }

    /// The file of a device's program.
    const fn program(device: Device) -> &'static str {
        match device {
            Device::Mlx5 => "c-bench",
            Device::Efa => "efa-bench",
        }
    }

    /// The bytes of the example of a static program, with the release build of this project's library.
    pub(crate) fn static_size(&self) -> Result<u64> {
        let program = folder()?.join("loopback-static");
        let mut cmd = Command::new("cc");
        cmd.args(["-O2", "-static", "-s", "-Wl,--gc-sections", "-o"]).arg(&program);
        cmd.arg(repo_root().join("crates/ibverbs/examples/loopback.c"));
        run::inherit(cmd.arg(self.dist.join("libibverbs.a")).arg("-lm"))?;
        Ok(fs::metadata(&program)?.len())
    }

    /// A call of a program with the library of a face, under a tool if there are words before it.
    pub(crate) fn command(&self, tool: &[String], Set { device, locking }: Set, face: Face) -> Command {
        // The suite's libc is newer than this machine's, so its own loader starts the program.
        let mut cmd = command(tool, &self.libraries.join("ld-linux-x86-64.so.2"));
        let (shim, libraries) = (self.shims.of(device).display(), self.libraries.display());
        let library = device.library();
        let (preload, path) = match face {
            Face::Abi => {
                let dist = self.dist.display();
                (format!("{shim}:{dist}/{library}"), format!("{dist}:{libraries}"))
            }
            // A provider that is loaded already is used, so the folder of providers is not needed.
            _ => (format!("{shim}:{libraries}/{library}"), libraries.to_string()),
        };
        cmd.args(["--preload", &preload, "--library-path", &path]);
        cmd.arg(self.folder.join(Self::program(device))).args([locking.of_c(), face.name()]);
        if let Ok(sysfs) = sysfs(device) {
            cmd.env("SYSFS_PATH", sysfs);
        }
        cmd
    }
}

fn command(tool: &[String], program: &Path) -> Command {
    match tool {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut cmd = Command::new(first);
            cmd.args(rest).arg(program);
            cmd
        }
    }
}

/// Downloads the C library. Returns the folder in which it was unpacked.
fn fetch() -> Result<PathBuf> {
    let lab = vm::lab(false)?;
    let _lock = lab.lock()?;
    lab.cached(&format!("rdma-core-{SUITE}"), &format!("{SUITE} {}", PACKAGES.join(" ")), |dir| {
        apt::unpack(&Suite::open(&lab, SUITE)?.closure(&PACKAGES)?, dir)?;
        // Only the headers of rdma-core: other headers of the suite do not fit this machine's compiler.
        fs::create_dir(dir.join("include"))?;
        Ok(std::os::unix::fs::symlink("../usr/include/infiniband", dir.join("include/infiniband"))?)
    })
}

/// rdma-core's version, which the library's file name ends with.
fn version(libraries: &Path) -> Result<String> {
    let file = fs::canonicalize(libraries.join("libibverbs.so.1")).context("no libibverbs.so.1")?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut parts = name.rsplit('.');
    let (minor, major) = (parts.next(), parts.next());
    Ok(format!("{}.{}", major.unwrap_or("?"), minor.unwrap_or("?")))
}
