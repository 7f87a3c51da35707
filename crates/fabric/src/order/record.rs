// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps that were executed, in words.

use super::step::{Label, Lane, Side, Way};
use super::{Effect, Fetch, Part, Placed};
use crate::trace::{Access, StepKind};
use core::fmt;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

/// The number of steps that are kept, the last ones.
const KEPT: usize = 4096;
/// The bytes of a file with all steps. Further ones are not written.
const MAX_FILE: usize = 64 << 20;

/// A step that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Fetched { device: Name, queue: u32, bytes: Bytes, label: Label },
    Arrived { from: Name, to: Name, queue: u32, label: Label },
    Placed { device: Name, queue: u32, side: Side, bytes: Bytes, label: Label },
    Completed { device: Name, queue: u32, object: u32, label: Label },
    Said(String),
}

/// The bytes of a step: a line of several, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bytes {
    addr: u64,
    len: usize,
    part: Part,
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, len, part: Part { line, of } } = self;
        if *of > 1 {
            write!(f, "line {line} of {of} ({len} bytes at {addr:#x})")
        } else {
            write!(f, "{len} bytes at {addr:#x}")
        }
    }
}

/// A device: its number in the fabric, and its name, unless it is in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    number: usize,
    name: Arc<str>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, name } = self;
        if name.is_empty() { write!(f, "device {number}") } else { f.write_str(name) }
    }
}

/// A request in a sentence.
struct Request(Label);

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Label { op, psn } = self.0;
        write!(f, "{op} (PSN {psn})")
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetched { device, queue, bytes, label } => {
                let label = Request(*label);
                write!(f, "{device}, QP {queue:#x}: reads {bytes} for the {label}")
            }
            Self::Arrived { from, to, queue, label } => {
                let label = Request(*label);
                write!(f, "{to}, QP {queue:#x}: the {label} of {from} arrives")
            }
            Self::Placed { device, queue, side, bytes, label } => {
                let label = Request(*label);
                let whose = if *side == Side::Requester { "" } else { " of its peer" };
                write!(f, "{device}, QP {queue:#x}: {bytes} become visible, of the {label}{whose}")
            }
            Self::Completed { device, queue, object, label } => {
                let label = Request(*label);
                write!(
                    f,
                    "{device}, QP {queue:#x}: a completion becomes visible in CQ {object:#x}, of the {label}"
                )
            }
            Self::Said(text) => f.write_str(text),
        }
    }
}

impl Line {
    /// The access to memory of a step, for a trace.
    fn access(&self, at: u64) -> Option<Access> {
        let (device, qpn, kind, bytes, what, label) = match self {
            Self::Fetched { device, queue, bytes, label } => {
                (device.number, *queue, StepKind::Fetched, bytes, "are read", label)
            }
            Self::Placed { device, queue, bytes, label, .. } => {
                (device.number, *queue, StepKind::Placed, bytes, "are written", label)
            }
            Self::Arrived { .. } | Self::Completed { .. } | Self::Said(_) => return None,
        };
        let Bytes { addr, len, .. } = bytes;
        let words = format!("{len} bytes {what} ({label})");
        Some(Access { at, device, qpn, kind, words, detail: format!("{addr:#x}") })
    }
}

/// The last steps that were executed, the first one first. `Display` shows one a line, with its time in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    lines: Vec<(u64, Line)>,
    dropped: u64,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dropped > 0 {
            writeln!(f, "({} earlier steps are not shown)", self.dropped)?;
        }
        for (n, (time, line)) in (self.dropped + 1..).zip(&self.lines) {
            writeln!(f, "{n:4}. {time:>9} ns  {line}")?;
        }
        Ok(())
    }
}

/// The steps that were executed.
#[derive(Debug, Default)]
pub(super) struct Record {
    lines: VecDeque<(u64, Line)>,
    dropped: u64,
    /// The number of lines that a trace has.
    told: u64,
    /// The names of the devices, by number.
    pub(super) names: Vec<Arc<str>>,
    /// The file that has all of them, and the bytes in it.
    file: Option<(File, usize)>,
}

impl Record {
    pub(super) fn write_to(&mut self, file: File) {
        self.file = Some((file, 0));
    }

    fn add(&mut self, now: u64, line: Line) {
        if let Some((file, written)) = &mut self.file {
            let text = format!("{now:>12} ns  {line}\n");
            *written += text.len();
            if *written > MAX_FILE || file.write_all(text.as_bytes()).is_err() {
                self.file = None;
            }
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
            self.dropped += 1;
        }
        self.lines.push_back((now, line));
    }

    fn name(&self, device: usize) -> Name {
        Name { number: device, name: self.names.get(device).cloned().unwrap_or_default() }
    }

    pub(super) fn fetched(&mut self, now: u64, way: &Way, step: &Fetch, label: Label) {
        let Fetch { fill, line: part, .. } = step;
        let addr = fill.memory.address(fill.offset).unwrap_or(fill.offset);
        let bytes = Bytes { addr, len: fill.len, part: *part };
        self.add(now, Line::Fetched { device: self.name(way.from), queue: way.route.src, bytes, label });
    }

    pub(super) fn arrived(&mut self, now: u64, way: &Way, label: Label) {
        let (from, to) = (self.name(way.from), self.name(way.to));
        self.add(now, Line::Arrived { from, to, queue: way.route.dest, label });
    }

    pub(super) fn placed(&mut self, now: u64, lane: Lane, placed: &Placed) {
        let (device, label) = (self.name(lane.device), placed.label);
        let Lane { queue, side, .. } = lane;
        let line = match &placed.effect {
            Effect::Store { memory, offset, bytes, .. } => {
                let addr = memory.address(*offset).unwrap_or(*offset);
                let bytes = Bytes { addr, len: bytes.len(), part: placed.line };
                Line::Placed { device, queue, side, bytes, label }
            }
            Effect::Model { object, .. } => Line::Completed { device, queue, object: *object, label },
        };
        self.add(now, line);
    }

    /// Adds a line of the program.
    pub(super) fn say(&mut self, now: u64, text: String) {
        self.add(now, Line::Said(text));
    }

    /// The accesses since the last call, for a trace.
    pub(super) fn untold(&mut self) -> Vec<Access> {
        let known = usize::try_from(self.told.saturating_sub(self.dropped)).unwrap_or(usize::MAX);
        self.told = self.dropped + self.lines.len() as u64;
        self.lines.iter().skip(known).filter_map(|(at, line)| line.access(*at)).collect()
    }

    pub(super) fn schedule(&self) -> Schedule {
        Schedule { lines: self.lines.iter().cloned().collect(), dropped: self.dropped }
    }
}
