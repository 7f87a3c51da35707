// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modes of order: what the devices of a fabric promise about the order of their accesses to memory.

use core::fmt;
use core::str::FromStr;

/// What the devices of a fabric promise about the order of their accesses to memory. "Semantics" in the book has a row for each pair of
/// operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// A doorbell executes all that it can before it returns, in order.
    #[default]
    Ordered,
    /// As writes on PCIe: data become visible line by line in the order of addresses, messages in order. Reads may pass.
    Pcie,
    /// As [`Pcie`](Self::Pcie), but the lines of regions with `IBV_ACCESS_RELAXED_ORDERING` become visible in any order; a completion
    /// after all of them.
    Relaxed,
    /// Only what the InfiniBand specification and the man pages promise: the lines of all regions become visible in any order.
    Model,
}

impl Mode {
    /// All modes, the strongest first.
    pub const ALL: [Self; 4] = [Self::Ordered, Self::Pcie, Self::Relaxed, Self::Model];

    const fn name(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Pcie => "pcie",
            Self::Relaxed => "relaxed",
            Self::Model => "model",
        }
    }

    /// Whether a line of a region becomes visible before earlier ones; `relaxed` is the region's flag.
    pub(super) const fn passes(self, relaxed: bool) -> bool {
        match self {
            Self::Ordered | Self::Pcie => false,
            Self::Relaxed => relaxed,
            Self::Model => true,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOrder(String);

impl fmt::Display for UnknownOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not an order: ordered, pcie, relaxed or model, and a seed after a colon, as in \"model:7\"",
            self.0
        )
    }
}

impl core::error::Error for UnknownOrder {}

impl FromStr for Mode {
    type Err = UnknownOrder;

    fn from_str(text: &str) -> Result<Self, UnknownOrder> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| UnknownOrder(text.into()))
    }
}

/// A mode, and the seed that selects one of the orders that it permits: `model:7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The mode.
    pub mode: Mode,
    /// The seed; `None` for one that the fabric draws.
    pub seed: Option<u64>,
}

impl Setting {
    /// The setting that repeats the order of a fabric with this seed: [`Fabric::order`](crate::Fabric::order) returns it. Without a mode
    /// there is one order only, and no seed.
    #[must_use]
    pub fn repeated_by(self, seed: u64) -> Self {
        Self { seed: (self.mode != Mode::Ordered).then_some(seed), ..self }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seed {
            Some(seed) => write!(f, "{}:{seed}", self.mode),
            None => self.mode.fmt(f),
        }
    }
}

impl FromStr for Setting {
    type Err = UnknownOrder;

    fn from_str(text: &str) -> Result<Self, UnknownOrder> {
        let unknown = || UnknownOrder(text.into());
        let (mode, seed) = match text.split_once(':') {
            Some((mode, seed)) => (mode, Some(seed.parse().map_err(|_| unknown())?)),
            None => (text, None),
        };
        Ok(Self { mode: mode.parse().map_err(|_| unknown())?, seed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_as_it_is_written() {
        for mode in Mode::ALL {
            for seed in [None, Some(0), Some(u64::MAX)] {
                let setting = Setting { mode, seed };
                assert_eq!(setting.to_string().parse(), Ok(setting));
            }
        }
        for (mode, text) in [(Mode::Ordered, "ordered"), (Mode::Pcie, "pcie:7")] {
            assert_eq!(Setting { mode, seed: None }.repeated_by(7).to_string(), text);
        }
        for wrong in ["", "models", "model:", "model:x", "model:-1", "pcie:1:2"] {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
    }
}
