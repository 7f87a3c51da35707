// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue, and its typed face: batches.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The
// encoder does not access that memory, so this module has no unsafe operation.

use crate::builder::Session;
use crate::doorbell::SendBell;
use crate::producer::{Cursor, Producer, Sends};
use crate::queue::Ring;
use crate::shared::QpShared;
use crate::wqe::{self, Ah, Limits, OPCODES};
use core::fmt;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::attr::SendOpsFlags;
use uverbs_core::provider::opcodes::{builder_opcodes, opcode_bit};
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{
    Address, BadWr, Operation, Payload, PostError, SendBatch, SendQueue as SendQueueTrait, Wr,
};
use uverbs_core::wr::{SendFlags, SendWr, Sge};
use uverbs_uapi::siw::{SIW_MAX_INLINE, SIW_MAX_SGE, siw_sqe};

/// The parameters of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendConfig {
    /// Operations of the `wr_*` builders.
    pub send_ops_flags: SendOpsFlags,
    /// Entries of a WR.
    pub max_sge: u32,
    /// Inline bytes of a WR.
    pub max_inline: u32,
    /// Every WR has a completion.
    pub sq_sig_all: bool,
}

/// A send queue, with `B` as its doorbell.
pub struct SendQueue<B> {
    pub(crate) ring: Producer<siw_sqe, Sends>,
    /// The opcodes of the `wr_*` builders, as a set.
    pub(crate) builder_ops: u32,
    pub(crate) limits: Limits,
    pub(crate) session: Session,
    /// Flags of every WR.
    pub(crate) always: SendFlags,
    /// A doorbell found the QP connected.
    is_connected: bool,
    bell: B,
}

/// How often a doorbell is repeated if the kernel is about to change the QP (`siw_post_send()` does not wait for that).
const RETRIES: u32 = 100;

impl<B: SendBell> SendQueue<B> {
    /// A queue on a new ring.
    pub fn new(ring: Ring<siw_sqe>, config: &SendConfig, shared: Arc<QpShared>, bell: B) -> Self {
        let limits = Limits {
            max_sge: config.max_sge.min(SIW_MAX_SGE),
            max_inline: config.max_inline.min(SIW_MAX_INLINE),
        };
        Self {
            ring: Producer::new(ring, shared),
            builder_ops: OPCODES & builder_opcodes(config.send_ops_flags),
            limits,
            session: Session::default(),
            always: if config.sq_sig_all { SendFlags::SIGNALED } else { SendFlags::empty() },
            is_connected: false,
            bell,
        }
    }

    /// The number of WRs that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.ring().slots()
    }

    /// The doorbell.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// Opens a cursor, unless a builder session is open.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&mut self) -> Cursor {
        if self.session.is_open() {
            return Cursor::failed(PostError::SessionOpen);
        }
        self.ring.begin()
    }

    /// Writes one WR at the cursor and moves it on.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn push<A, O, P>(
        &mut self,
        cursor: &mut Cursor,
        wr: Wr,
        to: &A,
        op: &O,
        data: &P,
    ) -> Result<(), PostError>
    where
        A: Address<Ah>,
        O: Operation<Remote = RemoteAddr>,
        P: Payload<Sge>,
    {
        if OPCODES & opcode_bit(O::OPCODE) == 0 {
            return Err(PostError::IllegalOpcode);
        }
        if to.datagram().is_some() || to.remote_srqn().is_some() || to.dc_target().is_some() {
            return Err(PostError::InvalidArgument);
        }
        let (limits, always) = (self.limits, self.always);
        let mut slot = self.ring.slot(cursor)?;
        let flags = wqe::encode_send(&mut slot, limits, wr.wr_id, wr.flags | always, op, data)?;
        self.ring.set_flags(cursor.at, flags);
        cursor.at = cursor.at.wrapping_add(1);
        Ok(())
    }

    /// Publishes a batch and rings.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn finish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        match cursor.error() {
            Some(error) => Err(error),
            None => self.publish(cursor),
        }
    }

    /// Publishes the WRs before the cursor, if there are any, and rings.
    ///
    /// Until the QP is connected, nothing is published. The doorbell of an empty ring returns whether it is connected.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        let Self { ring, bell, is_connected, .. } = self;
        let connected = |shared: &QpShared| {
            if !*is_connected {
                bell.ring().map_err(|errno| match errno {
                    Errno::ENOTCONN => PostError::BadState,
                    errno => PostError::Doorbell(errno),
                })?;
                shared.note_connected();
                *is_connected = true;
            }
            Ok(())
        };
        // From now on the kernel may execute the WRs, even if the system call fails.
        ring.publish(cursor, connected, || ring_bell(bell).map_err(PostError::Doorbell))
    }
}

#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn ring_bell<B: SendBell>(bell: &B) -> Result<(), Errno> {
    match bell.ring() {
        Err(Errno::ENOTCONN) => ring_again(bell),
        result => result,
    }
}

/// The QP is connected, so the kernel is changing it, or has begun to close the connection.
#[cold]
fn ring_again<B: SendBell>(bell: &B) -> Result<(), Errno> {
    let mut tried = 0;
    loop {
        std::thread::yield_now();
        tried += 1;
        match bell.ring() {
            Err(Errno::ENOTCONN) if tried < RETRIES => {}
            result => return result,
        }
    }
}

impl<B: SendBell> SendQueueTrait for SendQueue<B> {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Ah;
    type Batch<'q>
        = Batch<'q, B>
    where
        Self: 'q;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_, B> {
        let cursor = self.begin();
        Batch { queue: self, cursor }
    }

    #[inline]
    unsafe fn post_send(&mut self, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
        // SAFETY: `list` fulfils the contract of `SendQueue::post_send`, which is also that of `list::post_send`.
        unsafe { crate::list::post_send(self, list) }
    }
}

impl<B: fmt::Debug> fmt::Debug for SendQueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("ring", self.ring.ring())
            .field("limits", &self.limits)
            .field("state", &self.ring.shared.state())
            .field("session", &self.session)
            .field("bell", &self.bell)
            .finish_non_exhaustive()
    }
}

/// A batch of sends.
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q, B: SendBell> {
    queue: &'q mut SendQueue<B>,
    cursor: Cursor,
}

impl<B: SendBell> SendBatch for Batch<'_, B> {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Ah;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push<A, O, P>(&mut self, wr: Wr, to: A, op: O, data: P)
    where
        A: Address<Ah>,
        O: Operation<Remote = RemoteAddr>,
        P: Payload<Sge>,
    {
        if let Err(error) = self.queue.push(&mut self.cursor, wr, &to, &op, &data) {
            self.cursor.latch(error);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        self.queue.finish(&self.cursor)
    }
}

impl<B: SendBell> fmt::Debug for Batch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}
