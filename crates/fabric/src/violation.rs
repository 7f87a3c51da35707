// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mistakes of a driver that a device does not report, or reports by an error with little information. Each is recorded,
//! and then handled as hardware does. The kinds of mistakes and objects are those of the model.

use core::fmt;

/// The violations that are kept until they are taken: a guest may make as many as it likes.
const MAX: usize = 4096;

/// A mistake, with its object and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation<O, K> {
    /// The fabric's clock, ns.
    pub time: u64,
    /// The object, with its number: a QP, for example.
    pub object: O,
    /// Index of the entry in the queue, if the violation is about one.
    pub index: u32,
    /// The kind of the mistake.
    pub mistake: K,
}

impl<O: fmt::Debug, K: fmt::Debug> fmt::Display for Violation<O, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}, index {} ({} ns)", self.mistake, self.object, self.index, self.time)
    }
}

/// The name of the variant of a value.
#[must_use]
pub fn variant(value: &impl fmt::Debug) -> String {
    let mut text = format!("{value:?}");
    text.truncate(text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len()));
    text
}

/// The violations of the drivers of a device.
#[derive(Debug)]
pub struct Violations<O, K>(Vec<Violation<O, K>>);

impl<O, K> Default for Violations<O, K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<O: fmt::Debug, K: fmt::Debug> Violations<O, K> {
    /// Records and prints a violation, up to a limit.
    pub fn record(&mut self, time: u64, object: O, index: u32, mistake: K) {
        if self.0.len() >= MAX {
            return;
        }
        let violation = Violation { time, object, index, mistake };
        log::warn!("{violation}");
        self.0.push(violation);
        if self.0.len() == MAX {
            log::warn!("further mistakes are neither recorded nor printed");
        }
    }

    /// Those that were recorded and not taken.
    #[must_use]
    pub fn all(&self) -> &[Violation<O, K>] {
        &self.0
    }

    /// Removes and returns those that are `wanted`.
    pub fn take_if(&mut self, mut wanted: impl FnMut(&Violation<O, K>) -> bool) -> Vec<Violation<O, K>> {
        self.0.extract_if(.., |violation| wanted(violation)).collect()
    }
}
