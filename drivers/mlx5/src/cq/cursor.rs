// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a poll stands in the ring, and the way from there to the next completion.
#![expect(unsafe_code)]
// UNSAFETY: reaches the state through a pointer, so that a poll can leave the queue for a callback and go on with what it has
// in registers.

use super::completion::Parsed;
use super::entry::{CqeRef, Phase, Tail};
use super::parse::{Current, Outcome, Resources};
use super::ring::CqRing;
use super::shared::Entered;
use super::state::CqState;
use crate::memory::Walk;
use core::hint::cold_path;
use core::ptr::NonNull;
use uverbs_core::provider::PollError;
use uverbs_core::sync::barrier;

/// Where a poll stands: the consumer's end of the ring and the resource at hand, for registers.
///
/// # Invariants
/// Made inside the queue. Its references are used only inside, and not after the state may have changed. The walk is over the
/// ring of the consumer's watch.
pub(super) struct Cursor<'q> {
    state: NonNull<CqState>,
    pub(super) ring: &'q CqRing,
    pub(super) resources: &'q Resources,
    pub(super) walk: Walk<'q>,
    /// The position of the ring's first entry in this lap.
    lap: u32,
    pub(super) phase: Phase,
    pub(super) current: Current<'q>,
}

impl<'q> Cursor<'q> {
    /// At the consumer's position.
    ///
    /// # Safety
    /// The caller is inside the queue, and drops the cursor, or does not use it any more, before the control path can change
    /// the state: when the caller leaves, unless it finds the word unchanged when it enters again.
    #[inline(always)]
    pub(super) unsafe fn new(entered: &mut Entered<'q>) -> Self {
        let state = NonNull::from(entered.state());
        // SAFETY: inside the queue, so the state is this thread's; the lifetime is bounded by the caller's promise.
        let CqState { consumer, ring, resources, last, .. } = unsafe { state.as_ref() };
        Self {
            state,
            ring,
            resources,
            walk: consumer.watch.walk(),
            lap: consumer.lap,
            phase: consumer.phase,
            current: Resources::current(last),
        }
    }

    /// The entry that it stands at.
    #[inline(always)]
    pub(super) fn entry(&self) -> CqeRef<'q> {
        CqeRef(self.walk.block())
    }

    /// Its tail.
    #[inline(always)]
    pub(super) fn tail(&self) -> Tail {
        self.entry().tail(self.phase)
    }

    /// The entry's position.
    #[inline(always)]
    pub(super) fn position(&self) -> u32 {
        self.lap.wrapping_add(self.walk.index())
    }

    /// Moves the cursor and the consumer behind the entry, which is before the walk's stop.
    #[inline(always)]
    pub(super) fn step_to_stop(&mut self) {
        self.walk.step_to_stop();
        // SAFETY: inside the queue (invariant); the place is used through no other reference.
        let watch = unsafe { &mut (*self.state.as_ptr()).consumer.watch };
        // SAFETY: the same ring (invariant).
        unsafe { watch.follow_walk(&self.walk) };
    }

    /// Moves both behind any entry.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        // SAFETY: inside the queue (invariant); the place is used through no other reference.
        let consumer = unsafe { &mut (*self.state.as_ptr()).consumer };
        let wraps = self.walk.step();
        // SAFETY: the same ring (invariant).
        unsafe { consumer.watch.follow_walk(&self.walk) };
        if wraps {
            consumer.begin_lap();
            (self.lap, self.phase) = (consumer.lap, consumer.phase);
        }
    }

    /// Keeps the resource of the last entry at hand for the next poll.
    #[inline(always)]
    pub(super) fn keep_resource(&self) {
        // SAFETY: inside the queue (invariant); the place is used through no other reference.
        let last = unsafe { &mut (*self.state.as_ptr()).last };
        if self.current.key() != last.key {
            self.resources.keep(self.current.key(), last);
        }
    }

    /// The next completion, which the cursor stands at.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Result<Option<Parsed>, PollError> {
        loop {
            let (entry, tail) = (self.entry(), self.tail());
            let is_requester = tail.is_plain_requester();
            if !is_requester && !tail.is_plain_responder() {
                if !tail.is_valid() {
                    return Ok(None);
                }
                break;
            }
            let current = &self.current;
            let parsed =
                if is_requester { current.requester(entry, tail) } else { current.responder(entry, tail) };
            if parsed.is_some() {
                return Ok(parsed);
            }
            if !self.current.turn_to(self.resources, entry) {
                break;
            }
        }
        self.next_other()
    }

    /// The same by the long way.
    #[inline(always)]
    pub(super) fn next_other(&mut self) -> Result<Option<Parsed>, PollError> {
        cold_path();
        let (skipped, result) = parse_other(self.resources, self.ring, self.position());
        for _ in 0..skipped {
            self.step();
        }
        result
    }
}

/// The long way to the next completion from `position` on, over entries that are none: how many of those there are. Takes no
/// cursor: with its address lent out, a cursor would not be in registers on the short way either.
#[inline(never)]
fn parse_other(
    resources: &Resources,
    ring: &CqRing,
    position: u32,
) -> (u32, Result<Option<Parsed>, PollError>) {
    // A device that never stops writing can't keep the call here.
    for skipped in 0..=ring.entries() {
        let position = position.wrapping_add(skipped);
        if ring.valid(position).is_none() {
            return (skipped, Ok(None));
        }
        barrier::from_device();
        match resources.parse(ring, position) {
            Outcome::Completion(parsed) => return (skipped, Ok(Some(parsed))),
            Outcome::Nothing => {}
            Outcome::Unknown => return (skipped + 1, Err(PollError::Corrupt)),
        }
    }
    (0, Ok(None))
}
