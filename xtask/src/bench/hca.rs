// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a message on the software ConnectX in one process: its post, its execution by both devices, its completions and their
//! polls.

use super::limited::Limited;
use super::measure;
use super::programs::Ours;
use anyhow::{Context, Result};

/// The rows of the program, and the limits of the instructions of a message. A long message has one copy of its data: callgrind counts an
/// instruction for each byte, where libc copies by `rep movsb`, and fewer for short copies and on other processors.
const ROWS: [(&str, u32, f64); 25] = [
    ("write 64", 32, 1090.0),
    ("send 64", 32, 1540.0),
    ("read 64", 32, 1080.0),
    ("write 64", 1, 4000.0),
    ("send 64", 1, 4660.0),
    ("read 64", 1, 3800.0),
    ("write inline 32", 32, 1240.0),
    ("send inline 32", 32, 1560.0),
    ("send imm 64", 32, 1630.0),
    ("write imm 64", 32, 1650.0),
    ("send to an SRQ 64", 32, 1730.0),
    ("loopback write 64", 32, 1080.0),
    ("loopback send 64", 32, 1620.0),
    ("write inline 32", 1, 4220.0),
    ("send inline 32", 1, 4610.0),
    ("send imm 64", 1, 4670.0),
    ("write imm 64", 1, 4700.0),
    ("send to an SRQ 64", 1, 4770.0),
    ("loopback write 64", 1, 3730.0),
    ("loopback send 64", 1, 4390.0),
    ("write 65536", 1, 74636.0),
    ("send 65536", 1, 77436.0),
    ("read 65536", 1, 73236.0),
    ("write 1048576", 1, 1068076.0),
    ("read 1048576", 1, 1060276.0),
];

/// A measurement.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    name: String,
    count: f64,
    limit: f64,
}

impl Limited for Cost {
    const WHAT: &'static str = "the software ConnectX";
    const TITLES: &'static [&'static str] = &["software ConnectX, both ends", "instructions"];
    const WORDS: usize = 1;

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), format!("{:.0}", self.count)]
    }

    fn limit(&self) -> f64 {
        self.limit
    }

    fn is_over(&self) -> bool {
        self.count > self.limit
    }
}

/// Counts the instructions of all.
pub(crate) fn count(ours: &Ours) -> Result<Vec<Cost>> {
    let rows = || ROWS.into_iter().map(|(name, batch, limit)| (format!("hca {name} x{batch}"), limit));
    let names: Vec<_> = rows().map(|(name, _)| name).collect();
    let counts = measure::count(&names, "hca", |tool| ours.program(tool, "hca"))?;
    rows()
        .map(|(name, limit)| Ok(Cost { count: counts.get(&name).copied().context("a count")?, name, limit }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::limited::passes;

    #[test]
    fn a_count_above_its_limit_fails() {
        let cost = |count| Cost { name: "x".into(), count, limit: 1500.0 };
        assert!(passes(&[cost(1500.0), cost(90.0)]));
        assert!(!passes(&[cost(1500.1)]));
    }
}
