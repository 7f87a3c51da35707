// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps the number in a completion to the resource that it names.
//!
//! With CQE version 1 that number is the *user index* that the driver assigns to every QP, XRC SRQ and WQ; with version 0
//! it is the number of the QP or SRQ. Each CQ has its own table. The table is part of the state that the poller and the
//! control path access by turns, so a lookup takes no lock.

use core::fmt;

/// Numbers have 24 bits.
const BITS: u32 = 24;
/// Entries per leaf. A leaf contains the resources themselves, so a lookup loads two pointers instead of three. Leaves are
/// small, because most CQs have few resources, with adjacent numbers.
const LEAF: usize = 1 << 7;

/// Resources whose numbers differ in the low bits only.
struct Leaf<R> {
    /// `R::default()` if there is no resource.
    resources: [R; LEAF],
    is_used: [bool; LEAF],
}

/// The resources of a CQ by number. A lookup of a number without a resource returns `R::default()`.
pub(super) struct Lookup<R> {
    top: Vec<Option<Box<Leaf<R>>>>,
    /// The result for numbers without a leaf.
    default: R,
    len: usize,
}

impl<R: Default> Lookup<R> {
    pub(super) fn new() -> Self {
        Self { top: Vec::new(), default: R::default(), len: 0 }
    }

    /// The indices of a number in the two levels of the table; the upper 8 bits of the number are ignored.
    #[cfg_attr(not(debug_assertions), inline(always))]
    const fn place(number: u32) -> (usize, usize) {
        let number = (number & ((1 << BITS) - 1)) as usize;
        (number / LEAF, number % LEAF)
    }

    /// The resource of a number; the upper 8 bits of the number are ignored.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn get(&self, number: u32) -> &R {
        let (top, at) = Self::place(number);
        match self.top.get(top) {
            Some(Some(leaf)) => &leaf.resources[at],
            _ => &self.default,
        }
    }

    /// Inserts a resource; replaces the one with the same number.
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

    /// Removes the resource of a number if `is` returns true for it.
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

    /// The number of resources.
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
        assert_eq!(table.remove(0, |r| *r == 8), None, "another resource has that number");
        assert_eq!(table.remove(0, |r| *r == 7), Some(7));
        assert_eq!((*table.get(0), table.len()), (0, 0));
    }

    proptest! {
        #[test]
        fn a_table_behaves_as_a_map(steps in prop::collection::vec((0_u8..4, prop_oneof![0_u32..20, any::<u32>()], 1_u16..), 1..200)) {
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
