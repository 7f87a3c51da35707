// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that insert and take the same values.

use super::*;
use loom::sync::Arc;

const TAG: u64 = TAG_BITS;

/// Inserts by the test's first thread, which is the poster.
fn insert<T>(slab: &InFlight<T>, value: T) -> Option<u64> {
    // SAFETY: only the first thread of a test calls this.
    unsafe { slab.vacant(TAG) }.map(|vacant| vacant.fill(value))
}

/// A poster reuses the slot of a value that a poller takes.
#[test]
fn a_slot_is_reused_after_its_value_was_moved_out() {
    loom::model(|| {
        let slab = Arc::new(InFlight::new(1, 5, TAG));
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
        let slab = Arc::new(InFlight::new(2, 5, TAG));
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
        let slab = Arc::new(InFlight::new(2, 5, TAG));
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
