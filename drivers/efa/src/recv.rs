// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receive queue: a ring of buffers in memory, with a doorbell.
//!
//! A receive takes a descriptor for each of its buffers. They are written beyond the position of the last doorbell, where the device
//! does not read.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. It is not accessed
// here, so this module has no unsafe operation.

use crate::memory::{Descs, Doorbell, RecvRing};
use crate::shared::{QpShared, may_receive};
use crate::table::{Poster, Slots};
use crate::wqe::recv_desc;
use core::fmt;
use core::hint::cold_path;
use std::sync::Arc;
use uverbs_core::kernel::{Busy, state_word};
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

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn latch(&mut self, error: PostError) {
        // Not a call, for which the cursor would have to be in memory.
        cold_path();
        self.error.get_or_insert(error);
        self.limit = self.at;
    }
}

/// A receive queue.
pub struct RecvQueue {
    ring: RecvRing,
    doorbell: Doorbell,
    max_sge: u32,
    progress: Progress,
    poster: Poster,
    shared: Arc<QpShared>,
}

/// How far the queue is.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// The receives posted since the QP was reset, modulo 2^32.
    published: u32,
    /// Their descriptors.
    published_desc: u32,
    /// The position that must not be written, as far as is known.
    limit: u32,
    /// The state word under which posting was allowed last.
    seen: StateWord,
}

impl Progress {
    /// Notes a state that is not the one seen last, if it allows posts.
    #[cold]
    fn look(&mut self, word: StateWord, poster: &Poster) -> Result<(), PostError> {
        if !may_receive(word) {
            return Err(word.refusal());
        }
        if self.seen == StateWord::NONE || word.resets_differ(self.seen) {
            // The control call has emptied the table.
            (self.published, self.published_desc, self.limit) = (0, 0, poster.limit());
        }
        self.seen = word;
        Ok(())
    }

    /// Asks the table for room. Called if the queue seems full.
    #[cold]
    fn refresh(&mut self, at: u32, poster: &Poster) -> Result<u32, PostError> {
        self.limit = poster.limit();
        if at == self.limit { Err(PostError::QueueFull) } else { Ok(self.limit) }
    }
}

impl RecvQueue {
    /// The queue of the QP behind `shared`. `max_sge` is lowered if the ring has fewer descriptors for each of its receives.
    #[must_use]
    pub fn new(ring: RecvRing, doorbell: Doorbell, max_sge: u32, shared: Arc<QpShared>) -> Self {
        let max_sge = max_sge.min(ring.entries() / shared.recv.capacity());
        let progress = Progress { published: 0, published_desc: 0, limit: 0, seen: StateWord::NONE };
        Self { ring, doorbell, max_sge, progress, poster: Poster::new(&shared.recv), shared }
    }

    /// The number of receives that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.poster.capacity()
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

    /// Posts a receive of `N` entries, 1 or more, if the state is the one seen last and there is room as far as is known. Otherwise it posts
    /// nothing, and returns `false`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn post_few<const N: usize>(&mut self, wr_id: u64, sges: [Sge; N]) -> bool {
        const { assert!(N > 0) };
        let Self { ring, doorbell, max_sge, progress, poster, shared } = self;
        let access = &shared.access.recv;
        let _inside = access.inside();
        let at = progress.published;
        if state_word(access) != progress.seen || at == progress.limit || N > *max_sge as usize {
            cold_path();
            return false;
        }
        let slots = poster.slots();
        let number = slots.prepare(at, wr_id);
        let desc = write_all(ring.descs(), progress.published_desc, number, &sges, N - 1);
        slots.publish_number(number);
        (progress.published, progress.published_desc) = (at.wrapping_add(1), desc);
        doorbell.ring_after_stores(desc & 0xffff);
        true
    }

    /// [`post_few`](Self::post_few) with two entries. A call, for which the caller needs no registers of its own.
    #[inline(never)]
    pub(crate) fn post_two(&mut self, wr_id: u64, sges: [Sge; 2]) -> bool {
        self.post_few(wr_id, sges)
    }

    /// Begins to post receives one by one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn direct(&mut self) -> Result<Direct<'_>, PostError> {
        let Self { ring, doorbell, max_sge, progress, poster, shared } = self;
        let access = &shared.access.recv;
        let inside = access.inside();
        let word = state_word(access);
        if word != progress.seen {
            progress.look(word, poster)?;
        }
        let (at, desc) = (progress.published, progress.published_desc);
        Ok(Direct { ring, doorbell, max_sge: *max_sge, at, desc, progress, poster, _inside: inside })
    }
}

/// The position of the last entry of a receive, which has at most `max`.
#[cfg_attr(not(debug_assertions), inline(always))]
fn check_sges(sges: &[Sge], max: u32) -> Result<usize, PostError> {
    if sges.len() > max as usize {
        return Err(PostError::TooManySge);
    }
    // Without a descriptor the device would never complete it.
    sges.len().checked_sub(1).ok_or(PostError::InvalidArgument)
}

