// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the next call of a [`Poller`](super::Poller) may do, and for how many completions: polls and extended polls exclude each other, and
//! an error that a poll finds after a completion is the result of the next one.
#![expect(unsafe_code)]
// UNSAFETY: a number that is not 0, because one comparison shows it.

use super::error::PollError;
use core::num::NonZeroUsize;

/// The state of a poller between its calls.
#[derive(Debug)]
pub(super) struct PollSession {
    next: Next,
    /// `room` if a poll may begin, else 0: by one comparison a poll knows whether it may begin, for how many completions, and that it is for
    /// one at least.
    limit: usize,
    /// The most completions that one poll takes.
    room: usize,
}

/// What may be next.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// A poll may begin.
    Idle,
    /// An extended poll is open.
    Open,
    /// An error was found after a completion.
    Failed(PollError),
}

/// An error that the session has: an empty type, so that the result of a poll is in registers.
// codegen: words
#[derive(Debug)]
pub(super) struct Kept;

impl PollSession {
    /// A poll may begin.
    pub(super) fn new(room: u32) -> Self {
        let room = room as usize;
        Self { next: Next::Idle, limit: room, room }
    }

    /// Changes the most completions that one poll takes.
    pub(super) fn set_room(&mut self, room: u32) {
        self.room = room as usize;
        self.enter(self.next);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn enter(&mut self, next: Next) {
        self.limit = if matches!(next, Next::Idle) { self.room } else { 0 };
        self.next = next;
    }

    /// Whether a poll may begin.
    // The compiler makes more instructions of `==`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.next, Next::Idle)
    }

    /// Whether an extended poll is open.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn is_open(&self) -> bool {
        matches!(self.next, Next::Open)
    }

    /// An extended poll has begun.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn open(&mut self) {
        self.enter(Next::Open);
    }

    /// An extended poll has ended.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn close(&mut self) {
        self.enter(Next::Idle);
    }

    /// That a poll may begin, is for one completion at least, and for at most as many as one poll takes.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn begin(&self, max: usize) -> Option<NonZeroUsize> {
        if max.wrapping_sub(1) < self.limit {
            // SAFETY: the difference is less than another number, so it is not `usize::MAX`, and `max` is not 0.
            return Some(unsafe { NonZeroUsize::new_unchecked(max) });
        }
        None
    }

    /// How many completions a poll for `max` takes, if it may begin.
    pub(super) fn at_most(&self, max: usize) -> Result<Option<NonZeroUsize>, Kept> {
        if self.is_idle() { Ok(NonZeroUsize::new(max.min(self.room))) } else { Err(Kept) }
    }

    /// Why no poll begins: an error, after which one may, or an open poll. A ring that has room for no completion has none.
    #[cold]
    #[inline(never)]
    pub(super) fn refusal(&mut self) -> PollError {
        match self.next {
            Next::Idle => PollError::Empty,
            Next::Open => PollError::SessionOpen,
            Next::Failed(error) => {
                self.enter(Next::Idle);
                error
            }
        }
    }

    /// Keeps an error for the end of this poll, or for the next one.
    #[cold]
    pub(super) fn keep(&mut self, error: PollError) -> Kept {
        self.enter(Next::Failed(error));
        Kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_is_for_one_completion_at_least_and_the_room_at_most() {
        let session = PollSession::new(16);
        let begin = |max| session.begin(max).map(NonZeroUsize::get);
        assert_eq!([0, 1, 16, 17, usize::MAX].map(begin), [None, Some(1), Some(16), None, None]);
        let at_most = |max| session.at_most(max).ok().map(|max| max.map(NonZeroUsize::get));
        assert_eq!([0, 17, usize::MAX].map(at_most), [Some(None), Some(Some(16)), Some(Some(16))]);
        let mut none = PollSession::new(0);
        assert!(none.begin(1).is_none() && matches!(none.at_most(1), Ok(None)));
        assert_eq!(none.refusal(), PollError::Empty);
    }

    #[test]
    fn no_poll_begins_in_an_open_one() {
        let mut session = PollSession::new(16);
        session.open();
        session.set_room(32);
        assert!(session.begin(1).is_none() && session.at_most(1).is_err());
        assert_eq!(session.refusal(), PollError::SessionOpen);
        assert!(session.is_open());
        session.close();
        assert_eq!(session.begin(32).map(NonZeroUsize::get), Some(32));
    }

    #[test]
    fn an_error_that_is_kept_is_reported_once() {
        let mut session = PollSession::new(16);
        let Kept = session.keep(PollError::Corrupt);
        assert!(session.begin(1).is_none() && session.at_most(1).is_err() && !session.is_open());
        assert_eq!(session.refusal(), PollError::Corrupt);
        assert_eq!(session.begin(1).map(NonZeroUsize::get), Some(1));
    }
}
