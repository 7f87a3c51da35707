// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue, and its typed face: batches.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The
// encoder does not access that memory, so this module has no unsafe operation.

use crate::builder::Session;
use crate::doorbell::SendBell;
use crate::format::{Destination, Format, PostRing as _, SendSlot};
use crate::producer::{Cursor, Producer, Sends};
use crate::shared::QpShared;
use crate::wqe;
use core::fmt;
use std::sync::Arc;
use uverbs_core::provider::opcodes::opcode_bit;
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{
    Address, BadWr, Operation, Payload, PostError, SendBatch, SendQueue as SendQueueTrait, Wr,
};
use uverbs_core::wr::{SendFlags, SendWr, Sge, WrOpcode};

/// The parameters of a send queue: what the verbs, the device and the kernel's answer allow. Opcodes are sets
/// ([`opcodes`](uverbs_core::provider::opcodes)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendConfig {
    /// Opcodes to the connected peer.
    pub connected: u32,
    /// Opcodes to an address in the WR.
    pub datagram: u32,
    /// Opcodes of the `wr_*` builders.
    pub builder: u32,
    /// Entries of a WR.
    pub max_sge: u32,
    /// Inline bytes of a WR.
    pub max_inline: u32,
    /// Flags that every WR has. A kernel that ignores `sq_sig_all` needs `SIGNALED`.
    pub always: SendFlags,
}

/// A send queue, with `B` as its doorbell.
pub struct SendQueue<F: Format, B> {
    pub(crate) ring: Producer<F, Sends>,
    pub(crate) config: SendConfig,
    pub(crate) session: Session,
    bell: B,
}

impl<F: Format, B: SendBell> SendQueue<F, B> {
    /// A queue on a ring. Limits for which its slots have no room are lowered.
    ///
    /// # Errors
    /// [`PostError::Corrupt`] if the ring's contents make no sense.
    pub fn new(
        ring: F::SendRing,
        config: impl Into<SendConfig>,
        shared: Arc<QpShared<F>>,
        bell: B,
    ) -> Result<Self, PostError> {
        let mut config = config.into();
        let (entries, bytes) = ring.slot_room();
        config.max_sge = config.max_sge.min(entries);
        config.max_inline = config.max_inline.min(bytes);
        Ok(Self { ring: Producer::new(ring, shared)?, config, session: Session::default(), bell })
    }

    /// The number of WRs that fit, at least the number requested.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.ring().capacity()
    }

    /// The doorbell.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// Whether lists and batches may use this opcode.
    #[inline(always)]
    pub(crate) fn has(&self, opcode: WrOpcode) -> bool {
        (self.config.connected | self.config.datagram) & opcode_bit(opcode) != 0
    }

    /// Opens a cursor, unless a builder session is open.
    #[inline(always)]
    pub(crate) fn begin(&mut self) -> Cursor {
        if self.session.is_open() {
            return Cursor::failed(PostError::SessionOpen);
        }
        self.ring.begin()
    }

    /// Writes one WR at the cursor and moves it on.
    #[inline(always)]
    pub(crate) fn push<A, O, P>(
        &mut self,
        cursor: &mut Cursor,
        wr: Wr,
        to: &A,
        op: &O,
        data: &P,
    ) -> Result<(), PostError>
    where
        A: Address<F::Ah>,
        O: Operation<Remote = RemoteAddr>,
        P: Payload<Sge>,
    {
        let allowed = if to.datagram().is_some() { self.config.datagram } else { self.config.connected };
        // The devices have no XRC, no dynamic connections and no raw packets.
        let is_foreign = to.remote_srqn().is_some() || to.dc_target().is_some() || to.is_frame();
        if allowed & opcode_bit(O::OPCODE) == 0 || is_foreign {
            return Err(self.refuse(O::OPCODE));
        }
        if matches!(O::OPCODE, WrOpcode::BIND_MW) && !data.sges().is_empty() {
            return Err(PostError::InvalidArgument);
        }
        let wr = Wr { flags: wqe::check_flags(wr.flags | self.config.always)?, ..wr };
        if O::HAS_DATA && P::INLINE {
            F::check_inline(O::OPCODE)?;
        }
        let to = to.datagram().map(|(ah, qpn, qkey)| self.destination(ah, qpn, qkey));
        let config = self.config;
        let mut slot = self.ring.slot(cursor)?;
        encode::<F, O, P>(&mut slot, &config, wr, to, op, data)?;
        cursor.advance();
        Ok(())
    }

    /// A destination with the queue key of the packet.
    #[inline(always)]
    pub(crate) fn destination<'a>(&self, ah: &'a F::Ah, qpn: u32, qkey: u32) -> Destination<'a, F::Ah> {
        Destination { ah, qpn, qkey: F::queue_key(self.ring.shared.own(), qkey) }
    }

    /// Why an opcode can't be posted with or without an address.
    #[cold]
    fn refuse(&self, opcode: WrOpcode) -> PostError {
        if self.has(opcode) {
            // The QP has the opcode, but the address is missing or not allowed.
            PostError::InvalidArgument
        } else {
            PostError::IllegalOpcode
        }
    }

    /// Publishes a batch and rings.
    #[inline(always)]
    pub(crate) fn finish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        match cursor.error() {
            Some(error) => Err(error),
            None => self.publish(cursor),
        }
    }

    /// Publishes the WRs before the cursor, if there are any, and rings.
    #[inline(always)]
    pub(crate) fn publish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        let Self { ring, bell, .. } = self;
        let end = cursor.at;
        let prepare = |ring: &mut F::SendRing, shared: &QpShared<F>| {
            F::before_sends(shared.own(), bell)?;
            F::mark_end(ring.slot(end));
            Ok(())
        };
        // From now on the kernel may execute the WRs, even if the system call fails.
        ring.publish(cursor, prepare, |_| F::ring(bell).map_err(PostError::Doorbell))
    }
}

