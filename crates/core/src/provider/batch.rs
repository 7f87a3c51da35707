// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far a queue is, as its poster knows it, and a batch. For queues whose posters check the state of the QP in each post
//! ([`QpAccess`](crate::kernel::QpAccess)).
//!
//! A position is that of a request: they are counted since the queue was created or reset, modulo 2^32. The poster keeps the position up
//! to which it has published, and the one up to which it may write, for which it asks again only when the queue seems full. Every
//! condition that forbids a request (a full queue, a latched error, the wrong state) sets the limit of a batch to its position, so the
//! usual way has one compare for all of them.

#![expect(unsafe_code)]
// UNSAFETY: a function of the batch's trait is `unsafe`, with a contract about memory. This module has no unsafe operation.

use super::error::PostError;
use super::send::{SendBatch, SendQueue};
use super::state::StateWord;
use super::wr::Wr;
use core::hint::cold_path;

/// How far a queue is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The position behind the last request that was published.
    pub published: u32,
    /// The position that must not be written, as far as is known.
    limit: u32,
    /// The state word under which posting was allowed last.
    seen: StateWord,
}

impl Progress {
    /// That of a queue at this position and with this limit, of whose state nothing is known.
    #[must_use]
    pub const fn new((published, limit): (u32, u32)) -> Self {
        Self { published, limit, seen: StateWord::NONE }
    }

    /// Continues at another position, with another limit.
    pub fn set_to(&mut self, (published, limit): (u32, u32)) {
        (self.published, self.limit) = (published, limit);
    }

    /// The next batch looks at the state again.
    pub fn forget_state(&mut self) {
        self.seen = StateWord::NONE;
    }

    /// Begins to post in a state, if `may` allows posts in it. The first time, and after a reset, `start` is called with the position at
    /// which that was found; it returns the one with which the queue begins, and the limit.
    ///
    /// # Errors
    /// The [refusal](StateWord::refusal) of the state; the error of `start`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn begin(
        &mut self,
        word: StateWord,
        may: impl Fn(StateWord) -> bool,
        start: impl FnOnce(u32) -> Result<(u32, u32), PostError>,
    ) -> Result<(), PostError> {
        if word == self.seen { Ok(()) } else { self.look(word, may, start) }
    }

    /// [`begin`](Self::begin) in a state that is not the one seen last.
    #[cold]
    fn look(
        &mut self,
        word: StateWord,
        may: impl Fn(StateWord) -> bool,
        start: impl FnOnce(u32) -> Result<(u32, u32), PostError>,
    ) -> Result<(), PostError> {
        if !may(word) {
            return Err(word.refusal());
        }
        if self.seen == StateWord::NONE || word.resets_differ(self.seen) {
            self.set_to(start(self.published)?);
        }
        self.seen = word;
        Ok(())
    }

    /// Whether this is the state that was seen last.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn is_seen(&self, word: StateWord) -> bool {
        word == self.seen
    }

    /// Whether this is the state that was seen last, and there is room for a request, as far as is known.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn is_usual(&self, word: StateWord) -> bool {
        self.is_seen(word) && self.published != self.limit
    }

    /// Whether what a batch has written may be published in this state: it allows posts, and no reset came since the batch began.
    ///
    /// # Errors
    /// The [refusal](StateWord::refusal) of the state.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn check(&self, word: StateWord, may: impl Fn(StateWord) -> bool) -> Result<(), PostError> {
        if word != self.seen && (!may(word) || word.resets_differ(self.seen)) {
            return Err(word.refusal());
        }
        Ok(())
    }

    /// Makes sure that there is room at a position. If there is none, as far as is known, `limit` is called with the published position
    /// and this one.
    ///
    /// # Errors
    /// That of `limit`, which is [`PostError::QueueFull`] if there is no room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn room(
        &mut self,
        at: u32,
        limit: impl FnOnce(u32, u32) -> Result<u32, PostError>,
    ) -> Result<(), PostError> {
        if at == self.limit { self.refresh(at, None, limit).map(drop) } else { Ok(()) }
    }

    /// The new limit, for a queue that seems full, or for a batch that may have an error. Values of the batch, which would have to be in
    /// memory if it were passed.
    // codegen: address
    #[cold]
    fn refresh(
        &mut self,
        at: u32,
        error: Option<PostError>,
        limit: impl FnOnce(u32, u32) -> Result<u32, PostError>,
    ) -> Result<u32, PostError> {
        if let Some(error) = error {
            return Err(error);
        }
        self.limit = limit(self.published, at)?;
        Ok(self.limit)
    }
}

/// The position at which a batch writes: beyond the published position, so the device does not see the requests before they are
/// published.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// The position of the next request.
    pub at: u32,
    /// The position that must not be written; the same as `at` after an error.
    limit: u32,
    /// The first error.
    error: Option<PostError>,
}

impl Cursor {
    /// The cursor of a batch that failed before it began.
    #[must_use]
    pub const fn failed(error: PostError) -> Self {
        Self { at: 0, limit: 0, error: Some(error) }
    }

