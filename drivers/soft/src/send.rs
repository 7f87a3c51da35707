// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue: batches, and the `wr_*` builders.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's posting traits, whose `unsafe fn` have a contract about the memory that WRs name. The
// encoder does not access that memory, so this module has no unsafe operation.

use crate::doorbell::SendBell;
use crate::format::{Destination, Format, PostRing as _, SendSlot};
use crate::producer::{Producer, Sends};
use crate::shared::QpShared;
use crate::wqe;
use core::fmt;
use std::sync::Arc;
use uverbs_core::attr::QpType;
use uverbs_core::provider::batch::{Batch, BatchQueue, Cursor};
use uverbs_core::provider::builder::{ADDRESS, BuilderQueue, DATA, Session};
use uverbs_core::provider::list::ListRules;
use uverbs_core::provider::opcodes::opcode_bit;
use uverbs_core::provider::{
    BadWr, Data, Dest, Head, Inline, Op, PostError, RemoteAddr, SendQueue as SendQueueTrait, To, Wr,
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
    session: Session,
    /// The opcode and the flags of the WR that a builder began last.
    begun: (WrOpcode, SendFlags),
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
        let begun = (WrOpcode(u32::MAX), SendFlags::empty());
        Ok(Self { ring: Producer::new(ring, shared)?, config, session: Session::default(), begun, bell })
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
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn has(&self, opcode: WrOpcode) -> bool {
        (self.config.connected | self.config.datagram) & opcode_bit(opcode) != 0
    }

    /// The WRs of lists. The devices with datagrams have them on queues of their own.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn list_rules(&self) -> ListRules {
        let SendConfig { connected, datagram, max_sge, .. } = self.config;
        let qp_type = if datagram == 0 { QpType::Rc } else { QpType::Ud };
        ListRules { qp_type, opcodes: connected | datagram, max_sge }
    }

    /// A destination with the queue key of the packet.
    #[cfg_attr(not(debug_assertions), inline(always))]
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
}

/// Writes one WR that is checked to a slot: the only function in which a post becomes a WQE. After an error the contents of the slot are
/// undefined.
#[cfg_attr(not(debug_assertions), inline(always))]
fn encode<F: Format>(
    slot: &mut SendSlot<'_, F>,
    config: &SendConfig,
    head: Head,
    to: Option<Destination<'_, F::Ah>>,
    wr: &Wr<'_, F::Ah>,
) -> Result<(), PostError> {
    let data = match &wr.data {
        _ if !wr.op.has_data() => wqe::NO_DATA,
        Data::Inline(data) => wqe::put_inline(slot, config.max_inline, data)?,
        Data::Sges(sges) => wqe::put_send_sges::<F>(slot, config.max_sge, wr.op.opcode(), sges)?,
    };
    F::put_send(slot, head, to, &wr.op, data)
}

impl<F: Format, B: SendBell> SendQueueTrait for SendQueue<F, B> {
    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = F::Ah;
    type Batch<'q>
        = Batch<'q, Self>
    where
        Self: 'q;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_, Self> {
        Batch::begin(self)
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

impl<F: Format, B: SendBell> BatchQueue for SendQueue<F, B> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin(&mut self) -> Cursor {
        if self.session.is_open() {
            return Cursor::failed(PostError::SessionOpen);
        }
        self.ring.begin()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn push(&mut self, cursor: &mut Cursor, wr: &Wr<'_, F::Ah>) -> Result<(), PostError> {
        let opcode = wr.op.opcode();
        let (allowed, to) = match wr.to {
            Dest::Peer => (self.config.connected, None),
            Dest::Ud(To { ah, remote_qpn, remote_qkey }) => {
                (self.config.datagram, Some(self.destination(ah, remote_qpn, remote_qkey)))
            }
            // The devices have no XRC, no dynamic connections and no raw packets.
            Dest::Xrc(_) | Dest::Dc(_) | Dest::Frame => (0, None),
        };
        if allowed & opcode_bit(opcode) == 0 {
            return Err(self.refuse(opcode));
        }
        if matches!(opcode, WrOpcode::BIND_MW) && !wr.data.sges().is_empty() {
            return Err(PostError::InvalidArgument);
        }
        let head = Head { wr_id: wr.wr_id, flags: wqe::check_flags(wr.flags | self.config.always)? };
        if wr.op.has_data() && matches!(wr.data, Data::Inline(_)) {
            F::check_inline(opcode)?;
        }
        let config = self.config;
        let mut slot = self.ring.slot(cursor)?;
        encode::<F>(&mut slot, &config, head, to, wr)?;
        cursor.advance();
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn publish(&mut self, cursor: &Cursor) -> Result<(), PostError> {
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

/// A builder writes the head of a WQE, which says what the setters need of it.
impl<F: Format, B: SendBell> BuilderQueue for SendQueue<F, B> {
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
        self.ring.room(cursor)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_head(&mut self, at: u32, head: Head, op: &Op<'_>) -> Result<u8, PostError> {
        let opcode = op.opcode();
        if self.config.builder & opcode_bit(opcode) == 0 {
            return Err(PostError::IllegalOpcode);
        }
        let flags = wqe::check_flags(head.flags | self.config.always)?;
        F::put_send(&mut self.ring.slot_at(at), Head { flags, ..head }, None, op, wqe::NO_DATA)?;
        self.begun = (opcode, flags);
        let data = if op.has_data() { DATA } else { 0 };
        Ok(if self.config.datagram == 0 { data } else { data | ADDRESS })
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_destination(&mut self, at: u32, to: &To<'_, F::Ah>) -> Result<(), PostError> {
        let to = self.destination(to.ah, to.remote_qpn, to.remote_qkey);
        F::set_destination(&mut self.ring.slot_at(at), to);
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_sges(&mut self, at: u32, sges: &[Sge]) -> Result<(), PostError> {
        let (opcode, flags) = self.begun;
        let mut slot = self.ring.slot_at(at);
        let data = wqe::put_send_sges::<F>(&mut slot, self.config.max_sge, opcode, sges)?;
        F::set_data(&mut slot, opcode, flags, data);
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_inline(&mut self, at: u32, data: &Inline<'_>) -> Result<(), PostError> {
        let (opcode, flags) = self.begun;
        F::check_inline(opcode)?;
        let mut slot = self.ring.slot_at(at);
        let data = wqe::put_inline(&mut slot, self.config.max_inline, data)?;
        F::set_data(&mut slot, opcode, flags, data);
        Ok(())
    }
}
