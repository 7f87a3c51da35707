// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue: batches, the `wr_*` builders, and single requests.
//!
//! The queue of the device takes entries in order, and may read one as soon as it is written. So a batch is written to private memory, and
//! copied to the device as a whole; a single request, and one of a list, which posts what is before an error, is made on the stack
//! ([`Direct`]). At most [`SendConfig::max_batch`] entries are copied before the doorbell.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The encoder
// does not access that memory, so this module has no unsafe operation.

use crate::memory::{Copies, Doorbell, SendRing, Wqe};
use crate::shared::{QpShared, may_send};
use crate::wqe::{Ah, Begun, SendConfig};
use core::hint::cold_path;
use std::sync::Arc;
use uverbs_core::kernel::{Busy, state_word};
use uverbs_core::provider::batch::{Batch, BatchQueue, Cursor, Progress};
use uverbs_core::provider::builder::{ADDRESS, BuilderQueue, DATA, Session};
use uverbs_core::provider::requests::{Poster, Slots};
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{
    BadWr, Data, Head, Inline, Op, PostError, RemoteAddr, SendQueue as SendQueueTrait, To, Wr,
};
use uverbs_core::wr::{SendWr, Sge};

/// A send queue.
#[derive(Debug)]
pub struct SendQueue {
    pub(crate) ring: SendRing,
    pub(crate) doorbell: Doorbell,
    pub(crate) config: SendConfig,
    progress: Progress,
    poster: Poster,
    pub(crate) shared: Arc<QpShared>,
    pub(crate) session: Session,
}

impl SendQueue {
    /// The queue of the QP behind `shared`, whose table has as many requests as the ring has entries. Limits for which an entry has
    /// no room are lowered.
    #[must_use]
    pub fn new(ring: SendRing, doorbell: Doorbell, config: SendConfig, shared: Arc<QpShared>) -> Self {
        let config = config.fit(ring.is_wide(), ring.entries());
        let (progress, poster) = (Progress::new((0, 0)), Poster::new(&shared.send.requests));
        Self { ring, doorbell, config, progress, poster, shared, session: Session::default() }
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

    /// The number and the phase of the request at a position that may be written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn number(&self, at: u32, wr_id: u64) -> (u32, bool) {
        (self.poster.slots().prepare(at, wr_id), self.ring.phase(at))
    }

    /// Publishes the request up to `end`, if it is the only one, the doorbell is a register, and the state is the one seen last; if not, it
    /// publishes nothing. The entry is in the access to the queue that [`publish_by`](Self::publish_by) describes. It calls no function and
    /// has no loop.
    // codegen: call
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn publishes_one(&mut self, end: u32) -> bool {
        let Self { ring, doorbell, progress, poster, shared, .. } = self;
        let at = progress.published;
        if at.wrapping_add(1) != end || !doorbell.is_mapped() {
            return false;
        }
        let access = &shared.access.send;
        let _inside = access.inside();
        if !progress.is_seen(state_word(access)) {
            cold_path();
            return false;
        }
        let view = ring.view();
        let copies = Copies::start();
        let entry = view.staged(at);
        poster.slots().publish(1);
        view.write(&copies, at, entry);
        progress.published = end;
        doorbell.ring_register(copies, end & 0xffff);
        true
    }

    /// Publishes the requests before a position.
    #[inline(never)]
    fn publish_all(&mut self, end: u32) -> Result<(), PostError> {
        if self.doorbell.is_mapped() {
            self.publish_by(end, Doorbell::ring_register)
        } else {
            self.publish_to_port(end)
        }
    }

    /// [`publish_all`](Self::publish_all) to a software device.
    #[cold]
    #[inline(never)]
    fn publish_to_port(&mut self, end: u32) -> Result<(), PostError> {
        self.publish_by(end, Doorbell::ring_after_copies)
    }

    /// This is one access to the queue: a control call that closes it waits for its end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn publish_by(&mut self, end: u32, rings: impl Fn(&Doorbell, Copies, u32)) -> Result<(), PostError> {
        let Self { ring, doorbell, config, progress, poster, shared, .. } = self;
        let access = &shared.access.send;
        let _inside = access.inside();
        progress.check(state_word(access), may_send)?;
        let (view, slots) = (ring.view(), poster.slots());
        let mut at = progress.published;
        while at != end {
            let requests = config.max_batch.min(end.wrapping_sub(at));
            let next = at.wrapping_add(requests);
            slots.publish(requests);
            let copies = Copies::start();
            while at != next {
                view.write(&copies, at, view.staged(at));
                at = at.wrapping_add(1);
            }
            progress.published = at;
            rings(doorbell, copies, at & 0xffff);
        }
        Ok(())
    }

    /// The hints for the request that was begun last, `EFA_IO_PROCESSING_HINT_*` (`efadv_wr_set_processing_hints`).
    pub fn wr_set_processing_hints(&mut self, hints: u8) {
        if let Some(at) = self.session.current() {
            self.ring.staged(at).put_hints(hints);
        }
    }

    /// Posts one request, unless a builder session is open. As [`direct`](Self::direct) and [`Direct::post`], but without a value that would
    /// be in memory. Unless it `LOOKS`, it calls no function, and has any error if the state is not the one seen last, or there seems to be
    /// no room.
    // codegen: call
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn post_one<const LOOKS: bool>(&mut self, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        if self.session.is_open() {
            return Err(PostError::SessionOpen);
        }
        let Self { ring, doorbell, config, progress, poster, shared, .. } = self;
        let access = &shared.access.send;
        let _inside = access.inside();
        let word = state_word(access);
        if LOOKS {
            begin(progress, ring, poster, word)?;
            progress.room(progress.published, |_, at| poster.room(at))?;
        } else if !progress.is_usual(word) {
            cold_path();
            return Err(PostError::QueueFull);
        }
        let at = progress.published;
        let copies = put(ring, config, poster.slots(), at, wr, Copies::start)?;
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
        begin(progress, ring, poster, state_word(access))?;
        let (at, copies) = (progress.published, Copies::start());
        Ok(Direct { ring, doorbell, config, at, progress, poster, unrung: 0, copies, _inside: inside })
    }
}

