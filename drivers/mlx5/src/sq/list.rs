// SPDX-License-Identifier: MIT OR Apache-2.0
//! C lists of sends: `ibv_post_send`.
//!
//! The list is followed up to the first WR that can't be posted, and the WRs before it are published with one doorbell. A
//! node that takes the fast path is written by a function for its opcode and the queue's kind of destination, so both are
//! constants there, as in the typed interface: a list of one node by [`single`], consecutive nodes of one opcode by
//! [`run`]. All other nodes are written by [`Encoder::push_cold`].
#![expect(unsafe_code)]
// UNSAFETY: dereferences the C pointers to lists, entries and handles, which the contract of `post_send` makes valid.

use crate::memory::{SendQueueRef, SqView};
use crate::sq::SendQueue;
use crate::sq::consts::{Kind, are_plain};
use crate::sq::cursor::SqCursor;
use crate::sq::encoder::Encoder;
use crate::sq::producer::Producer;
use crate::wqe::one_entry;
use crate::wqe::plain::{Alignment, Dest, Wr, answer_of, put_wqe};
use uverbs_core::provider::inline::InlineSges;
use uverbs_core::provider::opcodes::takes_inline;
use uverbs_core::provider::raw::{Room, entry_from_c, slice_from_c};
use uverbs_core::provider::{BadWr, Data, Head, Inline, Op, PostError};
use uverbs_core::wr::{SendFlags, SendWr, Sge as RawSge, WrOpcode};

/// Posts a list of sends.
///
/// # Safety
/// `list` fulfils the contract of [`uverbs_core::provider::SendQueue::post_send`].
#[inline]
pub(crate) unsafe fn post_send(queue: &mut SendQueue, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
    // SAFETY: `list` is NULL or points to a valid node (the contract of this function).
    if let Some(wr) = unsafe { list.as_ref() }
        && wr.next.is_null()
        && let Some(functions) = queue.encoder.lists.get(wr.opcode.0 as usize)
    {
        // SAFETY: the list is this node, which is valid (the contract of this function).
        if unsafe { (functions.single)(queue, wr) } {
            return Ok(());
        }
        // SAFETY: as above.
        if queue.producer.raise(&queue.queue) && unsafe { (functions.single)(queue, wr) } {
            return Ok(());
        }
    }
    // SAFETY: `list` fulfils the contract of `post_send` (the contract of this function).
    unsafe { post_nodes(queue, list) }
}

/// Posts any list.
///
/// # Safety
/// `list` fulfils the contract of [`post_send`].
#[inline(never)]
unsafe fn post_nodes(queue: &mut SendQueue, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
    let SendQueue { queue, producer, encoder, .. } = queue;
    let nothing = |error| BadWr { error, wr: list };
    // SAFETY: `list` is NULL or points to a valid node (the contract of this function).
    let Some(mut wr) = (unsafe { list.as_ref() }) else {
        let error = if producer.in_session() { PostError::SessionOpen } else { PostError::NullList };
        return Err(nothing(error));
    };
    let mut cursor = producer.begin_any();
    loop {
        if cursor.has_room()
            && let Some(functions) = encoder.lists.get(wr.opcode.0 as usize)
        {
            let run = if has_one_entry(wr) { functions.run_of_one } else { functions.run_of_more };
            // SAFETY: the nodes from `wr` on, and the structs and entries that they point to, are valid (the contract of
            // this function).
            match unsafe { run(encoder, producer, queue, &mut cursor, wr) } {
                Some(next) if core::ptr::eq(next, wr) => {}
                Some(next) => {
                    wr = next;
                    continue;
                }
                None => return producer.publish(queue, &cursor).map_err(nothing),
            }
        }
        // A node with which no run begins: one of the slow path, a bad one, or one without room.
        // SAFETY: the node, and the structs and entries that it points to, are valid (the contract of this function).
        let result = unsafe { push(encoder, producer, queue, &mut cursor, wr) };
        if let Err(error) = result {
            producer.publish(queue, &cursor).map_err(nothing)?;
            return Err(BadWr { error, wr });
        }
        // SAFETY: `next` is NULL or points to a valid node (the contract of this function).
        match unsafe { wr.next.as_ref() } {
            Some(next) => wr = next,
            None => return producer.publish(queue, &cursor).map_err(nothing),
        }
    }
}

