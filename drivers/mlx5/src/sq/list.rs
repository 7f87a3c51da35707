// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists of sends: `ibv_post_send`.
//!
//! The list is walked to the first WR that can't be posted, and those before it are published with one doorbell. Three
//! tiers: a single plain WR (one ordinary entry, an RDMA write or send on a connection) is posted from registers; a list of
//! such is a loop here; everything else goes through the encoder that the typed face uses.
#![expect(unsafe_code)]
// UNSAFETY: lists, entries and handles are C pointers, valid by the caller's promise.

use crate::memory::SendQueueRef;
use crate::sq::cursor::Cursor;
use crate::sq::encoder::{Encoder, Kind, MAX_UNITS};
use crate::sq::{SendQueue, Side};
use crate::wqe::{AV_UNITS, Ah, CTRL_UNITS, DataLimits, Remote, Sge, WqeWriter, are_plain, hw_opcode};
use uverbs_core::provider::op::TsoArgs;
use uverbs_core::provider::opcodes::takes_inline;
use uverbs_core::provider::raw::{InlineSges, resolve_bind, slice_from_c};
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{
    Address, BadWr, Connected, NoData, Operation, PostError, RemoteSrq, To, WireRemote, WireSge, Wr, op,
};
use uverbs_core::wr::{ImmData, RawAh, SendFlags, SendWr, Sge as RawSge, WrOpcode};

/// Posts a list of sends.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`].
#[inline]
pub(crate) unsafe fn post_send(queue: &mut SendQueue, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
    // SAFETY: NULL or valid, by the caller's promise.
    if let Some(wr) = unsafe { list.as_ref() }
        && wr.next.is_null()
        // SAFETY: the node's entries are valid, by the caller's promise.
        && let Some(sge) = unsafe { plain(wr) }
    {
        let (held, Side { encoder, poster, .. }) = queue.split();
        let one = encoder.with_one(wr.opcode);
        let second = encoder.plain_ctrl1(fields(wr).flags, 0).unwrap_or_default();
        let [a, b] = words(sge);
        let done = match wr.opcode {
            WrOpcode::RDMA_WRITE if encoder.is_fused(WrOpcode::RDMA_WRITE) => {
                let [c, d] = rdma(wr).words;
                poster.post_block(held, wr.wr_id, 3, |place| [one.at(place), second, c, d, a, b, 0, 0])
            }
            WrOpcode::SEND if encoder.is_fused(WrOpcode::SEND) => {
                poster.post_block(held, wr.wr_id, 2, |place| [one.at(place), second, a, b, 0, 0, 0, 0])
            }
            _ => false,
        };
        if done {
            return Ok(());
        }
    }
    // SAFETY: the caller's promise.
    unsafe { post_list(queue, list) }
}

