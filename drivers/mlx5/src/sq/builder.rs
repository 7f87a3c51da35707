// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3): a batch whose state is in the queue.
//!
//! A builder writes the segments that its opcode determines and leaves room for the destination. Its setters then write
//! destination and data, in any order, because the position of each follows from transport and opcode. The last setter
//! completes the WQE. The missing setters of a WR are a few bits, which are checked when the next WR begins and when the
//! session ends. An error clears them, and setters that are not expected do nothing.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's builder trait, whose `wr_set_sges` has a contract about the entries' memory.

use crate::memory::{BlockIndex, CompletedCount, SqView, UnitIndex};
use crate::sq::consts::{Kind, are_plain};
use crate::sq::cursor::{Cursor, record_end};
use crate::sq::{SendQueue, umr_op};
use crate::wqe::plain::{Carries, Destination, Local, WqeOp, Written, op_units, put_destination, put_op};
use crate::wqe::{AV_UNITS, Ah, Answer, CTRL_UNITS, Remote, Sge, WqeWriter, eth, ordinary_words};
use crate::wqe::{
    SHORT_INLINE, put_entries, put_inline, put_ordinary, put_ordinary_inline, put_short_inline,
};
use bitflags::bitflags;
use core::sync::atomic::Ordering;
use uverbs_core::provider::op::MwBind;
use uverbs_core::provider::opcodes::{is_atomic, takes_inline};
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{Operation, Payload, PostError, Wr, WrBuilder};
use uverbs_core::wr::{Sge as RawSge, WrOpcode};

bitflags! {
    /// The setters of a WR.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Setters: u8 {
        const DATA = 1;
        const ADDRESS = 2;
    }

    /// The properties of a WR that exclude it from the fast path of some setters.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct SlowPathFlags: u8 {
        /// An atomic: it has a response of 8 bytes.
        const ATOMIC = 1;
        /// Its data can't be inline.
        const NO_INLINE = 2;
        /// A raw packet, whose Ethernet segment the data setter writes.
        const FRAME = 4;
        /// A TSO send.
        const TSO = 8;
        /// A raw packet for which the device computes checksums.
        const CSUM = 16;
        /// Its room is checked when its length is known.
        const LONG = 32;
    }
}

/// A builder session. The producer stores whether it is open.
///
/// A WR of the fast path is finished when it begins, as if it had one entry: the cursor is behind it. Data of another
/// length correct that. A WR with [`LONG`](SlowPathFlags::LONG) is finished by its data setter.
#[derive(Debug)]
pub(crate) struct Session {
    cursor: Cursor,
    wr: Current,
    /// The WRs that a `LONG` WR counts beyond one so far.
    taken: u32,
    /// The error of a failed cursor.
    error: PostError,
}

/// The WR of the setters. Its `wr_id` is in the record of its block, and its control segment is written as if one entry
/// followed.
#[derive(Clone, Copy, Debug)]
struct Current {
    /// Its first block.
    place: BlockIndex,
    /// The unit at which its data begin.
    data: UnitIndex,
    /// The first word of its control segment, in host order, with one unit of data.
    ctrl0: u64,
    /// The longest entry that may be the WR's only one without further checks; 0 if no data setter is missing.
    max_entry: u32,
    state: CurrentState,
}

/// The properties of a WR, and its missing setters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(4))]
struct CurrentState {
    /// The setters that were not called yet.
    needs: Setters,
    /// The setters of the WR.
    takes: Setters,
    slow: SlowPathFlags,
    /// The units before its data.
    units: u8,
}

impl CurrentState {
    /// The state of a WR that has `units` units before its data.
    const fn new(takes: Setters, slow: SlowPathFlags, units: u32) -> Self {
        Self { needs: takes, takes, slow, units: units as u8 }
    }

    /// Whether its data are missing, and it has no flags except `but`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    const fn takes_data(self, but: SlowPathFlags) -> bool {
        self.needs.contains(Setters::DATA) && self.slow.difference(but).is_empty()
    }
}

