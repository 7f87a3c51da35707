// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists of sends: `ibv_post_send`.
//!
//! The list is walked to the first WR that can't be posted, and those before it are published with one doorbell. Nodes of one
//! opcode that take the short way are written by a loop of their own, so that the opcode is known there as it is on the typed
//! face. All other nodes go to [`Encoder::push_cold`].
#![expect(unsafe_code)]
// UNSAFETY: lists, entries and handles are C pointers, valid by the caller's promise.

use crate::memory::SendQueueRef;
use crate::sq::SendQueue;
use crate::sq::consts::{Kind, are_plain};
use crate::sq::cursor::Cursor;
use crate::sq::encoder::Encoder;
use crate::sq::producer::Producer;
use crate::wqe::plain::{Data, Description, Destination, Local, WqeOp, put_wqe};
use crate::wqe::{Ah, DataLimits, Remote, hw_opcode};
use uverbs_core::provider::op::TsoArgs;
use uverbs_core::provider::opcodes::takes_inline;
use uverbs_core::provider::raw::{InlineSges, resolve_bind, slice_from_c};
use uverbs_core::provider::{BadWr, PostError, WireRemote};
use uverbs_core::wr::{ImmData, RawAh, SendFlags, SendWr, Sge as RawSge, WrOpcode};

/// Posts a list of sends.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`].
#[inline]
pub(crate) unsafe fn post_send(queue: &mut SendQueue, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
    // SAFETY: NULL or valid, by the caller's promise.
    let Some(mut wr) = (unsafe { list.as_ref() }) else {
        return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
    };
    let nothing = |error| BadWr { error, wr: list };
    let SendQueue { queue, producer, encoder, .. } = queue;
    // One plain WRITE or SEND is posted from registers, as the typed face does: 131 instructions, and 259 by a run of one.
    if wr.next.is_null() && encoder.kind == Kind::Connected {
        // SAFETY: the node's entries are valid, by the caller's promise.
        let is_posted = match wr.opcode {
            // SAFETY: likewise.
            WrOpcode::RDMA_WRITE => unsafe {
                post_single(encoder, producer, queue, WrOpcode::RDMA_WRITE, wr)
            },
            // SAFETY: likewise.
            WrOpcode::SEND => unsafe { post_single(encoder, producer, queue, WrOpcode::SEND, wr) },
            _ => false,
        };
        if is_posted {
            return Ok(());
        }
    }
    let mut cursor = producer.begin();
    loop {
        if cursor.has_room() && encoder.fast.has_in_lists(wr.opcode) {
            // SAFETY: the nodes and what they point to are valid, by the caller's promise.
            match unsafe { put_run(encoder, queue, &mut cursor, wr) } {
                Some(next) => wr = next,
                None => return producer.publish(queue, &cursor).map_err(nothing),
            }
        }
        // A node that no run can begin with: a rare one, a bad one, or one without room.
        // SAFETY: as above.
        let result = unsafe { push(encoder, producer, queue, &mut cursor, wr) };
        if let Err(error) = result {
            producer.publish(queue, &cursor).map_err(nothing)?;
            return Err(BadWr { error, wr });
        }
        // SAFETY: NULL or valid, by the caller's promise.
        match unsafe { wr.next.as_ref() } {
            Some(next) => wr = next,
            None => return producer.publish(queue, &cursor).map_err(nothing),
        }
    }
}

/// A WR's flags, `INLINE` among them.
#[inline(always)]
fn flags_of(wr: &SendWr) -> SendFlags {
    SendFlags::from_bits_retain(wr.send_flags)
}

