// SPDX-License-Identifier: MIT OR Apache-2.0
//! The corpora of the fuzz targets: one archive per target, `fuzz/corpus/TARGET.tar.gz`.
//!
//! An archive has some dozens of inputs, so the repository has one file instead of them. Its bytes depend only on the
//! names and the contents of the inputs: they are sorted, and times, owners and modes are fixed. Packing the same
//! inputs again gives the same bytes.

use crate::{repo_root, run};
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Inputs that are selected for an archive, at most.
pub(crate) const LIMIT: usize = 56;

/// The archive of a target.
pub(crate) fn archive(target: &str) -> PathBuf {
    repo_root().join("fuzz/corpus").join(format!("{target}.tar.gz"))
}

/// Makes `dir` a folder with exactly the inputs of an archive. A target without an archive has no inputs.
pub(crate) fn unpack(archive: &Path, dir: &Path) -> Result<()> {
    empty(dir)?;
    if !archive.exists() {
        return Ok(());
    }
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--gzip", "--no-same-owner", "--file"]).arg(archive).arg("--directory").arg(dir);
    run::output(&mut tar).map(|_| ())
}

/// Replaces an archive with the files of `dir`.
pub(crate) fn pack(dir: &Path, archive: &Path) -> Result<()> {
    let mut names: Vec<OsString> = files(dir)?.into_iter().map(|(name, _)| name).collect();
    ensure!(!names.is_empty(), "{} has no inputs", dir.display());
    names.sort();
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=ustar", "--mtime=@0", "--mode=0644", "--owner=0", "--group=0"]);
    // Without `-n` the archive would have the time.
    tar.args(["--numeric-owner", "--use-compress-program=gzip -9n", "--file"]).arg(archive);
    tar.arg("--directory").arg(dir).arg("--").args(names);
    run::output(&mut tar).map(|_| ())
}

/// Removes all files of `dir` but the first [`LIMIT`] that were written.
///
/// libFuzzer's merge writes the inputs in the order of the coverage that each adds. Of files with one time stamp, those
/// with the first names stay.
pub(crate) fn trim(dir: &Path) -> Result<()> {
    let mut files = files(dir)?;
    files.sort_by(|(a, a_written), (b, b_written)| (a_written, a).cmp(&(b_written, b)));
    for (name, _) in files.into_iter().skip(LIMIT) {
        fs::remove_file(dir.join(&name)).with_context(|| format!("cannot remove {}", name.display()))?;
    }
    Ok(())
}

/// Makes `dir` an empty folder.
pub(crate) fn empty(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

/// The files of a folder, and the times at which they were written.
fn files(dir: &Path) -> Result<Vec<(OsString, SystemTime)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        found.push((entry.file_name(), entry.metadata()?.modified()?));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use std::env;

    /// A folder for a test.
    fn scratch(name: &str) -> PathBuf {
        let dir = env::temp_dir().join(format!("uverbs-corpus-{name}-{}", std::process::id()));
        empty(&dir).unwrap();
        dir
    }

    /// Writes files in an order, each a second younger than the one before.
    fn write(dir: &Path, files: &[(&str, &[u8])]) {
        let start = SystemTime::now() - Duration::from_secs(3600);
        for (i, (name, bytes)) in files.iter().enumerate() {
            fs::write(dir.join(name), bytes).unwrap();
            let file = fs::File::options().write(true).open(dir.join(name)).unwrap();
            file.set_modified(start + Duration::from_secs(i.try_into().unwrap())).unwrap();
        }
    }

    #[test]
    fn an_archive_depends_on_its_inputs_only_and_unpacks_to_them() {
        let top = scratch("pack");
        let (a, b, back) = (top.join("a"), top.join("b"), top.join("back"));
        empty(&a).unwrap();
        empty(&b).unwrap();
        write(&a, &[("one", b"1"), ("two", b"\0\xff"), ("none", b"")]);
        write(&b, &[("none", b""), ("two", b"\0\xff"), ("one", b"1")]);
        pack(&a, &top.join("a.tar.gz")).unwrap();
        pack(&b, &top.join("b.tar.gz")).unwrap();
        assert_eq!(fs::read(top.join("a.tar.gz")).unwrap(), fs::read(top.join("b.tar.gz")).unwrap());

        empty(&back).unwrap();
        fs::write(back.join("old"), b"of an earlier run").unwrap();
        unpack(&top.join("a.tar.gz"), &back).unwrap();
        assert_eq!(files(&back).unwrap().len(), 3);
        assert_eq!(fs::read(back.join("two")).unwrap(), b"\0\xff");
        fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn the_inputs_that_were_written_first_stay() {
        let top = scratch("trim");
        let names: Vec<String> = (0..LIMIT + 3).map(|i| format!("{}", 1000 - i)).collect();
        write(&top, &names.iter().map(|name| (name.as_str(), &b""[..])).collect::<Vec<_>>());
        trim(&top).unwrap();
        let mut left: Vec<_> = files(&top).unwrap().into_iter().map(|(name, _)| name).collect();
        left.sort();
        let mut first: Vec<OsString> = names[..LIMIT].iter().map(Into::into).collect();
        first.sort();
        assert_eq!(left, first);
        fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn every_committed_corpus_can_be_unpacked() {
        let top = scratch("committed");
        let mut count = 0;
        for entry in fs::read_dir(repo_root().join("fuzz/corpus")).unwrap() {
            let archive = entry.unwrap().path();
            unpack(&archive, &top).unwrap();
            assert!(!files(&top).unwrap().is_empty(), "{} is empty", archive.display());
            count += 1;
        }
        assert!(count > 0);
        fs::remove_dir_all(top).unwrap();
    }
}