/// The functions for nodes of one opcode, for queues of one kind of destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeFns {
    /// [`single`]
    single: unsafe fn(&mut SendQueue, &SendWr) -> bool,
    /// [`run`] for nodes with one entry, and for other nodes.
    run_of_one: Run,
    run_of_more: Run,
}

/// [`run`]
type Run = for<'l> unsafe fn(
    &Encoder,
    &mut Producer,
    &SendQueueRef,
    &mut SqCursor,
    &'l SendWr,
) -> Option<&'l SendWr>;

impl NodeFns {
    /// The functions by opcode. An opcode that has none gets functions that write nothing.
    pub(crate) const fn of(kind: Kind) -> &'static [Self; OPCODES] {
        const NONE: [NodeFns; OPCODES] =
            [NodeFns { single: no_single, run_of_one: no_run, run_of_more: no_run }; OPCODES];
        macro_rules! functions {
            ($to:ident: $($opcode:ident)*) => {{
                let mut functions = NONE;
                $({
                    const OPCODE: u32 = WrOpcode::$opcode.0;
                    functions[OPCODE as usize] = NodeFns {
                        single: single::<OPCODE, $to>,
                        run_of_one: run::<OPCODE, $to, true>,
                        run_of_more: run::<OPCODE, $to, false>,
                    };
                })*
                functions
            }};
        }
        // The same for each destination, which they do not have.
        macro_rules! with_locals {
            ($functions:expr) => {{
                let mut functions = $functions;
                functions[WrOpcode::LOCAL_INV.0 as usize] = NodeFns::of_local::<{ WrOpcode::LOCAL_INV.0 }>();
                functions[WrOpcode::BIND_MW.0 as usize] = NodeFns::of_local::<{ WrOpcode::BIND_MW.0 }>();
                functions
            }};
        }
        const OF_CONNECTED: [NodeFns; OPCODES] =
            with_locals!(functions!(CONNECTED: RDMA_WRITE SEND RDMA_READ SEND_WITH_IMM
            RDMA_WRITE_WITH_IMM SEND_WITH_INV ATOMIC_CMP_AND_SWP ATOMIC_FETCH_AND_ADD));
        const OF_XRC: [NodeFns; OPCODES] =
            with_locals!(functions!(XRC: RDMA_WRITE SEND RDMA_READ SEND_WITH_IMM
            RDMA_WRITE_WITH_IMM SEND_WITH_INV ATOMIC_CMP_AND_SWP ATOMIC_FETCH_AND_ADD));
        // UD has no RDMA.
        const OF_DATAGRAM: [NodeFns; OPCODES] = functions!(DATAGRAM: SEND SEND_WITH_IMM);
        const OF_FRAME: [NodeFns; OPCODES] = functions!(FRAME: SEND TSO);
        match kind {
            Kind::Connected => &OF_CONNECTED,
            Kind::Xrc => &OF_XRC,
            Kind::Datagram => &OF_DATAGRAM,
            Kind::Raw => &OF_FRAME,
            // A list can't name a DC target.
            Kind::Dc => &NONE,
        }
    }

    /// The functions of a local operation.
    const fn of_local<const OPCODE: u32>() -> Self {
        Self {
            single: single_local::<OPCODE>,
            run_of_one: run_locals::<OPCODE>,
            run_of_more: run_locals::<OPCODE>,
        }
    }
}

/// One more than the last opcode that has functions.
pub(crate) const OPCODES: usize = WrOpcode::TSO.0 as usize + 1;

const CONNECTED: u8 = 0;
const DATAGRAM: u8 = 1;
const XRC: u8 = 2;
const FRAME: u8 = 3;

