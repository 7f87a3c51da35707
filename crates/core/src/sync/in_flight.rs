// SPDX-License-Identifier: MIT OR Apache-2.0
//! What work requests in flight own: a slab of values, one for each work request of a queue, without a lock.
//!
//! The poster of the queue [inserts](Vacant::fill) a value before it posts, and uses the value's number as the `wr_id`.
//! The poller of the completion [takes](InFlight::take) it out by the number. The slab is allocated once, when the queue is
//! created.
//!
//! The upper half of a number is the key of the slab, the lower half counts the insertions: its low bits are the index of
//! the slot, the others its generation. A slot has the number of the value in it. So any number is allowed in
//! [`take`](InFlight::take): one that was never given, or whose value was taken before, finds nothing. Several threads may
//! take at the same time (a poller, and the control path when the queue is destroyed); each value goes to one of them.
//!
//! Each slot is in one of three states:
//!
//! | state | access to the value | next |
//! |---|---|---|
//! | free | the poster | occupied, by `fill` |
//! | occupied, with its number | none | busy, by the one `take` whose compare-and-swap succeeds |
//! | busy | that `take` | free |
#![expect(unsafe_code)]
// UNSAFETY: values in slots that a state machine protects; checked by loom.

use core::fmt;
use core::mem::MaybeUninit;

#[cfg(not(loom))]
use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

/// The key that no slab has: the states that are no numbers begin with it.
pub const NO_KEY: u32 = u32::MAX;

const FREE: u64 = u64::MAX;
const BUSY: u64 = u64::MAX - 1;

/// In one cache line, if a value has at most three words.
#[repr(align(32))]
struct Slot<T> {
    state: AtomicU64,
    /// Initialised while the slot is occupied or busy.
    value: UnsafeCell<MaybeUninit<T>>,
}

/// The values of a queue's work requests in flight.
pub struct InFlight<T> {
    /// A power of two of slots, at least one.
    slots: Box<[Slot<T>]>,
    mask: u32,
    /// The key in the upper half, which is not [`NO_KEY`].
    key: u64,
    /// The count of the next insertion; only the poster stores it.
    next: AtomicU32,
}

// SAFETY: a value is accessed by the thread that inserts it, and then by the one that takes it; the state of its slot
// orders the two (Release, Acquire). So the values need to be `Send`, and nothing is shared.
unsafe impl<T: Send> Sync for InFlight<T> {}

impl<T> fmt::Debug for InFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("slots", &self.slots.len())
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}

impl<T> InFlight<T> {
    /// Room for at least `capacity` values, at most 2^30.
    ///
    /// # Panics
    /// If the key is [`NO_KEY`].
    #[must_use]
    pub fn new(capacity: u32, key: u32) -> Self {
        assert_ne!(key, NO_KEY, "the key of a slab");
        let slots = capacity.clamp(1, 1 << 30).next_power_of_two();
        let slot = |_| Slot { state: AtomicU64::new(FREE), value: UnsafeCell::new(MaybeUninit::uninit()) };
        Self {
            slots: (0..slots).map(slot).collect(),
            mask: slots - 1,
            key: u64::from(key) << 32,
            next: AtomicU32::new(0),
        }
    }

    /// The number of slots.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// The number of values. Other threads may change it at any time: a value that is in the slab during the whole call is
    /// counted.
    #[must_use]
    pub fn len(&self) -> usize {
        // Acquire, so that what the caller does next is not before: it compares the number with another.
        self.slots.iter().filter(|slot| slot.state.load(Ordering::Acquire) != FREE).count()
    }

    /// Whether there are no values, as [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The upper half of its numbers.
    #[inline(always)]
    #[must_use]
    pub fn key(&self) -> u32 {
        (self.key >> 32) as u32
    }

