// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stack of small numbers that any thread may push to and pop from, without a lock and without allocation: the free
//! buffers of a pool.
//!
//! Each number is in the stack at most once, which the owner of the numbers guarantees. The head has a count of its changes,
//! so a thread that was interrupted between its load and its compare-and-swap does not mistake a new head for the old one.
//!
//! A stack can be *watched* while it is empty, by those that wait for a number. Then [`push`](IndexStack::push) puts nothing on it, and its caller
//! gives the number to one of them. The mark is in the head, so it changes the head like a push: a push that has not seen
//! the mark fails and is repeated. The lock of those that wait orders the calls that set and remove the mark.
#![expect(unsafe_code)]
// UNSAFETY: an element without a check of its index, which the caller guarantees.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The end of the list.
const NONE: u32 = u32::MAX >> 1;

/// In the lower half of the head: the stack is watched. With it, the head has no number that is below the length.
const WATCHED: u32 = 1 << 31;

/// The stack.
#[derive(Debug)]
pub struct IndexStack {
    /// The count of changes in the upper half, the number on top in the lower.
    head: AtomicU64,
    /// The number below each number.
    below: Box<[AtomicU32]>,
}

impl IndexStack {
    /// The numbers below `len`, which is less than 2^31 - 1; 0 is on top.
    #[must_use]
    pub fn full(len: u32) -> Self {
        let below = (0..len).map(|i| AtomicU32::new(if i + 1 == len { NONE } else { i + 1 })).collect();
        Self { head: AtomicU64::new(if len == 0 { NONE.into() } else { 0 }), below }
    }

    /// The number on top; none while the stack is watched.
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

    /// Puts a number on top. `false` if the stack is watched: the number is not put on it.
    ///
    /// # Safety
    /// The number is below the length that the stack was created with, and it is not in the stack.
    #[inline]
    #[must_use]
    pub unsafe fn push(&self, index: u32) -> bool {
        // One compare, of the mark, in place of one of the number.
        #[cfg(not(loom))]
        // SAFETY: there are as many as the length (the contract of this function).
        let below = unsafe { self.below.get_unchecked(index as usize) };
        #[cfg(loom)]
        let below = &self.below[index as usize];
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head as u32 & WATCHED != 0 {
                return false;
            }
            match self.put(head, below, index) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put(&self, head: u64, below: &AtomicU32, index: u32) -> Result<u64, u64> {
        below.store(head as u32, Ordering::Relaxed);
        // Release pairs with the Acquire of `pop`: it sees `below`, and all that the pusher did to what the number stands for.
        self.head.compare_exchange_weak(head, changed(head, index), Ordering::Release, Ordering::Relaxed)
    }

    /// The number on top; or, if there is none, marks the stack as watched.
    pub fn pop_or_watch(&self) -> Option<u32> {
        loop {
            if let Some(index) = self.pop() {
                return Some(index);
            }
            let head = self.head.load(Ordering::Relaxed);
            if head as u32 & WATCHED != 0 {
                return None;
            }
            // A push since then has changed the head.
            if head as u32 == NONE
                && self
                    .head
                    .compare_exchange(
                        head,
                        changed(head, NONE | WATCHED),
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    )
                    .is_ok()
            {
                return None;
            }
        }
    }

    /// Removes the mark of [`pop_or_watch`](Self::pop_or_watch), if there is one.
    pub fn unwatch(&self) {
        let mut head = self.head.load(Ordering::Relaxed);
        while head as u32 & WATCHED != 0 {
            match self.head.compare_exchange(head, changed(head, NONE), Ordering::AcqRel, Ordering::Relaxed) {
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
        // SAFETY: these were taken.
        assert!(unsafe { stack.push(1) } && unsafe { stack.push(0) });
        assert_eq!((stack.len(), stack.pop(), stack.pop(), stack.pop()), (2, Some(0), Some(1), None));
        assert!(IndexStack::full(0).is_empty());
    }

    #[test]
    fn a_watched_stack_takes_no_numbers() {
        let stack = IndexStack::full(2);
        assert_eq!(
            (stack.pop_or_watch(), stack.pop_or_watch(), stack.pop_or_watch()),
            (Some(0), Some(1), None)
        );
        for _ in 0..2 {
            assert!(stack.pop().is_none() && stack.pop_or_watch().is_none() && stack.is_empty());
            // SAFETY: these were taken.
            assert!(unsafe { !stack.push(1) });
        }
        stack.unwatch();
        stack.unwatch();
        // SAFETY: as above.
        assert!(unsafe { stack.push(1) } && unsafe { stack.push(0) });
        assert_eq!((stack.pop(), stack.pop_or_watch(), stack.pop()), (Some(0), Some(1), None));
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
                    // SAFETY: it was taken.
                    assert!(unsafe { other.push(first) });
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

    /// One that waits and one that gives back: the number goes to one of them, whatever the order.
    #[test]
    fn no_number_is_lost_while_one_waits() {
        loom::model(|| {
            let stack = Arc::new(IndexStack::full(1));
            let number = stack.pop().unwrap();
            // The numbers that are given to those that wait; its lock orders the marks.
            let given = Arc::new(loom::sync::Mutex::new((false, None)));
            let (other, theirs) = (stack.clone(), given.clone());
            let thread = loom::thread::spawn(move || {
                // SAFETY: it was taken.
                if unsafe { other.push(number) } {
                    return;
                }
                let mut given = theirs.lock().unwrap();
                assert!(given.0, "somebody waits");
                given.1 = Some(number);
                other.unwatch();
            });
            let mine = {
                let mut given = given.lock().unwrap();
                let mine = stack.pop_or_watch();
                given.0 = mine.is_none();
                mine
            };
            thread.join().unwrap();
            let mine = mine.or_else(|| given.lock().unwrap().1);
            assert_eq!(mine, Some(number));
            assert_eq!(stack.pop(), None);
        });
    }
}
