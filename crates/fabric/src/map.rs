// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps and sets of numbers, in order.
//!
//! They do what [`BTreeMap`] and `BTreeSet` do. But those are compiled again for each type of key and value, and a device has dozens of
//! maps: that was 40 % of its code. Here a key is a number of 128 bits, and a value stands in a slot, so that all maps of all devices
//! have the code of one [`BTreeMap`], which is in this crate.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};
use std::collections::{BTreeMap, btree_map};

/// A key, whose order is that of a number of [`BITS`](Key::BITS) bits.
pub trait Key: Copy {
    /// Bits of the number, 128 at most.
    const BITS: u32;
    /// The number.
    fn number(self) -> u128;
    /// The key of the number in the lowest bits.
    fn of(number: u128) -> Self;
}

/// The bits of a key that consists of others.
const fn bits(sum: u32) -> u32 {
    assert!(sum <= u128::BITS, "the key has too many bits");
    sum
}

macro_rules! keys {
    ($($t:ty)*) => {$(
        impl Key for $t {
            const BITS: u32 = <$t>::BITS;

            fn number(self) -> u128 {
                self as u128
            }

            fn of(number: u128) -> Self {
                number as $t
            }
        }
    )*};
}
keys!(u16 u32 u64 usize);

/// The order is that of the signed numbers.
impl Key for i32 {
    const BITS: u32 = Self::BITS;

    fn number(self) -> u128 {
        (self.cast_unsigned() ^ 1 << 31).into()
    }

    fn of(number: u128) -> Self {
        (number as u32 ^ 1 << 31).cast_signed()
    }
}

impl Key for () {
    const BITS: u32 = 0;

    fn number(self) -> u128 {
        0
    }

    fn of(_: u128) -> Self {}
}

impl<A: Key, B: Key> Key for (A, B) {
    const BITS: u32 = bits(A::BITS + B::BITS);

    fn number(self) -> u128 {
        // A constant of a trait is only computed where it is used.
        const { assert!(Self::BITS <= u128::BITS) };
        // `A` may have 0 bits, and `B` all of them.
        self.0.number().checked_shl(B::BITS).unwrap_or(0) | self.1.number()
    }

    fn of(number: u128) -> Self {
        (A::of(number.checked_shr(B::BITS).unwrap_or(0)), B::of(number))
    }
}

impl<A: Key, B: Key, C: Key, D: Key> Key for (A, B, C, D) {
    const BITS: u32 = <((A, B), (C, D))>::BITS;

    fn number(self) -> u128 {
        ((self.0, self.1), (self.2, self.3)).number()
    }

    fn of(number: u128) -> Self {
        let ((a, b), (c, d)) = Key::of(number);
        (a, b, c, d)
    }
}

/// A bit before the number: `None` comes first.
impl<A: Key> Key for Option<A> {
    const BITS: u32 = bits(A::BITS + 1);

    fn number(self) -> u128 {
        const { assert!(Self::BITS <= u128::BITS) };
        self.map_or(0, |key| 1 << A::BITS | key.number())
    }

    fn of(number: u128) -> Self {
        (number >> A::BITS & 1 != 0).then(|| A::of(number))
    }
}

/// The one map. Its functions are not generic, so that they are compiled in this crate.
#[derive(Clone, Default)]
struct Index(BTreeMap<u128, u32>);

impl Index {
    fn get(&self, key: u128) -> Option<u32> {
        self.0.get(&key).copied()
    }

    /// The slot of the key, or else `new` for it.
    fn slot(&mut self, key: u128, new: u32) -> u32 {
        *self.0.entry(key).or_insert(new)
    }

    fn remove(&mut self, key: u128) -> Option<u32> {
        self.0.remove(&key)
    }

    fn first(&self) -> Option<(u128, u32)> {
        self.0.first_key_value().map(|(key, slot)| (*key, *slot))
    }

    fn last(&self) -> Option<(u128, u32)> {
        self.0.last_key_value().map(|(key, slot)| (*key, *slot))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn all(&self) -> Places<'_> {
        Places(self.0.range(..))
    }

    /// Those of a range, which is empty if it ends before it begins.
    fn range(&self, from: Bound<u128>, to: Bound<u128>) -> Places<'_> {
        let is_empty = match (from, to) {
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => {
                from >= to
            }
            _ => false,
        };
        Places(if is_empty { self.0.range(0..0) } else { self.0.range((from, to)) })
    }
}

/// Keys and their slots, in order.
struct Places<'m>(btree_map::Range<'m, u128, u32>);

