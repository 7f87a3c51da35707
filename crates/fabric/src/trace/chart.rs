// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sequence chart of steps, as SVG.

use super::{Hop, Step, StepKind};
use core::fmt::Write as _;
use std::collections::{HashMap, VecDeque};

/// The steps that are drawn; the others are counted.
const MAX_STEPS: usize = 500;
/// The life lines that are drawn.
const MAX_LINES: usize = 12;

/// Pixels: of a row, between two life lines, of the column of times, of notes beside the outer life lines, of the head.
const ROW: usize = 26;
const BETWEEN: usize = 380;
const TIMES: usize = 112;
const NOTES: usize = 420;
const HEAD: usize = 64;
/// The characters of a note, and of the text at an arrow.
const MAX_NOTE: usize = 62;
const MAX_LABEL: usize = 54;
/// A pause of at least this, ns, and of at least a tenth of all, is drawn as one.
const PAUSE: u64 = 1_000_000;

/// A QP of a port.
type Line = (u16, u32);

/// Where a packet goes: in which rows it is sent and arrives.
struct Arrow {
    from: Line,
    to: Line,
    sent: usize,
    /// `None` if it was lost, or its arrival is not among the steps.
    arrives: Option<usize>,
    is_lost: bool,
    words: String,
}

/// Draws the steps as a sequence chart, in SVG: a life line for each QP, arrows for packets, lost ones end with a cross, notes for the
/// rest. A row is a step; times are at the left, and long pauses are marked.
#[must_use]
pub fn chart(title: &str, steps: &[Step]) -> String {
    let shown = &steps[..steps.len().min(MAX_STEPS)];
    let lines = life_lines(shown);
    let begin = shown.first().map_or(0, |step| step.at);
    let whole = shown.last().map_or(0, |step| step.at - begin.min(step.at));
    // The row of each step: a pause takes one, too.
    let mut rows = Vec::with_capacity(shown.len());
    let mut pauses = Vec::new();
    let mut next = 0;
    for (i, step) in shown.iter().enumerate() {
        let before = if i == 0 { step.at } else { shown[i - 1].at };
        let passed = step.at.saturating_sub(before);
        if passed >= PAUSE && passed >= whole / 10 {
            pauses.push((next, passed));
            next += 1;
        }
        rows.push(next);
        next += 1;
    }
    let mut svg = Svg::new(title, lines.len(), next, &lines);
    for (row, passed) in pauses {
        svg.pause(row, passed);
    }
    for arrow in arrows(shown, &rows) {
        svg.arrow(&lines, &arrow);
    }
    let mut last = None;
    for (step, row) in shown.iter().zip(&rows) {
        if last != Some(step.at) {
            svg.time(*row, step.at - begin);
        }
        last = Some(step.at);
        if step.hop.is_none() {
            svg.note(&lines, (step.port, step.qpn), *row, step);
        }
    }
    svg.finish(next, steps.len() - shown.len())
}

/// The QPs, in the order of ports and numbers. Steps of a device are at its first QP.
fn life_lines(steps: &[Step]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let add = |lines: &mut Vec<Line>, line: Line| {
        if line.1 != 0 && !lines.contains(&line) && lines.len() < MAX_LINES {
            lines.push(line);
        }
    };
    for step in steps {
        add(&mut lines, (step.port, step.qpn));
        if let Some(hop) = step.hop {
            add(&mut lines, (hop.peer, hop.peer_qpn));
        }
    }
    lines.sort_unstable();
    lines
}

