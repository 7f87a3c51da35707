// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue: polling and arming. The ring is in `cq_state`, because control calls use it, too.
//!
//! A poll copies a completion and leaves the queue before it passes the copy to the user, whose code may make control calls. What a
//! [`Claimant`] keeps for the work request is taken before.
#![expect(unsafe_code)]
// UNSAFETY: enters the queue as its only poller, which `&mut CompletionQueue` guarantees.

use crate::cq_state::{Completion, CqShared, CqState};
use crate::doorbell::ArmBell;
use crate::format::{CqRing, Format};
use core::fmt;
use std::io;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::Entered;
use uverbs_core::provider::completion::Claimant;
use uverbs_core::provider::{CompletionQueue as CompletionQueueTrait, PollError};
use uverbs_core::sync::ControlBarrier;

/// A completion queue, which `B` arms.
pub struct CompletionQueue<F: Format, B> {
    shared: Arc<CqShared<F>>,
    /// Whether an extended poll is open.
    is_open: bool,
    /// The current completion of the open poll, or of the last one.
    last: Option<Completion<F>>,
    capacity: u32,
    bell: B,
}

impl<F: Format, B: ArmBell> CompletionQueue<F, B> {
    /// A queue on a ring of completions.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] if the ring's contents make no sense.
    ///
    /// # Panics
    /// If memory can't be allocated.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn new(ring: F::CqRing, bell: B) -> Result<Self, PollError> {
        let created = Self::create(CqState::new(ring)?, ControlBarrier::register(), bell);
        Ok(created.expect("a page of memory"))
    }

    /// A queue with a ring that the control path shares.
    pub(crate) fn create(state: CqState<F>, barrier: ControlBarrier, bell: B) -> io::Result<Self> {
        let capacity = state.capacity();
        Ok(Self { shared: CqShared::new(state, barrier)?, is_open: false, last: None, capacity, bell })
    }

    /// The object that arms the queue.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// The state that the queue shares with control calls.
    #[must_use]
    pub fn shared(&self) -> &Arc<CqShared<F>> {
        &self.shared
    }

    /// Whether an extended poll is open.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Calls `f`, which may replace the ring, with the state; control calls wait. `None` in a child of fork, or if the
    /// queue is lost.
    pub(crate) fn resize<R>(&mut self, f: impl FnOnce(&mut CqState<F>) -> R) -> Option<R> {
        let (result, capacity) = self.shared.stopped(|state| (f(state), state.capacity()))?;
        self.capacity = capacity;
        Some(result)
    }

    /// Replaces the ring by the one to which the kernel moved the completions.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] if the ring's contents make no sense; the queue is lost then.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn replace_ring(&mut self, ring: F::CqRing) -> Result<(), PollError> {
        self.resize(|state| state.replace_ring(ring)).unwrap_or(Err(PollError::Corrupt))
    }

    /// Loses the ring, as a resize does if the kernel's new one can't be mapped.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn lose_ring(&mut self) {
        self.resize(CqState::lose_ring);
    }

    /// Enters the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn enter(&mut self) -> Result<Entered<'_, CqState<F>>, PollError> {
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists: each borrows the poller.
        unsafe { self.shared.enter() }
    }

    /// Whether a poll may begin.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn may_poll(&self) -> Result<(), PollError> {
        if self.is_open { Err(PollError::SessionOpen) } else { Ok(()) }
    }
}

/// Returns the polled slots to the kernel when dropped, also if a callback panics.
struct GiveBack<'q, F: Format, B: ArmBell>(&'q mut CompletionQueue<F, B>);

impl<F: Format, B: ArmBell> Drop for GiveBack<'_, F, B> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        if F::CqRing::RETURNS_AT_ONCE {
            return;
        }
        // In a child of fork no slots can be returned.
        if let Ok(mut entered) = self.0.enter() {
            entered.state().give_back();
        }
    }
}

impl<F: Format, B: ArmBell> CompletionQueueTrait for CompletionQueue<F, B> {
    type Completion<'c>
        = Completion<F>
    where
        Self: 'c;

    #[inline]
    fn poll_claiming(&mut self, max: usize, mut claimant: impl Claimant<Self>) -> Result<usize, PollError> {
        self.may_poll()?;
        // Only the completions that are in the ring when the call begins, so the call ends even if the kernel writes
        // continually.
        let max = u32::try_from(max).unwrap_or(u32::MAX).min(self.capacity);
        let n = self.enter()?.state().available(max)? as usize;
        if n == 0 {
            return Ok(0);
        }
        let queue = GiveBack(self);
        for done in 0..n {
            // The next call reports an error.
            let Ok(mut entered) = queue.0.enter() else { return Ok(done) };
            // A control call may have removed the rest.
            let Some(completion) = entered.state().take() else { return Ok(done) };
            let claim = claimant.claim(&completion);
            drop(entered);
            claimant.pass(&completion, claim);
        }
        Ok(n)
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        self.may_poll()?;
        let mut entered = self.enter()?;
        entered.state().available(1)?;
        let taken = entered.state().take();
        drop(entered);
        self.last = Some(taken.ok_or(PollError::Empty)?);
        self.is_open = true;
        Ok(())
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        if !self.is_open {
            return Err(PollError::NoSession);
        }
        let mut entered = self.enter()?;
        entered.state().more()?;
        let taken = entered.state().take();
        drop(entered);
        self.last = Some(taken.ok_or(PollError::Empty)?);
        Ok(())
    }

    #[inline]
    fn end_poll(&mut self) {
        if core::mem::take(&mut self.is_open) {
            drop(GiveBack(self));
        }
    }

    #[inline]
    fn current(&self) -> Option<Completion<F>> {
        if self.is_open { self.last } else { None }
    }

    #[inline]
    fn last(&self) -> Option<Completion<F>> {
        self.last
    }

    #[inline]
    fn is_surely_empty(&mut self) -> bool {
        !self.is_open && self.enter().is_ok_and(|mut entered| entered.state().available(1) == Ok(0))
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists: each borrows the poller.
        let mut entered = unsafe { self.shared.enter() }?;
        let state = entered.state();
        if state.has_ended() {
            return Err(PollError::Arm(Errno::EINVAL));
        }
        state.ring().arm(solicited_only);
        // Inside, because the bell names the queue by its handle.
        self.bell.arm(solicited_only).map_err(PollError::Arm)
    }

    fn cqe(&self) -> u32 {
        self.capacity
    }
}

impl<F: Format, B: fmt::Debug> fmt::Debug for CompletionQueue<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("shared", &self.shared)
            .field("is_open", &self.is_open)
            .field("last", &self.last)
            .field("capacity", &self.capacity)
            .field("bell", &self.bell)
            .finish()
    }
}
