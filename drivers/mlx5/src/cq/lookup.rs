// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the number in a completion to the resource that it names.
//!
//! With CQE version 1 that number is the *user index* which the driver gives to every QP, XRC SRQ and WQ; with version 0
//! it is the QP's or the SRQ's own. Each completion queue has a table of its own, part of the state that its poller and the
//! control path use in turns, so a lookup takes no lock.

use core::fmt;

/// Numbers have 24 bits.
const BITS: u32 = 24;
/// Numbers of a leaf of the table. A leaf has the resources themselves, so a lookup loads two pointers and not three; and it is
/// small, because most queues have few resources, with numbers near each other.
const LEAF: usize = 1 << 7;

/// Resources of numbers that differ in the low bits only.
struct Leaf<R> {
    /// `R::default()` where there is none.
    resources: [R; LEAF],
    is_used: [bool; LEAF],
}

/// Resources of a completion queue by number. A number without a resource finds `R::default()`.
pub(super) struct Lookup<R> {
    top: Vec<Option<Box<Leaf<R>>>>,
    /// What a number finds that has no leaf.
    default: R,
    len: usize,
}

impl<R: Default> Lookup<R> {
    pub(super) fn new() -> Self {
        Self { top: Vec::new(), default: R::default(), len: 0 }
    }

    /// The place of a number in the table; its upper 8 bits are ignored.
    #[inline(always)]
    const fn place(number: u32) -> (usize, usize) {
        let number = (number & ((1 << BITS) - 1)) as usize;
        (number / LEAF, number % LEAF)
    }

    /// The resource of a number; the upper 8 bits are ignored.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> &R {
        let (top, at) = Self::place(number);
        match self.top.get(top) {
            Some(Some(leaf)) => &leaf.resources[at],
            _ => &self.default,
        }
    }

    /// Enters a resource, in place of the one that had the number.
    pub(super) fn insert(&mut self, number: u32, resource: R) {
        let (top, at) = Self::place(number);
        if self.top.len() <= top {
            self.top.resize_with(top + 1, || None);
        }
        let leaf = self.top[top].get_or_insert_with(|| {
            let resources = core::array::from_fn(|_| R::default());
            Box::new(Leaf { resources, is_used: [false; LEAF] })
        });
        self.len += usize::from(!leaf.is_used[at]);
        (leaf.resources[at], leaf.is_used[at]) = (resource, true);
    }

    /// Takes out the resource of a number if it `is` the one that is meant.
    pub(super) fn remove(&mut self, number: u32, is: impl FnOnce(&R) -> bool) -> Option<R> {
        let (top, at) = Self::place(number);
        let leaf = self.top.get_mut(top)?.as_mut()?;
        if !leaf.is_used[at] || !is(&leaf.resources[at]) {
            return None;
        }
        leaf.is_used[at] = false;
        self.len -= 1;
        Some(core::mem::take(&mut leaf.resources[at]))
    }

    /// How many resources there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl<R: Default> fmt::Debug for Lookup<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").field("resources", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn an_empty_table_finds_the_default() {
        let mut table = Lookup::<u8>::new();
        assert_eq!((*table.get(0), *table.get(0xffff_ffff)), (0, 0));
        table.insert(0, 7);
        assert_eq!((*table.get(0), *table.get(0xff00_0000)), (7, 7), "24 bits");
        assert_eq!(table.remove(0, |r| *r == 8), None, "another one");
        assert_eq!(table.remove(0, |r| *r == 7), Some(7));
        assert_eq!((*table.get(0), table.len()), (0, 0));
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(steps in prop::collection::vec((0_u8..4, prop_oneof![0_u32..20, any::<u32>()], 1_u16..), 1..200)) {
            let (mut table, mut map) = (Lookup::new(), HashMap::new());
            for (what, number, value) in steps {
                let key = number & 0xff_ffff;
                match what {
                    0 => {
                        table.insert(number, value);
                        map.insert(key, value);
                    }
                    1 => prop_assert_eq!(table.remove(number, |_| true), map.remove(&key)),
                    _ => prop_assert_eq!(*table.get(number), map.get(&key).copied().unwrap_or(0)),
                }
                prop_assert_eq!(table.len(), map.len());
            }
        }
    }
}
