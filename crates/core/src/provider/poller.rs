// SPDX-License-Identifier: MIT OR Apache-2.0
//! A poller whose completions are copies.
//!
//! A poll copies a completion and leaves the queue before it passes the copy to the user, whose code may make control calls. What a
//! [`Claimant`] keeps for the work request is taken before. A poll that only stores completions is one access to the queue.
#![expect(unsafe_code)]
// UNSAFETY: enters the queue as its only poller, which `&mut Poller` guarantees.

use super::completion::{Claimant, Completion, CompletionQueue};
use super::error::PollError;
use super::poll_session::{Kept, PollSession};
use crate::errno::Errno;
use crate::kernel::{Entered, Polled};
use crate::sync::ControlBarrier;
use crate::wc::WorkCompletion;
use core::fmt;
use core::mem::MaybeUninit;
use core::num::NonZeroUsize;
use std::io;
use std::sync::Arc;

/// By which a poller rings: a doorbell, or nothing.
pub trait Bell: Send + fmt::Debug {}

impl<T: Send + fmt::Debug> Bell for T {}

/// What a [`Poller`] takes completions of: the rings of a queue, which its poller and control calls use in turn. `B` is by which the poller
/// rings.
pub trait Source<B: Bell>: Send + fmt::Debug {
    /// A copy of a completion.
    type Entry: Completion + Copy + fmt::Debug + Send;

    /// Whether [`try_arm`](Self::try_arm) may succeed.
    const TRIES_TO_ARM: bool;

    /// The number of completions that fit.
    fn capacity(&self) -> u32;

    /// The most completions that one poll takes, so that it ends even if the device writes continually.
    fn room(&self) -> u32;

    /// Begins a poll: how many completions it takes, at most `max`.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] for a value that no correct device writes.
    fn available(&mut self, max: NonZeroUsize) -> Result<usize, PollError>;

    /// As [`available`](Self::available) for one, in an extended poll that goes on.
    ///
    /// # Errors
    /// As [`available`](Self::available).
    fn more(&mut self) -> Result<(), PollError>;

    /// Takes the next completion.
    ///
    /// # Errors
    /// As [`available`](Self::available).
    fn take(&mut self) -> Result<Option<Self::Entry>, PollError>;

    /// Whether [`give_back`](Self::give_back) may do anything, when this number of completions was taken.
    fn gives_back(bell: &B, done: usize) -> bool;

    /// Returns the slots of all completions that were taken to the device.
    fn give_back(&mut self, bell: &B);

    /// Whether a poll would find nothing.
    fn is_empty(&mut self) -> bool;

    /// Requests an event by stores alone, without a call; `false` if it can't, and did nothing.
    fn try_arm(&mut self, bell: &B, solicited_only: bool) -> bool;

    /// Requests an event. Inside the queue, because the bell may be that of another queue when this one is destroyed.
    ///
    /// # Errors
    /// The errno of the bell; `EOPNOTSUPP` if the queue has no such events; `EINVAL` if the kernel has destroyed it.
    fn arm(&mut self, bell: &B, solicited_only: bool) -> Result<(), Errno>;
}

/// The poller of a queue with this state, which `B` rings.
pub struct Poller<S: Source<B>, B: Bell> {
    shared: Arc<Polled<S>>,
    session: PollSession,
    /// The current completion of the open poll, or of the last one.
    last: Option<S::Entry>,
    capacity: u32,
    bell: B,
}

impl<S: Source<B>, B: Bell> Poller<S, B> {
    /// The poller of a queue.
    ///
    /// # Errors
    /// There is no memory for the words that the poller and control calls share.
    pub fn new(state: S, barrier: ControlBarrier, bell: B) -> io::Result<Self> {
        let (capacity, session) = (state.capacity(), PollSession::new(state.room()));
        let shared = Polled::new(state, barrier)?;
        Ok(Self { shared, session, last: None, capacity, bell })
    }

    /// The state that the queue shares with control calls.
    #[must_use]
    pub fn shared(&self) -> &Arc<Polled<S>> {
        &self.shared
    }