/// Writes nodes of the opcode of `wr`, for as long as they follow one another and take the short way; gives the first that
/// is not written.
///
/// # Safety
/// As [`post_send`], from `wr` on.
#[inline(always)]
unsafe fn put_run<'l>(
    encoder: &Encoder,
    queue: &SendQueueRef,
    cursor: &mut Cursor,
    wr: &'l SendWr,
) -> Option<&'l SendWr> {
    /// The function for an opcode and a kind of destination.
    macro_rules! run_of {
        ($to:ident: $($opcode:ident)*) => {
            match wr.opcode {
                // SAFETY: the caller's promise.
                $(WrOpcode::$opcode => unsafe {
                    run::<{ WrOpcode::$opcode.0 }, $to>(encoder, queue, cursor, wr)
                },)*
                _ => Some(wr),
            }
        };
    }
    match encoder.kind {
        // UD has no RDMA.
        Kind::Datagram => run_of!(DATAGRAM: SEND SEND_WITH_IMM),
        Kind::Xrc => run_of!(XRC: RDMA_WRITE SEND RDMA_READ SEND_WITH_IMM RDMA_WRITE_WITH_IMM SEND_WITH_INV
            ATOMIC_CMP_AND_SWP ATOMIC_FETCH_AND_ADD),
        _ => run_of!(CONNECTED: RDMA_WRITE SEND RDMA_READ SEND_WITH_IMM RDMA_WRITE_WITH_IMM SEND_WITH_INV
            ATOMIC_CMP_AND_SWP ATOMIC_FETCH_AND_ADD),
    }
}

const CONNECTED: u8 = 0;
const DATAGRAM: u8 = 1;
const XRC: u8 = 2;

/// Posts a node of one entry to the connected peer from registers, if nothing at all is in the way.
///
/// # Safety
/// As [`post_send`], for this node.
#[inline(always)]
unsafe fn post_single(
    encoder: &Encoder,
    producer: &mut Producer,
    queue: &SendQueueRef,
    opcode: WrOpcode,
    wr: &SendWr,
) -> bool {
    let flags = flags_of(wr);
    if wr.num_sge != 1 || flags.contains(SendFlags::INLINE) {
        return false;
    }
    // SAFETY: NULL or one entry, by the caller's promise.
    let Some(entry) = (unsafe { wr.sg_list.as_ref() }) else { return false };
    let (to, entries) = (Destination::Connection, [*entry]);
    let data = Data::Entries(&entries[..]);
    let wr_of = Description::<_, &InlineSges<'_>> { flags, to, op: operation(opcode, wr), data };
    let Some((block, ds)) = encoder.block(&wr_of) else { return false };
    producer.post_block(queue, wr.wr_id, block, ds, &encoder.fast.ctrl, hw_opcode(opcode))
}

/// [`put_run`] for one opcode and one kind of destination, so that they are known as on the typed face.
///
/// # Safety
/// As [`put_run`].
#[inline(never)]
unsafe fn run<'l, const OPCODE: u32, const TO: u8>(
    encoder: &Encoder,
    queue: &SendQueueRef,
    cursor: &mut Cursor,
    mut wr: &'l SendWr,
) -> Option<&'l SendWr> {
    let (fast, view, opcode) = (&encoder.fast, queue.view(), WrOpcode(OPCODE));
    let kind = match TO {
        DATAGRAM => Kind::Datagram,
        XRC => Kind::Xrc,
        _ => Kind::Connected,
    };
    let mut at = *cursor;
    let next = loop {
        let flags = flags_of(wr);
        if wr.opcode != opcode || !at.has_room() || !are_plain(flags) {
            break Some(wr);
        }
        // SAFETY: the caller's promise.
        let Ok(to) = (unsafe { destination(kind, wr) }) else { break Some(wr) };
        let op = operation(opcode, wr);
        let Ok(num) = usize::try_from(wr.num_sge) else { break Some(wr) };
        if num > fast.limits.max_sge as usize {
            break Some(wr);
        }
        // SAFETY: NULL or valid, by the caller's promise.
        let Some(entries) = (unsafe { slice_from_c(wr.sg_list, num) }) else { break Some(wr) };
        let (wr_id, ctrl, limits) = (wr.wr_id, &fast.ctrl, &fast.limits);
        let is_inline = flags.contains(SendFlags::INLINE);
        let result = if is_inline && !takes_inline(opcode) {
            break Some(wr);
        } else if is_inline && num != 0 {
            // SAFETY: with `INLINE` every entry is readable memory, by the caller's promise.
            let data = unsafe { InlineSges::new(entries) };
            let wr = Description::<RawSge, _> { flags, to, op, data: Data::Inline(&data) };
            put_wqe(view, &mut at, ctrl, limits, wr_id, &wr)
        } else {
            let wr = Description::<_, &InlineSges<'_>> { flags, to, op, data: Data::Entries(entries) };
            put_wqe(view, &mut at, ctrl, limits, wr_id, &wr)
        };
        if result.is_err() {
            break Some(wr);
        }
        // SAFETY: NULL or valid, by the caller's promise.
        match unsafe { wr.next.as_ref() } {
            Some(next) => wr = next,
            None => break None,
        }
    };
    *cursor = at;
    next
}

