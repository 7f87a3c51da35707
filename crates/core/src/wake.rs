// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wakers of a program's tasks.
//!
//! Each function of a waker may run code of the program: it may panic, and call the library. So all are called while no lock is
//! held, and a panic of one keeps no other task from being woken.

use core::ops::{Deref, DerefMut};
use core::panic::AssertUnwindSafe;
use core::task::Waker;
use std::panic;

/// Tasks to wake, in this order. A drop wakes those that were not woken yet, so an unwinding loses none.
#[derive(Debug, Default)]
pub struct Wakes(Vec<Waker>);

impl Wakes {
    /// No tasks.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Wakes them; none are left. The caller holds no lock. A waker that panics is logged.
    #[inline]
    pub fn wake(&mut self) {
        if !self.0.is_empty() {
            wake_all(&mut self.0);
        }
    }
}

impl Deref for Wakes {
    type Target = Vec<Waker>;

    #[inline]
    fn deref(&self) -> &Vec<Waker> {
        &self.0
    }
}

impl DerefMut for Wakes {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<Waker> {
        &mut self.0
    }
}

impl Drop for Wakes {
    #[inline]
    fn drop(&mut self) {
        self.wake();
    }
}

#[inline(never)]
fn wake_all(wakes: &mut Vec<Waker>) {
    // The first becomes the last, which is popped first.
    if wakes.len() > 1 {
        wakes.reverse();
    }
    while !wakes.is_empty() {
        guarded(|| {
            while let Some(waker) = wakes.pop() {
                waker.wake();
            }
        });
    }
}

/// Runs code of the program. A panic ends there.
fn guarded(f: impl FnOnce()) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(f)) {
        // Its drop could panic, too.
        core::mem::forget(payload);
        log::error!("a waker has panicked");
    }
}

/// Drops a waker. The caller holds no lock.
#[inline]
pub fn discard(waker: Option<Waker>) {
    if let Some(waker) = waker {
        discard_one(waker);
    }
}

#[cold]
fn discard_one(waker: Waker) {
    guarded(|| drop(waker));
}

/// The waker of the task that polls a future.
///
/// A place for a waker is protected by a lock, under which no waker is cloned. So a function that needs a clone under its lock, and has
/// none, changes nothing; its caller releases the lock, [supplies](Self::supply) the clone, and repeats the function. This is created
/// before the lock is taken: it is dropped after that, with the wakers that were replaced.
#[derive(Debug)]
pub struct Caller<'a> {
    waker: &'a Waker,
    clone: Option<Waker>,
    lacks: bool,
    replaced: Vec<Waker>,
}

impl<'a> Caller<'a> {
    /// Without a clone: for a task that is registered in most cases, or need not wait.
    #[inline]
    #[must_use]
    pub const fn new(waker: &'a Waker) -> Self {
        Self { waker, clone: None, lacks: false, replaced: Vec::new() }
    }

    /// With a clone. The caller holds no lock.
    #[inline]
    #[must_use]
    pub fn with_clone(waker: &'a Waker) -> Self {
        let clone = Some(waker.clone());
        Self { waker, clone, lacks: false, replaced: Vec::new() }
    }

    /// The waker of the task.
    #[inline]
    #[must_use]
    pub const fn waker(&self) -> &'a Waker {
        self.waker
    }

    /// The clone, to be stored. `None` if there is none: the caller changes nothing, releases its lock, and repeats this after
    /// [`supply`](Self::supply).
    #[inline]
    pub fn take(&mut self) -> Option<Waker> {
        self.lacks = self.clone.is_none();
        self.clone.take()
    }

    /// Stores the waker, unless it is there already. Returns whether it is there; otherwise as [`take`](Self::take).
    #[inline]
    pub fn store(&mut self, place: &mut Waker) -> bool {
        place.will_wake(self.waker) || self.replace(place)
    }

    #[inline(never)]
    fn replace(&mut self, place: &mut Waker) -> bool {
        let Some(clone) = self.take() else { return false };
        self.replaced.push(core::mem::replace(place, clone));
        true
    }

    /// Takes a waker that is not needed any more. It is dropped with this.
    #[inline]
    pub fn leave(&mut self, waker: Option<Waker>) {
        self.replaced.extend(waker);
    }

    /// Makes the clone if one was missing. Returns whether it was. The caller holds no lock.
    #[inline]
    pub fn supply(&mut self) -> bool {
        let lacks = core::mem::take(&mut self.lacks);
        if lacks {
            self.clone = Some(self.waker.clone());
        }
        lacks
    }
}

impl Drop for Caller<'_> {
    #[inline]
    fn drop(&mut self) {
        discard(self.clone.take());
        while let Some(waker) = self.replaced.pop() {
            discard_one(waker);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    /// Records the order of the wakes; those with an odd number panic.
    struct Task(u32, Arc<Mutex<Vec<u32>>>);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
            assert!(self.0.is_multiple_of(2), "a test of wakers that panic");
        }
    }

    /// A panic whose payload panics when it is dropped.
    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "a test of payloads that panic");
        }
    }

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic::panic_any(Self);
        }
    }

    /// A waker whose drop panics.
    struct DropPanics;

    impl Wake for DropPanics {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for DropPanics {
        fn drop(&mut self) {
            panic!("a test of wakers whose drop panics");
        }
    }

    fn tasks(order: &Arc<Mutex<Vec<u32>>>, n: usize) -> Wakes {
        let next = AtomicU32::new(0);
        let task = || Waker::from(Arc::new(Task(next.fetch_add(1, Ordering::Relaxed), order.clone())));
        Wakes(core::iter::repeat_with(task).take(n).collect())
    }

    #[test]
    fn the_payload_of_a_panic_does_not_end_the_caller() {
        let order = Arc::default();
        let mut wakes = tasks(&order, 1);
        wakes.insert(0, Waker::from(Arc::new(Panics)));
        wakes.wake();
        assert_eq!((&**order.lock().unwrap(), wakes.len()), (&[0][..], 0));
    }

    #[test]
    fn a_waker_that_panics_does_not_keep_others_from_being_woken() {
        let order = Arc::default();
        let mut wakes = tasks(&order, 5);
        wakes.wake();
        assert_eq!((&**order.lock().unwrap(), wakes.len()), (&[0, 1, 2, 3, 4][..], 0));
    }

    #[test]
    fn an_unwinding_loses_no_wakes() {
        let order: Arc<Mutex<Vec<u32>>> = Arc::default();
        let unwound = panic::catch_unwind(AssertUnwindSafe(|| {
            let _wakes = tasks(&order, 3);
            panic!("a test of an unwinding");
        }));
        assert!(unwound.is_err());
        assert_eq!(&**order.lock().unwrap(), &[0, 1, 2]);
    }

    #[test]
    fn a_waker_whose_drop_panics_is_dropped() {
        discard(Some(Waker::from(Arc::new(DropPanics))));
        let mut place = Waker::from(Arc::new(DropPanics));
        let mut caller = Caller::new(Waker::noop());
        assert!(!caller.store(&mut place) && caller.supply() && caller.store(&mut place));
        assert!(!caller.supply());
        drop(caller);
        assert!(place.will_wake(Waker::noop()));
    }
}
