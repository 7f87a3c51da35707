// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wakers of a program's tasks.
//!
//! Each function of a waker may run code of the program: it may panic, and call the library. So all are called while no lock is
//! held, and a panic of one keeps no other task from being woken.

use core::ops::{Deref, DerefMut};
use core::panic::AssertUnwindSafe;
use core::task::Waker;
use std::collections::BTreeMap;
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

/// Wakes a task. The caller holds no lock. A waker that panics is logged.
pub fn wake_by_ref(waker: &Waker) {
    guarded(|| waker.wake_by_ref());
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

/// The places at which a task waits, at most.
const PLACES: usize = 2;

/// The waker of the task that polls a future.
///
/// A place for a waker is protected by a lock, under which no waker is cloned. So a function that needs a clone under its lock, and has
/// none, changes nothing; its caller releases the lock, [supplies](Self::supply) the clone, and repeats the function. This is created
/// before the lock is taken: it is dropped after that, with the wakers that were replaced.
#[derive(Debug)]
pub struct Caller<'a> {
    waker: &'a Waker,
    clones: [Option<Waker>; PLACES],
    /// The clones that were taken, or asked for, since the last [`supply`](Self::supply).
    taken: usize,
    lacks: bool,
    replaced: Vec<Waker>,
}

impl<'a> Caller<'a> {
    /// Without a clone: for a task that is registered in most cases, or need not wait.
    #[inline]
    #[must_use]
    pub const fn new(waker: &'a Waker) -> Self {
        Self { waker, clones: [None, None], taken: 0, lacks: false, replaced: Vec::new() }
    }

    /// With a clone. The caller holds no lock.
    #[inline]
    #[must_use]
    pub fn with_clone(waker: &'a Waker) -> Self {
        let clones = [Some(waker.clone()), None];
        Self { waker, clones, taken: 0, lacks: false, replaced: Vec::new() }
    }

    /// The waker of the task.
    #[inline]
    #[must_use]
    pub const fn waker(&self) -> &'a Waker {
        self.waker
    }

    /// A clone, to be stored. `None` if there is none: the caller changes nothing, releases its lock, and repeats this after
    /// [`supply`](Self::supply).
    #[inline]
    pub fn take(&mut self) -> Option<Waker> {
        self.taken += 1;
        let [first, second] = &mut self.clones;
        let clone = first.take().or_else(|| second.take());
        self.lacks |= clone.is_none();
        clone
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

    /// Makes the clones if one was missing: as many as were taken and asked for, because two wakers of a task may differ
    /// ([`Waker::will_wake`]), and each place takes one again. Returns whether one was missing. The caller holds no lock.
    #[inline]
    pub fn supply(&mut self) -> bool {
        let lacks = core::mem::take(&mut self.lacks);
        let taken = core::mem::take(&mut self.taken);
        if lacks {
            for clone in self.clones.iter_mut().take(taken) {
                if clone.is_none() {
                    *clone = Some(self.waker.clone());
                }
            }
        }
        lacks
    }
}

impl Drop for Caller<'_> {
    #[inline]
    fn drop(&mut self) {
        let [first, second] = &mut self.clones;
        discard(first.take());
        discard(second.take());
        while let Some(waker) = self.replaced.pop() {
            discard_one(waker);
        }
    }
}

/// The place of a task among [`Waiters`], if it has one.
#[derive(Debug, Default)]
pub struct Place(Option<u64>);

/// Tasks that wait for the same. Each has a place of its own, also if two are of one waker: so none takes another one's place along when
/// it leaves, and no step depends on the number of tasks.
#[derive(Debug, Default)]
pub struct Waiters {
    tasks: BTreeMap<u64, Waker>,
    last: u64,
}

impl Waiters {
    /// The task has a place, with this waker; or it needs a clone first, as [`Caller::take`].
    pub fn wait(&mut self, place: &mut Place, caller: &mut Caller<'_>) {
        match place.0.and_then(|number| self.tasks.get_mut(&number)) {
            Some(waker) => {
                caller.store(waker);
            }
            None => {
                if let Some(waker) = caller.take() {
                    self.last += 1;
                    place.0 = Some(self.last);
                    self.tasks.insert(self.last, waker);
                }
            }
        }
    }

    /// The task gives up its place. Returns its waker, which the caller [discards](discard).
    pub fn leave(&mut self, place: &mut Place) -> Option<Waker> {
        self.tasks.remove(&place.0.take()?)
    }

    /// Wakes all: none has a place any more.
    pub fn wake_all(&mut self, wakes: &mut Vec<Waker>) {
        wakes.extend(core::mem::take(&mut self.tasks).into_values());
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

impl Place {
    /// Whether the task has had a place since it last left.
    #[inline]
    #[must_use]
    pub const fn is_taken(&self) -> bool {
        self.0.is_some()
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

    /// Two wakers of a task need not be equal: then each place gets a new one, and the task does not repeat its step for ever.
    #[test]
    fn a_task_with_unequal_wakers_waits_at_two_places() {
        let waker = Waker::from(Arc::new(Task(0, Arc::default())));
        let mut caller = Caller::with_clone(&waker);
        let (mut first, mut second);
        let mut repetitions = 0;
        loop {
            // As if they differed again.
            (first, second) = (Waker::noop().clone(), Waker::noop().clone());
            let stored = caller.store(&mut first) & caller.store(&mut second);
            if !caller.supply() {
                assert!(stored);
                break;
            }
            repetitions += 1;
        }
        assert_eq!((repetitions, first.will_wake(&waker), second.will_wake(&waker)), (1, true, true));
    }
}
