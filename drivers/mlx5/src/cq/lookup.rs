// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the number in a completion to the resource that it names.
//!
//! With CQE version 1 that number is the *user index* which the driver gives to every QP, XRC SRQ and WQ; with version 0
//! it is the QP's or the SRQ's own. Each completion queue has a table of its own, part of the state that its poller and the
//! control path use in turns, so a lookup takes no lock.

use core::fmt;

/// Numbers have 24 bits.
const BITS: u32 = 24;
/// Numbers of a leaf of the table.
const LEAF: usize = 1 << 8;

/// Where a resource is in its table, until the table changes. The default is that of no resource.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LookupIndex(u32);

impl LookupIndex {
    const NONE: Self = Self(0);
}

/// Resources of a completion queue by number. A number without a resource finds `R::default()`.
pub(super) struct Lookup<R> {
    /// Two levels: number -> index into `resources`.
    top: Vec<Option<Box<[u32; LEAF]>>>,
    /// The first is the default and stays it.
    resources: Vec<R>,
    /// What an index that is not of this table finds.
    default: R,
    free: Vec<u32>,
}

impl<R: Default> Lookup<R> {
    pub(super) fn new() -> Self {
        Self { top: Vec::new(), resources: vec![R::default()], default: R::default(), free: Vec::new() }
    }

    /// Where the resource of a number is; the upper 8 bits do not count.
    #[inline(always)]
    pub(super) fn find(&self, number: u32) -> LookupIndex {
        let number = (number & ((1 << BITS) - 1)) as usize;
        match self.top.get(number / LEAF) {
            Some(Some(leaf)) => LookupIndex(leaf[number % LEAF]),
            _ => LookupIndex::NONE,
        }
    }

    /// The resource at an index.
    #[inline(always)]
    pub(super) fn at(&self, index: LookupIndex) -> &R {
        self.resources.get(index.0 as usize).unwrap_or(&self.default)
    }

    /// The resource of a number.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> &R {
        self.at(self.find(number))
    }

    /// Enters a resource, in place of the one that had the number.
    pub(super) fn insert(&mut self, number: u32, resource: R) {
        let LookupIndex(mut index) = self.find(number);
        if index == LookupIndex::NONE.0 {
            index = self.free.pop().unwrap_or_else(|| {
                self.resources.push(R::default());
                // At most one per number, of which there are 2^24.
                self.resources.len() as u32 - 1
            });
            *self.leaf_entry(number) = index;
        }
        self.resources[index as usize] = resource;
    }

    /// Takes out the resource of a number if it `is` the one that is meant.
    pub(super) fn remove(&mut self, number: u32, is: impl FnOnce(&R) -> bool) -> Option<R> {
        let LookupIndex(index) = self.find(number);
        if index == LookupIndex::NONE.0 || !is(&self.resources[index as usize]) {
            return None;
        }
        *self.leaf_entry(number) = LookupIndex::NONE.0;
        self.free.push(index);
        Some(core::mem::take(&mut self.resources[index as usize]))
    }

    fn leaf_entry(&mut self, number: u32) -> &mut u32 {
        let number = (number & ((1 << BITS) - 1)) as usize;
        let (top, leaf) = (number / LEAF, number % LEAF);
        if self.top.len() <= top {
            self.top.resize_with(top + 1, || None);
        }
        &mut self.top[top].get_or_insert_with(|| Box::new([LookupIndex::NONE.0; LEAF]))[leaf]
    }

    /// How many resources there are.
    pub(super) fn len(&self) -> usize {
        self.resources.len() - 1 - self.free.len()
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
