// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of unpacked packages, and running its programs in place.
//!
//! A program of another suite needs that suite's libc, so it is started by the directory's own dynamic loader with the
//! directory's libraries. The loader also lists the libraries that a program needs; the guest gets exactly those.

use crate::run;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The loader's name, on every suite.
pub const LOADER: &str = "ld-linux-x86-64.so.2";

/// The directories of libraries in packages: before and after the merge of /lib into /usr/lib.
const LIB_DIRS: [&str; 5] = [
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu/ceph",
    "usr/lib/x86_64-linux-gnu/pulseaudio",
];

/// The directories of programs in packages.
const BIN_DIRS: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];

/// A directory into which packages were unpacked.
#[derive(Debug)]
pub struct Root {
    dir: PathBuf,
}

impl Root {
    /// The directory `dir`.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// A path in the directory.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.join(relative)
    }

    /// The program `name`.
    ///
    /// # Errors
    /// There is no such program.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        BIN_DIRS
            .iter()
            .find_map(|dir| self.resolve(self.dir.join(dir).join(name)))
            .with_context(|| format!("no program {name} in {}", self.dir.display()))
    }

    /// The library `name`.
    ///
    /// # Errors
    /// There is no such library.
    pub fn library(&self, name: &str) -> Result<PathBuf> {
        LIB_DIRS
            .iter()
            .find_map(|dir| self.resolve(self.dir.join(dir).join(name)))
            .with_context(|| format!("no library {name} in {}", self.dir.display()))
    }

    /// A command that runs the program `name` with the directory's own loader and libraries.
    ///
    /// # Errors
    /// There is no such program, or no loader.
    pub fn command(&self, name: &str) -> Result<Command> {
        self.command_in(&self.library_path(), name)
    }

    /// The same, but the libraries in `first` are preferred to those of the directory.
    ///
    /// # Errors
    /// There is no such program, or no loader.
    pub fn command_with(&self, first: &Path, name: &str) -> Result<Command> {
        self.command_in(&format!("{}:{}", first.display(), self.library_path()), name)
    }

    fn command_in(&self, library_path: &str, name: &str) -> Result<Command> {
        let mut cmd = Command::new(self.library(LOADER)?);
        // The name in argv[0] selects the function of programs like depmod.
        cmd.args(["--inhibit-cache", "--library-path", library_path, "--argv0", name]);
        cmd.arg(self.program(name)?);
        Ok(cmd)
    }

    /// Follows symbolic links to a file. The target of an absolute link is in the directory, too.
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

    /// Every shared library that these programs and libraries need, by its soname. Static programs and scripts need none.
    ///
    /// # Errors
    /// A library is not in the directory.
    pub fn libraries_of(&self, files: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>> {
        let mut found = BTreeMap::new();
        for file in files {
            let loader = self.library(LOADER)?;
            // ld.so(8): 0 is a dynamic program, 2 a library, and 1 neither.
            let kind = Command::new(&loader)
                .arg("--verify")
                .arg(file)
                .status()
                .context("cannot start the loader")?;
            if !matches!(kind.code(), Some(0 | 2)) {
                continue;
            }
            let mut list = Command::new(&loader);
            list.args(["--inhibit-cache", "--library-path", &self.library_path(), "--list"]);
            let text = run::output(list.arg(file))?;
            for line in text.lines() {
                let Some((name, rest)) = line.trim().split_once(" => ") else { continue };
                let path = Path::new(rest.split(" (").next().unwrap_or(rest));
                if !path.starts_with(&self.dir) {
                    bail!("{} needs {name}, which is not in {}", file.display(), self.dir.display());
                }
                let name = name.rsplit('/').next().unwrap_or(name);
                found.insert(name.to_owned(), path.to_owned());
            }
        }
        Ok(found)
    }
}