impl Iterator for Places<'_> {
    type Item = (u128, u32);

    fn next(&mut self) -> Option<(u128, u32)> {
        self.0.next().map(|(key, slot)| (*key, *slot))
    }
}

impl DoubleEndedIterator for Places<'_> {
    fn next_back(&mut self) -> Option<(u128, u32)> {
        self.0.next_back().map(|(key, slot)| (*key, *slot))
    }
}

fn bounds<K: Key>(range: &impl RangeBounds<K>) -> (Bound<u128>, Bound<u128>) {
    (range.start_bound().map(|key| key.number()), range.end_bound().map(|key| key.number()))
}

/// A map in the order of its keys.
///
/// The values stand in slots, each in one as long as it is in the map. Memory is kept for as many values as the map had at a time, until
/// it is empty.
#[derive(Clone)]
pub struct Map<K, V> {
    index: Index,
    slots: Vec<Option<V>>,
    free: Vec<u32>,
    key: PhantomData<K>,
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Map<K, V> {
    /// An empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self { index: Index(BTreeMap::new()), slots: Vec::new(), free: Vec::new(), key: PhantomData }
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.index.clear();
        (self.slots, self.free) = (Vec::new(), Vec::new());
    }

    /// The values, in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.index.all().filter_map(|(_, slot)| self.at(slot))
    }

    /// The values, in no order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.slots.iter_mut().flatten()
    }

    /// The values, in no order.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.slots.into_iter().flatten()
    }

    fn at(&self, slot: u32) -> Option<&V> {
        self.slots.get(slot as usize)?.as_ref()
    }

    fn at_mut(&mut self, slot: u32) -> Option<&mut V> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The slot that the next key gets.
    fn next(&self) -> u32 {
        // Below 2^32: a device has fewer objects of all kinds.
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }

    /// Puts a value into the slot that was the [next](Self::next).
    fn fill(&mut self, value: V) -> &mut V {
        let place = match self.free.pop() {
            Some(slot) => &mut self.slots[slot as usize],
            None => {
                self.slots.push(None);
                let last = self.slots.len() - 1;
                &mut self.slots[last]
            }
        };
        place.insert(value)
    }

    fn take(&mut self, slot: u32) -> Option<V> {
        let value = self.slots.get_mut(slot as usize)?.take();
        if self.is_empty() {
            (self.slots, self.free) = (Vec::new(), Vec::new());
        } else {
            self.free.push(slot);
        }
        value
    }
}

impl<K: Key, V> Map<K, V> {
    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.at(self.index.get(key.number())?)
    }

    /// The value of a key.
    #[must_use]
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.at_mut(self.index.get(key.number())?)
    }

    /// Whether the key has a value.
    #[must_use]
    pub fn contains_key(&self, key: &K) -> bool {
        self.index.get(key.number()).is_some()
    }

    /// Stores the value of a key. Returns the one that it had.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let next = self.next();
        let slot = self.index.slot(key.number(), next);
        if slot != next {
            return self.at_mut(slot).map(|place| core::mem::replace(place, value));
        }
        self.fill(value);
        None
    }

    /// The value of a key; if there is none, it gets this one.
    pub fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        let next = self.next();
        // Before the index has the key: it may panic.
        let new = if self.contains_key(&key) { None } else { Some(value()) };
        let slot = self.index.slot(key.number(), next);
        match new {
            Some(value) => self.fill(value),
            None => self.slots[slot as usize].as_mut().expect("a slot of the index has a value"),
        }
    }

    /// The value of a key; if there is none, it gets the default.
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.get_or_insert_with(key, V::default)
    }

    /// Removes a key. Returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.index.remove(key.number())?;
        self.take(slot)
    }

    /// Removes the lowest key.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        let (key, slot) = self.index.first()?;
        self.index.remove(key);
        Some((K::of(key), self.take(slot)?))
    }

    /// The lowest key and its value.
    #[must_use]
    pub fn first_key_value(&self) -> Option<(K, &V)> {
        let (key, slot) = self.index.first()?;
        Some((K::of(key), self.at(slot)?))
    }

    /// The highest key and its value.
    #[must_use]
    pub fn last_key_value(&self) -> Option<(K, &V)> {
        let (key, slot) = self.index.last()?;
        Some((K::of(key), self.at(slot)?))
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> {
        self.index.all().map(|(key, _)| K::of(key))
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.index.all().filter_map(|(key, slot)| Some((K::of(key), self.at(slot)?)))
    }

    /// The entries of a range, in order.
    pub fn range(&self, range: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = (K, &V)> {
        let (from, to) = bounds(&range);
        self.index.range(from, to).filter_map(|(key, slot)| Some((K::of(key), self.at(slot)?)))
    }

    /// Calls a function with each entry, in order.
    pub fn each_mut(&mut self, mut f: impl FnMut(K, &mut V)) {
        for (key, slot) in self.index.all() {
            if let Some(value) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
                f(K::of(key), value);
            }
        }
    }

    /// Removes the entries for which the function is false, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(K, &mut V) -> bool) {
        let mut gone = Vec::new();
        self.each_mut(|key, value| {
            if !keep(key, value) {
                gone.push(key);
            }
        });
        for key in gone {
            self.remove(&key);
        }
    }
}

