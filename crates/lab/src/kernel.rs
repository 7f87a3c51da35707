// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's kernels in the form that the VM needs: an uncompressed `vmlinux` and an archive of the modules.
//!
//! Of some four thousand modules, the guest gets those named here and their dependencies, uncompressed, with new
//! indexes. The kernel is uncompressed, too: the decompression would take the emulated CPU about two seconds.

use crate::apt::{self, Suite};
use crate::cpio::Cpio;
use crate::root::Root;
use crate::{Lab, run};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A kernel series: that of the package `linux-image-amd64` of a Debian suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    /// Its name, e.g. `6.1`. If the suite has a kernel of another series, the lab prints a note.
    pub name: &'static str,
    /// The suite.
    pub suite: &'static str,
    /// Whether each rxe device gets a network namespace of its own: the kernel supports it, and requires it for traffic
    /// over the link.
    pub namespaces: bool,
}

/// Modules that must be there (or built in) on every kernel.
const REQUIRED: [&str; 10] = [
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "veth",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
    "sch_netem",
    "mlx5_core",
    "mlx5_ib",
];

/// Modules that the guest gets if the kernel has them.
const OPTIONAL: [&str; 13] = [
    "crc32_generic",
    "crc32_pclmul",
    "crc32c_generic",
    "crc32c_intel",
    "ib_umad",
    // For the modules that `module` builds: siw, and efa from 7.2 on.
    "libcrc32c",
    "crc16",
    "dummy",
    "8021q",
    "overlay",
    "9p",
    "9pnet_virtio",
    "sch_tbf",
];

/// Increase this if the format of the cached files changes.
const FORMAT: u32 = 1;

/// A kernel, ready to boot.
pub(crate) struct Kernel {
    /// Its full version, e.g. `6.1.0-50-amd64`.
    pub(crate) version: String,
    /// The image that QEMU boots.
    pub(crate) image: PathBuf,
    /// The initramfs part with its modules.
    pub(crate) modules: PathBuf,
}

impl Series {
    /// The series that the lab was tested with, oldest first.
    pub const ALL: [Self; 3] = [
        Self { name: "6.1", suite: "bookworm", namespaces: false },
        Self { name: "6.12", suite: "trixie", namespaces: false },
        Self { name: "7.2", suite: "forky", namespaces: true },
    ];

