// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of a queue that the device has, by the number that it reports: 16 bits, with completions in any order.
//!
//! The low bits of a number are the index of a slot, with the `wr_id`; the others are the generation of the queue, which is another one
//! after each reset, and in each QP that gets the same QP number, whatever the lengths of their queues ([`Table::behind`]). So a late
//! completion of an earlier queue finds nothing, until there were so many that the 16 bits come around.
//!
//! Free numbers are in a ring. The poller of the queue's CQ puts the number of each completion at its end, and the poster takes from its
//! start, so neither needs a lock: the end of the ring is also the position up to which may be posted. A number is in the ring, or
//! its slot has it, but never both, whatever the device reports: [`Table::take`] finds a number only once.
#![expect(unsafe_code)]
// UNSAFETY: elements without a check of the index, which is masked.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// In the state of a slot: the device has the request.
const POSTED: u32 = 1 << 16;

#[derive(Debug)]
struct Slot {
    wr_id: AtomicU64,
    /// [`POSTED`] and the number, or 0.
    state: AtomicU32,
}

/// The table of one queue. One poster, and one poller at a time; control calls stop both.
///
/// # Invariant
/// `slots` and `free` have the same length, a power of two that is not 0, and `mask` is that length less 1.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Box<[Slot]>,
    /// Free numbers, by the position of the request that takes one.
    free: Box<[AtomicU16]>,
    mask: u32,
    qp_num: u16,
    /// How many requests may be outstanding.
    capacity: u32,
    /// The position behind the last free number: up to it may be posted.
    end: AtomicU32,
    /// The generation, in the bits of a number.
    generation: AtomicU32,
}

impl Table {
    /// The most requests that a queue can have.
    pub(crate) const MAX: u32 = 1 << 16;

    /// A table of `capacity` requests, from 1 to [`MAX`](Self::MAX), of a QP with this number. Its generation is the first from this number
    /// of a request on.
    #[must_use]
    pub(crate) fn new(capacity: u32, (qp_num, from): (u16, u16)) -> Self {
        let capacity = capacity.clamp(1, Self::MAX);
        let len = capacity.next_power_of_two();
        let table = Self {
            slots: (0..len).map(|_| Slot { wr_id: AtomicU64::new(0), state: AtomicU32::new(0) }).collect(),
            free: (0..len).map(|_| AtomicU16::new(0)).collect(),
            mask: len - 1,
            qp_num,
            capacity,
            end: AtomicU32::new(0),
            generation: AtomicU32::new(u32::from(from).next_multiple_of(len) & 0xffff),
        };
        table.fill();
        table
    }

