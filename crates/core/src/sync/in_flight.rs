// SPDX-License-Identifier: MIT OR Apache-2.0
//! What work requests in flight own: a slab of values, one for each work request of a queue, without a lock.
//!
//! The poster of the queue [inserts](Vacant::fill) a value before it posts, and uses the value's number as the `wr_id`.
//! The poller of the completion [takes](InFlight::take) it out by the number. The slab is allocated once, when the queue is
//! created.
//!
//! The upper half of a number is the key of the slab, the lower half counts the insertions in steps of [`STEP`]: its low bits
//! are the index of the slot, the others its generation. An occupied slot has the number of its value. So any number is allowed
//! in [`take`](InFlight::take): one that was never given, or whose value was taken before, finds nothing. Several threads may
//! take at the same time (a poller, and the control path when the queue is destroyed); each value goes to one of them.
//!
//! Each slot is in one of three states:
//!
//! | state | access to the value | next |
//! |---|---|---|
//! | free | the poster | occupied, by `fill` |
//! | occupied, with its number | none | busy, by the one `take` whose compare-and-swap succeeds |
//! | busy | that `take` | free |
//!
//! # Instructions
//! A post and a poll of a buffer have few instructions besides this slab, so its layout saves some:
//!
//! - A slot has 32 bytes, and its place is 8 times the masked number: the processor adds both in the address of an access.
//! - The state of a free slot is the tag of the slab, which the poster has to present. If the tag is what the memory of a work
//!   request must agree with (its protection domain), one compare checks that, too.
//! - All states are odd, except that of a value that `take` finds. An odd number finds the guard of a slot in place of its state,
//!   a word that is never odd. So a `take` compares once, with no check whether the number is one at all.
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

/// The difference of the counts of two insertions.
pub const STEP: u32 = 4;

/// The bit of a number that selects the guard of a slot: no number that was given has it.
const GUARD: u32 = 1;

/// In the state of an occupied slot: the value is found by [`InFlight::take_scoped`] only. It is the bit that selects the guard,
/// so that [`InFlight::take`] never compares such a state with a number that has the bit.
const SCOPED: u64 = GUARD as u64;

/// In a state: the slot is free or busy. No number that was given has it.
const EMPTY: u64 = 2;

/// The state of a busy slot. That of a free one is the tag of the slab.
const BUSY: u64 = u64::MAX;
/// The bits of the state of an empty slot that no other state has together, and that a tag has, therefore.
pub const TAG_BITS: u64 = GUARD as u64 | EMPTY;
const _: () = assert!(BUSY & TAG_BITS == TAG_BITS);
const _: () = assert!(TAG_BITS < STEP as u64, "bits that no count has");

/// The guard of a slot that was passed over at the count of a number, while it had a value with this number. It is even, and not 0.
#[cfg(not(loom))]
const fn mark_of(number: u64) -> u64 {
    number | EMPTY
}