/// [`single`] for opcodes without functions: posts nothing.
///
/// # Safety
/// None; the type is that of [`single`].
unsafe fn no_single(_: &mut SendQueue, _: &SendWr) -> bool {
    false
}

/// [`run`] for opcodes without functions: writes nothing.
///
/// # Safety
/// None; the type is that of [`run`].
unsafe fn no_run<'l>(
    _: &Encoder,
    _: &mut Producer,
    _: &SendQueueRef,
    _: &mut SqCursor,
    wr: &'l SendWr,
) -> Option<&'l SendWr> {
    Some(wr)
}

/// Posts a list of one node of this opcode, if the node takes the fast path and the queue is open and has room. A node with
/// one entry is composed before it is written, as by the typed interface.
///
/// # Safety
/// `wr` is a valid node of a list ([`post_send`]).
// codegen: block
unsafe fn single<const OPCODE: u32, const TO: u8>(queue: &mut SendQueue, wr: &SendWr) -> bool {
    if !queue.producer.has_room() {
        return false;
    }
    // SAFETY: `wr` is a valid node of a list (the contract of this function).
    if TO != DATAGRAM && OPCODE != WrOpcode::TSO.0 && unsafe { post_block::<OPCODE, TO>(queue, wr) } {
        return true;
    }
    // SAFETY: `wr` is a valid node of a list (the contract of this function).
    unsafe { single_node::<OPCODE, TO>(queue, wr) }
}

/// [`single`] for any node of the opcode.
///
/// # Safety
/// `wr` is a valid node of a list ([`post_send`]).
#[inline(never)]
unsafe fn single_node<const OPCODE: u32, const TO: u8>(queue: &mut SendQueue, wr: &SendWr) -> bool {
    let SendQueue { queue, producer, encoder, .. } = queue;
    let mut cursor = producer.begin();
    let is_written = if has_one_entry(wr) {
        // SAFETY: `wr` is a valid node of a list (the contract of this function).
        unsafe { put_node::<OPCODE, TO, true>(encoder, queue.view(), &mut cursor, wr) }
    } else {
        // SAFETY: `wr` is a valid node of a list (the contract of this function).
        unsafe { put_node::<OPCODE, TO, false>(encoder, queue.view(), &mut cursor, wr) }
    };
    is_written && producer.ring_if_open(queue, queue.view(), &cursor)
}

/// Posts a list of one local operation, if the node takes the fast path and the queue is open and has room.
///
/// # Safety
/// `wr` is a valid node of a list ([`post_send`]).
unsafe fn single_local<const OPCODE: u32>(queue: &mut SendQueue, wr: &SendWr) -> bool {
    let SendQueue { queue, producer, encoder, .. } = queue;
    let mut cursor = producer.begin_any();
    // SAFETY: `wr` is a valid node of a list (the contract of this function).
    let is_written = unsafe { put_local::<OPCODE>(encoder, producer, queue.view(), &mut cursor, wr) };
    is_written && producer.ring_fenced(queue, &cursor, false)
}

/// [`run`] for local operations.
///
/// # Safety
/// The nodes from `wr` on are valid nodes of a list ([`post_send`]).
unsafe fn run_locals<'l, const OPCODE: u32>(
    encoder: &Encoder,
    producer: &mut Producer,
    queue: &SendQueueRef,
    cursor: &mut SqCursor,
    mut wr: &'l SendWr,
) -> Option<&'l SendWr> {
    let view = queue.view();
    let mut at = *cursor;
    let next = loop {
        // SAFETY: `wr` is a valid node of a list (the contract of this function).
        if wr.opcode.0 != OPCODE || !unsafe { put_local::<OPCODE>(encoder, producer, view, &mut at, wr) } {
            break Some(wr);
        }
        // SAFETY: `next` is NULL or points to a valid node (the contract of this function).
        match unsafe { wr.next.as_ref() } {
            Some(next) => wr = next,
            None => break None,
        }
    };
    *cursor = at;
    next
}

