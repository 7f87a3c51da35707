// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a driver of such a device provides for its queues: the format of its work requests and completions, the rings that pass them
//! to the other side, and the few points at which the devices differ.
//!
//! Positions count elements without end; a ring masks them. `published` is the position behind the last WR that the kernel may see.

use crate::doorbell::SendBell;
use crate::shared::QpShared;
use core::fmt::Debug;
use uverbs_core::Errno;
use uverbs_core::provider::opcodes::takes_inline;
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{Completion, Head, Op, PollError, PostError};
use uverbs_core::wr::{SendFlags, Sge, WrOpcode};

/// A slot of a work queue, which has room for entries or inline data.
pub trait WqeSlot {
    /// Writes the entry at `index`. If there is no room for it, returns `false` and writes nothing.
    #[must_use]
    fn put_sge(&mut self, index: usize, sge: Sge) -> bool;

    /// Writes `bytes` at `offset` of the inline data. If they do not fit, returns `false` and writes nothing.
    #[must_use]
    fn put_inline(&mut self, offset: usize, bytes: &[u8]) -> bool;
}

/// A ring with a poster: a send queue, a receive queue, a shared receive queue.
///
/// # Bounds
/// A ring keeps its positions inside of its memory for all arguments, and for all values that the kernel writes at any time.
pub trait PostRing: Debug + Send {
    /// An element that is written and not published.
    type Slot<'r>: WqeSlot
    where
        Self: 'r;

    /// The number of WRs that fit.
    fn capacity(&self) -> u32;

    /// The entries and the inline bytes for which a slot has room.
    fn slot_room(&self) -> (u32, u32);

    /// The position to publish from, and the one that must not be written yet: of a new ring, and after a reset of the QP.
    /// `published` is the position before the reset.
    ///
    /// # Errors
    /// [`PostError::Corrupt`] if the ring's contents make no sense.
    fn start(&self, published: u32) -> Result<(u32, u32), PostError>;

    /// The position up to which may be written, which is behind `at`. Called if `at` was the last such position.
    ///
    /// # Errors
    /// [`PostError::QueueFull`]; [`PostError::Corrupt`] if the ring's contents make no sense.
    fn room(&self, published: u32, at: u32) -> Result<u32, PostError>;

    /// The slot at a position.
    fn slot(&mut self, at: u32) -> Self::Slot<'_>;

    /// Makes the WRs from `from` to before `to` visible to the kernel, as a whole or from the first one on.
    fn publish(&mut self, from: u32, to: u32);

    /// The number of published WRs that the kernel has not taken, and a position that changes when it takes one.
    fn untaken(&self, published: u32) -> (u32, u32);
}

/// A copy of a completion.
pub trait CqEntry: Completion + Copy + Debug + Send {
    /// The QP, in the width that the device has. Only a number of 32 bits is one.
    fn qp_id(&self) -> u64;
}

/// A ring of completions.
///
/// As a [`PostRing`], it keeps positions inside of its memory.
pub trait CqRing: Debug + Send {
    /// A completion.
    type Entry: CqEntry;

    /// Whether the slots are returned one by one, as soon as each completion is copied. Else they are returned at the end of a poll.
    ///
    /// A ring whose elements have flags saves nothing if it waits; one with an index, which the kernel reads from the same cache line,
    /// saves a store for each completion.
    const RETURNS_AT_ONCE: bool;

    /// The number of completions that fit.
    fn capacity(&self) -> u32;

    /// The position of the first completion of a new ring.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] if the ring's contents make no sense.
    fn start(&self) -> Result<u32, PollError>;

    /// The position behind the last completion that is written, from `at` on. It may be an earlier one if more than `max` are written.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] if the ring's contents make no sense.
    fn written(&self, at: u32, max: u32) -> Result<u32, PollError>;

    /// Reads a completion that is written.
    fn read(&self, at: u32) -> Self::Entry;

    /// Replaces a completion that is written.
    fn replace(&mut self, at: u32, with: &Self::Entry);

    /// Returns the slots from `from` to before `to` to the kernel.
    fn give_back(&mut self, from: u32, to: u32);

    /// Requests an event by a store to the shared memory, if the device has this. For others it does nothing: their
    /// [`ArmBell`](crate::ArmBell) is a system call.
    fn arm(&mut self, solicited_only: bool) {
        let _ = solicited_only;
    }
}

/// The data of a work request: what its head needs of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// Entries.
    pub num_sge: u32,
    /// Bytes.
    pub length: u32,
    /// The bytes are in the slot.
    pub is_inline: bool,
}

/// The destination of a datagram.
#[derive(Debug)]
pub struct Destination<'a, A> {
    /// The address.
    pub ah: &'a A,
    /// The QP there.
    pub qpn: u32,
    /// The queue key of the packet.
    pub qkey: u32,
}

/// A slot of a send queue.
pub type SendSlot<'r, F> = <<F as Format>::SendRing as PostRing>::Slot<'r>;
/// A slot of a receive queue.
pub type RecvSlot<'r, F> = <<F as Format>::RecvRing as PostRing>::Slot<'r>;

