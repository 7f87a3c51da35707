// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the programs: instructions by callgrind, nanoseconds by processes that run one after the other.

use super::programs::{self, C, Ours};
use super::rows::{Face, Key, Line, Set};
use crate::run;
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The faces that our programs measure.
const OURS: &[Face] = &[Face::Typed, Face::Raw, Face::Floor];

/// Per operation, by measurement.
type Values = HashMap<Key, f64>;

/// The measurements.
#[derive(Debug, Default)]
pub(crate) struct Results {
    counts: Values,
    /// Nanoseconds, round by round.
    rounds: Vec<Values>,
}

/// A median and how far the values scatter: half the distance between the quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Median {
    pub(crate) value: f64,
    pub(crate) spread: f64,
}

impl Median {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| values.get((values.len().checked_sub(1)?) * quarter / 4).copied();
        Some(Self { value: at(2)?, spread: (at(3)? - at(1)?) / 2.0 })
    }
}

impl Results {
    /// Counts the instructions of our measurements of these lines.
    pub(crate) fn count_ours(&mut self, lines: &[Line], ours: &Ours) -> Result<()> {
        self.count(lines, "ours", OURS, |tool, set| ours.program(tool, &set.to_string()))
    }

    /// Counts the instructions of the C program with the library of a face.
    pub(crate) fn count_c(&mut self, lines: &[Line], c: &C, face: Face) -> Result<()> {
        self.count(lines, face.name(), &[face], |tool, set| c.command(tool, set, face))
    }

    fn count(
        &mut self,
        lines: &[Line],
        who: &str,
        faces: &[Face],
        program: impl Fn(&[String], Set) -> Command,
    ) -> Result<()> {
        for set in Set::all() {
            let names = names(lines, set, faces);
            if names.is_empty() {
                continue;
            }
            let counts = count(&names, &format!("{who}-{set}"), |tool| program(tool, set))?;
            let key = |name| Key { locking: set.locking, name };
            self.counts.extend(counts.into_iter().map(|(name, count)| (key(name), count)));
        }
        Ok(())
    }

    /// Times all programs, one process after the other: a round.
    pub(crate) fn time(&mut self, lines: &[Line], ours: &Ours, c: &C) -> Result<()> {
        let mut round = Values::new();
        for set in Set::all() {
            let programs = [
                (&[Face::C][..], c.command(&[], set, Face::C)),
                (OURS, ours.program(&[], &set.to_string())),
                (&[Face::Abi], c.command(&[], set, Face::Abi)),
            ];
            for (faces, mut program) in programs {
                let names = names(lines, set, faces);
                if !names.is_empty() {
                    let values = parse(&run::output(program.arg("ns").args(&names))?)?;
                    complete(&names, &values)?;
                    round.extend(
                        values.into_iter().map(|(name, ns)| (Key { locking: set.locking, name }, ns)),
                    );
                }
            }
        }
        self.rounds.push(round);
        Ok(())
    }

    /// The instructions of a line by a face.
    pub(crate) fn instructions(&self, line: &Line, face: Face) -> Option<f64> {
        self.counts.get(&line.key(face)?).copied()
    }

    /// The nanoseconds of a measurement, one value per round.
    pub(crate) fn rounds(&self, line: &Line, face: Face) -> Vec<f64> {
        let key = line.key(face);
        let of = |round: &Values| key.as_ref().and_then(|key| round.get(key).copied());
        self.rounds.iter().filter_map(of).collect()
    }

    /// The median of the nanoseconds of a measurement.
    pub(crate) fn ns(&self, line: &Line, face: Face) -> Option<Median> {
        Median::of(self.rounds(line, face))
    }

    /// The median of the rounds' ratios to C's.
    pub(crate) fn ratio(&self, line: &Line, face: Face) -> Option<Median> {
        let (ours, c) = (self.rounds(line, face), self.rounds(line, Face::C));
        Median::of(ours.into_iter().zip(c).map(|(ours, c)| ours / c).collect())
    }
}

/// The names of the measurements that a program makes for these lines.
fn names(lines: &[Line], set: Set, faces: &[Face]) -> Vec<String> {
    let of_set = lines.iter().filter(|line| line.set() == set);
    let keys = of_set.flat_map(|line| faces.iter().filter_map(|&face| line.key(face)));
    let mut names: Vec<_> = keys.map(|key| key.name).collect();
    names.sort();
    names.dedup();
    names
}

/// Instructions per operation of the measurements with these names; callgrind's dumps stay in the folder.
pub(crate) fn count(
    names: &[String],
    folder: &str,
    program: impl FnOnce(&[String]) -> Command,
) -> Result<HashMap<String, f64>> {
    let dir = programs::folder()?.join("callgrind").join(folder);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let out = format!("--callgrind-out-file={}", dir.join("out").display());
    let tool = ["valgrind", "-q", "--tool=callgrind", "--collect-atstart=no", &out].map(str::to_owned);
    let ops =
        parse(&run::output(program(&tool).arg("count").args(names)).context("see `cargo xtask setup`")?)?;
    let mut counts = HashMap::new();
    for entry in fs::read_dir(&dir)? {
        if let Some((name, total)) = dump(&entry?.path())? {
            let ops = ops.get(&name).with_context(|| format!("no row for the dump {name:?}"))?;
            counts.insert(name, total / ops);
        }
    }
    complete(names, &counts)?;
    Ok(counts)
}

/// The name and the instructions of a dump that a client requested.
fn dump(path: &Path) -> Result<Option<(String, f64)>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let (Some(name), Some(total)) = (field("desc: Trigger: Client Request:"), field("summary:")) else {
        return Ok(None);
    };
    Ok(Some((name.to_owned(), total.parse().with_context(|| format!("expected a sum, found {total:?}"))?)))
}

/// The lines of a program: a name, a tab, a number.
fn parse(text: &str) -> Result<HashMap<String, f64>> {
    text.lines()
        .map(|line| {
            let (name, value) = line
                .split_once('\t')
                .with_context(|| format!("expected a name and a number, found {line:?}"))?;
            Ok((name.to_owned(), value.parse()?))
        })
        .collect()
}

/// Whether every name has its value.
fn complete(names: &[String], values: &HashMap<String, f64>) -> Result<()> {
    let missing: Vec<_> =
        names.iter().filter(|name| !values.contains_key(*name)).map(String::as_str).collect();
    ensure!(missing.is_empty(), "the program did not measure {}", missing.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_reported_with_its_spread() {
        let median = Median::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!(median, Median { value: 3.0, spread: 1.0 });
        assert_eq!(Median::of(vec![2.0]).unwrap(), Median { value: 2.0, spread: 0.0 });
        assert_eq!(Median::of(Vec::new()), None);
    }

    #[test]
    fn missing_rows_are_named() {
        let values = parse("c poll x1\t3\n").unwrap();
        assert!(complete(&["c poll x1".to_owned()], &values).is_ok());
        let error = complete(&["raw poll x1".to_owned()], &values).unwrap_err();
        assert_eq!(error.to_string(), "the program did not measure raw poll x1");
        assert!(parse("nothing").is_err());
    }
}
