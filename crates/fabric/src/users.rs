// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many objects use each other object.

use crate::map::{Key, Map};

/// The number of users of each object of a kind; objects without users have no entry.
#[derive(Debug)]
pub struct Users<K: Key = u32>(Map<K, u32>);

impl<K: Key> Default for Users<K> {
    fn default() -> Self {
        Self(Map::new())
    }
}

impl<K: Key> Users<K> {
    /// Adds a user.
    pub fn add(&mut self, of: K) {
        *self.0.get_or_default(of) += 1;
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
