// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a poll stands in the ring, and the way from there to the next completion.
#![expect(unsafe_code)]
// UNSAFETY: reaches the state through a pointer, so that a poll can leave the queue for a callback and go on with what it has
// in registers.

use super::completion::Parsed;
use super::entry::{CqeRef, Phase};
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
/// Made inside the queue. Its references are used only inside, and not after the state may have changed.
pub(super) struct Cursor<'q> {
    state: NonNull<CqState>,
    pub(super) ring: &'q CqRing,
    pub(super) resources: &'q Resources,
    pub(super) walk: Walk<'q>,
    pub(super) position: u32,
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
        let CqState { consumer, ring, resources, .. } = unsafe { state.as_ref() };
        Self {
            state,
            ring,
            resources,
            walk: consumer.watch.walk(),
            position: consumer.position,
            phase: consumer.phase,
            current: Resources::current(&consumer.last),
        }
    }

    /// The entry that it stands at.
    #[inline(always)]
    pub(super) fn walk(&self) -> &Walk<'q> {
        &self.walk
    }

    /// Moves behind the entry.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        self.position = self.position.wrapping_add(1);
        self.phase = self.phase.after(self.walk.step());
    }

    /// Notes the position, for the control path and for a panic. The rest of the consumer's end follows from it.
    #[inline(always)]
    pub(super) fn note_position(&self) {
        // SAFETY: inside the queue (invariant); the place is used through no other reference.
        unsafe { (*self.state.as_ptr()).consumer.position = self.position };
    }

    /// Leaves the consumer's end where the cursor stands.
    #[inline(always)]
    fn save_place(&self) {
        // SAFETY: inside the queue (invariant); `consumer` is used through no other reference.
        let consumer = unsafe { &mut (*self.state.as_ptr()).consumer };
        consumer.move_with(&self.walk, self.position, self.phase);
    }

    /// The same, and the resource at hand.
    #[inline(always)]
    pub(super) fn save(&self) {
        self.save_place();
        // SAFETY: as in `save_place`.
        let consumer = unsafe { &mut (*self.state.as_ptr()).consumer };
        if self.current.key() != consumer.last.key {
            self.resources.keep(self.current.key(), &mut consumer.last);
        }
    }

    /// The next completion, which the cursor stands at.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Result<Option<Parsed>, PollError> {
        loop {
            let entry = CqeRef(self.walk.block());
            let tail = entry.tail();
            let is_requester = tail.is_plain_requester(self.phase);
            if !is_requester && !tail.is_plain_responder(self.phase) {
                if !tail.is_valid(self.phase) {
                    return Ok(None);
                }
                break;
            }
            barrier::from_device();
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
        let (skipped, result) = parse_other(self.resources, self.ring, self.position);
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
