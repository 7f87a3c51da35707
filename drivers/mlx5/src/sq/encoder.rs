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
use crate::sq::cursor::Cursor;
use crate::sq::list::{NodeFns, OPCODES};
use crate::sq::producer::Producer;
use crate::sq::shared::umr_op;
use crate::wqe::plain::{
    self, Carries, Data, Description, Destination, Local, WqeOp, Written, op_units, put_wqe,
};
use crate::wqe::{CTRL_UNITS, SendEntry, Sge, WqeWriter, eth, one_entry, put_entries, put_inline, umr};
use uverbs_core::provider::opcodes::{builder_opcodes, is_atomic, opcode_bit, opcodes_of, takes_inline};
use uverbs_core::provider::{Payload, PostError, Wr};
use uverbs_core::wr::{SendFlags, WrOpcode};
use uverbs_mlx5_hw::wqe::ETH_L2_INLINE_HEADER_SIZE;

/// The constants of a queue's WQEs, and the WRs that it allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoder {
    pub(crate) fast: FastPathConsts,
    pub(crate) kind: Kind,
    /// The functions that write nodes of C lists, by opcode.
    pub(crate) lists: &'static [NodeFns; OPCODES],
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
        cursor: &mut Cursor,
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
    pub(crate) fn push_fast<P: Payload<Sge>>(
        &self,
        producer: &mut Producer,
        queue: &SendQueueRef,
        view: SqView<'_>,
        cursor: &mut Cursor,
        wr_id: u64,
        wr: &Description<'_, Sge, &P>,
    ) -> Result<(), PostError> {
        producer.reserve(queue, cursor)?;
        put_wqe(view, cursor, &self.fast.ctrl, &self.fast.limits, wr_id, wr)
    }

    /// Writes one WR at the cursor and moves the cursor, if the WR takes the fast path and there is room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_fast<E: SendEntry, P: Payload<Sge>>(
        &self,
        view: SqView<'_>,
        cursor: &mut Cursor,
        wr_id: u64,
        wr: &Description<'_, E, &P>,
    ) -> bool {
        takes_fast_path(self.fast.ops, wr)
            && cursor.has_room()
            && put_wqe(view, cursor, &self.fast.ctrl, &self.fast.limits, wr_id, wr).is_ok()
    }

    /// Calls [`push_cold`](Self::push_cold) with copies of cursor and WR, so that both stay in registers on the fast path.
    /// Latches an error.
    ///
    /// # Safety
    /// As [`push_cold`](Self::push_cold).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) unsafe fn push_latched<P: Payload<Sge>>(
        &self,
        producer: &mut Producer,
        queue: &SendQueueRef,
        cursor: &mut Cursor,
        wr_id: u64,
        wr: &Description<'_, Sge, &P>,
    ) {
        let mut copy = *cursor;
        // SAFETY: for raw packets with an inline header, the entries' memory is readable (the contract of this function).
        let result = wr.lend(|wr| unsafe { self.push_cold(producer, queue, &mut copy, wr_id, wr) });
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
    pub(crate) unsafe fn push_cold<E: SendEntry, P: Payload<Sge>>(
        &self,
        producer: &mut Producer,
        queue: &SendQueueRef,
        cursor: &mut Cursor,
        wr_id: u64,
        wr: &Description<'_, E, &P>,
    ) -> Result<(), PostError> {
        let opcode = wr.op.opcode;
        producer.ensure_begun(queue, cursor)?;
        if !self.has(opcode) {
            return Err(PostError::IllegalOpcode);
        }
        if let Some(local) = &wr.op.local {
            let has_entries = matches!(wr.data, Data::Entries(&[_, ..]));
            return self.push_local(
                producer,
                queue,
                cursor,
                Wr { wr_id, flags: wr.flags },
                local,
                has_entries,
            );
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
            Data::Inline(data) if data.inline_len() > limits.max_inline as usize + headers => {
                return Err(PostError::InlineTooLong);
            }
            Data::Entries(entries) if entries.len() > limits.max_sge as usize => {
                self.check_atomics(opcode)?;
                return Err(PostError::TooManySge);
            }
            _ => self.check_atomics(opcode)?,
        }
        let header = match wr.op.tso {
            Some(args) => eth::tso_units(limits.max_tso_header, args)?,
            None if self.kind == Kind::Raw => eth::units(self.header_len()),
            None => wr.to.units() + op_units(opcode),
        };
        let units = (CTRL_UNITS + header).saturating_add(wr.data.max_units());
        self.reserve_units(producer, queue, cursor, units, 0)?;
        if self.kind != Kind::Raw {
            return put_wqe(queue.view(), cursor, &self.fast.ctrl, limits, wr_id, wr);
        }
        // SAFETY: with an inline header, the entries' memory is readable (the contract of this function).
        let written = unsafe { self.put_frame(WqeWriter::new(queue.view(), cursor.at), csum, wr) }?;
        cursor.finish(queue.view(), wr_id, written);
        Ok(())
    }

    /// Writes the WQE of a raw packet.
    ///
    /// # Safety
    /// If the device needs Ethernet headers in the WQE, the entries' memory must be valid for reads at their addresses.
    unsafe fn put_frame<E: SendEntry, P: Payload<Sge>>(
        &self,
        writer: WqeWriter<'_>,
        csum: bool,
        wr: &Description<'_, E, &P>,
    ) -> Result<Written, PostError> {
        let (limits, l2) = (&self.fast.limits, self.l2);
        let (ds, carries) = match (wr.op.tso, wr.data) {
            (Some(args), Data::Entries(entries)) => {
                limits.check_tso(entries.iter().map(|entry| u64::from(entry.length())).sum())?;
                let at = CTRL_UNITS + eth::put_tso(writer, csum, args)?;
                (at + put_entries(writer, at, limits, wr.op.answer(), entries)?, Carries::Entries)
            }
            (Some(args), Data::Inline(data)) => {
                let at = CTRL_UNITS + eth::put_tso(writer, csum, args)?;
                (at + put_inline(writer, at, limits, data)?, Carries::Inline)
            }
            (None, Data::Inline(data)) => {
                (eth::put_frame_inline(writer, limits, csum, l2, data)?, Carries::Inline)
            }
            // A frame has at least a header.
            (None, Data::Entries([])) => return Err(PostError::InvalidArgument),
            (None, Data::Entries(entries)) => {
                let entries = entries.iter().map(|entry| entry.raw());
                // SAFETY: if `l2`, the entries' memory is readable (the contract of this function).
                (unsafe { eth::put_frame_sges(writer, limits, csum, l2, entries) }?, Carries::Entries)
            }
        };
        self.put_sized_ctrl(writer, wr.flags, &wr.op, ds);
        Ok(Written::new(ds, carries))
    }

    /// Writes the control segment of a WQE of `ds` units, for any layout.
    fn put_sized_ctrl(&self, writer: WqeWriter<'_>, flags: SendFlags, op: &WqeOp<'_>, ds: u32) {
        let ctrl = &self.fast.ctrl;
        writer.put_ctrl1(ctrl.second(flags, op.imm));
        writer.put_ctrl0(ctrl.first_of_units(writer.place(), op.opcode, ds));
    }

    /// Writes a bind or an invalidation at the cursor and moves the cursor, if the WR takes the fast path and there is room.
    /// The queue has the operation ([`FastPathConsts::has_local`]).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_local(
        &self,
        producer: &mut Producer,
        view: SqView<'_>,
        cursor: &mut Cursor,
        wr: Wr,
        local: &Local,
    ) -> bool {
        if !are_plain(wr.flags) || !cursor.has_room() {
            return false;
        }
        let (ctrl, writer) = (&self.fast.ctrl, WqeWriter::new(view, cursor.at));
        // Each with a constant number of units.
        match local {
            Local::Bind(bind) => match umr::put_bind(writer, ctrl.qp_num(), bind) {
                Ok(umr::BIND_UNITS) => {
                    let (op, key) = (umr_op::BIND_MW, bind.mw_rkey);
                    self.end_local::<{ umr::BIND_UNITS }>(producer, view, cursor, wr, key, op);
                }
                Ok(_) => {
                    let (op, key) = (umr_op::BIND_MW, bind.mw_rkey);
                    self.end_local::<{ umr::FREE_UNITS }>(producer, view, cursor, wr, key, op);
                }
                Err(_) => return false,
            },
            Local::Invalidate(key) => {
                umr::put_local_inv(writer);
                let op = umr_op::LOCAL_INV;
                self.end_local::<{ umr::FREE_UNITS }>(producer, view, cursor, wr, *key, op);
            }
        }
        true
    }

    /// Writes the control segment of a local operation of `UNITS` units, and moves the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn end_local<const UNITS: u32>(
        &self,
        producer: &mut Producer,
        view: SqView<'_>,
        cursor: &mut Cursor,
        wr: Wr,
        key: u32,
        op: u8,
    ) {
        let (at, ctrl) = (cursor.at, &self.fast.ctrl);
        let waits = producer.fence_next(view, at, UNITS.div_ceil(4));
        let writer = WqeWriter::new(view, at);
        writer.put_ctrl1(ctrl.second_behind_local(wr.flags, key, waits));
        writer.put_ctrl0(ctrl.first_of_units(at, WrOpcode::BIND_MW, UNITS));
        cursor.finish_as(view, wr.wr_id, Written::new(UNITS, Carries::Entries), op);
    }

    /// Writes a bind or an invalidation, for which the next WR must wait.
    pub(crate) fn push_local(
        &self,
        producer: &mut Producer,
        queue: &SendQueueRef,
        cursor: &mut Cursor,
        wr: Wr,
        local: &Local,
        has_entries: bool,
    ) -> Result<(), PostError> {
        self.check_csum(queue, wr.flags)?;
        let (units, key, op) = match local {
            Local::Bind(_) if has_entries => return Err(PostError::InvalidArgument),
            Local::Bind(bind) => (umr::BIND_UNITS, bind.mw_rkey, umr_op::BIND_MW),
            Local::Invalidate(key) => (umr::FREE_UNITS, *key, umr_op::LOCAL_INV),
        };
        self.reserve_units(producer, queue, cursor, units, 0)?;
        let writer = WqeWriter::new(queue.view(), cursor.at);
        let ds = match local {
            Local::Bind(bind) => umr::put_bind(writer, self.fast.ctrl.qp_num(), bind)?,
            Local::Invalidate(_) => umr::put_local_inv(writer),
        };
        let wqe = WqeOp { imm: key, ..WqeOp::new(WrOpcode::BIND_MW) };
        self.put_sized_ctrl(writer, wr.flags, &wqe, ds);
        if producer.fence_local(queue.view(), cursor.at, ds.div_ceil(4)) {
            writer.add_small_fence();
        }
        let record = queue.view().record(cursor.at);
        cursor.finish(queue.view(), wr.wr_id, Written::new(ds, Carries::Entries));
        record.set_done(CompletedCount::new(cursor.head, op));
        Ok(())
    }

    /// The block of a WR that takes the fast path, has one entry and fits into one block; see [`plain::block`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn block<E: SendEntry, P>(&self, wr: &Description<'_, E, P>) -> Option<([u64; 8], u32)> {
        if !self.fast.ops.has(wr.op.opcode, &wr.to) || !are_plain(wr.flags) {
            return None;
        }
        plain::block(&self.fast.ctrl, wr)
    }
}

/// Whether a WR takes the fast path. A WR whose only entry is empty or has 2^31 bytes does not, so that the length of a WQE
/// with one entry is constant in the fast path.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn takes_fast_path<E: SendEntry, P>(ops: FastPathOps, wr: &Description<'_, E, P>) -> bool {
    let opcode = wr.op.opcode;
    let is_usual = match wr.data {
        // A frame has at least a header.
        Data::Entries([]) => !matches!(wr.to, Destination::Frame) || wr.op.tso.is_some(),
        Data::Entries(&[one]) => one_entry(wr.op.answer(), one).is_some(),
        Data::Entries(_) => true,
        // The share of a TSO send has room for entries only.
        Data::Inline(_) => takes_inline(opcode) && wr.op.tso.is_none(),
    };
    ops.has(opcode, &wr.to) && are_plain(wr.flags) && is_usual
}
