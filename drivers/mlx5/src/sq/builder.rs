// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3): a batch whose state lives in the queue.
//!
//! A builder writes what its opcode says and leaves room for the destination; its setters go back and add destination and
//! data, in any order, since the place of each follows from transport and opcode. The last one completes the WQE. What a WR
//! still needs is a few bits, checked when the next begins and when the session ends; an error clears them, and
//! setters that find theirs missing do nothing.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's builder trait, whose `wr_set_sges` carries a promise about memory.

use crate::memory::BlockIndex;
use crate::sq::SendQueue;
use crate::sq::consts::{Kind, are_plain};
use crate::sq::cursor::Cursor;
use crate::wqe::plain::{Carries, Destination, Local, WqeOp, Written, op_units, put_destination, put_op};
use crate::wqe::{
    Ah, Answer, CTRL_UNITS, Remote, SendEntry as _, Sge, WqeWriter, ctrl_base, ctrl0, eth, hw_opcode,
};
use crate::wqe::{put_entries, put_inline};
use bitflags::bitflags;
use core::fmt;
use core::hint::cold_path;
use core::sync::atomic::Ordering;
use uverbs_core::provider::opcodes::{is_atomic, takes_inline};
use uverbs_core::provider::{Operation, Payload, PostError, Wr, WrBuilder};
use uverbs_core::wr::{Sge as RawSge, WrOpcode};

bitflags! {
    /// The setters of a WR.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Setters: u8 {
        const DATA = 1;
        const ADDRESS = 2;
    }

    /// What is not plain about a WR.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct SlowPathFlags: u8 {
        /// It answers with 8 bytes.
        const ATOMIC = 1;
        /// Its data can't be inline.
        const NO_INLINE = 2;
        /// A raw packet, whose header the data setter writes.
        const FRAME = 4;
        /// A segmented send.
        const TSO = 8;
        /// A raw packet whose checksums the device computes.
        const CSUM = 16;
        /// Its room is checked when its length is known.
        const LONG = 32;
    }
}

/// A builder session. Whether it is open, the producer knows.
#[derive(Debug)]
pub(crate) struct Session {
    cursor: Cursor,
    wr: Current,
    /// That of every WR of the queue, to begin with.
    queue: Current,
    /// What the WR counts beyond one so far, if it is `LONG`.
    taken: u32,
    /// Why the cursor has failed.
    error: PostError,
}

/// The WR that setters belong to. Its `wr_id` is in the record of its block already, and its control segment is written as if
/// one entry would follow.
///
/// One word, because all calls of a session load or store it. From the low bits: the units written so far (8 bits, of which
/// the top says that they have inline data), the QP number and the hardware's opcode where the control segment has them,
/// [`SlowPathFlags`] from bit 40, the setters that it has from bit 48 and those that were not called yet from bit 56.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Current(u64);

impl Current {
    const INLINE: u64 = 0x80;
    const SLOW: u32 = 40;
    const TAKES: u32 = 48;
    const NEEDS: u32 = 56;

    /// That of a queue, which every WR is added to: its QP's number, its setters and the units of its addresses.
    const fn of_queue(qp_num: u32, address_units: u32) -> Self {
        let setters = setters(address_units).bits() as u64;
        let base = ctrl_base(qp_num) | (CTRL_UNITS + address_units) as u64;
        Self(base | setters << Self::TAKES | setters << Self::NEEDS)
    }

    /// With an opcode, so many units more, and what is not plain about it.
    #[inline(always)]
    const fn with(self, opcode: u8, units: u32, slow: SlowPathFlags) -> Self {
        Self(self.0 + ((opcode as u64) << 32 | units as u64 | (slow.bits() as u64) << Self::SLOW))
    }

    /// The unit where data begin, and the WQE's units when they are written.
    #[inline(always)]
    const fn units(self) -> u32 {
        self.0 as u32 & 0x3f
    }

    #[inline(always)]
    const fn slow(self) -> SlowPathFlags {
        SlowPathFlags::from_bits_retain((self.0 >> Self::SLOW) as u8)
    }

