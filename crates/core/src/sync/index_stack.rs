// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stack of small numbers that any thread may push to and pop from, without a lock and without allocation: the free
//! buffers of a pool.
//!
//! Each number is in the stack at most once, which the owner of the numbers guarantees. The head has a count of its changes,
//! so a thread that was interrupted between its load and its compare-and-swap does not mistake a new head for the old one.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The end of the list.
const NONE: u32 = u32::MAX;

/// The stack.
#[derive(Debug)]
pub struct IndexStack {
    /// The count of changes in the upper half, the number on top in the lower.
    head: AtomicU64,
    /// The number below each number.
    below: Box<[AtomicU32]>,
}

impl IndexStack {
    /// The numbers below `len`, which is less than 2^32 - 1; 0 is on top.
    #[must_use]
    pub fn full(len: u32) -> Self {
        let below = (0..len).map(|i| AtomicU32::new(if i + 1 == len { NONE } else { i + 1 })).collect();
        Self { head: AtomicU64::new(if len == 0 { NONE.into() } else { 0 }), below }
    }

    /// The number on top.
    #[inline]
    pub fn pop(&self) -> Option<u32> {
        // Acquire pairs with the Release of `push`: `below` of the number on top was stored before.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            // Without an element for the number, the list is at its end.
            let below = self.below.get(head as u32 as usize)?.load(Ordering::Relaxed);
            let next = changed(head, below);
            match self.head.compare_exchange_weak(head, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(head as u32),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a number on top. It must not be in the stack; a number that is not below `len` is ignored.
    #[inline]
    pub fn push(&self, index: u32) {
        let Some(below) = self.below.get(index as usize) else { return };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            below.store(head as u32, Ordering::Relaxed);
            // Release pairs with the Acquire of `pop`: it sees `below`, and all that the pusher did to what the number stands for.
            match self.head.compare_exchange_weak(
                head,
                changed(head, index),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// The numbers in the stack now. It may be changed at the same time, so this is an estimate then.
    #[must_use]
    pub fn len(&self) -> usize {
        let mut at = self.head.load(Ordering::Acquire) as u32;
        let mut len = 0;
        while let Some(below) = self.below.get(at as usize)
            && len < self.below.len()
        {
            at = below.load(Ordering::Relaxed);
            len += 1;
        }
        len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The next head, with this number on top.
const fn changed(head: u64, top: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | top as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_in_reverse() {
        let stack = IndexStack::full(3);
        assert_eq!(
            (stack.len(), stack.pop(), stack.pop(), stack.pop(), stack.pop()),
            (3, Some(0), Some(1), Some(2), None)
        );
        stack.push(1);
        stack.push(0);
        stack.push(3);
        assert_eq!((stack.len(), stack.pop(), stack.pop(), stack.pop()), (2, Some(0), Some(1), None));
        assert!(IndexStack::full(0).is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn no_number_is_given_to_two() {
        loom::model(|| {
            let stack = Arc::new(IndexStack::full(2));
            let other = stack.clone();
            let thread = loom::thread::spawn(move || {
                let first = other.pop();
                if let Some(first) = first {
                    other.push(first);
                }
                other.pop()
            });
            let mine = stack.pop();
            let theirs = thread.join().unwrap();
            assert!(mine.is_some() && theirs.is_some());
            assert_ne!(mine, theirs);
            assert_eq!(stack.pop(), None);
        });
    }
}