/// The second and third tier.
///
/// # Safety
/// As [`post_send`].
#[inline(never)]
unsafe fn post_list(queue: &mut SendQueue, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
    // SAFETY: NULL or valid, by the caller's promise.
    let Some(mut wr) = (unsafe { list.as_ref() }) else {
        return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
    };
    let nothing = |error| BadWr { error, wr: list };
    let (held, side) = queue.split();
    let hot = side.encoder.hot;
    let mut cursor = side.poster.begin();
    loop {
        // SAFETY: the node's entries are valid, by the caller's promise.
        let sge = if cursor.has_room() { unsafe { plain(wr) } } else { None };
        let run = match (wr.opcode, sge) {
            (WrOpcode::RDMA_WRITE, Some(sge)) if hot.has_connected(WrOpcode::RDMA_WRITE) => {
                // SAFETY: the nodes are valid, by the caller's promise.
                Some(
                    cursor.lend(|cursor| unsafe {
                        put_run::<RDMA_WRITE>(&side.encoder, held, cursor, wr, sge)
                    }),
                )
            }
            (WrOpcode::SEND, Some(sge)) if hot.has_connected(WrOpcode::SEND) => {
                // SAFETY: as above.
                Some(cursor.lend(|cursor| unsafe { put_run::<SEND>(&side.encoder, held, cursor, wr, sge) }))
            }
            (WrOpcode::RDMA_READ, Some(sge)) if hot.has_connected(WrOpcode::RDMA_READ) => {
                // SAFETY: as above.
                Some(
                    cursor
                        .lend(|cursor| unsafe { put_run::<RDMA_READ>(&side.encoder, held, cursor, wr, sge) }),
                )
            }
            _ => None,
        };
        if let Some(next) = run {
            match next {
                Some(next) => wr = next,
                None => break,
            }
            continue;
        }
        let result = match (wr.opcode, sge) {
            (WrOpcode::SEND, Some(sge)) if hot.has_datagram(WrOpcode::SEND) => {
                // SAFETY: the node is valid, by the caller's promise.
                cursor.lend(|cursor| unsafe { put_datagram(&side.encoder, held, cursor, wr, sge) })
            }
            // SAFETY: the node and what it points to are valid, by the caller's promise.
            _ => cursor.lend(|cursor| unsafe { push(side, held, cursor, wr) }),
        };
        if let Err(error) = result {
            side.poster.publish(held, &cursor).map_err(nothing)?;
            return Err(BadWr { error, wr });
        }
        // SAFETY: NULL or valid, by the caller's promise.
        match unsafe { wr.next.as_ref() } {
            Some(next) => wr = next,
            None => break,
        }
    }
    side.poster.publish(held, &cursor).map_err(nothing)
}

/// The one entry of a node that is as plain as can be, but for its opcode.
///
/// # Safety
/// Its `sg_list` is NULL or has `num_sge` entries.
#[inline(always)]
unsafe fn plain(wr: &SendWr) -> Option<RawSge> {
    let flags = SendFlags::from_bits_retain(wr.send_flags);
    if wr.num_sge != 1 || !are_plain(flags) || flags.contains(SendFlags::INLINE) {
        return None;
    }
    // SAFETY: NULL or one entry, by the caller's promise.
    let sge = *unsafe { wr.sg_list.as_ref() }?;
    // Neither empty nor from 2^31 on.
    (sge.length.wrapping_sub(1) < MAX_SGE_LENGTH - 1).then_some(sge)
}

/// An ordinary entry as the WQE has it.
#[inline(always)]
fn words(sge: RawSge) -> [u64; 2] {
    [(u64::from(sge.length) << 32 | u64::from(sge.lkey)).to_be(), sge.addr.to_be()]
}

const RDMA_WRITE: u32 = WrOpcode::RDMA_WRITE.0;
const SEND: u32 = WrOpcode::SEND.0;
const RDMA_READ: u32 = WrOpcode::RDMA_READ.0;

/// Writes plain nodes of one opcode to the connected peer, for as long as they follow one another and there is room; gives
/// the first that is not written. There is room for `wr`, whose entry is `sge`.
///
/// # Safety
/// As [`post_send`], from `wr` on.
#[inline(never)]
unsafe fn put_run<'l, const OPCODE: u32>(
    encoder: &Encoder,
    held: &SendQueueRef,
    cursor: &mut Cursor,
    mut wr: &'l SendWr,
    mut sge: RawSge,
) -> Option<&'l SendWr> {
    let (view, one) = (held.view(), encoder.with_one(WrOpcode(OPCODE)));
    let mut at = *cursor;
    let next = loop {
        let slot = WqeWriter::new(view, at.at);
        let units = if OPCODE == SEND {
            CTRL_UNITS
        } else {
            slot.put(CTRL_UNITS, rdma(wr).words);
            CTRL_UNITS + 1
        };
        slot.put(units, words(sge));
        slot.put_ctrl1(encoder.plain_ctrl1(fields(wr).flags, 0).unwrap_or_default());
        slot.put_ctrl0(one.at(at.at));
        at.finish(view, wr.wr_id, units + 1, false);
        // SAFETY: NULL or valid, by the caller's promise.
        let Some(next) = (unsafe { wr.next.as_ref() }) else { break None };
        if next.opcode.0 != OPCODE || !at.has_room() {
            break Some(next);
        }
        // SAFETY: the node's entries are valid, by the caller's promise.
        let Some(entry) = (unsafe { plain(next) }) else { break Some(next) };
        (wr, sge) = (next, entry);
    };
    *cursor = at;
    next
}