    /// The slot of a number, of any slab.
    #[inline(always)]
    fn slot(&self, number: u64) -> &Slot<T> {
        debug_assert_eq!(self.slots.len(), self.mask as usize + 1);
        // SAFETY: the index is at most `mask`, which is one less than the number of slots (set at creation).
        unsafe { self.slots.get_unchecked((number as u32 & self.mask) as usize) }
    }

    /// The count of the next insertion, if its slot is free: the lower half of its number.
    #[inline(always)]
    #[must_use]
    pub fn next_count(&self) -> u32 {
        // Relaxed: the poster reads what it stored itself.
        self.next.load(Ordering::Relaxed)
    }

    /// The number of an insertion.
    #[inline(always)]
    #[must_use]
    pub fn number(&self, count: u32) -> u64 {
        self.key | u64::from(count)
    }

    /// The next slot, if it is free.
    ///
    /// # Errors
    /// The value, if the slot is not free.
    ///
    /// # Safety
    /// One thread at a time inserts or [retracts](Self::retract), ordered by the lock or the `&mut` of the queue; it makes no
    /// other call of them while it has the result.
    #[inline(always)]
    #[must_use]
    pub unsafe fn vacant(&self) -> Option<Vacant<'_, T>> {
        let count = self.next_count();
        let slot = self.slot(u64::from(count));
        // Acquire pairs with the Release of `take`: the value that was in the slot was moved out before.
        (slot.state.load(Ordering::Acquire) == FREE).then_some(Vacant { slab: self, slot, count })
    }

    /// As [`vacant`](Self::vacant), but skips slots that are not free, for queues whose work requests complete in any order.
    /// `None` if no slot is free.
    ///
    /// # Errors
    /// The value, if no slot is free.
    ///
    /// # Safety
    /// As [`vacant`](Self::vacant).
    #[inline(always)]
    #[must_use]
    pub unsafe fn vacant_anywhere(&self) -> Option<Vacant<'_, T>> {
        // SAFETY: the contract of this function is that of `vacant`.
        match unsafe { self.vacant() } {
            None if self.skip() => {}
            vacant => return vacant,
        }
        // SAFETY: as above.
        unsafe { self.vacant() }
    }

    /// Makes the next free slot that of the next insertion. `false` if there is none.
    #[cold]
    #[inline(never)]
    fn skip(&self) -> bool {
        (0..self.mask).any(|_| {
            let next = self.next_count().wrapping_add(1);
            self.next.store(next, Ordering::Relaxed);
            self.slot(u64::from(next)).state.load(Ordering::Acquire) == FREE
        })
    }

    /// Makes `count` the next one again, after the values from it on were taken because they were not posted.
    ///
    /// # Safety
    /// As [`vacant`](Self::vacant).
    pub unsafe fn retract(&self, count: u32) {
        self.next.store(count, Ordering::Relaxed);
    }

    /// Takes the value of this number out. Any number is allowed; one without a value returns `None`.
    #[inline(always)]
    pub fn take(&self, number: u64) -> Option<T> {
        self.claim(number).map(Claimed::take)
    }

    /// Makes the value of this number that of the caller. Any number is allowed; one without a value returns `None`.
    #[inline(always)]
    #[must_use]
    pub fn claim(&self, number: u64) -> Option<Claimed<'_, T>> {
        let slot = self.slot(number);
        // Acquire pairs with the Release of `fill`: the value was written before. A number is no state of a slot without a
        // value: those are the two greatest.
        if number >= BUSY
            || slot.state.compare_exchange(number, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return None;
        }
        Some(Claimed { slot })
    }

    /// Takes the values from the count `first` to the one before `number`, if they are still there, and passes them to `f`: the
    /// work requests of a queue that completes in order, when the one of `number`, which is one of this slab, is complete.
    #[cold]
    #[inline(never)]
    pub fn take_range(&self, first: u32, number: u64, f: impl FnMut(T)) {
        let end = number as u32;
        // More counts than slots can't have values: the oldest of them are gone.
        let count = end.wrapping_sub(first).min(self.mask.wrapping_add(1));
        (1..=count).rev().filter_map(|back| self.take(self.number(end.wrapping_sub(back)))).for_each(f);
    }

    /// Takes all values that are there and passes them to `f`, in any order.
    pub fn take_all(&self, mut f: impl FnMut(T)) {
        for slot in &self.slots {
            let state = slot.state.load(Ordering::Relaxed);
            if let Some(value) = self.take(state) {
                f(value);
            }
        }
    }
}

