// SPDX-License-Identifier: MIT OR Apache-2.0
//! The encoder: writes one typed work request to a slot.
//!
//! It accesses only the slot that is passed to it, and all faces use it. The head of a WQE is always written whole,
//! because the kernel updates the WQE in place: `state`, `status`, `mask`, `has_rd_atomic`, PSNs and the DMA position
//! are its own variables, and it reads several of them before it writes them (`get_wqe()`, `check_init_depth()`,
//! `copy_data()`). Without that it would use the values of an earlier lap.

use crate::queue::WqeSlot;
use core::mem::offset_of;
use uverbs_core::provider::opcodes::{is_atomic, takes_inline};
use uverbs_core::provider::wire::{RemoteAddr, WireRemote, WireSge};
use uverbs_core::provider::{Operation, Payload, PostError};
use uverbs_core::wr::{SendFlags, Sge, WrOpcode};
use uverbs_uapi::be::Be32;
use uverbs_uapi::rxe::{
    rxe_av, rxe_dma_info, rxe_recv_wqe, rxe_send_wqe, rxe_send_wr, rxe_send_wr_atomic, rxe_send_wr_flush,
    rxe_send_wr_mw, rxe_send_wr_rdma, rxe_send_wr_ud, rxe_send_wr_wr, rxe_sge,
};

/// A slot of a send queue.
pub(crate) type SendSlot<'r> = WqeSlot<'r, rxe_send_wqe>;
/// A slot of a receive queue.
pub(crate) type RecvSlot<'r> = WqeSlot<'r, rxe_recv_wqe>;

/// The longest message that a WQE can describe, plus one. The device's own limit (`max_msg_sz`, 8 MiB) is below, and
/// `struct rxe_dma_info` counts in 32 bits.
const TOO_LONG: u64 = 1 << 31;

/// The limits of a WR that the kernel returned at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Scatter/gather entries.
    pub(crate) max_sge: u32,
    /// Bytes of inline data.
    pub(crate) max_inline: u32,
}

/// The data of an address handle that the encoder needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ah {
    /// The kernel's index of the address handle; 0 for kernels without an index (before 5.16), which read `av` from the
    /// WQE.
    pub num: u32,
    /// The address itself.
    pub av: rxe_av,
}

impl Ah {
    /// The part of a WQE with the destination of a datagram.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn destination(&self, remote_qpn: u32, remote_qkey: u32) -> rxe_send_wr_ud {
        rxe_send_wr_ud { remote_qpn, remote_qkey, ah_num: self.num, av: self.av, ..Default::default() }
    }
}

/// Flags that are copied to a WQE (the kernel's `IB_SEND_*` have the same values). `INLINE` is set from the kind of the
/// payload instead.
const PLAIN_FLAGS: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED).union(SendFlags::SOLICITED);

/// The flags of a WR that are copied to the WQE, without those that its data add.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn check_flags(flags: SendFlags) -> Result<u32, PostError> {
    if flags.bits() & !(PLAIN_FLAGS.bits() | SendFlags::INLINE.bits()) != 0 {
        return Err(PostError::IllegalFlag);
    }
    Ok(flags.bits() & PLAIN_FLAGS.bits())
}

/// The flags of a WR with this operation and payload.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn flags_of<O: Operation, P: Payload<Sge>>(flags: SendFlags) -> Result<u32, PostError> {
    let flags = check_flags(flags)?;
    if !O::HAS_DATA || !P::INLINE {
        return Ok(flags);
    }
    if !takes_inline(O::OPCODE) {
        return Err(PostError::IllegalFlag);
    }
    Ok(flags | SendFlags::INLINE.bits())
}

/// The size of the data in a WQE: the number of entries and of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) num_sge: u32,
    pub(crate) length: u32,
}

impl Data {
    /// The DMA state, which the kernel updates while it processes the WQE.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn dma(self) -> rxe_dma_info {
        rxe_dma_info { length: self.length, resid: self.length, num_sge: self.num_sge, ..Default::default() }
    }
}

/// Writes the entries behind the head. Entries of length 0 are skipped.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_sges<H>(slot: &mut WqeSlot<'_, H>, max_sge: u32, sges: &[Sge]) -> Result<Data, PostError> {
    if sges.len() > max_sge as usize {
        return Err(PostError::TooManySge);
    }
    let (mut num_sge, mut length) = (0, 0_u64);
    for sge in sges {
        if sge.length() == 0 {
            continue;
        }
        let wire = rxe_sge { addr: sge.addr(), length: sge.length(), lkey: sge.lkey() };
        if !slot.put_item(num_sge as usize, wire) {
            return Err(PostError::TooManySge);
        }
        num_sge += 1;
        length += u64::from(sge.length());
    }
    if length >= TOO_LONG {
        return Err(PostError::InvalidLength);
    }
    Ok(Data { num_sge, length: length as u32 })
}

/// Copies inline data behind the head. The length is the number of bytes that the payload provides, not its
/// `inline_len`.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_inline<P: Payload<Sge>>(
    slot: &mut SendSlot<'_>,
    max_inline: u32,
    data: &P,
) -> Result<Data, PostError> {
    let (mut at, mut fits) = (0_usize, true);
    data.for_each_buf(|buf| {
        if fits && buf.len() <= max_inline as usize - at && slot.put_tail(at, buf) {
            at += buf.len();
        } else {
            fits = false;
        }
    });
    if !fits {
        return Err(PostError::InlineTooLong);
    }
    Ok(Data { num_sge: 0, length: at as u32 })
}