/// Writes a plain datagram.
///
/// # Safety
/// Its `ah` is NULL or an address handle that this driver made.
#[inline(never)]
unsafe fn put_datagram(
    encoder: &Encoder,
    held: &SendQueueRef,
    cursor: &mut Cursor,
    wr: &SendWr,
    sge: RawSge,
) -> Result<(), PostError> {
    // SAFETY: a UD QP's WR has this arm, by the caller's promise.
    let ud = unsafe { wr.wr.ud };
    // SAFETY: NULL, or an address handle that this driver made, by the caller's promise.
    let Some(ah) = (unsafe { ud.ah.cast::<RawAh<Ah>>().as_ref() }) else {
        return Err(PostError::InvalidArgument);
    };
    const UNITS: u32 = CTRL_UNITS + AV_UNITS + 1;
    let view = held.view();
    let slot = WqeWriter::new(view, cursor.at);
    slot.put_av(ah.driver.to(u64::from(ud.remote_qkey) << 32, ud.remote_qpn));
    slot.put_far(CTRL_UNITS + AV_UNITS, words(sge));
    slot.put_ctrl1(encoder.ctrl1(fields(wr).flags, 0));
    slot.put_ctrl0(encoder.ctrl0(cursor.at, const { hw_opcode(WrOpcode::SEND) }, UNITS));
    cursor.finish(view, wr.wr_id, UNITS, false);
    Ok(())
}

/// Writes any node, or takes nothing.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`], for this node.
#[inline(never)]
unsafe fn push(
    side: &mut Side,
    held: &SendQueueRef,
    cursor: &mut Cursor,
    wr: &SendWr,
) -> Result<(), PostError> {
    side.poster.ensure_begun(held, cursor)?;
    let head = cursor.head;
    // SAFETY: the caller's promise.
    let result = unsafe { push_begun(side, held, cursor, wr) };
    if result.is_err() {
        // Of one that counts as several, some may be counted.
        cursor.head = head;
    }
    result
}

