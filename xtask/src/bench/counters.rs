// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of what can be observed, on queues that own their buffers: the features `counters` and `tracing` of the crate `uverbs`.

use super::limited::Limited;
use super::measure;
use super::programs::Ours;
use super::rows::Locking;
use anyhow::{Context, Result};

/// The features, and what each may cost a post and a completion. Each post counts itself, and each batch its work requests; a poll counts
/// each completion. The test whether one has an error is that of the programs, which look at the status, too.
const FEATURES: [(&str, f64, f64); 2] = [("counters", 2.0, 2.0), ("tracing", 0.0, 0.0)];

/// The measurements.
const ROWS: [(&str, u32); 10] = [
    ("post_send rc write", 1),
    ("post_send rc write", 32),
    ("post_send rc send", 1),
    ("post_send rc send", 32),
    ("post_recv", 1),
    ("post_recv", 32),
    ("poll requester", 1),
    ("poll requester", 32),
    ("poll responder", 1),
    ("poll responder", 32),
];

/// A measurement without and with a feature.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    feature: &'static str,
    name: String,
    off: f64,
    on: f64,
    limit: f64,
}

impl Cost {
    fn more(&self) -> f64 {
        self.on - self.off
    }
}

impl Limited for Cost {
    const WHAT: &'static str = "counters and tracing";
    const TITLES: &'static [&'static str] =
        &["owned buffers, exclusive queues", "feature", "off", "on", "more"];
    const WORDS: usize = 2;

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.feature.to_owned(),
            format!("{:.1}", self.off),
            format!("{:.1}", self.on),
            format!("{:.1}", self.more()),
        ]
    }

    fn limit(&self) -> f64 {
        self.limit
    }

    fn is_over(&self) -> bool {
        // A row is a mean over some hundreds of operations, whose loop may have another instruction.
        self.more() > self.limit + 0.1
    }
}

/// Counts the instructions of all, with exclusive queues.
pub(crate) fn count(ours: &Ours) -> Result<Vec<Cost>> {
    let names: Vec<_> = ROWS.iter().map(|(name, batch)| format!("owned {name} x{batch}")).collect();
    let count = |ours: &Ours, folder: &str| {
        measure::count(&names, folder, |tool| ours.command(tool, Locking::Exclusive))
    };
    let off = count(ours, "observe-off")?;
    let mut costs = Vec::new();
    for (feature, post, poll) in FEATURES {
        let on = count(&Ours::build_with(feature)?, &format!("observe-{feature}"))?;
        for name in &names {
            let of = |counts: &std::collections::HashMap<String, f64>| {
                counts.get(name).copied().context("a count")
            };
            let limit = if name.contains(" poll ") { poll } else { post };
            let name = name.trim_start_matches("owned ").to_owned();
            costs.push(Cost { feature, off: of(&off)?, on: of(&on)?, limit, name });
        }
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::limited::{passes, table};

    #[test]
    fn the_limit_is_a_difference() {
        let cost = |on| Cost { feature: "counters", name: "x".into(), off: 100.0, on, limit: 2.0 };
        assert!(passes(&[cost(102.0), cost(90.0)]));
        assert!(!passes(&[cost(102.2)]));
        assert!(table(&[cost(102.2)]).to_string().contains("over"));
    }
}
