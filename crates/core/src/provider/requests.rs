// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of a queue that the device has, by the number that it reports: 16 bits, with completions in any order. For devices whose
//! completions have a number that the driver has chosen, and neither the `wr_id` nor a position (EFA).
//!
//! The low bits of a number are the index of a slot, with the `wr_id`; the others are the generation of the queue, which is another one
//! after each reset, and in each queue that gets the same name for the device, whatever the lengths of these queues
//! ([`Requests::behind`]). So a late completion of an earlier queue finds nothing, until there were so many that the 16 bits come around.
//!
//! Free numbers are in a ring. The poller of the queue's CQ puts the number of each completion at its end, and the poster takes from its
//! start, so neither needs a lock: the end of the ring is also the position up to which may be posted. The slot of a number has the position
//! in the ring at which it was put last. The device has a request with the number if the poster has published that position: one store
//! publishes a batch. Whatever the device reports, [`Requests::take`] finds a number only once, and none that was not published.
#![expect(unsafe_code)]
// UNSAFETY: elements without a check of the index, which is masked.

use super::error::PostError;
use core::fmt;
use core::hint::cold_path;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use crossbeam_utils::CachePadded;
use std::sync::Arc;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The position of a number that is not used: the table has more slots than requests.
const NEVER: u64 = u64::MAX;

/// The table of one queue. One poster, and one poller at a time; control calls stop both. A slot is an element of `wr_ids` and the one of
/// `places` with the same index: a processor multiplies an index by the size of such an element in the address of an access.
///
/// Positions count the requests since the last reset. They have 64 bits here, so they do not wrap, however long the device keeps a request.
/// The positions of a poster are their low 32 bits.
///
/// # Invariant
/// `wr_ids`, `places` and `free` have the same length, a power of two that is not 0, and `mask` is that length less 1.
pub struct Requests {
    wr_ids: Box<[AtomicU64]>,
    /// The position in `free` at which the number was put last, or [`NEVER`].
    places: Box<[AtomicU64]>,
    /// Free numbers, by the position of the request that takes one. None is above 0xffff.
    free: Box<[AtomicU32]>,
    mask: u32,
    /// How many requests may be outstanding.
    capacity: u32,
    /// The position behind the last free number: up to it may be posted.
    end: AtomicU64,
    /// The generation, in the bits of a number.
    generation: AtomicU32,
    /// The position behind the last request that was published. The poster stores to it, and the poller only loads: it has a cache line of
    /// its own.
    published: CachePadded<AtomicU64>,
}

impl Requests {
    /// The most requests that a queue can have: half of the numbers, so that a number of the generation before is not one of this. A
    /// doorbell, which has 16 bits of a position, is then another one after a batch of the whole queue.
    pub const MAX: u32 = 1 << 15;

    /// A table of `capacity` requests, from 1 to [`MAX`](Self::MAX). Its generation is the first from this number of a request on.
    #[must_use]
    pub fn new(capacity: u32, from: u16) -> Self {
        let capacity = capacity.clamp(1, Self::MAX);
        let len = capacity.next_power_of_two();
        let requests = Self {
            wr_ids: (0..len).map(|_| AtomicU64::new(0)).collect(),
            places: (0..len).map(|_| AtomicU64::new(NEVER)).collect(),
            free: (0..len).map(|_| AtomicU32::new(0)).collect(),
            mask: len - 1,
            capacity,
            end: AtomicU64::new(0),
            generation: AtomicU32::new(u32::from(from).next_multiple_of(len) & 0xffff),
            published: CachePadded::new(AtomicU64::new(0)),
        };
        requests.fill();
        requests
    }

