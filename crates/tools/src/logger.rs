// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the library's log (mainly objects that could not be destroyed) to stderr.

use log::{LevelFilter, Log, Metadata, Record};

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let level = record.level().as_str().to_ascii_lowercase();
        crate::complain(format_args!("uverbs: {level}: {}", record.args()));
    }

    fn flush(&self) {}
}

/// Enables the output of warnings and errors.
pub(crate) fn install() {
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}
