// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages, and the variables of the environment that select them: `VERBS_LOG_LEVEL`, `VERBS_LOG_FILE` and
//! `IBV_SHOW_WARNINGS`. Without them the library writes nothing.

use core::sync::atomic::{AtomicBool, Ordering};
use log::{LevelFilter, Log, Metadata, Record};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use uverbs_core::sync::ProcessMutex;

/// Writes messages to a file or to the standard error.
struct Logger {
    to: ProcessMutex<Box<dyn Write + Send>>,
}

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = format!("libibverbs: {}: {}\n", record.level().as_str().to_lowercase(), record.args());
        // A message that can't be written is lost.
        if let Ok(mut to) = self.to.lock() {
            let _ = to.write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// The level that the variables select. The numbers are those of rdma-core.
fn level(number: Option<&OsStr>, show_warnings: bool) -> LevelFilter {
    let number = number.and_then(OsStr::to_str).and_then(|text| text.trim().parse::<u32>().ok());
    let least = if show_warnings { LevelFilter::Warn } else { LevelFilter::Off };
    let asked = match number {
        None | Some(0) => LevelFilter::Off,
        Some(1) => LevelFilter::Error,
        Some(2) => LevelFilter::Warn,
        Some(3) => LevelFilter::Info,
        Some(_) => LevelFilter::Debug,
    };
    asked.max(least)
}

/// Reads the variables, once. A second thread does not wait for the first one, because a child of fork(2) would wait for ever.
pub(crate) fn init() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        let show_warnings = std::env::var_os("IBV_SHOW_WARNINGS").is_some();
        let level = level(std::env::var_os("VERBS_LOG_LEVEL").as_deref(), show_warnings);
        if level == LevelFilter::Off {
            return;
        }
        let file = std::env::var_os("VERBS_LOG_FILE")
            .and_then(|path| File::options().append(true).create(true).open(path).ok());
        let to: Box<dyn Write + Send> = match file {
            Some(file) => Box::new(file),
            None => Box::new(io::stderr()),
        };
        let logger = Box::leak(Box::new(Logger { to: ProcessMutex::new(to) }));
        if log::set_logger(logger).is_ok() {
            log::set_max_level(level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_the_numbers_of_rdma_core() {
        let of = |text: &str| level(Some(OsStr::new(text)), false);
        assert_eq!(level(None, false), LevelFilter::Off);
        assert_eq!(level(None, true), LevelFilter::Warn);
        assert_eq!(level(Some(OsStr::new("1")), true), LevelFilter::Warn);
        assert_eq!([of("0"), of("1"), of("2")], [LevelFilter::Off, LevelFilter::Error, LevelFilter::Warn]);
        assert_eq!([of("3"), of("4"), of("9")], [LevelFilter::Info, LevelFilter::Debug, LevelFilter::Debug]);
        assert_eq!(of("loud"), LevelFilter::Off);
    }
}
