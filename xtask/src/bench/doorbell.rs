// SPDX-License-Identifier: MIT OR Apache-2.0
//! The costs of a doorbell besides instructions: fences, locked instructions, and dirtied cache lines.
//!
//! Valgrind's lackey writes every access of a program to its log. A chunk of a row is between two stores to the
//! program's mark. A doorbell ends when a store to a register is followed by a store to memory. Instructions are read
//! from the files that the program has mapped, and recognised by their first bytes.

use super::rows::{Face, Line, Set};
use crate::run;
use anyhow::{Context, Result, bail, ensure};
use core::ops::Range;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The averages for one doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Doorbell {
    pub(crate) fences: f64,
    /// Instructions that lock a cache line.
    pub(crate) locked: f64,
    /// Cache lines of memory that are stored to, without those of the stack and of the register.
    pub(crate) lines: f64,
    /// Bytes that are stored to registers.
    pub(crate) register_bytes: f64,
    /// Bytes that are stored to write-combining memory of the device.
    pub(crate) combined_bytes: f64,
    /// The doorbells of the chunk; not an average.
    pub(crate) count: f64,
}

/// Operations of a chunk of posts.
pub(crate) const CHUNK: f64 = 128.0;

/// Whether the measurement rings doorbells.
pub(crate) fn rings(line: &Line) -> bool {
    line.row.c.starts_with("post_send") || line.row.c.starts_with("wr ")
}

/// The doorbells of measurements, by name.
pub(crate) fn trace(
    names: &[String],
    program: impl FnOnce(&[String]) -> Command,
) -> Result<HashMap<String, Doorbell>> {
    let tool = ["valgrind", "--tool=lackey", "--trace-mem=yes"].map(str::to_owned);
    let mut cmd = program(&tool);
    cmd.arg("trace").args(names).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = cmd.spawn().with_context(|| format!("cannot start `{}`", run::shown(&cmd)))?;
    let mut stdout = child.stdout.take().context("the program's output")?;
    let log = BufReader::new(child.stderr.take().context("lackey's log")?);
    // Both pipes must be read, because the program blocks when one is full.
    let output = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    // The addresses are in the output, which is complete only at the end, so the log is kept in a compact form until
    // then.
    let mut accesses = Vec::new();
    for line in log.lines() {
        accesses.extend(Access::parse(&line?));
    }
    let text = output.join().map_err(|_| anyhow::anyhow!("the output could not be read"))??;
    let status = child.wait()?;
    ensure!(status.success(), "`{}` failed: {status}", run::shown(&cmd));
    let places = Places::parse(&text)?;
    let rows: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("row\t")).collect();
    let chunks = chunks(&accesses, places.mark);
    ensure!(chunks.len() == rows.len(), "{} chunks of {} rows were traced", chunks.len(), rows.len());
    let mut code = Code::new(places.maps.clone());
    rows.iter()
        .zip(chunks)
        .map(|(row, chunk)| {
            let doorbell = average(chunk, &places, &mut code).with_context(|| (*row).to_owned())?;
            Ok(((*row).to_owned(), doorbell))
        })
        .collect()
}

/// A line of lackey's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Instruction(u64),
    Store(u64, u64),
}

impl Access {
    /// Loads are left out.
    fn parse(line: &str) -> Option<Self> {
        let (kind, place) = line.split_at_checked(3)?;
        let (addr, size) = place.split_once(',')?;
        let (addr, size) = (u64::from_str_radix(addr.trim(), 16).ok()?, size.parse().ok()?);
        match kind {
            "I  " => Some(Self::Instruction(addr)),
            " S " | " M " => Some(Self::Store(addr, size)),
            _ => None,
        }
    }
}

/// The accesses between a store to the mark and the next. The loader clears the mark with other variables, by wider stores.
fn chunks(accesses: &[Access], mark: u64) -> Vec<&[Access]> {
    let marks = accesses.iter().enumerate().filter(|(_, access)| **access == Access::Store(mark, 8));
    let marks: Vec<_> = marks.map(|(i, _)| i).collect();
    marks.chunks_exact(2).filter_map(|pair| accesses.get(pair[0] + 1..pair[1])).collect()
}

/// The addresses of the program's objects.
#[derive(Debug, Default)]
struct Places {
    registers: Vec<Range<u64>>,
    /// Write-combining memory.
    combined: Vec<Range<u64>>,
    stack: Range<u64>,
    mark: u64,
    maps: Vec<Map>,
}

