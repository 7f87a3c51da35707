// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers that the firmware allocates: protection domains, doorbell pages and the like.

use std::collections::BTreeSet;

/// Numbers of one kind that are in use.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    used: BTreeSet<u32>,
}

impl Numbers {
    /// The lowest free number of a range.
    pub(crate) fn alloc(&mut self, range: core::ops::Range<u32>) -> Option<u32> {
        let free = range.into_iter().find(|n| !self.used.contains(n))?;
        self.used.insert(free);
        Some(free)
    }

    /// Frees a number. Returns whether it was in use.
    pub(crate) fn free(&mut self, number: u32) -> bool {
        self.used.remove(&number)
    }

    /// Whether a number is in use.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.used.contains(&number)
    }
}
