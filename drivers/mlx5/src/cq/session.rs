// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended polling (`ibv_start_poll` .. `ibv_end_poll`): one completion at a time, with fields that are read from its
//! entry.
//!
//! An open poll holds no lock and is not inside the queue: each call enters and leaves. The current entry is returned
//! to the device when the poll continues or ends, so it stays readable during control calls. The entries before it are
//! returned at the end, or by a control call.
#![expect(unsafe_code)]
// UNSAFETY: enters the queue as its only poller, which `&mut CompletionQueue` guarantees.

use super::clock::Clock;
use super::completion::{Completion, Parsed};
use super::cursor::PollCursor;
use super::entry::{CqeRef, Tail};
use super::parse::Resources;
use super::poll::{CompletionQueue, Pending, enter, give_back};
use super::ring::CqRing;
use super::shared::Entered;
use super::state::CqState;
use crate::memory::BlockPosition;
use core::fmt;
use std::sync::Arc;
use uverbs_core::provider::PollError;
use uverbs_core::wc::WcStatus;

/// The current completion of an extended poll. After its end, the device may write to the entry.
pub(super) struct Session {
    parsed: Parsed,
    /// The entry of `parsed`.
    entry: BlockPosition,
}

impl Session {
    /// The session of a queue with the entries in `ring`; no poll is open.
    pub(super) fn new(ring: &CqRing) -> Self {
        let parsed = Parsed::requester(Tail::default(), 0, WcStatus::SUCCESS, 0, false);
        Self { parsed, entry: BlockPosition::new(Arc::clone(ring.blocks()), 0) }
    }

    /// Moves to the next completion if it is of the cached resource and of a usual kind; otherwise returns `None`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn advance(&mut self, mut entered: Entered<'_>) -> Option<Result<(), PollError>> {
        let CqState { consumer, last, .. } = entered.state();
        let entry = CqeRef(consumer.next.block());
        let tail = entry.tail(consumer.phase);
        if !tail.is_valid() {
            return Some(Err(PollError::Empty));
        }
        let parsed = if tail.is_plain_requester() {
            Resources::current(last).requester(entry, tail)
        } else if tail.is_plain_responder() {
            Resources::current(last).responder(entry, tail)
        } else {
            None
        };
        self.parsed = parsed?;
        // SAFETY: both positions are of the queue's ring: `CompletionQueue::finish_resize` replaces the session together with
        // the ring.
        unsafe { self.entry.set_to(&consumer.next) };
        consumer.step();
        Some(Ok(()))
    }

    /// Moves to the next completion, of any kind.
    fn advance_slow(&mut self, entered: &mut Entered<'_>) -> Result<(), PollError> {
        // SAFETY: the caller is inside the queue (`entered`), and the cursor is not used after this function.
        let mut cursor = unsafe { PollCursor::new(entered) };
        let from = cursor.position();
        let next = cursor.next();
        let to = cursor.position();
        if let Ok(Some(parsed)) = next {
            self.parsed = parsed;
            // SAFETY: the position and the cursor are of the queue's ring: `CompletionQueue::finish_resize` replaces the session
            // together with the ring.
            unsafe { self.entry.set_to_cursor(&cursor.blocks) };
            cursor.step();
        }
        cursor.keep_resource();
        let result = next.and_then(|parsed| parsed.map(|_| ()).ok_or(PollError::Empty));
        if result.is_err() {
            entered.state().keep(from, to);
        }
        result
    }
}

impl CompletionQueue {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn start_session(&mut self) -> Result<(), PollError> {
        match self.try_start_session() {
            Some(result) => result,
            None => self.start_session_slow(),
        }
    }

    /// Starts a session with an entry of the cached resource and of a usual kind, or finds none; otherwise returns `None`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn try_start_session(&mut self) -> Option<Result<(), PollError>> {
        if !self.pending.is_empty() {
            return None;
        }
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists.
        let entered = unsafe { self.shared.enter(self.open_word) }?;
        let result = self.session.advance(entered)?;
        if result.is_ok() {
            self.pending |= Pending::SESSION;
        }
        Some(result)
    }

    #[inline(never)]
    fn start_session_slow(&mut self) -> Result<(), PollError> {
        self.check_pending()?;
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists.
        let mut entered = unsafe { enter(&self.shared, &mut self.open_word) }?;
        if let Err(error) = self.session.advance_slow(&mut entered) {
            if error == PollError::Corrupt {
                // The entry was consumed. It is returned to the device here, because there is no session whose end would do
                // it.
                give_back(&self.record, entered.state().consumer.position());
            }
            return Err(error);
        }
        drop(entered);
        if let Some(clock) = &mut self.clock {
            clock.refresh();
        }
        self.pending |= Pending::SESSION;
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn next_of_session(&mut self) -> Result<(), PollError> {
        if self.is_open()
            // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists.
            && let Some(entered) = unsafe { self.shared.enter(self.open_word) }
            && let Some(result) = self.session.advance(entered)
        {
            return result;
        }
        self.next_of_session_slow()
    }

    #[inline(never)]
    fn next_of_session_slow(&mut self) -> Result<(), PollError> {
        if !self.is_open() {
            return Err(PollError::NoSession);
        }
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists.
        let mut entered = unsafe { enter(&self.shared, &mut self.open_word) }?;
        self.session.advance_slow(&mut entered)?;
        // A control call since the last step may have removed entries behind the one that was current then.
        give_back(&self.record, entered.state().consumer.position().wrapping_sub(1));
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn end_session(&mut self) {
        if self.is_open() {
            self.pending -= Pending::SESSION;
            // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists.
            if let Ok(mut entered) = unsafe { enter(&self.shared, &mut self.open_word) } {
                give_back(&self.record, entered.state().consumer.position());
            }
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn current_of_session(&self) -> Option<Completion<'_>> {
        self.is_open().then(|| self.last_of_session())
    }

    /// The current completion of the open poll, or of the last one. Before the first one, the values are 0 or those of an
    /// entry of the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn last_of_session(&self) -> Completion<'_> {
        let Session { parsed, entry } = &self.session;
        let clock = self.clock.as_ref().map(Clock::info);
        Completion { cqe: CqeRef(entry.block()), parsed: *parsed, fields: self.fields, clock }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("parsed", &self.parsed).field("entry", &self.entry).finish()
    }
}
