// SPDX-License-Identifier: MIT OR Apache-2.0
//! Archives of an initramfs (cpio "newc"), with the directories above each file.
//!
//! The kernel unpacks several archives one after the other, and later files replace earlier ones. So an image consists of
//! cached archives and a small one for each boot. All files belong to root, independent of the user who builds the image.

use anyhow::{Context, Result};
use cpio::newc::{self, ModeFileType};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// An archive under construction.
#[derive(Default)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
    dirs: BTreeSet<String>,
}

impl Cpio {
    /// An empty archive.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a directory and those above it.
    pub(crate) fn dir(&mut self, path: &str) {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let path = &path[..end];
            if !path.is_empty() && self.dirs.insert(path.to_owned()) {
                self.entry(path, ModeFileType::Directory, 0o755, (0, 0), &[]);
            }
        }
    }

    /// Adds a file, and the directories above it.
    pub(crate) fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.parents(path);
        self.entry(path, ModeFileType::Regular, mode & 0o7777, (0, 0), data);
    }

    /// Adds a symbolic link, and the directories above it.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, ModeFileType::Symlink, 0o777, (0, 0), target.as_bytes());
    }

    /// Adds a character device, and the directories above it.
    pub(crate) fn char_device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents(path);
        self.entry(path, ModeFileType::Char, 0o600, (major, minor), &[]);
    }

    /// Adds a file or directory of the host with its permissions. Symbolic links are followed.
    pub(crate) fn copy(&mut self, path: &str, from: &Path) -> Result<()> {
        let fail = || format!("cannot read {}", from.display());
        let meta = fs::metadata(from).with_context(fail)?;
        if meta.is_dir() {
            self.dir(path);
            let mut entries =
                fs::read_dir(from).with_context(fail)?.collect::<Result<Vec<_>, _>>().with_context(fail)?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                self.copy(&format!("{path}/{}", entry.file_name().to_string_lossy()), &entry.path())?;
            }
        } else {
            self.file(path, meta.permissions().mode(), &fs::read(from).with_context(fail)?);
        }
        Ok(())
    }

    /// The finished archive.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut bytes = newc::trailer(self.bytes).expect("writing to memory");
        // The next archive begins at a boundary; cpio(1) pads to 512, too.
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.trim_matches('/').rsplit_once('/') {
            self.dir(parent);
        }
    }

    fn entry(&mut self, path: &str, kind: ModeFileType, mode: u32, device: (u32, u32), data: &[u8]) {
        // The format has sizes below 4 GiB only.
        let size = u32::try_from(data.len()).expect("initramfs file below 4 GiB");
        // Entries with the same inode number are hard links to the kernel.
        self.inode += 1;
        let mut writer = newc::Builder::new(path.trim_matches('/'))
            .ino(self.inode)
            .nlink(if matches!(kind, ModeFileType::Directory) { 2 } else { 1 })
            .mode(mode)
            .set_mode_file_type(kind)
            .rdev_major(device.0)
            .rdev_minor(device.1)
            .write(&mut self.bytes, size);
        writer.write_all(data).and_then(|()| writer.finish().map(drop)).expect("writing to memory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_directories_above_a_file_once() {
        let mut cpio = Cpio::new();
        cpio.file("/a/b", 0o755, b"hello");
        cpio.file("/a/c", 0o644, b"");
        cpio.char_device("/a/d", 5, 1);
        let bytes = cpio.finish();
        assert_eq!(bytes.len() % 512, 0);
        let mut rest = &bytes[..];
        let mut found = Vec::new();
        loop {
            let reader = newc::Reader::new(rest).unwrap();
            let entry = reader.entry();
            if entry.is_trailer() {
                break;
            }
            let device = (entry.rdev_major(), entry.rdev_minor());
            found.push((entry.name().to_owned(), entry.mode(), entry.nlink(), device));
            rest = reader.finish().unwrap();
        }
        let expected = [
            ("a", 0o040_755, 2, (0, 0)),
            ("a/b", 0o100_755, 1, (0, 0)),
            ("a/c", 0o100_644, 1, (0, 0)),
            ("a/d", 0o020_600, 1, (5, 1)),
        ];
        assert_eq!(found, expected.map(|(name, mode, links, device)| (name.to_owned(), mode, links, device)));
        assert!(bytes.windows(5).any(|w| w == b"hello"));
    }
}
