// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's user space: a few tools, the C programs of rdma-core, and the libraries that they need.
//!
//! There are two images: the full one, with a shell, iproute2, kmod and the C programs, and the bare one, whose only
//! user space is a static busybox. The bare one has `ip` and `rdma` in a directory that the guest's init removes when
//! the links are up, so that a program there can use nothing but the kernel.

use crate::apt::{self, Suite};
use crate::cpio::Cpio;
use crate::root::{LOADER, Root};
use crate::{HOME_SUITE, Lab, run};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The packages of the tree, without their dependencies; the last two are used on the host.
const PACKAGES: [&str; 12] = [
    "busybox-static",
    "dash",
    "iproute2",
    "kmod",
    "ibverbs-utils",
    "ibverbs-providers",
    "perftest",
    "rdmacm-utils",
    "librdmacm1",
    "libgcc-s1",
    "xz-utils",
    "zstd",
];

/// Packages whose programs are all copied to the guest.
const ALL_PROGRAMS_OF: [&str; 3] = ["ibverbs-utils", "perftest", "rdmacm-utils"];

/// Programs that the guest gets from other packages.
const PROGRAMS: [&str; 6] = ["dash", "ip", "rdma", "tc", "ss", "kmod"];

/// Libraries for the user's own programs, besides those that the tools need.
const LIBRARIES: [&str; 10] = [
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
    "libresolv.so.2",
    "libgcc_s.so.1",
    "libibverbs.so.1",
    "librdmacm.so.1",
];

/// The guest's directory of libraries, which every Debian loader searches.
const LIB_DIR: &str = "usr/lib/x86_64-linux-gnu";

/// rdma-core's directory of providers, below [`LIB_DIR`].
const PROVIDERS: &str = "usr/lib/x86_64-linux-gnu/libibverbs";

/// Increase this if the layout of an image changes.
const FORMAT: u32 = 1;

/// The unpacked tools of a suite and the initramfs parts built from them.
pub(crate) struct Userland {
    /// The unpacked tree. Its programs are used on the host, too.
    pub(crate) root: Root,
    /// The full image.
    pub(crate) image: PathBuf,
    /// The bare image.
    pub(crate) bare: PathBuf,
}

impl Userland {
    /// Returns the tools of a suite, and downloads them and builds the images first if they are not cached. The caller
    /// holds the lab's lock.
    pub(crate) fn prepare(lab: &Lab, suite: &str) -> Result<Self> {
        let recipe = format!("{suite}\n{}\n", PACKAGES.join(" "));
        let tree = lab.cached(&format!("root-{suite}"), &recipe, |dir| {
            let debs = Suite::open(lab, suite)?.closure(&PACKAGES)?;
            apt::unpack(&debs, dir)?;
            list_programs(&debs, dir)
        })?;
        let root = Root::at(tree);
        let recipe = format!("{FORMAT} {recipe}{}\n{}\n", PROGRAMS.join(" "), LIBRARIES.join(" "));
        let images = lab.cached(&format!("image-{suite}"), &recipe, |dir| {
            fs::write(dir.join("full.cpio"), full(&root)?).context("cannot write the image")?;
            fs::write(dir.join("bare.cpio"), bare(&root)?).context("cannot write the image")
        })?;
        Ok(Self { root, image: images.join("full.cpio"), bare: images.join("bare.cpio") })
    }

    /// The tools that are used on the host (kmod, xz, zstd).
    pub(crate) fn host_tools(lab: &Lab) -> Result<Root> {
        Ok(Self::prepare(lab, HOME_SUITE)?.root)
    }
}

/// Writes the names of the programs that come from [`ALL_PROGRAMS_OF`] into the tree, for [`full`].
fn list_programs(debs: &[PathBuf], dir: &std::path::Path) -> Result<()> {
    let mut names = Vec::new();
    for deb in debs {
        let file = deb.file_name().unwrap_or_default().to_string_lossy();
        if !ALL_PROGRAMS_OF.iter().any(|package| file.starts_with(&format!("{package}_"))) {
            continue;
        }
        let listing = run::output(Command::new("dpkg-deb").arg("-c").arg(deb))?;
        for path in listing.lines().filter_map(|line| line.split_whitespace().nth(5)) {
            if let Some(name) = path.strip_prefix("./usr/bin/").filter(|name| !name.is_empty()) {
                names.push(name.to_owned());
            }
        }
    }
    names.sort();
    fs::write(dir.join(".programs"), names.join("\n")).context("cannot write the list of programs")
}

