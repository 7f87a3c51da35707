// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bench`: what a post and a poll cost on mlx5, ours and libmlx5's side by side.

mod measure;
mod programs;
mod rows;

use anyhow::{Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use measure::Values;
use programs::{C, Ours};
use rows::{Face, Limits, Locking, ROWS, Row};
use std::process::ExitCode;

/// Count instructions and nanoseconds of posts and polls on mlx5, next to libmlx5's
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only rows whose "TITLE xBATCH" contains this, in capital letters or not
    #[arg(long, default_value = "")]
    filter: String,
    /// Leave the nanoseconds out
    #[arg(long)]
    no_ns: bool,
    /// Rounds of processes that take turns; nanoseconds are the median over them
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

/// A row with a batch and a locking.
#[derive(Clone, Copy, Debug)]
struct Line {
    row: &'static Row,
    batch: u32,
    locking: Locking,
}

impl Line {
    fn selected(filter: &str) -> Vec<Self> {
        let filter = filter.to_lowercase();
        let mut lines = Vec::new();
        for locking in Locking::ALL {
            for row in ROWS.iter().filter(|row| row.has(locking)) {
                for &batch in row.batches {
                    if format!("{} x{batch}", row.title).to_lowercase().contains(&filter) {
                        lines.push(Self { row, batch, locking });
                    }
                }
            }
        }
        lines
    }

    fn value(&self, values: &Values, face: Face) -> Option<f64> {
        values.get(&self.row.name(face, self.batch)?).copied()
    }
}

/// What a program is asked to measure for these lines.
fn names(lines: &[Line], locking: Locking, faces: &[Face]) -> Vec<String> {
    let mut names: Vec<_> = lines
        .iter()
        .filter(|line| line.locking == locking)
        .flat_map(|line| faces.iter().filter_map(|&face| line.row.name(face, line.batch)))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// What was measured with one locking.
#[derive(Debug, Default)]
struct Measured {
    counts: Values,
    ns: Vec<Values>,
}

/// Runs the chore.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let lines = Line::selected(&args.filter);
    ensure!(!lines.is_empty(), "no row has {:?} in its title", args.filter);
    let (ours, c) = (Ours::build()?, C::build()?);
    for locking in Locking::ALL {
        let names_of_ours = names(&lines, locking, OURS);
        let names_of_c = names(&lines, locking, &[Face::C]);
        if names_of_ours.is_empty() {
            continue;
        }
        let mut measured = Measured::default();
        measured.counts.extend(measure::count(&names_of_ours, |tool| ours.command(tool, locking))?);
        measured.counts.extend(measure::count(&names_of_c, |tool| c.command(tool, locking))?);
        for _ in 0..if args.no_ns { 0 } else { args.rounds } {
            let mut round = measure::time(&names_of_c, c.command(&[], locking))?;
            round.extend(measure::time(&names_of_ours, ours.command(&[], locking))?);
            measured.ns.push(round);
        }
        show(&lines, locking, &measured);
    }
    println!(
        "C is libmlx5 of rdma-core {}; instructions, and ns as the ratio of medians, per operation",
        c.version
    );
    Ok(ExitCode::SUCCESS)
}

/// The faces that our programs measure.
const OURS: &[Face] = &[Face::Typed, Face::Raw, Face::Floor];

/// The median over the rounds.
fn median(rounds: &[Values], name: &str) -> Option<f64> {
    let mut values: Vec<f64> = rounds.iter().filter_map(|round| round.get(name).copied()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn show(lines: &[Line], locking: Locking, measured: &Measured) {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let header = [
        &*format!("row, {locking}"),
        "C",
        "ns",
        "typed",
        "of C",
        "limit",
        "ns/C",
        "raw",
        "of C",
        "limit",
        "ns/C",
        "floor",
        "",
    ];
    table.set_header(header);
    for i in 1..header.len() - 1 {
        table.column_mut(i).expect("a column").set_cell_alignment(CellAlignment::Right);
    }
    for line in lines.iter().filter(|line| line.locking == locking) {
        let count = |face| line.value(&measured.counts, face);
        let ns = |face| line.row.name(face, line.batch).and_then(|name| median(&measured.ns, &name));
        let shown =
            |value: Option<f64>, digits: usize| value.map(|v| format!("{v:.digits$}")).unwrap_or_default();
        let c = count(Face::C);
        let mut cells =
            vec![format!("{} x{}", line.row.title, line.batch), shown(c, 0), shown(ns(Face::C), 1)];
        let mut verdict = if line.row.limits == Limits::None { "" } else { "ok" };
        for face in [Face::Typed, Face::Raw] {
            let value = count(face);
            let limit = line.row.limits.of_c(face).zip(c).map(|(share, c)| share * c);
            if value.zip(limit).is_some_and(|(v, l)| v > l) {
                verdict = "OVER";
            }
            cells.push(shown(value, 1));
            cells.push(shown(value.zip(c).map(|(v, c)| v / c), 2));
            cells.push(shown(value.and(limit), 0));
            cells.push(shown(ns(face).zip(ns(Face::C)).map(|(v, c)| v / c), 2));
        }
        cells.extend([shown(count(Face::Floor), 0), verdict.to_owned()]);
        table.add_row(cells);
    }
    println!("{table}\n");
}
