// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of an exploration.

use core::any::Any;
use core::fmt;
use uverbs_fabric::order::{Mode, Schedule};

/// The result of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The runs that ended.
    pub runs: usize,
    /// The runs that were given up because they would have repeated an earlier one.
    pub redundant: usize,
    /// Whether every order was covered.
    pub is_complete: bool,
    /// The run that failed.
    pub failure: Option<Failure>,
}

/// A run that failed. `Display` shows its seed and its schedule.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The mode.
    pub mode: Mode,
    /// The seed, unless the run is of an exploration.
    pub seed: Option<u64>,
    /// The message of the panic.
    pub message: String,
    /// The steps of the run.
    pub schedule: Schedule,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, seed, message, schedule } = self;
        match seed {
            Some(seed) => writeln!(f, "with the order {mode}:{seed}: {message}")?,
            None => writeln!(f, "with an order that {mode} permits: {message}")?,
        }
        write!(f, "{schedule}")
    }
}

/// The message of a panic.
pub(super) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}
