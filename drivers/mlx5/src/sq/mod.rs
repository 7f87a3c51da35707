// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue, and its typed interface: batches, and single posts.
//!
//! | module | what |
//! |---|---|
//! | `consts` | values that are constant per queue: which WRs take the fast path, constant words |
//! | `encoder` | writes one WR at the cursor, for all interfaces |
//! | `producer` | room, fences, publication |
//! | `cursor` | the position of a batch |
//! | `list` | `ibv_post_send` |
//! | `builder` | the `wr_*` builders |
//!
//! A single post of one entry goes through [`SendQueue::post`](SendQueueTrait::post) or [`list::post_send`],
//! [`Encoder::block`](encoder::Encoder::block), [`Producer::post_block`](producer::Producer::post_block) and
//! [`Doorbell::post_block`]. Every other post goes through [`put_wqe`](crate::wqe::plain::put_wqe),
//! [`Producer::complete`](producer::Producer::complete) and [`Doorbell::post`].
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The
// encoder accesses that memory only for the header of raw packets, which the contract includes.

pub(crate) mod builder;
pub(crate) mod consts;
pub(crate) mod cursor;
pub(crate) mod encoder;
pub(crate) mod list;
pub(crate) mod producer;

use crate::doorbell::Doorbell;
use crate::memory::dbrec::DbWord;
use crate::memory::{SendQueueRef, SqView};
use crate::shared::QpShared;
use crate::sq::builder::Session;
use crate::sq::consts::FastPathOps;
use crate::sq::cursor::SqCursor;
use crate::sq::encoder::{Encoder, takes_fast_path};
use crate::sq::producer::Producer;
use crate::wqe::plain::{self, Alignment, Wr, is_local};
use crate::wqe::{Ah, Remote, Sge};
use core::fmt;
use core::hint::cold_path;
use std::sync::Arc;
use uverbs_core::attr::{QpType, SendOpsFlags};
use uverbs_core::errno::Errno;
use uverbs_core::provider::{BadWr, Data, PostError, SendBatch, SendQueue as SendQueueTrait};
use uverbs_core::wr::SendWr;

/// The parameters of a send queue: the attributes that were requested for the QP, and the answers of the kernel and the
/// device.
#[derive(Clone, Copy, Debug)]
pub struct SendConfig {
    /// Transport; `Driver` is a DC initiator.
    pub qp_type: QpType,
    /// The QP number in WQEs.
    pub qp_num: u32,
    /// Whether every WR is signaled.
    pub sq_sig_all: bool,
    /// The operations that have `wr_*` builders.
    pub send_ops_flags: SendOpsFlags,
    /// The maximum number of outstanding WRs.
    pub max_send_wr: u32,
    /// The maximum number of entries of a WR.
    pub max_send_sge: u32,
    /// The maximum number of inline bytes of a WR.
    pub max_inline_data: u32,
    /// Whether the device has atomics.
    pub atomics: bool,
    /// The device's longest message, in bytes.
    pub max_msg_sz: u64,
    /// The device's longest payload of a TSO send.
    pub max_tso: u32,
    /// The longest header of a TSO send.
    pub max_tso_header: u32,
    /// Whether the device needs the Ethernet header of raw packets in the WQE.
    pub l2_inline: bool,
}

/// A send queue. The fields that a post uses are near each other.
// codegen: lines
#[repr(C)]
pub struct SendQueue {
    session: Session,
    producer: Producer,
    encoder: Encoder,
    queue: SendQueueRef,
}

impl SendQueue {
    /// The send queue of `qp`; `None` if it has none.
    #[must_use]
    pub fn new(config: &SendConfig, qp: Arc<QpShared>, record: DbWord, bell: Doorbell) -> Option<Self> {
        let queue = SendQueueRef::new(qp)?;
        let blocks = queue.sq().ring.mask() + 1;
        queue.sq().published_by(record.clone());
        // At most one WR per block, whatever the kernel answered.
        let producer = Producer::new(&queue, config.max_send_wr.min(blocks), record, bell);
        let encoder = Encoder::new(config, blocks);
        Some(Self { session: Session::new(), producer, encoder, queue })
    }

    /// The maximum number of outstanding WRs.
    #[must_use]
    pub fn max_send_wr(&self) -> u32 {
        self.producer.max_post()
    }

    /// The part that it shares with the pollers of its completions.
    #[must_use]
    pub fn shared(&self) -> &Arc<QpShared> {
        &self.queue.qp
    }

