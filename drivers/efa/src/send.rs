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
use crate::table::Poster;
use crate::wqe::{Ah, Begun, SendConfig};
use core::fmt;
use core::hint::cold_path;
use std::sync::Arc;
use uverbs_core::kernel::{Busy, state_word};
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{BadWr, Data, PostError, RemoteAddr, SendBatch, SendQueue as SendQueueTrait, Wr};
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
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn latch(&mut self, error: PostError) {
        // Not a call, for which the cursor would have to be in memory.
        cold_path();
        self.error.get_or_insert(error);
        self.limit = self.at;
    }

    /// Whether the limit was reached, or there was an error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_at_limit(&self) -> bool {
        self.at == self.limit
    }

    /// Moves the limit.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// The latched error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn error(&self) -> Option<PostError> {
        self.error
    }
}

/// A send queue.
pub struct SendQueue {
    pub(crate) ring: SendRing,
    doorbell: Doorbell,
    pub(crate) config: SendConfig,
    progress: Progress,
    poster: Poster,
    pub(crate) shared: Arc<QpShared>,
    pub(crate) session: Session,
}

/// How far the queue is.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// The requests posted since the QP was reset, modulo 2^32: the position behind the last one.
    published: u32,
    /// The position that must not be written, as far as is known.
    limit: u32,
    /// The state word under which posting was allowed last.
    seen: StateWord,
}

impl Progress {
    /// Notes a state that is not the one seen last, if it allows posts.
    #[cold]
    fn look(&mut self, word: StateWord, poster: &Poster, ring: &mut SendRing) -> Result<(), PostError> {
        if !may_send(word) {
            return Err(word.refusal());
        }
        if self.seen == StateWord::NONE || word.resets_differ(self.seen) {
            // The control call has emptied the table.
            ring.restart(self.published);
            (self.published, self.limit) = (0, poster.limit());
        }
        self.seen = word;
        Ok(())
    }
}

impl SendQueue {
    /// The queue of the QP behind `shared`, whose table has as many requests as the ring has entries. Limits for which an entry has
    /// no room are lowered.
    #[must_use]
    pub fn new(ring: SendRing, doorbell: Doorbell, config: SendConfig, shared: Arc<QpShared>) -> Self {
        let config = config.fit(ring.is_wide(), ring.entries());
        let poster = Poster::new(&shared.send);
        Self {
            ring,
            doorbell,
            config,
            progress: Progress { published: 0, limit: 0, seen: StateWord::NONE },
            poster,
            shared,
            session: Session::default(),
        }
    }

