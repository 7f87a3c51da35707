// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue: polling and arming. The rings are in `cq_state`, because control calls use them, too.
//!
//! A poll copies a completion and leaves the queue before it passes the copy to the user, whose code may make control calls.
#![expect(unsafe_code)]
// UNSAFETY: enters the queue as its only poller, which `&mut CompletionQueue` guarantees.

use crate::completion::Completion;
use crate::cq_state::{CqShared, CqState};
use crate::memory::Doorbell;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use std::io;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{Entered, Polled};
use uverbs_core::provider::completion::{Claimant, CompletionQueue as CompletionQueueTrait};
use uverbs_core::provider::{Completion as _, PollError};
use uverbs_core::sync::ControlBarrier;
use uverbs_core::wc::WorkCompletion;
use uverbs_efa_hw::regs::CqDoorbell;

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    shared: Arc<CqShared>,
    /// The rings of `shared`.
    rings: Arc<Polled<CqState>>,
    /// Whether an extended poll is open.
    is_open: bool,
    /// The current completion of the open poll, or of the last one.
    last: Option<Completion>,
    /// An error that was found after a completion, for the next call.
    pending: Option<PollError>,
    /// The most completions that one call takes, so that it ends even if the device writes continually.
    room: usize,
    capacity: u32,
    /// `None` if the CQ raises no events.
    doorbell: Option<Doorbell>,
}

impl CompletionQueue {
    /// A queue with this state.
    ///
    /// # Errors
    /// There is no memory for the words that the poller and control calls share.
    pub fn new(state: CqState, barrier: ControlBarrier, doorbell: Option<Doorbell>) -> io::Result<Self> {
        let (capacity, room) = (state.ring.entries(), state.room());
        let shared = Arc::new(CqShared::new(state, barrier, doorbell.as_ref())?);
        let rings = Arc::clone(&shared.rings);
        Ok(Self { shared, rings, is_open: false, last: None, pending: None, room, capacity, doorbell })
    }

    /// The state that the queue shares with control calls.
    #[must_use]
    pub fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn enter(&self) -> Result<Entered<'_, CqState>, PollError> {
        // SAFETY: `&mut CompletionQueue`, which all callers have, is the queue's only poller, and each drops what it got before it calls
        // this again.
        unsafe { self.rings.enter() }
    }

    /// Whether a poll may begin.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn may_poll(&mut self) -> Result<(), PollError> {
        if self.is_open {
            return Err(PollError::SessionOpen);
        }
        if self.pending.is_none() { Ok(()) } else { self.pending_error() }
    }

    /// The error that was found after a completion.
    #[cold]
    fn pending_error(&mut self) -> Result<(), PollError> {
        self.pending.take().map_or(Ok(()), Err)
    }

    /// Tells the device how many completions were consumed, if it raises events for them.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn tell(&self) {
        if let Some(doorbell) = &self.doorbell {
            self.tell_by(doorbell);
        }
    }

    #[inline(never)]
    fn tell_by(&self, doorbell: &Doorbell) {
        if let Ok(mut entered) = self.enter()
            && let Some(consumed) = entered.state().news()
        {
            self.ring(doorbell, consumed, false);
        }
    }

    /// Polls up to `max` completions. `self` must [tell](Self::tell) the device after that.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn claim_each(&mut self, max: usize, mut claimant: impl Claimant<Self>) -> Result<usize, PollError> {
        let max = max.min(self.room);
        let rings = self.rings.by_ref();
        for done in 0..max {
            // SAFETY: as in `enter`: `&mut CompletionQueue`, and `entered` is dropped before the next iteration.
            let error = match unsafe { rings.enter() } {
                Ok(mut entered) => match entered.state().take() {
                    Ok(Some(completion)) => {
                        let claim = claimant.claim(&completion);
                        drop(entered);
                        claimant.pass(&completion, claim);
                        continue;
                    }
                    Ok(None) => return Ok(done),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            return self.after(done, error);
        }
        Ok(max)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ring(&self, doorbell: &Doorbell, consumer_index: u16, arm: bool) {
        let cmd_sn = self.shared.events.load(Ordering::Relaxed) as u8;
        doorbell.ring_after_loads(CqDoorbell { consumer_index, cmd_sn, arm }.pack());
    }

    /// Requests an event; `false` if the kernel has destroyed the queue. Inside, because the doorbell is that of another queue after that.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn arm(&self, state: &CqState, doorbell: &Doorbell) -> bool {
        if !state.ended {
            self.ring(doorbell, state.consumed, true);
        }
        !state.ended
    }

    /// Polls for a function that only stores: all of it is one access to the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn poll_inside(
        &mut self,
        max: usize,
        mut store: impl FnMut(usize, &Completion),
    ) -> Result<usize, PollError> {
        self.may_poll()?;
        let (mut done, mut error) = (0, None);
        let mut entered = self.enter()?;
        let max = max.min(self.room);
        while done < max {
            match entered.state().take() {
                Ok(Some(completion)) => store(done, &completion),
                Ok(None) => break,
                Err(found) => {
                    error = Some(found);
                    break;
                }
            }
            done += 1;
        }
        if let Some(doorbell) = &self.doorbell
            && let Some(consumed) = entered.state().news()
        {
            self.ring(doorbell, consumed, false);
        }
        drop(entered);
        error.map_or(Ok(done), |error| self.after(done, error))
    }

    /// The result of a poll that finds an error after this number of completions.
    #[cold]
    fn after(&mut self, done: usize, error: PollError) -> Result<usize, PollError> {
        if done == 0 {
            return Err(error);
        }
        self.pending = Some(error);
        Ok(done)
    }

    /// Takes a completion of an extended poll.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn advance(&mut self) -> Result<(), PollError> {
        let taken = self.enter()?.state().take()?;
        self.last = Some(taken.ok_or(PollError::Empty)?);
        Ok(())
    }
}