    #[inline(always)]
    const fn takes(self) -> Setters {
        Setters::from_bits_retain((self.0 >> Self::TAKES) as u8)
    }

    #[inline(always)]
    const fn needs(self) -> Setters {
        Setters::from_bits_retain((self.0 >> Self::NEEDS) as u8)
    }

    /// Whether it waits for its data only, and is plain but for these flags.
    #[inline(always)]
    const fn is_plain(self, but: SlowPathFlags) -> bool {
        const DATA: u64 = (Setters::DATA.bits() as u64) << Current::NEEDS;
        let ignored = (but.bits() as u64) << Self::SLOW | 0xff << Self::TAKES;
        (self.0 & !ignored) >> Self::SLOW == DATA >> Self::SLOW
    }

    /// After a setter was called.
    #[inline(always)]
    const fn without(self, which: Setters) -> Self {
        Self(self.0 & !((which.bits() as u64) << Self::NEEDS))
    }

    /// The control segment's first word, with so many units of data. They are not written yet, so the units have no mark.
    #[inline(always)]
    const fn ctrl0(self, place: BlockIndex, data: u32) -> u64 {
        ctrl0((self.0 & 0xff_ffff_ffff) + data as u64, place, 0, 0)
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current")
            .field("units", &self.units())
            .field("slow", &self.slow())
            .field("takes", &self.takes())
            .field("needs", &self.needs())
            .finish()
    }
}

impl Session {
    /// Of a queue whose WRs have so many units of address.
    pub(crate) fn new(qp_num: u32, address_units: u32) -> Self {
        Self {
            cursor: Cursor::failed(),
            wr: Current::default(),
            queue: Current::of_queue(qp_num, address_units),
            taken: 0,
            error: PostError::NoSession,
        }
    }

    /// Latches an error: there is no WR any more, and no room for one.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, error: PostError) {
        if !self.cursor.is_failed() {
            (self.cursor.head, self.error) = (Cursor::FAILED, error);
        }
        self.wr = Current::default();
    }

    /// Ends the last WR, which must have got its setters.
    fn end_wr(&mut self) {
        if !self.wr.needs().is_empty() {
            self.fail(PostError::MissingSetter);
        }
    }

    /// A setter that the WR does not take, or not any more.
    #[cold]
    #[inline(never)]
    fn refuse_setter(&mut self, which: Setters) {
        let is_doubled = self.wr.takes().contains(which);
        self.fail(if is_doubled { PostError::DoubledSetter } else { PostError::OrphanSetter });
    }
}

/// The setters of a WR with data.
#[inline(always)]
const fn setters(address_units: u32) -> Setters {
    if address_units == 0 { Setters::DATA } else { Setters::all() }
}

/// What an opcode is by itself.
const fn slow_flags(opcode: WrOpcode) -> SlowPathFlags {
    let atomic = if is_atomic(opcode) { SlowPathFlags::ATOMIC } else { SlowPathFlags::empty() };
    let no_inline = if takes_inline(opcode) { SlowPathFlags::empty() } else { SlowPathFlags::NO_INLINE };
    atomic.union(no_inline)
}

