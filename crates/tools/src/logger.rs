// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the library's log (mainly objects that could not be destroyed) to stderr.

use core::sync::atomic::{AtomicBool, Ordering};
use log::{Level, LevelFilter, Log, Metadata, Record};

/// Whether an error was written.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() == Level::Error {
            HAS_FAILED.store(true, Ordering::Relaxed);
        }
        let level = record.level().as_str().to_ascii_lowercase();
        crate::complain(format_args!("uverbs: {level}: {}", record.args()));
    }

    fn flush(&self) {}
}

/// Whether an error was written: an object could not be destroyed, for example. A command that has done its work fails then.
pub(crate) fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed)
}

/// Enables the output of warnings and errors.
pub(crate) fn install() {
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}
