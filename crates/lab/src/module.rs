// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules that Debian's kernels do not contain, such as those of Soft-iWARP and EFA. Each is built from Debian's source of the
//! kernel (`linux-source-*`), with the headers of the exact kernel that the guest boots, and cached.
//!
//! The compiler must be that of the kernel. A host of the kernel's own suite with that compiler and make(1) builds the module itself.
//! For other kernels the lab unpacks the compiler of their suite and runs it in a root directory of its own
//! (unshare(1)), which needs a kernel that permits namespaces.

use crate::apt::{self, Suite};
use crate::device::Kind;
use crate::kernel::Series;
use crate::userland::Userland;
use crate::{Lab, run};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Increase this if the way of building changes.
const FORMAT: u32 = 3;

/// A module of the kernel that is built from its source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Its name, and that of its directory.
    pub(crate) name: &'static str,
    /// The directory of its source, four levels deep.
    pub(crate) source: &'static str,
    /// The option that selects it.
    pub(crate) config: &'static str,
}

impl Module {
    /// Returns the directory with the module for the kernel of this version; builds it first if it is not cached. The caller holds the lab's
    /// lock.
    pub(crate) fn prepare(&self, lab: &Lab, series: Series, version: &str) -> Result<PathBuf> {
        let recipe = format!("{FORMAT} {} {version}\n", series.suite);
        let build = |dir: &Path| build(self, lab, series, version, dir);
        lab.cached(&format!("{}-{}", self.name, series.name), &recipe, build)
    }

    /// The name of the file.
    pub(crate) fn file(&self) -> String {
        format!("{}.ko", self.name)
    }
}

/// Returns the directory with the sources of all modules, each in a directory of its name, of the kernel of this version; unpacks them first
/// if they are not cached. The caller holds the lab's lock.
pub(crate) fn sources(lab: &Lab, series: Series, version: &str) -> Result<PathBuf> {
    let modules = Kind::ALL.iter().filter_map(|kind| kind.module());
    let wanted: Vec<&str> = modules.map(|module| module.source).collect();
    let recipe = format!("{FORMAT} {} {version}\n{}\n", series.suite, wanted.join(" "));
    lab.cached(&format!("sources-{}", series.name), &recipe, |dir| {
        let package = format!("linux-source-{}", base_version(version)?);
        let suite = Suite::open(lab, series.suite)?;
        let archive = dir.join("archive");
        apt::unpack(&suite.exact(core::slice::from_ref(&package))?, &archive)?;
        let tops: Vec<_> = wanted.iter().map(|source| format!("{package}/{source}")).collect();
        extract(lab, &archive.join(format!("usr/src/{package}.tar.xz")), &tops, dir)?;
        crate::remove_tree(&archive)
    })
}

fn build(module: &Module, lab: &Lab, series: Series, version: &str, dir: &Path) -> Result<()> {
    let suite = Suite::open(lab, series.suite)?;
    let headers = format!("linux-headers-{version}");
    let depends = suite.depends(&headers).with_context(|| {
        format!(
            "if the archive has a newer kernel by now, remove {}",
            lab.path(format!("kernel-{}", series.name)).display()
        )
    })?;
    let tree = dir.join("tree");
    let compiler = compiler(&suite, &depends)?;
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let own = is_hosts(series.suite) && has(&compiler) && has("make");
    let debs = if own {
        let parts = depends
            .iter()
            .filter(|name| ["linux-headers-", "linux-kbuild-"].iter().any(|p| name.starts_with(p)));
        suite.exact(&parts.cloned().chain([headers.clone()]).collect::<Vec<_>>())?
    } else {
        suite.closure(&[
            &headers,
            &compiler,
            "make",
            "dash",
            "coreutils",
            "sed",
            "grep",
            "gawk",
            "findutils",
            "kmod",
        ])?
    };
    apt::unpack(&debs, &tree)?;

    let own_source = tree.join(module.name);
    let source = sources(lab, series, version)?.join(module.name);
    run::output(Command::new("cp").arg("-r").arg(source).arg(&own_source))?;

    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let goals = [format!("{}=m", module.config), format!("-j{jobs}"), "modules".into()];
    if own {
        let headers = tree.join(format!("usr/src/{headers}"));
        relocate(&headers.join("Makefile"), &tree)?;
        let mut make = Command::new("make");
        make.arg("-C").arg(&headers).arg(format!("M={}", own_source.display())).args(goals);
        run::output(&mut make)?;
    } else {
        complete(&tree)?;
        let mut make =
            inside(&tree, &format!("make -C /usr/src/{headers} M=/{} {}", module.name, goals.join(" ")));
        run::output(&mut make)?;
    }
    let file = module.file();
    fs::copy(own_source.join(&file), dir.join(&file)).context("make did not leave the module")?;
    run::output(Command::new("strip").arg("--strip-debug").arg(dir.join(&file)))?;
    crate::remove_tree(&tree)
}

