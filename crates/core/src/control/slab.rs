// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers for the kernel's `user_handle`s: an index with a generation, never a pointer.
//!
//! Events carry the user handle of their object. The kernel may deliver an event that was queued before the object was
//! destroyed, and a faulty kernel may deliver any number. A lookup of a number that belongs to no live object returns
//! `None`.

use core::num::NonZeroU32;

#[derive(Debug)]
struct Entry<T> {
    generation: NonZeroU32,
    value: Option<T>,
}

/// Values by number: the upper half of a number is the generation of the entry whose index is the lower half. 0 is
/// never used. No number is used twice: an entry that has used all of its generations is not reused.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    /// An empty slab.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stores a value and returns its number, or 0, which is never valid, if 2^32 entries are in use.
    ///
    /// The kernel needs the number of an object before the object exists: insert the values known at that time, and
    /// complete them through [`Slab::get_mut`].
    #[must_use]
    pub fn insert(&mut self, value: T) -> u64 {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let Ok(index) = u32::try_from(self.entries.len()) else { return 0 };
                self.entries.push(Entry { generation: NonZeroU32::MIN, value: None });
                index
            }
        };
        let Some(entry) = self.entries.get_mut(index as usize) else { return 0 };
        entry.value = Some(value);
        self.len += 1;
        u64::from(entry.generation.get()) << 32 | u64::from(index)
    }

    /// The value with this number, if there is one. Any number is allowed.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&T> {
        let entry = self.entries.get(index(id)).filter(|entry| entry.generation.get() == generation(id))?;
        entry.value.as_ref()
    }

    /// The value with this lower half of its number, if there is one. Any is allowed.
    #[must_use]
    pub fn at(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_ref()
    }

    /// The value with this number, if there is one. Any number is allowed.
    #[must_use]
    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.entry_mut(id)?.value.as_mut()
    }

    /// Removes the value. Its number is then invalid.
    pub fn remove(&mut self, id: u64) -> Option<T> {
        let entry = self.entry_mut(id)?;
        let value = entry.value.take()?;
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(index(id) as u32);
        }
        self.len -= 1;
        Some(value)
    }

    /// Every value.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    fn entry_mut(&mut self, id: u64) -> Option<&mut Entry<T>> {
        self.entries.get_mut(index(id)).filter(|entry| entry.generation.get() == generation(id))
    }
}

/// The lower half.
fn index(id: u64) -> usize {
    id as u32 as usize
}

/// The upper half.
fn generation(id: u64) -> u32 {
    (id >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_stale_number_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert("first");
        assert_eq!(slab.get(first), Some(&"first"));
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(index(first), index(second));
        assert_ne!(first, second);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get_mut(first), None);
        *slab.get_mut(second).unwrap() = "changed";
        assert_eq!(slab.iter().copied().collect::<Vec<_>>(), ["changed"]);
        assert_eq!((slab.at(0), slab.at(1), slab.at(u32::MAX)), (Some(&"changed"), None, None));
        for number in [0, 1, u64::MAX, second | 1, second + (1 << 32)] {
            assert_eq!(slab.get(number), None, "{number:#x}");
        }
    }

    #[test]
    fn an_entry_without_unused_generations_is_not_reused() {
        let mut slab = Slab::new();
        let _ = slab.insert(1);
        slab.entries[0].generation = NonZeroU32::MAX;
        let last = u64::from(u32::MAX) << 32;
        assert_eq!(slab.remove(last), Some(1));
        assert_eq!(index(slab.insert(2)), 1);
        assert_eq!(slab.get(last), None);
    }

    proptest! {
        #[test]
        fn a_slab_behaves_as_a_map_with_fresh_keys(
            ops in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..200),
        ) {
            let mut slab = Slab::new();
            let mut model = HashMap::new();
            let mut ids: Vec<u64> = Vec::new();
            for (step, (insert, which)) in ops.into_iter().enumerate() {
                if insert || ids.is_empty() {
                    let id = slab.insert(step);
                    prop_assert!(id != 0 && !ids.contains(&id), "reused");
                    model.insert(id, step);
                    ids.push(id);
                } else {
                    let id = ids[which.index(ids.len())];
                    prop_assert_eq!(slab.remove(id), model.remove(&id));
                }
                prop_assert_eq!(slab.len(), model.len());
                for id in &ids {
                    prop_assert_eq!(slab.get(*id), model.get(id));
                }
            }
        }
    }
}