/// A part of a file that is mapped to be executed.
#[derive(Clone, Debug)]
struct Map {
    range: Range<u64>,
    offset: u64,
    path: PathBuf,
}

fn hex(text: &str) -> Result<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).with_context(|| format!("not a number: {text:?}"))
}

fn range(start: &str, size: &str) -> Result<Range<u64>> {
    let start = hex(start)?;
    Ok(start..start + hex(size)?)
}

fn is_in(ranges: &[Range<u64>], at: u64) -> bool {
    ranges.iter().any(|range| range.contains(&at))
}

impl Places {
    fn parse(text: &str) -> Result<Self> {
        /// The size of the stack around the address that the program prints.
        const STACK: u64 = 1 << 20;
        let mut places = Self::default();
        for line in text.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["registers", start, size] => places.registers.push(range(start, size)?),
                ["combined", start, size] => places.combined.push(range(start, size)?),
                ["stack", at] => {
                    let at = hex(at)?;
                    places.stack = at.saturating_sub(STACK)..at + STACK;
                }
                ["mark", at] => places.mark = hex(at)?,
                ["map", map] => places.maps.extend(Map::parse(map)?),
                _ => {}
            }
        }
        ensure!(
            places.mark != 0 && !places.registers.is_empty(),
            "the program did not print the addresses of its registers"
        );
        Ok(places)
    }
}

impl Map {
    /// A line of /proc/self/maps; none if no code of a file is there.
    fn parse(line: &str) -> Result<Option<Self>> {
        let [range, protection, offset, _, _, path] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Ok(None);
        };
        if !protection.contains('x') || !path.starts_with('/') {
            return Ok(None);
        }
        let (start, end) =
            range.split_once('-').with_context(|| format!("expected a range, found {range:?}"))?;
        Ok(Some(Self { range: hex(start)?..hex(end)?, offset: hex(offset)?, path: path.into() }))
    }
}

/// The kind of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fence,
    Locked,
    Other,
}

impl Kind {
    /// By an instruction's first bytes.
    const fn of(bytes: &[u8]) -> Self {
        match bytes {
            // MFENCE and SFENCE; LFENCE waits for loads only.
            [0x0f, 0xae, 0xf0..=0xff, ..] => Self::Fence,
            [0xf0, ..] => Self::Locked,
            // XCHG with memory, which needs no prefix.
            [0x86 | 0x87, modrm, ..] | [0x40..=0x4f, 0x86 | 0x87, modrm, ..] if *modrm < 0xc0 => Self::Locked,
            _ => Self::Other,
        }
    }
}

/// The mapped code, and the results of its analysis.
struct Code {
    maps: Vec<Map>,
    files: HashMap<PathBuf, Vec<u8>>,
    kinds: HashMap<u64, Kind>,
}

impl Code {
    fn new(maps: Vec<Map>) -> Self {
        Self { maps, files: HashMap::new(), kinds: HashMap::new() }
    }

    fn kind(&mut self, at: u64) -> Result<Kind> {
        if let Some(kind) = self.kinds.get(&at) {
            return Ok(*kind);
        }
        let Some(map) = self.maps.iter().find(|map| map.range.contains(&at)) else {
            bail!("no file is mapped at {at:#x}, where an instruction was executed");
        };
        if !self.files.contains_key(&map.path) {
            let bytes = fs::read(&map.path).with_context(|| format!("cannot read {}", map.path.display()))?;
            self.files.insert(map.path.clone(), bytes);
        }
        let offset = (at - map.range.start + map.offset) as usize;
        let kind = Kind::of(self.files[&map.path].get(offset..).unwrap_or_default());
        self.kinds.insert(at, kind);
        Ok(kind)
    }
}

