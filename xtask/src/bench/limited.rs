// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements with limits of their own, which do not follow from the counts of C: their table, and whether they are within the limits.

use comfy_table::{CellAlignment, Table, presets};

/// A measurement and its limit.
pub(crate) trait Limited {
    /// What was measured, in measurements of what.
    const WHAT: &'static str;
    /// The titles of the words and figures.
    const TITLES: &'static [&'static str];
    /// How many of them are words, which are aligned to the left.
    const WORDS: usize;

    /// The words and figures.
    fn cells(&self) -> Vec<String>;

    /// The limit.
    fn limit(&self) -> f64;

    /// Whether it is above its limit.
    fn is_over(&self) -> bool;
}

/// The table.
pub(crate) fn table<C: Limited>(costs: &[C]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(C::TITLES.iter().copied().chain(["limit", "verdict"]));
    for column in C::WORDS..=C::TITLES.len() {
        table.column_mut(column).expect("a column of the header").set_cell_alignment(CellAlignment::Right);
    }
    for cost in costs {
        let verdict = if cost.is_over() { "over" } else { "ok" };
        table.add_row(cost.cells().into_iter().chain([cost.limit().to_string(), verdict.to_owned()]));
    }
    table
}

/// Prints the table, and returns whether all are within their limits.
pub(crate) fn passes<C: Limited>(costs: &[C]) -> bool {
    eprintln!("{}", table(costs));
    let over = costs.iter().filter(|cost| cost.is_over()).count();
    eprintln!("bench: {} measurements of {} have a limit; {over} fail", costs.len(), C::WHAT);
    over == 0
}