/// Joins the two steps of each packet: by its number, or between processes by its ends and words.
fn arrows(steps: &[Step], rows: &[usize]) -> Vec<Arrow> {
    let mut arrows: Vec<Arrow> = Vec::new();
    let mut by_id: HashMap<u64, usize> = HashMap::new();
    let mut by_words: HashMap<(Line, Line, &str), VecDeque<usize>> = HashMap::new();
    for (step, row) in steps.iter().zip(rows) {
        let Some(Hop { id, peer, peer_qpn }) = step.hop else { continue };
        let (here, there) = ((step.port, step.qpn), (peer, peer_qpn));
        if step.kind != StepKind::Received {
            let is_lost = step.kind == StepKind::Lost;
            if !is_lost {
                by_id.insert(id, arrows.len());
                by_words.entry((here, there, &step.words)).or_default().push_back(arrows.len());
            }
            let words = step.words.clone();
            arrows.push(Arrow { from: here, to: there, sent: *row, arrives: None, is_lost, words });
            continue;
        }
        let known =
            by_id.get(&id).copied().filter(|i| arrows[*i].from == there && arrows[*i].arrives.is_none());
        let found = known.or_else(|| {
            let waiting = by_words.get_mut(&(there, here, step.words.as_str()))?;
            while let Some(i) = waiting.pop_front() {
                if arrows[i].arrives.is_none() {
                    return Some(i);
                }
            }
            None
        });
        match found {
            Some(i) => arrows[i].arrives = Some(*row),
            // It was sent by a process that has no trace, or before the first step.
            None => arrows.push(Arrow {
                from: there,
                to: here,
                sent: *row,
                arrives: Some(*row),
                is_lost: false,
                words: step.words.clone(),
            }),
        }
    }
    arrows
}

/// The text of an SVG.
struct Svg {
    body: String,
    width: usize,
    title: String,
}

/// Characters that have a meaning in XML, and those that it does not allow.
fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
        out
    })
}

/// At most so many characters.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => escape(&format!("{}...", &text[..at])),
        None => escape(text),
    }
}