    /// Sets the indices as if `index` WRs of one block had been posted and completed. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn start_at(&mut self, index: u32) {
        self.producer.start_at(&self.queue, index);
    }

    /// The blocks and WRs published so far. For tests.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn published(&self) -> (u32, u32) {
        self.producer.published()
    }

    /// Posts one WR with data if it takes the fast path and the queue is open and has room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn post_usual(&mut self, wr: &Wr<'_, Sge>) -> bool {
        // codegen: block
        if let Self { queue, producer, encoder, .. } = self
            && let Some((block, ds)) = encoder.block(wr, Alignment::Checked)
            && producer.post_block(queue, wr.wr_id, block, ds, &encoder.fast.ctrl, wr.op.opcode())
        {
            return true;
        }
        !plain::has_block(wr) && self.post_fast(wr)
    }

    /// Posts a local operation if it takes the fast path and the queue is open and has room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn post_local(&mut self, wr: &Wr<'_, Sge>) -> bool {
        let Self { queue, producer, encoder, .. } = self;
        let (ring, mut cursor) = (queue.view(), producer.begin_any());
        encoder.fast.has_local(wr.op.opcode())
            && encoder.put_local(producer, ring, &mut cursor, wr.head(), &wr.op)
            && producer.ring_fenced(queue, &cursor, false)
    }

    /// Posts one WR if it takes the fast path and the queue is open and has room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn post_fast(&mut self, wr: &Wr<'_, Sge>) -> bool {
        let Self { queue, producer, encoder, .. } = self;
        let (ring, mut cursor) = (queue.view(), producer.begin());
        encoder.put_fast(ring, &mut cursor, wr) && producer.ring_if_open(queue, ring, &cursor)
    }

    /// A batch of one, without latching, for a post that did not take the fast path.
    ///
    /// # Safety
    /// The WR fulfils the contract of [`SendBatch::push`].
    #[inline(never)]
    unsafe fn post_cold(&mut self, wr: &Wr<'_, Sge>) -> Result<(), PostError> {
        let Self { queue, producer, encoder, .. } = self;
        let mut cursor = producer.begin_any();
        // SAFETY: the WR fulfils the contract of `SendBatch::push` (the contract of this function).
        unsafe { encoder.push_cold(producer, queue, &mut cursor, wr, Alignment::Checked) }?;
        producer.complete(queue, queue.view(), &cursor)
    }
}

/// Whether a WR is a local operation without data, as it must be.
#[cfg_attr(not(debug_assertions), inline(always))]
fn is_plain_local(wr: &Wr<'_, Sge>) -> bool {
    is_local(&wr.op) && matches!(wr.data, Data::Sges([]))
}

impl SendQueueTrait for SendQueue {
    type Sge = Sge;
    type Remote = Remote;
    type Ah = Ah;
    type Batch<'q> = Batch<'q>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_> {
        let Self { queue, producer, encoder, .. } = self;
        let cursor = producer.begin_any();
        Batch { queue, view: queue.view(), producer, encoder, ops: encoder.fast.ops, cursor }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr: &Wr<'_, Sge>) -> Result<(), PostError> {
        if is_plain_local(wr) {
            if self.post_local(wr) {
                return Ok(());
            }
        } else if self.post_usual(wr) {
            return Ok(());
        } else {
            cold_path();
            if self.producer.raise(&self.queue) && self.post_usual(wr) {
                return Ok(());
            }
        }
        cold_path();
        // SAFETY: the WR fulfils the contract of `SendQueue::post`, which is that of `SendBatch::push`.
        plain::by_copy(wr, |wr| unsafe { self.post_cold(wr) })
    }

    #[inline]
    unsafe fn post_send(&mut self, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
        // SAFETY: `list` fulfils the contract of `SendQueue::post_send`, which is also that of `list::post_send`.
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

/// A batch of sends.
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q> {
    queue: &'q SendQueueRef,
    /// The view of `queue`'s ring.
    view: SqView<'q>,
    producer: &'q mut Producer,
    encoder: &'q Encoder,
    /// A copy of the field of `encoder`.
    // codegen: reload
    ops: FastPathOps,
    cursor: SqCursor,
}

impl SendBatch for Batch<'_> {
    type Sge = Sge;
    type Remote = Remote;
    type Ah = Ah;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr: &Wr<'_, Sge>) {
        let Self { queue, view, producer, encoder, ops, cursor } = self;
        if is_plain_local(wr)
            && encoder.fast.has_local(wr.op.opcode())
            && encoder.put_local(producer, *view, cursor, wr.head(), &wr.op)
        {
            return;
        }
        if !takes_fast_path(*ops, wr) {
            cold_path();
            // SAFETY: the WR fulfils the contract of `SendBatch::push`, which includes readable headers of raw packets.
            return unsafe { encoder.push_latched(producer, queue, cursor, wr) };
        }
        let result = encoder.push_fast(producer, queue, *view, cursor, wr);
        if let Err(error) = result {
            cold_path();
            cursor.by_copy(|cursor| producer.latch(cursor, error));
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        self.producer.complete(self.queue, self.view, &self.cursor)
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::plain::CtrlConsts;
    use core::mem::offset_of;

    /// A post to one of many queues finds none of these lines in a cache.
    #[test]
    fn the_fields_of_a_post_are_in_few_lines() {
        let (first, end) = (
            offset_of!(SendQueue, producer) + Producer::USED,
            offset_of!(SendQueue, encoder.fast.ctrl) + CtrlConsts::USED,
        );
        assert!(first < end && end - first <= 5 * 64, "{first} to {end}");
        // A list of one node reads the table of functions, too.
        let lists = offset_of!(SendQueue, encoder.lists);
        assert!((first..end).contains(&lists), "{lists}: not in {first} to {end}");
        // The lock is behind the addresses of the ring.
        let lock = size_of::<SendQueue>() - offset_of!(SendQueue, queue);
        assert!(lock <= 64, "{lock}");
    }
}
