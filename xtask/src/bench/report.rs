// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of the benchmark: the table, and all results as JSON.

use super::doorbell::{self, Doorbell};
use super::judge::{Judge, Verdict};
use super::measure::{Median, Results};
use super::rows::{Device, Face, Line, Locking, Set};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};
use std::collections::HashMap;

/// The table of the lines of one locking.
pub(crate) fn table(lines: &[Line], locking: Locking, results: &Results, judge: &Judge) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let title = format!("{locking} queues");
    let header = [
        &*title, "C", "ns", "C ABI", "of C", "limit", "ns of C", "typed", "of C", "limit", "ns of C", "raw",
        "of C", "limit", "ns of C", "floor", "ns of C", "verdict",
    ];
    table.set_header(header);
    for column in 1..header.len() - 1 {
        table.column_mut(column).expect("a column of the header").set_cell_alignment(CellAlignment::Right);
    }
    for line in lines.iter().filter(|line| line.locking == locking) {
        let c = results.instructions(line, Face::C);
        let mut cells =
            vec![line.title(), shown(c, 0), shown(results.ns(line, Face::C).map(|ns| ns.value), 1)];
        for face in Face::OURS {
            let count = results.instructions(line, face);
            let limit = count.and(c).and_then(|c| judge.limit(line, face, c));
            cells.push(shown(count, 1));
            cells.push(shown(count.zip(c).map(|(count, c)| count / c), 2));
            cells.push(shown(limit, 0));
            cells.push(spread(results.ratio(line, face)));
        }
        cells.push(shown(results.instructions(line, Face::Floor), 0));
        cells.push(spread(results.ratio(line, Face::Floor)));
        cells.push(verdict(line, results, judge));
        table.add_row(cells);
    }
    table
}

/// The table of doorbells of one program.
pub(crate) fn doorbells(lines: &[Line], set: Set, found: &HashMap<String, Doorbell>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let title = format!("{set} queues");
    table.set_header([&*title, "C", "C ABI", "typed", "raw"]);
    for line in lines.iter().filter(|line| line.set() == set && doorbell::rings(line)) {
        let cell = |face| {
            let doorbell = found.get(&line.key(face)?.name)?;
            let Doorbell { fences, locked, lines, register_bytes, combined_bytes, count } = doorbell;
            let more = match set.device {
                Device::Mlx5 => String::new(),
                Device::Efa => {
                    format!(" / {combined_bytes:.0}, {:.1}", count * f64::from(line.batch) / doorbell::CHUNK)
                }
            };
            Some(format!("{fences:.1} / {locked:.1} / {lines:.1} / {register_bytes:.0}{more}"))
        };
        let cells = [Face::C, Face::Abi, Face::Typed, Face::Raw].map(|face| cell(face).unwrap_or_default());
        table.add_row([line.title()].into_iter().chain(cells));
    }
    table
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map(|value| format!("{value:.digits$}")).unwrap_or_default()
}

fn spread(median: Option<Median>) -> String {
    median.map(|m| format!("{:.2} ±{:.2}", m.value, m.spread)).unwrap_or_default()
}

/// The verdict on a line: the faces that are above their limit.
fn verdict(line: &Line, results: &Results, judge: &Judge) -> String {
    let within = |face| {
        if let Some(share) = line.row.limits.of_c_ns(face) {
            return Some(results.ratio(line, face)?.value <= share);
        }
        let (count, c) = (results.instructions(line, face)?, results.instructions(line, Face::C)?);
        Some(count <= judge.limit(line, face, c)?)
    };
    let judged = Face::OURS.map(|face| (face, within(face)));
    let over: Vec<_> =
        judged.iter().filter(|(_, ok)| *ok == Some(false)).map(|(face, _)| face.name()).collect();
    match &over[..] {
        [] if judged.iter().all(|(_, ok)| ok.is_none()) => String::new(),
        [] => "ok".to_owned(),
        over => format!("{} over", over.join(", ")),
    }
}

/// All results.
pub(crate) fn json(lines: &[Line], results: &Results, judge: &Judge, version: &str) -> Value {
    let of = |line: &Line, face: Face| {
        let limit = results.instructions(line, Face::C).and_then(|c| judge.limit(line, face, c));
        json!({
            "instructions": results.instructions(line, face),
            "limit": limit,
            "ns": results.rounds(line, face),
        })
    };
    let line = |line: &Line| {
        json!({
            "row": line.row.title,
            "batch": line.batch,
            "locking": line.locking.to_string(),
            "c": of(line, Face::C),
            "abi": of(line, Face::Abi),
            "typed": of(line, Face::Typed),
            "raw": of(line, Face::Raw),
            "floor": of(line, Face::Floor),
        })
    };
    json!({ "rdma_core": version, "lines": lines.iter().map(line).collect::<Vec<_>>() })
}

/// The message of `--check` about a measurement that fails, or that needs a note.
pub(crate) fn sentence(line: &Line, face: Face, count: f64, limit: f64, judge: &Judge) -> Option<String> {
    let what = format!("{} queues, {}, {}: {count:.1} instructions", line.locking, line.title(), face.name());
    match judge.verdict(line, face, count, limit) {
        Verdict::Ok | Verdict::KnownOver => None,
        Verdict::Mended => Some(format!(
            "{what}: within the limit of {limit:.1}; remove the line from bench-over.tsv (cargo xtask bench --record does this)"
        )),
        Verdict::Over => Some(match judge.known(line, face) {
            Some(known) => format!("{what}, {known:.1} are recorded, the limit is {limit:.1}"),
            None => format!("{what}, the limit is {limit:.1}"),
        }),
    }
}
