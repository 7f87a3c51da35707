// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists: `ibv_post_send` and `ibv_post_recv`.
//!
//! Each function follows its list to the first request that can't be posted, and publishes those before it.
#![expect(unsafe_code)]
// UNSAFETY: lists, entries and handles are C pointers; the contracts of the functions require that they are valid.

use crate::recv::RecvQueue;
use crate::send::SendQueue;
use crate::wqe::Ah;
use uverbs_core::provider::inline::InlineSges;
use uverbs_core::provider::list::{entries, push_nodes};
use uverbs_core::provider::raw::Room;
use uverbs_core::provider::{BadWr, Data, Dest, Inline, Op, PostError, To, Wr, WrBuilder as _};
use uverbs_core::wr::{ImmData, RawAh, RecvWr, SendFlags, SendWr, WrOpcode};

/// Posts a list of sends.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`].
pub(crate) unsafe fn post_send(queue: &mut SendQueue, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
    // Before the check for NULL: the order of docs/src/reference/semantics.md.
    if queue.wr_is_open() {
        return Err(BadWr { error: PostError::SessionOpen, wr: list });
    }
    if list.is_null() {
        return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
    }
    let mut direct = queue.direct().map_err(|error| BadWr { error, wr: list })?;
    let push = |node: &SendWr| {
        let mut room = Room::new();
        // SAFETY: a node of the list (the contract of this function).
        let wr = unsafe { value(node, direct.config().max_sge, &mut room) }?;
        direct.post(&wr)
    };
    // SAFETY: each node is NULL or valid (the contract of this function).
    unsafe { push_nodes(list, push) }.map_or(Ok(()), Err)
}

/// The value of a node, as `Wr::from_c` makes it, of the two operations that lists have: a node names either an address handle or a remote
/// address, so it can't be a read or write. Inline data have any number of entries, as with libefa.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`], for this node.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn value<'a>(node: &'a SendWr, max_sge: u32, room: &'a mut Room) -> Result<Wr<'a, Ah>, PostError> {
    let op = match node.opcode {
        WrOpcode::SEND => Op::Send,
        WrOpcode::SEND_WITH_IMM => Op::SendImm(ImmData::from_be(node.imm_data_or_invalidate_rkey).get()),
        _ => return Err(PostError::IllegalOpcode),
    };
    // SAFETY: the node of a datagram has this field of the union (the contract of this function).
    let ud = unsafe { node.wr.ud };
    // SAFETY: `ah` is NULL or an address handle of this driver (the contract of this function).
    let Some(ah) = (unsafe { ud.ah.cast::<RawAh<Ah>>().as_ref() }) else {
        return Err(PostError::InvalidArgument);
    };
    let flags = SendFlags::from_bits_retain(node.send_flags);
    let is_inline = flags.contains(SendFlags::INLINE);
    let max_sge = if is_inline { i32::MAX as u32 } else { max_sge };
    // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of this function).
    let sges = unsafe { entries(node.sg_list, node.num_sge, max_sge, room) }?;
    let data = if is_inline {
        // SAFETY: with `INLINE` the memory of every entry is readable (the contract of this function).
        Data::Inline(Inline::Sges(unsafe { InlineSges::new(sges) }))
    } else {
        Data::Sges(sges)
    };
    let to = Dest::Ud(To { ah: &ah.driver, remote_qpn: ud.remote_qpn, remote_qkey: ud.remote_qkey });
    Ok(Wr { wr_id: node.wr_id, flags, to, op, data })
}

/// Posts a list of receives.
///
/// # Safety
/// As [`uverbs_core::provider::RecvQueue::post_recv`].
pub(crate) unsafe fn post_recv(queue: &mut RecvQueue, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
    if list.is_null() {
        return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
    }
    let mut direct = queue.direct().map_err(|error| BadWr { error, wr: list })?;
    let push = |node: &RecvWr| {
        let mut room = Room::new();
        // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of this function).
        let sges = unsafe { entries(node.sg_list, node.num_sge, direct.max_sge(), &mut room) }?;
        direct.post(node.wr_id, sges)
    };
    // SAFETY: each node is NULL or valid (the contract of this function).
    unsafe { push_nodes(list, push) }.map_or(Ok(()), Err)
}
