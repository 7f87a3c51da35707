// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receive queue: a ring of buffers in memory, with a doorbell.
//!
//! A receive takes a descriptor for each of its buffers. They are written beyond the position of the last doorbell, where the device
//! does not read.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. It is not accessed
// here, so this module has no unsafe operation.

use crate::memory::{Doorbell, RecvRing};
use crate::shared::{QpShared, may_receive};
use crate::wqe::recv_desc;
use core::fmt;
use std::sync::Arc;
use uverbs_core::kernel::state_word;
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue as RecvQueueTrait};
use uverbs_core::wr::{RecvWr, Sge};

/// The position at which a batch writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RqCursor {
    /// The position of the next receive.
    at: u32,
    /// The position of its first descriptor.
    desc: u32,
    /// The position that must not be written; the same as `at` after an error.
    limit: u32,
    /// The first error.
    error: Option<PostError>,
}

impl RqCursor {
    const fn failed(error: PostError) -> Self {
        Self { at: 0, desc: 0, limit: 0, error: Some(error) }
    }

    #[cold]
    fn latch(&mut self, error: PostError) {
        self.error.get_or_insert(error);
        self.limit = self.at;
    }

    pub(crate) fn error(&self) -> Option<PostError> {
        self.error
    }
}

/// A receive queue.
pub struct RecvQueue {
    ring: RecvRing,
    doorbell: Doorbell,
    max_sge: u32,
    /// The receives posted since the QP was reset, modulo 2^32.
    published: u32,
    /// Their descriptors.
    published_desc: u32,
    /// The position that must not be written, as far as is known.
    limit: u32,
    /// The state word under which posting was allowed last.
    seen: StateWord,
    shared: Arc<QpShared>,
}

impl RecvQueue {
    /// The queue of the QP behind `shared`. `max_sge` is lowered if the ring has fewer descriptors for each of its receives.
    #[must_use]
    pub fn new(ring: RecvRing, doorbell: Doorbell, max_sge: u32, shared: Arc<QpShared>) -> Self {
        let max_sge = max_sge.min(ring.entries() / shared.recv.capacity());
        let (published, published_desc, limit, seen) = (0, 0, 0, StateWord::NONE);
        Self { ring, doorbell, max_sge, published, published_desc, limit, seen, shared }
    }

    /// The number of receives that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.shared.recv.capacity()
    }

    /// Entries of a receive.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The ring and its doorbell.
    pub(crate) fn memory(&self) -> (&RecvRing, &Doorbell) {
        (&self.ring, &self.doorbell)
    }

    /// Begins a batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&mut self) -> RqCursor {
        let word = state_word(&self.shared.access.recv);
        if word != self.seen
            && let Err(error) = self.look(word)
        {
            return RqCursor::failed(error);
        }
        RqCursor { at: self.published, desc: self.published_desc, limit: self.limit, error: None }
    }

    /// Notes a state that is not the one seen last, if it allows posts.
    #[cold]
    fn look(&mut self, word: StateWord) -> Result<(), PostError> {
        if !may_receive(word) {
            return Err(word.refusal());
        }
        if self.seen == StateWord::NONE || word.resets_differ(self.seen) {
            // The control call has emptied the table.
            (self.published, self.published_desc, self.limit) = (0, 0, self.shared.recv.limit());
        }
        self.seen = word;
        Ok(())
    }

    /// Asks the table for room. Called if the queue seems full.
    #[cold]
    fn refresh(&mut self, cursor: &RqCursor) -> Result<u32, PostError> {
        if let Some(error) = cursor.error {
            return Err(error);
        }
        self.limit = self.shared.recv.limit();
        if cursor.at == self.limit { Err(PostError::QueueFull) } else { Ok(self.limit) }
    }

    /// Writes one receive at the cursor and moves it on.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn push(&mut self, cursor: &mut RqCursor, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if cursor.at == cursor.limit {
            cursor.limit = self.refresh(cursor)?;
        }
        if sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySge);
        }
        // Without a descriptor the device would never complete it.
        let Some(last) = sges.len().checked_sub(1) else { return Err(PostError::InvalidArgument) };
        let number = self.shared.recv.prepare(cursor.at, wr_id);
        for (i, sge) in sges.iter().enumerate() {
            // The number is in the first descriptor only.
            let number = if i == 0 { number } else { 0 };
            self.ring.write(cursor.desc, recv_desc(number, sge, i == 0, i == last));
            cursor.desc = cursor.desc.wrapping_add(1);
        }
        cursor.at = cursor.at.wrapping_add(1);
        Ok(())
    }

    /// Publishes the receives before the cursor, if the state still allows it and no reset came since the batch began, in one access to the
    /// queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&mut self, cursor: &RqCursor) -> Result<(), PostError> {
        let Self { doorbell, published, published_desc, seen, shared, .. } = self;
        let access = &shared.access.recv;
        let _inside = access.inside();
        let word = state_word(access);
        if word != *seen && (!may_receive(word) || word.resets_differ(*seen)) {
            return Err(word.refusal());
        }
        if *published == cursor.at {
            return Ok(());
        }
        while *published != cursor.at {
            shared.recv.publish(*published);
            *published = published.wrapping_add(1);
        }
        *published_desc = cursor.desc;
        doorbell.ring_after_stores(cursor.desc & 0xffff);
        Ok(())
    }
}

impl RecvQueueTrait for RecvQueue {
    type Sge = Sge;
    type Batch<'q> = Batch<'q>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_> {
        let cursor = self.begin();
        Batch { queue: self, cursor }
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: `list` fulfils the contract of `RecvQueue::post_recv`, which is also that of `list::post_recv`.
        unsafe { crate::list::post_recv(self, list) }
    }
}

impl fmt::Debug for RecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvQueue")
            .field("ring", &self.ring)
            .field("max_sge", &self.max_sge)
            .field("published", &self.published)
            .field("state", &self.shared.state())
            .finish_non_exhaustive()
    }
}

/// A batch of receives.
#[derive(Debug)]
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q> {
    queue: &'q mut RecvQueue,
    cursor: RqCursor,
}

impl RecvBatch for Batch<'_> {
    type Sge = Sge;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        if let Err(error) = self.queue.push(&mut self.cursor, wr_id, sges) {
            self.cursor.latch(error);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        match self.cursor.error {
            Some(error) => Err(error),
            None => self.queue.publish(&self.cursor),
        }
    }
}
