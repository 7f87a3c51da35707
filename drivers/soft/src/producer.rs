// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a ring: send queues, receive queues, shared receive queues.
//!
//! The producer keeps a private position and passes it to the ring only to publish. The limit up to which it may write is
//! cached, and asked for again only when the queue seems full. Every condition that forbids posting (a full queue, a
//! latched error, the wrong state) sets [`PostCursor::limit`] to the position of the cursor, so the hot path has one
//! compare for all of them.
//!
//! WRs are written to slots that are not published, outside of any access that a control call waits for: what was written before
//! a reset is never published ([`Producer::publish`]).

use crate::format::{Format, PostRing};
use crate::shared::QpShared;
use std::sync::Arc;
use uverbs_core::kernel::{QueueAccess, state_word};
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;

/// The position at which a batch writes: beyond the published position, so the kernel does not see the WQEs before they
/// are published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostCursor {
    /// The next slot.
    pub(crate) at: u32,
    /// The slot that must not be written.
    limit: u32,
    /// The first error; then `limit == at`.
    error: Option<PostError>,
}

impl PostCursor {
    /// The cursor of a batch that failed before it began.
    pub(crate) const fn failed(error: PostError) -> Self {
        Self { at: 0, limit: 0, error: Some(error) }
    }

    /// Records the first error, after which there is no room.
    #[cold]
    pub(crate) fn latch(&mut self, error: PostError) {
        if self.error.is_none() {
            self.error = Some(error);
        }
        self.limit = self.at;
    }

    /// The latched error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn error(&self) -> Option<PostError> {
        self.error
    }

    /// Moves to the next slot.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn advance(&mut self) {
        self.at = self.at.wrapping_add(1);
    }
}

/// The differences between a send queue and a receive queue.
pub(crate) trait QueueKind<F: Format> {
    /// The ring.
    type Ring: PostRing;
    /// Whether WRs may be posted now.
    fn open(word: StateWord) -> bool;
    /// The access to this queue of a QP.
    fn access(shared: &QpShared<F>) -> &QueueAccess;
}

/// Send queues.
#[derive(Debug)]
pub(crate) enum Sends {}
impl<F: Format> QueueKind<F> for Sends {
    type Ring = F::SendRing;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn open(word: StateWord) -> bool {
        F::may_send(word)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn access(shared: &QpShared<F>) -> &QueueAccess {
        &shared.access().send
    }
}

/// Receive queues.
#[derive(Debug)]
pub(crate) enum Receives {}
impl<F: Format> QueueKind<F> for Receives {
    type Ring = F::RecvRing;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn open(word: StateWord) -> bool {
        F::may_receive(word)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn access(shared: &QpShared<F>) -> &QueueAccess {
        &shared.access().recv
    }
}

/// A ring and this side's view of it.
#[derive(Debug)]
pub(crate) struct Producer<F: Format, K: QueueKind<F>> {
    ring: K::Ring,
    /// The position behind the last published WR, which only this side changes.
    published: u32,
    /// The position that must not be written, as far as is known.
    limit: u32,
    /// The state word under which posting was allowed last.
    seen: StateWord,
    pub(crate) shared: Arc<QpShared<F>>,
    /// The kernel reads another ring by now.
    lost: bool,
}

impl<F: Format, K: QueueKind<F>> Producer<F, K> {
    /// Uses a ring from its current positions on.
    pub(crate) fn new(ring: K::Ring, shared: Arc<QpShared<F>>) -> Result<Self, PostError> {
        let (published, limit) = ring.start(0)?;
        Ok(Self { ring, published, limit, seen: StateWord::NONE, shared, lost: false })
    }

    /// The ring in use.
    pub(crate) fn ring(&self) -> &K::Ring {
        &self.ring
    }

    /// The number of published WRs that the kernel has not taken, and a position that changes when it takes one.
    pub(crate) fn untaken(&self) -> (u32, u32) {
        self.ring.untaken(self.published)
    }

    /// Replaces the ring by the one to which the kernel moved its elements. If that ring makes no sense, nothing changes.
    pub(crate) fn replace_ring(&mut self, ring: K::Ring) -> Result<(), PostError> {
        (self.published, self.limit) = ring.start(0)?;
        (self.ring, self.lost) = (ring, false);
        Ok(())
    }

    /// Refuses all later posts: the kernel uses a ring that could not be mapped.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
        self.seen = StateWord::NONE;
    }

    /// Begins a batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&mut self) -> PostCursor {
        let word = state_word(K::access(&self.shared));
        if word != self.seen {
            return self.begin_cold(word);
        }
        PostCursor { at: self.published, limit: self.limit, error: None }
    }

    /// Begins the first batch, or the first one after a change of the state.
    #[cold]
    fn begin_cold(&mut self, word: StateWord) -> PostCursor {
        if word.is_forked() {
            return PostCursor::failed(PostError::Forked);
        }
        if self.lost {
            return PostCursor::failed(PostError::Corrupt);
        }
        if !K::open(word) {
            return PostCursor::failed(word.refusal());
        }
        // A reset empties the ring, and the kernel may continue anywhere.
        if self.seen == StateWord::NONE || word.resets_differ(self.seen) {
            match self.ring.start(self.published) {
                Ok(start) => (self.published, self.limit) = start,
                Err(error) => return PostCursor::failed(error),
            }
        }
        self.seen = word;
        PostCursor { at: self.published, limit: self.limit, error: None }
    }

    /// The slot at the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slot(
        &mut self,
        cursor: &mut PostCursor,
    ) -> Result<<K::Ring as PostRing>::Slot<'_>, PostError> {
        if cursor.at == cursor.limit {
            cursor.limit = self.refresh(cursor.at, cursor.error)?;
        }
        Ok(self.ring.slot(cursor.at))
    }

    /// The slot at a position that is not published: one that a cursor has passed.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slot_at(&mut self, at: u32) -> <K::Ring as PostRing>::Slot<'_> {
        self.ring.slot(at)
    }

    /// Called when the queue seems full: asks the ring.
    // codegen: address
    #[cold]
    fn refresh(&mut self, at: u32, error: Option<PostError>) -> Result<u32, PostError> {
        if let Some(e) = error {
            return Err(e);
        }
        self.limit = self.ring.room(self.published, at)?;
        Ok(self.limit)
    }

    /// Makes everything before the cursor visible to the kernel, if the state still allows it and no reset came since
    /// the batch began. `prepare` is called before that, with the ring and the shared part, and may refuse; `notify` after that,
    /// with the state.
    ///
    /// All of this is one access to the queue: a control call that closes the queue waits for its end, so a post that
    /// began before can't undo what the control call does to the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(
        &mut self,
        cursor: &PostCursor,
        prepare: impl FnOnce(&mut K::Ring, &QpShared<F>) -> Result<(), PostError>,
        notify: impl FnOnce(StateWord) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let Self { ring, published, shared, seen, .. } = self;
        let access = K::access(shared);
        let _inside = access.inside();
        let word = state_word(access);
        if word != *seen && (!K::open(word) || word.resets_differ(*seen)) {
            return Err(word.refusal());
        }
        if cursor.at == *published {
            return Ok(());
        }
        prepare(ring, shared)?;
        ring.publish(*published, cursor.at);
        *published = cursor.at;
        notify(word)
    }
}
