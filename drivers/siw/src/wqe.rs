// SPDX-License-Identifier: MIT OR Apache-2.0
//! The encoder: writes one typed work request to an element of a ring.
//!
//! It accesses only the element that is passed to it, and all faces use it. What the kernel would answer with a fatal error
//! of the QP is refused here: `siw_activate_tx_from_sq()` accepts inline data only of sends and writes, one entry of a
//! read, and no fence of a read.

use crate::queue::{RecvHead, SendHead, Slot};
use uverbs_core::provider::opcodes::{opcode_bit, opcodes, takes_inline};
use uverbs_core::provider::wire::{RemoteAddr, WireRemote, WireSge};
use uverbs_core::provider::{Operation, Payload, PostError};
use uverbs_core::wr::{SendFlags, Sge, WrOpcode};
use uverbs_uapi::siw::{
    SIW_OP_READ, SIW_OP_SEND, SIW_OP_SEND_REMOTE_INV, SIW_OP_WRITE, SIW_WQE_INLINE, SIW_WQE_READ_FENCE,
    SIW_WQE_SIGNALLED, SIW_WQE_SOLICITED, SIW_WQE_VALID, siw_rqe, siw_sge, siw_sqe,
};

/// An element of a send queue.
pub(crate) type SendSlot<'r> = Slot<'r, siw_sqe>;
/// An element of a receive queue.
pub(crate) type RecvSlot<'r> = Slot<'r, siw_rqe>;

/// The longest message, plus one: the kernel counts the bytes of a message in an `int`.
const TOO_LONG: u64 = 1 << 31;

/// The operations of the device.
pub(crate) const OPCODES: u32 =
    opcodes(&[WrOpcode::SEND, WrOpcode::SEND_WITH_INV, WrOpcode::RDMA_WRITE, WrOpcode::RDMA_READ]);

/// The data of an address handle: there is none, because the device has no datagrams.
#[derive(Clone, Copy, Debug)]
pub enum Ah {}

/// The limits of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Scatter/gather entries.
    pub(crate) max_sge: u32,
    /// Bytes of inline data.
    pub(crate) max_inline: u32,
}

/// The flags of a work request in the device's form, without those that its data add.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn check_flags(flags: SendFlags, opcode: WrOpcode) -> Result<u16, PostError> {
    const KNOWN: SendFlags =
        SendFlags::FENCE.union(SendFlags::SIGNALED).union(SendFlags::SOLICITED).union(SendFlags::INLINE);
    if flags.bits() & !KNOWN.bits() != 0 {
        return Err(PostError::IllegalFlag);
    }
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
    Ok(own)
}

/// Whether a work request of this opcode may have inline data.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn check_inline(opcode: WrOpcode) -> Result<(), PostError> {
    match opcode {
        WrOpcode::SEND | WrOpcode::RDMA_WRITE => Ok(()),
        _ if takes_inline(opcode) && OPCODES & opcode_bit(opcode) != 0 => Err(PostError::Unsupported),
        _ => Err(PostError::IllegalFlag),
    }
}

/// The data of a work request: what the head and the flags need of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) num_sge: u8,
    pub(crate) flags: u16,
}

/// Writes the entries. Entries of length 0 are skipped.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_sges<E: crate::queue::Work>(
    slot: &mut Slot<'_, E>,
    max_sge: u32,
    sges: &[Sge],
) -> Result<Data, PostError> {
    if sges.len() > max_sge as usize {
        return Err(PostError::TooManySge);
    }
    let (mut num_sge, mut length) = (0_u8, 0_u64);
    for sge in sges {
        if sge.length() == 0 {
            continue;
        }
        let wire = siw_sge { laddr: sge.addr(), length: sge.length(), lkey: sge.lkey() };
        if !slot.put_sge(usize::from(num_sge), wire) {
            return Err(PostError::TooManySge);
        }
        num_sge += 1;
        length += u64::from(sge.length());
    }
    if length >= TOO_LONG {
        return Err(PostError::InvalidLength);
    }
    Ok(Data { num_sge, flags: 0 })
}

/// Writes the entries of a send.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_send_sges(
    slot: &mut SendSlot<'_>,
    limits: Limits,
    opcode: WrOpcode,
    sges: &[Sge],
) -> Result<Data, PostError> {
    let mut data = put_sges(slot, limits.max_sge, sges)?;
    if matches!(opcode, WrOpcode::RDMA_READ) {
        // The response of an iWARP read goes to one region. The kernel always reads the first entry.
        match data.num_sge {
            0 => {
                let _ = slot.put_sge(0, siw_sge::default());
                data.num_sge = 1;
            }
            1 => {}
            _ => return Err(PostError::TooManySge),
        }
    }
    Ok(data)
}

/// Copies inline data. The length is the number of bytes that the payload provides, not its `inline_len`.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_inline<P: Payload<Sge>>(
    slot: &mut SendSlot<'_>,
    max_inline: u32,
    data: &P,
) -> Result<Data, PostError> {
    let (mut at, mut fits) = (0_usize, true);
    data.for_each_buf(|buf| {
        if fits && buf.len() <= max_inline as usize - at && slot.put_inline(at, buf) {
            at += buf.len();
        } else {
            fits = false;
        }
    });
    if !fits {
        return Err(PostError::InlineTooLong);
    }
    let _ = slot.put_sge(0, siw_sge { laddr: 0, length: at as u32, lkey: 0 });
    Ok(Data { num_sge: 1, flags: SIW_WQE_INLINE })
}

/// Encodes a send work request whose opcode is checked, and returns its flags. After an error the contents of the element
/// are undefined.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn encode_send<O, P>(
    slot: &mut SendSlot<'_>,
    limits: Limits,
    wr_id: u64,
    flags: SendFlags,
    op: &O,
    payload: &P,
) -> Result<u16, PostError>
where
    O: Operation<Remote = RemoteAddr>,
    P: Payload<Sge>,
{
    let flags = check_flags(flags, O::OPCODE)?;
    let data = if !O::HAS_DATA {
        Data::default()
    } else if P::INLINE {
        check_inline(O::OPCODE)?;
        put_inline(slot, limits.max_inline, payload)?
    } else {
        put_send_sges(slot, limits, O::OPCODE, payload.sges())?
    };
    put_send_head(slot, wr_id, op, data);
    Ok(flags | data.flags)
}

/// Writes the fields before the entries.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_send_head<O: Operation<Remote = RemoteAddr>>(
    slot: &mut SendSlot<'_>,
    wr_id: u64,
    op: &O,
    data: Data,
) {
    let remote = op.remote().unwrap_or_default();
    let opcode = match O::OPCODE {
        WrOpcode::RDMA_WRITE => SIW_OP_WRITE,
        WrOpcode::RDMA_READ => SIW_OP_READ,
        WrOpcode::SEND_WITH_INV => SIW_OP_SEND_REMOTE_INV,
        _ => SIW_OP_SEND,
    };
    slot.put_head(SendHead {
        id: wr_id,
        flags: 0,
        num_sge: data.num_sge,
        opcode,
        rkey: op.invalidate_rkey().unwrap_or(remote.rkey()),
        raddr: remote.addr(),
    });
}

/// Encodes a receive. After an error the contents of the element are undefined.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn encode_recv(
    slot: &mut RecvSlot<'_>,
    max_sge: u32,
    wr_id: u64,
    sges: &[Sge],
) -> Result<(), PostError> {
    let data = put_sges(slot, max_sge, sges)?;
    slot.put_head(RecvHead { id: wr_id, num_sge: data.num_sge, ..RecvHead::default() });
    Ok(())
}
