// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the poller and the control path of a completion queue share: the ring of a software device's CQ.
//!
//! The ring has one user at a time. The poller enters for the memory accesses of one step ([`PolledRef::enter`]); the
//! control path stops it first ([`Polled::stopped`]), by the handshake of [`QueueAccess`]. So after a control call has
//! removed the completions of a QP, no poll reports one of them, and none takes a slot in the ring.
// UNSAFETY: returns a mutable reference to the state from a shared reference; this module ensures that there is one user
// at a time.
#![expect(unsafe_code)]

use super::queue_access::{AccessRef, QueueAccess};
use crate::provider::PollError;
use crate::sync::{ControlBarrier, ProcessMutex};
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::Ordering;
use std::io;
use std::sync::Arc;

/// The poller may enter.
const OPEN: u32 = 1;
/// The poller may enter with a fence.
const OPEN_FENCED: u32 = 4;
/// The control path uses the ring.
const CLOSED: u32 = 2;
/// The poller could not be stopped: no more completions.
const LOST: u32 = 3;

/// The state of a completion queue that the kernel and one poller share, such as its ring.
pub struct Polled<T> {
    access: QueueAccess,
    /// The word when the poller may enter: a poller that enters without a fence must find another one if it needs a fence.
    open: u32,
    /// One control call at a time; a poller that finds the queue closed waits for this lock.
    control: ProcessMutex<()>,
    state: UnsafeCell<T>,
}

// SAFETY: `state` is accessed through `Entered` by the only poller while the word is open, and by `stopped` while
// `control` is held, the word is closed and the poller is outside. `T` is `Send`. The other fields are `Sync`.
unsafe impl<T: Send> Sync for Polled<T> {}

impl<T> Polled<T> {
    /// Creates the shared part of a queue with this state.
    ///
    /// # Errors
    /// As [`QueueAccess::new`].
    pub fn new(state: T, barrier: ControlBarrier) -> io::Result<Arc<Self>> {
        let open = if barrier == ControlBarrier::Fence { OPEN_FENCED } else { OPEN };
        let access = QueueAccess::new(open, barrier)?;
        Ok(Arc::new(Self { access, open, control: ProcessMutex::new(()), state: UnsafeCell::new(state) }))
    }

    /// The addresses of its parts, for a poller that enters and leaves.
    // codegen: reload
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn by_ref(&self) -> PolledRef<'_, T> {
        PolledRef { shared: self, access: self.access.by_ref() }
    }

    /// Enters, with the fence that the queue needs, when no control call has it.
    // codegen: call
    #[cold]
    #[inline(never)]
    fn enter_later(&self) -> Result<(), PollError> {
        loop {
            let inside = self.access.inside();
            // Acquire: pairs with the store by which `stopped` opens the queue again.
            let word = self.access.word().load(Ordering::Acquire);
            if word == self.open {
                core::mem::forget(inside);
                return Ok(());
            }
            drop(inside);
            self.wait(word)?;
        }
    }

    /// Waits for the control call that uses the queue.
    #[cold]
    fn wait(&self, word: u32) -> Result<(), PollError> {
        match word {
            QueueAccess::FORKED => Err(PollError::Forked),
            LOST => Err(PollError::Corrupt),
            _ => self.control.lock().map(drop).map_err(|_| PollError::Forked),
        }
    }

    /// Whether this is a child of fork(2), where the queue belongs to the parent.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.access.word().load(Ordering::Acquire) == QueueAccess::FORKED
    }

    /// Stops the poller and calls `f` with the state. `None` in a child of fork, or if the queue is lost.
    pub fn stopped<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.stopped_with(f, |f, state| f(state)).ok()
    }

    /// As [`stopped`](Self::stopped); returns `argument` if `f` is not called.
    fn stopped_with<A, R>(&self, argument: A, f: impl FnOnce(A, &mut T) -> R) -> Result<R, A> {
        let word = self.access.word();
        let replace = |from, to| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        if self.is_forked() {
            return Err(argument);
        }
        let Ok(_one) = self.control.lock() else { return Err(argument) };
        if replace(self.open, CLOSED).is_err() {
            return Err(argument);
        }
        if let Err(errno) = self.access.wait_idle() {
            log::error!("cq: membarrier(2): {errno}; the queue reports no more completions");
            let _ = replace(CLOSED, LOST);
            return Err(argument);
        }
        /// Opens the queue again, also when `f` panics.
        struct Reopen<F: Fn()>(F);
        impl<F: Fn()> Drop for Reopen<F> {
            fn drop(&mut self) {
                (self.0)();
            }
        }
        let _reopen = Reopen(|| {
            let _ = replace(CLOSED, self.open);
        });
        // SAFETY: `control` is held, and the word is closed: no poller has been inside since `wait_idle`, and one that
        // enters finds the closed word. So this is the only reference to the state.
        let state = unsafe { &mut *self.state.get() };
        Ok(f(argument, state))
    }
}

