// SPDX-License-Identifier: MIT OR Apache-2.0
//! The format of siw's elements.
//!
//! What the kernel would answer with a fatal error of the QP is refused here: `siw_activate_tx_from_sq()` accepts inline data only of
//! sends and writes, one entry of a read, and no fence of a read.

use crate::QpShared;
use crate::driver::SiwDevice;
use crate::ring::{CompletionRing, RecvHead, Ring, SendHead, WqeOf};
use crate::shared::{Connection, is_open, note_flush};
use core::mem::offset_of;
use uverbs_core::Errno;
use uverbs_core::attr::SendOpsFlags;
use uverbs_core::provider::opcodes::{builder_opcodes, opcode_bit, opcodes, takes_inline};
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::wire::WireRemote;
use uverbs_core::provider::{Head, Op, PostError};
use uverbs_core::wr::{SendFlags, Sge, WrOpcode};
use uverbs_soft::format::{Data, Destination, WqeSlot as _};
use uverbs_soft::{Format, SendBell};
use uverbs_uapi::siw::{
    SIW_OP_READ, SIW_OP_SEND, SIW_OP_SEND_REMOTE_INV, SIW_OP_WRITE, SIW_WQE_INLINE, SIW_WQE_READ_FENCE,
    SIW_WQE_SIGNALLED, SIW_WQE_SOLICITED, SIW_WQE_VALID, siw_rqe, siw_sqe,
};

/// The operations of the device.
const OPCODES: u32 =
    opcodes(&[WrOpcode::SEND, WrOpcode::SEND_WITH_INV, WrOpcode::RDMA_WRITE, WrOpcode::RDMA_READ]);

/// The data of an address handle: there is none, because the device has no datagrams.
#[derive(Clone, Copy, Debug)]
pub enum Ah {}

/// The parameters of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendConfig {
    /// Operations of the `wr_*` builders.
    pub send_ops_flags: SendOpsFlags,
    /// Entries of a WR.
    pub max_sge: u32,
    /// Inline bytes of a WR.
    pub max_inline: u32,
    /// Every WR has a completion. The kernel leaves this to user space.
    pub sq_sig_all: bool,
}

impl From<&SendConfig> for uverbs_soft::SendConfig {
    fn from(config: &SendConfig) -> Self {
        Self {
            connected: OPCODES,
            datagram: 0,
            builder: OPCODES & builder_opcodes(config.send_ops_flags),
            max_sge: config.max_sge,
            max_inline: config.max_inline,
            always: if config.sq_sig_all { SendFlags::SIGNALED } else { SendFlags::empty() },
        }
    }
}

/// How often a doorbell is repeated if the kernel is about to change the QP (`siw_post_send()` does not wait for that).
const RETRIES: u32 = 100;

/// Rings the doorbell of a QP that is connected.
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

/// The flags of an element.
#[cfg_attr(not(debug_assertions), inline(always))]
fn own_flags(flags: SendFlags, opcode: WrOpcode, data: Data) -> u16 {
    let mut own = SIW_WQE_VALID;
    if flags.contains(SendFlags::SIGNALED) {
        own |= SIW_WQE_SIGNALLED;
    }
    if flags.contains(SendFlags::SOLICITED) {
        own |= SIW_WQE_SOLICITED;
    }
    // Reads are answered in order, and a read reads no local memory, so its fence has no effect.
    if flags.contains(SendFlags::FENCE) && !matches!(opcode, WrOpcode::RDMA_READ) {
        own |= SIW_WQE_READ_FENCE;
    }
    if data.is_inline {
        own |= SIW_WQE_INLINE;
    }
    own
}

/// The number of entries of an element. The first one has the length of inline data.
#[cfg_attr(not(debug_assertions), inline(always))]
fn num_sge<H>(slot: &mut WqeOf<'_, H>, data: Data) -> u8 {
    if !data.is_inline {
        return data.num_sge as u8;
    }
    let _ = slot.put_sge(0, Sge { addr: 0, length: data.length, lkey: 0 });
    1
}

