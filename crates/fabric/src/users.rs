// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many objects use each other object.

use std::collections::BTreeMap;

/// The number of users of each object of a kind; objects without users have no entry.
#[derive(Debug)]
pub struct Users<K = u32>(BTreeMap<K, u32>);

impl<K> Default for Users<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Users<K> {
    /// Adds a user.
    pub fn add(&mut self, of: K) {
        *self.0.entry(of).or_insert(0) += 1;
    }

    /// Removes a user.
    pub fn remove(&mut self, of: &K) {
        if let Some(count) = self.0.get_mut(of) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(of);
            }
        }
    }

    /// Whether there are users.
    #[must_use]
    pub fn has(&self, of: &K) -> bool {
        self.0.contains_key(of)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self, of: &K) -> u32 {
        self.0.get(of).copied().unwrap_or(0)
    }
}
