// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded counts, in `xtask/data`: tables of a locking, the programs' name of a measurement, and instructions.
//!
//! `bench-c.tsv` has libmlx5's, so that `--check` needs no C library. `bench-before.tsv` has the counts of the first
//! data path, for rows that may exceed it by at most 10 %. `bench-over.tsv` has our rows that are above their limit,
//! with their counts: a count must not grow, and a row within its limit is removed from the file.

use super::rows::{Key, Locking};
use crate::repo_root;
use anyhow::{Context, Result};
use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Counts by measurement, in a stable order.
pub(crate) type Counts = BTreeMap<Key, f64>;

/// A recorded table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum File {
    /// libmlx5's counts.
    C,
    /// Our counts of the first data path.
    Before,
    /// Our counts that are above their limit.
    Over,
}

impl File {
    fn path(self) -> PathBuf {
        let name = match self {
            Self::C => "bench-c.tsv",
            Self::Before => "bench-before.tsv",
            Self::Over => "bench-over.tsv",
        };
        repo_root().join("xtask/data").join(name)
    }

    /// Reads it.
    pub(crate) fn read(self) -> Result<Counts> {
        let path = self.path();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        parse(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Writes it; its comment stays.
    pub(crate) fn write(self, counts: &Counts) -> Result<()> {
        let path = self.path();
        let old = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut text: String =
            old.lines().filter(|line| line.starts_with('#')).flat_map(|l| [l, "\n"]).collect();
        for (key, count) in counts {
            writeln!(text, "{}\t{}\t{count:.1}", key.locking, key.name)?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn parse(text: &str) -> Result<Counts> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut fields = line.split('\t');
            let mut next = || fields.next().with_context(|| format!("expected three fields, found {line:?}"));
            let (locking, name, count) = (next()?, next()?, next()?);
            let locking =
                Locking::parse(locking).with_context(|| format!("expected a locking, found {locking:?}"))?;
            Ok((Key { locking, name: name.to_owned() }, count.parse()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rows::{Face, Line};

    #[test]
    fn lines_are_parsed_and_comments_are_skipped() {
        let counts = parse("# x\nshared\tc post_recv x1\t131.4\n").unwrap();
        let key = Key { locking: Locking::Shared, name: "c post_recv x1".to_owned() };
        assert_eq!(counts[&key], 131.4);
        assert!(parse("shared\tc post_recv x1\n").is_err());
        assert!(parse("none\tc post_recv x1\t1\n").is_err());
    }

    #[test]
    fn every_line_has_its_c_count() {
        let counts = File::C.read().unwrap();
        for line in Line::selected("") {
            let key = line.key(Face::C).unwrap();
            assert!(counts.contains_key(&key), "{key:?}");
        }
    }

    #[test]
    fn every_recorded_count_is_of_a_known_row() {
        let known: Vec<_> = Line::selected("")
            .iter()
            .flat_map(|line| Face::OURS.map(|face| line.key(face)))
            .flatten()
            .collect();
        for file in [File::Before, File::Over] {
            for key in file.read().unwrap().keys() {
                assert!(known.contains(key), "{file:?}: {key:?}");
            }
        }
    }
}