    /// How many requests may be outstanding.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    fn fill(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        for (index, (place, free)) in (0..=self.mask).zip(self.places.iter().zip(&self.free)) {
            place.store(if index < self.capacity { index.into() } else { NEVER }, Ordering::Relaxed);
            free.store(generation | index, Ordering::Relaxed);
        }
        self.published.store(0, Ordering::Relaxed);
        self.end.store(self.capacity.into(), Ordering::Release);
    }

    /// Empties the table, whose numbers have another generation from now on. Positions begin with 0 again. For control calls that have
    /// stopped poster and poller.
    pub fn reset(&self) {
        let next = (self.generation.load(Ordering::Relaxed) + self.mask + 1) & 0xffff;
        self.generation.store(next, Ordering::Relaxed);
        self.fill();
    }

    /// The number behind those of this generation: earlier generations and their tables had the numbers before it.
    pub fn behind(&self) -> u16 {
        (self.generation.load(Ordering::Relaxed) + self.mask + 1) as u16
    }

    /// The element of an array that belongs to a number or position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn of<'a, T>(&self, array: &'a [T], number: u32) -> &'a T {
        debug_assert_eq!(array.len(), self.mask as usize + 1);
        // SAFETY: masked, so it is less than the length of the three arrays (invariant), one of which the callers pass.
        unsafe { array.get_unchecked((number & self.mask) as usize) }
    }

    /// The position up to which may be posted. For the poster.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn limit(&self) -> u32 {
        // Acquire: pairs with `take_current`.
        self.end.load(Ordering::Acquire) as u32
    }

    /// The limit, if there is room at a position.
    ///
    /// # Errors
    /// [`PostError::QueueFull`] if there is none.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn room(&self, at: u32) -> Result<u32, PostError> {
        let limit = self.limit();
        if at == limit { Err(PostError::QueueFull) } else { Ok(limit) }
    }

    /// The bits of a number that are the generation.
    pub fn generation_bits(&self) -> u16 {
        !self.mask as u16
    }

    /// Whether the number is one of this generation.
    pub fn is_current(&self, number: u16) -> bool {
        u32::from(number & self.generation_bits()) == self.generation.load(Ordering::Relaxed)
    }

    /// The `wr_id` of the request with this number, which is free from now on; `None` if the device has no such request. For the poller,
    /// which has read the number from a completion: a barrier orders that load before these.
    pub fn take(&self, number: u16) -> Option<u64> {
        if self.is_current(number) { self.take_current(number) } else { None }
    }

    /// [`take`](Self::take), of a number of this generation.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn take_current(&self, number: u16) -> Option<u64> {
        debug_assert!(self.is_current(number), "{number} is of another generation");
        let place = self.of(&self.places, number.into());
        if place.load(Ordering::Relaxed) >= self.published.load(Ordering::Relaxed) {
            cold_path();
            return None;
        }
        let wr_id = self.of(&self.wr_ids, number.into()).load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        // The poster has not published that position yet.
        place.store(end, Ordering::Relaxed);
        self.of(&self.free, end as u32).store(number.into(), Ordering::Relaxed);
        // Release: the poster sees the number, and stores to the slot after the accesses here.
        self.end.store(end.wrapping_add(1), Ordering::Release);
        Some(wr_id)
    }
}

/// The poster's end of a table.
///
/// # Invariant
/// The addresses and the mask of `slots` are those of `table`.
#[derive(Debug)]
pub struct Poster {
    slots: Slots<'static>,
    table: Arc<Requests>,
}

/// The addresses of what a table's poster accesses, which a loop of posts keeps in registers.
///
/// # Invariant
/// `wr_ids` and `free` are arrays of `mask + 1` elements. All live as long as `'t`.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'t> {
    wr_ids: NonNull<AtomicU64>,
    free: NonNull<AtomicU32>,
    published: NonNull<AtomicU64>,
    mask: u32,
    _table: PhantomData<&'t Requests>,
}

// SAFETY: the addresses are those of atomics that `table` owns.
unsafe impl Send for Poster {}
// SAFETY: `&Poster` only allows accesses to atomics that `table` owns.
unsafe impl Sync for Poster {}

impl Poster {
    /// The end of a table, for its one poster.
    #[must_use]
    pub fn new(table: &Arc<Requests>) -> Self {
        let slots = Slots {
            wr_ids: NonNull::from(&*table.wr_ids).cast(),
            free: NonNull::from(&*table.free).cast(),
            published: NonNull::from(&*table.published),
            mask: table.mask,
            _table: PhantomData,
        };
        Self { slots, table: Arc::clone(table) }
    }

    /// The arrays.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn slots(&self) -> Slots<'_> {
        // With the lifetime of a borrow of the poster, which keeps the table.
        self.slots
    }
}

impl Deref for Poster {
    type Target = Requests;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn deref(&self) -> &Requests {
        &self.table
    }
}