/// A busy slot, whose value is that of the owner of this. If it is dropped, the value and the slot are leaked.
#[must_use]
pub struct Claimed<'a, T> {
    slot: &'a Slot<T>,
}

impl<T> fmt::Debug for Claimed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Claimed")
    }
}

impl<T> Claimed<'_, T> {
    /// Moves the value out and frees the slot.
    #[inline(always)]
    pub fn take(self) -> T {
        // SAFETY: the slot was occupied, so the value is initialised, and the thread that made it busy made this, which is the
        // only one, so no other accesses the value.
        let value = unsafe { self.slot.read() };
        // Release pairs with the Acquire of `vacant`: the slot is reused after the value was moved out.
        self.slot.state.store(FREE, Ordering::Release);
        value
    }
}

/// A free slot, of the poster.
#[must_use]
pub struct Vacant<'a, T> {
    slab: &'a InFlight<T>,
    slot: &'a Slot<T>,
    count: u32,
}

impl<T> fmt::Debug for Vacant<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vacant").field("count", &self.count).finish_non_exhaustive()
    }
}

impl<T> Vacant<'_, T> {
    /// Puts a value into the slot and returns its number.
    #[inline(always)]
    pub fn fill(self, value: T) -> u64 {
        let Self { slab, slot, count } = self;
        // SAFETY: the slot is free and only the poster leaves this state. The poster is this thread: it called `vacant`, whose
        // contract excludes another insertion. So no other thread accesses the value.
        unsafe { slot.write(value) };
        let number = slab.number(count);
        // Release pairs with the Acquire of `take`.
        slot.state.store(number, Ordering::Release);
        slab.next.store(count.wrapping_add(1), Ordering::Relaxed);
        number
    }
}

impl<T> Slot<T> {
    /// # Safety
    /// No other thread accesses the value.
    #[inline(always)]
    unsafe fn write(&self, value: T) {
        #[cfg(not(loom))]
        // SAFETY: the caller has exclusive access.
        unsafe {
            (*self.value.get()).write(value);
        }
        #[cfg(loom)]
        // SAFETY: the caller has exclusive access; loom checks it.
        self.value.with_mut(|slot| unsafe {
            (*slot).write(value);
        });
    }

    /// # Safety
    /// The value is initialised, is not read again before it is written, and no other thread accesses it.
    #[inline(always)]
    unsafe fn read(&self) -> T {
        #[cfg(not(loom))]
        // SAFETY: no other thread accesses the value (the contract of this function).
        let value = unsafe { &*self.value.get() };
        #[cfg(not(loom))]
        // SAFETY: the value is initialised and not read again (the contract of this function).
        return unsafe { value.assume_init_read() };
        #[cfg(loom)]
        return self.value.with_mut(|slot| {
            // SAFETY: no other thread accesses the value (the contract of this function); loom checks it.
            let slot = unsafe { &*slot };
            // SAFETY: the value is initialised and not read again (the contract of this function).
            unsafe { slot.assume_init_read() }
        });
    }
}