#[repr(C, align(32))]
struct Slot<T> {
    state: AtomicU64,
    /// Never odd, as a number with the bit [`GUARD`] is: 0, or the [mark](mark_of) of [`InFlight::pass_over`].
    #[cfg(not(loom))]
    guard: AtomicU64,
    /// Initialised while the slot is occupied or busy.
    value: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Slot<T> {
    fn free(tag: u64) -> Self {
        Self {
            state: AtomicU64::new(tag),
            #[cfg(not(loom))]
            guard: AtomicU64::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

/// The values of a queue's work requests in flight.
pub struct InFlight<T> {
    /// A power of two of slots, at least one.
    slots: Box<[Slot<T>]>,
    /// Of a count: the bits of the index, and [`GUARD`].
    mask: u32,
    /// The count of the next insertion; only the poster stores it.
    next: AtomicU32,
    /// The key in the upper half.
    key: u64,
    /// The state of a free slot. It has [`TAG_BITS`].
    tag: u64,
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
    /// Room for at least `capacity` values, at most 2^29.
    ///
    /// # Panics
    /// If the tag has not [`TAG_BITS`], or has all bits.
    #[must_use]
    pub fn new(capacity: u32, key: u32, tag: u64) -> Self {
        assert!(tag & TAG_BITS == TAG_BITS && tag != BUSY, "the tag of a slab");
        let slots = capacity.clamp(1, 1 << 29).next_power_of_two();
        Self {
            slots: (0..slots).map(|_| Slot::free(tag)).collect(),
            mask: ((slots - 1) * STEP) | GUARD,
            next: AtomicU32::new(0),
            key: u64::from(key) << 32,
            tag,
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
        self.slots.iter().filter(|slot| slot.state.load(Ordering::Acquire) != self.tag).count()
    }

    /// Whether there are no values, as [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many insertions ago the oldest value came: 0 is the last one. As [`len`](Self::len), other threads may change it.
    #[must_use]
    pub fn age(&self) -> Option<u32> {
        let next = self.next_count();
        let states = self.slots.iter().map(|slot| slot.state.load(Ordering::Relaxed));
        let counts = states
            .filter(|state| *state != self.tag && *state != BUSY)
            .map(|state| state as u32 & !(STEP - 1));
        counts.map(|count| (next.wrapping_sub(count) / STEP).saturating_sub(1)).max()
    }

    /// What the poster presents.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// The upper half of its numbers.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn key(&self) -> u32 {
        (self.key >> 32) as u32
    }

    /// The slot of a number, of any slab. If the number has the bit [`GUARD`], what is at the place of its state is a guard, and
    /// nothing else of the slot may be accessed.
    #[cfg(not(loom))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn slot(&self, number: u64) -> *const Slot<T> {
        const { assert!(size_of::<Slot<T>>() == 8 * STEP as usize, "a value has at most two words") };
        const { assert!(core::mem::offset_of!(Slot<T>, guard) == 8 * GUARD as usize) };
        debug_assert_eq!(self.slots.len() as u32 * STEP, self.mask + STEP - GUARD);
        let offset = (number as u32 & self.mask) as usize * 8;
        // SAFETY: the masked count is `STEP` times an index, which is less than the number of slots (set at creation), and
        // `GUARD` or not. So the result is the address of a slot, or of its guard.
        unsafe { self.slots.as_ptr().byte_add(offset) }
    }

    /// The models have no guards.
    #[cfg(loom)]
    fn slot(&self, number: u64) -> *const Slot<T> {
        assert_eq!(number as u32 & GUARD, 0);
        core::ptr::from_ref(&self.slots[((number as u32 & self.mask) / STEP) as usize])
    }

    /// The state of a slot, or its guard.
    ///
    /// # Safety
    /// The pointer is that of [`slot`](Self::slot).
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn state(&self, slot: *const Slot<T>) -> &AtomicU64 {
        // SAFETY: the state is the first field; or the guard, an atomic, too, is at its place (the contract of this function).
        unsafe { &*slot.cast() }
    }

    /// The count of the next insertion, if its slot is free: the lower half of its number.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn next_count(&self) -> u32 {
        // Relaxed: the poster reads what it stored itself.
        self.next.load(Ordering::Relaxed)
    }

    /// The number of an insertion.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn number(&self, count: u32) -> u64 {
        self.key | u64::from(count)
    }

    /// The next slot, if it is free and `tag` is that of the slab.
    ///
    /// # Safety
    /// `tag` has [`TAG_BITS`], and is not [`u64::MAX`]. One thread at a time inserts or [retracts](Self::retract), ordered by the
    /// lock or the `&mut` of the queue; it makes no other call of them while it has the result.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub unsafe fn vacant(&self, tag: u64) -> Option<Vacant<'_, T>> {
        // SAFETY: a count is a multiple of `STEP`, so this is a slot.
        let slot = unsafe { &*self.slot(self.next_count().into()) };
        // Acquire pairs with the Release of `take`: the value that was in the slot was moved out before.
        // Only the state of a free slot can be `tag`: an occupied one has not the bit `EMPTY`, and a busy one has all bits.
        (slot.state.load(Ordering::Acquire) == tag).then_some(Vacant { slab: self, slot })
    }

