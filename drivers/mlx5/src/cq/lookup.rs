// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the number in a completion to the queue that it is of.
//!
//! With CQE version 1 that number is the *user index* which the driver gives to every QP, XRC SRQ and WQ; with version 0
//! it is the QP's or the SRQ's own. Each completion queue has a table of its own that only its poller touches, so that
//! looking up takes no lock and nothing can vanish under it: the control path sends word of new and destroyed
//! resources by the queue's mailbox (`cq::shared`).
//!
//! A user index is given out again when the last who knows it is gone ([`UserIndex`] is owned by the resource's shared
//! part): a destroyed QP's index stays taken until every queue that it completed to has swept its entries out.

use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Numbers have 24 bits.
const BITS: u32 = 24;
/// Numbers of a leaf of the table.
const LEAF: usize = 1 << 8;

/// No resource: what an unknown number finds.
const NOTHING: u32 = 0;

/// Where a resource stands in its table, until that changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot(u32);

/// Resources of a completion queue by number.
pub(crate) struct Lookup<R> {
    /// Two levels: number -> slot.
    top: Vec<Option<Box<[u32; LEAF]>>>,
    /// Slot 0 holds nothing, for ever.
    slots: Vec<Option<R>>,
    free: Vec<u32>,
}

impl<R> Lookup<R> {
    pub(crate) fn new() -> Self {
        Self { top: Vec::new(), slots: vec![None], free: Vec::new() }
    }

    #[inline(always)]
    fn slot(&self, number: u32) -> u32 {
        let (top, leaf) = (number as usize / LEAF, number as usize % LEAF);
        self.top.get(top).and_then(Option::as_ref).map_or(NOTHING, |leaves| leaves[leaf])
    }

    /// Where the resource of a number stands; the upper 8 bits are not looked at.
    #[inline(always)]
    pub(crate) fn find(&self, number: u32) -> Slot {
        Slot(self.slot(number & ((1 << BITS) - 1)))
    }

    /// The resource at a slot, if there is one.
    #[inline(always)]
    pub(crate) fn at(&self, slot: Slot) -> Option<&R> {
        self.slots.get(slot.0 as usize)?.as_ref()
    }

    /// The resource of a number, if there is one.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&R> {
        self.at(self.find(number))
    }

    /// Enters a resource, in place of the one that had the number.
    pub(crate) fn insert(&mut self, number: u32, resource: R) {
        let number = number & ((1 << BITS) - 1);
        let slot = self.slot(number);
        if slot != NOTHING {
            self.slots[slot as usize] = Some(resource);
            return;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // At most one slot per number, of which there are 2^24.
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(resource);
        let (top, leaf) = (number as usize / LEAF, number as usize % LEAF);
        if self.top.len() <= top {
            self.top.resize_with(top + 1, || None);
        }
        self.top[top].get_or_insert_with(|| Box::new([NOTHING; LEAF]))[leaf] = slot;
    }

    /// Takes out the resource of a number if it is the one that `is` knows.
    pub(crate) fn remove(&mut self, number: u32, is: impl FnOnce(&R) -> bool) -> Option<R> {
        let number = number & ((1 << BITS) - 1);
        let slot = self.slot(number);
        if !self.slots[slot as usize].as_ref().is_some_and(is) {
            return None;
        }
        let (top, leaf) = (number as usize / LEAF, number as usize % LEAF);
        if let Some(leaves) = &mut self.top[top] {
            leaves[leaf] = NOTHING;
        }
        self.free.push(slot);
        self.slots[slot as usize].take()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - 1 - self.free.len()
    }
}

impl<R> fmt::Debug for Lookup<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").field("resources", &self.len()).finish_non_exhaustive()
    }
}

/// The user indices of a context.
#[derive(Debug, Default)]
pub struct UserIndices {
    state: Mutex<Indices>,
}

#[derive(Debug, Default)]
struct Indices {
    /// All below this have been given out once.
    next: u32,
    /// Those that came back, the lowest last.
    free: Vec<u32>,
}

impl UserIndices {
    /// The lowest index that is free; `None` if 2^24 are taken.
    pub fn take(self: &Arc<Self>) -> Option<UserIndex> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match state.free.pop() {
            Some(index) => index,
            // All ones is what the kernel takes for "none" (`MLX5_IB_DEFAULT_UIDX`).
            None if state.next < (1 << BITS) - 1 => {
                state.next += 1;
                state.next - 1
            }
            None => return None,
        };
        Some(UserIndex { index, of: Arc::clone(self) })
    }
}

/// A user index, given back when it is dropped.
#[derive(Debug)]
pub struct UserIndex {
    index: u32,
    of: Arc<UserIndices>,
}

impl UserIndex {
    /// The number.
    pub fn get(&self) -> u32 {
        self.index
    }
}

impl Drop for UserIndex {
    fn drop(&mut self) {
        let mut state = self.of.state.lock().unwrap_or_else(PoisonError::into_inner);
        let at = state.free.partition_point(|index| *index > self.index);
        state.free.insert(at, self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn nothing_is_found_before_anything_is_there() {
        let mut table = Lookup::<u8>::new();
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(0xffff_ffff), None);
        table.insert(0, 7);
        assert_eq!(table.get(0), Some(&7));
        assert_eq!(table.get(0xff00_0000), Some(&7), "24 bits");
        assert_eq!(table.remove(0, |r| *r == 8), None, "not that one");
        assert_eq!(table.remove(0, |r| *r == 7), Some(7));
        assert_eq!(table.get(0), None);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn an_index_comes_back_with_its_owner() {
        let indices = Arc::new(UserIndices::default());
        let mut taken: Vec<_> = (0..5).map(|_| indices.take().unwrap()).collect();
        assert_eq!(taken.iter().map(UserIndex::get).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        taken.remove(3);
        taken.remove(1);
        let again: Vec<_> = (0..3).map(|_| indices.take().unwrap()).collect();
        assert_eq!(again.iter().map(UserIndex::get).collect::<Vec<_>>(), [1, 3, 5], "the lowest first");
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(steps in prop::collection::vec((0_u8..4, prop_oneof![0_u32..20, any::<u32>()], any::<u16>()), 1..200)) {
            let (mut table, mut map) = (Lookup::new(), HashMap::new());
            for (what, number, value) in steps {
                let key = number & 0xff_ffff;
                match what {
                    0 => {
                        table.insert(number, value);
                        map.insert(key, value);
                    }
                    1 => prop_assert_eq!(table.remove(number, |_| true), map.remove(&key)),
                    _ => prop_assert_eq!(table.get(number), map.get(&key)),
                }
                prop_assert_eq!(table.len(), map.len());
            }
        }
    }
}
