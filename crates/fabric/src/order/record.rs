// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps that were executed, in words.

use super::step::{Fill, Label, Lane, Side, Way};
use super::{Effect, Placed};
use crate::trace::{Access, StepKind};
use core::fmt;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;

/// The number of steps that are kept, the last ones.
const KEPT: usize = 4096;
/// The bytes of a file with all steps. Further ones are not written.
const MAX_FILE: usize = 64 << 20;

/// A step that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Fetched { device: usize, queue: u32, addr: u64, len: usize, label: Label },
    Arrived { from: usize, to: usize, queue: u32, label: Label },
    Placed { lane: Lane, addr: u64, len: usize, label: Label },
    Completed { lane: Lane, object: u32, label: Label },
    Said(String),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetched { device, queue, addr, len, label } => {
                write!(f, "device {device}, QP {queue:#x}: reads {len} bytes at {addr:#x} ({label})")
            }
            Self::Arrived { from, to, queue, label } => {
                write!(f, "device {to}, QP {queue:#x}: a packet of device {from} arrives ({label})")
            }
            Self::Placed { lane: Lane { device, queue, side }, addr, len, label } => {
                let whose = if *side == Side::Requester { "of its own request" } else { "of its peer" };
                write!(f, "device {device}, QP {queue:#x}: writes {len} bytes at {addr:#x} {whose} ({label})")
            }
            Self::Completed { lane: Lane { device, queue, .. }, object, label } => {
                write!(f, "device {device}, QP {queue:#x}: writes a completion to CQ {object:#x} ({label})")
            }
            Self::Said(text) => f.write_str(text),
        }
    }
}

impl Line {
    /// The access to memory of a step, for a trace.
    fn access(&self, at: u64) -> Option<Access> {
        let (device, qpn, kind, addr, len, what, label) = match *self {
            Self::Fetched { device, queue, addr, len, label } => {
                (device, queue, StepKind::Fetched, addr, len, "are read", label)
            }
            Self::Placed { lane, addr, len, label } => {
                (lane.device, lane.queue, StepKind::Placed, addr, len, "are written", label)
            }
            Self::Arrived { .. } | Self::Completed { .. } | Self::Said(_) => return None,
        };
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

    pub(super) fn fetched(&mut self, now: u64, way: &Way, fill: &Fill, label: Label) {
        let addr = fill.memory.address(fill.offset).unwrap_or(fill.offset);
        self.add(now, Line::Fetched { device: way.from, queue: way.route.src, addr, len: fill.len, label });
    }

    pub(super) fn arrived(&mut self, now: u64, way: &Way, label: Label) {
        self.add(now, Line::Arrived { from: way.from, to: way.to, queue: way.route.dest, label });
    }

    pub(super) fn placed(&mut self, now: u64, lane: Lane, placed: &Placed) {
        let label = placed.label;
        self.add(
            now,
            match &placed.effect {
                Effect::Store { memory, offset, bytes, .. } => {
                    let addr = memory.address(*offset).unwrap_or(*offset);
                    Line::Placed { lane, addr, len: bytes.len(), label }
                }
                Effect::Model { object, .. } => Line::Completed { lane, object: *object, label },
            },
        );
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