    /// As [`vacant`](Self::vacant), but skips slots that are not free, for queues whose work requests complete in any order.
    /// `None` if no slot is free.
    ///
    /// # Safety
    /// As [`vacant`](Self::vacant).
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub unsafe fn vacant_anywhere(&self, tag: u64) -> Option<Vacant<'_, T>> {
        // A loop and not a second `vacant`, so that the usual path has one branch. It ends: only the poster fills slots.
        loop {
            // SAFETY: the contract of this function is that of `vacant`.
            let vacant = unsafe { self.vacant(tag) };
            // SAFETY: as above.
            if vacant.is_some() || tag != self.tag || unsafe { !self.skip() } {
                return vacant;
            }
        }
    }

    /// Makes the next free slot that of the next insertion, if [`vacant`](Self::vacant) has found none. `false` if there is none: then
    /// the next count is that of before, so that a batch that is refused again and again does not come around to older counts.
    ///
    /// # Safety
    /// As [`vacant`](Self::vacant).
    #[cold]
    #[inline(never)]
    pub unsafe fn skip(&self) -> bool {
        let first = self.next_count();
        let mut next = first;
        for _ in 1..self.slots.len() {
            // SAFETY: a count is a multiple of `STEP`, so this is a slot.
            self.pass_over(unsafe { &*self.slot(next.into()) }, next);
            next = next.wrapping_add(STEP);
            // SAFETY: as above.
            let slot = unsafe { &*self.slot(next.into()) };
            if slot.state.load(Ordering::Acquire) == self.tag {
                self.next.store(next, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// A slot is skipped. If its value came when the counts were here the last time, it has the number of this count: it is marked, so that
    /// it is not taken for one that was inserted now.
    #[cfg(not(loom))]
    fn pass_over(&self, slot: &Slot<T>, count: u32) {
        let number = self.number(count);
        let is_old = slot.state.load(Ordering::Relaxed) & !SCOPED == number;
        slot.guard.store(if is_old { mark_of(number) } else { 0 }, Ordering::Relaxed);
    }

    /// The counts of the models do not come around.
    #[cfg(loom)]
    fn pass_over(&self, _: &Slot<T>, _: u32) {}

    /// Whether the slot of a number was skipped, though its value has this number.
    #[cfg(not(loom))]
    fn is_passed_over(slot: &Slot<T>, number: u64) -> bool {
        slot.guard.load(Ordering::Relaxed) == mark_of(number)
    }

    /// As [`pass_over`](Self::pass_over).
    #[cfg(loom)]
    fn is_passed_over(_: &Slot<T>, _: u64) -> bool {
        false
    }

    /// How many of the slots from the count `first` to the next insertion were [skipped](Self::skip), if no value that was inserted since
    /// was taken.
    #[must_use]
    pub fn skipped_since(&self, first: u32) -> u32 {
        let count = self.next_count().wrapping_sub(first) / STEP;
        let numbers = (0..count).map(|i| self.number(first.wrapping_add(i * STEP)));
        let is_skipped = |number: &u64| {
            // SAFETY: a count is a multiple of `STEP`, so this is a slot.
            let slot = unsafe { &*self.slot(*number) };
            slot.state.load(Ordering::Relaxed) & !SCOPED != *number || Self::is_passed_over(slot, *number)
        };
        numbers.filter(is_skipped).count() as u32
    }

    /// Takes the values that were inserted from the count `first` on, of which none was taken, and passes them to `f`: those of a batch
    /// that is not posted. Slots that were [skipped](Self::skip) keep their values, which are older.
    ///
    /// # Safety
    /// As [`vacant`](Self::vacant).
    pub unsafe fn take_from(&self, first: u32, mut f: impl FnMut(T)) {
        let (mut count, end) = (first, self.next_count());
        while count != end {
            let number = self.number(count);
            // SAFETY: a count is a multiple of `STEP`, so this is a slot.
            if !Self::is_passed_over(unsafe { &*self.slot(number) }, number)
                && let Some(value) = self.take_any(number)
            {
                f(value);
            }
            count = count.wrapping_add(STEP);
        }
    }

    /// Makes `count` the next one again, after the values from it on were taken because they were not posted.
    ///
    /// # Safety
    /// As [`vacant`](Self::vacant), and `count` is a multiple of [`STEP`].
    pub unsafe fn retract(&self, count: u32) {
        debug_assert_eq!(count % STEP, 0);
        self.next.store(count, Ordering::Relaxed);
    }

    /// Takes the value of this number out. Any number is allowed; one without a value, or whose value is
    /// [scoped](Vacant::fill_scoped), returns `None`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn take(&self, number: u64) -> Option<T> {
        self.take_in(number, number)
    }

    /// As [`take`](Self::take), for a value that is [scoped](Vacant::fill_scoped).
    pub fn take_scoped(&self, number: u64) -> Option<T> {
        // With one of these bits, it is no number that was given, and could be compared with a guard or with an empty state.
        if number & TAG_BITS == 0 { self.take_in(number, number | SCOPED) } else { None }
    }

    /// As [`take`](Self::take), for both kinds of values.
    pub fn take_any(&self, number: u64) -> Option<T> {
        self.take(number).or_else(|| self.take_scoped(number))
    }

    /// Takes the value of the slot of `number` if its state is `occupied`: `number`, or for a number that is a multiple of
    /// [`STEP`] also `number | SCOPED`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take_in(&self, number: u64, occupied: u64) -> Option<T> {
        let place = self.slot(number);
        // SAFETY: the pointer is that of `slot`.
        let state = unsafe { self.state(place) };
        // Acquire pairs with the Release of `fill`: the value was written before. If `number` is odd, `occupied` is, too, and is
        // compared with a guard, which is even. Otherwise `occupied` is not the state of an empty slot, which has `TAG_BITS`. So a
        // success is that of a slot with a value.
        if state.compare_exchange(occupied, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // SAFETY: the number is not odd, so this is a slot.
        let slot = unsafe { &*place };
        // SAFETY: the slot was occupied, so the value is initialised, and this thread made it busy, so no other accesses the
        // value.
        let value = unsafe { slot.read() };
        // Release pairs with the Acquire of `vacant`: the slot is reused after the value was moved out.
        slot.state.store(self.tag, Ordering::Release);
        Some(value)
    }

    /// Takes the values from the count `first` to the one before `number`, if they are still there, and passes them to `f`: the
    /// work requests of a queue that completes in order, when the one of `number`, which is one of this slab, is complete.
    #[cold]
    #[inline(never)]
    pub fn take_range(&self, first: u32, number: u64, f: impl FnMut(T)) {
        let end = number as u32;
        // More counts than slots can't have values: the oldest of them are gone.
        let count = (end.wrapping_sub(first) / STEP).min(self.slots.len() as u32);
        let numbers = (1..=count).rev().map(|back| self.number(end.wrapping_sub(back * STEP)));
        numbers.filter_map(|number| self.take_any(number)).for_each(f);
    }

    /// Takes all values that are there and passes them to `f`, in any order.
    pub fn take_all(&self, mut f: impl FnMut(T)) {
        for slot in &self.slots {
            let state = slot.state.load(Ordering::Relaxed);
            if state & EMPTY == 0
                && let Some(value) = self.take_in(state & !SCOPED, state)
            {
                f(value);
            }
        }
    }
}

/// A free slot, of the poster.
#[must_use]
pub struct Vacant<'a, T> {
    slab: &'a InFlight<T>,
    slot: &'a Slot<T>,
}

impl<T> fmt::Debug for Vacant<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vacant").field("count", &self.slab.next_count()).finish_non_exhaustive()
    }
}