    /// How many requests may be outstanding.
    #[must_use]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The QP.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn qp_num(&self) -> u16 {
        self.qp_num
    }

    fn fill(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        for (index, (slot, free)) in self.slots.iter().zip(&self.free).enumerate() {
            slot.state.store(0, Ordering::Relaxed);
            free.store((generation | index as u32) as u16, Ordering::Relaxed);
        }
        self.end.store(self.capacity, Ordering::Release);
    }

    /// Empties the table, whose numbers have another generation from now on. Positions begin with 0 again. For control calls that have
    /// stopped poster and poller.
    pub(crate) fn reset(&self) {
        let next = (self.generation.load(Ordering::Relaxed) + self.mask + 1) & 0xffff;
        self.generation.store(next, Ordering::Relaxed);
        self.fill();
    }

    /// The number behind those of this generation: earlier generations and their tables had the numbers before it.
    pub(crate) fn behind(&self) -> u16 {
        (self.generation.load(Ordering::Relaxed) + self.mask + 1) as u16
    }

    /// The slot of a number or position, modulo their number.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn slot(&self, number: u32) -> &Slot {
        // SAFETY: masked, so it is less than the length (invariant).
        unsafe { self.slots.get_unchecked((number & self.mask) as usize) }
    }

    /// The place in the ring of a position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn free(&self, position: u32) -> &AtomicU16 {
        // SAFETY: masked, so it is less than the length (invariant).
        unsafe { self.free.get_unchecked((position & self.mask) as usize) }
    }

    /// The position up to which may be posted. For the poster.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn limit(&self) -> u32 {
        // Acquire: pairs with `take`.
        self.end.load(Ordering::Acquire)
    }

    /// The number of the request at a position, which is before [`limit`](Self::limit). Its completion will have this `wr_id`. For the
    /// poster, which may call it again for the position until it has [published](Self::publish) the request.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn prepare(&self, position: u32, wr_id: u64) -> u16 {
        let number = self.free(position).load(Ordering::Relaxed);
        self.slot(number.into()).wr_id.store(wr_id, Ordering::Relaxed);
        number
    }

    /// From now on the completion of the request at a position is expected. Called before the doorbell, whose barrier orders these stores
    /// before it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&self, position: u32) {
        let number = self.free(position).load(Ordering::Relaxed);
        self.publish_number(number);
    }

    /// [`publish`](Self::publish), if the number is at hand.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish_number(&self, number: u16) {
        self.slot(number.into()).state.store(POSTED | u32::from(number), Ordering::Relaxed);
    }

    /// Whether the device has a request with this number.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn has(&self, number: u16) -> bool {
        self.slot(number.into()).state.load(Ordering::Relaxed) == POSTED | u32::from(number)
    }

    /// Whether the number is one of this generation.
    pub(crate) fn is_current(&self, number: u16) -> bool {
        u32::from(number) & !self.mask == self.generation.load(Ordering::Relaxed)
    }

    /// The `wr_id` of the request with this number, which is free from now on; `None` if the device has no such request. For the poller,
    /// which has read the number from a completion: a barrier orders that load before these.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn take(&self, number: u16) -> Option<u64> {
        if !self.has(number) {
            return None;
        }
        let slot = self.slot(number.into());
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        slot.state.store(0, Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        self.free(end).store(number, Ordering::Relaxed);
        // Release: the poster sees the number, and stores to the slot after the accesses here.
        self.end.store(end.wrapping_add(1), Ordering::Release);
        Some(wr_id)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn numbers_are_given_again_in_the_order_of_completions() {
        let table = Table::new(3, (1, 17));
        let post = |position, wr_id| {
            let number = table.prepare(position, wr_id);
            table.publish(position);
            number
        };
        assert_eq!(table.limit(), 3);
        let numbers = [post(0, 10), post(1, 11), post(2, 12)];
        assert_eq!(numbers, [20, 21, 22], "generation 5 above an index of 2 bits");
        assert_eq!((table.take(22), table.take(20)), (Some(12), Some(10)));
        assert_eq!(table.limit(), 5);
        assert_eq!((post(3, 13), post(4, 14)), (22, 20));
        assert_eq!((table.take(21), table.take(22), table.take(20)), (Some(11), Some(13), Some(14)));
    }

    #[test]
    fn a_number_is_found_once_and_only_if_it_was_published() {
        let table = Table::new(4, (1, 0xfffc));
        let number = table.prepare(0, 7);
        assert_eq!(table.take(number), None, "not published");
        table.publish(0);
        for wrong in [number ^ 1, number ^ 4, number ^ 0x8000] {
            assert_eq!(table.take(wrong), None);
        }
        assert_eq!((table.take(number), table.take(number)), (Some(7), None));
    }

    #[test]
    fn a_reset_ends_a_generation() {
        let table = Table::new(4, (1, 0xfffc));
        let old = table.prepare(0, 7);
        table.publish(0);
        assert!(table.is_current(old));
        table.reset();
        assert_eq!((table.limit(), table.take(old), table.is_current(old)), (4, None, false));
        let new = table.prepare(0, 8);
        table.publish(0);
        assert_eq!((new, table.take(new)), (0, Some(8)), "the generation wraps");
    }

    /// The tables of QPs with one QP number, of any lengths, one after the other.
    #[test]
    fn a_later_table_has_other_numbers() {
        let (mut from, mut seen) = (1, HashSet::new());
        for (len, resets) in [(32, 0), (16, 2), (64, 1), (1, 3), (128, 0)] {
            let table = Table::new(len, (1, from));
            for life in 0..=resets {
                if life > 0 {
                    table.reset();
                }
                for position in 0..len {
                    assert!(seen.insert(table.prepare(position, 0)), "of a table of {len}");
                }
            }
            from = table.behind();
        }
        assert_eq!(Table::new(4, (1, 0xfffd)).prepare(0, 0), 0, "they come around");
    }

    #[test]
    fn a_table_of_all_numbers_has_no_generation() {
        let table = Table::new(Table::MAX, (1, 3));
        assert_eq!((table.capacity(), table.limit()), (0x1_0000, 0x1_0000));
        assert_eq!((table.prepare(0xffff, 1), table.is_current(0)), (0xffff, true));
        table.reset();
        assert_eq!(table.prepare(0, 1), 0);
    }

    proptest! {
        /// Against a model that only knows which numbers are outstanding.
        #[test]
        fn no_number_is_given_twice(
            capacity in 1_u32..40,
            generation: u16,
            steps in prop::collection::vec((0_u8..4, any::<u16>()), 1..400),
        ) {
            let table = Table::new(capacity, (1, generation));
            let mut position = 0_u32;
            let mut outstanding = HashMap::new();
            let mut seen = HashSet::new();
            for (step, (what, which)) in steps.into_iter().enumerate() {
                match what {
                    0 | 1 if position != table.limit() => {
                        let number = table.prepare(position, step as u64);
                        prop_assert!(!table.has(number));
                        table.publish(position);
                        position = position.wrapping_add(1);
                        prop_assert_eq!(outstanding.insert(number, step as u64), None);
                        seen.insert(number);
                    }
                    2 => {
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
    use super::Table;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Arc;

    /// A queue of two requests: the poster posts four, whose numbers pass through the device to the poller. Nothing but the table tells the
    /// poster of completions.
    #[test]
    fn every_request_is_reported_with_its_wr_id() {
        const REQUESTS: u64 = 4;
        loom::model(|| {
            let table = Arc::new(Table::new(2, (1, 1)));
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
                let number = table.prepare(position, position.into());
                assert!(!table.has(number));
                table.publish(position);
                place.store(number.into(), Ordering::Release);
            }
            poller.join().unwrap();
        });
    }
}
