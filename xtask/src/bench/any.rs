// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of `AnyDriver`, which selects the driver at run time, over the driver itself.

use super::limited::Limited;
use super::measure;
use super::programs::Ours;
use anyhow::{Context, Result};

/// The faces of the program: `Mlx5` and `AnyDriver`.
const FACES: [&str; 2] = ["one", "any"];

/// The measurements that both have, the size of the batch, and the limit of the difference.
///
/// Each post and poll has a branch on the driver. In a batch each request has it, too, because the driver encodes it, so its
/// queue does not stay in registers. A poll has one branch, and completions have none.
const ROWS: [(&str, u32, f64); 10] = [
    ("post_send write", 1, 9.0),
    ("post_send write", 32, 16.0),
    ("post_send send", 1, 9.0),
    ("post_send send", 32, 18.0),
    ("post_recv", 1, 9.0),
    ("post_recv", 32, 5.0),
    ("poll requester", 1, 18.1),
    ("poll requester", 32, 3.0),
    ("poll responder", 1, 18.1),
    ("poll responder", 32, 3.0),
];

/// A measurement of both.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    name: String,
    one: f64,
    any: f64,
    limit: f64,
}

impl Cost {
    fn more(&self) -> f64 {
        self.any - self.one
    }
}

impl Limited for Cost {
    const WHAT: &'static str = "AnyDriver";
    const TITLES: &'static [&'static str] = &["driver, exclusive queues", "Mlx5", "AnyDriver", "more"];
    const WORDS: usize = 1;

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            format!("{:.1}", self.one),
            format!("{:.1}", self.any),
            format!("{:.1}", self.more()),
        ]
    }

    fn limit(&self) -> f64 {
        self.limit
    }

    fn is_over(&self) -> bool {
        self.more() > self.limit
    }
}

/// Counts the instructions of both, with exclusive queues.
pub(crate) fn count(ours: &Ours) -> Result<Vec<Cost>> {
    let rows = || ROWS.into_iter().map(|(name, batch, limit)| (format!("{name} x{batch}"), limit));
    let names: Vec<_> = rows().flat_map(|(row, _)| FACES.map(|face| format!("{face} {row}"))).collect();
    let counts = measure::count(&names, "any", |tool| ours.program(tool, "any"))?;
    let of = |face: &str, row: &str| counts.get(&format!("{face} {row}")).copied().context("a count");
    rows()
        .map(|(name, limit)| Ok(Cost { one: of(FACES[0], &name)?, any: of(FACES[1], &name)?, name, limit }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::limited::passes;

    #[test]
    fn the_limit_is_a_difference() {
        let cost = |any| Cost { name: "x".into(), one: 100.0, any, limit: 10.0 };
        assert!(passes(&[cost(110.0), cost(90.0)]));
        assert!(!passes(&[cost(110.1)]));
    }
}
