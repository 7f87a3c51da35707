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
use crate::wqe::recv_desc;
use core::hint::cold_path;
use core::num::NonZeroU32;
use std::sync::Arc;
use uverbs_core::kernel::{Busy, state_word};
use uverbs_core::provider::batch::{Cursor, Progress};
use uverbs_core::provider::requests::{Poster, Slots};
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue as RecvQueueTrait};
use uverbs_core::wr::{RecvWr, Sge};

/// A receive queue.
#[derive(Debug)]
pub struct RecvQueue {
    pub(crate) ring: RecvRing,
    pub(crate) doorbell: Doorbell,
    max_sge: NonZeroU32,
    place: Place,
    poster: Poster,
    shared: Arc<QpShared>,
}

impl RecvQueue {
    /// The queue of the QP behind `shared`, whose ring has a descriptor for each of its receives at least. `max_sge` is lowered if there are
    /// fewer for each; a receive may always have one entry.
    #[must_use]
    pub fn new(ring: RecvRing, doorbell: Doorbell, max_sge: u32, shared: Arc<QpShared>) -> Self {
        let max_sge = max_sge.min(ring.entries() / shared.recv.requests.capacity());
        let max_sge = NonZeroU32::new(max_sge).unwrap_or(NonZeroU32::MIN);
        let poster = Poster::new(&shared.recv.requests);
        let place = Place { progress: Progress::new((0, 0)), descs: 0 };
        Self { ring, doorbell, max_sge, place, poster, shared }
    }

    /// The number of receives that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.poster.capacity()
    }

    /// Entries of a receive.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.max_sge.get()
    }

    /// Posts a receive. As [`direct`](Self::direct) and [`Direct::post`], but without a value that would be in memory. Unless it `LOOKS`, it
    /// calls no function, and has any error if the state is not the one seen last, or there seems to be no room.
    // codegen: call
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn post_one<const LOOKS: bool>(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let Self { ring, doorbell, max_sge, place, poster, shared } = self;
        let access = &shared.access.recv;
        let _inside = access.inside();
        let word = state_word(access);
        if LOOKS {
            place.begin(word, poster)?;
            place.progress.room(place.progress.published, |_, at| poster.room(at))?;
        } else if !place.progress.is_usual(word) {
            cold_path();
            return Err(PostError::QueueFull);
        }
        let at = place.progress.published;
        let last = check_sges(sges, *max_sge)?;
        let slots = poster.slots();
        let number = slots.prepare(at, wr_id);
        let desc = write_all(ring.descs(), place.descs, number, sges, last);
        slots.publish(1);
        (place.progress.published, place.descs) = (at.wrapping_add(1), desc);
        doorbell.ring_after_stores(desc & 0xffff);
        Ok(())
    }

    /// [`post_one`](Self::post_one) with two entries. A call, for which the caller needs no registers of its own.
    #[inline(never)]
    pub(crate) fn post_two(&mut self, wr_id: u64, sges: [Sge; 2]) -> bool {
        self.post_one::<false>(wr_id, &sges).is_ok()
    }

    /// Begins to post receives one by one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn direct(&mut self) -> Result<Direct<'_>, PostError> {
        let Self { ring, doorbell, max_sge, place, poster, shared } = self;
        let access = &shared.access.recv;
        let inside = access.inside();
        place.begin(state_word(access), poster)?;
        let (at, desc) = (place.progress.published, place.descs);
        Ok(Direct { ring, doorbell, max_sge: *max_sge, at, desc, place, poster, _inside: inside })
    }
}

/// How far the queue is.
#[derive(Debug)]
struct Place {
    progress: Progress,
    /// The position behind the last descriptor that was published.
    descs: u32,
}

impl Place {
    /// Begins to post in a state. After a reset, descriptors begin with the first one again.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin(&mut self, word: StateWord, poster: &Poster) -> Result<(), PostError> {
        self.progress.begin(word, may_receive, |_| {
            self.descs = 0;
            Ok((0, poster.limit()))
        })
    }
}

