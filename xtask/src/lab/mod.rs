// SPDX-License-Identifier: MIT OR Apache-2.0
//! The VM lab: real kernels with software RDMA devices, on a machine that has neither the kernel nor the hardware.
//!
//! Everything the lab needs (QEMU, kernels, the C tools that serve as peers) comes as Debian packages that are unpacked
//! under `target/lab/` and run from there; nothing is installed, no root is needed, and deleting `target/lab/` removes
//! everything. Each part is cached with the recipe that made it, and is made again if the recipe in this crate changes.
//!
//! - [`apt`] fetches packages of any suite with an apt state of its own
//! - [`root`] runs programs of an unpacked tree by the tree's own loader
//! - [`rust`] is a compiler for an architecture for which the machine's own has no standard library
//! - [`kernel`], [`userland`] and [`cpio`] build the pieces of an initramfs
//! - [`device`] says which RDMA devices there are, and runs the software NICs beside QEMU
//! - [`clock`] measures what the guest's kernel would measure badly
//! - [`guest`] is what runs inside, [`qemu`] starts the machine, [`vm`] sees a boot through, by way of [`port`]
//!   and [`console`]

pub(crate) mod apt;
pub(crate) mod clock;
pub(crate) mod console;
pub(crate) mod cpio;
pub(crate) mod device;
pub(crate) mod guest;
pub(crate) mod kernel;
pub(crate) mod port;
pub(crate) mod qemu;
pub(crate) mod root;
pub(crate) mod rust;
pub(crate) mod userland;
pub(crate) mod vm;

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The suite whose tools work on the host side and whose C programs are the default peers.
pub(crate) const HOME_SUITE: &str = "bookworm";

/// The folder where everything is cached, locked against other users while it is being filled.
pub(crate) struct Lab {
    dir: PathBuf,
    verbose: bool,
}

impl Lab {
    /// Opens the lab of this checkout, `target/lab`.
    pub(crate) fn open(verbose: bool) -> Result<Self> {
        ensure!(
            cfg!(all(target_arch = "x86_64", target_os = "linux")),
            "the VM lab runs x86_64 Debian programs, so it needs an x86_64 Linux host"
        );
        let dir = crate::repo_root().join("target/lab");
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self { dir, verbose })
    }

    /// A path inside the lab.
    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.dir.join(relative)
    }

    /// Whether details (timings, package lists, the console) are printed.
    pub(crate) fn verbose(&self) -> bool {
        self.verbose
    }

    /// Says on stderr what is going on.
    pub(crate) fn say(&self, text: impl AsRef<str>) {
        eprintln!("lab: {}", text.as_ref());
    }

    /// Prints a text if details are printed.
    pub(crate) fn detail(&self, text: impl AsRef<str>) {
        if self.verbose {
            self.say(text);
        }
    }

    /// Keeps other processes from building the same things until the guard is dropped.
    pub(crate) fn lock(&self) -> Result<File> {
        let path = self.path("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        if file.try_lock().is_err() {
            self.say("waiting for another run that is filling target/lab");
            file.lock().context("cannot lock target/lab/lock")?;
        }
        Ok(file)
    }

    /// A cached folder: made by `build` when it is not there or was made by another recipe.
    ///
    /// `build` fills a scratch folder which takes its final name only when everything has succeeded, so an
    /// interrupted run leaves no half-made folder behind.
    pub(crate) fn cached(
        &self,
        name: &str,
        recipe: &str,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let dir = self.path(name);
        let stamp = dir.join(".recipe");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == recipe) {
            return Ok(dir);
        }
        let scratch = self.path(format!("{name}.new"));
        remove_tree(&scratch)?;
        fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
        let start = std::time::Instant::now();
        self.say(format!("making {name}"));
        build(&scratch).with_context(|| format!("cannot make target/lab/{name}"))?;
        fs::write(scratch.join(".recipe"), recipe).context("cannot write the recipe")?;
        remove_tree(&dir)?;
        fs::rename(&scratch, &dir).with_context(|| format!("cannot put {} in place", dir.display()))?;
        self.detail(format!("made {name} in {:.1} s", start.elapsed().as_secs_f32()));
        Ok(dir)
    }
}

/// Removes a folder and all in it; fine when it is not there.
pub(crate) fn remove_tree(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