/// Publishes a request and copies it to its place in the device; `copies` are begun between the two.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put(
    ring: &mut SendRing,
    config: &SendConfig,
    slots: Slots<'_>,
    at: u32,
    wr: &Wr<'_, Ah>,
    copies: impl FnOnce() -> Copies,
) -> Result<Copies, PostError> {
    let number = slots.prepare(at, wr.wr_id);
    Begun::check(config, wr)?;
    let Some(begun) = Begun::of(number, ring.phase(at), wr) else { return Err(PostError::IllegalOpcode) };
    if let Data::Sges(sges) = &wr.data {
        begun.check_sges(config, sges)?;
        let block = begun.with(sges);
        slots.publish(1);
        let copies = copies();
        ring.write_block(&copies, at, block);
        return Ok(copies);
    }
    let mut wqe = Wqe::ZERO;
    wqe.put(config, &begun, &wr.data, false)?;
    slots.publish(1);
    let copies = copies();
    ring.view().write(&copies, at, &wqe);
    Ok(copies)
}

/// Begins to post in a state. After a reset, positions begin with 0 again.
#[cfg_attr(not(debug_assertions), inline(always))]
fn begin(
    progress: &mut Progress,
    ring: &mut SendRing,
    poster: &Poster,
    word: StateWord,
) -> Result<(), PostError> {
    progress.begin(word, may_send, |at| {
        ring.restart(at);
        Ok((0, poster.limit()))
    })
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
        self.progress.room(at, |_, at| self.poster.room(at))?;
        if self.unrung == self.config.max_batch {
            // Not a call, for which the fields would have to be in memory.
            cold_path();
            self.doorbell.ring_between_copies(&mut self.copies, at & 0xffff);
            self.unrung = 0;
        }
        let copies = &mut self.copies;
        put(self.ring, self.config, self.poster.slots(), at, wr, || copies.last())?;
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

impl SendQueueTrait for SendQueue {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Ah;
    type Batch<'q> = Batch<'q, Self>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_, Self> {
        Batch::begin(self)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        self.post_one::<true>(wr)
    }

    #[inline]
    unsafe fn post_send(&mut self, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
        // SAFETY: `list` fulfils the contract of `SendQueue::post_send`, which is also that of `list::post_send`.
        unsafe { crate::list::post_send(self, list) }
    }
}

impl BatchQueue for SendQueue {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin(&mut self) -> Cursor {
        if self.session.is_open() {
            return Cursor::failed(PostError::SessionOpen);
        }
        let Self { ring, progress, poster, shared, .. } = self;
        let begun = begin(progress, ring, poster, state_word(&shared.access.send));
        Cursor::begin(progress, begun)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn push(&mut self, cursor: &mut Cursor, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        self.room(cursor)?;
        let (number, phase) = self.number(cursor.at, wr.wr_id);
        Begun::check(&self.config, wr)?;
        let Some(begun) = Begun::of(number, phase, wr) else { return Err(PostError::IllegalOpcode) };
        let is_wide = self.ring.is_wide();
        self.ring.staged(cursor.at).put(&self.config, &begun, &wr.data, is_wide)?;
        cursor.advance();
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn publish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        cursor.result()?;
        if self.publishes_one(cursor.at) { Ok(()) } else { self.publish_all(cursor.at) }
    }
}

/// Every request has data and a destination.
impl BuilderQueue for SendQueue {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn session(&self) -> &Session {
        &self.session
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn room(&mut self, cursor: &mut Cursor) -> Result<(), PostError> {
        cursor.room(&mut self.progress, |_, at| self.poster.room(at))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_head(&mut self, at: u32, head: Head, op: &Op<'_>) -> Result<u8, PostError> {
        let ((number, phase), is_wide) = (self.number(at, head.wr_id), self.ring.is_wide());
        self.ring.staged(at).begin(&self.config, number, phase, head.flags, op, is_wide)?;
        Ok(DATA | ADDRESS)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_destination(&mut self, at: u32, to: &To<'_, Ah>) -> Result<(), PostError> {
        self.ring.staged(at).put_destination(to)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_sges(&mut self, at: u32, sges: &[Sge]) -> Result<(), PostError> {
        self.ring.staged(at).put_sges(&self.config, sges)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_inline(&mut self, at: u32, data: &Inline<'_>) -> Result<(), PostError> {
        self.ring.staged(at).put_inline(&self.config, data)
    }
}