impl Slots<'_> {
    /// The number that the request at a position has.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn next(self, position: u32) -> u32 {
        // SAFETY: a masked position is that of an element (invariant).
        let slot = unsafe { self.free.add((position & self.mask) as usize) };
        // SAFETY: the array lives as long as the table, which these slots borrow (invariant).
        unsafe { slot.as_ref() }.load(Ordering::Relaxed)
    }

    /// The number of the request at a position, which is before [`Requests::limit`]. Its completion will have this `wr_id`. It may be
    /// called again for the position until the request is [published](Self::publish). It is as long as it is loaded, so it is not extended to
    /// a word again; it has 16 bits.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn prepare(self, position: u32, wr_id: u64) -> u32 {
        let number = self.next(position);
        // SAFETY: a masked number is that of an element (invariant).
        let place = unsafe { self.wr_ids.add((number & self.mask) as usize) };
        // SAFETY: as in `next`.
        unsafe { place.as_ref() }.store(wr_id, Ordering::Relaxed);
        number
    }

    /// Publishes this many requests, those behind the ones that are published: their completions are expected from now on. Called before the
    /// doorbell, whose barrier orders this store before it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn publish(self, requests: u32) {
        // SAFETY: it lives as long as the table, which these slots borrow (invariant).
        let published = unsafe { self.published.as_ref() };
        // Only the poster stores to it.
        let at = published.load(Ordering::Relaxed);
        published.store(at.wrapping_add(requests.into()), Ordering::Relaxed);
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests")
            .field("capacity", &self.capacity)
            .field("end", &self.end)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    fn both(capacity: u32, from: u16) -> (Arc<Requests>, Poster) {
        let table = Arc::new(Requests::new(capacity, from));
        let poster = Poster::new(&table);
        (table, poster)
    }

    /// The number as the device reports it.
    fn prepare(poster: &Poster, position: u32, wr_id: u64) -> u16 {
        u16::try_from(poster.slots().prepare(position, wr_id)).expect("16 bits")
    }

    #[test]
    fn numbers_are_given_again_in_the_order_of_completions() {
        let (table, poster) = both(3, 17);
        let post = |position, wr_id| {
            let number = prepare(&poster, position, wr_id);
            poster.slots().publish(1);
            number
        };
        assert_eq!(table.limit(), 3);
        let numbers = [post(0, 10), post(1, 11), post(2, 12)];
        assert_eq!(numbers, [20, 21, 22], "from the next multiple of 4 on");
        assert_eq!((table.take(22), table.take(20)), (Some(12), Some(10)));
        assert_eq!(table.limit(), 5);
        assert_eq!((post(3, 13), post(4, 14)), (22, 20));
        assert_eq!((table.take(21), table.take(22), table.take(20)), (Some(11), Some(13), Some(14)));
    }

    #[test]
    fn a_number_is_found_once_and_only_if_it_was_published() {
        let (table, poster) = both(4, 0xfffc);
        let number = prepare(&poster, 0, 7);
        assert_eq!(table.take(number), None, "not published");
        poster.slots().publish(1);
        for wrong in [number ^ 1, number ^ 4, number ^ 0x8000] {
            assert_eq!(table.take(wrong), None);
        }
        assert_eq!((table.take(number), table.take(number)), (Some(7), None));
    }

    #[test]
    fn a_reset_ends_a_generation() {
        let (table, poster) = both(4, 0xfffc);
        let old = prepare(&poster, 0, 7);
        poster.slots().publish(1);
        assert!(table.is_current(old));
        table.reset();
        assert_eq!((table.limit(), table.take(old), table.is_current(old)), (4, None, false));
        let new = prepare(&poster, 0, 8);
        poster.slots().publish(1);
        assert_eq!((new, table.take(new)), (0, Some(8)), "the generation wraps");
    }

    /// The tables of QPs with one QP number, of any lengths, one after the other.
    #[test]
    fn a_later_table_has_other_numbers() {
        let (mut from, mut seen) = (1, HashSet::new());
        for (len, resets) in [(32, 0), (16, 2), (64, 1), (1, 3), (128, 0)] {
            let (table, poster) = both(len, from);
            for life in 0..=resets {
                if life > 0 {
                    table.reset();
                }
                for position in 0..len {
                    assert!(seen.insert(prepare(&poster, position, 0)), "of a table of {len}");
                }
            }
            from = table.behind();
        }
        assert_eq!(prepare(&both(4, 0xfffd).1, 0, 0), 0, "they come around");
    }

    #[test]
    fn the_longest_table_has_another_generation_after_a_reset() {
        let (table, poster) = both(u32::MAX, 3);
        assert_eq!((table.capacity(), table.limit()), (0x8000, 0x8000));
        let old = prepare(&poster, 0x7fff, 1);
        poster.slots().publish(0x8000);
        table.reset();
        assert_eq!((old, prepare(&poster, 0, 1)), (0xffff, 0));
        assert_eq!((table.is_current(old), table.take(old)), (false, None));
    }

    /// The device keeps one request while the poster posts more than a word can count.
    #[test]
    fn positions_do_not_come_around() {
        let (table, poster) = both(2, 0);
        let number = prepare(&poster, 0, 7);
        poster.slots().publish(1);
        let free = table.of(&table.places, number.wrapping_add(1).into());
        for position in [&*table.published, &table.end, free] {
            position.fetch_add(1 << 32, Ordering::Relaxed);
        }
        let other = prepare(&poster, 1, 8);
        assert_eq!((table.limit(), table.take(other)), (2, None));
        assert_eq!((table.take(number), table.take(number)), (Some(7), None));
        poster.slots().publish(1);
        assert_eq!((table.take(number), table.take(other)), (None, Some(8)));
    }

    proptest! {
        /// Against a model that only knows which numbers are outstanding.
        #[test]
        fn no_number_is_given_twice(
            capacity in 1_u32..40,
            generation: u16,
            steps in prop::collection::vec((0_u8..5, any::<u16>()), 1..400),
        ) {
            let (table, poster) = both(capacity, generation);
            let mut position = 0_u32;
            let mut outstanding = HashMap::new();
            let mut seen = HashSet::new();
            for (step, (what, which)) in steps.into_iter().enumerate() {
                match what {
                    0 | 1 if position != table.limit() => {
                        let number = prepare(&poster, position, step as u64);
                        prop_assert_eq!(table.take(number), None);
                        poster.slots().publish(1);
                        position = position.wrapping_add(1);
                        prop_assert_eq!(outstanding.insert(number, step as u64), None);
                        seen.insert(number);
                    }
                    // A batch that is abandoned.
                    2 if position != table.limit() => {
                        let number = prepare(&poster, position, u64::MAX);
                        prop_assert_eq!(table.take(number), None);
                    }
                    3 => {
                        let mut numbers: Vec<u16> = outstanding.keys().copied().collect();
                        numbers.sort_unstable();
                        if let Some(number) = numbers.get(usize::from(which) % numbers.len().max(1)) {
                            prop_assert_eq!(table.take(*number), outstanding.remove(number));
                        }
                    }
                    _ => prop_assert_eq!(table.take(which), outstanding.remove(&which)),
                }
                let room = table.limit().wrapping_sub(position);
                prop_assert_eq!(room as usize + outstanding.len(), capacity as usize);
            }
            prop_assert!(seen.len() <= capacity as usize);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::{Poster, Requests};
    use loom::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Arc;

    /// A queue of two requests: the poster posts four, whose numbers pass through the device to the poller. Nothing but the table tells the
    /// poster of completions.
    #[test]
    fn every_request_is_reported_with_its_wr_id() {
        const REQUESTS: u64 = 4;
        loom::model(|| {
            let table = Arc::new(Requests::new(2, 1));
            let poster = Poster::new(&table);
            let device: Arc<[AtomicU32]> = (0..REQUESTS).map(|_| AtomicU32::new(u32::MAX)).collect();
            let poller = loom::thread::spawn({
                let (table, device) = (Arc::clone(&table), Arc::clone(&device));
                move || {
                    for (expected, place) in (0..).zip(&device[..]) {
                        let number = loop {
                            match place.load(Ordering::Acquire) {
                                u32::MAX => loom::thread::yield_now(),
                                number => break number,
                            }
                        };
                        assert_eq!(table.take(number as u16), Some(expected));
                    }
                }
            });
            for (position, place) in (0_u32..).zip(&device[..]) {
                while position == table.limit() {
                    loom::thread::yield_now();
                }
                let number = poster.slots().prepare(position, position.into());
                assert_eq!(table.take(number as u16), None);
                poster.slots().publish(1);
                place.store(number, Ordering::Release);
            }
            poller.join().unwrap();
        });
    }
}
