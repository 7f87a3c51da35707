// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue, and its typed face: batches.
//!
//! The queue of the device takes entries in order, and may read one as soon as it is written. So a batch is written to private memory, and
//! copied to the device as a whole; a single request, and one of a list, which posts what is before an error, is made on the stack
//! ([`Direct`]). At most [`SendConfig::max_batch`] entries are copied before the doorbell.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The encoder
// does not access that memory, so this module has no unsafe operation.

use crate::builder::Session;
use crate::memory::{Copies, Doorbell, SendRing, Wqe};
use crate::shared::{QpShared, may_send};
use crate::table::Table;
use crate::wqe::{Ah, SendConfig};
use core::fmt;
use std::sync::Arc;
use uverbs_core::kernel::{Busy, state_word};
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{BadWr, PostError, RemoteAddr, SendBatch, SendQueue as SendQueueTrait, Wr};
use uverbs_core::wr::{SendWr, Sge};

/// The position at which a batch writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SqCursor {
    /// The position of the next request.
    pub(crate) at: u32,
    /// The position that must not be written; the same as `at` after an error.
    limit: u32,
    /// The first error.
    error: Option<PostError>,
}

impl SqCursor {
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

    /// As [`latch`](Self::latch), by value: the cursor of a batch whose address is passed on does not stay in registers.
    #[cold]
    fn latched(mut self, error: PostError) -> Self {
        self.latch(error);
        self
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

    /// The ring and its doorbell.
    pub(crate) fn memory(&self) -> (&SendRing, &Doorbell) {
        (&self.ring, &self.doorbell)
    }

    /// Begins a batch, unless a builder session is open.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&mut self) -> SqCursor {
        if self.session.is_open() {
            return SqCursor::failed(PostError::SessionOpen);
        }
        let word = state_word(&self.shared.access.send);
        if word != self.seen
            && let Err(error) = self.look(word)
        {
            return SqCursor::failed(error);
        }
        SqCursor { at: self.published, limit: self.limit, error: None }
    }

    /// Notes a state that is not the one seen last, if it allows posts.
    #[cold]
    fn look(&mut self, word: StateWord) -> Result<(), PostError> {
        if !may_send(word) {
            return Err(word.refusal());
        }
        if self.seen == StateWord::NONE || word.resets_differ(self.seen) {
            // The control call has emptied the table.
            self.ring.restart(self.published);
            (self.published, self.limit) = (0, self.shared.send.limit());
        }
        self.seen = word;
        Ok(())
    }

    /// The private entry at a position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn local(&mut self, at: u32) -> &mut Wqe {
        let mask = self.local.len() - 1;
        &mut self.local[at as usize & mask]
    }

    /// The number and the phase of the request at the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn next(&mut self, cursor: &mut SqCursor, wr_id: u64) -> Result<(u16, bool), PostError> {
        if cursor.at == cursor.limit {
            if let Some(error) = cursor.error {
                return Err(error);
            }
            self.limit = refresh(&self.shared.send, cursor.at)?;
            cursor.limit = self.limit;
        }
        Ok((self.shared.send.prepare(cursor.at, wr_id), self.ring.phase(cursor.at)))
    }

    /// Writes one request at the cursor and moves it on.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn push(&mut self, cursor: &mut SqCursor, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        let (number, phase) = self.next(cursor, wr.wr_id)?;
        let config = self.config;
        self.local(cursor.at).put(&config, number, phase, wr)?;
        cursor.at = cursor.at.wrapping_add(1);
        Ok(())
    }

    /// Publishes a batch, or reports its error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn finish(&mut self, cursor: &SqCursor) -> Result<(), PostError> {
        match cursor.error {
            Some(error) => Err(error),
            None => self.publish(cursor),
        }
    }

    /// Copies the requests before the cursor to the device and rings, if the state still allows it and no reset came since the batch began.
    ///
    /// This is one access to the queue: a control call that closes it waits for its end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&mut self, cursor: &SqCursor) -> Result<(), PostError> {
        let Self { ring, doorbell, local, config, published, seen, shared, .. } = self;
        let access = &shared.access.send;
        let _inside = access.inside();
        let word = state_word(access);
        if word != *seen && (!may_send(word) || word.resets_differ(*seen)) {
            return Err(word.refusal());
        }
        while *published != cursor.at {
            let copies = Copies::start();
            let mut copied = 0;
            while copied != config.max_batch && *published != cursor.at {
                shared.send.publish(*published);
                ring.write(&copies, *published, &local[*published as usize & (local.len() - 1)]);
                *published = published.wrapping_add(1);
                copied += 1;
            }
            doorbell.ring_after_copies(copies, *published & 0xffff);
        }
        Ok(())
    }

    /// Begins to post requests one by one, unless a builder session is open.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn direct(&mut self) -> Result<Direct<'_>, PostError> {
        if self.session.is_open() {
            return Err(PostError::SessionOpen);
        }
        let word = state_word(&self.shared.access.send);
        if word != self.seen {
            self.look(word)?;
        }
        let Self { ring, doorbell, config, published, limit, seen, shared, .. } = self;
        let (access, table) = (&shared.access.send, &*shared.send);
        let inside = access.inside();
        let word = state_word(access);
        if word != *seen && (!may_send(word) || word.resets_differ(*seen)) {
            return Err(word.refusal());
        }
        let at = *published;
        Ok(Direct {
            ring,
            doorbell,
            config,
            at,
            published,
            limit,
            table,
            unrung: 0,
            copies: None,
            _inside: inside,
        })
    }
}

/// Posts requests to the device, each as it is made. It rings when it is dropped. In one access to the queue: control calls wait.
pub(crate) struct Direct<'q> {
    ring: &'q mut SendRing,
    doorbell: &'q Doorbell,
    config: &'q SendConfig,
    at: u32,
    published: &'q mut u32,
    limit: &'q mut u32,
    table: &'q Table,
    /// Entries since the last doorbell.
    unrung: u32,
    copies: Option<Copies>,
    _inside: Busy<'q>,
}

impl Direct<'_> {
    /// The parameters of the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn config(&self) -> &SendConfig {
        self.config
    }

    /// Posts one request.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn post(&mut self, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        let at = self.at;
        if at == *self.limit {
            *self.limit = refresh(self.table, at)?;
        }
        let number = self.table.prepare(at, wr.wr_id);
        let mut wqe = Wqe::ZERO;
        wqe.put(self.config, number, self.ring.phase(at), wr)?;
        self.table.publish_number(number);
        self.ring.write(self.copies.get_or_insert_with(Copies::start), at, &wqe);
        self.at = at.wrapping_add(1);
        self.unrung += 1;
        if self.unrung == self.config.max_batch {
            self.ring();
        }
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ring(&mut self) {
        if let Some(copies) = self.copies.take() {
            self.doorbell.ring_after_copies(copies, self.at & 0xffff);
        }
        self.unrung = 0;
    }
}

impl Drop for Direct<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        self.ring();
        *self.published = self.at;
    }
}

/// Asks the table for room. Called if the queue seems full.
#[cold]
fn refresh(table: &Table, at: u32) -> Result<u32, PostError> {
    let limit = table.limit();
    if at == limit { Err(PostError::QueueFull) } else { Ok(limit) }
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
        self.direct()?.post(wr)
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
    cursor: SqCursor,
}

impl SendBatch for Batch<'_> {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Ah;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr: &Wr<'_, Ah>) {
        if let Err(error) = self.queue.push(&mut self.cursor, wr) {
            self.cursor = self.cursor.latched(error);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        self.queue.finish(&self.cursor)
    }
}
