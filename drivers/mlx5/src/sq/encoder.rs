// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes one WR of any interface at the cursor: checks whether the queue allows it, and chooses the path.
//!
//! A WR with an opcode of the queue's transport and plain flags takes the fast path; one test of a set that is constant per
//! queue decides this ([`FastPathConsts`]). All others take [`Encoder::push_cold`], which also finds the reason why a WR
//! can't be posted.
#![expect(unsafe_code)]
// UNSAFETY: passes entries to the one place that accesses their memory (`wqe::eth`); the contract of the post makes it
// readable.

use super::SendConfig;
use super::consts::{FastPathConsts, FastPathOps, Kind, are_plain};
use crate::memory::{CompletedCount, SendQueueRef, SqView};
use crate::shared::umr_op;
use crate::sq::cursor::SqCursor;
use crate::sq::list::{NodeFns, OPCODES};
use crate::sq::producer::Producer;
use crate::wqe::plain::{
    self, Alignment, Carries, Dest, Wr, Written, answer_of, check_op, dest_units, imm_or_key, is_local,
    max_units, op_units, put_wqe, tso_args,
};
use crate::wqe::{
    CTRL_UNITS, Remote, SendEntry, Sge, WqeWriter, eth, one_entry, put_entries, put_inline, umr,
};
use uverbs_core::provider::list::ListRules;
use uverbs_core::provider::opcodes::{builder_opcodes, is_atomic, opcode_bit, opcodes_of, takes_inline};
use uverbs_core::provider::{Data, Head, Op, PostError};
use uverbs_core::wr::{SendFlags, WrOpcode};
use uverbs_mlx5_hw::wqe::ETH_L2_INLINE_HEADER_SIZE;

/// The constants of a queue's WQEs, and the WRs that it allows.
// codegen: lines
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Encoder {
    /// The functions that write nodes of C lists, by opcode.
    pub(crate) lists: &'static [NodeFns; OPCODES],
    pub(crate) fast: FastPathConsts,
    pub(crate) kind: Kind,
    /// The opcodes of the transport.
    ops: u32,
    builders: u32,
    /// The blocks that every WR may take.
    wr_blocks: u32,
    atomics: bool,
    pub(crate) l2: bool,
}

/// The longest WQE: `ds` has six bits.
const MAX_UNITS: u32 = 63;

impl Encoder {
    /// The encoder of a queue with `blocks` basic blocks.
    pub(crate) fn new(config: &SendConfig, blocks: u32) -> Self {
        let ops = opcodes_of(config.qp_type);
        let wr_blocks = blocks.checked_div(config.max_send_wr).unwrap_or(blocks).max(1);
        Self {
            fast: FastPathConsts::new(config, wr_blocks),
            kind: Kind::of(config.qp_type),
            lists: NodeFns::of(Kind::of(config.qp_type)),
            ops,
            builders: ops & builder_opcodes(config.send_ops_flags),
            wr_blocks,
            atomics: config.atomics,
            l2: config.l2_inline,
        }
    }

    /// Whether lists and batches may use this opcode.
    pub(crate) fn has(&self, opcode: WrOpcode) -> bool {
        self.ops & opcode_bit(opcode) != 0
    }

    /// The WRs of lists.
    pub(crate) fn list_rules(&self) -> ListRules {
        ListRules { qp_type: self.kind.transport(), opcodes: self.ops, max_sge: self.fast.limits.max_sge }
    }

    /// Whether there is a builder for this opcode.
    pub(crate) fn has_builder(&self, opcode: WrOpcode) -> bool {
        self.builders & opcode_bit(opcode) != 0
    }

    /// The bytes of a frame's header in the WQE.
    pub(crate) fn header_len(&self) -> usize {
        if self.l2 { ETH_L2_INLINE_HEADER_SIZE } else { 0 }
    }

    /// Checks that the device has atomics if this opcode is one.
    pub(crate) fn check_atomics(&self, opcode: WrOpcode) -> Result<(), PostError> {
        if is_atomic(opcode) && !self.atomics { Err(PostError::Unsupported) } else { Ok(()) }
    }

    /// Returns whether checksums are requested; an error if the QP does not compute them, or for any other flag that is not
    /// plain.
    pub(crate) fn check_csum(&self, queue: &SendQueueRef, flags: SendFlags) -> Result<bool, PostError> {
        let csum = flags.contains(SendFlags::IP_CSUM);
        let rest = flags.difference(SendFlags::IP_CSUM);
        if !are_plain(rest) || (csum && (self.kind != Kind::Raw || !queue.qp.csum())) {
            return Err(PostError::IllegalFlag);
        }
        Ok(csum)
    }