/// A time in words.
fn duration(ns: u64) -> String {
    match ns {
        0 => "0".into(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{}.{:03} us", ns / 1_000, ns % 1_000),
        1_000_000..1_000_000_000 => format!("{}.{:03} ms", ns / 1_000_000, ns / 1_000 % 1_000),
        _ => format!("{}.{:03} s", ns / 1_000_000_000, ns / 1_000_000 % 1_000),
    }
}

/// Writes a formatted piece. Writing to a String does not fail.
macro_rules! put {
    ($svg:expr, $($what:tt)*) => {{
        let _ = writeln!($svg.body, $($what)*);
    }};
}

/// The middle of a row.
const fn middle(row: usize) -> usize {
    HEAD + row * ROW + ROW / 2
}

/// The place of a life line.
fn place(lines: &[Line], line: Line) -> usize {
    let of_port = || lines.iter().position(|(port, _)| *port == line.0);
    let index = lines.iter().position(|known| *known == line).or_else(of_port).unwrap_or(0);
    TIMES + NOTES + index * BETWEEN
}

impl Svg {
    fn new(title: &str, count: usize, rows: usize, lines: &[Line]) -> Self {
        let width = TIMES + 2 * NOTES + count.saturating_sub(1) * BETWEEN;
        let mut svg = Self { body: String::new(), width, title: escape(title) };
        for line in lines {
            let (x, bottom) = (place(lines, *line), HEAD + rows * ROW + ROW / 2);
            put!(svg, r#"<line class="life" x1="{x}" y1="{HEAD}" x2="{x}" y2="{bottom}"/>"#);
            put!(
                svg,
                r#"<rect class="head" x="{}" y="{}" width="170" height="24" rx="4"/>"#,
                x - 85,
                HEAD - 28
            );
            put!(
                svg,
                r#"<text class="name" x="{x}" y="{}" text-anchor="middle">port {}, QP {:#08x}</text>"#,
                HEAD - 11,
                line.0,
                line.1
            );
        }
        svg
    }

    fn time(&mut self, row: usize, at: u64) {
        let (x, y) = (TIMES - 14, middle(row) + 4);
        put!(self, r#"<text class="time" x="{x}" y="{y}" text-anchor="end">{}</text>"#, duration(at));
    }

    fn pause(&mut self, row: usize, passed: u64) {
        let (y, width) = (middle(row), self.width);
        put!(
            self,
            r#"<rect class="pause" x="0" y="{}" width="{width}" height="{}"/>"#,
            y - ROW / 2 + 2,
            ROW - 4
        );
        put!(
            self,
            r#"<text class="passed" x="{}" y="{}" text-anchor="middle">{} pass</text>"#,
            width / 2,
            y + 4,
            duration(passed)
        );
    }

    fn note(&mut self, lines: &[Line], line: Line, row: usize, step: &Step) {
        let (x, y) = (place(lines, line), middle(row));
        let kind = step.kind.name();
        let is_error = step.kind == StepKind::Completion && step.words.contains(" failed");
        let class = if is_error { "error" } else { kind };
        put!(self, r#"<circle class="{class}" cx="{x}" cy="{y}" r="4"/>"#);
        // Notes of the first life line are at its left, where no arrows are.
        let is_first = lines.len() > 1 && place(lines, line) == TIMES + NOTES;
        let (at, anchor) = if is_first { (x - 10, "end") } else { (x + 10, "start") };
        let words = cut(&format!("{kind}: {}", step.words), MAX_NOTE);
        put!(self, r#"<text class="{class}" x="{at}" y="{}" text-anchor="{anchor}">{words}</text>"#, y + 4);
    }

    fn arrow(&mut self, lines: &[Line], arrow: &Arrow) {
        let (from, to) = (place(lines, arrow.from), place(lines, arrow.to));
        let (y, words) = (middle(arrow.sent), cut(&arrow.words, MAX_LABEL));
        // A QP that sends to itself.
        if from == to {
            let bottom = middle(arrow.arrives.unwrap_or(arrow.sent));
            let right = from + 40;
            put!(self, r#"<path class="packet" d="M{from} {y} H{right} V{bottom} H{}"/>"#, from + 8);
            put!(self, r#"<text class="label" x="{}" y="{}">{words}</text>"#, right + 6, y + 4);
            if arrow.is_lost {
                self.cross(right, y);
            } else {
                self.head(from, bottom, false);
            }
            return;
        }
        let goes_right = to > from;
        let (end, bottom) = match arrow.arrives {
            Some(row) => (to, middle(row)),
            // Halfway.
            None => (from.midpoint(to), y + ROW / 3),
        };
        put!(self, r#"<line class="packet" x1="{from}" y1="{y}" x2="{end}" y2="{bottom}"/>"#);
        let (label, anchor) = if goes_right { (from + 12, "start") } else { (from - 12, "end") };
        put!(self, r#"<text class="label" x="{label}" y="{}" text-anchor="{anchor}">{words}</text>"#, y - 4);
        if arrow.is_lost {
            self.cross(end, bottom);
        } else {
            self.head(end, bottom, goes_right);
        }
    }

    fn head(&mut self, x: usize, y: usize, goes_right: bool) {
        let back = if goes_right { x - 9 } else { x + 9 };
        put!(self, r#"<polygon class="tip" points="{x},{y} {back},{} {back},{}"/>"#, y - 4, y + 4);
    }

    fn cross(&mut self, x: usize, y: usize) {
        let (left, right, top, bottom) = (x - 6, x + 6, y - 6, y + 6);
        put!(
            self,
            r#"<path class="cross" d="M{left} {top} L{right} {bottom} M{left} {bottom} L{right} {top}"/>"#
        );
    }

    fn finish(self, rows: usize, more: usize) -> String {
        let Self { body, width, title } = self;
        let height = HEAD + (rows + 2) * ROW;
        let rest = match more {
            0 => String::new(),
            more => {
                format!("<text class=\"time\" x=\"14\" y=\"{}\">and {more} more steps</text>\n", height - 12)
            }
        };
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
  font-family="sans-serif" font-size="12">
<style>
text {{ fill: #222; }} .title {{ font-size: 15px; font-weight: bold; }} .name {{ font-weight: bold; }}
.time {{ fill: #777; }} .passed {{ fill: #8a5a00; font-weight: bold; }} .label {{ fill: #1a5276; font-size: 11px; }}
.life {{ stroke: #999; }} .head {{ fill: #e8eef4; stroke: #7b93a8; }} .pause {{ fill: #fdf2d8; }}
.packet {{ stroke: #1a5276; fill: none; }} .tip {{ fill: #1a5276; }} .cross {{ stroke: #c0392b; stroke-width: 2.5; }}
circle {{ fill: #777; }} circle.wqe, circle.receive {{ fill: #2471a3; }} circle.cqe {{ fill: #1e8449; }} .timer {{ fill: #8a5a00; }}
.error {{ fill: #c0392b; font-weight: bold; }}
</style>
<rect width="{width}" height="{height}" fill="#fff"/>
<text class="title" x="14" y="22">{title}</text>
{body}{rest}</svg>
"##
        )
    }
}
