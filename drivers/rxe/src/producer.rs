// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a ring: send queues, receive queues, shared receive queues.
//!
//! The producer keeps a private index and stores it to the ring only to publish. The limit up to which it may write is
//! cached, and computed again only when the queue seems full. Every condition that forbids posting (a full queue, a
//! latched error, the wrong state) sets [`Cursor::limit`] to the position of the cursor, so the hot path has one
//! compare for all of them.
//!
//! WRs are written to slots that are not published, outside of any access that a control call waits for: the kernel clears the
//! slots of a queue that it resets, and what was written before is never published ([`Producer::publish`]).

use crate::queue::{Ring, WqeSlot};
use crate::shared::QpShared;
use std::sync::Arc;
use uverbs_core::kernel::{QueueAccess, state_word};
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;

/// The position at which a batch writes: beyond the published index, so the kernel does not see the WQEs before they
/// are published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The next slot.
    pub(crate) at: u32,
    /// The slot that must not be written.
    limit: u32,
    /// The first error; then `limit == at`.
    error: Option<PostError>,
}

impl Cursor {
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
}

/// The differences between a send queue and a receive queue.
pub(crate) trait QueueKind {
    /// Whether WRs may be posted now.
    fn open(word: StateWord) -> bool;
    /// The access to this queue of a QP.
    fn access(shared: &QpShared) -> &QueueAccess;
}

/// Send queues.
#[derive(Debug)]
pub(crate) enum Sends {}
impl QueueKind for Sends {
    fn open(word: StateWord) -> bool {
        word.can_send()
    }
    fn access(shared: &QpShared) -> &QueueAccess {
        &shared.access.send
    }
}

/// Receive queues.
#[derive(Debug)]
pub(crate) enum Receives {}
impl QueueKind for Receives {
    fn open(word: StateWord) -> bool {
        word.can_receive()
    }
    fn access(shared: &QpShared) -> &QueueAccess {
        &shared.access.recv
    }
}

/// A ring and this side's view of it.
#[derive(Debug)]
pub(crate) struct Producer<H, S> {
    ring: Ring<H>,
    /// The ring's producer index, which only this side stores.
    published: u32,
    /// One before the consumer index at its last load.
    limit: u32,
    /// The state word under which posting was allowed last.
    seen: StateWord,
    pub(crate) shared: Arc<QpShared>,
    /// The kernel reads another ring by now.
    lost: bool,
    _kind: core::marker::PhantomData<fn(S)>,
}

impl<H, S: QueueKind> Producer<H, S> {
    /// Uses a ring from its current indices on.
    pub(crate) fn new(ring: Ring<H>, shared: Arc<QpShared>) -> Result<Self, PostError> {
        let mut producer = Self {
            ring,
            published: 0,
            limit: 0,
            seen: StateWord::NONE,
            shared,
            lost: false,
            _kind: core::marker::PhantomData,
        };
        producer.resync()?;
        Ok(producer)
    }

    /// The ring in use.
    pub(crate) fn ring(&self) -> &Ring<H> {
        &self.ring
    }

    /// Replaces the ring by the one to which the kernel moved its elements. If its indices are invalid, nothing
    /// changes.
    pub(crate) fn replace_ring(&mut self, ring: Ring<H>) -> Result<(), PostError> {
        let old = core::mem::replace(&mut self.ring, ring);
        let result = self.resync();
        match result {
            Ok(()) => self.lost = false,
            Err(_) => self.ring = old,
        }
        result
    }

    /// Refuses all later posts: the kernel uses a ring that could not be mapped.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
        self.seen = StateWord::NONE;
    }

    /// Begins a batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&mut self) -> Cursor {
        let word = state_word(S::access(&self.shared));
        if word != self.seen {
            return self.begin_cold(word);
        }
        Cursor { at: self.published, limit: self.limit, error: None }
    }

    /// Begins the first batch, or the first one after a change of the state.
    #[cold]
    fn begin_cold(&mut self, word: StateWord) -> Cursor {
        if word.is_forked() {
            return Cursor::failed(PostError::Forked);
        }
        if self.lost {
            return Cursor::failed(PostError::Corrupt);
        }
        if !S::open(word) {
            return Cursor::failed(PostError::BadState);
        }
        // A reset empties the ring. The kernel leaves both indices unchanged (`rxe_queue_reset()` zeroes only the
        // slots), so they are loaded again.
        if (self.seen == StateWord::NONE || word.resets_differ(self.seen))
            && let Err(e) = self.resync()
        {
            return Cursor::failed(e);
        }
        self.seen = word;
        Cursor { at: self.published, limit: self.limit, error: None }
    }

    /// Takes both indices from the ring.
    fn resync(&mut self) -> Result<(), PostError> {
        let (published, consumer, mask) = (self.ring.producer(), self.ring.consumer(), self.ring.mask());
        if published > mask || consumer > mask {
            return Err(PostError::Corrupt);
        }
        self.published = published;
        self.limit = consumer.wrapping_sub(1) & mask;
        Ok(())
    }

    /// The slot at the cursor, and the index after it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slot(&mut self, cursor: &mut Cursor) -> Result<(WqeSlot<'_, H>, u32), PostError> {
        if cursor.at == cursor.limit {
            cursor.limit = self.refresh(cursor.at, cursor.error)?;
        }
        let next = (cursor.at + 1) & self.ring.mask();
        Ok((self.ring.slot(cursor.at), next))
    }

    /// The slot at an index that is not published: one that a cursor has passed, or the one at the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slot_at(&mut self, index: u32) -> WqeSlot<'_, H> {
        self.ring.slot(index)
    }

    /// The index before `index`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn before(&self, index: u32) -> u32 {
        index.wrapping_sub(1) & self.ring.mask()
    }

    /// Called when the queue seems full: loads the shared index. Takes and returns scalars, so that the caller keeps
    /// its registers.
    #[cold]
    fn refresh(&mut self, at: u32, error: Option<PostError>) -> Result<u32, PostError> {
        if let Some(e) = error {
            return Err(e);
        }
        let mask = self.ring.mask();
        let consumer = self.ring.consumer();
        if consumer > mask {
            return Err(PostError::Corrupt);
        }
        let limit = consumer.wrapping_sub(1) & mask;
        let free = limit.wrapping_sub(at) & mask;
        let written = at.wrapping_sub(self.published) & mask;
        // The kernel can't have consumed WRs that are not published; with such an index the batch would overwrite
        // itself.
        if u64::from(free) + u64::from(written) > u64::from(mask) {
            return Err(PostError::Corrupt);
        }
        if free == 0 {
            return Err(PostError::QueueFull);
        }
        self.limit = limit;
        Ok(limit)
    }

    /// Makes everything before the cursor visible to the kernel, if the state still allows it and no reset came since
    /// the batch began. `prepare` is called before that with the next slot, and `notify` after that with the state.
    ///
    /// All of this is one access to the queue: a control call that closes the queue waits for its end, so a post that
    /// began before can't undo what the control call does to the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(
        &mut self,
        cursor: &Cursor,
        prepare: impl FnOnce(WqeSlot<'_, H>),
        notify: impl FnOnce(StateWord) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let Self { ring, published, shared, seen, .. } = self;
        let access = S::access(shared);
        let _inside = access.inside();
        let word = state_word(access);
        if word != *seen && (!S::open(word) || word.resets_differ(*seen)) {
            return Err(if word.is_forked() { PostError::Forked } else { PostError::BadState });
        }
        if cursor.at == *published {
            return Ok(());
        }
        prepare(ring.slot(cursor.at));
        ring.publish_producer(cursor.at);
        *published = cursor.at;
        notify(word)
    }
}