/// Writes scatter/gather entries of a send.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_send_sges(
    slot: &mut SendSlot<'_>,
    limits: Limits,
    opcode: WrOpcode,
    sges: &[Sge],
) -> Result<Data, PostError> {
    let data = put_sges(slot, limits.max_sge, sges)?;
    // The first entry that is not empty gets the whole response, as on other devices.
    let room = || sges.iter().map(|sge| sge.length).find(|length| *length != 0);
    if is_atomic(opcode) && room().is_none_or(|length| length < 8) {
        return Err(PostError::InvalidLength);
    }
    Ok(data)
}

/// The destination of a datagram: address, QP number, queue key.
pub(crate) type Destination<'a> = Option<(&'a Ah, u32, u32)>;

/// Encodes a send WR whose flags are checked. After an error the contents of the slot are undefined.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn encode_send<O, P>(
    slot: &mut SendSlot<'_>,
    limits: Limits,
    wr_id: u64,
    flags: u32,
    to: Destination<'_>,
    op: &O,
    payload: &P,
) -> Result<(), PostError>
where
    O: Operation<Remote = RemoteAddr>,
    P: Payload<Sge>,
{
    let data = if !O::HAS_DATA {
        Data::default()
    } else if P::INLINE {
        put_inline(slot, limits.max_inline, payload)?
    } else {
        put_send_sges(slot, limits, O::OPCODE, payload.sges())?
    };
    put_send_head(slot, wr_id, flags, to, op, data)
}

/// Writes the head of a send WQE, and an atomic write's data.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_send_head<O: Operation<Remote = RemoteAddr>>(
    slot: &mut SendSlot<'_>,
    wr_id: u64,
    flags: u32,
    to: Destination<'_>,
    op: &O,
    mut data: Data,
) -> Result<(), PostError> {
    let remote = op.remote().unwrap_or_default();
    let (remote_addr, rkey) = (remote.addr(), remote.rkey());
    let mut wr = rxe_send_wr { wr_id, opcode: O::OPCODE.0, send_flags: flags, ..Default::default() };

    if let Some(imm) = op.imm_data() {
        wr.imm_data = Be32::from_bits(imm.to_be());
    } else if let Some(key) = op.invalidate_rkey() {
        wr.set_invalidate_rkey(key);
    }

    if let Some((ah, qpn, qkey)) = to {
        wr.wr = ah.destination(qpn, qkey).into();
    } else if let Some(atomic) = op.atomic() {
        // IBA 9.4.5: an atomic works on 8 aligned bytes.
        if !remote_addr.is_multiple_of(8) {
            return Err(PostError::Misaligned);
        }
        wr.wr = rxe_send_wr_atomic {
            remote_addr,
            compare_add: atomic.compare_add,
            swap: atomic.swap,
            rkey,
            reserved: 0,
        }
        .into();
    } else if let Some(bind) = op.bind_mw() {
        wr.wr = rxe_send_wr_mw {
            addr: bind.addr,
            length: bind.length,
            mr_lkey: bind.mr_lkey,
            mw_rkey: bind.mw_rkey,
            rkey: bind.rkey,
            access: bind.access,
        }
        .into();
    } else if let Some(flush) = op.flush() {
        // The kernel copies the length from the DMA state to the RETH (`init_req_packet()`).
        data.length = flush.length;
        wr.wr = rxe_send_wr_flush {
            remote_addr,
            length: flush.length,
            rkey,
            r#type: flush.placement,
            level: flush.level,
            ..Default::default()
        }
        .into();
    } else if op.remote().is_some() {
        wr.wr = rxe_send_wr_rdma { remote_addr, rkey, reserved: 0 }.into();
    }

    if let Some(bytes) = op.atomic_write() {
        if !remote_addr.is_multiple_of(8) {
            return Err(PostError::Misaligned);
        }
        // At the offset of the entries (`dma.atomic_wr` in the kernel).
        if !slot.put_tail(0, &bytes) {
            return Err(PostError::InvalidLength);
        }
        data.length = bytes.len() as u32;
    }

    slot.put_head(rxe_send_wqe { wr, iova: remote_addr, dma: data.dma(), ..Default::default() });
    Ok(())
}

const SEND_FLAGS: usize = offset_of!(rxe_send_wqe, wr) + offset_of!(rxe_send_wr, send_flags);
const DESTINATION: usize = offset_of!(rxe_send_wqe, wr) + offset_of!(rxe_send_wr, wr);
const SEND_DMA: usize = offset_of!(rxe_send_wqe, dma);

const STATE: usize = offset_of!(rxe_send_wqe, state);

/// Marks a slot as a WQE that was not begun (`wqe_state_posted`).
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn clear_state(slot: &mut SendSlot<'_>) {
    slot.put_field::<STATE, u32>(0);
}

/// Adds data to a WQE whose head is written.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn set_data(slot: &mut SendSlot<'_>, data: Data, flags: u32) {
    slot.put_field::<SEND_FLAGS, u32>(flags);
    slot.put_field::<SEND_DMA, rxe_dma_info>(data.dma());
}

/// Adds the destination to a datagram's WQE whose head is written.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn set_destination(slot: &mut SendSlot<'_>, ah: &Ah, remote_qpn: u32, remote_qkey: u32) {
    slot.put_field::<DESTINATION, rxe_send_wr_wr>(ah.destination(remote_qpn, remote_qkey).into());
}

/// Encodes a receive. After an error the contents of the slot are undefined.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn encode_recv(
    slot: &mut RecvSlot<'_>,
    max_sge: u32,
    wr_id: u64,
    sges: &[Sge],
) -> Result<(), PostError> {
    let data = put_sges(slot, max_sge, sges)?;
    slot.put_head(rxe_recv_wqe { wr_id, dma: data.dma(), ..Default::default() });
    Ok(())
}
