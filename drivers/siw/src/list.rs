// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists: `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv`.
//!
//! Each function follows its list to the first WR that can't be posted, and publishes those before it with one
//! doorbell.
#![expect(unsafe_code)]
// UNSAFETY: lists, entries and handles are C pointers; the contracts of the functions require that they are valid.

use crate::doorbell::SendBell;
use crate::producer::Cursor;
use crate::recv::RecvQueue;
use crate::send::SendQueue;
use crate::wqe;
use uverbs_core::provider::list::{entries, outcome, push_nodes};
use uverbs_core::provider::raw::{InlineSges, Room};
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{BadWr, Connected, Operation, PostError, Wr, WrBuilder as _, op};
use uverbs_core::wr::{RecvWr, SendFlags, SendWr, WrOpcode};

/// Posts a list of sends.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`].
pub(crate) unsafe fn post_send<B: SendBell>(
    queue: &mut SendQueue<B>,
    list: *const SendWr,
) -> Result<(), BadWr<SendWr>> {
    // Before the check for NULL: the order of docs/src/reference/semantics.md.
    if queue.wr_is_open() {
        return Err(BadWr { error: PostError::SessionOpen, wr: list });
    }
    if list.is_null() {
        return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
    }
    let mut cursor = queue.begin();
    if let Some(error) = cursor.error() {
        return Err(BadWr { error, wr: list });
    }
    // SAFETY: a node of the list, so the structs and entries that it points to are valid (the contract of
    // `SendQueue::post_send`).
    let push = |wr: &SendWr| unsafe { push_send(queue, &mut cursor, wr) };
    // SAFETY: each node is NULL or valid (the contract of `SendQueue::post_send`).
    let bad = unsafe { push_nodes(list, push) };
    outcome(queue.publish(&cursor), list, bad)
}

/// Writes one node.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`], for this node.
#[inline]
unsafe fn push_send<B: SendBell>(
    queue: &mut SendQueue<B>,
    cursor: &mut Cursor,
    wr: &SendWr,
) -> Result<(), PostError> {
    match wr.opcode {
        WrOpcode::SEND => {
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_data(queue, cursor, wr, op::Send::new()) }
        }
        WrOpcode::SEND_WITH_INV => {
            let op = op::SendInv::new(wr.imm_data_or_invalidate_rkey);
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_data(queue, cursor, wr, op) }
        }
        WrOpcode::RDMA_WRITE => {
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_data(queue, cursor, wr, op::Write::new(rdma(wr))) }
        }
        WrOpcode::RDMA_READ => {
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_data(queue, cursor, wr, op::Read::new(rdma(wr))) }
        }
        _ => Err(PostError::IllegalOpcode),
    }
}

/// A WR's id and flags, including `INLINE`.
#[cfg_attr(not(debug_assertions), inline(always))]
fn fields(wr: &SendWr) -> Wr {
    Wr { wr_id: wr.wr_id, flags: SendFlags::from_bits_retain(wr.send_flags) }
}

/// The remote address in the union.
#[cfg_attr(not(debug_assertions), inline(always))]
fn rdma(wr: &SendWr) -> RemoteAddr {
    // SAFETY: a field of plain integers, for which all bytes are valid.
    let rdma = unsafe { wr.wr.rdma };
    RemoteAddr { addr: rdma.remote_addr, rkey: rdma.rkey }
}

/// A WR with data, inline or not.
///
/// # Safety
/// As [`push_send`].
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn push_data<B: SendBell, O: Operation<Remote = RemoteAddr>>(
    queue: &mut SendQueue<B>,
    cursor: &mut Cursor,
    wr: &SendWr,
    op: O,
) -> Result<(), PostError> {
    let mut room = Room::new();
    // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of this function).
    let sges = unsafe { entries(wr.sg_list, wr.num_sge, queue.limits.max_sge, &mut room) }?;
    let fields = fields(wr);
    if !fields.flags.contains(SendFlags::INLINE) {
        return queue.push(cursor, fields, &Connected, &op, &sges);
    }
    wqe::check_inline(O::OPCODE)?;
    // SAFETY: with `INLINE` the memory of every entry is readable (the contract of this function).
    let data = unsafe { InlineSges::new(sges) };
    queue.push(cursor, fields, &Connected, &op, &data)
}

/// Posts a list of receives.
///
/// # Safety
/// As [`uverbs_core::provider::RecvQueue::post_recv`].
pub(crate) unsafe fn post_recv(queue: &mut RecvQueue, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
    if list.is_null() {
        return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
    }
    let mut cursor = queue.begin();
    if let Some(error) = cursor.error() {
        return Err(BadWr { error, wr: list });
    }
    let max_sge = queue.max_sge();
    let push = |wr: &RecvWr| {
        let mut room = Room::new();
        // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of `RecvQueue::post_recv`).
        let sges = unsafe { entries(wr.sg_list, wr.num_sge, max_sge, &mut room) }?;
        queue.push(&mut cursor, wr.wr_id, sges)
    };
    // SAFETY: each node is NULL or valid (the contract of `RecvQueue::post_recv`).
    let bad = unsafe { push_nodes(list, push) };
    outcome(queue.publish(&cursor), list, bad)
}
