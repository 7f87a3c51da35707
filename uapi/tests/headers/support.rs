// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unpacks Debian's newest header packages below the target directory. Nothing is installed, the system's state is not
//! changed, and the mirror is the one that this machine uses.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, process};

/// The suite that carries the newest kernel's headers.
const SUITE: &str = "forky";
/// Kernel headers, and rdma-core's.
const PACKAGES: [&str; 3] = ["linux-libc-dev", "libibverbs-dev", "librdmacm-dev"];

/// The directory to which the packages are unpacked; downloads them unless an earlier run did. To download them again,
/// remove the directory.
pub(crate) fn newest_headers() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("headers-{SUITE}"));
    if root.is_dir() {
        return Ok(root);
    }
    // The packages are unpacked to another directory, which is then renamed, so an interrupted or parallel run leaves
    // no partial tree under the name.
    let work = root.with_extension(format!("partial-{}", process::id()));
    let unpacked = download(&work).and_then(|tree| {
        fs::rename(&tree, &root).or_else(|e| if root.is_dir() { Ok(()) } else { Err(format!("rename: {e}")) })
    });
    let _ = fs::remove_dir_all(&work);
    unpacked.map(|()| root)
}

/// Downloads and unpacks into `work`; returns the path of the tree.
fn download(work: &Path) -> Result<PathBuf, String> {
    let io = |e: std::io::Error| format!("{}: {e}", work.display());
    for dir in ["lists/partial", "cache/archives/partial", "tree"] {
        fs::create_dir_all(work.join(dir)).map_err(io)?;
    }
    fs::write(work.join("sources.list"), sources()?).map_err(io)?;

    apt(work, &["update"])?;
    // In one call, because each reads the lists of all packages.
    let packages = PACKAGES.map(|package| format!("{package}/{SUITE}"));
    let words: Vec<&str> = ["download"].into_iter().chain(packages.iter().map(String::as_str)).collect();
    apt(work, &words)?;
    let tree = work.join("tree");
    for entry in fs::read_dir(work).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|ext| ext == "deb") {
            run(Command::new("dpkg").arg("-x").arg(&path).arg(&tree))?;
        }
    }
    Ok(tree)
}

/// The machine's Debian mirrors, as a sources.list of [`SUITE`].
fn sources() -> Result<String, String> {
    let configured = run(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
    ]))?;
    let mut mirrors: Vec<&str> = configured.lines().filter(|uri| uri.ends_with("/debian/")).collect();
    mirrors.sort_unstable();
    mirrors.dedup();
    if mirrors.is_empty() {
        return Err("this machine has no Debian mirror among its apt sources".into());
    }
    let keyring = ["gpg", "pgp"]
        .map(|ext| format!("/usr/share/keyrings/debian-archive-keyring.{ext}"))
        .into_iter()
        .find(|path| Path::new(path).exists());
    let options = keyring.map(|path| format!("[signed-by={path}] ")).unwrap_or_default();
    Ok(mirrors.iter().map(|uri| format!("deb {options}{uri} {SUITE} main\n")).collect())
}

/// Runs apt-get with all its state below `work`.
fn apt(work: &Path, args: &[&str]) -> Result<String, String> {
    let option = |key: &str, path: &str| format!("-o{key}={}", work.join(path).display());
    run(Command::new("apt-get")
        .arg("-qq")
        .arg(option("Dir::Etc::SourceList", "sources.list"))
        .arg(option("Dir::State::Lists", "lists"))
        .arg(option("Dir::Cache", "cache"))
        .args(["-oDir::Etc::SourceParts=/nonexistent", "-oAPT::Sandbox::User=root"])
        .args(["-oAcquire::Check-Valid-Until=false", "-oAcquire::Languages=none", "-oAcquire::Retries=1"])
        .args(["-oAcquire::http::Timeout=20", "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"])
        .args(["-oAPT::Update::Error-Mode=any"])
        .args(args)
        .current_dir(work))
}

/// Runs a command; returns its standard output, or why it failed.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.env("LC_ALL", "C").output().map_err(|e| format!("{program}: {e}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}: {}: {}", output.status, stderr.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