/// Writes one WR that is checked to a slot: the only function in which a post becomes a WQE. After an error the contents of the slot are
/// undefined.
#[inline(always)]
fn encode<F, O, P>(
    slot: &mut SendSlot<'_, F>,
    config: &SendConfig,
    wr: Wr,
    to: Option<Destination<'_, F::Ah>>,
    op: &O,
    data: &P,
) -> Result<(), PostError>
where
    F: Format,
    O: Operation<Remote = RemoteAddr>,
    P: Payload<Sge>,
{
    let data = if !O::HAS_DATA {
        wqe::NO_DATA
    } else if P::INLINE {
        wqe::put_inline(slot, config.max_inline, data)?
    } else {
        wqe::put_send_sges::<F>(slot, config.max_sge, O::OPCODE, data.sges())?
    };
    F::put_send(slot, wr, to, op, data)
}

impl<F: Format, B: SendBell> SendQueueTrait for SendQueue<F, B> {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = F::Ah;
    type Batch<'q>
        = Batch<'q, F, B>
    where
        Self: 'q;

    #[inline(always)]
    fn batch(&mut self) -> Batch<'_, F, B> {
        let cursor = self.begin();
        Batch { queue: self, cursor }
    }

    #[inline]
    unsafe fn post_send(&mut self, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
        // SAFETY: `list` fulfils the contract of `SendQueue::post_send`, which is also that of `list::post_send`.
        unsafe { crate::list::post_send(self, list) }
    }
}

impl<F: Format, B: fmt::Debug> fmt::Debug for SendQueue<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("ring", self.ring.ring())
            .field("config", &self.config)
            .field("state", &self.ring.shared.state())
            .field("session", &self.session)
            .field("bell", &self.bell)
            .finish_non_exhaustive()
    }
}

/// A batch of sends.
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q, F: Format, B: SendBell> {
    queue: &'q mut SendQueue<F, B>,
    cursor: Cursor,
}

impl<F: Format, B: SendBell> SendBatch for Batch<'_, F, B> {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = F::Ah;

    #[inline(always)]
    unsafe fn push<A, O, P>(&mut self, wr: Wr, to: A, op: O, data: P)
    where
        A: Address<F::Ah>,
        O: Operation<Remote = RemoteAddr>,
        P: Payload<Sge>,
    {
        if let Err(error) = self.queue.push(&mut self.cursor, wr, &to, &op, &data) {
            self.cursor.latch(error);
        }
    }

    #[inline(always)]
    fn complete(self) -> Result<(), PostError> {
        self.queue.finish(&self.cursor)
    }
}

impl<F: Format, B: SendBell> fmt::Debug for Batch<'_, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}