/// The same in a batch that has begun.
///
/// # Safety
/// As [`push`].
unsafe fn push_begun(
    side: &mut Side,
    held: &SendQueueRef,
    cursor: &mut Cursor,
    wr: &SendWr,
) -> Result<(), PostError> {
    if !side.encoder.has(wr.opcode) {
        return Err(PostError::IllegalOpcode);
    }
    let imm = ImmData::from_be(wr.imm_data_or_invalidate_rkey);
    match wr.opcode {
        // SAFETY: the caller's promise.
        WrOpcode::SEND => unsafe { push_to(side, held, cursor, wr, op::Send::new()) },
        // SAFETY: the caller's promise.
        WrOpcode::SEND_WITH_IMM => unsafe { push_to(side, held, cursor, wr, op::SendImm::new(imm)) },
        WrOpcode::SEND_WITH_INV => {
            let op = op::SendInv::new(wr.imm_data_or_invalidate_rkey);
            // SAFETY: the caller's promise.
            unsafe { push_to(side, held, cursor, wr, op) }
        }
        // SAFETY: the caller's promise.
        WrOpcode::RDMA_WRITE => unsafe { push_to(side, held, cursor, wr, op::Write::new(rdma(wr))) },
        WrOpcode::RDMA_WRITE_WITH_IMM => {
            // SAFETY: the caller's promise.
            unsafe { push_to(side, held, cursor, wr, op::WriteImm::new(rdma(wr), imm)) }
        }
        // SAFETY: the caller's promise.
        WrOpcode::RDMA_READ => unsafe { push_to(side, held, cursor, wr, op::Read::new(rdma(wr))) },
        WrOpcode::ATOMIC_CMP_AND_SWP => {
            // SAFETY: an arm of plain integers; the opcode says that it is this one.
            let atomic = unsafe { wr.wr.atomic };
            let at = Remote::new(atomic.remote_addr, atomic.rkey);
            // SAFETY: the caller's promise.
            unsafe { push_to(side, held, cursor, wr, op::CmpSwp::new(at, atomic.compare_add, atomic.swap)) }
        }
        WrOpcode::ATOMIC_FETCH_AND_ADD => {
            // SAFETY: an arm of plain integers; the opcode says that it is this one.
            let atomic = unsafe { wr.wr.atomic };
            let at = Remote::new(atomic.remote_addr, atomic.rkey);
            // SAFETY: the caller's promise.
            unsafe { push_to(side, held, cursor, wr, op::FetchAdd::new(at, atomic.compare_add)) }
        }
        WrOpcode::LOCAL_INV => {
            // Its entries are nothing to it; only their number is held against the limit, as for any WR.
            num_sge(wr.num_sge, side.encoder.limits)?;
            let op = op::LocalInv::<Remote>::new(wr.imm_data_or_invalidate_rkey);
            side.encoder.push_local(&mut side.poster, held, cursor, fields(wr), &op, 0)
        }
        WrOpcode::BIND_MW => {
            let num_sge = num_sge(wr.num_sge, side.encoder.limits)?;
            // SAFETY: the arm of this opcode; its pointers are NULL or valid, by the caller's promise.
            let bind = unsafe { wr.tail.bind_mw };
            // SAFETY: as above.
            let bind = unsafe { resolve_bind(bind.mw, bind.rkey, &bind.bind_info) }?;
            // SAFETY: the caller's promise.
            let op = unsafe { op::BindMw::<Remote>::new(bind) };
            side.encoder.push_local(&mut side.poster, held, cursor, fields(wr), &op, num_sge)
        }
        WrOpcode::TSO => {
            // SAFETY: the arm of this opcode.
            let tso = unsafe { wr.tail.tso };
            // SAFETY: NULL, or readable bytes by the caller's promise.
            let header = unsafe { slice_from_c(tso.hdr, tso.hdr_sz.into()) };
            let args = TsoArgs { header: header.ok_or(PostError::InvalidArgument)?, mss: tso.mss };
            // SAFETY: the caller's promise.
            unsafe { push_to(side, held, cursor, wr, op::Tso::new(args)) }
        }
        _ => Err(PostError::IllegalOpcode),
    }
}

/// A WR's id and flags, `INLINE` among them.
#[inline(always)]
fn fields(wr: &SendWr) -> Wr {
    Wr { wr_id: wr.wr_id, flags: SendFlags::from_bits_retain(wr.send_flags) }
}

/// The RDMA arm.
#[inline(always)]
fn rdma(wr: &SendWr) -> Remote {
    // SAFETY: an arm of plain integers, any of which is valid.
    let rdma = unsafe { wr.wr.rdma };
    Remote::new(rdma.remote_addr, rdma.rkey)
}

/// A number of entries that the queue takes.
#[inline(always)]
fn num_sge(num: i32, limits: DataLimits) -> Result<usize, PostError> {
    match usize::try_from(num) {
        Ok(n) if n <= limits.max_sge as usize => Ok(n),
        _ => Err(PostError::TooManySge),
    }
}

