// SPDX-License-Identifier: MIT OR Apache-2.0
//! A poll's position in the ring, and the search for the next completion.
#![expect(unsafe_code)]
// UNSAFETY: accesses the state through a pointer, so that a poll can leave the queue for a callback and then continue with
// the values that it has loaded.

use super::completion::Parsed;
use super::entry::{CqeRef, Phase, Tail};
use super::parse::{Current, Outcome, Resources};
use super::ring::CqRing;
use super::shared::Entered;
use super::state::CqState;
use crate::memory::BlockCursor;
use core::hint::cold_path;
use core::ptr::NonNull;
use uverbs_core::provider::PollError;
use uverbs_core::sync::barrier;

/// The position of a poll: the consumer's position in the ring, and the current resource.
///
/// # Invariants
/// The cursor was created inside the queue. Its references are used only inside, and not after the state may have changed.
/// `blocks` and the consumer's position are of one ring.
// codegen: address
pub(super) struct PollCursor<'q> {
    state: NonNull<CqState>,
    pub(super) ring: &'q CqRing,
    pub(super) resources: &'q Resources,
    pub(super) blocks: BlockCursor<'q>,
    /// The position of the ring's first entry in this lap.
    lap: u32,
    pub(super) phase: Phase,
    pub(super) current: Current<'q>,
}

impl<'q> PollCursor<'q> {
    /// A cursor at the consumer's position.
    ///
    /// # Safety
    /// The caller is inside the queue. It must not use the cursor after the control path may have changed the state: after
    /// the caller left the queue, unless it finds the word unchanged when it enters again.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn new(entered: &mut Entered<'q>) -> Self {
        let state = NonNull::from(entered.state());
        // SAFETY: the caller is inside the queue, so no other thread accesses the state, and uses the references only as
        // long as the state is unchanged (the contract of this function).
        let CqState { consumer, ring, resources, last, .. } = unsafe { state.as_ref() };
        Self {
            state,
            ring,
            resources,
            blocks: consumer.next.cursor(),
            lap: consumer.lap,
            phase: consumer.phase,
            current: Resources::current(last),
        }
    }

    /// The entry at the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn entry(&self) -> CqeRef<'q> {
        CqeRef(self.blocks.block())
    }

    /// The tail of the entry at the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn tail(&self) -> Tail {
        self.entry().tail(self.phase)
    }

    /// The position of the entry at the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn position(&self) -> u32 {
        self.lap.wrapping_add(self.blocks.index())
    }

    /// Moves the cursor and the consumer past the entry, which must be before the stop of `blocks`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn step_to_stop(&mut self) {
        self.blocks.step_to_stop();
        // SAFETY: the caller is inside the queue (invariant), and no other reference to `next` exists.
        let next = unsafe { &mut (*self.state.as_ptr()).consumer.next };
        // SAFETY: `blocks` and `next` are of one ring (invariant).
        unsafe { next.set_to_cursor(&self.blocks) };
    }

    /// Moves the cursor and the consumer past the entry, which may be at any position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn step(&mut self) {
        // SAFETY: the caller is inside the queue (invariant), and no other reference to `consumer` exists.
        let consumer = unsafe { &mut (*self.state.as_ptr()).consumer };
        let wraps = self.blocks.step();
        // SAFETY: `blocks` and `next` are of one ring (invariant).
        unsafe { consumer.next.set_to_cursor(&self.blocks) };
        if wraps {
            consumer.begin_lap();
            (self.lap, self.phase) = (consumer.lap, consumer.phase);
        }
    }

    /// Caches the resource of the last entry for the next poll.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn keep_resource(&self) {
        // SAFETY: the caller is inside the queue (invariant), and no other reference to `last` is used.
        let last = unsafe { &mut (*self.state.as_ptr()).last };
        if self.current.key() != last.key {
            self.resources.keep(self.current.key(), last);
        }
    }

    /// Finds the first completion from the cursor on, and moves the cursor to its entry.
    #[cfg_attr(not(debug_assertions), inline(always))]
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
            if !self.current.change_to(self.resources, entry) {
                break;
            }
        }
        self.next_other()
    }

    /// As [`next`](Self::next), for entries of any kind.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn next_other(&mut self) -> Result<Option<Parsed>, PollError> {
        cold_path();
        let (skipped, result) = parse_other(self.resources, self.ring, self.position());
        for _ in 0..skipped {
            self.step();
        }
        result
    }
}

/// Searches for a completion from `position` on, and returns how many entries before it are not completions.
// codegen: address
#[inline(never)]
fn parse_other(
    resources: &Resources,
    ring: &CqRing,
    position: u32,
) -> (u32, Result<Option<Parsed>, PollError>) {
    // The loop is bounded, so the call returns even if the device keeps writing.
    for skipped in 0..=ring.entries() {
        let position = position.wrapping_add(skipped);
        let Some(op_own) = ring.valid(position) else { return (skipped, Ok(None)) };
        barrier::from_device();
        if op_own.has_format_of_title() && ring.expand(position).is_err() {
            // It is unknown where the next completion is. The title is not consumed, so each poll reports the error.
            return (skipped, Err(PollError::Corrupt));
        }
        match resources.parse(ring, position) {
            Outcome::Completion(parsed) => return (skipped, Ok(Some(parsed))),
            Outcome::Nothing => {}
            Outcome::Unknown => return (skipped + 1, Err(PollError::Corrupt)),
        }
    }
    (0, Ok(None))
}