    /// The series of [`ALL`](Self::ALL) with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<Self> {
        match Self::ALL.iter().find(|series| series.name == name) {
            Some(series) => Ok(*series),
            None => bail!("no kernel {name}: the lab has {}", Self::ALL.map(|s| s.name).join(", ")),
        }
    }

    /// Returns the kernel of this series, and downloads and unpacks it first if it is not cached. The caller holds the
    /// lab's lock.
    pub(crate) fn prepare(self, lab: &Lab, tools: &Root) -> Result<Kernel> {
        let recipe = format!(
            "{FORMAT} {} {}\n{}\n{}\n",
            self.name,
            self.suite,
            REQUIRED.join(" "),
            OPTIONAL.join(" ")
        );
        let dir = lab.cached(&format!("kernel-{}", self.name), &recipe, |dir| self.build(lab, tools, dir))?;
        let version = fs::read_to_string(dir.join("version")).context("cannot read the kernel's version")?;
        Ok(Kernel { version, image: dir.join("vmlinux"), modules: dir.join("modules.cpio") })
    }

    /// The version of the kernel: of the cached one, or that which the suite has.
    pub(crate) fn version(self, lab: &Lab) -> Result<String> {
        match fs::read_to_string(lab.path(format!("kernel-{}/version", self.name))) {
            Ok(version) => Ok(version),
            Err(_) => self.newest(&Suite::open(lab, self.suite)?),
        }
    }

    /// The version of the kernel that the suite has.
    fn newest(self, suite: &Suite) -> Result<String> {
        let depends = suite.depends("linux-image-amd64")?;
        let version = depends.iter().find_map(|name| name.strip_prefix("linux-image-"));
        let version =
            version.with_context(|| format!("linux-image-amd64 of {} names no kernel", self.suite))?;
        Ok(version.to_owned())
    }

    fn build(self, lab: &Lab, tools: &Root, dir: &Path) -> Result<()> {
        let suite = Suite::open(lab, self.suite)?;
        let version = &*self.newest(&suite)?;
        if !version.starts_with(&format!("{}.", self.name)) {
            lab.say(format!("note: {} no longer has kernel {}; using {version}", self.suite, self.name));
        }
        // Newer suites split the image; the package itself is then empty.
        let image = format!("linux-image-{version}");
        let parts: Vec<String> = suite
            .depends(&image)?
            .into_iter()
            .filter(|name| {
                ["linux-base-", "linux-binary-", "linux-modules-"]
                    .iter()
                    .any(|p| *name == format!("{p}{version}"))
            })
            .chain([image])
            .collect();
        let debs = suite.exact(&parts)?;
        let tree = dir.join("tree");
        apt::unpack(&debs, &tree)?;

        let modules = [format!("lib/modules/{version}"), format!("usr/lib/modules/{version}")]
            .into_iter()
            .map(|path| tree.join(path))
            .find(|path| path.join("kernel").is_dir())
            .context("the kernel's packages have no modules")?;
        let compressed = [tree.join(format!("boot/vmlinuz-{version}")), modules.join("vmlinuz")]
            .into_iter()
            .find(|path| path.is_file())
            .context("the kernel's packages have no vmlinuz")?;
        let image = fs::read(&compressed).context("cannot read vmlinuz")?;
        let image = match uncompressed(&image, tools) {
            Ok(vmlinux) => vmlinux,
            Err(e) => {
                lab.say(format!("note: kernel {version} boots compressed, a little slower: {e:#}"));
                image
            }
        };
        fs::write(dir.join("vmlinux"), image).context("cannot write vmlinux")?;
        let archive = module_archive(tools, &modules, version, &dir.join("stage"))?;
        fs::write(dir.join("modules.cpio"), archive).context("cannot write the modules")?;
        fs::write(dir.join("version"), version).context("cannot write the version")?;
        crate::remove_tree(&dir.join("stage"))?;
        crate::remove_tree(&tree)
    }
}

/// Takes the ELF kernel out of a bzImage (see the kernel's `Documentation/arch/x86/boot.rst`).
fn uncompressed(image: &[u8], tools: &Root) -> Result<Vec<u8>> {
    let word = |at: usize| -> Result<usize> {
        let bytes = image.get(at..at + 4).context("vmlinuz is too short")?;
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    // setup_sects, payload_offset, payload_length
    let setup = usize::from(*image.get(0x1f1).context("vmlinuz is too short")?) + 1;
    let start = setup * 512 + word(0x248)?;
    let end = start + word(0x24c)?;
    let payload = image.get(start..end).context("vmlinuz has no payload")?;
    let (program, args): (_, &[&str]) = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => ("xz", &["--decompress", "--stdout", "--single-stream"]),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", &["--decompress", "--stdout", "--quiet"]),
        _ => bail!("its compression is unknown"),
    };
    // The last four bytes are the size, not part of the compressed stream.
    let (stream, size) = payload.split_at(payload.len() - 4);
    let size = size.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte));
    let vmlinux = filter(tools, program, args, stream)?;
    if vmlinux.len() != size || !vmlinux.starts_with(b"\x7fELF") {
        bail!("its payload has an unexpected format");
    }
    // Without this note (XEN_ELFNOTE_PHYS32_ENTRY) QEMU refuses to start an ELF kernel.
    const PVH: &[u8] = b"\x04\0\0\0\x08\0\0\0\x12\0\0\0Xen\0";
    const PVH32: &[u8] = b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0";
    if !vmlinux.windows(PVH.len()).any(|w| w == PVH || w == PVH32) {
        bail!("it has no PVH entry");
    }
    Ok(vmlinux)
}

/// Pipes bytes through a program of the tree.
fn filter(tools: &Root, program: &str, args: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let mut child = tools
        .command(program)?
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let out = child.wait_with_output().with_context(|| format!("cannot read from {program}"))?;
    let written = writer.join().unwrap_or_else(|_| Err(std::io::Error::other("the writer panicked")));
    if !out.status.success() {
        bail!("{program} failed: {}", out.status);
    }
    written.with_context(|| format!("cannot write to {program}"))?;
    Ok(out.stdout)
}

