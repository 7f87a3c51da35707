// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree of unpacked packages, and running its programs where they lie.
//!
//! A program of another suite needs that suite's libc, so it is started by the tree's own dynamic loader with the
//! tree's library folders. The same loader lists which libraries a program needs, which is how the guest gets
//! exactly those.

use crate::run;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The loader's name, on every suite.
pub(crate) const LOADER: &str = "ld-linux-x86-64.so.2";

/// The directories of libraries in packages: before and after the merge of /lib into /usr/lib.
const LIB_DIRS: [&str; 3] =
    ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio"];

/// The directories of programs in packages.
const BIN_DIRS: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];

/// A folder into which packages were unpacked.
pub(crate) struct Root {
    dir: PathBuf,
}

impl Root {
    /// The tree at `dir`.
    pub(crate) fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// A path inside the tree.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.dir.join(relative)
    }

    /// The program `name`.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        BIN_DIRS
            .iter()
            .find_map(|dir| self.resolve(self.dir.join(dir).join(name)))
            .with_context(|| format!("no program {name} in {}", self.dir.display()))
    }

    /// The library `name`.
    pub(crate) fn library(&self, name: &str) -> Result<PathBuf> {
        LIB_DIRS
            .iter()
            .find_map(|dir| self.resolve(self.dir.join(dir).join(name)))
            .with_context(|| format!("no library {name} in {}", self.dir.display()))
    }

    /// A command that runs the program `name` with the tree's own loader and libraries.
    pub(crate) fn command(&self, name: &str) -> Result<Command> {
        let mut cmd = Command::new(self.library(LOADER)?);
        // Programs like depmod decide by the name they were called by.
        cmd.args(["--inhibit-cache", "--library-path", &self.library_path(), "--argv0", name]);
        cmd.arg(self.program(name)?);
        Ok(cmd)
    }

    /// Follows links to a file; absolute ones are meant inside the tree.
    fn resolve(&self, mut path: PathBuf) -> Option<PathBuf> {
        for _ in 0..8 {
            match fs::read_link(&path) {
                Ok(target) => {
                    path = match target.strip_prefix("/") {
                        Ok(inside) => self.dir.join(inside),
                        Err(_) => path.parent()?.join(target),
                    }
                }
                Err(_) => break,
            }
        }
        path.is_file().then_some(path)
    }

    fn library_path(&self) -> String {
        LIB_DIRS.map(|dir| self.dir.join(dir).display().to_string()).join(":")
    }

    /// Every shared library that these programs and libraries need, by its soname.
    ///
    /// Static programs and scripts need none and are fine.
    pub(crate) fn libraries_of(&self, files: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>> {
        let mut found = BTreeMap::new();
        for file in files {
            if !is_dynamic(file)? {
                continue;
            }
            let text = run::output(
                Command::new(self.library(LOADER)?)
                    .args(["--inhibit-cache", "--library-path", &self.library_path(), "--list"])
                    .arg(file),
            )?;
            for line in text.lines() {
                let Some((name, rest)) = line.trim().split_once(" => ") else { continue };
                let path = Path::new(rest.split(" (").next().unwrap_or(rest));
                if !path.starts_with(&self.dir) {
                    bail!("{} needs {name}, which the tree {} lacks", file.display(), self.dir.display());
                }
                let name = name.rsplit('/').next().unwrap_or(name);
                found.insert(name.to_owned(), path.to_owned());
            }
        }
        Ok(found)
    }
}

/// Whether a file is an ELF object that a loader must complete (it has a PT_DYNAMIC header).
fn is_dynamic(file: &Path) -> Result<bool> {
    const PT_DYNAMIC: u32 = 2;
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    if !bytes.starts_with(b"\x7fELF") {
        return Ok(false);
    }
    let field = |at: usize, len: usize| -> Option<usize> {
        let mut value = 0;
        for (i, byte) in bytes.get(at..at + len)?.iter().enumerate() {
            value |= usize::from(*byte) << (8 * i);
        }
        Some(value)
    };
    let (Some(phoff), Some(phentsize), Some(phnum)) = (field(0x20, 8), field(0x36, 2), field(0x38, 2)) else {
        bail!("{} is a truncated ELF file", file.display());
    };
    Ok((0..phnum).any(|i| field(phoff + i * phentsize, 4) == Some(PT_DYNAMIC as usize)))
}