impl SendQueue {
    /// Where the WQE of the WR is written.
    #[inline(always)]
    fn writer(&self) -> WqeWriter<'_> {
        WqeWriter::new(self.queue.view(), self.session.cursor.at)
    }

    /// Takes in that `which` was set, and moves behind the WQE if nothing is missing any more. `wr` is what the WR was
    /// before, but for its units.
    #[inline(always)]
    fn set(&mut self, which: Setters, wr: Current) {
        let Self { queue, session, .. } = self;
        let left = wr.without(which);
        session.wr = left;
        if left.needs().is_empty() {
            let carries = if wr.0 & Current::INLINE != 0 { Carries::Inline } else { Carries::Entries };
            session.cursor.finish_recorded(queue.view(), Written::new(wr.units(), carries));
        }
    }

    /// Ends a WR whose last setter wrote its data; it has `ds` units then.
    #[inline(always)]
    fn end_plain(&mut self, wr: Current, ds: u32, carries: Carries) {
        let Self { queue, session, .. } = self;
        session.wr = wr.without(Setters::DATA);
        session.cursor.finish_recorded(queue.view(), Written { ds, carries });
    }

    /// Takes in that a data setter wrote so many units with this writer.
    #[inline(always)]
    fn set_data(&mut self, wr: Current, units: u32, inline: bool) {
        let all = wr.units() + units;
        // It was written with one unit of data.
        if units != 1 {
            let writer = self.writer();
            writer.put_ctrl0(wr.ctrl0(writer.place(), units));
        }
        let inline = if inline { Current::INLINE } else { 0 };
        self.set(Setters::DATA, Current(wr.0 & !0xff | u64::from(all) | inline));
    }

    /// Begins a WR that takes the short way, for which there is room.
    #[inline(always)]
    fn begin_fast<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: &O) -> Result<(), PostError> {
        let (mut writer, fast) = (self.writer(), &self.encoder.fast);
        let op = WqeOp::of(op);
        // The record is the WQE's only, and the place is free: what stands there does not count before it is published.
        self.queue.record(writer.place()).wr_id.store(wr.wr_id, Ordering::Relaxed);
        writer.put_ctrl1(fast.ctrl.second(wr.flags, op.imm));
        // Of a connection the place is constant.
        match fast.address_units {
            0 => put_op(&mut writer, CTRL_UNITS, &op)?,
            units => put_op(&mut writer, CTRL_UNITS + units, &op)?,
        };
        let slow = const { slow_flags(O::OPCODE) };
        let wr = self.session.queue.with(const { hw_opcode(O::OPCODE) }, op_units(O::OPCODE), slow);
        writer.put_ctrl0(wr.ctrl0(writer.place(), 1));
        self.session.wr = wr;
        Ok(())
    }

    /// Begins any WR, or finds out why it can't be.
    #[inline(never)]
    fn begin_cold<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: O) {
        self.session.end_wr();
        self.session.wr = Current::default();
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
            return match op.local {
                // `wr_bind_mw` is for windows of type 2, whatever the window says of itself (ibv_wr_post(3)).
                Some(Local::Bind(mut bind)) => {
                    bind.mw_type = 2;
                    encoder.push_local(producer, queue, cursor, wr, &Local::Bind(bind), false)
                }
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
                Some(args) => eth::tso_units(encoder.max_tso_header, args)?,
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
        let more = header - CTRL_UNITS - address_units;
        session.wr = session.queue.with(hw_opcode(O::OPCODE), more, slow);
        writer.put_ctrl0(session.wr.ctrl0(cursor.at, 1));
        Ok(())
    }

    /// Makes sure that data of up to `units` fits, if that is not certain.
    fn reserve_data(&mut self, units: usize) -> Result<(), PostError> {
        let Self { queue, producer, encoder, session } = self;
        if !session.wr.slow().contains(SlowPathFlags::LONG) {
            return Ok(());
        }
        let units = session.wr.units().saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        encoder.reserve_units(producer, queue, &mut session.cursor, units, session.taken).map(drop)
    }

    /// The entries of any WR.
    ///
    /// # Safety
    /// As [`WrBuilder::wr_set_sges`].
    #[inline(never)]
    unsafe fn set_entries(&mut self, entries: &[RawSge]) {
        if !self.session.wr.needs().contains(Setters::DATA) {
            return self.session.refuse_setter(Setters::DATA);
        }
        let wr = self.session.wr;
        if wr.is_plain(SlowPathFlags::NO_INLINE) {
            let writer = self.writer();
            match put_entries(writer, wr.units(), &self.encoder.fast.limits, Answer::None, entries) {
                Ok(units) => {
                    let ds = wr.units() + units;
                    writer.put_ctrl0(wr.ctrl0(writer.place(), units));
                    let Written { ds, carries } = Written::new(ds, Carries::Entries);
                    self.end_plain(wr, ds, carries);
                }
                Err(error) => self.session.fail(error),
            }
            return;
        }
        // SAFETY: the caller's promise.
        match unsafe { self.put_entries(entries) } {
            Ok(units) => self.set_data(wr, units, false),
            Err(error) => self.session.fail(error),
        }
    }

    /// # Safety
    /// As [`WrBuilder::wr_set_sges`].
    #[inline(always)]
    unsafe fn put_entries(&mut self, entries: &[RawSge]) -> Result<u32, PostError> {
        let wr = self.session.wr;
        if wr.slow().difference(SlowPathFlags::NO_INLINE | SlowPathFlags::ATOMIC).is_empty() {
            let is_atomic = wr.slow().contains(SlowPathFlags::ATOMIC);
            let answer = if is_atomic { Answer::KeepCount } else { Answer::None };
            return put_entries(self.writer(), wr.units(), &self.encoder.fast.limits, answer, entries);
        }
        // SAFETY: the caller's promise.
        unsafe { self.put_entries_cold(entries) }
    }

    /// # Safety
    /// As [`WrBuilder::wr_set_sges`].
    #[inline(never)]
    unsafe fn put_entries_cold(&mut self, entries: &[RawSge]) -> Result<u32, PostError> {
        self.reserve_data(entries.len().min(self.encoder.fast.limits.max_sge as usize))?;
        let (wr, writer, encoder) = (self.session.wr, self.writer(), &self.encoder);
        let limits = &encoder.fast.limits;
        if wr.slow().contains(SlowPathFlags::FRAME) {
            let csum = wr.slow().contains(SlowPathFlags::CSUM);
            let entries = entries.iter().copied();
            // SAFETY: the caller's promise.
            let units = unsafe { eth::put_frame_sges(writer, limits, csum, encoder.l2, entries) }?;
            return Ok(units - wr.units());
        }
        if wr.slow().contains(SlowPathFlags::TSO) {
            encoder.check_tso(entries.iter().map(|entry| u64::from(entry.length)).sum())?;
        }
        let is_atomic = wr.slow().contains(SlowPathFlags::ATOMIC);
        let answer = if is_atomic { Answer::KeepCount } else { Answer::None };
        put_entries(writer, wr.units(), limits, answer, entries)
    }

    /// Inline data where the destination is missing, too, or something is not plain.
    #[inline(never)]
    fn set_inline_cold<P: Payload<Sge>>(&mut self, data: &P) {
        let wr = self.session.wr;
        if !wr.needs().contains(Setters::DATA) {
            return self.session.refuse_setter(Setters::DATA);
        }
        match self.put_inline_cold(data) {
            Ok(units) => self.set_data(wr, units, true),
            Err(error) => self.session.fail(error),
        }
    }

    /// The inline data of any WR.
    fn put_inline_cold<P: Payload<Sge>>(&mut self, data: &P) -> Result<u32, PostError> {
        let wr = self.session.wr;
        if wr.slow().contains(SlowPathFlags::NO_INLINE) {
            return Err(PostError::IllegalFlag);
        }
        let len = data.inline_len().min(self.encoder.fast.limits.max_inline as usize);
        self.reserve_data((len + 19) / 16)?;
        let (writer, encoder) = (self.writer(), &self.encoder);
        let limits = &encoder.fast.limits;
        if wr.slow().contains(SlowPathFlags::FRAME) {
            let csum = wr.slow().contains(SlowPathFlags::CSUM);
            let units = eth::put_frame_inline(writer, limits, csum, encoder.l2, data)?;
            return Ok(units - wr.units());
        }
        put_inline(writer, wr.units(), limits, data)
    }

    /// The destination of a WR, of a queue of this `kind`.
    #[inline(always)]
    fn set_address(&mut self, kind: Kind, to: Destination<'_>) {
        if self.encoder.kind != kind {
            // The WR has a setter for its destination, but not this one.
            return self.session.fail(PostError::OrphanSetter);
        }
        if !self.session.wr.needs().contains(Setters::ADDRESS) {
            return self.session.refuse_setter(Setters::ADDRESS);
        }
        put_destination(&mut self.writer(), to);
        self.set(Setters::ADDRESS, self.session.wr);
    }

    /// `mlx5dv_wr_set_dc_addr`: the target of a DC initiator's WR.
    #[inline]
    pub fn wr_set_dc_addr(&mut self, ah: &Ah, remote_dctn: u32, remote_dc_key: u64) {
        self.set_address(Kind::Dc, Destination::DcTarget(ah, remote_dctn, remote_dc_key));
    }

    /// `mlx5dv_wr_set_dc_addr_stream`: the same on a stream of the initiator.
    pub fn wr_set_dc_addr_stream(&mut self, ah: &Ah, remote_dctn: u32, remote_dc_key: u64, stream: u16) {
        if self.encoder.kind == Kind::Dc && self.session.wr.needs().contains(Setters::ADDRESS) {
            self.writer().add_stream(stream);
        }
        self.wr_set_dc_addr(ah, remote_dctn, remote_dc_key);
    }

    /// What `wr_start` does where something must be checked first.
    #[cold]
    #[inline(never)]
    fn start_cold(&mut self) {
        let Self { queue, producer, session, .. } = self;
        if producer.in_session() {
            return session.fail(PostError::SessionOpen);
        }
        let (cursor, error) = match producer.open_session_cold(queue) {
            Ok(cursor) => (cursor, PostError::NoSession),
            Err(error) => (Cursor::failed(), error),
        };
        (session.cursor, session.wr, session.error) = (cursor, Current::default(), error);
    }

    /// What `wr_complete` does where something must be checked. (Not said to be cold: then it would be called from a frame
    /// that the hot path builds, too.)
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
        (self.session.cursor, self.session.wr) = (cursor, Current::default());
    }

    #[inline(always)]
    fn wr_is_open(&self) -> bool {
        self.producer.in_session()
    }

    #[inline(always)]
    fn wr_begin<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: O) {
        let session = &self.session;
        let is_fast = O::HAS_DATA
            && session.wr.needs().is_empty()
            && are_plain(wr.flags)
            && self.encoder.fast.has_builder(O::OPCODE)
            && session.cursor.has_room();
        if !is_fast {
            cold_path();
            return self.begin_cold(wr, op);
        }
        if let Err(error) = self.begin_fast(wr, &op) {
            self.session.fail(error);
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

    #[inline(always)]
    unsafe fn wr_set_sges(&mut self, sges: &[RawSge]) {
        let &[one] = sges else {
            // SAFETY: the caller's promise.
            return unsafe { self.set_entries(sges) };
        };
        // The last setter of a WR: most are such, and fit in one block with an entry.
        let wr = self.session.wr;
        let (is_plain, min) = if wr.is_plain(SlowPathFlags::NO_INLINE) {
            (true, 1)
        } else {
            (wr.is_plain(SlowPathFlags::ATOMIC.union(SlowPathFlags::NO_INLINE)), 8)
        };
        if is_plain && let Some(words) = one.ordinary_from(min) {
            let unit = wr.units();
            if unit < 4 {
                self.writer().put(unit, words);
                return self.end_plain(wr, 4, Carries::Entries);
            }
            self.writer().put_far(unit, words);
            return self.end_plain(wr, unit + 1, Carries::Entries);
        }
        cold_path();
        // What is lent out is a copy.
        let one = [one];
        // SAFETY: the caller's promise.
        unsafe { self.set_entries(&one) };
    }

    #[inline]
    fn wr_set_inline<P: Payload<Sge>>(&mut self, data: P) {
        let wr = self.session.wr;
        if !wr.is_plain(SlowPathFlags::empty()) || data.inline_len() == 0 {
            return self.set_inline_cold(&data);
        }
        let writer = self.writer();
        match put_inline(writer, wr.units(), &self.encoder.fast.limits, &data) {
            Ok(units) => {
                let ds = wr.units() + units;
                writer.put_ctrl0(wr.ctrl0(writer.place(), units));
                self.end_plain(wr, ds, Carries::Inline);
            }
            Err(error) => self.session.fail(error),
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
        if session.wr.needs().is_empty() && producer.complete_session(queue, &mut session.cursor) {
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