/// Writes the descriptors of a receive from a position on. Returns the position behind them.
#[cfg_attr(not(debug_assertions), inline(always))]
fn write_all(descs: Descs<'_>, mut position: u32, number: u16, sges: &[Sge], last: usize) -> u32 {
    for (i, sge) in sges.iter().enumerate() {
        // The number is in the first descriptor only.
        let number = if i == 0 { number } else { 0 };
        descs.write(position, recv_desc(number, sge, i == 0, i == last));
        position = position.wrapping_add(1);
    }
    position
}

/// Posts receives, each as it is made. It rings when it is dropped. In one access to the queue: control calls wait.
pub(crate) struct Direct<'q> {
    ring: &'q mut RecvRing,
    doorbell: &'q Doorbell,
    max_sge: u32,
    at: u32,
    desc: u32,
    progress: &'q mut Progress,
    poster: &'q Poster,
    _inside: Busy<'q>,
}

impl Direct<'_> {
    /// Entries of a receive.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Posts one receive.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let at = self.at;
        if at == self.progress.limit {
            self.progress.refresh(at, self.poster)?;
        }
        let last = check_sges(sges, self.max_sge)?;
        let slots = self.poster.slots();
        let number = slots.prepare(at, wr_id);
        self.desc = write_all(self.ring.descs(), self.desc, number, sges, last);
        slots.publish_number(number);
        self.at = at.wrapping_add(1);
        Ok(())
    }
}

impl Drop for Direct<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        if self.progress.published != self.at {
            (self.progress.published, self.progress.published_desc) = (self.at, self.desc);
            self.doorbell.ring_after_stores(self.desc & 0xffff);
        }
    }
}

impl RecvQueueTrait for RecvQueue {
    type Sge = Sge;
    type Batch<'q> = Batch<'q>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_> {
        let Self { ring, doorbell, max_sge, progress, poster, shared } = self;
        let word = state_word(&shared.access.recv);
        let cursor = match word == progress.seen || progress.look(word, poster).is_ok() {
            true => {
                let Progress { published, published_desc, limit, .. } = *progress;
                RqCursor { at: published, desc: published_desc, limit, error: None }
            }
            false => RqCursor::failed(word.refusal()),
        };
        let (descs, slots) = (ring.descs(), poster.slots());
        Batch { descs, slots, doorbell, max_sge: *max_sge, progress, poster, shared, cursor }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let Self { ring, doorbell, max_sge, progress, poster, shared } = self;
        let access = &shared.access.recv;
        let _inside = access.inside();
        let word = state_word(access);
        if word != progress.seen {
            progress.look(word, poster)?;
        }
        let at = progress.published;
        if at == progress.limit {
            progress.refresh(at, poster)?;
        }
        let last = check_sges(sges, *max_sge)?;
        let slots = poster.slots();
        let number = slots.prepare(at, wr_id);
        let desc = write_all(ring.descs(), progress.published_desc, number, sges, last);
        slots.publish_number(number);
        (progress.published, progress.published_desc) = (at.wrapping_add(1), desc);
        doorbell.ring_after_stores(desc & 0xffff);
        Ok(())
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
            .field("progress", &self.progress)
            .field("state", &self.shared.state())
            .finish_non_exhaustive()
    }
}

/// A batch of receives. It has the addresses of the queue in one place, so that a loop keeps them in registers.
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q> {
    descs: Descs<'q>,
    slots: Slots<'q>,
    doorbell: &'q Doorbell,
    max_sge: u32,
    progress: &'q mut Progress,
    poster: &'q Poster,
    shared: &'q QpShared,
    cursor: RqCursor,
}

impl Batch<'_> {
    /// Asks the table for room. Called if the queue seems full.
    #[cold]
    fn refresh(progress: &mut Progress, poster: &Poster, cursor: RqCursor) -> Result<u32, PostError> {
        match cursor.error {
            Some(error) => Err(error),
            None => progress.refresh(cursor.at, poster),
        }
    }

    /// Writes one receive at the cursor and moves it on.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let cursor = &mut self.cursor;
        if cursor.at == cursor.limit {
            cursor.limit = Self::refresh(self.progress, self.poster, *cursor)?;
        }
        let last = check_sges(sges, self.max_sge)?;
        let number = self.slots.prepare(cursor.at, wr_id);
        cursor.desc = write_all(self.descs, cursor.desc, number, sges, last);
        cursor.at = cursor.at.wrapping_add(1);
        Ok(())
    }
}

impl RecvBatch for Batch<'_> {
    type Sge = Sge;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        if let Err(error) = self.put(wr_id, sges) {
            self.cursor.latch(error);
        }
    }

    /// Publishes the receives, if the state still allows it and no reset came since the batch began, in one access to the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        let Self { slots, doorbell, progress, shared, cursor, .. } = self;
        if let Some(error) = cursor.error {
            return Err(error);
        }
        let access = &shared.access.recv;
        let _inside = access.inside();
        let word = state_word(access);
        if word != progress.seen && (!may_receive(word) || word.resets_differ(progress.seen)) {
            return Err(word.refusal());
        }
        let mut at = progress.published;
        if at == cursor.at {
            return Ok(());
        }
        while at != cursor.at {
            slots.publish(at);
            at = at.wrapping_add(1);
        }
        (progress.published, progress.published_desc) = (at, cursor.desc);
        doorbell.ring_after_stores(cursor.desc & 0xffff);
        Ok(())
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}