impl Format for SiwDevice {
    type Ah = Ah;
    type SendRing = Ring<siw_sqe>;
    type RecvRing = Ring<siw_rqe>;
    type CqRing = CompletionRing;
    type Qp = Connection;

    /// The kernel counts the bytes of a message in an `int`.
    const TOO_LONG: u64 = 1 << 31;
    const WATCHES_FLUSHES: bool = true;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_send(
        slot: &mut WqeOf<'_, SendHead>,
        head: Head,
        _to: Option<Destination<'_, Ah>>,
        op: &Op<'_>,
        data: Data,
    ) -> Result<(), PostError> {
        let remote = op.remote().unwrap_or_default();
        let opcode = match op.opcode() {
            WrOpcode::RDMA_WRITE => SIW_OP_WRITE,
            WrOpcode::RDMA_READ => SIW_OP_READ,
            WrOpcode::SEND_WITH_INV => SIW_OP_SEND_REMOTE_INV,
            _ => SIW_OP_SEND,
        };
        let num_sge = num_sge(slot, data);
        slot.slot.put_head(SendHead {
            id: head.wr_id,
            flags: 0,
            num_sge,
            opcode,
            rkey: op.invalidate_rkey().unwrap_or(remote.rkey()),
            raddr: remote.addr(),
        });
        *slot.flags = own_flags(head.flags, op.opcode(), data);
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn set_data(slot: &mut WqeOf<'_, SendHead>, opcode: WrOpcode, flags: SendFlags, data: Data) {
        let num_sge = num_sge(slot, data);
        slot.slot.put_field::<{ offset_of!(SendHead, num_sge) }, u8>(num_sge);
        *slot.flags = own_flags(flags, opcode, data);
    }

    fn set_destination(_slot: &mut WqeOf<'_, SendHead>, to: Destination<'_, Ah>) {
        match *to.ah {}
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_recv(slot: &mut WqeOf<'_, RecvHead>, wr_id: u64, data: Data) {
        slot.slot.put_head(RecvHead { id: wr_id, num_sge: data.num_sge as u8, ..RecvHead::default() });
        *slot.flags = SIW_WQE_VALID;
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn may_send(word: StateWord) -> bool {
        is_open(word)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn may_receive(word: StateWord) -> bool {
        is_open(word)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn check_inline(opcode: WrOpcode) -> Result<(), PostError> {
        match opcode {
            WrOpcode::SEND | WrOpcode::RDMA_WRITE => Ok(()),
            _ if takes_inline(opcode) && OPCODES & opcode_bit(opcode) != 0 => Err(PostError::Unsupported),
            _ => Err(PostError::IllegalFlag),
        }
    }

    /// The response of an iWARP read goes to one region. The kernel always reads the first entry.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn adapt_entries(
        slot: &mut WqeOf<'_, SendHead>,
        opcode: WrOpcode,
        data: Data,
    ) -> Result<Data, PostError> {
        if !matches!(opcode, WrOpcode::RDMA_READ) || data.num_sge == 1 {
            return Ok(data);
        }
        if data.num_sge != 0 || !slot.put_sge(0, Sge { addr: 0, length: 0, lkey: 0 }) {
            return Err(PostError::TooManySge);
        }
        Ok(Data { num_sge: 1, ..data })
    }

    /// Until the QP is connected, nothing is published. The doorbell of an empty ring returns whether it is connected.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn before_sends<B: SendBell>(qp: &Connection, bell: &B) -> Result<(), PostError> {
        if qp.was_connected() {
            return Ok(());
        }
        bell.ring().map_err(|errno| match errno {
            Errno::ENOTCONN => PostError::BadState,
            errno => PostError::Doorbell(errno),
        })?;
        qp.note_connected();
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ring<B: SendBell>(bell: &B) -> Result<(), Errno> {
        ring_bell(bell)
    }

    fn note_flush(qp: &QpShared) {
        note_flush(qp);
    }
}
