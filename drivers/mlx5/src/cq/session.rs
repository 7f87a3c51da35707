// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended polling (`ibv_start_poll` .. `ibv_end_poll`): one completion at a time, whose fields are read from its entry.
//!
//! An open poll holds no lock and is not inside the queue: each call enters and leaves. The entries that it has passed are
//! given back at its end, so the current one stays readable whatever the control path does meanwhile.
#![expect(unsafe_code)]
// UNSAFETY: enters the queue as its one poller, which `&mut CompletionQueue` proves.

use super::clock::Clock;
use super::completion::{Completion, Parsed};
use super::cursor::Cursor;
use super::entry::{CqeRef, Tail};
use super::parse::Resources;
use super::poll::{CompletionQueue, Pending, enter};
use super::ring::CqRing;
use super::shared::Entered;
use crate::memory::Watch;
use core::fmt;
use core::hint::cold_path;
use std::sync::Arc;
use uverbs_core::provider::PollError;
use uverbs_core::sync::barrier;
use uverbs_core::wc::WcStatus;

/// Where an extended poll stands, if one is open.
pub(super) struct Session {
    parsed: Parsed,
    /// The entry of `parsed`.
    entry: Watch,
}

impl Session {
    /// Of a queue whose entries are in `ring`; none is open.
    pub(super) fn new(ring: &CqRing) -> Self {
        let parsed = Parsed::requester(Tail::default(), 0, WcStatus::SUCCESS, 0, false);
        Self { parsed, entry: Watch::new(Arc::clone(ring.blocks()), 0) }
    }

    /// Moves to the next completion.
    #[inline(always)]
    fn advance(&mut self, mut entered: Entered<'_>) -> Result<(), PollError> {
        let consumer = &mut entered.state().consumer;
        let block = consumer.watch.address();
        let entry = CqeRef(consumer.watch.block());
        let tail = entry.tail();
        if consumer.idle.is(tail) {
            return Err(PollError::Empty);
        }
        let parsed = if tail.is_plain_requester(consumer.phase) {
            barrier::from_device();
            Resources::current(&consumer.last).requester(entry, tail)
        } else if tail.is_plain_responder(consumer.phase) {
            barrier::from_device();
            Resources::current(&consumer.last).responder(entry, tail)
        } else {
            None
        };
        if let Some(parsed) = parsed {
            self.parsed = parsed;
            self.entry.turn_to_address(block);
            consumer.step();
            return Ok(());
        }
        cold_path();
        self.advance_other(entered)
    }

    /// The same by the long way.
    #[inline(never)]
    fn advance_other(&mut self, mut entered: Entered<'_>) -> Result<(), PollError> {
        // SAFETY: inside, and dropped before `entered`.
        let mut cursor = unsafe { Cursor::new(&mut entered) };
        let result = match cursor.next() {
            Ok(Some(parsed)) => {
                self.parsed = parsed;
                self.entry.turn_to_address(cursor.walk().address());
                cursor.step();
                Ok(())
            }
            Ok(None) => Err(PollError::Empty),
            Err(error) => Err(error),
        };
        cursor.save();
        result
    }
}

impl CompletionQueue {
    #[inline(always)]
    pub(super) fn start_session(&mut self) -> Result<(), PollError> {
        self.check_pending()?;
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it lives.
        let entered = unsafe { enter(&self.shared, &mut self.open_word) }?;
        if let Err(error) = self.session.advance(entered) {
            cold_path();
            if error == PollError::Corrupt {
                // The entry was parsed, so it is given back here: there is no session to end.
                self.give_back_all();
            }
            return Err(error);
        }
        if let Some(clock) = &mut self.clock {
            clock.refresh();
        }
        self.pending |= Pending::SESSION;
        Ok(())
    }

    #[inline(always)]
    pub(super) fn next_of_session(&mut self) -> Result<(), PollError> {
        if !self.is_open() {
            return Err(PollError::NoSession);
        }
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it lives.
        let entered = unsafe { enter(&self.shared, &mut self.open_word) }?;
        self.session.advance(entered)
    }

    #[inline(always)]
    pub(super) fn end_session(&mut self) {
        if self.is_open() {
            self.pending -= Pending::SESSION;
            self.give_back_all();
        }
    }

    /// Gives back all that was parsed.
    #[inline(always)]
    fn give_back_all(&mut self) {
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it lives.
        if let Ok(mut entered) = unsafe { enter(&self.shared, &mut self.open_word) } {
            let position = entered.state().consumer.position;
            super::poll::give_back(&self.record, position);
        }
    }

    #[inline(always)]
    pub(super) fn current_of_session(&self) -> Option<Completion<'_>> {
        let clock = self.clock.as_ref().map(Clock::info);
        let Session { parsed, entry } = &self.session;
        self.is_open().then(|| Completion {
            cqe: CqeRef(entry.block()),
            parsed: *parsed,
            fields: self.fields,
            clock,
        })
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("parsed", &self.parsed).field("entry", &self.entry).finish()
    }
}
