// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue, and its typed face: batches, and the fused post of one WR.
//!
//! | module | what |
//! |---|---|
//! | `encoder` | from a WR to its WQE, for all faces |
//! | `producer` | room, fences, publication |
//! | `cursor` | where a batch writes |
//! | `list` | `ibv_post_send` |
//! | `builder` | the `wr_*` builders |
//! | `shared` | what pollers of the completions use |
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` carry a promise about the memory that WRs name. The
// encoder looks at that memory only for the header of raw packets, which it is promised, too.

pub(crate) mod builder;
pub(crate) mod cursor;
pub(crate) mod encoder;
pub(crate) mod list;
pub(crate) mod producer;
pub mod shared;

pub use encoder::SendConfig;
pub use shared::{SqShared, umr_op};

use crate::doorbell::Doorbell;
use crate::memory::SendQueueRef;
use crate::memory::dbrec::DbWord;
use crate::qp::QpShared;
use crate::sq::builder::Session;
use crate::sq::cursor::Cursor;
use crate::sq::encoder::{Encoder, Hot};
use crate::sq::producer::Producer;
use crate::wqe::{Ah, Remote, Sge};
use core::fmt;
use core::hint::cold_path;
use std::sync::Arc;
use uverbs_core::errno::Errno;
use uverbs_core::provider::{
    Address, BadWr, Operation, Payload, PostError, SendBatch, SendQueue as SendQueueTrait, Wr,
};
use uverbs_core::wr::SendWr;

/// A send queue.
pub struct SendQueue {
    pub(crate) held: SendQueueRef,
    pub(crate) side: Side,
}

/// What of a send queue only its poster has.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) poster: Producer,
    pub(crate) encoder: Encoder,
    pub(crate) session: Session,
}

impl SendQueue {
    /// The send queue of the QP behind `qp`, which has one: else `None`.
    #[must_use]
    pub fn new(config: &SendConfig, qp: Arc<QpShared>, record: DbWord, bell: Doorbell) -> Option<Self> {
        let held = SendQueueRef::new(qp)?;
        let blocks = held.sq().ring.mask() + 1;
        held.sq().published_by(record.clone());
        let encoder = Encoder::new(config, blocks, !bell.is_slow());
        // Never more WRs than blocks, whatever the kernel answered.
        let poster = Producer::new(&held, config.max_send_wr.min(blocks), record, bell);
        Some(Self { held, side: Side { poster, encoder, session: Session::default() } })
    }

    /// How many WRs it takes.
    #[must_use]
    pub fn max_send_wr(&self) -> u32 {
        self.side.poster.max_post()
    }

    /// What it shares with the pollers of its completions.
    #[must_use]
    pub fn shared(&self) -> &Arc<QpShared> {
        &self.held.qp
    }

    /// The queue, for a batch to hold both halves of.
    #[inline(always)]
    pub(crate) fn split(&mut self) -> (&SendQueueRef, &mut Side) {
        (&self.held, &mut self.side)
    }

    /// Sets the indices, as if so many one-block WRs had been posted and completed. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn start_at(&mut self, index: u32) {
        self.side.poster.start_at(&self.held, index);
    }

    /// Blocks and WRs published so far. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn published(&self) -> (u32, u32) {
        self.side.poster.published()
    }
}

impl SendQueue {
    /// A batch of one without its latch: an error ends it where it is found.
    ///
    /// # Safety
    /// As [`SendBatch::push`].
    #[inline(always)]
    unsafe fn post_one<A, O, P>(&mut self, wr: Wr, to: &A, op: &O, data: &P) -> Result<(), PostError>
    where
        A: Address<Ah>,
        O: Operation<Remote = Remote>,
        P: Payload<Sge>,
    {
        let (held, side) = self.split();
        let mut cursor = side.poster.begin();
        let Side { encoder, poster, .. } = &mut *side;
        // SAFETY: the caller's promise.
        unsafe { encoder.push(&encoder.hot, poster, held, &mut cursor, wr, to, op, data) }?;
        side.poster.complete(held, &cursor)
    }

    /// The same, for a post whose short way was not taken.
    ///
    /// # Safety
    /// As [`SendBatch::push`].
    #[inline(never)]
    unsafe fn post_rare<A, O>(&mut self, wr: Wr, to: &A, op: &O, sges: &[Sge]) -> Result<(), PostError>
    where
        A: Address<Ah>,
        O: Operation<Remote = Remote>,
    {
        // SAFETY: the caller's promise.
        unsafe { self.post_one(wr, to, op, &sges) }
    }
}

impl SendQueueTrait for SendQueue {
    type Sge = Sge;
    type Remote = Remote;
    type Ah = Ah;
    type Batch<'q> = Batch<'q>;

    #[inline(always)]
    fn batch(&mut self) -> Batch<'_> {
        let (held, side) = self.split();
        let cursor = side.poster.begin();
        let hot = side.encoder.hot;
        Batch { held, side, hot, cursor }
    }

    #[inline(always)]
    unsafe fn post<A, O, P>(&mut self, wr: Wr, to: A, op: O, data: P) -> Result<(), PostError>
    where
        A: Address<Ah>,
        O: Operation<Remote = Remote>,
        P: Payload<Sge>,
    {
        // What is most often posted alone is kept in registers on its way to ring and doorbell.
        if !P::INLINE
            && let Self { held, side: Side { encoder, poster, .. } } = &mut *self
            && let Some((ds, words)) = encoder.block(wr, &to, &op, data.sges())
            && poster.post_block(held, wr.wr_id, ds, words)
        {
            return Ok(());
        }
        if P::INLINE || to.datagram().is_some() || to.remote_srqn().is_some() || to.dc_target().is_some() {
            // SAFETY: the caller's promise.
            return unsafe { self.post_one(wr, &to, &op, &data) };
        }
        // All that is lent out is a copy; see `Cursor::lend`.
        let (to, op) = (to, op);
        match data.sges() {
            [one] => {
                let one = [*one];
                // SAFETY: the caller's promise.
                unsafe { self.post_rare(wr, &to, &op, &one) }
            }
            // SAFETY: the caller's promise.
            many => unsafe { self.post_rare(wr, &to, &op, many) },
        }
    }

    #[inline]
    unsafe fn post_send(&mut self, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
        // SAFETY: the caller's promise is the one that `list::post_send` asks for.
        unsafe { list::post_send(self, list) }
    }

    fn errno(error: PostError) -> Errno {
        match error {
            PostError::TooManySge | PostError::InlineTooLong => Errno::ENOMEM,
            _ => error.errno(),
        }
    }
}

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("qp_num", &format_args!("{:#x}", self.held.qp.qp_num))
            .field("state", &self.held.qp.state())
            .field("ring", &self.held.sq().ring)
            .field("published", &self.side.poster.published())
            .field("bell", self.side.poster.bell())
            .field("session", &self.side.session)
            .finish_non_exhaustive()
    }
}

/// Send WRs on their way.
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q> {
    held: &'q SendQueueRef,
    side: &'q mut Side,
    hot: Hot,
    cursor: Cursor,
}

impl SendBatch for Batch<'_> {
    type Sge = Sge;
    type Remote = Remote;
    type Ah = Ah;

    #[inline(always)]
    unsafe fn push<A, O, P>(&mut self, wr: Wr, to: A, op: O, data: P)
    where
        A: Address<Ah>,
        O: Operation<Remote = Remote>,
        P: Payload<Sge>,
    {
        let Side { poster, encoder, .. } = &mut *self.side;
        // SAFETY: the caller's promise.
        let result =
            unsafe { encoder.push(&self.hot, poster, self.held, &mut self.cursor, wr, &to, &op, &data) };
        if let Err(error) = result {
            cold_path();
            self.cursor.lend(|cursor| poster.latch(cursor, error));
        }
    }

    #[inline(always)]
    fn complete(self) -> Result<(), PostError> {
        self.side.poster.complete(self.held, &self.cursor)
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}
