// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace that writes a file. With the environment variable `UVERBS_HCA_TRACE` each fabric of the process has one from the beginning.

use super::{Step, Trace};
use crate::capture::epoch;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file of all fabrics, with the numbers of the QPs behind a colon.
const TRACE: &str = "UVERBS_HCA_TRACE";
/// Bytes that a fabric writes at most; further steps are left out.
const MAX_BYTES: u64 = 8 << 20;

/// The file. Each step is appended by one call, so several fabrics and processes can write the same one.
#[derive(Debug)]
pub(crate) struct TraceFile {
    file: Option<File>,
    /// The fabric: the process and a number.
    source: String,
    /// The time of the fabric's clock at 0, in nanoseconds since 1970; 0 for a virtual clock.
    epoch: u64,
    /// Bytes that may be written still.
    left: u64,
}

/// The file and the QPs that the environment asks for.
pub(crate) fn of_environment() -> Option<(PathBuf, Vec<u32>)> {
    let value = std::env::var_os(TRACE)?;
    let Some(text) = value.to_str() else { return Some((value.into(), Vec::new())) };
    Some(parse(text))
}

/// `FILE`, or `FILE:QPN[,QPN]`.
fn parse(text: &str) -> (PathBuf, Vec<u32>) {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let qpns = |list: &str| list.split(',').map(number).collect::<Option<Vec<_>>>();
    match text.rsplit_once(':').and_then(|(file, list)| Some((file, qpns(list)?))) {
        Some((file, qpns)) if !file.is_empty() => (file.into(), qpns),
        // A colon in the name of the file.
        _ => (text.into(), Vec::new()),
    }
}

impl TraceFile {
    pub(crate) fn append(path: &Path, is_virtual: bool, now: Duration) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let file = File::options().create(true).append(true).open(path)?;
        let source = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Ok(Self { file: Some(file), source, epoch: epoch(is_virtual, now), left: MAX_BYTES })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }
}

impl Trace for TraceFile {
    fn step(&mut self, step: &Step) {
        if self.file.is_none() {
            return;
        }
        let line = step.line(self.epoch, &self.source);
        let left = self.left.checked_sub(line.len() as u64);
        let result = match left {
            Some(_) => self.write(&line),
            None => {
                self.write(&format!("# the trace of fabric {} ends: it has {MAX_BYTES} bytes\n", self.source))
            }
        };
        self.left = left.unwrap_or(0);
        if let Err(error) = &result {
            log::warn!("the trace ends: {error}");
        }
        if result.is_err() || left.is_none() {
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_a_file_and_qps() {
        for (text, file, qpns) in [
            ("/tmp/t", "/tmp/t", &[][..]),
            ("/tmp/t:0x101", "/tmp/t", &[0x101]),
            ("t:1,0x2", "t", &[1, 2]),
            ("/tmp/a:b", "/tmp/a:b", &[]),
            (":5", ":5", &[]),
            ("t:1,", "t:1,", &[]),
        ] {
            assert_eq!(parse(text), (PathBuf::from(file), qpns.to_vec()), "{text}");
        }
    }
}