/// Writes a local operation of this opcode, if the node takes the fast path and there is room. One that names entries, which
/// an invalidation ignores and a bind may not have, takes the slow path.
///
/// # Safety
/// `wr` is a valid node of a list ([`post_send`]).
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn put_local<const OPCODE: u32>(
    encoder: &Encoder,
    producer: &mut Producer,
    view: SqView<'_>,
    cursor: &mut SqCursor,
    wr: &SendWr,
) -> bool {
    let opcode = WrOpcode(OPCODE);
    if wr.num_sge != 0 {
        return false;
    }
    // SAFETY: `wr` is a valid node of a list with this opcode (the contract of this function).
    let Ok(op) = (unsafe { Op::from_c(opcode, wr) }) else { return false };
    encoder.fast.has_local(opcode) && encoder.put_local(producer, view, cursor, Head::from_c(wr), &op)
}

/// Whether a node has one entry: the usual case, which has code of its own.
// codegen: constant
#[cfg_attr(not(debug_assertions), inline(always))]
fn has_one_entry(wr: &SendWr) -> bool {
    wr.num_sge == 1 && !Head::from_c(wr).flags.contains(SendFlags::INLINE)
}

/// Writes nodes of this opcode, from `wr` on, as long as they take the fast path and all have one entry (`ONE`), or none of
/// them has. Returns the first node that is not written.
///
/// # Safety
/// The nodes from `wr` on are valid nodes of a list ([`post_send`]).
unsafe fn run<'l, const OPCODE: u32, const TO: u8, const ONE: bool>(
    encoder: &Encoder,
    _: &mut Producer,
    queue: &SendQueueRef,
    cursor: &mut SqCursor,
    mut wr: &'l SendWr,
) -> Option<&'l SendWr> {
    let view = queue.view();
    let mut at = *cursor;
    let next = loop {
        if wr.opcode.0 != OPCODE || has_one_entry(wr) != ONE {
            break Some(wr);
        }
        // SAFETY: `wr` is a valid node of a list (the contract of this function).
        if !unsafe { put_node::<OPCODE, TO, ONE>(encoder, view, &mut at, wr) } {
            break Some(wr);
        }
        // SAFETY: `next` is NULL or points to a valid node (the contract of this function).
        match unsafe { wr.next.as_ref() } {
            Some(next) => wr = next,
            None => break None,
        }
    };
    *cursor = at;
    next
}

/// Writes a node of this opcode, for a queue of this kind of destination, with one entry (`ONE`) or not, if the node takes
/// the fast path and there is room.
///
/// # Safety
/// `wr` is a valid node of a list ([`post_send`]).
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn put_node<const OPCODE: u32, const TO: u8, const ONE: bool>(
    encoder: &Encoder,
    view: SqView<'_>,
    cursor: &mut SqCursor,
    wr: &SendWr,
) -> bool {
    let (fast, opcode, Head { wr_id, flags }) = (&encoder.fast, WrOpcode(OPCODE), Head::from_c(wr));
    let (ctrl, limits) = (&fast.ctrl, &fast.limits);
    if !fast.has_in_lists(opcode) || !cursor.has_room() || !are_plain(flags) {
        return false;
    }
    // SAFETY: `wr` is a valid node of a list (the contract of this function).
    let Ok(to) = (unsafe { Dest::from_c(kind_of(TO).transport(), wr) }) else { return false };
    // SAFETY: as above; the node has this opcode.
    let Ok(op) = (unsafe { Op::from_c(opcode, wr) }) else { return false };
    if ONE {
        // SAFETY: `sg_list` is NULL or points to one valid entry (the contract of this function; `ONE` means that `num_sge`
        // is 1).
        let Some(entry) = (unsafe { entry_from_c(wr.sg_list) }) else { return false };
        let entries = [entry];
        let wr = Wr { wr_id, flags, to, op, data: Data::Sges(&entries[..]) };
        return one_entry(answer_of(&op), entry).is_some()
            && put_wqe(view, cursor, ctrl, limits, &wr, Alignment::ByPeer).is_ok();
    }
    // A negative number is above the limit, too: no queue with opcodes here has such a limit.
    let num = wr.num_sge as u32;
    if num > limits.max_sge || (TO == FRAME && num == 0) {
        return false;
    }
    // SAFETY: `sg_list` is NULL or points to `num` valid entries (the contract of this function).
    let Some(entries) = (unsafe { slice_from_c(wr.sg_list, num as usize) }) else { return false };
    let is_inline = flags.contains(SendFlags::INLINE);
    if is_inline && (!takes_inline(opcode) || OPCODE == WrOpcode::TSO.0) {
        return false;
    }
    if is_inline && num != 0 {
        // SAFETY: with `INLINE` the memory of every entry is readable (the contract of this function).
        let data = Inline::Sges(unsafe { InlineSges::new(entries) });
        let wr = Wr::<RawSge> { wr_id, flags, to, op, data: Data::Inline(data) };
        return put_wqe(view, cursor, ctrl, limits, &wr, Alignment::ByPeer).is_ok();
    }
    let wr = Wr { wr_id, flags, to, op, data: Data::Sges(entries) };
    put_wqe(view, cursor, ctrl, limits, &wr, Alignment::ByPeer).is_ok()
}

