// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists: `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv`.
//!
//! Each function follows its list to the first WR that can't be posted, and publishes those before it with one
//! doorbell.
#![expect(unsafe_code)]
// UNSAFETY: lists, entries and handles are C pointers; the contracts of the functions require that they are valid.

use crate::doorbell::{FlushBell, SendBell};
use crate::format::Format;
use crate::recv::RecvQueue;
use crate::send::SendQueue;
use uverbs_core::provider::batch::{BatchQueue as _, Cursor};
use uverbs_core::provider::list::{outcome, push_nodes, push_receives};
use uverbs_core::provider::raw::Room;
use uverbs_core::provider::{BadWr, PostError, Wr, WrBuilder as _};
use uverbs_core::wr::{RecvWr, SendWr, Sge};

/// Posts a list of sends.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`].
pub(crate) unsafe fn post_send<F: Format, B: SendBell>(
    queue: &mut SendQueue<F, B>,
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
    cursor.result().map_err(|error| BadWr { error, wr: list })?;
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
unsafe fn push_send<F: Format, B: SendBell>(
    queue: &mut SendQueue<F, B>,
    cursor: &mut Cursor,
    wr: &SendWr,
) -> Result<(), PostError> {
    let mut room = Room::new();
    // SAFETY: `wr` is a valid WR of a list, for this queue (the contract of this function).
    let wr = unsafe { Wr::from_c(wr, &queue.list_rules(), &mut room) }?;
    queue.push(cursor, &wr)
}

/// Posts a list of receives.
///
/// # Safety
/// As [`uverbs_core::provider::RecvQueue::post_recv`].
pub(crate) unsafe fn post_recv<F: Format, B: FlushBell>(
    queue: &mut RecvQueue<F, B>,
    list: *const RecvWr,
) -> Result<(), BadWr<RecvWr>> {
    if list.is_null() {
        return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
    }
    let mut cursor = queue.begin();
    cursor.result().map_err(|error| BadWr { error, wr: list })?;
    let max_sge = queue.max_sge();
    let push = |wr_id, sges: &[Sge]| queue.push(&mut cursor, wr_id, sges);
    // SAFETY: each node is NULL or valid, and so are its entries (the contract of `RecvQueue::post_recv`).
    let bad = unsafe { push_receives(list, max_sge, push) };
    outcome(queue.publish(&cursor), list, bad)
}