    /// By which it rings.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// Whether an extended poll is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.session.is_open()
    }

    /// Calls `f`, which may replace the rings, with the state; control calls wait. `None` in a child of fork, or if the queue is lost.
    pub fn replace<R>(&mut self, f: impl FnOnce(&mut S) -> R) -> Option<R> {
        let (result, capacity, room) =
            self.shared.stopped(|state| (f(state), state.capacity(), state.room()))?;
        self.capacity = capacity;
        self.session.set_room(room);
        Some(result)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn enter(&self) -> Result<Entered<'_, S>, PollError> {
        // SAFETY: `&mut Poller`, which all callers have, is the queue's only poller, and each drops what it got before it calls this
        // again.
        unsafe { self.shared.by_ref().enter() }
    }

    /// Returns the slots of this number of completions, which were polled.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn give_back(&self, done: usize) {
        if S::gives_back(&self.bell, done) {
            self.enter_to_give_back();
        }
    }

    #[inline(never)]
    fn enter_to_give_back(&self) {
        // In a child of fork no slots can be returned.
        if let Ok(mut entered) = self.enter() {
            entered.state().give_back(&self.bell);
        }
    }

    /// Polls up to `max` completions, whose slots are not returned.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn claim_each<C: Claimant<Self>>(&mut self, max: NonZeroUsize, mut claimant: C) -> Result<usize, Kept> {
        let Self { shared, session, .. } = self;
        let shared = shared.by_ref();
        // SAFETY: as in `enter`: `&mut Poller`, and what was entered before is dropped.
        let enter = || unsafe { shared.enter() };
        let mut entered = match enter() {
            Ok(entered) => entered,
            Err(error) => return Err(session.keep(error)),
        };
        let max = match entered.state().available(max) {
            Ok(max) => max,
            Err(error) => return Err(session.keep(error)),
        };
        let mut done = 0;
        while done < max {
            match entered.state().take() {
                Ok(Some(completion)) => {
                    let claim = claimant.claim(&completion);
                    drop(entered);
                    claimant.pass(&completion, claim);
                }
                Ok(None) => break,
                Err(error) => {
                    let kept = session.keep(error);
                    if done == 0 {
                        return Err(kept);
                    }
                    break;
                }
            }
            done += 1;
            if done == max {
                break;
            }
            entered = match enter() {
                Ok(entered) => entered,
                Err(error) => {
                    session.keep(error);
                    break;
                }
            };
        }
        Ok(done)
    }

    /// A poll of up to `max` completions, which may begin.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn poll_begun<C: Claimant<Self>>(&mut self, max: NonZeroUsize, claimant: C) -> Result<usize, Kept> {
        let queue = GiveBack(self);
        let result = queue.0.claim_each(max, claimant);
        core::mem::forget(queue);
        if let Ok(done) = result {
            self.give_back(done);
        }
        result
    }

    /// A poll that is not allowed, or for none, or for more than one poll takes.
    // codegen: call
    #[cold]
    #[inline(never)]
    fn poll_less<C: Claimant<Self>>(&mut self, max: usize, claimant: C) -> Result<usize, Kept> {
        self.session.at_most(max)?.map_or(Ok(0), |max| self.poll_begun(max, claimant))
    }

    /// Takes a completion of an extended poll, after `ask`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn advance(&mut self, ask: impl FnOnce(&mut S) -> Result<(), PollError>) -> Result<(), PollError> {
        let Self { shared, last, .. } = self;
        // SAFETY: as in `enter`: `&mut Poller`, and `entered` is dropped below.
        let mut entered = unsafe { shared.by_ref().enter() }?;
        ask(entered.state())?;
        // Stored here, so that it is not copied twice.
        *last = Some(entered.state().take()?.ok_or(PollError::Empty)?);
        Ok(())
    }

    /// Polls for a function that only stores: all of it is one access to the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn poll_inside(&mut self, max: usize, store: impl FnMut(usize, &S::Entry)) -> Result<usize, PollError> {
        let result = match self.session.begin(max) {
            Some(max) => self.store_each(max, store),
            None => self.store_less(max, store),
        };
        result.map_err(|Kept| self.session.refusal())
    }

    /// As [`poll_less`](Self::poll_less), for [`poll_inside`](Self::poll_inside).
    #[cold]
    #[inline(never)]
    fn store_less(&mut self, max: usize, store: impl FnMut(usize, &S::Entry)) -> Result<usize, Kept> {
        self.session.at_most(max)?.map_or(Ok(0), |max| self.store_each(max, store))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn store_each(
        &mut self,
        max: NonZeroUsize,
        mut store: impl FnMut(usize, &S::Entry),
    ) -> Result<usize, Kept> {
        let Self { shared, session, bell, .. } = self;
        // SAFETY: as in `enter`: `&mut Poller`, and `entered` is dropped below.
        let mut entered = match unsafe { shared.by_ref().enter() } {
            Ok(entered) => entered,
            Err(error) => return Err(session.keep(error)),
        };
        let max = match entered.state().available(max) {
            Ok(max) => max,
            Err(error) => return Err(session.keep(error)),
        };
        let mut done = 0;
        while done < max {
            match entered.state().take() {
                Ok(Some(completion)) => store(done, &completion),
                Ok(None) => break,
                Err(error) => {
                    let kept = session.keep(error);
                    if done == 0 {
                        return Err(kept);
                    }
                    break;
                }
            }
            done += 1;
        }
        if S::gives_back(bell, done) {
            entered.state().give_back(bell);
        }
        Ok(done)
    }
}