/// The kind of a queue by the constant of its kind of destination.
const fn kind_of(to: u8) -> Kind {
    match to {
        DATAGRAM => Kind::Datagram,
        XRC => Kind::Xrc,
        FRAME => Kind::Raw,
        _ => Kind::Connected,
    }
}

/// Posts a node with one entry from registers, if the queue is open and has room.
///
/// # Safety
/// `wr` is a valid node of a list ([`post_send`]).
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn post_block<const OPCODE: u32, const TO: u8>(queue: &mut SendQueue, wr: &SendWr) -> bool {
    let SendQueue { queue, producer, encoder, .. } = queue;
    let (opcode, Head { wr_id, flags }) = (WrOpcode(OPCODE), Head::from_c(wr));
    if wr.num_sge != 1 || flags.contains(SendFlags::INLINE) {
        return false;
    }
    // SAFETY: `sg_list` is NULL or points to one valid entry (the contract of this function; `num_sge` is 1).
    let Some(entry) = (unsafe { entry_from_c(wr.sg_list) }) else { return false };
    // SAFETY: `wr` is a valid node of a list (the contract of this function).
    let Ok(to) = (unsafe { Dest::from_c(kind_of(TO).transport(), wr) }) else { return false };
    // SAFETY: as above; the node has this opcode.
    let Ok(op) = (unsafe { Op::from_c(opcode, wr) }) else { return false };
    let entries = [entry];
    let wr = Wr { wr_id, flags, to, op, data: Data::Sges(&entries[..]) };
    let Some((block, ds)) = encoder.block(&wr, Alignment::ByPeer) else { return false };
    producer.post_block(queue, wr_id, block, ds, &encoder.fast.ctrl, opcode)
}

/// Writes any node; on an error, no room is taken.
///
/// # Safety
/// `wr` is a valid node of a list ([`uverbs_core::provider::SendQueue::post_send`]).
#[inline(never)]
unsafe fn push(
    encoder: &Encoder,
    producer: &mut Producer,
    queue: &SendQueueRef,
    cursor: &mut SqCursor,
    wr: &SendWr,
) -> Result<(), PostError> {
    producer.ensure_begun(queue, cursor)?;
    let head = cursor.head;
    let mut room = Room::new();
    // SAFETY: `wr` is a valid node of a list (the contract of this function).
    let value = unsafe { Wr::from_c(wr, &encoder.list_rules(), &mut room) };
    let result = value.and_then(|value| {
        // Without an entry there are no inline data.
        let value = if wr.num_sge == 0 { Wr { data: Data::NONE, ..value } } else { value };
        // SAFETY: the entries' memory is readable for raw packets with an inline header: the contract of `post_send`
        // requires the memory's own address there.
        unsafe { encoder.push_cold(producer, queue, cursor, &value, Alignment::ByPeer) }
    });
    if result.is_err() {
        // A WR that counts as several may have been counted in part.
        cursor.head = head;
    }
    result
}
