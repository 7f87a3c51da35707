// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists: `ibv_post_send` and `ibv_post_recv`.
//!
//! Each function follows its list to the first request that can't be posted, and publishes those before it.
#![expect(unsafe_code)]
// UNSAFETY: lists, entries and handles are C pointers; the contracts of the functions require that they are valid.

use crate::recv::RecvQueue;
use crate::send::SendQueue;
use uverbs_core::provider::list::{entries, outcome, push_nodes};
use uverbs_core::provider::raw::Room;
use uverbs_core::provider::{BadWr, PostError, Wr, WrBuilder as _};
use uverbs_core::wr::{RecvWr, SendWr};

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
        let (rules, mut room) = (direct.config().list_rules(node.send_flags), Room::new());
        // SAFETY: a node of the list, so the structs and entries that it points to are valid (the contract of this function).
        let wr = unsafe { Wr::from_c(node, &rules, &mut room) }?;
        direct.post(&wr)
    };
    // SAFETY: each node is NULL or valid (the contract of this function).
    unsafe { push_nodes(list, push) }.map_or(Ok(()), Err)
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
    let push = |node: &RecvWr| {
        let mut room = Room::new();
        // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of this function).
        let sges = unsafe { entries(node.sg_list, node.num_sge, max_sge, &mut room) }?;
        queue.push(&mut cursor, node.wr_id, sges)
    };
    // SAFETY: each node is NULL or valid (the contract of this function).
    let bad = unsafe { push_nodes(list, push) };
    outcome(queue.publish(&cursor), list, bad)
}