/// What a node does, of an opcode with data.
#[inline(always)]
fn operation(opcode: WrOpcode, wr: &SendWr) -> WqeOp<'static> {
    let op = WqeOp::new(opcode);
    match opcode {
        WrOpcode::SEND_WITH_IMM => {
            WqeOp { imm: ImmData::from_be(wr.imm_data_or_invalidate_rkey).get(), ..op }
        }
        WrOpcode::SEND_WITH_INV => WqeOp { imm: wr.imm_data_or_invalidate_rkey, ..op },
        WrOpcode::RDMA_WRITE | WrOpcode::RDMA_READ => WqeOp { remote: Some(rdma(wr)), ..op },
        WrOpcode::RDMA_WRITE_WITH_IMM => {
            let imm = ImmData::from_be(wr.imm_data_or_invalidate_rkey).get();
            WqeOp { imm, remote: Some(rdma(wr)), ..op }
        }
        WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => atomic(wr, opcode),
        _ => op,
    }
}

/// Writes any node, or takes nothing.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`], for this node.
#[inline(never)]
unsafe fn push(
    encoder: &Encoder,
    producer: &mut Producer,
    queue: &SendQueueRef,
    cursor: &mut Cursor,
    wr: &SendWr,
) -> Result<(), PostError> {
    producer.ensure_begun(queue, cursor)?;
    let head = cursor.head;
    // SAFETY: the caller's promise.
    let result = unsafe { describe(encoder, wr) }.and_then(|(description, inline)| {
        let description = match &inline {
            Some(data) => Description { data: Data::Inline(data), ..description },
            None => description,
        };
        // SAFETY: the caller's promise.
        unsafe { encoder.push_cold(producer, queue, cursor, wr.wr_id, &description) }
    });
    if result.is_err() {
        // Of one that counts as several, some may be counted.
        cursor.head = head;
    }
    result
}