impl Current {
    /// No WR: no setter is expected.
    const NONE: Self = Self {
        place: BlockIndex::of(0),
        data: BlockIndex::of(0).unit(0),
        ctrl0: 0,
        max_entry: 0,
        state: CurrentState {
            needs: Setters::empty(),
            takes: Setters::empty(),
            slow: SlowPathFlags::empty(),
            units: 0,
        },
    };

    /// Removes the WR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    const fn clear(&mut self) {
        self.max_entry = 0;
        self.state = Self::NONE.state;
    }

    /// Called after the data were set.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn end_data(&mut self) {
        self.max_entry = 0;
        self.state.needs.remove(Setters::DATA);
    }
}

impl Session {
    /// No session.
    pub(crate) const fn new() -> Self {
        Self { cursor: Cursor::failed(), wr: Current::NONE, taken: 0, error: PostError::NoSession }
    }

    /// Latches an error: removes the WR, and no further one has room.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, error: PostError) {
        if !self.cursor.is_failed() {
            (self.cursor.head, self.error) = (Cursor::FAILED, error);
        }
        self.wr = Current::NONE;
    }

    /// Ends the data of a WR of the fast path, which a setter wrote into `units` units, at least one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn end_fast(&mut self, view: SqView<'_>, wr: &Current, units: u32, carries: Carries) {
        WqeWriter::new(view, wr.place).put_ctrl0((wr.ctrl0 - 1 + u64::from(units)).to_be());
        self.cursor.finish_again(view, wr.place, Written { ds: u32::from(wr.state.units) + units, carries });
        self.wr.end_data();
    }

    /// [`end_fast`](Self::end_fast) for at most [`SHORT_INLINE`] bytes of inline data.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn end_short(&mut self, view: SqView<'_>, wr: &Current, units: u32) {
        WqeWriter::new(view, wr.place).put_ctrl0((wr.ctrl0 - 1 + u64::from(units)).to_be());
        let written = Written { ds: u32::from(wr.state.units) + units, carries: Carries::Inline };
        self.cursor.finish_short(view, wr.place, written);
        self.wr.end_data();
    }

    /// Ends the last WR, whose setters must all have been called.
    fn end_wr(&mut self) {
        if !self.wr.state.needs.is_empty() {
            self.fail(PostError::MissingSetter);
        }
    }

    /// Reports a setter that the WR does not have, or that was called already.
    #[cold]
    #[inline(never)]
    fn refuse_setter(&mut self, which: Setters) {
        let is_doubled = self.wr.state.takes.contains(which);
        self.fail(if is_doubled { PostError::DoubledSetter } else { PostError::OrphanSetter });
    }
}

/// Fields of a control segment, in the host order of its two words: the number of units, the index, the signature.
const DS: u64 = 0x3f;
const INDEX: u64 = 0xffff << 40;
const SIGNATURE: u64 = 0xff << 56;

/// The words of a unit, in the order of the memory.
fn words_of(unit: &[u8; 16]) -> [u64; 2] {
    zerocopy::transmute!(*unit)
}

/// The local operation of a builder.
#[cfg_attr(not(debug_assertions), inline(always))]
fn local_of(op: &WqeOp<'_>) -> Option<Local> {
    match op.local {
        // `wr_bind_mw` is for windows of type 2, whatever type the window has (ibv_wr_post(3)).
        Some(Local::Bind(bind)) => Some(Local::Bind(MwBind { mw_type: 2, ..bind })),
        local => local,
    }
}

/// The flags that follow from an opcode.
const fn slow_flags(opcode: WrOpcode) -> SlowPathFlags {
    let atomic = if is_atomic(opcode) { SlowPathFlags::ATOMIC } else { SlowPathFlags::empty() };
    let no_inline = if takes_inline(opcode) { SlowPathFlags::empty() } else { SlowPathFlags::NO_INLINE };
    atomic.union(no_inline)
}

