// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far a queue is, as its poster knows it: for sends and for receives.

use crate::table::Poster;
use core::hint::cold_path;
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;

/// How far the queue is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// The requests posted since the QP was reset, modulo 2^32: the position behind the last one.
    pub(crate) published: u32,
    /// Of receives, their descriptors.
    pub(crate) descs: u32,
    /// The position that must not be written, as far as is known.
    limit: u32,
    /// The state word under which posting was allowed last.
    seen: StateWord,
}

impl Progress {
    /// That of a queue that was never used.
    pub(crate) const NEW: Self = Self { published: 0, descs: 0, limit: 0, seen: StateWord::NONE };

    /// Begins to post in a state, if `may` allows posts in it. After a reset positions begin with 0 again, and `restart` is called with the
    /// one at which it came.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(
        &mut self,
        word: StateWord,
        may: impl Fn(StateWord) -> bool,
        poster: &Poster,
        restart: impl FnOnce(u32),
    ) -> Result<(), PostError> {
        if word == self.seen { Ok(()) } else { self.look(word, may, poster, restart) }
    }

    /// [`begin`](Self::begin) in a state that is not the one seen last.
    #[cold]
    fn look(
        &mut self,
        word: StateWord,
        may: impl Fn(StateWord) -> bool,
        poster: &Poster,
        restart: impl FnOnce(u32),
    ) -> Result<(), PostError> {
        if !may(word) {
            return Err(word.refusal());
        }
        if self.seen == StateWord::NONE || word.resets_differ(self.seen) {
            // The control call has emptied the table.
            restart(self.published);
            (self.published, self.descs, self.limit) = (0, 0, poster.limit());
        }
        self.seen = word;
        Ok(())
    }

    /// Whether what a batch has written may be published in this state: it allows posts, and no reset came since the batch began.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn check(&self, word: StateWord, may: impl Fn(StateWord) -> bool) -> Result<(), PostError> {
        if word != self.seen && (!may(word) || word.resets_differ(self.seen)) {
            return Err(word.refusal());
        }
        Ok(())
    }

    /// Whether this is the state that was seen last, and there is room for a request, as far as is known.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_usual(&self, word: StateWord) -> bool {
        word == self.seen && self.published != self.limit
    }

    /// Makes sure that there is room at a position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn room(&mut self, at: u32, poster: &Poster) -> Result<(), PostError> {
        if at == self.limit { self.refresh(at, poster).map(drop) } else { Ok(()) }
    }

    /// The limit, for which the table is asked. Called if the queue seems full.
    #[cold]
    fn refresh(&mut self, at: u32, poster: &Poster) -> Result<u32, PostError> {
        self.limit = poster.limit();
        if at == self.limit { Err(PostError::QueueFull) } else { Ok(self.limit) }
    }
}

/// The position at which a batch writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The position of the next request.
    pub(crate) at: u32,
    /// The position that must not be written; the same as `at` after an error.
    limit: u32,
    /// The first error.
    error: Option<PostError>,
}

impl Cursor {
    /// The cursor of a batch that failed before it began.
    pub(crate) const fn failed(error: PostError) -> Self {
        Self { at: 0, limit: 0, error: Some(error) }
    }

    /// The cursor of a batch that begins.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn new(progress: &Progress) -> Self {
        Self { at: progress.published, limit: progress.limit, error: None }
    }

    /// Records the first error, after which there is no room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn latch(&mut self, error: PostError) {
        // Not a call, for which the cursor would have to be in memory.
        cold_path();
        self.error.get_or_insert(error);
        self.close();
    }

    /// From now on there is no room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn close(&mut self) {
        self.limit = self.at;
    }

    /// Whether there is no room as far as is known, or there was an error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_at_limit(&self) -> bool {
        self.at == self.limit
    }

    /// Makes sure that there is room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn room(&mut self, progress: &mut Progress, poster: &Poster) -> Result<(), PostError> {
        if self.is_at_limit() {
            self.limit = Self::refresh(self.at, self.error, progress, poster)?;
        }
        Ok(())
    }

    /// The limit, for a cursor that is at it. Its fields and not the value, which receives of two entries would have to keep in memory.
    #[cold]
    fn refresh(
        at: u32,
        error: Option<PostError>,
        progress: &mut Progress,
        poster: &Poster,
    ) -> Result<u32, PostError> {
        match error {
            Some(error) => Err(error),
            None => progress.refresh(at, poster),
        }
    }

    /// The error that was recorded.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn result(&self) -> Result<(), PostError> {
        self.error.map_or(Ok(()), Err)
    }
}
