// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callgrind's files: the sum, and the instructions of each function itself.

use anyhow::{Context, Result};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// The instructions of a run.
pub(crate) struct Profile {
    pub(crate) sum: u64,
    functions: HashMap<String, u64>,
}

impl Profile {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("no {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a file of callgrind", path.display()))
    }

    /// The format is that of callgrind_annotate(1): the first use of a function's number has its name, and the line after
    /// `calls=` has the cost of the callee.
    fn parse(text: &str) -> Option<Self> {
        let mut names = HashMap::new();
        let mut costs: HashMap<&str, u64> = HashMap::new();
        let (mut function, mut is_call, mut sum) = ("", false, None);
        for line in text.lines() {
            if let Some(total) = line.strip_prefix("totals:") {
                sum = total.trim().parse().ok();
            } else if let Some(name) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
                let (number, name) = name.split_once(' ').unwrap_or((name, ""));
                if !name.is_empty() {
                    names.insert(number, name);
                }
                if line.starts_with("fn=") {
                    function = number;
                }
            } else if line.starts_with("calls=") {
                is_call = true;
            } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
                if !core::mem::take(&mut is_call) {
                    *costs.entry(function).or_default() += cost?;
                }
            }
        }
        let functions = costs
            .into_iter()
            .map(|(number, cost)| (names.get(number).copied().unwrap_or(number).to_owned(), cost));
        Some(Self { sum: sum?, functions: functions.collect() })
    }

    /// The functions with the most instructions since `before`, per message.
    pub(crate) fn most(&self, before: &Self, messages: f64) -> Vec<(f64, &str)> {
        let since = |name: &String, cost: u64| {
            cost as f64 - before.functions.get(name).copied().unwrap_or_default() as f64
        };
        let functions = self.functions.iter();
        let mut all: Vec<_> =
            functions.map(|(name, cost)| (since(name, *cost) / messages, name.as_str())).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.truncate(40);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "events: Ir\nfn=(1) main\n12 30\ncfn=(2) work\ncalls=1 40\n13 500\n+1 4\nfn=(2)\n40 500\ntotals: 534\n";

    #[test]
    fn calls_are_not_counted_twice() {
        let profile = Profile::parse(TEXT).unwrap();
        let none = Profile { sum: 0, functions: HashMap::new() };
        assert_eq!(profile.sum, 534);
        assert_eq!(profile.most(&none, 1.0), [(500.0, "work"), (34.0, "main")]);
        assert!(Profile::parse("no file of callgrind").is_none());
    }
}