impl SendQueue {
    /// A writer at the WQE of the WR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn writer(&self) -> WqeWriter<'_> {
        WqeWriter::new(self.queue.view(), self.session.wr.place)
    }

    /// Ends the data of a WR, which a setter wrote into `units` units.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn end_data(&mut self, units: u32, carries: Carries) {
        let Self { queue, session, .. } = self;
        let (wr, view) = (session.wr, queue.view());
        let written = Written::new(u32::from(wr.state.units) + units, carries);
        if wr.state.slow.contains(SlowPathFlags::LONG) {
            session.cursor.finish_recorded(view, written);
        }
        session.end_fast(view, &wr, units, written.carries);
    }

    /// Begins a WR of the fast path, for which there is room: finishes it, and writes the segments of its opcode from
    /// `unit` on.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin_at<O: Operation<Remote = Remote>>(&mut self, unit: u32, takes: Setters, wr: Wr, op: &O) {
        let Self { queue, encoder, session, .. } = self;
        let (place, op) = (session.cursor.at, WqeOp::of(op));
        let units = unit + op_units(O::OPCODE);
        // The constants are those of a destination of the queue's usual length; that of a TSO send has another one.
        let more = if O::OPCODE.0 == WrOpcode::TSO.0 { unit - CTRL_UNITS } else { 1 };
        let ctrl0 = u64::from_be(encoder.fast.ctrl.first(place, O::OPCODE, more.into()));
        // The session is stored first, because fewer values are in registers for the stores to the queue then.
        session.wr = Current {
            place,
            data: place.unit(units),
            ctrl0,
            max_entry: if is_atomic(O::OPCODE) { 0 } else { MAX_SGE_LENGTH - 1 },
            state: CurrentState::new(takes, const { slow_flags(O::OPCODE) }, units),
        };
        let written = Written::new(units + 1, Carries::Entries);
        let head = session.cursor.advance(written);
        let view = queue.view();
        let mut writer = WqeWriter::new(view, place);
        writer.put_ctrl0(ctrl0.to_be());
        writer.put_ctrl1(encoder.fast.ctrl.second(wr.flags, op.imm));
        let result = put_op(&mut writer, unit, &op);
        view.record(place).wr_id.store(wr.wr_id, Ordering::Relaxed);
        record_end(view, place, head, written);
        if let Err(error) = result {
            session.fail(error);
        }
    }

    /// [`begin_at`](Self::begin_at) for a queue whose WRs have a destination.
    #[inline(never)]
    fn begin_addressed<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: O) {
        // With a constant length of the destination it takes 30 instructions less.
        if self.encoder.fast.address_units == AV_UNITS {
            self.begin_at(CTRL_UNITS + AV_UNITS, Setters::all(), wr, &op);
        } else {
            self.begin_to_srq(wr, op);
        }
    }

    /// [`begin_at`](Self::begin_at) for a destination of one unit: the only other kind (XRC).
    #[inline(never)]
    fn begin_to_srq<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: O) {
        self.begin_at(CTRL_UNITS + 1, Setters::all(), wr, &op);
    }

    /// [`begin_at`](Self::begin_at) for a frame without a header in the WQE, or with that of a TSO send. The number of units
    /// before the data is constant only in the first case.
    #[inline(never)]
    fn begin_frame<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: O) {
        let Some(args) = op.tso() else {
            let writer = WqeWriter::new(self.queue.view(), self.session.cursor.at);
            // The segment, and the unit behind it, which must not have bytes of an old WQE if there are no data.
            (CTRL_UNITS..CTRL_UNITS + 2).for_each(|unit| writer.put(unit, [0; 2]));
            return self.begin_at(CTRL_UNITS + 1, Setters::DATA, wr, &op);
        };
        let Self { queue, encoder, session, .. } = self;
        let limits = &encoder.fast.limits;
        let writer = WqeWriter::new(queue.view(), session.cursor.at);
        match eth::tso_units(limits.max_tso_header, args).and_then(|_| eth::put_tso(writer, false, args)) {
            Ok(units) => {
                let max_entry = limits.max_tso.min(MAX_SGE_LENGTH - 1);
                self.begin_at(CTRL_UNITS + units, Setters::DATA, wr, &op);
                // The setter checks the length of longer data.
                (self.session.wr.max_entry, self.session.wr.state.slow) = (max_entry, SlowPathFlags::TSO);
            }
            Err(error) => session.fail(error),
        }
    }

    /// Begins a local operation that takes the fast path, and returns whether it did.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin_local(&mut self, opcode: WrOpcode, wr: Wr, local: &Local) -> bool {
        let Self { queue, producer, encoder, session } = self;
        session.wr.clear();
        encoder.fast.has_local_builder(opcode)
            && encoder.put_local(producer, queue.view(), &mut session.cursor, wr, local)
    }

    /// Begins any WR, or latches the reason why it can't be posted.
    #[inline(never)]
    fn begin_cold<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: O) {
        self.session.end_wr();
        self.session.wr = Current::NONE;
        if let Err(error) = self.try_begin(wr, &op) {
            self.session.fail(error);
        }
    }

    fn try_begin<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: &O) -> Result<(), PostError> {
        let Self { queue, producer, encoder, session } = self;
        if !producer.in_session() {
            return Err(PostError::NoSession);
        }
        let cursor = &mut session.cursor;
        if cursor.is_failed() {
            return Err(session.error);
        }
        if !encoder.has_builder(O::OPCODE) {
            return Err(PostError::IllegalOpcode);
        }
        let op = WqeOp::of(op);
        if !O::HAS_DATA {
            return match local_of(&op) {
                Some(local) => encoder.push_local(producer, queue, cursor, wr, &local, false),
                None => Err(PostError::IllegalOpcode),
            };
        }
        let csum = encoder.check_csum(queue, wr.flags)?;
        encoder.check_atomics(O::OPCODE)?;
        let is_frame = encoder.kind == Kind::Raw && O::OPCODE == WrOpcode::SEND;
        let address_units = encoder.fast.address_units;
        let header = CTRL_UNITS
            + match op.tso {
                Some(args) => eth::tso_units(encoder.fast.limits.max_tso_header, args)?,
                None if is_frame => eth::units(encoder.header_len()),
                None => address_units + op_units(O::OPCODE),
            };
        session.taken = encoder.reserve_units(producer, queue, cursor, header, 0)?;
        let mut writer = WqeWriter::new(queue.view(), cursor.at);
        queue.record(cursor.at).wr_id.store(wr.wr_id, Ordering::Relaxed);
        writer.put_ctrl1(encoder.fast.ctrl.second(wr.flags, op.imm));
        match op.tso {
            Some(args) => drop(eth::put_tso(writer, csum, args)?),
            None if is_frame => {}
            None => drop(put_op(&mut writer, CTRL_UNITS + address_units, &op)?),
        }
        let flag_if = |which, flag| if which { flag } else { SlowPathFlags::empty() };
        let slow = SlowPathFlags::LONG
            | slow_flags(O::OPCODE)
            | flag_if(is_frame, SlowPathFlags::FRAME)
            | flag_if(op.tso.is_some(), SlowPathFlags::TSO)
            | flag_if(csum, SlowPathFlags::CSUM);
        let takes = if address_units == 0 { Setters::DATA } else { Setters::all() };
        session.wr = Current {
            place: cursor.at,
            data: cursor.at.unit(header),
            ctrl0: u64::from_be(encoder.fast.ctrl.first_of_units(cursor.at, O::OPCODE, header + 1)),
            max_entry: 0,
            state: CurrentState::new(takes, slow, header),
        };
        Ok(())
    }

    /// Checks that data of up to `units` units fit, unless that is certain.
    fn reserve_data(&mut self, units: usize) -> Result<(), PostError> {
        let Self { queue, producer, encoder, session } = self;
        let state = session.wr.state;
        if !state.slow.contains(SlowPathFlags::LONG) {
            return Ok(());
        }
        let units = u32::from(state.units).saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        encoder.reserve_units(producer, queue, &mut session.cursor, units, session.taken).map(drop)
    }

    /// Sets the only entry of any WR. Its fields are passed in registers.
    ///
    /// # Safety
    /// The entry's memory fulfils the contract of [`WrBuilder::wr_set_sge`].
    #[inline(never)]
    unsafe fn set_entry(&mut self, addr: u64, length: u32, lkey: u32) {
        let sge = RawSge { addr, length, lkey };
        let Self { queue, session: Session { wr, .. }, .. } = self;
        let atomic = SlowPathFlags::ATOMIC.union(SlowPathFlags::NO_INLINE);
        if wr.state.takes_data(atomic) && (8..MAX_SGE_LENGTH).contains(&length) {
            WqeWriter::new(queue.view(), wr.place).put_far(wr.state.units.into(), ordinary_words(sge));
            return wr.end_data();
        }
        // SAFETY: the entry's memory fulfils the contract of `wr_set_sges` (the contract of this function).
        unsafe { self.set_entries_cold(&[sge]) }
    }

    /// Sets the entries of any WR.
    ///
    /// # Safety
    /// The entries' memory fulfils the contract of [`WrBuilder::wr_set_sges`].
    #[inline(never)]
    unsafe fn set_entries_cold(&mut self, entries: &[RawSge]) {
        if !self.session.wr.state.needs.contains(Setters::DATA) {
            return self.session.refuse_setter(Setters::DATA);
        }
        // SAFETY: the entries' memory fulfils the contract of `wr_set_sges` (the contract of this function).
        match unsafe { self.put_entries_cold(entries) } {
            Ok(units) => self.end_data(units, Carries::Entries),
            Err(error) => self.session.fail(error),
        }
    }

    /// # Safety
    /// The entries' memory fulfils the contract of [`WrBuilder::wr_set_sges`].
    unsafe fn put_entries_cold(&mut self, entries: &[RawSge]) -> Result<u32, PostError> {
        self.reserve_data(entries.len().min(self.encoder.fast.limits.max_sge as usize))?;
        let (CurrentState { slow, units, .. }, writer) = (self.session.wr.state, self.writer());
        let encoder = &self.encoder;
        let (limits, units) = (&encoder.fast.limits, units.into());
        if slow.contains(SlowPathFlags::FRAME) {
            let csum = slow.contains(SlowPathFlags::CSUM);
            let entries = entries.iter().copied();
            // SAFETY: if `encoder.l2`, the entries' memory is readable: the contract of `wr_set_sges` requires the memory's
            // own address for raw packets.
            return unsafe { eth::put_frame_sges(writer, limits, csum, encoder.l2, entries) }
                .map(|end| end - units);
        }
        if slow.contains(SlowPathFlags::TSO) {
            limits.check_tso(entries.iter().map(|entry| u64::from(entry.length)).sum())?;
        }
        let answer = if slow.contains(SlowPathFlags::ATOMIC) { Answer::KeepCount } else { Answer::None };
        put_entries(writer, units, limits, answer, entries)
    }

    /// Sets inline data of at most [`SHORT_INLINE`] bytes in one buffer.
    #[inline(never)]
    fn set_inline_short<P: Payload<Sge>>(&mut self, data: P) {
        let Self { queue, session, encoder, .. } = self;
        // A copy, because a value in memory would be loaded again after the stores to the queue.
        let (wr, view) = (session.wr, queue.view());
        if wr.state.takes_data(SlowPathFlags::empty())
            && let Some(bytes) = data.one_buf()
        {
            let writer = WqeWriter::new(view, wr.place);
            let units = put_short_inline(writer, wr.state.units.into(), &encoder.fast.limits, bytes);
            if let Some(units) = units {
                return session.end_short(view, &wr, units as u32);
            }
        }
        self.set_inline_cold(data);
    }

    /// Sets inline data that are long or several buffers.
    #[inline(never)]
    fn set_inline_far<P: Payload<Sge>>(&mut self, data: P) {
        let Self { queue, session, encoder, .. } = self;
        let state = session.wr.state;
        if state.takes_data(SlowPathFlags::empty()) {
            let writer = WqeWriter::new(queue.view(), session.wr.place);
            let units = put_ordinary_inline(writer, state.units.into(), &encoder.fast.limits, &data);
            if let Some(units) = units {
                // Loaded again, because there are not enough registers to keep it.
                let wr = session.wr;
                return session.end_fast(queue.view(), &wr, units as u32, Carries::Inline);
            }
        }
        self.set_inline_cold(data);
    }

    /// Sets the inline data of any WR.
    #[inline(never)]
    fn set_inline_cold<P: Payload<Sge>>(&mut self, data: P) {
        if !self.session.wr.state.needs.contains(Setters::DATA) {
            return self.session.refuse_setter(Setters::DATA);
        }
        match self.put_inline_cold(&data) {
            Ok(units) => self.end_data(units, Carries::Inline),
            Err(error) => self.session.fail(error),
        }
    }

    fn put_inline_cold<P: Payload<Sge>>(&mut self, data: &P) -> Result<u32, PostError> {
        let CurrentState { slow, units, .. } = self.session.wr.state;
        if slow.contains(SlowPathFlags::NO_INLINE) {
            return Err(PostError::IllegalFlag);
        }
        if slow == SlowPathFlags::TSO {
            // The share of a TSO send has room for entries only: the WR is not finished yet, as in the slow path.
            let Self { session, .. } = self;
            (session.cursor.at, session.taken) = (session.wr.place, 0);
            session.cursor.head = session.cursor.head.wrapping_sub(1);
            session.wr.state.slow |= SlowPathFlags::LONG;
        }
        let len = data.inline_len().min(self.encoder.fast.limits.max_inline as usize);
        self.reserve_data((len + 19) / 16)?;
        let (writer, encoder, units) = (self.writer(), &self.encoder, units.into());
        let limits = &encoder.fast.limits;
        if slow.contains(SlowPathFlags::FRAME) {
            let csum = slow.contains(SlowPathFlags::CSUM);
            return eth::put_frame_inline(writer, limits, csum, encoder.l2, data).map(|end| end - units);
        }
        put_inline(writer, units, limits, data)
    }

    /// Sets the destination of a WR, of a queue of this `kind`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn set_address(&mut self, kind: Kind, to: Destination<'_>) {
        if self.encoder.kind != kind {
            // The WR has a setter for its destination, but not this one.
            return self.session.fail(PostError::OrphanSetter);
        }
        if !self.session.wr.state.needs.contains(Setters::ADDRESS) {
            return self.session.refuse_setter(Setters::ADDRESS);
        }
        put_destination(&mut self.writer(), to);
        self.session.wr.state.needs.remove(Setters::ADDRESS);
    }

    /// `mlx5dv_wr_set_dc_addr`: the target of a DC initiator's WR.
    #[inline]
    pub fn wr_set_dc_addr(&mut self, ah: &Ah, remote_dctn: u32, remote_dc_key: u64) {
        self.set_address(Kind::Dc, Destination::DcTarget(ah, remote_dctn, remote_dc_key));
    }

    /// [`wr_set_dc_addr`](Self::wr_set_dc_addr) with a stream of the initiator (`mlx5dv_wr_set_dc_addr_stream`).
    pub fn wr_set_dc_addr_stream(&mut self, ah: &Ah, remote_dctn: u32, remote_dc_key: u64, stream: u16) {
        if self.encoder.kind == Kind::Dc && self.session.wr.state.needs.contains(Setters::ADDRESS) {
            self.writer().add_stream(stream);
        }
        self.wr_set_dc_addr(ah, remote_dctn, remote_dc_key);
    }

    /// `mlx5dv_wr_raw_wqe`: a WR whose WQE the program has written, in units of 16 bytes. This function replaces its index
    /// and clears its signature; the program is responsible for all other fields, also for its flags. Its completion has the
    /// opcode [`DRIVER2`](uverbs_core::wc::WcOpcode::DRIVER2). The QP must have been created with
    /// [`raw_wqes`](crate::dv::QpOptions::raw_wqes).
    ///
    /// As in every builder, an error fails the batch: a length that is not that in the control segment, or more than fits
    /// into the queue.
    ///
    /// # Safety
    /// The memory that the WQE names fulfils the contract of [`WrBuilder::wr_set_sges`]. If the WQE changes a key, the
    /// memory that is accessible by that key does, until the key is changed again or destroyed.
    pub unsafe fn wr_raw_wqe(&mut self, wr_id: u64, wqe: &[[u8; 16]]) {
        self.session.end_wr();
        self.session.wr = Current::NONE;
        if let Err(error) = self.put_raw_wqe(wr_id, wqe) {
            self.session.fail(error);
        }
    }

    fn put_raw_wqe(&mut self, wr_id: u64, wqe: &[[u8; 16]]) -> Result<(), PostError> {
        let Self { queue, producer, encoder, session } = self;
        let cursor = &mut session.cursor;
        if !producer.in_session() {
            return Err(PostError::NoSession);
        }
        if cursor.is_failed() {
            return Err(session.error);
        }
        if !queue.qp.takes_raw_wqes() {
            return Err(PostError::IllegalOpcode);
        }
        let Some((first, rest)) = wqe.split_first() else { return Err(PostError::InvalidArgument) };
        let [ctrl0, ctrl1] = words_of(first).map(u64::from_be);
        let ds = (ctrl0 & DS) as u32;
        if ds as usize != wqe.len() {
            return Err(PostError::InvalidArgument);
        }
        encoder.reserve_units(producer, queue, cursor, ds, 0)?;
        let writer = WqeWriter::new(queue.view(), cursor.at);
        let index = u64::from(cursor.at.index() & 0xffff);
        writer.put_ctrl0((ctrl0 & !INDEX | index << INDEX.trailing_zeros()).to_be());
        writer.put_ctrl1((ctrl1 & !SIGNATURE).to_be());
        for (unit, bytes) in (CTRL_UNITS..).zip(rest) {
            writer.put_far(unit, words_of(bytes));
        }
        let record = queue.record(cursor.at);
        cursor.finish(queue.view(), wr_id, Written::new(ds, Carries::Entries));
        record.set_done(CompletedCount::new(cursor.head, umr_op::RAW));
        Ok(())
    }

    /// `wr_start` if something must be checked first.
    #[cold]
    #[inline(never)]
    fn start_cold(&mut self) {
        let Self { queue, producer, session, .. } = self;
        if let Some(cursor) = producer.open_fenced() {
            session.cursor = cursor;
            return session.wr.clear();
        }
        if producer.in_session() {
            return session.fail(PostError::SessionOpen);
        }
        let (cursor, error) = match producer.open_session_cold(queue) {
            Ok(cursor) => (cursor, PostError::NoSession),
            Err(error) => (Cursor::failed(), error),
        };
        (session.cursor, session.wr, session.error) = (cursor, Current::NONE, error);
    }

    /// `wr_complete` if something must be checked. (Not marked as cold, because it would then be called from a stack frame
    /// that the fast path builds, too.)
    #[inline(never)]
    fn complete_cold(&mut self) -> Result<(), PostError> {
        let Self { queue, producer, session, .. } = self;
        if !producer.in_session() {
            return Err(PostError::NoSession);
        }
        session.end_wr();
        if session.cursor.is_failed() {
            let _ = producer.end_session(queue, None);
            return Err(session.error);
        }
        let cursor = core::mem::replace(&mut session.cursor, Cursor::failed());
        producer.end_session(queue, Some(&cursor))
    }
}