impl<K: Key, V> core::ops::Index<&K> for Map<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        self.get(key).expect("the map has the key")
    }
}

impl<K: Key + fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Key, V> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        entries.into_iter().for_each(|(key, value)| {
            map.insert(key, value);
        });
        map
    }
}

/// A set, in order.
#[derive(Clone)]
pub struct Set<K> {
    index: Index,
    key: PhantomData<K>,
}

impl<K> Default for Set<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Set<K> {
    /// An empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { index: Index(BTreeMap::new()), key: PhantomData }
    }

    /// The number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.index.clear();
    }
}

impl<K: Key> Set<K> {
    /// Whether the set has the key.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.index.get(key.number()).is_some()
    }

    /// Adds a key. Returns whether it is new.
    pub fn insert(&mut self, key: K) -> bool {
        let len = self.len();
        self.index.slot(key.number(), 0);
        self.len() != len
    }

    /// Removes a key. Returns whether the set had it.
    pub fn remove(&mut self, key: &K) -> bool {
        self.index.remove(key.number()).is_some()
    }

    /// The lowest key.
    #[must_use]
    pub fn first(&self) -> Option<K> {
        self.index.first().map(|(key, _)| K::of(key))
    }

    /// Removes the lowest key.
    pub fn pop_first(&mut self) -> Option<K> {
        let (key, _) = self.index.first()?;
        self.index.remove(key);
        Some(K::of(key))
    }

    /// The keys, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = K> {
        self.index.all().map(|(key, _)| K::of(key))
    }

    /// The keys of a range, in order.
    pub fn range(&self, range: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = K> {
        let (from, to) = bounds(&range);
        self.index.range(from, to).map(|(key, _)| K::of(key))
    }

    /// Removes the keys for which the function is false, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(K) -> bool) {
        let gone: Vec<K> = self.iter().filter(|key| !keep(*key)).collect();
        for key in gone {
            self.remove(&key);
        }
    }
}

impl<K: Key + fmt::Debug> fmt::Debug for Set<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<K: Key> Extend<K> for Set<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        keys.into_iter().for_each(|key| {
            self.insert(key);
        });
    }
}

impl<K: Key> FromIterator<K> for Set<K> {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut set = Self::new();
        set.extend(keys);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ops::RangeInclusive;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A key of several parts, few of each, so that keys repeat.
    type Long = (Option<(u16, i32)>, (u32, u16));

    #[derive(Clone, Debug)]
    enum Op {
        Insert(Long, u8),
        GetOrInsert(Long, u8),
        Remove(Long),
        PopFirst,
        Retain(u8),
        Clear,
        Range(RangeInclusive<Long>),
    }

