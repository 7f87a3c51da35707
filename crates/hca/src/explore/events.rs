// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an event accesses, and which events it depends on.

use uverbs_fabric::order::Footprint;

/// The accesses of an event: those of the step that was chosen, and of the steps behind it.
#[derive(Clone, Debug, Default)]
pub(super) struct Access {
    first: Footprint,
    others: Vec<Footprint>,
}

impl Access {
    pub(super) fn of(first: &Footprint) -> Self {
        Self { first: first.clone(), others: Vec::new() }
    }

    pub(super) fn set_first(&mut self, first: &Footprint) {
        self.first = first.clone();
    }

    pub(super) fn add(&mut self, other: Footprint) {
        self.others.push(other);
    }

    fn all(&self) -> impl Iterator<Item = &Footprint> {
        core::iter::once(&self.first).chain(&self.others)
    }

    /// Whether a step conflicts with one of these.
    pub(super) fn meets(&self, footprint: &Footprint) -> bool {
        self.all().any(|own| own.conflicts(footprint))
    }

    /// Whether the order of two events can make a difference.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        other.all().any(|footprint| self.meets(footprint))
    }
}

/// A set of events, by their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Before(Vec<u64>);

impl Before {
    /// The first events.
    pub(super) fn first(count: usize) -> Self {
        let mut all = vec![u64::MAX; count / 64];
        all.push((1 << (count % 64)) - 1);
        Self(all)
    }

    pub(super) fn has(&self, event: usize) -> bool {
        self.0.get(event / 64).is_some_and(|word| word >> (event % 64) & 1 != 0)
    }

    /// Adds an event, and those that it depends on.
    pub(super) fn add(&mut self, event: usize, its: &Self) {
        let len = (event / 64 + 1).max(its.0.len());
        if self.0.len() < len {
            self.0.resize(len, 0);
        }
        for (word, other) in self.0.iter_mut().zip(&its.0) {
            *word |= other;
        }
        if let Some(word) = self.0.get_mut(event / 64) {
            *word |= 1 << (event % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_events_that_were_added() {
        let mut set = Before::first(66);
        assert!(set.has(0) && set.has(63) && set.has(65) && !set.has(66));
        let mut other = Before::default();
        other.add(130, &Before::first(1));
        set.add(200, &other);
        assert_eq!((60..300).filter(|i| set.has(*i)).collect::<Vec<_>>(), [60, 61, 62, 63, 64, 65, 130, 200]);
    }
}
