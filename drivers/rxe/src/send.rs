// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue, and its typed face: batches.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The
// encoder does not access that memory, so this module has no unsafe operation.

use crate::builder::Session;
use crate::doorbell::SendBell;
use crate::producer::{Cursor, Producer, Sends};
use crate::queue::{Ring, WqeSlot};
use crate::shared::QpShared;
use crate::wqe::{self, Ah, Limits};
use core::fmt;
use std::sync::Arc;
use uverbs_core::attr::{QpType, SendOpsFlags};
use uverbs_core::provider::opcodes::{RC_OPCODES, UC_OPCODES, UD_OPCODES, builder_opcodes, opcode_bit};
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{
    Address, BadWr, Operation, Payload, PostError, SendBatch, SendQueue as SendQueueTrait, Wr,
};
use uverbs_core::wr::{SendWr, Sge, WrOpcode};
use uverbs_uapi::rxe::rxe_send_wqe;

/// The opcodes that a QP may post, as sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ops {
    /// To the connected peer.
    pub(crate) connected: u32,
    /// To an address in the WR.
    pub(crate) datagram: u32,
    /// By the `wr_*` builders.
    pub(crate) builder: u32,
}

/// Operations that only some kernels' rxe has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// RDMA flush, by `device_cap_flags_ex`.
    pub flush: bool,
    /// Whether the kernel has atomic write.
    pub atomic_write: bool,
}

impl Ops {
    /// The table of ibv_post_send(3), without the operations that rxe never has (TSO), and with those that this
    /// kernel's rxe has.
    pub(crate) fn new(qp_type: QpType, ext: Extensions, send_ops: SendOpsFlags) -> Self {
        let (mut connected, mut datagram) = (0, 0);
        match qp_type {
            QpType::Rc => {
                connected = RC_OPCODES;
                if ext.flush {
                    connected |= opcode_bit(WrOpcode::FLUSH);
                }
                if ext.atomic_write {
                    connected |= opcode_bit(WrOpcode::ATOMIC_WRITE);
                }
            }
            QpType::Uc => connected = UC_OPCODES,
            QpType::Ud => datagram = UD_OPCODES,
            _ => {}
        }
        let builder = (connected | datagram) & builder_opcodes(send_ops);
        Self { connected, datagram, builder }
    }
}

/// The parameters of a send queue: those requested for the QP, and the kernel's answer.
#[derive(Clone, Copy, Debug)]
pub struct SendConfig {
    /// Transport.
    pub qp_type: QpType,
    /// Operations of the `wr_*` builders.
    pub send_ops_flags: SendOpsFlags,
    /// Optional operations of the device.
    pub extensions: Extensions,
    /// Entries of a WR.
    pub max_sge: u32,
    /// Inline bytes of a WR.
    pub max_inline: u32,
}

/// A send queue, with `B` as its doorbell.
pub struct SendQueue<B> {
    pub(crate) ring: Producer<rxe_send_wqe, Sends>,
    pub(crate) qp_type: QpType,
    pub(crate) ops: Ops,
    pub(crate) limits: Limits,
    pub(crate) session: Session,
    bell: B,
}

impl<B: SendBell> SendQueue<B> {
    /// A queue on a ring whose elements have room for what `config` allows.
    ///
    /// # Errors
    /// [`PostError::Corrupt`] if the ring's indices make no sense.
    pub fn new(
        ring: Ring<rxe_send_wqe>,
        config: &SendConfig,
        shared: Arc<QpShared>,
        bell: B,
    ) -> Result<Self, PostError> {
        let tail = u32::try_from(ring.tail()).unwrap_or(u32::MAX);
        let limits =
            Limits { max_sge: config.max_sge.min(tail / 16), max_inline: config.max_inline.min(tail) };
        Ok(Self {
            ring: Producer::new(ring, shared)?,
            qp_type: config.qp_type,
            ops: Ops::new(config.qp_type, config.extensions, config.send_ops_flags),
            limits,
            session: Session::default(),
            bell,
        })
    }

    /// The number of WRs that fit: a power of two minus one, at least the number requested.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.ring().capacity()
    }

    /// The doorbell.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// Whether lists and batches may use this opcode.
    pub(crate) fn has(&self, opcode: WrOpcode) -> bool {
        (self.ops.connected | self.ops.datagram) & opcode_bit(opcode) != 0
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
        let allowed = if to.datagram().is_some() { self.ops.datagram } else { self.ops.connected };
        if allowed & opcode_bit(O::OPCODE) == 0 || to.remote_srqn().is_some() {
            return Err(self.refuse(O::OPCODE));
        }
        if matches!(O::OPCODE, WrOpcode::BIND_MW) && !data.sges().is_empty() {
            return Err(PostError::InvalidArgument);
        }
        let flags = wqe::flags_of::<O, P>(wr.flags)?;
        let to = to.datagram().map(|(ah, qpn, qkey)| (ah, qpn, self.resolve_qkey(qkey)));
        let limits = self.limits;
        let (mut slot, next) = self.ring.slot(cursor)?;
        wqe::encode_send(&mut slot, limits, wr.wr_id, flags, to, op, data)?;
        cursor.at = next;
        Ok(())
    }

    /// The queue key of the packet. If its top bit is set, the QP's own key is used (IBA 10.2.5).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn resolve_qkey(&self, qkey: u32) -> u32 {
        if qkey >> 31 != 0 { self.ring.shared.qkey() } else { qkey }
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
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn finish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        match cursor.error() {
            Some(error) => Err(error),
            None => self.publish(cursor),
        }
    }

    /// Publishes the WRs before the cursor, if there are any, and rings.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
        let bell = &self.bell;
        // The slot after the last WR always belongs to the producer. Kernels since 6.4 report an empty send queue as
        // drained (SQD) only if the WQE in the next slot is marked as not begun (`req_check_sq_drain_done()`); after a
        // lap the slot contains an old WQE, which is not.
        let prepare = |mut slot: WqeSlot<'_, rxe_send_wqe>| wqe::clear_state(&mut slot);
        // From now on the kernel may execute the WRs, even if the system call fails.
        self.ring.publish(cursor, prepare, |_| bell.ring().map_err(PostError::Doorbell))
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
