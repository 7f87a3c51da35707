// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists: `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv`.
//!
//! Each function follows its list to the first WR that can't be posted, and publishes those before it with one
//! doorbell.
#![expect(unsafe_code)]
// UNSAFETY: lists, entries and handles are C pointers; the contracts of the functions require that they are valid.

use crate::doorbell::{FlushBell, SendBell};
use crate::producer::Cursor;
use crate::recv::RecvQueue;
use crate::send::SendQueue;
use crate::wqe::Ah;
use uverbs_core::attr::QpType;
use uverbs_core::provider::list::{entries, num_sge, outcome, push_nodes};
use uverbs_core::provider::opcodes::takes_inline;
use uverbs_core::provider::raw::{InlineSges, Room, resolve_bind};
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{
    Address, BadWr, Connected, NoData, Operation, PostError, To, Wr, WrBuilder as _, op,
};
use uverbs_core::wr::{ImmData, RawAh, RecvWr, SendFlags, SendWr, WrOpcode};

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
            unsafe { push_message(queue, cursor, wr, op::Send::new()) }
        }
        WrOpcode::SEND_WITH_IMM => {
            let imm = ImmData::from_be(wr.imm_data_or_invalidate_rkey);
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_message(queue, cursor, wr, op::SendImm::new(imm)) }
        }
        WrOpcode::SEND_WITH_INV => {
            let op = op::SendInv::new(wr.imm_data_or_invalidate_rkey);
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_data(queue, cursor, wr, Connected, op) }
        }
        WrOpcode::RDMA_WRITE => {
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_data(queue, cursor, wr, Connected, op::Write::new(rdma(wr))) }
        }
        WrOpcode::RDMA_WRITE_WITH_IMM => {
            let imm = ImmData::from_be(wr.imm_data_or_invalidate_rkey);
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_data(queue, cursor, wr, Connected, op::WriteImm::new(rdma(wr), imm)) }
        }
        WrOpcode::RDMA_READ => {
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_data(queue, cursor, wr, Connected, op::Read::new(rdma(wr))) }
        }
        WrOpcode::ATOMIC_CMP_AND_SWP => {
            // SAFETY: a field of plain integers, for which all bytes are valid.
            let atomic = unsafe { wr.wr.atomic };
            let at = RemoteAddr { addr: atomic.remote_addr, rkey: atomic.rkey };
            let op = op::CmpSwp::new(at, atomic.compare_add, atomic.swap);
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_data(queue, cursor, wr, Connected, op) }
        }
        WrOpcode::ATOMIC_FETCH_AND_ADD => {
            // SAFETY: a field of plain integers, for which all bytes are valid.
            let atomic = unsafe { wr.wr.atomic };
            let at = RemoteAddr { addr: atomic.remote_addr, rkey: atomic.rkey };
            let op = op::FetchAdd::new(at, atomic.compare_add);
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_data(queue, cursor, wr, Connected, op) }
        }
        WrOpcode::LOCAL_INV => {
            // An invalidation ignores its entries; only their number is compared with the limit, as for any WR.
            num_sge(wr.num_sge, queue.limits.max_sge)?;
            let op = op::LocalInv::new(wr.imm_data_or_invalidate_rkey);
            queue.push(cursor, fields(wr), &Connected, &op, &NoData)
        }
        WrOpcode::BIND_MW => {
            // SAFETY: `wr` is a valid WR of a list (the contract of this function).
            unsafe { push_bind(queue, cursor, wr) }
        }
        // `struct ibv_send_wr` has no fields for flush and atomic write; only builders have them.
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

/// A send, to the peer or to the address in the WR.
///
/// # Safety
/// As [`push_send`].
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn push_message<B: SendBell, O: Operation<Remote = RemoteAddr>>(
    queue: &mut SendQueue<B>,
    cursor: &mut Cursor,
    wr: &SendWr,
    op: O,
) -> Result<(), PostError> {
    if queue.qp_type != QpType::Ud {
        // SAFETY: `wr` is a valid WR of a list (the contract of this function).
        return unsafe { push_data(queue, cursor, wr, Connected, op) };
    }
    // SAFETY: the WR of a UD QP has this field of the union (the contract of this function).
    let ud = unsafe { wr.wr.ud };
    // SAFETY: `ah` is NULL or an address handle of this driver (the contract of this function).
    let Some(ah) = (unsafe { ud.ah.cast::<RawAh<Ah>>().as_ref() }) else {
        return Err(PostError::InvalidArgument);
    };
    let to = To { ah: &ah.driver, remote_qpn: ud.remote_qpn, remote_qkey: ud.remote_qkey };
    // SAFETY: `wr` is a valid WR of a list (the contract of this function).
    unsafe { push_data(queue, cursor, wr, to, op) }
}

/// A WR with data, inline or not.
///
/// # Safety
/// As [`push_send`].
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn push_data<B: SendBell, A: Address<Ah>, O: Operation<Remote = RemoteAddr>>(
    queue: &mut SendQueue<B>,
    cursor: &mut Cursor,
    wr: &SendWr,
    to: A,
    op: O,
) -> Result<(), PostError> {
    let mut room = Room::new();
    // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of this function).
    let sges = unsafe { entries(wr.sg_list, wr.num_sge, queue.limits.max_sge, &mut room) }?;
    let fields = fields(wr);
    if !fields.flags.contains(SendFlags::INLINE) {
        return queue.push(cursor, fields, &to, &op, &sges);
    }
    if !takes_inline(O::OPCODE) {
        // An illegal opcode takes precedence over an illegal flag.
        return Err(if queue.has(O::OPCODE) { PostError::IllegalFlag } else { PostError::IllegalOpcode });
    }
    // SAFETY: with `INLINE` the memory of every entry is readable (the contract of this function).
    let data = unsafe { InlineSges::new(sges) };
    queue.push(cursor, fields, &to, &op, &data)
}

/// A window bind.
///
/// # Safety
/// As [`push_send`].
#[inline(never)]
unsafe fn push_bind<B: SendBell>(
    queue: &mut SendQueue<B>,
    cursor: &mut Cursor,
    wr: &SendWr,
) -> Result<(), PostError> {
    if !queue.has(WrOpcode::BIND_MW) {
        return Err(PostError::IllegalOpcode);
    }
    if num_sge(wr.num_sge, queue.limits.max_sge)? != 0 {
        return Err(PostError::InvalidArgument);
    }
    // SAFETY: a WR with this opcode has this field of the union (the contract of this function).
    let bind = unsafe { wr.tail.bind_mw };
    // SAFETY: the window and the region are NULL or valid (the contract of this function).
    let bind = unsafe { resolve_bind(bind.mw, bind.rkey, &bind.bind_info) }?;
    // SAFETY: the bind fulfils the contract of `BindMw::new` (the contract of this function).
    let bind = unsafe { op::BindMw::new(bind) };
    queue.push(cursor, fields(wr), &Connected, &bind, &NoData)
}

/// Posts a list of receives.
///
/// # Safety
/// As [`uverbs_core::provider::RecvQueue::post_recv`].
pub(crate) unsafe fn post_recv<B: FlushBell>(
    queue: &mut RecvQueue<B>,
    list: *const RecvWr,
) -> Result<(), BadWr<RecvWr>> {
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