/// Rings the doorbell if a callback panics.
struct Tell<'q>(&'q mut CompletionQueue);

impl Drop for Tell<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        self.0.tell();
    }
}

impl CompletionQueueTrait for CompletionQueue {
    type Completion<'c> = Completion;

    #[inline]
    fn poll_claiming(&mut self, max: usize, claimant: impl Claimant<Self>) -> Result<usize, PollError> {
        self.may_poll()?;
        let queue = Tell(self);
        let result = queue.0.claim_each(max, claimant);
        core::mem::forget(queue);
        self.tell();
        result
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
        self.may_poll()?;
        self.advance()?;
        self.is_open = true;
        Ok(())
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        if !self.is_open {
            return Err(PollError::NoSession);
        }
        self.advance()
    }

    #[inline]
    fn end_poll(&mut self) {
        if core::mem::take(&mut self.is_open) {
            self.tell();
        }
    }

    #[inline]
    fn current(&self) -> Option<Completion> {
        if self.is_open { self.last } else { None }
    }

    #[inline]
    fn last(&self) -> Option<Completion> {
        self.last
    }

    #[inline]
    fn is_surely_empty(&mut self) -> bool {
        !self.is_open
            && self.pending.is_none()
            && self.enter().is_ok_and(|mut entered| entered.state().is_empty())
    }

    // codegen: call
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_req_notify(&mut self, solicited_only: bool) -> bool {
        let Some(doorbell) = self.doorbell.as_ref().filter(|bell| bell.is_mapped() && !solicited_only) else {
            return false;
        };
        // SAFETY: as in `enter`: `&mut CompletionQueue`, and `entered` is dropped below.
        let Some(mut entered) = (unsafe { self.rings.try_enter() }) else { return false };
        self.arm(entered.state(), doorbell)
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        if self.try_req_notify(solicited_only) { Ok(()) } else { self.req_notify_slow(solicited_only) }
    }

    fn cqe(&self) -> u32 {
        self.capacity
    }
}

impl CompletionQueue {
    /// [`req_notify`](CompletionQueueTrait::req_notify) by a call of a software device, after a wait, or with an error. The device has no
    /// solicited events.
    #[cold]
    #[inline(never)]
    fn req_notify_slow(&mut self, solicited_only: bool) -> Result<(), PollError> {
        let Some(doorbell) = self.doorbell.as_ref().filter(|_| !solicited_only) else {
            return Err(PollError::Arm(Errno::EOPNOTSUPP));
        };
        let mut entered = self.enter()?;
        if self.arm(entered.state(), doorbell) { Ok(()) } else { Err(PollError::Arm(Errno::EINVAL)) }
    }
}