impl<T> Polled<T> {
    /// Destroys the queue's object by `destroy` while its poller is outside, and then calls `ended` with the state.
    ///
    /// # Errors
    /// Those of `destroy`; the queue is as before then.
    pub fn destroyed<H, R, E>(
        &self,
        object: H,
        destroy: impl Fn(H) -> Result<R, (H, E)>,
        ended: impl FnOnce(&mut T),
    ) -> Result<R, (H, E)> {
        let result = self.stopped_with(object, |object, state| {
            let result = destroy(object);
            if result.is_ok() {
                ended(state);
            }
            result
        });
        // In a child of fork(2), or if the queue is lost, no poll enters.
        result.unwrap_or_else(destroy)
    }
}

impl<T> fmt::Debug for Polled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polled").field("access", &self.access).finish_non_exhaustive()
    }
}

/// The addresses of the parts of a [`Polled`].
#[derive(Debug)]
pub struct PolledRef<'q, T> {
    shared: &'q Polled<T>,
    access: AccessRef<'q>,
}

impl<'q, T> PolledRef<'q, T> {
    /// Enters the queue as its poller.
    ///
    /// # Errors
    /// [`PollError::Forked`] in a child of fork(2), [`PollError::Corrupt`] if the poller could not be stopped before.
    ///
    /// # Safety
    /// The caller is the queue's only poller, and has no other [`Entered`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn enter(&self) -> Result<Entered<'q, T>, PollError> {
        if !self.access.enter_if(OPEN) {
            self.access.leave();
            self.shared.enter_later()?;
        }
        Ok(Entered(PolledRef { shared: self.shared, access: self.access }))
    }

    /// [`enter`](Self::enter) without waiting: `None` if a control call has the queue, or for ever, or if each entry needs a fence. It calls
    /// no function, so that its caller saves no registers.
    ///
    /// # Safety
    /// As [`enter`](Self::enter).
    // codegen: call
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn try_enter(self) -> Option<Entered<'q, T>> {
        if self.access.enter_if(OPEN) {
            return Some(Entered(self));
        }
        self.access.leave();
        None
    }
}

/// The right to use the state, for a poller inside the queue. Dropping it leaves the queue.
#[derive(Debug)]
#[must_use]
pub struct Entered<'q, T>(PolledRef<'q, T>);

impl<T> Entered<'_, T> {
    /// The state.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn state(&mut self) -> &mut T {
        // SAFETY: the only poller (`PolledRef::enter`) is inside and found the word open, so the control path waits until it
        // leaves. The result borrows `self`, so it is the only reference.
        unsafe { &mut *self.0.shared.state.get() }
    }
}

impl<T> Drop for Entered<'_, T> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        self.0.access.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::hint::black_box;
    use std::thread;

    fn barriers() -> [ControlBarrier; 2] {
        [ControlBarrier::register(), ControlBarrier::Fence]
    }

    /// The numbers are equal unless somebody changes them.
    fn change(numbers: &mut [u32; 2]) {
        assert_eq!(numbers[0], numbers[1]);
        numbers[0] += 1;
        numbers[1] = black_box(&numbers[1]) + 1;
    }

    #[test]
    fn the_poller_and_control_calls_use_the_state_in_turn() {
        const POLLS: u32 = 100_000;
        const CALLS: u32 = 1_000;
        for barrier in barriers() {
            let shared = Polled::new([0; 2], barrier).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..POLLS {
                        // SAFETY: this thread is the only poller, and it drops what it got.
                        let mut entered = unsafe { shared.by_ref().enter() }.unwrap();
                        change(entered.state());
                    }
                });
                for _ in 0..CALLS {
                    shared.stopped(change).unwrap();
                }
            });
            assert_eq!(shared.stopped(|numbers| *numbers), Some([POLLS + CALLS; 2]), "{barrier:?}");
        }
    }

    #[test]
    fn an_attempt_fails_if_a_fence_is_needed_or_a_control_call_has_the_queue() {
        for barrier in barriers() {
            let shared = Polled::new([0; 2], barrier).unwrap();
            // SAFETY: this thread is the only poller, and it drops what it got.
            let attempt =
                || unsafe { shared.by_ref().try_enter() }.map(|mut entered| change(entered.state()));
            assert_eq!(attempt().is_some(), barrier != ControlBarrier::Fence);
            let during = shared.stopped(|_| {
                // SAFETY: this thread is the only poller, and it does not get in.
                unsafe { shared.by_ref().try_enter() }.is_some()
            });
            assert_eq!(during, Some(false));
            assert_eq!(attempt().is_some(), barrier != ControlBarrier::Fence);
        }
    }
}