/// The position of the last entry of a receive, which has at most `max`.
#[cfg_attr(not(debug_assertions), inline(always))]
fn check_sges(sges: &[Sge], max: NonZeroU32) -> Result<usize, PostError> {
    if sges.len() > max.get() as usize {
        return Err(PostError::TooManySge);
    }
    // Without a descriptor the device would never complete it.
    sges.len().checked_sub(1).ok_or(PostError::InvalidArgument)
}

/// Writes the descriptors of a receive from a position on. Returns the position behind them.
#[cfg_attr(not(debug_assertions), inline(always))]
fn write_all(descs: Descs<'_>, mut position: u32, number: u32, sges: &[Sge], last: usize) -> u32 {
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
    max_sge: NonZeroU32,
    at: u32,
    desc: u32,
    place: &'q mut Place,
    poster: &'q Poster,
    _inside: Busy<'q>,
}

impl Direct<'_> {
    /// Entries of a receive.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge.get()
    }

    /// Posts one receive.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let Self { ring, max_sge, at, desc, place, poster, .. } = self;
        place.progress.room(*at, |_, at| poster.room(at))?;
        let last = check_sges(sges, *max_sge)?;
        let number = poster.slots().prepare(*at, wr_id);
        *desc = write_all(ring.descs(), *desc, number, sges, last);
        *at = at.wrapping_add(1);
        Ok(())
    }
}

impl Drop for Direct<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        let requests = self.at.wrapping_sub(self.place.progress.published);
        if requests != 0 {
            self.poster.slots().publish(requests);
            (self.place.progress.published, self.place.descs) = (self.at, self.desc);
            self.doorbell.ring_after_stores(self.desc & 0xffff);
        }
    }
}

impl RecvQueueTrait for RecvQueue {
    type Sge = Sge;
    type Batch<'q> = Batch<'q>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_> {
        let Self { ring, doorbell, max_sge, place, poster, shared } = self;
        let begun = place.begin(state_word(&shared.access.recv), poster);
        let cursor = Cursor::begin(&place.progress, begun);
        let (to, slots, desc) = (ring.descs(), poster.slots(), place.descs);
        Batch { to, slots, doorbell, max_sge: *max_sge, place, poster, shared, cursor, desc }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.post_one::<true>(wr_id, sges)
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: `list` fulfils the contract of `RecvQueue::post_recv`, which is also that of `list::post_recv`.
        unsafe { crate::list::post_recv(self, list) }
    }
}

/// A batch of receives. It has the addresses of the queue in one place, so that a loop keeps them in registers.
#[derive(Debug)]
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q> {
    to: Descs<'q>,
    slots: Slots<'q>,
    doorbell: &'q Doorbell,
    max_sge: NonZeroU32,
    place: &'q mut Place,
    poster: &'q Poster,
    shared: &'q QpShared,
    cursor: Cursor,
    /// The position of the first descriptor of the next receive.
    desc: u32,
}

impl Batch<'_> {
    /// Writes one receive at the cursor and moves it on.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let Self { to, slots, max_sge, place, poster, cursor, desc, .. } = self;
        cursor.room(&mut place.progress, |_, at| poster.room(at))?;
        let last = check_sges(sges, *max_sge)?;
        let number = slots.prepare(cursor.at, wr_id);
        *desc = write_all(*to, *desc, number, sges, last);
        cursor.advance();
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

    /// Publishes the receives, if there was no error and the state still allows it, in one access to the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        let Self { slots, doorbell, place, shared, cursor, desc, .. } = self;
        cursor.result()?;
        let access = &shared.access.recv;
        let _inside = access.inside();
        place.progress.check(state_word(access), may_receive)?;
        let requests = cursor.at.wrapping_sub(place.progress.published);
        if requests == 0 {
            return Ok(());
        }
        slots.publish(requests);
        (place.progress.published, place.descs) = (cursor.at, desc);
        doorbell.ring_after_stores(desc & 0xffff);
        Ok(())
    }
}