    /// Checks that a WR of up to `units` fits into the queue, and takes the WRs that it counts beyond one, of which `taken`
    /// are taken already. Returns their number.
    pub(crate) fn reserve_units(
        &self,
        producer: &mut Producer,
        queue: &SendQueueRef,
        cursor: &mut SqCursor,
        units: u32,
        taken: u32,
    ) -> Result<u32, PostError> {
        if units > MAX_UNITS {
            return Err(PostError::InvalidArgument);
        }
        let more = (units.div_ceil(4).max(1) - 1) / self.wr_blocks;
        producer.reserve_more(queue, cursor, more.saturating_sub(taken))?;
        Ok(more)
    }

    /// Writes one WR that takes the fast path ([`takes_fast_path`]) at the cursor and moves the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn push_fast(
        &self,
        producer: &mut Producer,
        queue: &SendQueueRef,
        view: SqView<'_>,
        cursor: &mut SqCursor,
        wr: &Wr<'_, Sge>,
    ) -> Result<(), PostError> {
        producer.reserve(queue, cursor)?;
        put_wqe(view, cursor, &self.fast.ctrl, &self.fast.limits, wr, Alignment::Checked)
    }

    /// Writes one WR at the cursor and moves the cursor, if the WR takes the fast path and there is room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_fast(&self, view: SqView<'_>, cursor: &mut SqCursor, wr: &Wr<'_, Sge>) -> bool {
        let FastPathConsts { ctrl, limits, ops, .. } = &self.fast;
        // The address is checked before anything is written: what is done with an error needs the whole WR, whose values are in registers
        // until then. codegen: live
        takes_fast_path(*ops, wr)
            && cursor.has_room()
            && check_op(&wr.op, Alignment::Checked).is_ok()
            && put_wqe(view, cursor, ctrl, limits, wr, Alignment::ByPeer).is_ok()
    }

    /// Calls [`push_cold`](Self::push_cold) with copies of cursor and WR. Latches an error.
    ///
    /// # Safety
    /// As [`push_cold`](Self::push_cold).
    // codegen: address
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) unsafe fn push_latched(
        &self,
        producer: &mut Producer,
        queue: &SendQueueRef,
        cursor: &mut SqCursor,
        wr: &Wr<'_, Sge>,
    ) {
        let mut copy = *cursor;
        let result = plain::by_copy(wr, |wr| {
            // SAFETY: for raw packets with an inline header, the entries' memory is readable (the contract of this function).
            unsafe { self.push_cold(producer, queue, &mut copy, wr, Alignment::Checked) }
        });
        if let Err(error) = result {
            producer.latch(&mut copy, error);
        }
        *cursor = copy;
    }

    /// The slow path: writes any WR at the cursor and moves the cursor.
    ///
    /// # Safety
    /// On a raw packet QP of a device that needs Ethernet headers in the WQE, the entries' memory must be valid for reads
    /// at their addresses.
    #[inline(never)]
    pub(crate) unsafe fn push_cold<E: SendEntry>(
        &self,
        producer: &mut Producer,
        queue: &SendQueueRef,
        cursor: &mut SqCursor,
        wr: &Wr<'_, E>,
        alignment: Alignment,
    ) -> Result<(), PostError> {
        let opcode = wr.op.opcode();
        producer.ensure_begun(queue, cursor)?;
        if !self.has(opcode) {
            return Err(PostError::IllegalOpcode);
        }
        if is_local(&wr.op) {
            let has_entries = !wr.data.sges().is_empty();
            return self.push_local(producer, queue, cursor, wr.head(), &wr.op, has_entries);
        }
        if !self.kind.matches(&wr.to) {
            return Err(PostError::InvalidArgument);
        }
        let csum = self.check_csum(queue, wr.flags)?;
        let limits = &self.fast.limits;
        // The headers of a frame may be in the WQE in addition. Data that are too long for the queue are reported before a
        // full queue.
        let headers = if self.kind == Kind::Raw { ETH_L2_INLINE_HEADER_SIZE } else { 0 };
        match wr.data {
            Data::Inline(_) if !takes_inline(opcode) => return Err(PostError::IllegalFlag),
            Data::Inline(data) if data.len() > limits.max_inline as usize + headers => {
                return Err(PostError::InlineTooLong);
            }
            Data::Sges(entries) if entries.len() > limits.max_sge as usize => {
                self.check_atomics(opcode)?;
                return Err(PostError::TooManySge);
            }
            _ => self.check_atomics(opcode)?,
        }
        let header = match wr.op {
            Op::Tso(args) => eth::tso_units(limits.max_tso_header, args)?,
            _ if self.kind == Kind::Raw => eth::units(self.header_len()),
            _ => dest_units(&wr.to) + op_units(opcode),
        };
        let units = (CTRL_UNITS + header).saturating_add(max_units(&wr.data));
        self.reserve_units(producer, queue, cursor, units, 0)?;
        if self.kind != Kind::Raw {
            return put_wqe(queue.view(), cursor, &self.fast.ctrl, limits, wr, alignment);
        }
        // SAFETY: with an inline header, the entries' memory is readable (the contract of this function).
        let written = unsafe { self.put_frame(WqeWriter::new(queue.view(), cursor.at), csum, wr) }?;
        cursor.finish(queue.view(), wr.wr_id, written);
        Ok(())
    }

    /// Writes the WQE of a raw packet.
    ///
    /// # Safety
    /// If the device needs Ethernet headers in the WQE, the entries' memory must be valid for reads at their addresses.
    unsafe fn put_frame<E: SendEntry>(
        &self,
        writer: WqeWriter<'_>,
        csum: bool,
        wr: &Wr<'_, E>,
    ) -> Result<Written, PostError> {
        let (limits, l2) = (&self.fast.limits, self.l2);
        let (ds, carries) = match (tso_args(&wr.op), wr.data) {
            (Some(args), Data::Sges(entries)) => {
                limits.check_tso(entries.iter().map(|entry| u64::from(entry.length())).sum())?;
                let at = CTRL_UNITS + eth::put_tso(writer, csum, args)?;
                (at + put_entries(writer, at, limits, answer_of(&wr.op), entries)?, Carries::Entries)
            }
            (Some(args), Data::Inline(data)) => {
                let at = CTRL_UNITS + eth::put_tso(writer, csum, args)?;
                (at + put_inline(writer, at, limits, &data)?, Carries::Inline)
            }
            (None, Data::Inline(data)) => {
                (eth::put_frame_inline(writer, limits, csum, l2, &data)?, Carries::Inline)
            }
            // A frame has at least a header.
            (None, Data::Sges([])) => return Err(PostError::InvalidArgument),
            (None, Data::Sges(entries)) => {
                let entries = entries.iter().map(|entry| entry.raw());
                // SAFETY: if `l2`, the entries' memory is readable (the contract of this function).
                (unsafe { eth::put_frame_sges(writer, limits, csum, l2, entries) }?, Carries::Entries)
            }
        };
        self.put_sized_ctrl(writer, wr.flags, &wr.op, ds);
        Ok(Written::new(ds, carries))
    }

    /// Writes the control segment of a WQE of `ds` units, for any layout.
    fn put_sized_ctrl(&self, writer: WqeWriter<'_>, flags: SendFlags, op: &Op<'_, Remote>, ds: u32) {
        let ctrl = &self.fast.ctrl;
        writer.put_ctrl1(ctrl.second(flags, imm_or_key(op)));
        writer.put_ctrl0(ctrl.first_of_units(writer.place(), op.opcode(), ds));
    }

    /// Writes a bind or an invalidation at the cursor and moves the cursor, if the WR takes the fast path and there is room.
    /// The queue has the operation ([`FastPathConsts::has_local`]).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_local(
        &self,
        producer: &mut Producer,
        view: SqView<'_>,
        cursor: &mut SqCursor,
        head: Head,
        op: &Op<'_, Remote>,
    ) -> bool {
        if !are_plain(head.flags) || !cursor.has_room() {
            return false;
        }
        let (ctrl, writer) = (&self.fast.ctrl, WqeWriter::new(view, cursor.at));
        // Each with a constant number of units.
        match op {
            Op::BindMw(bind) => match umr::put_bind(writer, ctrl.qp_num(), bind) {
                Ok(umr::BIND_UNITS) => {
                    let (op, key) = (umr_op::BIND_MW, bind.mw_rkey);
                    self.end_local::<{ umr::BIND_UNITS }>(producer, view, cursor, head, key, op);
                }
                Ok(_) => {
                    let (op, key) = (umr_op::BIND_MW, bind.mw_rkey);
                    self.end_local::<{ umr::FREE_UNITS }>(producer, view, cursor, head, key, op);
                }
                Err(_) => return false,
            },
            Op::LocalInv(key) => {
                umr::put_local_inv(writer);
                let op = umr_op::LOCAL_INV;
                self.end_local::<{ umr::FREE_UNITS }>(producer, view, cursor, head, *key, op);
            }
            _ => return false,
        }
        true
    }

    /// Writes the control segment of a local operation of `UNITS` units, and moves the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn end_local<const UNITS: u32>(
        &self,
        producer: &mut Producer,
        view: SqView<'_>,
        cursor: &mut SqCursor,
        head: Head,
        key: u32,
        op: u8,
    ) {
        let (at, ctrl) = (cursor.at, &self.fast.ctrl);
        let waits = producer.fence_next(view, at, UNITS.div_ceil(4));
        let writer = WqeWriter::new(view, at);
        writer.put_ctrl1(ctrl.second_behind_local(head.flags, key, waits));
        writer.put_ctrl0(ctrl.first_of_units(at, WrOpcode::BIND_MW, UNITS));
        cursor.finish_as(view, head.wr_id, Written::new(UNITS, Carries::Entries), op);
    }

    /// Writes a bind or an invalidation, for which the next WR must wait.
    pub(crate) fn push_local(
        &self,
        producer: &mut Producer,
        queue: &SendQueueRef,
        cursor: &mut SqCursor,
        head: Head,
        local: &Op<'_, Remote>,
        has_entries: bool,
    ) -> Result<(), PostError> {
        self.check_csum(queue, head.flags)?;
        let (units, key, op) = match local {
            Op::BindMw(_) if has_entries => return Err(PostError::InvalidArgument),
            Op::BindMw(bind) => (umr::BIND_UNITS, bind.mw_rkey, umr_op::BIND_MW),
            Op::LocalInv(key) => (umr::FREE_UNITS, *key, umr_op::LOCAL_INV),
            _ => return Err(PostError::IllegalOpcode),
        };
        self.reserve_units(producer, queue, cursor, units, 0)?;
        let writer = WqeWriter::new(queue.view(), cursor.at);
        let ds = match local {
            Op::BindMw(bind) => umr::put_bind(writer, self.fast.ctrl.qp_num(), bind)?,
            _ => umr::put_local_inv(writer),
        };
        let ctrl = &self.fast.ctrl;
        writer.put_ctrl1(ctrl.second(head.flags, key));
        writer.put_ctrl0(ctrl.first_of_units(writer.place(), WrOpcode::BIND_MW, ds));
        if producer.fence_local(queue.view(), cursor.at, ds.div_ceil(4)) {
            writer.add_small_fence();
        }
        let record = queue.view().record(cursor.at);
        cursor.finish(queue.view(), head.wr_id, Written::new(ds, Carries::Entries));
        record.set_done(CompletedCount::new(cursor.head, op));
        Ok(())
    }

    /// The block of a WR that takes the fast path, has one entry and fits into one block; see [`plain::block`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn block<E: SendEntry>(
        &self,
        wr: &Wr<'_, E>,
        alignment: Alignment,
    ) -> Option<([u64; 8], u32)> {
        if !self.fast.ops.has(wr.op.opcode(), &wr.to) || !are_plain(wr.flags) {
            return None;
        }
        plain::block(&self.fast.ctrl, wr, alignment)
    }
}

/// Whether a WR takes the fast path. A WR whose only entry is empty or has 2^31 bytes does not, so that the length of a WQE
/// with one entry is constant in the fast path.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn takes_fast_path(ops: FastPathOps, wr: &Wr<'_, Sge>) -> bool {
    let (opcode, is_tso) = (wr.op.opcode(), matches!(wr.op, Op::Tso(_)));
    let is_usual = match wr.data {
        // A frame has at least a header.
        Data::Sges([]) => !matches!(wr.to, Dest::Frame) || is_tso,
        Data::Sges(&[one]) => one_entry(answer_of(&wr.op), one).is_some(),
        Data::Sges(_) => true,
        // The share of a TSO send has room for entries only.
        Data::Inline(_) => takes_inline(opcode) && !is_tso,
    };
    ops.has(opcode, &wr.to) && are_plain(wr.flags) && is_usual
}