/// A node, and its data if they are inline.
///
/// # Safety
/// As [`push`].
unsafe fn describe<'a>(
    encoder: &Encoder,
    wr: &'a SendWr,
) -> Result<(Description<'a, RawSge, &'a InlineSges<'a>>, Option<InlineSges<'a>>), PostError> {
    let opcode = wr.opcode;
    if !encoder.has(opcode) {
        return Err(PostError::IllegalOpcode);
    }
    let op = operation(opcode, wr);
    let op = match opcode {
        WrOpcode::LOCAL_INV => WqeOp { local: Some(Local::Invalidate(wr.imm_data_or_invalidate_rkey)), ..op },
        WrOpcode::BIND_MW => {
            num_sge(wr.num_sge, &encoder.fast.limits)?;
            // SAFETY: the arm of this opcode; its pointers are NULL or valid, by the caller's promise.
            let bind = unsafe { wr.tail.bind_mw };
            // SAFETY: as above.
            let bind = unsafe { resolve_bind(bind.mw, bind.rkey, &bind.bind_info) }?;
            WqeOp { local: Some(Local::Bind(bind)), ..op }
        }
        WrOpcode::TSO => {
            // SAFETY: the arm of this opcode.
            let tso = unsafe { wr.tail.tso };
            // SAFETY: NULL, or readable bytes by the caller's promise.
            let header = unsafe { slice_from_c(tso.hdr, tso.hdr_sz.into()) };
            let args = TsoArgs { header: header.ok_or(PostError::InvalidArgument)?, mss: tso.mss };
            WqeOp { tso: Some(args), ..op }
        }
        _ => op,
    };
    let to = match op.local {
        Some(_) => Destination::Connection,
        // SAFETY: the caller's promise.
        None => unsafe { destination(encoder.kind, wr) }?,
    };
    let num = num_sge(wr.num_sge, &encoder.fast.limits)?;
    // An invalidation's entries are nothing to it; only their number is held against the limit, as for any WR.
    let num = if opcode == WrOpcode::LOCAL_INV { 0 } else { num };
    // SAFETY: NULL or valid, by the caller's promise.
    let entries = unsafe { slice_from_c(wr.sg_list, num) }.ok_or(PostError::InvalidArgument)?;
    let flags = flags_of(wr);
    let is_inline = flags.contains(SendFlags::INLINE) && op.local.is_none();
    if is_inline && !takes_inline(opcode) {
        return Err(PostError::IllegalFlag);
    }
    // SAFETY: with `INLINE` every entry is readable memory, by the caller's promise.
    let inline = (is_inline && !entries.is_empty()).then(|| unsafe { InlineSges::new(entries) });
    Ok((Description { flags, to, op, data: Data::Entries(entries) }, inline))
}

/// Where a node goes, by the kind of its queue. A DC initiator's lists have no place for a target, which the encoder
/// refuses.
///
/// # Safety
/// As [`push`].
#[inline(always)]
unsafe fn destination(kind: Kind, wr: &SendWr) -> Result<Destination<'_>, PostError> {
    match kind {
        Kind::Datagram => {
            // SAFETY: a UD QP's WR has this arm, by the caller's promise.
            let ud = unsafe { wr.wr.ud };
            // SAFETY: NULL, or an address handle that this driver made, by the caller's promise.
            let Some(ah) = (unsafe { ud.ah.cast::<RawAh<Ah>>().as_ref() }) else {
                return Err(PostError::InvalidArgument);
            };
            Ok(Destination::Datagram(&ah.driver, ud.remote_qpn, ud.remote_qkey))
        }
        Kind::Xrc => Ok(Destination::Srq(wr.xrc_remote_srqn)),
        _ => Ok(Destination::Connection),
    }
}

/// The RDMA arm.
#[inline(always)]
fn rdma(wr: &SendWr) -> Remote {
    // SAFETY: an arm of plain integers, any of which is valid.
    let rdma = unsafe { wr.wr.rdma };
    Remote::new(rdma.remote_addr, rdma.rkey)
}

/// An atomic's operation.
#[inline(always)]
fn atomic(wr: &SendWr, opcode: WrOpcode) -> WqeOp<'static> {
    // SAFETY: an arm of plain integers; the opcode says that it is this one.
    let args = unsafe { wr.wr.atomic };
    let is_swap = opcode == WrOpcode::ATOMIC_CMP_AND_SWP;
    let operands = if is_swap { [args.swap, args.compare_add] } else { [args.compare_add, 0] };
    let remote = Some(Remote::new(args.remote_addr, args.rkey));
    WqeOp { remote, operands: Some(operands.map(u64::to_be)), ..WqeOp::new(opcode) }
}

/// A number of entries that the queue takes.
#[inline(always)]
fn num_sge(num: i32, limits: &DataLimits) -> Result<usize, PostError> {
    match usize::try_from(num) {
        Ok(n) if n <= limits.max_sge as usize => Ok(n),
        _ => Err(PostError::TooManySge),
    }
}
