// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue, and its typed face: batches.
//!
//! The queue of the device takes entries in order, and may read one as soon as it is written. So a batch is written to private memory, and
//! copied to the device as a whole; a single request is made on the stack. At most [`SendConfig::max_batch`] entries are copied before the
//! doorbell.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The encoder
// does not access that memory, so this module has no unsafe operation.

use crate::builder::Session;
use crate::memory::{Doorbell, SendRing, Wqe};
use crate::shared::{QpShared, may_send};
use crate::wqe::{Ah, SendConfig};
use core::fmt;
use std::sync::Arc;
use uverbs_core::kernel::state_word;
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{BadWr, PostError, RemoteAddr, SendBatch, SendQueue as SendQueueTrait, Wr};
use uverbs_core::wr::{SendWr, Sge};

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

    /// Records the first error, after which there is no room.
    #[cold]
    pub(crate) fn latch(&mut self, error: PostError) {
        self.error.get_or_insert(error);
        self.limit = self.at;
    }

    /// The latched error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn error(&self) -> Option<PostError> {
        self.error
    }
}

/// A send queue.
pub struct SendQueue {
    ring: SendRing,
    doorbell: Doorbell,
    /// Entries that are not published, by position.
    local: Box<[Wqe]>,
    pub(crate) config: SendConfig,
    /// The requests posted since the QP was reset, modulo 2^32: the position behind the last one.
    published: u32,
    /// The position that must not be written, as far as is known.
    limit: u32,
    /// The state word under which posting was allowed last.
    seen: StateWord,
    pub(crate) shared: Arc<QpShared>,
    pub(crate) session: Session,
}

impl SendQueue {
    /// The queue of the QP behind `shared`, whose table has as many requests as the ring has entries. Limits for which an entry has
    /// no room are lowered.
    #[must_use]
    pub fn new(ring: SendRing, doorbell: Doorbell, config: SendConfig, shared: Arc<QpShared>) -> Self {
        let config = config.fit(ring.is_wide(), ring.entries());
        let local = vec![Wqe::ZERO; ring.entries() as usize].into_boxed_slice();
        Self {
            ring,
            doorbell,
            local,
            config,
            published: 0,
            limit: 0,
            seen: StateWord::NONE,
            shared,
            session: Session::default(),
        }
    }

    /// The number of requests that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.shared.send.capacity()
    }

    /// The limits in force.
    #[must_use]
    pub fn config(&self) -> &SendConfig {
        &self.config
    }

    /// The phase of the entry at a position: that of the first round is 0.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn phase(&self, at: u32) -> bool {
        at & self.ring.entries() != 0
    }

    /// Begins a batch, unless a builder session is open.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&mut self) -> Cursor {
        if self.session.is_open() {
            return Cursor::failed(PostError::SessionOpen);
        }
        let word = state_word(&self.shared.access.send);
        if word != self.seen
            && let Err(error) = self.look(word)
        {
            return Cursor::failed(error);
        }
        Cursor { at: self.published, limit: self.limit, error: None }
    }

    /// Notes a state that is not the one seen last, if it allows posts.
    #[cold]
    fn look(&mut self, word: StateWord) -> Result<(), PostError> {
        if !may_send(word) {
            return Err(word.refusal());
        }
        if self.seen == StateWord::NONE || word.resets_differ(self.seen) {
            // The control call has emptied the table.
            (self.published, self.limit) = (0, self.shared.send.limit());
        }
        self.seen = word;
        Ok(())
    }

    /// Asks the table for room. Called if the queue seems full.
    #[cold]
    fn refresh(&mut self, at: u32) -> Result<u32, PostError> {
        self.limit = self.shared.send.limit();
        if at == self.limit { Err(PostError::QueueFull) } else { Ok(self.limit) }
    }

    /// The private entry at a position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn local(&mut self, at: u32) -> &mut Wqe {
        let mask = self.local.len() - 1;
        &mut self.local[at as usize & mask]
    }

    /// The number and the phase of the request at the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn next(&mut self, cursor: &mut Cursor, wr_id: u64) -> Result<(u16, bool), PostError> {
        if cursor.at == cursor.limit {
            if let Some(error) = cursor.error {
                return Err(error);
            }
            cursor.limit = self.refresh(cursor.at)?;
        }
        Ok((self.shared.send.prepare(cursor.at, wr_id), self.phase(cursor.at)))
    }

    /// Writes one request at the cursor and moves it on.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn push(&mut self, cursor: &mut Cursor, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        let (number, phase) = self.next(cursor, wr.wr_id)?;
        let config = self.config;
        self.local(cursor.at).put(&config, number, phase, wr)?;
        cursor.at = cursor.at.wrapping_add(1);
        Ok(())
    }

    /// Publishes a batch, or reports its error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn finish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        match cursor.error {
            Some(error) => Err(error),
            None => self.publish(cursor),
        }
    }

    /// Copies the requests before the cursor to the device and rings, if the state still allows it and no reset came since the batch began.
    ///
    /// This is one access to the queue: a control call that closes it waits for its end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        let Self { ring, doorbell, local, config, published, seen, shared, .. } = self;
        let access = &shared.access.send;
        let _inside = access.inside();
        let word = state_word(access);
        if word != *seen && (!may_send(word) || word.resets_differ(*seen)) {
            return Err(word.refusal());
        }
        let mut copied = 0;
        while *published != cursor.at {
            shared.send.publish(*published);
            ring.write(*published, &local[*published as usize & (local.len() - 1)]);
            *published = published.wrapping_add(1);
            copied += 1;
            if copied == config.max_batch || *published == cursor.at {
                doorbell.ring_after_copies(*published & 0xffff);
                copied = 0;
            }
        }
        Ok(())
    }

    /// Posts a single request, which is made on the stack.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn post_one(&mut self, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        let mut cursor = self.begin();
        let (number, phase) = self.next(&mut cursor, wr.wr_id)?;
        let mut wqe = Wqe::ZERO;
        wqe.put(&self.config, number, phase, wr)?;
        let Self { ring, doorbell, published, seen, shared, .. } = self;
        let access = &shared.access.send;
        let _inside = access.inside();
        let word = state_word(access);
        if word != *seen && (!may_send(word) || word.resets_differ(*seen)) {
            return Err(word.refusal());
        }
        shared.send.publish_number(number);
        ring.write(*published, &wqe);
        *published = published.wrapping_add(1);
        doorbell.ring_after_copies(*published & 0xffff);
        Ok(())
    }
}

impl SendQueueTrait for SendQueue {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Ah;
    type Batch<'q> = Batch<'q>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_> {
        let cursor = self.begin();
        Batch { queue: self, cursor }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        self.post_one(wr)
    }

    #[inline]
    unsafe fn post_send(&mut self, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
        // SAFETY: `list` fulfils the contract of `SendQueue::post_send`, which is also that of `list::post_send`.
        unsafe { crate::list::post_send(self, list) }
    }
}

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("ring", &self.ring)
            .field("config", &self.config)
            .field("published", &self.published)
            .field("state", &self.shared.state())
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// A batch of sends.
#[derive(Debug)]
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q> {
    queue: &'q mut SendQueue,
    cursor: Cursor,
}

impl SendBatch for Batch<'_> {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Ah;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr: &Wr<'_, Ah>) {
        if let Err(error) = self.queue.push(&mut self.cursor, wr) {
            self.cursor.latch(error);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        self.queue.finish(&self.cursor)
    }
}