    fn key() -> impl Strategy<Value = Long> {
        let numbers = prop_oneof![Just(0_u16), Just(1), Just(7), Just(u16::MAX)];
        let signed = prop_oneof![Just(i32::MIN), Just(-1), Just(0), Just(i32::MAX)];
        let words = prop_oneof![Just(0_u32), Just(9), Just(u32::MAX)];
        (proptest::option::of((numbers.clone(), signed)), (words, numbers))
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (key(), any::<u8>()).prop_map(|(key, value)| Op::Insert(key, value)),
            2 => (key(), any::<u8>()).prop_map(|(key, value)| Op::GetOrInsert(key, value)),
            4 => key().prop_map(Op::Remove),
            1 => Just(Op::PopFirst),
            1 => any::<u8>().prop_map(Op::Retain),
            1 => Just(Op::Clear),
            2 => (key(), key()).prop_map(|(from, to)| Op::Range(from..=to)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// A map and a set do what those of the standard library do.
        #[test]
        fn maps_and_sets_are_those_of_the_standard_library(ops in proptest::collection::vec(op(), 0..60)) {
            let (mut map, mut model) = (Map::<Long, u8>::new(), BTreeMap::<Long, u8>::new());
            let (mut set, mut keys) = (Set::<Long>::new(), BTreeSet::<Long>::new());
            for op in ops {
                match op {
                    Op::Insert(key, value) => {
                        prop_assert_eq!(map.insert(key, value), model.insert(key, value));
                        prop_assert_eq!(set.insert(key), keys.insert(key));
                    }
                    Op::GetOrInsert(key, value) => {
                        prop_assert_eq!(map.get_or_insert_with(key, || value), model.entry(key).or_insert(value));
                        set.extend([key]);
                        keys.insert(key);
                    }
                    Op::Remove(key) => {
                        prop_assert_eq!(map.get(&key), model.get(&key));
                        prop_assert_eq!(map.get_mut(&key), model.get_mut(&key));
                        prop_assert_eq!(map.remove(&key), model.remove(&key));
                        prop_assert_eq!(set.contains(&key), keys.contains(&key));
                        prop_assert_eq!(set.remove(&key), keys.remove(&key));
                    }
                    Op::PopFirst => {
                        prop_assert_eq!(map.pop_first(), model.pop_first());
                        prop_assert_eq!(set.pop_first(), keys.pop_first());
                    }
                    Op::Retain(odd) => {
                        map.retain(|key, value| key.1.0 != 9 && *value % 3 != odd % 3);
                        model.retain(|key, value| key.1.0 != 9 && *value % 3 != odd % 3);
                        set.retain(|key| model.contains_key(&key));
                        keys.retain(|key| model.contains_key(key));
                    }
                    Op::Clear => {
                        map.clear();
                        model.clear();
                        set.clear();
                        keys.clear();
                    }
                    Op::Range(range) => {
                        // One that ends before it begins is a panic there.
                        let (from, to) = (*range.start(), *range.end());
                        let ordered = if from <= to { from..=to } else { to..=from };
                        let found: Vec<_> = model.range(ordered.clone()).map(|(key, value)| (*key, value)).collect();
                        prop_assert!(map.range(ordered.clone()).eq(found.iter().copied()));
                        prop_assert!(map.range(ordered).rev().eq(found.into_iter().rev()));
                        prop_assert!(from <= to || map.range(range.clone()).next().is_none());
                        prop_assert!(map.range(from..).eq(model.range(from..).map(|(key, value)| (*key, value))));
                        prop_assert!(set.range(..to).eq(keys.range(..to).copied()));
                    }
                }
                prop_assert!(map.iter().eq(model.iter().map(|(key, value)| (*key, value))));
                prop_assert!(map.keys().eq(model.keys().copied()) && map.values().eq(model.values()));
                prop_assert_eq!(map.first_key_value(), model.first_key_value().map(|(key, value)| (*key, value)));
                prop_assert_eq!(map.last_key_value(), model.last_key_value().map(|(key, value)| (*key, value)));
                prop_assert!(set.iter().eq(keys.iter().copied()) && set.first() == keys.first().copied());
                prop_assert_eq!((map.len(), set.len()), (model.len(), keys.len()));
                let (mut some, mut all) = (map.values_mut().map(|value| *value).collect::<Vec<_>>(), Vec::new());
                map.each_mut(|_, value| all.push(*value));
                some.sort_unstable();
                prop_assert!(all.iter().eq(model.values()));
                all.sort_unstable();
                prop_assert_eq!(some, all);
            }
        }

        /// The parts of keys are found again, and keys are in the order of their parts.
        #[test]
        fn keys_have_the_order_of_their_numbers(a: (usize, u16, u16, u32), b: (usize, u16, u16, u32), c: (u64, u64), d: (u64, u64)) {
            prop_assert_eq!((Key::of(a.number()), Key::of(c.number())), (a, c));
            prop_assert_eq!(a.number().cmp(&b.number()), a.cmp(&b));
            prop_assert_eq!(c.number().cmp(&d.number()), c.cmp(&d));
        }
    }

    #[test]
    fn slots_are_used_again_and_memory_is_returned() {
        let mut map = Map::new();
        for n in 0..1000_u32 {
            map.insert(n, n);
            map.insert(n + 1, n);
            assert_eq!(map.remove(&n), Some(n));
        }
        assert!(map.slots.len() <= 3, "{}", map.slots.len());
        map.remove(&1000);
        assert!(map.is_empty() && map.slots.capacity() == 0 && map.free.capacity() == 0);
    }

    #[test]
    fn a_value_that_panics_leaves_no_key() {
        let mut map = Map::<u32, u32>::new();
        let made = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
            map.get_or_insert_with(1, || panic!("no value"));
        }));
        assert!(made.is_err() && map.is_empty() && map.get(&1).is_none());
        assert_eq!(*map.get_or_default(1), 0);
        assert_eq!(map[&1], 0);
    }
}
