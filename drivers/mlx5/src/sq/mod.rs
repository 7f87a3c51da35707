// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue, and its typed face: batches, and the fused post of one WR.
//!
//! | module | what |
//! |---|---|
//! | `consts` | what is known when the queue is created: which WRs take the short way, constant words |
//! | `encoder` | one WR at the cursor, for all faces |
//! | `producer` | room, fences, publication |
//! | `cursor` | where a batch writes |
//! | `list` | `ibv_post_send` |
//! | `builder` | the `wr_*` builders |
//! | `shared` | what pollers of the completions use |
//!
//! A single post of one entry is [`SendQueue::post`](SendQueueTrait::post) or [`list::post_send`], then
//! [`Encoder::block`](encoder::Encoder::block), [`Producer::post_block`](producer::Producer::post_block),
//! [`Doorbell::post_block`]. Every other post goes by [`put_wqe`](crate::wqe::plain::put_wqe), then
//! [`Producer::complete`](producer::Producer::complete) and [`Doorbell::post`].
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` carry a promise about the memory that WRs name. The
// encoder accesses that memory only for the header of raw packets, which it is promised, too.

pub(crate) mod builder;
pub(crate) mod consts;
pub(crate) mod cursor;
pub(crate) mod encoder;
pub(crate) mod list;
pub(crate) mod producer;
pub mod shared;

pub use shared::{SqShared, umr_op};

use crate::doorbell::Doorbell;
use crate::memory::dbrec::DbWord;
use crate::memory::{SendQueueRef, SqView};
use crate::qp::QpShared;
use crate::sq::builder::Session;
use crate::sq::cursor::Cursor;
use crate::sq::encoder::Encoder;
use crate::sq::producer::Producer;
use crate::wqe::plain::{Data, Description, Destination, WqeOp};
use crate::wqe::{Ah, Remote, SendEntry, Sge};
use core::fmt;
use core::hint::cold_path;
use std::sync::Arc;
use uverbs_core::attr::{QpType, SendOpsFlags};
use uverbs_core::errno::Errno;
use uverbs_core::provider::{
    Address, BadWr, Operation, Payload, PostError, SendBatch, SendQueue as SendQueueTrait, Wr,
};
use uverbs_core::wr::SendWr;

/// What a send queue is made with: what the QP was asked for, and what kernel and device answered.
#[derive(Clone, Copy, Debug)]
pub struct SendConfig {
    /// Transport; `Driver` is a DC initiator.
    pub qp_type: QpType,
    /// Number that WQEs carry.
    pub qp_num: u32,
    /// Whether every WR makes a completion.
    pub sq_sig_all: bool,
    /// Operations of the `wr_*` builders.
    pub send_ops_flags: SendOpsFlags,
    /// WRs that the queue takes.
    pub max_send_wr: u32,
    /// Entries of a WR.
    pub max_send_sge: u32,
    /// Inline bytes of a WR.
    pub max_inline_data: u32,
    /// Whether the device has atomics.
    pub atomics: bool,
    /// The device's longest message.
    pub max_msg_sz: u64,
    /// The device's longest payload of a segmented send.
    pub max_tso: u32,
    /// Longest header of a segmented send.
    pub max_tso_header: u32,
    /// Whether the device wants the Ethernet header of raw packets in the WQE.
    pub l2_inline: bool,
}

/// A send queue.
pub struct SendQueue {
    queue: SendQueueRef,
    producer: Producer,
    encoder: Encoder,
    session: Session,
}

impl SendQueue {
    /// The send queue of the QP behind `qp`, which has one: else `None`.
    #[must_use]
    pub fn new(config: &SendConfig, qp: Arc<QpShared>, record: DbWord, bell: Doorbell) -> Option<Self> {
        let queue = SendQueueRef::new(qp)?;
        let blocks = queue.sq().ring.mask() + 1;
        queue.sq().published_by(record.clone());
        // Never more WRs than blocks, whatever the kernel answered.
        let producer = Producer::new(&queue, config.max_send_wr.min(blocks), record, bell);
        let encoder = Encoder::new(config, blocks);
        Some(Self { queue, producer, encoder, session: Session::new() })
    }

    /// How many WRs it takes.
    #[must_use]
    pub fn max_send_wr(&self) -> u32 {
        self.producer.max_post()
    }

    /// What it shares with the pollers of its completions.
    #[must_use]
    pub fn shared(&self) -> &Arc<QpShared> {
        &self.queue.qp
    }

    /// Sets the indices, as if so many one-block WRs had been posted and completed. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn start_at(&mut self, index: u32) {
        self.producer.start_at(&self.queue, index);
    }

    /// Blocks and WRs published so far. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn published(&self) -> (u32, u32) {
        self.producer.published()
    }

    /// Posts one WR, if it takes the short way and nothing at all is in the way.
    #[inline(always)]
    fn post_short<E: SendEntry, P: Payload<Sge>>(&mut self, wr_id: u64, wr: &Description<'_, E, &P>) -> bool {
        let Self { queue, producer, encoder, .. } = self;
        let mut cursor = producer.begin();
        encoder.put_short(queue.view(), &mut cursor, wr_id, wr) && producer.ring_if_open(queue, &cursor)
    }

    /// A batch of one without its latch, from its beginning, for a post whose short way was not taken.
    ///
    /// # Safety
    /// As [`SendBatch::push`].
    #[inline(never)]
    unsafe fn post_cold<P: Payload<Sge>>(
        &mut self,
        wr_id: u64,
        wr: &Description<'_, Sge, &P>,
    ) -> Result<(), PostError> {
        let Self { queue, producer, encoder, .. } = self;
        let mut cursor = producer.begin();
        // SAFETY: the caller's promise.
        unsafe { encoder.push(producer, queue, queue.view(), &mut cursor, wr_id, wr) }?;
        producer.complete(queue, &cursor)
    }
}

/// A WR of the typed face.
#[inline(always)]
fn describe<'a, A, O, P>(wr: Wr, to: &'a A, op: &'a O, data: &'a P) -> Description<'a, Sge, &'a P>
where
    A: Address<Ah>,
    O: Operation<Remote = Remote>,
    P: Payload<Sge>,
{
    Description { flags: wr.flags, to: Destination::of(to), op: WqeOp::of(op), data: Data::of(data) }
}

impl SendQueueTrait for SendQueue {
    type Sge = Sge;
    type Remote = Remote;
    type Ah = Ah;
    type Batch<'q> = Batch<'q>;

    #[inline(always)]
    fn batch(&mut self) -> Batch<'_> {
        let Self { queue, producer, encoder, .. } = self;
        let cursor = producer.begin();
        Batch { queue, view: queue.view(), producer, encoder, cursor }
    }

    #[inline(always)]
    unsafe fn post<A, O, P>(&mut self, wr: Wr, to: A, op: O, data: P) -> Result<(), PostError>
    where
        A: Address<Ah>,
        O: Operation<Remote = Remote>,
        P: Payload<Sge>,
    {
        let description = describe(wr, &to, &op, &data);
        // What is most often posted alone is kept in registers on its way to ring and doorbell.
        if let Self { queue, producer, encoder, .. } = self
            && let Some((block, ds)) = encoder.block(&description)
            && producer.post_block(queue, wr.wr_id, block, ds, &encoder.fast.ctrl, O::OPCODE)
        {
            return Ok(());
        }
        let has_block = !P::INLINE && data.sges().len() == 1 && description.to.units() <= 1;
        if !has_block && self.post_short(wr.wr_id, &description) {
            return Ok(());
        }
        cold_path();
        // SAFETY: the caller's promise.
        description.lend(|description| unsafe { self.post_cold(wr.wr_id, description) })
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
            .field("qp_num", &format_args!("{:#x}", self.queue.qp.qp_num))
            .field("state", &self.queue.qp.state())
            .field("ring", &self.queue.sq().ring)
            .field("published", &self.producer.published())
            .field("bell", self.producer.bell())
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// Send WRs on their way.
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q> {
    queue: &'q SendQueueRef,
    /// That of `queue`.
    view: SqView<'q>,
    producer: &'q mut Producer,
    encoder: &'q Encoder,
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
        let Self { queue, view, producer, encoder, cursor } = self;
        let description = describe(wr, &to, &op, &data);
        // SAFETY: the caller's promise.
        let result = unsafe { encoder.push(producer, queue, *view, cursor, wr.wr_id, &description) };
        if let Err(error) = result {
            cold_path();
            cursor.lend(|cursor| producer.latch(cursor, error));
        }
    }

    #[inline(always)]
    fn complete(self) -> Result<(), PostError> {
        self.producer.complete(self.queue, &self.cursor)
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}
