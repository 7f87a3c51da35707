// SPDX-License-Identifier: MIT OR Apache-2.0
//! What work requests in flight own: a slab of values, one for each work request of a queue, without a lock.
//!
//! The poster of the queue [inserts](InFlight::insert) a value before it posts, and puts the token of the value into the
//! `wr_id`. The poller of the completion [takes](InFlight::take) it out by the token. The slab is allocated once, when the
//! queue is created.
//!
//! A token is the number of the insertion: its low bits are the index of the slot, the others its generation. A slot has
//! the token of the value in it. So any number is allowed in [`take`](InFlight::take): one that was never given, or whose
//! value was taken before, finds nothing. Several threads may take at the same time (a poller, and the control path when
//! the queue is destroyed); each value goes to one of them.
//!
//! Each slot is in one of three states:
//!
//! | state | who may access the value | next |
//! |---|---|---|
//! | free | the poster | occupied, by `insert` |
//! | occupied, with its token | nobody | busy, by the one `take` whose compare-and-swap succeeds |
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

const FREE: u64 = 0;
const BUSY: u64 = 1;

/// The state of a slot that has the value of this token.
#[inline(always)]
const fn occupied(token: u32) -> u64 {
    1 << 32 | token as u64
}

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
    /// The token of the next insertion; only the poster stores it.
    next: AtomicU32,
    /// All tokens before this one were taken by [`take_before`](Self::take_before). A hint: any value is sound.
    tail: AtomicU32,
}

// SAFETY: a value is accessed by the thread that inserts it, and then by the one that takes it; the state of its slot
// orders the two (Release, Acquire). So the values need to be `Send`, and nothing is shared.
unsafe impl<T: Send> Sync for InFlight<T> {}

impl<T> fmt::Debug for InFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