/// The format of a device's queues.
///
/// The functions without a body write and read; none of them checks what [`SendQueue`](crate::SendQueue) has checked. Those with one are
/// the points at which devices differ. A function that is not replaced compiles to nothing.
pub trait Format: Sized + Send + Sync + Debug + 'static {
    /// The data of an address handle that a WQE needs. Uninhabited if the device has no datagrams.
    type Ah: Send + Sync + Debug;
    /// The ring of a send queue.
    type SendRing: PostRing;
    /// The ring of a receive queue, of a QP or shared.
    type RecvRing: PostRing;
    /// The ring of a completion queue.
    type CqRing: CqRing;
    /// What posters, pollers and control calls share of a QP besides its state.
    type Qp: Default + Send + Sync + Debug;

    /// The longest message, plus one.
    const TOO_LONG: u64;

    /// Whether a poll looks for completions that show that the kernel has moved a QP to ERR; see [`note_flush`](Self::note_flush).
    const WATCHES_FLUSHES: bool = false;

    /// Writes the head of a send WQE, and all that is not in the entries or the inline data. `head.flags` are without `INLINE`.
    ///
    /// The builder calls it before the data and the destination are known, with none of both.
    ///
    /// # Errors
    /// An argument of the operation has a value that the device does not have.
    fn put_send(
        slot: &mut SendSlot<'_, Self>,
        head: Head,
        to: Option<Destination<'_, Self::Ah>>,
        op: &Op<'_>,
        data: Data,
    ) -> Result<(), PostError>;

    /// Adds the data to a WQE whose head is written. `flags` are those that it was written with.
    fn set_data(slot: &mut SendSlot<'_, Self>, opcode: WrOpcode, flags: SendFlags, data: Data);

    /// Adds the destination to a datagram's WQE whose head is written.
    fn set_destination(slot: &mut SendSlot<'_, Self>, to: Destination<'_, Self::Ah>);

    /// Writes a receive WQE, whose entries are written.
    fn put_recv(slot: &mut RecvSlot<'_, Self>, wr_id: u64, data: Data);

    /// Whether sends may be posted in this state. The default is that of InfiniBand: in ERR the device flushes them. siw's kernel flushes
    /// only once, and its connection manager moves a QP to RTS without telling user space, so there it depends on other states.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn may_send(word: StateWord) -> bool {
        word.can_send()
    }

    /// As [`may_send`](Self::may_send), of receives.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn may_receive(word: StateWord) -> bool {
        word.can_receive()
    }

    /// Checks that the device has inline data with this opcode. siw lacks some of those that ibv_post_send(3) allows, and its kernel would
    /// end the connection.
    ///
    /// # Errors
    /// [`PostError::IllegalFlag`] if the verbs do not allow it, [`PostError::Unsupported`] if only the device does not.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn check_inline(opcode: WrOpcode) -> Result<(), PostError> {
        if takes_inline(opcode) { Ok(()) } else { Err(PostError::IllegalFlag) }
    }

    /// Adapts the entries of a send, which are written. An iWARP read needs exactly one.
    ///
    /// # Errors
    /// The device has no such entries with this opcode.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn adapt_entries(slot: &mut SendSlot<'_, Self>, opcode: WrOpcode, data: Data) -> Result<Data, PostError> {
        let _ = (slot, opcode);
        Ok(data)
    }

    /// The queue key of a packet, from that of the WR. If its top bit is set, it is the QP's own (IBA 10.2.5): the kernel of rxe leaves this
    /// to user space.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn queue_key(qp: &Self::Qp, qkey: u32) -> u32 {
        let _ = qp;
        qkey
    }

    /// Called before WRs are published, inside the access to the queue; an error prevents the publication. siw's kernel never
    /// completes what is in the ring before the QP is connected, so the first doorbell asks whether it is.
    ///
    /// # Errors
    /// The WRs may not be published now.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn before_sends<B: SendBell>(qp: &Self::Qp, bell: &B) -> Result<(), PostError> {
        let _ = (qp, bell);
        Ok(())
    }

    /// Marks the slot behind the last WR, which this side always has if a ring holds one WR less than it has slots. rxe's kernel looks at
    /// it to find out that the queue is empty.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn mark_end(slot: SendSlot<'_, Self>) {
        let _ = slot;
    }

    /// Rings the doorbell. siw's kernel refuses it while it changes the QP, so there it is repeated.
    ///
    /// # Errors
    /// The errno of the kernel.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ring<B: SendBell>(bell: &B) -> Result<(), Errno> {
        bell.ring()
    }

    /// Whether receives that were published in this state need a [`FlushBell`](crate::FlushBell). rxe's kernel flushes a receive queue once,
    /// when the QP enters ERR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn must_flush(word: StateWord) -> bool {
        let _ = word;
        false
    }

    /// Called with the QP of a polled completion of status `WR_FLUSH_ERR`, if [`WATCHES_FLUSHES`](Self::WATCHES_FLUSHES). siw's kernel enters
    /// ERR by itself, and completes nothing that is posted from then on.
    fn note_flush(qp: &QpShared<Self>) {
        let _ = qp;
    }
}