/// The average of a chunk's doorbells. The accesses before the end of the first doorbell are left out, because that
/// doorbell is not complete.
fn average(chunk: &[Access], places: &Places, code: &mut Code) -> Result<Doorbell> {
    let (mut sum, mut one, mut count) = (Doorbell::default(), Doorbell::default(), 0_u32);
    let (mut lines, mut rung, mut whole) = (HashSet::new(), false, false);
    let mut all = 0_u32;
    for access in chunk {
        match *access {
            Access::Instruction(at) => match code.kind(at)? {
                Kind::Fence => one.fences += 1.0,
                Kind::Locked => one.locked += 1.0,
                Kind::Other => {}
            },
            Access::Store(at, size) if is_in(&places.registers, at) => {
                all += u32::from(!rung);
                rung = true;
                one.register_bytes += size as f64;
            }
            Access::Store(at, _) if places.stack.contains(&at) => {}
            Access::Store(at, size) => {
                if rung {
                    if whole {
                        sum.fences += one.fences;
                        sum.locked += one.locked;
                        sum.register_bytes += one.register_bytes;
                        sum.combined_bytes += one.combined_bytes;
                        sum.lines += lines.len() as f64;
                        count += 1;
                    }
                    (one, rung, whole) = (Doorbell::default(), false, true);
                    lines.clear();
                }
                if is_in(&places.combined, at) {
                    one.combined_bytes += size as f64;
                } else {
                    lines.extend(at / 64..=(at + size.max(1) - 1) / 64);
                }
            }
        }
    }
    ensure!(count != 0, "no doorbell was rung");
    let of = |value: f64| value / f64::from(count);
    Ok(Doorbell {
        fences: of(sum.fences),
        locked: of(sum.locked),
        lines: of(sum.lines),
        register_bytes: of(sum.register_bytes),
        combined_bytes: of(sum.combined_bytes),
        count: all.into(),
    })
}

/// The names of the traced programs of these lines.
pub(crate) fn names(lines: &[Line], set: Set, faces: &[Face]) -> Vec<String> {
    let of_set = lines.iter().filter(|line| line.set() == set && rings(line));
    let keys = of_set.flat_map(|line| faces.iter().filter_map(|&face| line.key(face)));
    let mut names: Vec<_> = keys.map(|key| key.name).collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_parsed() {
        assert_eq!(Access::parse("I  0401ab70,3"), Some(Access::Instruction(0x401ab70)));
        assert_eq!(Access::parse(" S 1fff0006f8,8"), Some(Access::Store(0x1f_ff00_06f8, 8)));
        assert_eq!(Access::parse(" M 10,4"), Some(Access::Store(16, 4)));
        assert_eq!(Access::parse(" L 10,4"), None);
        assert_eq!(Access::parse("==1== Lackey, an example"), None);
    }

    #[test]
    fn instructions_are_recognised_by_their_bytes() {
        assert_eq!(Kind::of(&[0x0f, 0xae, 0xf8]), Kind::Fence);
        assert_eq!(Kind::of(&[0x0f, 0xae, 0xf0]), Kind::Fence);
        assert_eq!(Kind::of(&[0x0f, 0xae, 0xe8]), Kind::Other);
        assert_eq!(Kind::of(&[0xf0, 0x48, 0x0f, 0xb1, 0x0f]), Kind::Locked);
        assert_eq!(Kind::of(&[0x48, 0x87, 0x07]), Kind::Locked);
        assert_eq!(Kind::of(&[0x48, 0x87, 0xc3]), Kind::Other);
    }

    #[test]
    fn a_doorbell_ends_with_the_first_store_to_memory_after_its_register() {
        let registers = Vec::from_iter([(0x1000, 0x2000)].map(|(from, to)| from..to));
        let combined = Vec::from_iter([(0x8000, 0x9000)].map(|(from, to)| from..to));
        let places = Places { registers, combined, stack: 0..0x100, mark: 1, maps: Vec::new() };
        let mut code = Code::new(Vec::new());
        code.kinds.insert(7, Kind::Fence);
        let post = [
            Access::Store(0x4000, 8),
            Access::Store(0x8010, 16),
            Access::Store(0x403c, 8),
            Access::Store(0x10, 8),
            Access::Instruction(7),
            Access::Store(0x1000, 8),
            Access::Instruction(7),
        ];
        let all = [&post[..], &post, &post].concat();
        let doorbell = average(&all, &places, &mut code).unwrap();
        // The first is cut off at its beginning, the last at its end.
        let expected = Doorbell { fences: 2.0, lines: 2.0, register_bytes: 8.0, ..Doorbell::default() };
        assert_eq!(doorbell, Doorbell { combined_bytes: 16.0, count: 3.0, ..expected });
        assert!(average(&post, &places, &mut code).is_err());
    }

    #[test]
    fn chunks_are_between_marks() {
        let all = [Access::Store(1, 8), Access::Store(2, 8), Access::Store(1, 8), Access::Store(3, 8)];
        assert_eq!(chunks(&all, 1), [&[Access::Store(2, 8)][..]]);
        let with_loader = [&[Access::Store(1, 16)], &all[..]].concat();
        assert_eq!(chunks(&with_loader, 1), [&[Access::Store(2, 8)][..]]);
    }
}
