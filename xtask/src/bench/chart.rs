// SPDX-License-Identifier: MIT OR Apache-2.0
//! The chart. Each row of exclusive queues has bars for libmlx5, for each face of this library, and for the floor.

use super::measure::Results;
use super::rows::{Face, Line, Locking};
use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The faces from the top of a row to its bottom, with their names and colours.
const BARS: [(Face, &str, RGBColor); 5] = [
    (Face::C, "libmlx5", RGBColor(150, 150, 150)),
    (Face::Abi, "our libibverbs.so.1", RGBColor(245, 200, 130)),
    (Face::Raw, "ours, C-shaped calls in Rust", RGBColor(240, 160, 60)),
    (Face::Typed, "ours, typed calls", RGBColor(200, 70, 40)),
    (Face::Floor, "floor: bare stores, loads and fences", RGBColor(60, 60, 60)),
];

const ROW_HEIGHT: u32 = 30;
const LABELS: u32 = 270;
const PANEL: u32 = 440;
const HEAD: u32 = 70;
const FOOT: u32 = 30;

/// Draws the instructions of single posts and polls, and of those in batches of 32, side by side.
pub(crate) fn draw(path: &Path, lines: &[Line], results: &Results, version: &str) -> Result<()> {
    // The table has too many rows for a chart; those with a floor are the usual ones.
    let charted = |line: &&Line| line.locking == Locking::Exclusive && line.row.floor.is_some();
    let lines: Vec<_> = lines.iter().filter(charted).collect();
    let mut titles: Vec<_> = lines.iter().map(|line| line.row.title).collect();
    titles.dedup();
    let size = (LABELS + 2 * PANEL, HEAD + ROW_HEIGHT * titles.len() as u32 + FOOT);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE).map_err(|e| anyhow!("cannot draw: {e}"))?;
    head(&root, version)?;
    for (i, title) in titles.iter().enumerate() {
        let y = HEAD + ROW_HEIGHT * i as u32 + ROW_HEIGHT / 2 - 7;
        text(&root, title, (10, y as i32), 14)?;
    }
    for (panel, batch) in [(0, 1), (1, 32)] {
        let left = (LABELS + panel * PANEL) as i32;
        text(&root, &format!("instructions, batches of {batch}"), (left, HEAD as i32 - 22), 14)?;
        let area = root.clone().shrink((left, HEAD as i32), (PANEL - 10, size.1 - HEAD));
        let of_batch = |title| lines.iter().find(|line| line.row.title == title && line.batch == batch);
        let rows: Vec<Bars> = titles
            .iter()
            .map(|&title| match of_batch(title) {
                Some(line) => BARS.map(|(face, _, _)| results.instructions(line, face)),
                None => [None; BARS.len()],
            })
            .collect();
        bars(&area, &rows)?;
    }
    root.present().map_err(|e| anyhow!("{e}")).with_context(|| format!("cannot write {}", path.display()))
}

/// The values of a row's bars.
type Bars = [Option<f64>; BARS.len()];

/// The legend.
fn head(root: &Area<'_>, version: &str) -> Result<()> {
    text(root, &format!("mlx5 data path, exclusive queues; libmlx5 of rdma-core {version}"), (10, 8), 16)?;
    let mut x = 10;
    for (_, name, color) in BARS {
        let mark = Rectangle::new([(x, 32), (x + 12, 42)], color.filled());
        root.draw(&mark).map_err(|e| anyhow!("cannot draw: {e}"))?;
        text(root, name, (x + 18, 30), 14)?;
        x += 40 + 7 * name.len() as i32;
    }
    Ok(())
}

fn text(root: &Area<'_>, text: &str, at: (i32, i32), size: u32) -> Result<()> {
    root.draw(&Text::new(text, at, ("sans-serif", size))).map_err(|e| anyhow!("cannot draw: {e}"))
}

/// One panel: the scale below, and the bars of each row with a little room around them.
fn bars(area: &Area<'_>, rows: &[Bars]) -> Result<()> {
    let max = rows.iter().flatten().flatten().fold(0.0, |max: f64, value| max.max(*value));
    let failed = |e: &dyn core::fmt::Display| anyhow!("cannot draw: {e}");
    let mut chart = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Bottom, FOOT)
        .build_cartesian_2d(0.0..max * 1.05, rows.len() as f64..0.0)
        .map_err(|e| failed(&e))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .x_labels(6)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()
        .map_err(|e| failed(&e))?;
    let step = 0.8 / BARS.len() as f64;
    for (i, row) in rows.iter().enumerate() {
        for (k, (value, (_, _, color))) in row.iter().zip(BARS).enumerate() {
            let Some(value) = value else { continue };
            let top = i as f64 + 0.1 + step * k as f64;
            let bar = Rectangle::new([(0.0, top), (*value, top + step)], color.filled());
            chart.draw_series([bar]).map_err(|e| failed(&e))?;
        }
    }
    Ok(())
}