impl<T> Drop for InFlight<T> {
    fn drop(&mut self) {
        self.take_all(drop);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;

    /// Inserts into a slab in one thread, which is its poster.
    fn insert<T>(slab: &InFlight<T>, value: T) -> Option<u64> {
        // SAFETY: the tests that call this insert by one thread.
        unsafe { slab.vacant() }.map(|vacant| vacant.fill(value))
    }

    /// As above, into any slot.
    fn insert_anywhere<T>(slab: &InFlight<T>, value: T) -> Option<u64> {
        // SAFETY: the tests that call this insert by one thread.
        unsafe { slab.vacant_anywhere() }.map(|vacant| vacant.fill(value))
    }

    #[test]
    fn a_number_finds_its_value_once() {
        let slab = InFlight::new(3, 5);
        assert_eq!(slab.capacity(), 4);
        let number = insert(&slab, "a").unwrap();
        assert_eq!((number, slab.len()), (5 << 32, 1));
        for other in [number + 4, 0, 4 << 32, number | 1 << 63, u64::MAX, u64::MAX - 1, u64::MAX - 4] {
            assert_eq!(slab.take(other), None, "{other:#x}");
        }
        assert_eq!(slab.take(number), Some("a"));
        assert_eq!((slab.take(number), slab.is_empty()), (None, true));
    }

    #[test]
    fn a_full_slab_has_no_vacant_slot() {
        let slab = InFlight::new(2, 5);
        let first = insert(&slab, 1).unwrap();
        let second = insert(&slab, 2).unwrap();
        assert_eq!(insert(&slab, 3), None);
        assert_eq!(slab.take(second), Some(2));
        assert_eq!(insert(&slab, 3), None, "slots are used in order");
        let skipped = insert_anywhere(&slab, 3).unwrap();
        assert_eq!(insert_anywhere(&slab, 4), None);
        assert_eq!((slab.take(first), slab.take(skipped)), (Some(1), Some(3)));
    }

    #[test]
    fn values_that_stay_are_dropped_with_the_slab() {
        let value = Arc::new(());
        let slab = InFlight::new(4, 5);
        insert(&slab, value.clone()).unwrap();
        let taken = insert(&slab, value.clone()).unwrap();
        drop(slab.take(taken));
        assert_eq!(Arc::strong_count(&value), 2);
        drop(slab);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert,
        InsertAnywhere,
        Take(u32),
        TakeThrough(u32),
        Retract,
        TakeAll,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Counts near those that are in use, and any others.
        let count = prop_oneof![(0u32..64).prop_map(|back| 40u32.wrapping_sub(back)), any::<u32>()];
        let step = prop_oneof![
            4 => Just(Step::Insert),
            2 => Just(Step::InsertAnywhere),
            3 => count.clone().prop_map(Step::Take),
            3 => count.prop_map(Step::TakeThrough),
            1 => Just(Step::Retract),
            1 => Just(Step::TakeAll),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        /// Whatever numbers are reported, each value comes out at most once, and by its own number.
        #[test]
        fn any_numbers_agree_with_a_list_of_values(steps in steps(), first: u32) {
            let slab = InFlight::new(8, 5);
            // SAFETY: one thread, and no values yet.
            unsafe { slab.retract(first) };
            let mut model: VecDeque<(u32, u32)> = VecDeque::new();
            let mut tail = first;
            let mut serial = 0;
            for step in steps {
                serial += 1;
                match step {
                    Step::Insert | Step::InsertAnywhere => {
                        let inserted = match step {
                            Step::Insert => insert(&slab, serial),
                            _ => insert_anywhere(&slab, serial),
                        };
                        if let Some(number) = inserted {
                            prop_assert_eq!(number >> 32, 5);
                            let count = number as u32;
                            prop_assert!(model.iter().all(|(t, _)| t & 7 != count & 7));
                            model.push_back((count, serial));
                        } else if matches!(step, Step::InsertAnywhere) {
                            prop_assert_eq!(model.len(), 8);
                        }
                    }
                    Step::Take(count) => {
                        let count = count.wrapping_add(first);
                        let at = model.iter().position(|(t, _)| *t == count);
                        let expected = at.and_then(|at| model.remove(at)).map(|(_, value)| value);
                        prop_assert_eq!(slab.take(slab.number(count)), expected);
                    }
                    Step::TakeThrough(count) => {
                        let count = count.wrapping_add(first);
                        let at = model.iter().position(|(t, _)| *t == count);
                        let value = slab.take(slab.number(count));
                        prop_assert_eq!(value, at.map(|at| model[at].1));
                        if at.is_some() {
                            let mut taken = Vec::new();
                            slab.take_range(tail, slab.number(count), |value| taken.push(value));
                            tail = count.wrapping_add(1);
                            for value in taken {
                                let at = model.iter().position(|(_, v)| *v == value).unwrap();
                                let (t, _) = model.remove(at).unwrap();
                                prop_assert!(count.wrapping_sub(t) <= 8, "a later value was taken");
                            }
                            model.retain(|(t, _)| *t != count);
                        }
                    }
                    Step::Retract => {
                        if let Some((count, value)) = model.back().copied()
                            && count.wrapping_add(1) == slab.next_count()
                        {
                            model.pop_back();
                            prop_assert_eq!(slab.take(slab.number(count)), Some(value));
                            // SAFETY: one thread.
                            unsafe { slab.retract(count) };
                        }
                    }
                    Step::TakeAll => {
                        let mut taken = Vec::new();
                        slab.take_all(|value| taken.push(value));
                        taken.sort_unstable();
                        prop_assert_eq!(taken, model.drain(..).map(|(_, value)| value).collect::<Vec<_>>());
                    }
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// Inserts by the test's first thread, which is the poster.
    fn insert<T>(slab: &InFlight<T>, value: T) -> Option<u64> {
        // SAFETY: only the first thread of a test calls this.
        unsafe { slab.vacant() }.map(|vacant| vacant.fill(value))
    }

    /// A poster reuses the slot of a value that a poller takes.
    #[test]
    fn a_slot_is_reused_after_its_value_was_moved_out() {
        loom::model(|| {
            let slab = Arc::new(InFlight::new(1, 5));
            let number = insert(&slab, Box::new(1)).unwrap();
            let poller = slab.clone();
            let taken = loom::thread::spawn(move || poller.take(number));
            let second = insert(&slab, Box::new(2));
            assert_eq!(taken.join().unwrap(), Some(Box::new(1)));
            if let Some(second) = second {
                assert_eq!(slab.take(second), Some(Box::new(2)));
            }
        });
    }

    /// A poller, a second report of the same completion, and the control path take at the same time.
    #[test]
    fn a_value_goes_to_one_of_several() {
        loom::model(|| {
            let slab = Arc::new(InFlight::new(2, 5));
            let number = insert(&slab, Box::new(1)).unwrap();
            let (poller, control) = (slab.clone(), slab.clone());
            let polled = loom::thread::spawn(move || poller.take(number).is_some());
            let purged = loom::thread::spawn(move || {
                let mut count = 0;
                control.take_all(|_| count += 1);
                count == 1
            });
            let again = slab.take(number).is_some();
            let wins = [polled.join().unwrap(), purged.join().unwrap(), again];
            assert_eq!(wins.iter().filter(|won| **won).count(), 1);
        });
    }

    /// The values before a completion are taken by the poller or by the control path, and none by both.
    #[test]
    fn earlier_values_are_taken_once() {
        loom::model(|| {
            let slab = Arc::new(InFlight::new(2, 5));
            insert(&slab, Box::new(1)).unwrap();
            let last = insert(&slab, Box::new(2)).unwrap();
            let control = slab.clone();
            let purged = loom::thread::spawn(move || {
                let mut sum = 0;
                control.take_all(|value| sum += *value);
                sum
            });
            let mut sum = 0;
            if let Some(value) = slab.take(last) {
                sum += *value;
                slab.take_range(0, last, |value| sum += *value);
            }
            assert_eq!(sum + purged.join().unwrap(), 3);
        });
    }
}
