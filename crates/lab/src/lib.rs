// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boots real Linux kernels with two linked RDMA devices under QEMU, on a machine that has neither the kernel nor the
//! hardware.
//!
//! QEMU, the kernels and the guest's C programs come from Debian packages. They are unpacked in a directory of the
//! caller's choice and run from there: nothing is installed, no root is needed, KVM is not used, and deleting the
//! directory removes everything. Each part is cached with the recipe that built it, and is built again if the recipe
//! changes. The host must be an x86-64 Debian (12 or later) with `apt-get`, `dpkg-deb` and `setpriv`. The packages come
//! from the archive that the host's apt uses, or from the one that the environment variable `LAB_MIRROR` names.
//!
//! The devices are rxe or siw over a veth link, or mlx5 or EFA devices: software NICs to which the guest's own driver is
//! bound. A program such as `uverbs-hca` or `uverbs-efa` implements those, see [`Device::Mlx5`] and [`Device::Efa`].
//!
//! ```no_run
//! use uverbs_lab::{Device, Lab, Outcome, Series, Share, Spec, Task};
//!
//! let lab = Lab::open("/var/cache/rdma-lab")?;
//! // Environment variables describe the devices: see `uverbs_lab::guest`.
//! let task = Task::command(["sh", "-c", "ibv_devinfo -d $LAB_DEV_A && my-test --peer $LAB_IP_B"]);
//! let mut spec = Spec::new(Series::named("6.12")?, Device::Rxe, task);
//! spec.shares.push(Share { host: "target/my-test".into(), guest: "/usr/bin/my-test".into() });
//! spec.mem = 2048;
//! assert_eq!(lab.run(&spec)?, Outcome::Exit(0));
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! The command's output goes to the output of the calling process, and messages of the lab go to stderr. The program
//! `uverbs-lab` does the same from the command line; the module `args` (feature `cli`) has its options for programs
//! that offer them too.
//!
//! The packages can be used for other purposes than a VM: [`apt`] unpacks packages of any Debian release, and [`root`]
//! runs the unpacked programs.

pub mod apt;
#[cfg(feature = "cli")]
pub mod args;
mod beside;
mod clock;
mod console;
mod cpio;
mod device;
pub mod guest;
mod kernel;
mod module;
mod port;
mod qemu;
pub mod root;
pub mod run;
mod userland;
mod vm;

pub use device::{Device, Kind, Link, Mkeys};
pub use guest::{Share, Task};
pub use kernel::Series;
pub use vm::{Outcome, Spec};

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The Debian release of the programs that run on the host, and by default of the guest's C programs.
pub const HOME_SUITE: &str = "bookworm";

/// The directory in which everything is cached.
#[derive(Debug)]
pub struct Lab {
    dir: PathBuf,
    verbose: bool,
}

impl Lab {
    /// Opens the lab in a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be created, or the host is not an x86-64 Linux.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        ensure!(
            cfg!(all(target_arch = "x86_64", target_os = "linux")),
            "the VM lab runs x86_64 Debian programs, so it needs an x86_64 Linux host"
        );
        let dir = dir.as_ref();
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        // Programs run in other directories.
        let dir = dir.canonicalize().with_context(|| format!("cannot find {}", dir.display()))?;
        Ok(Self { dir, verbose: false })
    }

    /// Sets whether timings, package lists and the guest's console are printed.
    #[must_use]
    pub fn verbose(self, verbose: bool) -> Self {
        Self { verbose, ..self }
    }

    /// Fetches and builds what a boot needs, if it is not there yet, so that [`run`](Self::run) needs no network.
    ///
    /// # Errors
    /// A package cannot be fetched or has unexpected contents, or the disk is full.
    pub fn prepare(&self, spec: &Spec) -> Result<()> {
        vm::Parts::prepare(self, spec).map(drop)
    }

    /// Boots a guest, passes the output of its command on while it runs, and waits for its end.
    ///
    /// # Errors
    /// The guest cannot be started. What happens after the start is an [`Outcome`].
    pub fn run(&self, spec: &Spec) -> Result<Outcome> {
        vm::run(self, spec, None)
    }

    /// Boots two guests whose mlx5 or EFA devices are on one fabric, with a network between the guests, and runs the command
    /// in both. `LAB_SIDE` (1 or 2) and `LAB_PEER`, the address of the other guest, are in its environment.
    ///
    /// # Errors
    /// The devices are rxe or siw, or a guest cannot be started.
    pub fn pair(&self, spec: &Spec) -> Result<[Outcome; 2]> {
        vm::pair(self, spec)
    }

    /// The directory with the source of a driver that the kernel does not contain, of this series, with the driver's own headers.
    ///
    /// # Errors
    /// The lab does not build this driver, or a package cannot be fetched.
    pub fn source(&self, kind: Kind, series: Series) -> Result<PathBuf> {
        let module = kind.module();
        let module =
            module.with_context(|| format!("the lab does not build the driver of {}", kind.name()))?;
        let _lock = self.lock()?;
        let version = series.version(self)?;
        Ok(module::sources(self, series, &version)?.join(module.name))
    }

    /// A path in the lab's directory.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.dir.join(relative)
    }

    /// Prints a message on stderr.
    pub(crate) fn say(&self, text: impl AsRef<str>) {
        eprintln!("lab: {}", text.as_ref());
    }

    /// Prints a message on stderr if details are printed.
    pub(crate) fn detail(&self, text: impl AsRef<str>) {
        if self.verbose {
            self.say(text);
        }
    }

    /// Locks the directory: other processes wait with changes of cached parts until the guard is dropped.
    ///
    /// # Errors
    /// The lock file cannot be created or locked.
    pub fn lock(&self) -> Result<File> {
        let path = self.path("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        if file.try_lock().is_err() {
            self.say(format!("waiting for another process that is filling {}", self.dir.display()));
            file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(file)
    }

    /// The path of a cached directory. If it does not exist or was built by another recipe, `build` creates it first.
    /// The caller holds the [lock](Self::lock).
    ///
    /// `build` fills a temporary directory, which gets its final name only after success: an interrupted run leaves
    /// nothing incomplete behind.
    ///
    /// # Errors
    /// `build` fails, or the directory cannot be replaced.
    pub fn cached(
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
        build(&scratch).with_context(|| format!("cannot make {}", dir.display()))?;
        fs::write(scratch.join(".recipe"), recipe).context("cannot write the recipe")?;
        remove_tree(&dir)?;
        fs::rename(&scratch, &dir).with_context(|| format!("cannot put {} in place", dir.display()))?;
        self.detail(format!("made {name} in {:.1} s", start.elapsed().as_secs_f32()));
        Ok(dir)
    }
}

/// Removes a directory and its contents, if it exists.
pub(crate) fn remove_tree(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn a_part_is_built_again_only_for_another_recipe() {
        let dir = std::env::temp_dir().join(format!("uverbs-lab-cached-{}", std::process::id()));
        let lab = Lab::open(&dir).unwrap();
        let write = |text: &'static str| move |dir: &Path| Ok(fs::write(dir.join("part"), text)?);
        let read = || fs::read_to_string(lab.path("x/part")).unwrap();
        lab.cached("x", "1", write("first")).unwrap();
        lab.cached("x", "1", write("not built")).unwrap();
        assert_eq!(read(), "first");
        // A failure leaves the old part in place.
        assert!(lab.cached("x", "2", |_| bail!("no")).is_err());
        assert_eq!(read(), "first");
        lab.cached("x", "2", write("second")).unwrap();
        assert_eq!(read(), "second");
        remove_tree(&dir).unwrap();
    }
}