impl WrBuilder for SendQueue {
    #[inline]
    fn wr_start(&mut self) {
        let Some(cursor) = self.producer.open_session() else { return self.start_cold() };
        self.session.cursor = cursor;
        self.session.wr.clear();
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_is_open(&self) -> bool {
        self.producer.in_session()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_begin<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: O) {
        if !O::HAS_DATA
            && self.session.wr.state.needs.is_empty()
            && let Some(local) = local_of(&WqeOp::of(&op))
            && self.begin_local(O::OPCODE, wr, &local)
        {
            return;
        }
        let session = &self.session;
        let fast = &self.encoder.fast;
        let is_fast = O::HAS_DATA
            && session.wr.state.needs.is_empty()
            && are_plain(wr.flags)
            && session.cursor.has_room();
        if is_fast && fast.has_connected_builder(O::OPCODE) {
            self.begin_at(CTRL_UNITS, Setters::DATA, wr, &op);
        } else if is_fast && fast.has_addressed_builder(O::OPCODE) {
            self.begin_addressed(wr, op);
        } else if is_fast
            && matches!(O::OPCODE, WrOpcode::SEND | WrOpcode::TSO)
            && fast.has_frame_builder(O::OPCODE)
        {
            self.begin_frame(wr, op);
        } else {
            self.begin_cold(wr, op);
        }
    }

    #[inline]
    fn wr_set_ud_addr(&mut self, ah: &Ah, remote_qpn: u32, remote_qkey: u32) {
        self.set_address(Kind::Datagram, Destination::Datagram(ah, remote_qpn, remote_qkey));
    }

    #[inline]
    fn wr_set_xrc_srqn(&mut self, remote_srqn: u32) {
        self.set_address(Kind::Xrc, Destination::Srq(remote_srqn));
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_set_sge(&mut self, sge: RawSge) {
        let Self { queue, session: Session { wr, .. }, .. } = self;
        // The length of an empty entry wraps around.
        if sge.length.wrapping_sub(1) < wr.max_entry {
            let [count_key, addr] = ordinary_words(sge);
            let to = queue.view().unit_at(wr.data);
            to[0].store(count_key, Ordering::Relaxed);
            to[1].store(addr, Ordering::Relaxed);
            return wr.end_data();
        }
        // SAFETY: the entry's memory fulfils the contract of `wr_set_sge` (the contract of this function).
        unsafe { self.set_entry(sge.addr, sge.length, sge.lkey) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_set_sges(&mut self, sges: &[RawSge]) {
        let Self { queue, session, encoder, .. } = self;
        let state = session.wr.state;
        if state.takes_data(SlowPathFlags::NO_INLINE) && !sges.is_empty() {
            let writer = WqeWriter::new(queue.view(), session.wr.place);
            if let Some(units) = put_ordinary(writer, state.units.into(), &encoder.fast.limits, sges) {
                // Loaded again, because there are not enough registers to keep it.
                let wr = session.wr;
                return session.end_fast(queue.view(), &wr, units, Carries::Entries);
            }
        }
        // SAFETY: the entries' memory fulfils the contract of this function.
        unsafe { self.set_entries_cold(sges) };
    }

    #[inline]
    fn wr_set_inline<P: Payload<Sge>>(&mut self, data: P) {
        // Two functions, so that long data do not pay for the registers that short data need.
        match data.one_buf() {
            Some(bytes) if bytes.len() <= SHORT_INLINE => self.set_inline_short(data),
            _ => self.set_inline_far(data),
        }
    }

    #[cold]
    fn wr_latch(&mut self, error: PostError) {
        if self.wr_is_open() {
            self.session.fail(error);
        }
    }

    #[inline]
    fn wr_complete(&mut self) -> Result<(), PostError> {
        let Self { queue, producer, session, .. } = self;
        if session.wr.state.needs.is_empty() && producer.complete_session(queue, &mut session.cursor) {
            return Ok(());
        }
        self.complete_cold()
    }

    #[inline]
    fn wr_abort(&mut self) {
        self.session.fail(PostError::NoSession);
        let _ = self.producer.end_session(&self.queue, None);
    }
}