/// A WR with data, to where the QP type has it.
///
/// # Safety
/// As [`push`].
#[inline(always)]
unsafe fn push_to<O: Operation<Remote = Remote>>(
    side: &mut Side,
    held: &SendQueueRef,
    cursor: &mut Cursor,
    wr: &SendWr,
    op: O,
) -> Result<(), PostError> {
    match side.encoder.kind {
        Kind::Datagram => {
            // SAFETY: a UD QP's WR has this arm, by the caller's promise.
            let ud = unsafe { wr.wr.ud };
            // SAFETY: NULL, or an address handle that this driver made, by the caller's promise.
            let Some(ah) = (unsafe { ud.ah.cast::<RawAh<Ah>>().as_ref() }) else {
                return Err(PostError::InvalidArgument);
            };
            let to = To { ah: &ah.driver, remote_qpn: ud.remote_qpn, remote_qkey: ud.remote_qkey };
            // SAFETY: the caller's promise.
            unsafe { push_data(side, held, cursor, wr, to, op) }
        }
        // SAFETY: the caller's promise.
        Kind::Xrc => unsafe { push_data(side, held, cursor, wr, RemoteSrq(wr.xrc_remote_srqn), op) },
        // SAFETY: the caller's promise. A DC initiator's lists have no place for a target, which is found out there.
        _ => unsafe { push_data(side, held, cursor, wr, Connected, op) },
    }
}

/// A WR with data, inline or not.
///
/// # Safety
/// As [`push`].
#[inline(never)]
unsafe fn push_data<A: Address<Ah>, O: Operation<Remote = Remote>>(
    side: &mut Side,
    held: &SendQueueRef,
    cursor: &mut Cursor,
    wr: &SendWr,
    to: A,
    op: O,
) -> Result<(), PostError> {
    let num = num_sge(wr.num_sge, side.encoder.limits)?;
    // SAFETY: NULL or valid, by the caller's promise.
    let sges = unsafe { slice_from_c(wr.sg_list, num) }.ok_or(PostError::InvalidArgument)?;
    let (fields, Side { encoder, poster, .. }) = (fields(wr), side);
    if fields.flags.contains(SendFlags::INLINE) {
        if !takes_inline(O::OPCODE) {
            return Err(PostError::IllegalFlag);
        }
        if !sges.is_empty() {
            // SAFETY: with `INLINE` every entry is readable memory, by the caller's promise.
            let data = unsafe { InlineSges::new(sges) };
            // SAFETY: inline data is not looked at by entries.
            return unsafe { encoder.push(&encoder.hot, poster, held, cursor, fields, &to, &op, &data) };
        }
    }
    match sges.len() {
        // SAFETY: there is no entry.
        0 => unsafe { encoder.push(&encoder.hot, poster, held, cursor, fields, &to, &op, &NoData) },
        1..=4 => {
            let mut wire = [Sge::EMPTY; 4];
            // SAFETY: the caller's promise.
            unsafe {
                encoder.push(
                    &encoder.hot,
                    poster,
                    held,
                    cursor,
                    fields,
                    &to,
                    &op,
                    &in_wire_form(sges, &mut wire)?,
                )
            }
        }
        _ => {
            let mut wire = [Sge::EMPTY; MAX_UNITS as usize];
            // SAFETY: the caller's promise.
            unsafe {
                encoder.push(
                    &encoder.hot,
                    poster,
                    held,
                    cursor,
                    fields,
                    &to,
                    &op,
                    &in_wire_form(sges, &mut wire)?,
                )
            }
        }
    }
}

/// C's entries as the WQE has them.
#[inline(always)]
fn in_wire_form<'a>(sges: &[RawSge], wire: &'a mut [Sge]) -> Result<&'a [Sge], PostError> {
    let wire = wire.get_mut(..sges.len()).ok_or(PostError::TooManySge)?;
    for (to, sge) in wire.iter_mut().zip(sges) {
        *to = Sge::new(sge.addr, sge.length, sge.lkey)?;
    }
    Ok(wire)
}