/// The directories and links that both images have. Everything is merged into /usr, and sbin into bin.
fn skeleton(cpio: &mut Cpio) {
    for dir in
        ["usr/bin", "usr/lib", "usr/lib64", "dev", "proc", "sys", "tmp", "run", "root", "var/tmp", "lab"]
    {
        cpio.dir(dir);
    }
    for (link, target) in [
        ("bin", "usr/bin"),
        ("sbin", "usr/bin"),
        ("usr/sbin", "bin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
        ("var/run", "../run"),
    ] {
        cpio.link(link, target);
    }
    // The kernel opens the console before init has mounted devtmpfs.
    cpio.char_device("dev/console", 5, 1);
    cpio.file(
        "etc/passwd",
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    );
    cpio.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    cpio.file("etc/hosts", 0o644, b"127.0.0.1 localhost lab\n::1 localhost\n");
    cpio.file("etc/nsswitch.conf", 0o644, b"passwd: files\ngroup: files\nhosts: files\nservices: files\n");
}

/// Busybox, with a link for each of its programs that no other package provides.
fn busybox(cpio: &mut Cpio, root: &Root, taken: &[String]) -> Result<()> {
    let program = root.program("busybox")?;
    let names = run::output(Command::new(&program).arg("--list"))?;
    cpio.copy("usr/bin/busybox", &program)?;
    for name in names.lines().filter(|name| *name != "busybox" && !taken.iter().any(|t| t == name)) {
        cpio.link(&format!("usr/bin/{name}"), "busybox");
    }
    Ok(())
}

/// The full image.
fn full(root: &Root) -> Result<Vec<u8>> {
    let mut names: Vec<String> = PROGRAMS.map(str::to_owned).to_vec();
    let listed = fs::read_to_string(root.path(".programs")).context("cannot read the list of programs")?;
    names.extend(listed.lines().map(str::to_owned));

    let mut cpio = Cpio::new();
    skeleton(&mut cpio);
    let mut needing = Vec::new();
    for name in &names {
        let path = root.program(name)?;
        cpio.copy(&format!("usr/bin/{name}"), &path)?;
        needing.push(path);
    }
    for (link, target) in [
        ("sh", "dash"),
        ("modprobe", "kmod"),
        ("lsmod", "kmod"),
        ("insmod", "kmod"),
        ("rmmod", "kmod"),
        ("modinfo", "kmod"),
        ("depmod", "kmod"),
    ] {
        cpio.link(&format!("usr/bin/{link}"), target);
        names.push(link.to_owned());
    }
    busybox(&mut cpio, root, &names)?;

    for name in LIBRARIES {
        let path = root.library(name)?;
        cpio.copy(&format!("{LIB_DIR}/{name}"), &path)?;
        needing.push(path);
    }
    let providers = root.path(PROVIDERS);
    for entry in fs::read_dir(&providers).with_context(|| format!("cannot read {}", providers.display()))? {
        let entry = entry.context("cannot read the providers")?;
        cpio.copy(&format!("{PROVIDERS}/{}", entry.file_name().to_string_lossy()), &entry.path())?;
        needing.push(entry.path());
    }
    cpio.copy("etc/libibverbs.d", &root.path("etc/libibverbs.d"))?;
    for (name, path) in root.libraries_of(&needing)? {
        if !LIBRARIES.contains(&name.as_str()) {
            cpio.copy(&format!("{LIB_DIR}/{name}"), &path)?;
        }
    }
    cpio.link(&format!("usr/lib64/{LOADER}"), &format!("../lib/x86_64-linux-gnu/{LOADER}"));
    Ok(cpio.finish())
}

/// The bare image; see the module's documentation.
fn bare(root: &Root) -> Result<Vec<u8>> {
    let mut cpio = Cpio::new();
    skeleton(&mut cpio);
    busybox(&mut cpio, root, &[])?;
    let tools = ["ip", "rdma"];
    let mut needing = Vec::new();
    for name in tools {
        let path = root.program(name)?;
        cpio.copy(&format!("lab/setup/{name}"), &path)?;
        needing.push(path);
    }
    for (name, path) in root.libraries_of(&needing)? {
        cpio.copy(&format!("lab/setup/lib/{name}"), &path)?;
    }
    Ok(cpio.finish())
}