    /// The cursor of a batch that begins, with the result of [`Progress::begin`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn begin(progress: &Progress, begun: Result<(), PostError>) -> Self {
        match begun {
            Ok(()) => Self { at: progress.published, limit: progress.limit, error: None },
            Err(error) => Self::failed(error),
        }
    }

    /// Records the first error, after which there is no room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn latch(&mut self, error: PostError) {
        // Not a call, for which the cursor would have to be in memory.
        cold_path();
        self.error.get_or_insert(error);
        self.close();
    }

    /// From now on there is no room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn close(&mut self) {
        self.limit = self.at;
    }

    /// Whether there is no room as far as is known, or there was an error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn is_at_limit(&self) -> bool {
        self.at == self.limit
    }

    /// Makes sure that there is room. `limit` is as in [`Progress::room`].
    ///
    /// # Errors
    /// The error that was recorded; otherwise as [`Progress::room`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn room(
        &mut self,
        progress: &mut Progress,
        limit: impl FnOnce(u32, u32) -> Result<u32, PostError>,
    ) -> Result<(), PostError> {
        if self.is_at_limit() {
            self.limit = progress.refresh(self.at, self.error, limit)?;
        }
        Ok(())
    }

    /// Moves behind a request that was written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn advance(&mut self) {
        self.at = self.at.wrapping_add(1);
    }

    /// The error that was recorded.
    ///
    /// # Errors
    /// As above.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn result(&self) -> Result<(), PostError> {
        self.error.map_or(Ok(()), Err)
    }
}

/// A send queue whose batches are a [`Cursor`].
pub trait BatchQueue: SendQueue {
    /// The cursor of a batch that begins.
    fn begin(&mut self) -> Cursor;

    /// Writes a request at the cursor, and moves the cursor behind it.
    ///
    /// # Errors
    /// The queue does not take the request, which is not written.
    fn push(
        &mut self,
        cursor: &mut Cursor,
        wr: &Wr<'_, Self::Ah, Self::Sge, Self::Remote>,
    ) -> Result<(), PostError>;

    /// Publishes the requests before the cursor, and rings.
    ///
    /// # Errors
    /// The error of the cursor, or the state does not allow it any more: nothing is published; otherwise the doorbell failed.
    fn publish(&mut self, cursor: &Cursor) -> Result<(), PostError>;
}

/// A batch of sends.
#[derive(Debug)]
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q, Q> {
    queue: &'q mut Q,
    cursor: Cursor,
}

impl<'q, Q: BatchQueue> Batch<'q, Q> {
    /// A batch that begins.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn begin(queue: &'q mut Q) -> Self {
        let cursor = queue.begin();
        Self { queue, cursor }
    }
}

impl<Q: BatchQueue> SendBatch for Batch<'_, Q> {
    type Sge = Q::Sge;
    type Remote = Q::Remote;
    type Ah = Q::Ah;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr: &Wr<'_, Q::Ah, Q::Sge, Q::Remote>) {
        if let Err(error) = self.queue.push(&mut self.cursor, wr) {
            self.cursor.latch(error);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        self.queue.publish(&self.cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::QpState;

    const RTS: StateWord = StateWord::new(QpState::RTS);

    /// The limit of a queue of 4 of which `done` requests are complete.
    fn limit(done: u32) -> impl Fn(u32, u32) -> Result<u32, PostError> {
        move |_, at| if at == done + 4 { Err(PostError::QueueFull) } else { Ok(done + 4) }
    }

    #[test]
    fn a_queue_is_asked_for_room_when_it_seems_full() {
        let mut progress = Progress::new((0, 0));
        assert!(!progress.is_usual(RTS), "of an unknown state");
        progress.begin(RTS, StateWord::can_send, |at| Ok((at, at + 4))).unwrap();
        let mut cursor = Cursor::begin(&progress, Ok(()));
        for at in 0..4 {
            assert_eq!(cursor.at, at);
            cursor.room(&mut progress, |_, _| panic!("it has room")).unwrap();
            cursor.advance();
        }
        assert_eq!(cursor.room(&mut progress, limit(0)), Err(PostError::QueueFull));
        assert_eq!(progress.room(4, limit(0)), Err(PostError::QueueFull));
        assert_eq!(cursor.room(&mut progress, limit(1)), Ok(()));
        assert!(!cursor.is_at_limit() && progress.is_usual(RTS));
        progress.published = 5;
        assert!(!progress.is_usual(RTS), "full as far as is known");
    }

    #[test]
    fn the_first_error_ends_a_batch() {
        let mut progress = Progress::new((7, 11));
        let mut cursor = Cursor::begin(&progress, Ok(()));
        cursor.latch(PostError::TooManySge);
        cursor.latch(PostError::IllegalOpcode);
        assert!(cursor.is_at_limit());
        assert_eq!(cursor.room(&mut progress, limit(9)), Err(PostError::TooManySge));
        assert_eq!(cursor.result(), Err(PostError::TooManySge));
        let refused = Cursor::begin(&progress, Err(PostError::BadState));
        assert_eq!((refused.is_at_limit(), refused.result()), (true, Err(PostError::BadState)));
    }

    #[test]
    fn a_reset_starts_the_queue_again_and_drops_what_a_batch_has_written() {
        let mut progress = Progress::new((0, 0));
        let closed = StateWord::new(QpState::RESET);
        let never = |_| panic!("posts are not allowed");
        assert_eq!(progress.begin(closed, StateWord::can_send, never), Err(PostError::BadState));
        progress.begin(RTS, StateWord::can_send, |_| Ok((0, 4))).unwrap();
        progress.published = 3;
        let sqd = RTS.next(QpState::SQD);
        assert_eq!(progress.check(sqd, StateWord::can_send), Ok(()));
        progress.begin(sqd, StateWord::can_send, |_| panic!("no reset")).unwrap();
        let again = RTS.next(QpState::RESET).next(QpState::RTS);
        assert_eq!(progress.check(again, StateWord::can_send), Err(PostError::BadState));
        let start = |at| if at == 3 { Ok((0, 4)) } else { Err(PostError::Corrupt) };
        progress.begin(again, StateWord::can_send, start).unwrap();
        assert_eq!((progress.published, progress.check(again, StateWord::can_send)), (0, Ok(())));
        progress.forget_state();
        assert_eq!(progress.begin(again, StateWord::can_send, start), Err(PostError::Corrupt));
    }
}