/// Selects the modules and their dependencies, uncompresses and indexes them, and packs them.
fn module_archive(tools: &Root, modules: &Path, version: &str, stage: &Path) -> Result<Vec<u8>> {
    let base = modules.ancestors().nth(3).context("invalid module path")?;
    depmod(tools, base, version)?;
    let index = Index::read(modules)?;
    let mut wanted = BTreeSet::new();
    for name in REQUIRED {
        if !index.add(name, &mut wanted) {
            bail!("kernel {version} has no module {name}");
        }
    }
    for name in OPTIONAL {
        index.add(name, &mut wanted);
    }
    let target = stage.join("lib/modules").join(version);
    for path in &wanted {
        let bytes = fs::read(modules.join(path)).with_context(|| format!("cannot read module {path}"))?;
        let (path, bytes) = match path.strip_suffix(".xz") {
            Some(plain) => (plain, filter(tools, "xz", &["--decompress", "--stdout"], &bytes)?),
            None => (path.as_str(), bytes),
        };
        let file = target.join(path);
        fs::create_dir_all(file.parent().context("invalid module path")?)
            .context("cannot create the module directories")?;
        fs::write(&file, bytes).with_context(|| format!("cannot write module {path}"))?;
    }
    for name in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        fs::copy(modules.join(name), target.join(name)).with_context(|| format!("cannot copy {name}"))?;
    }
    depmod(tools, stage, version)?;
    let mut cpio = Cpio::new();
    cpio.copy(&format!("usr/lib/modules/{version}"), &target)?;
    Ok(cpio.finish())
}

/// Writes the module indexes below `base`, which has a `lib/modules`.
fn depmod(tools: &Root, base: &Path, version: &str) -> Result<()> {
    run::output(tools.command("depmod")?.arg("-b").arg(base).arg(version)).map(drop)
}

/// The data of depmod: the path of each module, and its dependencies.
struct Index {
    /// Name, with underscores, to path.
    paths: BTreeMap<String, String>,
    /// Path to the paths of all it depends on.
    needs: BTreeMap<String, Vec<String>>,
    builtin: BTreeSet<String>,
}

impl Index {
    fn read(modules: &Path) -> Result<Self> {
        let read = |name: &str| {
            fs::read_to_string(modules.join(name)).with_context(|| format!("cannot read {name}"))
        };
        Ok(Self::parse(&read("modules.dep")?, &read("modules.builtin")?))
    }

    fn parse(dep: &str, builtin: &str) -> Self {
        let mut paths = BTreeMap::new();
        let mut needs = BTreeMap::new();
        for (path, list) in dep.lines().filter_map(|line| line.split_once(':')) {
            paths.insert(module_name(path), path.to_owned());
            needs.insert(path.to_owned(), list.split_whitespace().map(str::to_owned).collect());
        }
        Self { paths, needs, builtin: builtin.lines().map(module_name).collect() }
    }

    /// Adds a module and its dependencies; `false` if the kernel has no such module. A built-in module adds nothing.
    fn add(&self, name: &str, wanted: &mut BTreeSet<String>) -> bool {
        let Some(path) = self.paths.get(name) else { return self.builtin.contains(name) };
        // modules.dep lists the whole closure, not only direct dependencies.
        wanted.extend(self.needs.get(path).into_iter().flatten().cloned());
        wanted.insert(path.clone());
        true
    }
}

/// `kernel/x/crc32-pclmul.ko.xz` is the module `crc32_pclmul`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_bring_their_dependencies() {
        let index = Index::parse(
            "kernel/a/rdma_rxe.ko.xz: kernel/b/ib-core.ko.xz kernel/c/udp_tunnel.ko.xz\nkernel/b/ib-core.ko.xz:\n",
            "kernel/drivers/virtio/virtio_pci.ko\n",
        );
        let mut wanted = BTreeSet::new();
        assert!(index.add("rdma_rxe", &mut wanted));
        assert!(index.add("virtio_pci", &mut wanted));
        assert!(!index.add("nothing", &mut wanted));
        assert_eq!(wanted.len(), 3);
        assert!(wanted.contains("kernel/b/ib-core.ko.xz"));
    }

    #[test]
    fn series_are_found_by_name() {
        assert_eq!(Series::named("6.12").unwrap().suite, "trixie");
        assert!(Series::named("5.4").is_err());
    }
}