    /// The number of requests that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.poster.capacity()
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
        if word != self.progress.seen
            && let Err(error) = self.progress.look(word, &self.poster, &mut self.ring)
        {
            return SqCursor::failed(error);
        }
        SqCursor { at: self.progress.published, limit: self.progress.limit, error: None }
    }

    /// Moves the limit of the cursor, which is at it.
    #[cold]
    pub(crate) fn refresh(&mut self, cursor: SqCursor) -> Result<u32, PostError> {
        if let Some(error) = cursor.error {
            return Err(error);
        }
        self.progress.limit = refresh(&self.poster, cursor.at)?;
        Ok(self.progress.limit)
    }

    /// The number and the phase of the request at a position that may be written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn number(&self, at: u32, wr_id: u64) -> (u16, bool) {
        (self.poster.slots().prepare(at, wr_id), self.ring.phase(at))
    }

    /// Writes one request at the cursor and moves it on.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn push(&mut self, cursor: &mut SqCursor, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        if cursor.at == cursor.limit {
            cursor.limit = self.refresh(*cursor)?;
        }
        let (number, phase) = self.number(cursor.at, wr.wr_id);
        let begun = Begun::of(&self.config, number, phase, wr)?;
        let is_wide = self.ring.is_wide();
        self.ring.staged(cursor.at).put(&self.config, &begun, &wr.data, is_wide)?;
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
        let Self { ring, doorbell, config, progress, poster, shared, .. } = self;
        let access = &shared.access.send;
        let _inside = access.inside();
        let word = state_word(access);
        if word != progress.seen && (!may_send(word) || word.resets_differ(progress.seen)) {
            return Err(word.refusal());
        }
        let (view, slots) = (ring.view(), poster.slots());
        let mut at = progress.published;
        while at != cursor.at {
            let copies = Copies::start();
            let end = at.wrapping_add(config.max_batch.min(cursor.at.wrapping_sub(at)));
            while at != end {
                let entry = view.staged(at);
                slots.publish_number(entry.number());
                view.write(&copies, at, entry);
                at = at.wrapping_add(1);
            }
            progress.published = at;
            doorbell.ring_after_copies(copies, at & 0xffff);
        }
        Ok(())
    }

    /// Posts one request, unless a builder session is open. As [`direct`](Self::direct) and [`Direct::post`], but without a value that would
    /// be in memory.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn post_one(&mut self, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        if self.session.is_open() {
            return Err(PostError::SessionOpen);
        }
        let Self { ring, doorbell, config, progress, poster, shared, .. } = self;
        let access = &shared.access.send;
        let _inside = access.inside();
        let word = state_word(access);
        if word != progress.seen {
            progress.look(word, poster, ring)?;
        }
        let at = progress.published;
        if at == progress.limit {
            progress.limit = refresh(poster, at)?;
        }
        let slots = poster.slots();
        let number = slots.prepare(at, wr.wr_id);
        let begun = Begun::of(config, number, ring.phase(at), wr)?;
        let copies = match &wr.data {
            Data::Sges(sges) => {
                let block = begun.with(config, sges)?;
                slots.publish_number(number);
                let copies = Copies::start();
                ring.write_block(&copies, at, block);
                copies
            }
            data => {
                let mut wqe = Wqe::ZERO;
                wqe.put(config, &begun, data, false)?;
                slots.publish_number(number);
                let copies = Copies::start();
                ring.write(&copies, at, &wqe);
                copies
            }
        };
        let at = at.wrapping_add(1);
        progress.published = at;
        doorbell.ring_after_copies(copies, at & 0xffff);
        Ok(())
    }

    /// Begins to post requests one by one, unless a builder session is open.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn direct(&mut self) -> Result<Direct<'_>, PostError> {
        if self.session.is_open() {
            return Err(PostError::SessionOpen);
        }
        let Self { ring, doorbell, config, progress, poster, shared, .. } = self;
        let access = &shared.access.send;
        let inside = access.inside();
        let word = state_word(access);
        if word != progress.seen {
            progress.look(word, poster, ring)?;
        }
        let at = progress.published;
        Ok(Direct {
            ring,
            doorbell,
            config,
            at,
            progress,
            poster,
            unrung: 0,
            copies: Copies::start(),
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
    progress: &'q mut Progress,
    poster: &'q Poster,
    /// Entries since the last doorbell.
    unrung: u32,
    /// Those entries. Begun with this value, and again after each doorbell but the last.
    copies: Copies,
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
        if at == self.progress.limit {
            self.progress.limit = refresh(self.poster, at)?;
        }
        if self.unrung == self.config.max_batch {
            // Not a call, for which the fields would have to be in memory.
            cold_path();
            self.doorbell.ring_between_copies(&mut self.copies, at & 0xffff);
            self.unrung = 0;
        }
        let slots = self.poster.slots();
        let number = slots.prepare(at, wr.wr_id);
        let begun = Begun::of(self.config, number, self.ring.phase(at), wr)?;
        match &wr.data {
            Data::Sges(sges) => {
                let block = begun.with(self.config, sges)?;
                slots.publish_number(number);
                self.ring.write_block(&self.copies, at, block);
            }
            data => {
                let mut wqe = Wqe::ZERO;
                wqe.put(self.config, &begun, data, false)?;
                slots.publish_number(number);
                self.ring.write(&self.copies, at, &wqe);
            }
        }
        self.at = at.wrapping_add(1);
        self.unrung += 1;
        Ok(())
    }
}

impl Drop for Direct<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        if self.unrung != 0 {
            self.doorbell.ring_after_copies(self.copies.last(), self.at & 0xffff);
        }
        self.progress.published = self.at;
    }
}

/// Asks the table for room. Called if the queue seems full.
#[cold]
fn refresh(poster: &Poster, at: u32) -> Result<u32, PostError> {
    let limit = poster.limit();
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
            .field("progress", &self.progress)
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
            self.cursor.latch(error);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        self.queue.finish(&self.cursor)
    }
}