/// Returns the slots of what was polled if a callback panics.
struct GiveBack<'q, S: Source<B>, B: Bell>(&'q mut Poller<S, B>);

impl<S: Source<B>, B: Bell> Drop for GiveBack<'_, S, B> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        self.0.give_back(1);
    }
}

impl<S: Source<B>, B: Bell> CompletionQueue for Poller<S, B> {
    type Completion<'c>
        = S::Entry
    where
        Self: 'c;

    #[inline]
    fn poll_claiming(&mut self, max: usize, claimant: impl Claimant<Self>) -> Result<usize, PollError> {
        let Some(max) = self.session.begin(max) else {
            return self.poll_less(max, claimant).map_err(|Kept| self.session.refusal());
        };
        // Not by `poll_begun`: with a branch for the error here, a poll without one has no test of its result. codegen: layout
        let queue = GiveBack(self);
        let result = queue.0.claim_each(max, claimant);
        core::mem::forget(queue);
        let Ok(done) = result else { return Err(self.session.refusal()) };
        self.give_back(done);
        Ok(done)
    }

    #[inline]
    fn poll_cq(&mut self, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
        self.poll_inside(wc.len(), |at, completion| {
            if let Some(slot) = wc.get_mut(at) {
                *slot = completion.to_wc();
            }
        })
    }

    #[inline]
    fn poll_cq_uninit(&mut self, wc: &mut [MaybeUninit<WorkCompletion>]) -> Result<usize, PollError> {
        self.poll_inside(wc.len(), |at, completion| {
            if let Some(slot) = wc.get_mut(at) {
                slot.write(completion.to_wc());
            }
        })
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        if self.session.begin(1).is_none() {
            return Err(self.session.refusal());
        }
        self.advance(|state| state.available(NonZeroUsize::MIN).map(drop))?;
        self.session.open();
        Ok(())
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        if !self.session.is_open() {
            return Err(PollError::NoSession);
        }
        self.advance(S::more)
    }

    #[inline]
    fn end_poll(&mut self) {
        if self.session.is_open() {
            self.session.close();
            self.give_back(1);
        }
    }

    #[inline]
    fn current(&self) -> Option<S::Entry> {
        if self.session.is_open() { self.last } else { None }
    }

    #[inline]
    fn last(&self) -> Option<S::Entry> {
        self.last
    }

    #[inline]
    fn is_surely_empty(&mut self) -> bool {
        self.session.is_idle() && self.enter().is_ok_and(|mut entered| entered.state().is_empty())
    }

    // codegen: call
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_req_notify(&mut self, solicited_only: bool) -> bool {
        if !S::TRIES_TO_ARM {
            return false;
        }
        // SAFETY: as in `enter`: `&mut Poller`, and `entered` is dropped below.
        let Some(mut entered) = (unsafe { self.shared.by_ref().try_enter() }) else { return false };
        entered.state().try_arm(&self.bell, solicited_only)
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        if !S::TRIES_TO_ARM {
            return self.arm(solicited_only);
        }
        if self.try_req_notify(solicited_only) { Ok(()) } else { self.arm_by_call(solicited_only) }
    }

    fn cqe(&self) -> u32 {
        self.capacity
    }
}

impl<S: Source<B>, B: Bell> Poller<S, B> {
    /// [`req_notify`](CompletionQueue::req_notify) by a call, after a wait, or with an error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn arm(&mut self, solicited_only: bool) -> Result<(), PollError> {
        let mut entered = self.enter()?;
        entered.state().arm(&self.bell, solicited_only).map_err(PollError::Arm)
    }

    /// [`arm`](Self::arm) for a caller that rarely needs it.
    #[cold]
    #[inline(never)]
    fn arm_by_call(&mut self, solicited_only: bool) -> Result<(), PollError> {
        self.arm(solicited_only)
    }
}

impl<S: Source<B>, B: Bell> fmt::Debug for Poller<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("shared", &self.shared)
            .field("session", &self.session)
            .field("last", &self.last)
            .field("capacity", &self.capacity)
            .field("bell", &self.bell)
            .finish()
    }
}
