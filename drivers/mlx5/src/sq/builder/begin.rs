// SPDX-License-Identifier: MIT OR Apache-2.0
//! The builders: each begins a WR, and writes the segments that its opcode determines.

use super::session::{Current, CurrentState, Setters, SlowPathFlags};
use crate::sq::SendQueue;
use crate::sq::consts::{Kind, are_plain};
use crate::sq::cursor::record_end;
use crate::wqe::plain::{Carries, Written, imm_or_key, is_local, op_units, put_op, tso_args};
use crate::wqe::{AV_UNITS, CTRL_UNITS, Remote, WqeWriter, eth};
use core::sync::atomic::Ordering;
use uverbs_core::provider::opcodes::{is_atomic, takes_inline};
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{Head, Op, PostError};
use uverbs_core::wr::WrOpcode;

/// The flags that follow from an opcode.
const fn slow_flags(opcode: WrOpcode) -> SlowPathFlags {
    let atomic = if is_atomic(opcode) { SlowPathFlags::ATOMIC } else { SlowPathFlags::empty() };
    let no_inline = if takes_inline(opcode) { SlowPathFlags::empty() } else { SlowPathFlags::NO_INLINE };
    atomic.union(no_inline)
}

impl SendQueue {
    /// Begins a WR with data. `op` is a closure for each operation.
    // codegen: constant
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn begin<'o>(&mut self, head: Head, op: impl Fn() -> Op<'o, Remote> + Copy) {
        let Self { session, encoder, .. } = self;
        let (fast, opcode) = (&encoder.fast, op().opcode());
        let is_fast = session.wr.state.needs.is_empty() && are_plain(head.flags) && session.cursor.has_room();
        if is_fast && fast.has_connected_builder(opcode) {
            self.begin_at(CTRL_UNITS, Setters::DATA, head, &op());
        } else if is_fast && fast.has_addressed_builder(opcode) {
            self.begin_addressed(head, op);
        } else if is_fast
            && matches!(opcode, WrOpcode::SEND | WrOpcode::TSO)
            && fast.has_frame_builder(opcode)
        {
            self.begin_frame(head, op);
        } else {
            self.begin_slow(head, op);
        }
    }

    /// Begins a WR of the fast path, for which there is room: finishes it, and writes the segments of its opcode from
    /// `unit` on.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn begin_at(&mut self, unit: u32, takes: Setters, head: Head, op: &Op<'_, Remote>) {
        let Self { queue, encoder, session, .. } = self;
        let (place, opcode) = (session.cursor.at, op.opcode());
        let units = unit + op_units(opcode);
        // The constants are those of a destination of the queue's usual length; that of a TSO send has another one.
        let more = if opcode.0 == WrOpcode::TSO.0 { unit - CTRL_UNITS } else { 1 };
        let ctrl0 = u64::from_be(encoder.fast.ctrl.first(place, opcode, more.into()));
        // The session is stored first. codegen: live
        session.wr = Current {
            place,
            data: place.unit(units),
            ctrl0,
            max_entry: if is_atomic(opcode) { 0 } else { MAX_SGE_LENGTH - 1 },
            state: CurrentState::new(takes, slow_flags(opcode), units),
        };
        let written = Written::new(units + 1, Carries::Entries);
        let count = session.cursor.advance(written);
        let view = queue.view();
        let mut writer = WqeWriter::new(view, place);
        writer.put_ctrl0(ctrl0.to_be());
        writer.put_ctrl1(encoder.fast.ctrl.second(head.flags, imm_or_key(op)));
        put_op(&mut writer, unit, op);
        view.record(place).wr_id.store(head.wr_id, Ordering::Relaxed);
        record_end(view, place, count, written);
    }

    /// [`begin_at`](Self::begin_at) for a queue whose WRs have a destination.
    #[inline(never)]
    pub(super) fn begin_addressed<'o>(&mut self, head: Head, op: impl Fn() -> Op<'o, Remote> + Copy) {
        // codegen: constant
        if self.encoder.fast.address_units == AV_UNITS {
            self.begin_at(CTRL_UNITS + AV_UNITS, Setters::BOTH, head, &op());
        } else {
            self.begin_to_srq(head, op);
        }
    }

    /// [`begin_at`](Self::begin_at) for a destination of one unit: the only other kind (XRC).
    #[inline(never)]
    pub(super) fn begin_to_srq<'o>(&mut self, head: Head, op: impl Fn() -> Op<'o, Remote>) {
        self.begin_at(CTRL_UNITS + 1, Setters::BOTH, head, &op());
    }

    /// [`begin_at`](Self::begin_at) for a frame without a header in the WQE, or with that of a TSO send. The number of units
    /// before the data is constant only in the first case.
    #[inline(never)]
    pub(super) fn begin_frame<'o>(&mut self, head: Head, op: impl Fn() -> Op<'o, Remote>) {
        let op = op();
        let Some(args) = tso_args(&op) else {
            let writer = WqeWriter::new(self.queue.view(), self.session.cursor.at);
            // The segment, and the unit behind it, which must not have bytes of an old WQE if there are no data.
            (CTRL_UNITS..CTRL_UNITS + 2).for_each(|unit| writer.put(unit, [0; 2]));
            return self.begin_at(CTRL_UNITS + 1, Setters::DATA, head, &op);
        };
        let Self { queue, encoder, session, .. } = self;
        let limits = &encoder.fast.limits;
        let writer = WqeWriter::new(queue.view(), session.cursor.at);
        match eth::tso_units(limits.max_tso_header, args).and_then(|_| eth::put_tso(writer, false, args)) {
            Ok(units) => {
                let max_entry = limits.max_tso.min(MAX_SGE_LENGTH - 1);
                self.begin_at(CTRL_UNITS + units, Setters::DATA, head, &op);
                // The setter checks the length of longer data.
                (self.session.wr.max_entry, self.session.wr.state.slow) = (max_entry, SlowPathFlags::TSO);
            }
            Err(error) => session.fail(error),
        }
    }

    /// Begins a local operation.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn begin_local<'o>(&mut self, head: Head, op: impl Fn() -> Op<'o, Remote> + Copy) {
        let Self { queue, producer, encoder, session } = self;
        if session.wr.state.needs.is_empty() {
            session.wr.clear();
            if encoder.fast.has_local_builder(op().opcode())
                && encoder.put_local(producer, queue.view(), &mut session.cursor, head, &op())
            {
                return;
            }
        }
        self.begin_slow(head, op);
    }

    /// [`begin_cold`](Self::begin_cold), which is called from here, so that the fast path needs no memory for the operation.
    #[inline(never)]
    pub(super) fn begin_slow<'o>(&mut self, head: Head, op: impl Fn() -> Op<'o, Remote>) {
        self.begin_cold(head, &op());
    }

    /// Begins any WR, or latches the reason why it can't be posted.
    #[inline(never)]
    pub(super) fn begin_cold(&mut self, head: Head, op: &Op<'_, Remote>) {
        self.session.end_wr();
        self.session.wr = Current::NONE;
        if let Err(error) = self.try_begin(head, op) {
            self.session.fail(error);
        }
    }

    pub(super) fn try_begin(&mut self, head: Head, op: &Op<'_, Remote>) -> Result<(), PostError> {
        let Self { queue, producer, encoder, session } = self;
        if !producer.in_session() {
            return Err(PostError::NoSession);
        }
        let cursor = &mut session.cursor;
        if cursor.is_failed() {
            return Err(session.error);
        }
        let opcode = op.opcode();
        if !encoder.has_builder(opcode) {
            return Err(PostError::IllegalOpcode);
        }
        if is_local(op) {
            return encoder.push_local(producer, queue, cursor, head, op, false);
        }
        let csum = encoder.check_csum(queue, head.flags)?;
        encoder.check_atomics(opcode)?;
        let is_frame = encoder.kind == Kind::Raw && opcode == WrOpcode::SEND;
        let address_units = encoder.fast.address_units;
        let header = CTRL_UNITS
            + match op {
                Op::Tso(args) => eth::tso_units(encoder.fast.limits.max_tso_header, *args)?,
                _ if is_frame => eth::units(encoder.header_len()),
                _ => address_units + op_units(opcode),
            };
        session.taken = encoder.reserve_units(producer, queue, cursor, header, 0)?;
        let mut writer = WqeWriter::new(queue.view(), cursor.at);
        queue.record(cursor.at).wr_id.store(head.wr_id, Ordering::Relaxed);
        writer.put_ctrl1(encoder.fast.ctrl.second(head.flags, imm_or_key(op)));
        match op {
            Op::Tso(args) => drop(eth::put_tso(writer, csum, *args)?),
            _ if is_frame => {}
            _ => _ = put_op(&mut writer, CTRL_UNITS + address_units, op),
        }
        let flag_if = |which, flag| if which { flag } else { SlowPathFlags::empty() };
        let slow = SlowPathFlags::LONG
            | slow_flags(opcode)
            | flag_if(is_frame, SlowPathFlags::FRAME)
            | flag_if(tso_args(op).is_some(), SlowPathFlags::TSO)
            | flag_if(csum, SlowPathFlags::CSUM);
        let takes = if address_units == 0 { Setters::DATA } else { Setters::BOTH };
        session.wr = Current {
            place: cursor.at,
            data: cursor.at.unit(header),
            ctrl0: u64::from_be(encoder.fast.ctrl.first_of_units(cursor.at, opcode, header + 1)),
            max_entry: 0,
            state: CurrentState::new(takes, slow, header),
        };
        Ok(())
    }
}
