// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of queues that own their buffers, over the typed face (`uverbs::raw`), which is `unsafe`.

use super::limited::Limited;
use super::measure;
use super::programs::Ours;
use super::rows::{Face, Locking};
use anyhow::{Context, Result};

/// Instructions of a work request that an owned one may cost more.
const LIMIT: f64 = 25.0;

/// The measurements that both have, with the same name, the size of the batch, and the limit of the difference.
///
/// A post moves the buffer to a slot of the queue's slab: it checks the slot and the domain by one compare, writes the
/// slot's three words and counts, about 18 instructions. In batches the registers are too few for both the slab and the send queue,
/// so both read more of their state from memory.
///
/// A poll finds the slab, claims the slot by a compare-and-swap, moves the words out, frees the slot, and checks for unsignaled
/// work requests before it, about 25 instructions. It hands out the buffer, which the closure keeps, about 10; and the typed
/// face's closure, which only adds `wr_id` and status, keeps more of the queue in registers. So the table also has the typed
/// face with a closure that finds the buffer of the `wr_id` in a table of the program and keeps it, without any check that the
/// buffer is there: this part of the cost is that of any program.
const ROWS: [(&str, u32, f64); 10] = [
    ("post_send rc write", 1, LIMIT),
    ("post_send rc write", 32, LIMIT),
    ("post_send rc send", 1, LIMIT),
    ("post_send rc send", 32, LIMIT),
    ("post_recv", 1, LIMIT),
    ("post_recv", 32, LIMIT),
    ("poll requester", 1, 38.0),
    ("poll requester", 32, 37.0),
    ("poll responder", 1, 54.0),
    ("poll responder", 32, 51.0),
];

/// A measurement of both.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    name: String,
    typed: f64,
    /// The typed face, if its program keeps the buffers. Only polls have it.
    kept: Option<f64>,
    owned: f64,
    limit: f64,
}

impl Cost {
    fn more(&self) -> f64 {
        self.owned - self.typed
    }
}

impl Limited for Cost {
    const WHAT: &'static str = "owned buffers";
    const TITLES: &'static [&'static str] =
        &["owned buffers, exclusive queues", "typed", "and keeps buffers", "owned", "more than typed"];
    const WORDS: usize = 1;

    fn cells(&self) -> Vec<String> {
        let kept = self.kept.map(|kept| format!("{kept:.1}")).unwrap_or_default();
        let [typed, owned, more] = [self.typed, self.owned, self.more()].map(|count| format!("{count:.1}"));
        vec![self.name.clone(), typed, kept, owned, more]
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
    let faces = [Face::Typed.name(), "owned"];
    let kept = |row: &str| row.starts_with("poll").then(|| row.replace(" x", ", kept x"));
    let names = rows().flat_map(|(row, _)| {
        let kept = kept(&row).map(|row| format!("{} {row}", faces[0]));
        faces.map(|face| format!("{face} {row}")).into_iter().chain(kept)
    });
    let names: Vec<_> = names.collect();
    let counts = measure::count(&names, "owned", |tool| ours.command(tool, Locking::Exclusive))?;
    let of = |face: &str, row: &str| counts.get(&format!("{face} {row}")).copied().context("a count");
    rows()
        .map(|(name, limit)| {
            let kept = kept(&name).map(|row| of(faces[0], &row)).transpose()?;
            Ok(Cost { typed: of(faces[0], &name)?, kept, owned: of(faces[1], &name)?, name, limit })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::limited::{passes, table};

    #[test]
    fn the_limit_is_a_difference() {
        let cost = |owned| Cost { name: "x".into(), typed: 100.0, kept: None, owned, limit: LIMIT };
        assert!(passes(&[cost(125.0), cost(90.0)]));
        assert!(!passes(&[cost(125.1)]));
        assert!(table(&[cost(125.1)]).to_string().contains("over"));
    }
}
