// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists: `ibv_post_send` and `ibv_post_recv`.
//!
//! Each function follows its list to the first request that can't be posted, and publishes those before it. A list of one node with one or
//! two entries is posted without the loop and without room for entries that are not aligned.
#![expect(unsafe_code)]
// UNSAFETY: lists, entries and handles are C pointers; the contracts of the functions require that they are valid.

use crate::recv::RecvQueue;
use crate::send::SendQueue;
use crate::wqe::Ah;
use uverbs_core::provider::list::{entries, lone, push_nodes, push_receives, read_entries};
use uverbs_core::provider::raw::Room;
use uverbs_core::provider::{BadWr, Data, Dest, Op, PostError, To, Wr, WrBuilder as _};
use uverbs_core::wr::{ImmData, RawAh, RecvWr, SendFlags, SendWr, WrOpcode};

/// Posts a list of sends.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`].
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) unsafe fn post_send(queue: &mut SendQueue, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
    // SAFETY: `list` is NULL or points to a valid node (the contract of this function).
    if let Some(node) = unsafe { lone(list) } {
        let posted = match node.num_sge {
            // SAFETY: the node is valid and has one entry (the contract of this function).
            1 => unsafe { single::<1>(queue, node) },
            // SAFETY: as above, with two entries.
            2 => unsafe { pair(queue, node) },
            _ => false,
        };
        if posted {
            return Ok(());
        }
    }
    // SAFETY: `list` fulfils the contract of this function.
    unsafe { post_send_nodes(queue, list) }
}

/// Posts a list of one node with `N` entries. `false` if there is an error, of which [`post_send_nodes`] finds the kind: nothing is posted then.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`], for this node, which has `N` entries.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn single<const N: usize>(queue: &mut SendQueue, node: &SendWr) -> bool {
    // SAFETY: the contract of this function.
    let Ok((op, to)) = (unsafe { head(node) }) else { return false };
    // SAFETY: the contract of this function.
    let entries = unsafe { read_entries::<N>(node.sg_list) };
    let flags = SendFlags::from_bits_retain(node.send_flags);
    // SAFETY: with `INLINE` the memory of the entries is readable (the contract of this function).
    let data = unsafe { Data::from_c(flags, &entries) };
    queue.post_one::<false>(&Wr { wr_id: node.wr_id, flags, to, op, data }).is_ok()
}

/// [`single`] with two entries. A call, for which [`post_send`] needs no registers of its own.
///
/// # Safety
/// As [`single`].
#[inline(never)]
unsafe fn pair(queue: &mut SendQueue, node: &SendWr) -> bool {
    // SAFETY: the contract of this function.
    unsafe { single::<2>(queue, node) }
}

/// [`post_send`] for any list.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`].
#[inline(never)]
unsafe fn post_send_nodes(queue: &mut SendQueue, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
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
        let (op, to) = unsafe { head(node) }?;
        let flags = SendFlags::from_bits_retain(node.send_flags);
        // Inline data have any number of entries, as with libefa.
        let max = if flags.contains(SendFlags::INLINE) { i32::MAX as u32 } else { direct.config().max_sge };
        // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of this function).
        let sges = unsafe { entries(node.sg_list, node.num_sge, max, &mut room) }?;
        // SAFETY: with `INLINE` the memory of every entry is readable (the contract of this function).
        let data = unsafe { Data::from_c(flags, sges) };
        direct.post(&Wr { wr_id: node.wr_id, flags, to, op, data })
    };
    // SAFETY: each node is NULL or valid (the contract of this function).
    unsafe { push_nodes(list, push) }.map_or(Ok(()), Err)
}

/// The operation and the destination of a node, as `Wr::from_c` makes them, of the two operations that lists have: a node names either an
/// address handle or a remote address, so it can't be a read or write. The functions of core cost up to 11 instructions more.
///
/// # Safety
/// As [`uverbs_core::provider::SendQueue::post_send`], for this node.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn head(node: &SendWr) -> Result<(Op<'_>, Dest<'_, Ah>), PostError> {
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
    Ok((op, Dest::Ud(To { ah: &ah.driver, remote_qpn: ud.remote_qpn, remote_qkey: ud.remote_qkey })))
}

/// Posts a list of receives.
///
/// # Safety
/// As [`uverbs_core::provider::RecvQueue::post_recv`].
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) unsafe fn post_recv(queue: &mut RecvQueue, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
    // SAFETY: `list` is NULL or points to a valid node (the contract of this function).
    if let Some(node) = unsafe { lone(list) } {
        let posted = match node.num_sge {
            // SAFETY: the node is valid and has one entry (the contract of this function).
            1 => queue.post_one::<false>(node.wr_id, &unsafe { read_entries::<1>(node.sg_list) }).is_ok(),
            // SAFETY: as above, with two entries.
            2 => queue.post_two(node.wr_id, unsafe { read_entries::<2>(node.sg_list) }),
            _ => false,
        };
        if posted {
            return Ok(());
        }
    }
    // SAFETY: `list` fulfils the contract of this function.
    unsafe { post_recv_nodes(queue, list) }
}

/// [`post_recv`] for any list.
///
/// # Safety
/// As [`uverbs_core::provider::RecvQueue::post_recv`].
#[inline(never)]
unsafe fn post_recv_nodes(queue: &mut RecvQueue, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
    if list.is_null() {
        return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
    }
    let mut direct = queue.direct().map_err(|error| BadWr { error, wr: list })?;
    let max_sge = direct.max_sge();
    // SAFETY: each node is NULL or valid, and so are its entries (the contract of this function).
    unsafe { push_receives(list, max_sge, |wr_id, sges| direct.post(wr_id, sges)) }.map_or(Ok(()), Err)
}