/// The compiler of the kernel: on it depends a package on which its headers depend, or the headers do.
fn compiler(suite: &Suite, depends: &[String]) -> Result<String> {
    if let Some(name) = depends.iter().find_map(|name| gcc(name)) {
        return Ok(name);
    }
    let link = depends.iter().find(|name| name.starts_with("linux-compiler-"));
    let link = link.context("the kernel's headers name no compiler")?;
    suite.depends(link)?.iter().find_map(|name| gcc(name)).with_context(|| format!("{link} names no gcc"))
}

/// `gcc-16` of `gcc-16` or `gcc-16-for-host`, which is the compiler for the package's own architecture.
fn gcc(package: &str) -> Option<String> {
    let name = package.strip_suffix("-for-host").unwrap_or(package);
    let version = name.strip_prefix("gcc-")?;
    version.bytes().all(|b| b.is_ascii_digit()).then(|| name.to_owned())
}

/// Whether this machine is of that suite.
fn is_hosts(suite: &str) -> bool {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    release.lines().any(|line| line == format!("VERSION_CODENAME={suite}"))
}

/// `6.1` of `6.1.0-50-amd64`.
fn base_version(version: &str) -> Result<String> {
    let mut numbers = version.split('.');
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if !minor.is_empty() => Ok(format!("{major}.{minor}")),
        _ => bail!("the version of the kernel is `{version}`"),
    }
}

/// Unpacks the directories of modules, in one pass: decompressing the kernel's source takes most of the time.
fn extract(lab: &Lab, archive: &Path, tops: &[String], to: &Path) -> Result<()> {
    let mut xz = Userland::host_tools(lab)?.command("xz")?;
    let mut xz = xz
        .args(["--decompress", "--stdout"])
        .arg(archive)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start xz")?;
    let above = tops.first().map_or(0, |top| top.matches('/').count());
    let tar = Command::new("tar")
        .args(["-x", "-C"])
        .arg(to)
        .arg(format!("--strip-components={above}"))
        .args(tops)
        .stdin(xz.stdout.take().context("no output of xz")?)
        .output()
        .context("cannot start tar")?;
    let unpacked = xz.wait().context("cannot wait for xz")?;
    if !tar.status.success() || !unpacked.success() {
        bail!("cannot unpack {}: {}", archive.display(), String::from_utf8_lossy(&tar.stderr));
    }
    Ok(())
}

/// Makes a file of the headers name the tree instead of the root directory.
fn relocate(makefile: &Path, tree: &Path) -> Result<()> {
    let text = fs::read_to_string(makefile).with_context(|| format!("no {}", makefile.display()))?;
    let text = text.replace("/usr/src/", &format!("{}/usr/src/", tree.display()));
    fs::write(makefile, text).with_context(|| format!("cannot write {}", makefile.display()))
}

/// Adds what the scripts of packages would have made.
fn complete(tree: &Path) -> Result<()> {
    for dir in ["dev", "proc", "tmp"] {
        fs::create_dir_all(tree.join(dir)).with_context(|| format!("cannot create {dir}"))?;
    }
    for (link, target) in [("usr/bin/sh", "dash"), ("usr/bin/awk", "gawk")] {
        let path = tree.join(link);
        if fs::symlink_metadata(&path).is_err() {
            std::os::unix::fs::symlink(target, &path).with_context(|| format!("cannot link {link}"))?;
        }
    }
    for dir in ["bin", "sbin", "lib", "lib64"] {
        let path = tree.join(dir);
        if fs::symlink_metadata(&path).is_err() {
            std::os::unix::fs::symlink(format!("usr/{dir}"), &path)
                .with_context(|| format!("cannot link {dir}"))?;
        }
    }
    Ok(())
}

/// A command with the tree as its root directory.
fn inside(tree: &Path, command: &str) -> Command {
    let script = format!(
        "mount --rbind /dev \"$1/dev\" && mount --rbind /proc \"$1/proc\" && exec chroot \"$1\" /bin/sh -c '{command}'"
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "--", "sh", "-c", &script, "sh"]).arg(tree);
    unshare.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
    unshare
}

#[cfg(test)]
mod tests {
    use super::{base_version, gcc};

    #[test]
    fn the_compiler_is_that_of_the_headers() {
        assert_eq!(gcc("gcc-12").as_deref(), Some("gcc-12"));
        assert_eq!(gcc("gcc-16-for-host").as_deref(), Some("gcc-16"));
        assert_eq!((gcc("gcc-16-base"), gcc("linux-base")), (None, None));
    }

    #[test]
    fn the_source_is_that_of_the_series() {
        let of = |version| base_version(version).ok();
        assert_eq!(of("6.1.0-50-amd64").as_deref(), Some("6.1"));
        assert_eq!(of("6.12.48+deb13-amd64").as_deref(), Some("6.12"));
        assert_eq!(of("7"), None);
    }
}