impl<T> Vacant<'_, T> {
    /// Puts a value into the slot and returns its number.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn fill(self, value: T) -> u64 {
        self.fill_in(value, 0)
    }

    /// As [`fill`](Self::fill), for a scoped value: [`take`](InFlight::take) does not find it, so the completion of a work request
    /// that borrows memory for a scope is not passed on as another one.
    pub fn fill_scoped(self, value: T) -> u64 {
        self.fill_in(value, SCOPED)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn fill_in(self, value: T, scoped: u64) -> u64 {
        let Self { slab, slot } = self;
        // SAFETY: the slot is free and only the poster leaves this state. The poster is this thread: it called `vacant`, whose
        // contract excludes another insertion. So no other thread accesses the value.
        unsafe { slot.write(value) };
        // codegen: live
        let number = slab.number(slab.next_count());
        // Release pairs with the Acquire of `take`.
        slot.state.store(number | scoped, Ordering::Release);
        slab.next.store(slab.next_count().wrapping_add(STEP), Ordering::Relaxed);
        number
    }
}

impl<T> Slot<T> {
    /// # Safety
    /// No other thread accesses the value.
    #[cfg_attr(not(debug_assertions), inline(always))]
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
    #[cfg_attr(not(debug_assertions), inline(always))]
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
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