impl<T> InFlight<T> {
    /// Room for at least `capacity` values, at most 2^30.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        let slots = capacity.clamp(1, 1 << 30).next_power_of_two();
        let slot = |_| Slot { state: AtomicU64::new(FREE), value: UnsafeCell::new(MaybeUninit::uninit()) };
        Self {
            slots: (0..slots).map(slot).collect(),
            mask: slots - 1,
            next: AtomicU32::new(0),
            tail: AtomicU32::new(0),
        }
    }

    /// The number of slots.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[inline(always)]
    fn slot(&self, token: u32) -> &Slot<T> {
        debug_assert_eq!(self.slots.len(), self.mask as usize + 1);
        // SAFETY: the index is at most `mask`, which is one less than the number of slots (set at creation).
        unsafe { self.slots.get_unchecked((token & self.mask) as usize) }
    }

    /// The token of the next insertion, if its slot is free.
    #[inline(always)]
    #[must_use]
    pub fn next_token(&self) -> u32 {
        // Relaxed: the poster reads what it stored itself.
        self.next.load(Ordering::Relaxed)
    }

    /// Puts a value into the next slot and returns its token; or returns the value if the slot is not free.
    ///
    /// # Errors
    /// The value, if the slot is not free.
    ///
    /// # Safety
    /// One thread at a time inserts or [retracts](Self::retract), ordered by the lock or the `&mut` of the queue.
    #[inline(always)]
    pub unsafe fn insert(&self, value: T) -> Result<u32, T> {
        let token = self.next_token();
        let slot = self.slot(token);
        // Acquire pairs with the Release of `take`: the value that was in the slot was moved out before.
        if slot.state.load(Ordering::Acquire) != FREE {
            return Err(value);
        }
        // SAFETY: the slot is free and only the poster, which is this thread (the contract of this function), leaves this
        // state, so no other thread accesses the value.
        unsafe { slot.write(value) };
        // Release pairs with the Acquire of `take`.
        slot.state.store(occupied(token), Ordering::Release);
        self.next.store(token.wrapping_add(1), Ordering::Relaxed);
        Ok(token)
    }

    /// As [`insert`](Self::insert), but skips slots that are not free, for queues whose work requests complete in any order.
    /// Fails if no slot is free.
    ///
    /// # Errors
    /// The value, if no slot is free.
    ///
    /// # Safety
    /// As [`insert`](Self::insert).
    #[inline(always)]
    pub unsafe fn insert_anywhere(&self, value: T) -> Result<u32, T> {
        // SAFETY: the contract of this function is that of `insert`.
        match unsafe { self.insert(value) } {
            Ok(token) => Ok(token),
            // SAFETY: as above.
            Err(value) => unsafe { self.insert_after_skipping(value) },
        }
    }

    /// # Safety
    /// As [`insert`](Self::insert).
    #[cold]
    unsafe fn insert_after_skipping(&self, mut value: T) -> Result<u32, T> {
        for _ in 0..self.slots.len() {
            self.next.store(self.next_token().wrapping_add(1), Ordering::Relaxed);
            // SAFETY: the contract of this function is that of `insert`.
            match unsafe { self.insert(value) } {
                Ok(token) => return Ok(token),
                Err(back) => value = back,
            }
        }
        Err(value)
    }

    /// Makes `token` the next one again, after the values from it on were taken because they were not posted.
    ///
    /// # Safety
    /// As [`insert`](Self::insert).
    pub unsafe fn retract(&self, token: u32) {
        self.next.store(token, Ordering::Relaxed);
    }

    /// Takes the value of this token out. Any number is allowed; one without a value returns `None`.
    #[inline(always)]
    pub fn take(&self, token: u32) -> Option<T> {
        let slot = self.slot(token);
        // Acquire pairs with the Release of `insert`: the value was written before.
        let mine = slot.state.compare_exchange(occupied(token), BUSY, Ordering::Acquire, Ordering::Relaxed);
        if mine.is_err() {
            return None;
        }
        // SAFETY: the slot was occupied, so the value is initialised, and this thread made it busy, so no other accesses it.
        let value = unsafe { slot.read() };
        // Release pairs with the Acquire of `insert`: the slot is reused after the value was moved out.
        slot.state.store(FREE, Ordering::Release);
        Some(value)
    }

    /// Takes the values before `token` that are still there and passes them to `f`: the work requests of a queue that
    /// completes in order, when the one of `token` is complete.
    #[inline(always)]
    pub fn take_before(&self, token: u32, f: impl FnMut(T)) {
        // Relaxed: a hint. A stale value leads to tokens that `take` does not find.
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(token.wrapping_add(1), Ordering::Relaxed);
        if tail != token {
            self.take_range(tail, token, f);
        }
    }

    #[inline(never)]
    fn take_range(&self, tail: u32, token: u32, f: impl FnMut(T)) {
        // More tokens than slots can't have values: the oldest of them are gone.
        let count = token.wrapping_sub(tail).min(self.mask.wrapping_add(1));
        (1..=count).rev().filter_map(|back| self.take(token.wrapping_sub(back))).for_each(f);
    }

    /// Takes all values that are there and passes them to `f`, in any order.
    pub fn take_all(&self, mut f: impl FnMut(T)) {
        for slot in &self.slots {
            let state = slot.state.load(Ordering::Relaxed);
            if state >= occupied(0)
                && let Some(value) = self.take(state as u32)
            {
                f(value);
            }
        }
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

    /// A slab in one thread, which is its poster.
    fn insert<T>(slab: &InFlight<T>, value: T) -> Result<u32, T> {
        // SAFETY: the tests that call this insert by one thread.
        unsafe { slab.insert(value) }
    }

    #[test]
    fn a_token_finds_its_value_once() {
        let slab = InFlight::new(3);
        assert_eq!(slab.capacity(), 4);
        let token = insert(&slab, "a").unwrap();
        assert_eq!(slab.take(token.wrapping_add(4)), None, "the generation is compared");
        assert_eq!(slab.take(token), Some("a"));
        assert_eq!(slab.take(token), None);
    }

    #[test]
    fn a_full_slab_returns_the_value() {
        let slab = InFlight::new(2);
        let first = insert(&slab, 1).unwrap();
        let second = insert(&slab, 2).unwrap();
        assert_eq!(insert(&slab, 3), Err(3));
        assert_eq!(slab.take(second), Some(2));
        assert_eq!(insert(&slab, 3), Err(3), "slots are used in order");
        // SAFETY: one thread.
        let skipped = unsafe { slab.insert_anywhere(3) }.unwrap();
        // SAFETY: one thread.
        assert_eq!(unsafe { slab.insert_anywhere(4) }, Err(4));
        assert_eq!((slab.take(first), slab.take(skipped)), (Some(1), Some(3)));
    }

    #[test]
    fn values_that_stay_are_dropped_with_the_slab() {
        let value = Arc::new(());
        let slab = InFlight::new(4);
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
        // Tokens near those that are in use, and any others.
        let token = prop_oneof![(0u32..64).prop_map(|back| 40u32.wrapping_sub(back)), any::<u32>()];
        let step = prop_oneof![
            4 => Just(Step::Insert),
            2 => Just(Step::InsertAnywhere),
            3 => token.clone().prop_map(Step::Take),
            3 => token.prop_map(Step::TakeThrough),
            1 => Just(Step::Retract),
            1 => Just(Step::TakeAll),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        /// Whatever tokens are reported, each value comes out at most once, and by its own token.
        #[test]
        fn any_tokens_agree_with_a_list_of_values(steps in steps(), first: u32) {
            let slab = InFlight::new(8);
            // SAFETY: one thread, and no values yet.
            unsafe { slab.retract(first) };
            let mut model: VecDeque<(u32, u32)> = VecDeque::new();
            let mut serial = 0;
            for step in steps {
                serial += 1;
                match step {
                    Step::Insert | Step::InsertAnywhere => {
                        let inserted = match step {
                            Step::Insert => insert(&slab, serial),
                            // SAFETY: one thread.
                            _ => unsafe { slab.insert_anywhere(serial) },
                        };
                        match inserted {
                            Ok(token) => {
                                prop_assert!(model.iter().all(|(t, _)| t & 7 != token & 7));
                                model.push_back((token, serial));
                            }
                            Err(value) => prop_assert_eq!(value, serial),
                        }
                    }
                    Step::Take(token) => {
                        let token = token.wrapping_add(first);
                        let at = model.iter().position(|(t, _)| *t == token);
                        let expected = at.and_then(|at| model.remove(at)).map(|(_, value)| value);
                        prop_assert_eq!(slab.take(token), expected);
                    }
                    Step::TakeThrough(token) => {
                        let token = token.wrapping_add(first);
                        let at = model.iter().position(|(t, _)| *t == token);
                        let value = slab.take(token);
                        prop_assert_eq!(value, at.map(|at| model[at].1));
                        if at.is_some() {
                            let mut taken = Vec::new();
                            slab.take_before(token, |value| taken.push(value));
                            for value in taken {
                                let at = model.iter().position(|(_, v)| *v == value).unwrap();
                                let (t, _) = model.remove(at).unwrap();
                                prop_assert!(token.wrapping_sub(t) <= 8, "a later value was taken");
                            }
                            model.retain(|(t, _)| *t != token);
                        }
                    }
                    Step::Retract => {
                        if let Some((token, value)) = model.back().copied()
                            && token.wrapping_add(1) == slab.next_token()
                        {
                            model.pop_back();
                            prop_assert_eq!(slab.take(token), Some(value));
                            // SAFETY: one thread.
                            unsafe { slab.retract(token) };
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

    /// A poster reuses the slot of a value that a poller takes.
    #[test]
    fn a_slot_is_reused_after_its_value_was_moved_out() {
        loom::model(|| {
            let slab = Arc::new(InFlight::new(1));
            // SAFETY: this thread is the poster.
            let token = unsafe { slab.insert(Box::new(1)) }.unwrap();
            let poller = slab.clone();
            let taken = loom::thread::spawn(move || poller.take(token));
            // SAFETY: this thread is the poster.
            let second = unsafe { slab.insert(Box::new(2)) };
            assert_eq!(taken.join().unwrap(), Some(Box::new(1)));
            if let Ok(second) = second {
                assert_eq!(slab.take(second), Some(Box::new(2)));
            }
        });
    }

    /// A poller, a second report of the same completion, and the control path take at the same time.
    #[test]
    fn a_value_goes_to_one_of_several() {
        loom::model(|| {
            let slab = Arc::new(InFlight::new(2));
            // SAFETY: this thread is the poster.
            let token = unsafe { slab.insert(Box::new(1)) }.unwrap();
            let (poller, control) = (slab.clone(), slab.clone());
            let polled = loom::thread::spawn(move || poller.take(token).is_some());
            let purged = loom::thread::spawn(move || {
                let mut count = 0;
                control.take_all(|_| count += 1);
                count == 1
            });
            let again = slab.take(token).is_some();
            let wins = [polled.join().unwrap(), purged.join().unwrap(), again];
            assert_eq!(wins.iter().filter(|won| **won).count(), 1);
        });
    }

    /// The values before a completion are taken by the poller or by the control path, and none by both.
    #[test]
    fn earlier_values_are_taken_once() {
        loom::model(|| {
            let slab = Arc::new(InFlight::new(2));
            // SAFETY: this thread is the poster.
            unsafe { slab.insert(Box::new(1)) }.unwrap();
            // SAFETY: this thread is the poster.
            let last = unsafe { slab.insert(Box::new(2)) }.unwrap();
            let control = slab.clone();
            let purged = loom::thread::spawn(move || {
                let mut sum = 0;
                control.take_all(|value| sum += *value);
                sum
            });
            let mut sum = 0;
            if let Some(value) = slab.take(last) {
                sum += *value;
                slab.take_before(last, |value| sum += *value);
            }
            assert_eq!(sum + purged.join().unwrap(), 3);
        });
    }
}
