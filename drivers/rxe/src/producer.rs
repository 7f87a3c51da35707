// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a ring: send queues, receive queues, shared receive queues.
//!
//! The producer keeps its index to itself and stores it to the ring only to publish. How far it may write is cached,
//! and read anew only when the queue looks full. Everything that forbids posting (a full queue, a latched error, the
//! wrong state) moves [`Cursor::limit`] to where the cursor stands, so the hot path has one compare for all of them.

use crate::queue::{Ring, Slot};
use crate::shared::QpShared;
use std::sync::Arc;
use uverbs_core::kernel::Process;
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;

/// Where a batch writes: past what is published, invisible until it is.
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
    /// Of a batch that has failed before it began.
    pub(crate) const fn failed(error: PostError) -> Self {
        Self { at: 0, limit: 0, error: Some(error) }
    }

    /// Notes the first error, after which there is no room for anything.
    #[cold]
    pub(crate) fn latch(&mut self, error: PostError) {
        if self.error.is_none() {
            self.error = Some(error);
        }
        self.limit = self.at;
    }

    /// The latched error.
    #[inline(always)]
    pub(crate) fn error(&self) -> Option<PostError> {
        self.error
    }
}

/// Which states allow posting: what tells a send queue from a receive queue here.
pub(crate) trait Side {
    /// Whether WRs may be posted now.
    fn open(word: StateWord) -> bool;
}

/// Send queues.
#[derive(Debug)]
pub(crate) enum Sends {}
impl Side for Sends {
    fn open(word: StateWord) -> bool {
        word.can_send()
    }
}

/// Receive queues.
#[derive(Debug)]
pub(crate) enum Receives {}
impl Side for Receives {
    fn open(word: StateWord) -> bool {
        word.can_receive()
    }
}

/// A ring and this side's view of it.
#[derive(Debug)]
pub(crate) struct Producer<H, S> {
    ring: Ring<H>,
    /// What the ring's producer index is, because only this side stores it.
    published: u32,
    /// One before the consumer, as last seen.
    limit: u32,
    /// The state word under which posting was allowed last.
    seen: StateWord,
    pub(crate) shared: Arc<QpShared>,
    /// Whose ring this is: a child of fork(2) shares it with its parent, and must leave it alone.
    process: Process,
    /// The kernel reads another ring by now.
    lost: bool,
    _side: core::marker::PhantomData<fn(S)>,
}

impl<H, S: Side> Producer<H, S> {
    /// Takes over a ring at the indices that it has.
    pub(crate) fn new(ring: Ring<H>, shared: Arc<QpShared>) -> Result<Self, PostError> {
        let mut producer = Self {
            ring,
            published: 0,
            limit: 0,
            seen: StateWord::NONE,
            shared,
            process: Process::register(),
            lost: false,
            _side: core::marker::PhantomData,
        };
        producer.resync()?;
        Ok(producer)
    }

    /// The ring in use.
    pub(crate) fn ring(&self) -> &Ring<H> {
        &self.ring
    }

    /// Exchanges the ring for one that the kernel moved its elements to. Nothing changes if its indices make no sense.
    pub(crate) fn replace_ring(&mut self, ring: Ring<H>) -> Result<(), PostError> {
        let old = core::mem::replace(&mut self.ring, ring);
        let result = self.resync();
        match result {
            Ok(()) => self.lost = false,
            Err(_) => self.ring = old,
        }
        result
    }

    /// Refuses everything from now on: the kernel moved to a ring that this side does not have.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
        self.seen = StateWord::NONE;
    }

    /// Begins a batch.
    #[inline(always)]
    pub(crate) fn begin(&mut self) -> Cursor {
        let word = self.shared.word();
        if word != self.seen || !self.process.is_current() {
            return self.begin_cold(word);
        }
        Cursor { at: self.published, limit: self.limit, error: None }
    }

    /// The state changed since the last batch, or this is the first.
    #[cold]
    fn begin_cold(&mut self, word: StateWord) -> Cursor {
        if !self.process.is_current() {
            return Cursor::failed(PostError::Forked);
        }
        if self.lost {
            return Cursor::failed(PostError::Corrupt);
        }
        if !S::open(word) {
            return Cursor::failed(PostError::BadState);
        }
        // A reset empties the ring. The kernel leaves both indices where they were (`rxe_queue_reset()` zeroes only the
        // slots), but what counts is where they are now.
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
    #[inline(always)]
    pub(crate) fn slot(&mut self, cursor: &mut Cursor) -> Result<(Slot<'_, H>, u32), PostError> {
        if cursor.at == cursor.limit {
            cursor.limit = self.refresh(cursor.at, cursor.error)?;
        }
        let next = (cursor.at + 1) & self.ring.mask();
        Ok((self.ring.slot(cursor.at), next))
    }

    /// The slot at an index that is not published: one that a cursor has passed, or the one where it stands.
    #[inline(always)]
    pub(crate) fn slot_at(&mut self, index: u32) -> Slot<'_, H> {
        self.ring.slot(index)
    }

    /// The index before `index`.
    #[inline(always)]
    pub(crate) fn before(&self, index: u32) -> u32 {
        index.wrapping_sub(1) & self.ring.mask()
    }

    /// The queue looks full: looks at the shared index. Takes and gives scalars, so that the caller keeps its
    /// registers.
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
        // The kernel can't have consumed what it has not been shown; it would have us overwrite our own batch.
        if u64::from(free) + u64::from(written) > u64::from(mask) {
            return Err(PostError::Corrupt);
        }
        if free == 0 {
            return Err(PostError::QueueFull);
        }
        self.limit = limit;
        Ok(limit)
    }

    /// Whether the state still allows posting. Between the start of a batch and its end `modify_qp` may have run.
    #[inline(always)]
    pub(crate) fn check_state(&self) -> Result<(), PostError> {
        if !self.process.is_current() {
            return Err(PostError::Forked);
        }
        let word = self.shared.word();
        if word == self.seen || (S::open(word) && !word.resets_differ(self.seen)) {
            return Ok(());
        }
        Err(PostError::BadState)
    }

    /// Whether the cursor has passed anything that is not published.
    #[inline(always)]
    pub(crate) fn is_new(&self, cursor: &Cursor) -> bool {
        cursor.at != self.published
    }

    /// Makes everything before the cursor visible to the kernel. `false` if that is nothing new.
    #[inline(always)]
    pub(crate) fn publish(&mut self, cursor: &Cursor) -> bool {
        if cursor.at == self.published {
            return false;
        }
        self.ring.publish_producer(cursor.at);
        self.published = cursor.at;
        true
    }
}
