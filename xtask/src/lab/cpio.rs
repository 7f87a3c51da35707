// SPDX-License-Identifier: MIT OR Apache-2.0
//! A writer for the archive format of an initramfs: cpio "newc".
//!
//! The kernel accepts several archives one after the other, later entries replacing earlier ones, so an image is
//! made of cached parts and a small one for each run. All files belong to root whoever builds the image.

use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHAR: u32 = 0o020_000;

/// An archive under construction.
#[derive(Default)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
    dirs: std::collections::BTreeSet<String>,
}

impl Cpio {
    /// An empty archive.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a folder and those above it.
    pub(crate) fn dir(&mut self, path: &str) {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let path = &path[..end];
            if !path.is_empty() && self.dirs.insert(path.to_owned()) {
                self.entry(path, DIR | 0o755, (0, 0), &[]);
            }
        }
    }

    /// Adds a file, and the folders above it.
    pub(crate) fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.parents(path);
        self.entry(path, FILE | (mode & 0o7777), (0, 0), data);
    }

    /// Adds a symbolic link, and the folders above it.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// Adds a character device, and the folders above it.
    pub(crate) fn char_device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents(path);
        self.entry(path, CHAR | 0o600, (major, minor), &[]);
    }

    /// Adds a file or a whole folder of this machine, with its permissions; links inside are followed.
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
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        // QEMU and the kernel want the next archive on a boundary; 512 is what cpio itself pads to.
        self.pad(512);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.trim_matches('/').rsplit_once('/') {
            self.dir(parent);
        }
    }

    fn pad(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        let path = path.trim_matches('/');
        // A file of an initramfs is at most 4 GiB by the format; nothing here comes near.
        let size = u32::try_from(data.len()).expect("initramfs file below 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("path length");
        let links = if mode & DIR == DIR { 2 } else { 1 };
        self.inode += 1;
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad(4);
        self.bytes.extend_from_slice(data);
        self.pad(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_as_the_format_says() {
        let mut cpio = Cpio::new();
        cpio.file("/a/b", 0o755, b"hello");
        let bytes = cpio.finish();
        assert_eq!(bytes.len() % 512, 0);
        let text = String::from_utf8_lossy(&bytes);
        // The folder comes first, made once, with two links and no data.
        assert!(text.starts_with(
            "070701000000010000\
            41ed0000000000000000000000020000000000000000"
        ));
        let second = text[1..].find("070701").expect("second entry") + 1;
        assert_eq!(second % 4, 0);
        let header = &text[second..];
        assert_eq!(&header[14..22], "000081ed");
        assert_eq!(&header[54..62], "00000005");
        assert_eq!(&header[94..102], "00000004");
        assert_eq!(&header[110..113], "a/b");
        assert_eq!(&header[116..121], "hello");
        assert!(text.contains("TRAILER!!!"));
    }
}
