// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3): a batch whose state lives in the queue.
//!
//! A builder writes what its opcode says and leaves room for the destination; its setters go back and add destination and
//! data, in any order, since the place of each follows from transport and opcode. The last one completes the WQE. What a WR
//! still needs is a few bits, looked at when the next begins and when the session ends; an error clears them, and
//! setters that find theirs missing do nothing.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's builder trait, whose `wr_set_sges` carries a promise about memory.

use crate::memory::SendQueueRef;
use crate::sq::cursor::Cursor;
use crate::sq::encoder::{Encoder, First, Kind, imm_of, op_units, put_op};
use crate::sq::{SendQueue, Side};
use crate::wqe::eth;
use crate::wqe::{Ah, CTRL_UNITS, Remote, Sge, WqeWriter, are_plain, hw_opcode, put_inline, put_raw_sges};
use core::hint::cold_path;
use core::sync::atomic::Ordering;
use uverbs_core::provider::op::BindMw;
use uverbs_core::provider::opcodes::{is_atomic, takes_inline};
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{Operation, Payload, PostError, Wr, WrBuilder};
use uverbs_core::wr::{Sge as RawSge, WrOpcode};
use uverbs_mlx5_hw::wqe::MLX5_OPCODE_RDMA_READ;

/// The data setter.
const DATA: u8 = 1;
/// The destination's setter.
const ADDRESS: u8 = 2;

/// A builder session. Whether it is open, the poster knows.
#[derive(Debug)]
pub(crate) struct Session {
    cursor: Cursor,
    pending: Pending,
    wr: Current,
    /// Why the cursor has failed.
    error: PostError,
}

/// Whether a WR waits for setters, and for which.
///
/// Most are plain: to the connected peer, and complete with one entry. All that there is to know of those is in this one
/// word, and the calls which make up most sessions look at no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending(u32);

impl Pending {
    /// None does.
    const NO: Self = Self(0);
    /// None does, and the last was a plain one.
    const DONE: Self = Self(1);
    /// One does, of which [`Current`] tells.
    const OTHER: Self = Self(8);

    /// A plain one: the hardware's opcode, and the unit where its entry goes, 1 or 2.
    const fn plain(opcode: u8, unit: u32) -> Self {
        assert!(unit == 1 || unit == 2);
        Self((opcode as u32) << 8 | unit << 1)
    }

    /// Whether a plain one waits for the entry at this unit.
    #[inline(always)]
    const fn waits_at(self, unit: u32) -> bool {
        self.0 & unit << 1 != 0
    }

    /// Whether one does.
    #[inline(always)]
    const fn is_one(self) -> bool {
        self.0 > Self::DONE.0
    }

    /// The unit where a plain one's entry goes; 0 of all else.
    #[inline(always)]
    const fn unit(self) -> u32 {
        self.0 >> 1 & 3
    }

    /// The opcode of a plain one.
    const fn opcode(self) -> u8 {
        (self.0 >> 8) as u8
    }
}

impl Default for Session {
    fn default() -> Self {
        Self {
            cursor: Cursor::failed(),
            pending: Pending::NO,
            wr: Current::default(),
            error: PostError::NoSession,
        }
    }
}

impl Session {
    /// Ends the last WR, which must have got its setters.
    #[inline(always)]
    fn end_wr(&mut self) {
        if self.pending.is_one() {
            self.fail(PostError::MissingSetter);
        }
    }

    /// The WR that setters belong to, also if it is a plain one.
    #[inline(always)]
    fn current(&mut self, encoder: &Encoder, held: &SendQueueRef) -> &mut Current {
        if self.pending.unit() != 0 {
            self.unfold(encoder, held);
        }
        &mut self.wr
    }

    #[inline(never)]
    fn unfold(&mut self, encoder: &Encoder, held: &SendQueueRef) {
        let (opcode, data) = (self.pending.opcode(), self.pending.unit());
        self.wr = Current {
            wr_id: held.record(self.cursor.at).wr_id.load(Ordering::Relaxed),
            first: encoder.hot.first(opcode),
            data,
            takes: DATA,
            needs: DATA,
            traits: if opcode == MLX5_OPCODE_RDMA_READ { NO_INLINE } else { 0 },
            ds: data,
            taken: 0,
        };
        self.pending = Pending::OTHER;
    }

    /// Latches an error: there is no WR any more, and no room for one.
    #[cold]
    fn fail(&mut self, error: PostError) {
        if !self.cursor.is_failed() {
            (self.cursor.head, self.error) = (Cursor::FAILED, error);
        }
        (self.wr, self.pending) = (Current::default(), Pending::NO);
    }
}

/// The WR that setters belong to.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Current {
    wr_id: u64,
    /// The control segment's first word, less place and units.
    first: First,
    /// The unit where the data begins.
    data: u32,
    /// Setters that it has, as bits.
    takes: u8,
    /// Those that were not called yet.
    needs: u8,
    /// What is not plain about it, as bits.
    traits: u8,
    /// Units with the data, if that was set.
    ds: u32,
    /// What it counts beyond one WR so far, if it is `LONG`.
    taken: u32,
}

/// It answers with 8 bytes.
const ATOMIC: u8 = 1;
/// Its data can't be inline.
const NO_INLINE: u8 = 2;
/// A raw packet, whose header the data setter writes.
const FRAME: u8 = 4;
/// A segmented send.
const TSO: u8 = 8;
/// A raw packet whose checksums the device computes.
const CSUM: u8 = 16;
/// It took the long way, so its room is looked at when its length is known.
const LONG: u8 = 32;
/// Its data was set, and is inline.
const INLINED: u8 = 64;

/// The traits that an opcode has by itself.
const fn traits_of(opcode: WrOpcode) -> u8 {
    (if is_atomic(opcode) { ATOMIC } else { 0 }) | (if takes_inline(opcode) { 0 } else { NO_INLINE })
}

impl Side {
    /// Notes that a setter was called; `false` if the WR does not take it now.
    #[inline(always)]
    fn setter(&mut self, held: &SendQueueRef, which: u8) -> bool {
        if self.session.current(&self.encoder, held).needs & which == 0 {
            self.refuse_setter(which);
            return false;
        }
        self.session.wr.needs &= !which;
        true
    }

    #[cold]
    fn refuse_setter(&mut self, which: u8) {
        let Self { poster, session, .. } = self;
        let last_was_plain = session.pending == Pending::DONE;
        let taken = poster.is_begun(&session.cursor)
            && (last_was_plain && which == DATA || session.wr.takes & which != 0);
        self.session.fail(if taken { PostError::DoubledSetter } else { PostError::OrphanSetter });
    }

    /// Completes the WQE if nothing is missing any more.
    #[inline(always)]
    fn settle(&mut self, held: &SendQueueRef) {
        let Session { wr, cursor, pending, .. } = &mut self.session;
        if wr.needs == 0 {
            *pending = Pending::NO;
            WqeWriter::new(held.view(), cursor.at).put_ctrl0(wr.first.with_ds(wr.ds).at(cursor.at));
            cursor.finish(held.view(), wr.wr_id, wr.ds, wr.traits & INLINED != 0);
        }
    }

    /// Takes in what a data setter wrote.
    #[inline(always)]
    fn set_data(&mut self, held: &SendQueueRef, units: Result<u32, PostError>) {
        match units {
            Ok(units) => {
                self.session.wr.ds = self.session.wr.data + units;
                self.settle(held);
            }
            Err(error) => self.session.fail(error),
        }
    }

    /// The entry of a plain WR, which completes it.
    #[inline(always)]
    fn put_plain(&mut self, held: &SendQueueRef, unit: u32, sge: RawSge) {
        let Session { pending, cursor, .. } = &mut self.session;
        let (view, at) = (held.view(), cursor.at);
        let count_key = u64::from(sge.length) << 32 | u64::from(sge.lkey);
        WqeWriter::new(view, at).put(unit, [count_key.to_be(), sge.addr.to_be()]);
        *pending = Pending::DONE;
        cursor.finish_block(at, view.record(at));
    }

    /// Begins a plain WR to the connected peer, where most calls are decided by a few tests; whether it was one.
    #[inline(always)]
    fn begin_plain<O: Operation<Remote = Remote>>(&mut self, held: &SendQueueRef, wr: Wr, op: &O) -> bool {
        let Self { encoder, session, .. } = self;
        if !O::HAS_DATA || is_atomic(O::OPCODE) || session.pending.is_one() {
            return false;
        }
        let Some(second) = encoder.plain_ctrl1(wr.flags, imm_of(op)) else { return false };
        let Some(first) = encoder.plain_builder(O::OPCODE) else { return false };
        if !session.cursor.has_room() {
            return false;
        }
        let at = session.cursor.at;
        // The record is the WQE's only, and the place is free: what stands there does not count before it is published.
        held.record(at).wr_id.store(wr.wr_id, Ordering::Relaxed);
        let slot = WqeWriter::new(held.view(), at);
        slot.put_ctrl1(second);
        if let Some(remote) = op.remote() {
            slot.put(CTRL_UNITS, remote.words);
        }
        slot.put_ctrl0(first.at(at));
        session.pending =
            const { Pending::plain(hw_opcode(O::OPCODE), CTRL_UNITS + op_units(O::OPCODE) % 2) };
        true
    }

    /// With an address, or what is rarer.
    #[inline(always)]
    fn begin_other<O: Operation<Remote = Remote>>(
        &mut self,
        held: &SendQueueRef,
        wr: Wr,
        op: O,
    ) -> Result<(), PostError> {
        let Self { encoder, session, .. } = self;
        let is_hot = O::HAS_DATA && encoder.is_hot_builder(O::OPCODE) && are_plain(wr.flags);
        if !is_hot || !session.cursor.has_room() {
            return self.begin_rare(held, wr, op);
        }
        let slot = WqeWriter::new(held.view(), session.cursor.at);
        slot.put_ctrl1(encoder.ctrl1(wr.flags, imm_of(&op)));
        let unit = CTRL_UNITS + encoder.address_units;
        let data = unit + put_op(slot, unit, &op)?;
        let takes = if encoder.address_units == 0 { DATA } else { DATA | ADDRESS };
        session.wr = Current {
            wr_id: wr.wr_id,
            first: encoder.hot.first(const { hw_opcode(O::OPCODE) }),
            data,
            takes,
            needs: takes,
            traits: const { traits_of(O::OPCODE) },
            ds: data,
            taken: 0,
        };
        Ok(())
    }

    /// Local operations, raw packets, and what can't be.
    #[inline(never)]
    fn begin_rare<O: Operation<Remote = Remote>>(
        &mut self,
        held: &SendQueueRef,
        wr: Wr,
        op: O,
    ) -> Result<(), PostError> {
        let Self { poster, encoder, session } = self;
        if !poster.in_session() {
            return Err(PostError::NoSession);
        }
        if session.cursor.is_failed() {
            return Err(session.error);
        }
        if !encoder.has_builder(O::OPCODE) {
            return Err(PostError::IllegalOpcode);
        }
        if !O::HAS_DATA {
            session.wr = Current::default();
            let cursor = &mut session.cursor;
            return match op.bind_mw() {
                // `wr_bind_mw` is for windows of type 2, whatever the window says of itself (ibv_wr_post(3)).
                Some(mut bind) => {
                    bind.mw_type = 2;
                    // SAFETY: `op` is such an operation, made with that promise.
                    let op = unsafe { BindMw::<Remote>::new(bind) };
                    encoder.push_local(poster, held, cursor, wr, &op, 0)
                }
                None => encoder.push_local(poster, held, cursor, wr, &op, 0),
            };
        }
        let csum = encoder.check_csum(held, wr.flags)?;
        encoder.check_atomics(O::OPCODE)?;
        let is_frame = encoder.kind == Kind::Raw && O::OPCODE == WrOpcode::SEND;
        let header = CTRL_UNITS
            + match op.tso() {
                Some(args) => eth::tso_units(encoder.max_tso_header, args)?,
                None if is_frame => eth::units(encoder.header_len()),
                None => encoder.address_units + op_units(O::OPCODE),
            };
        let taken = encoder.reserve_units(poster, held, &mut session.cursor, header, 0)?;
        let slot = WqeWriter::new(held.view(), session.cursor.at);
        slot.put_ctrl1(encoder.ctrl1(wr.flags, imm_of(&op)));
        let data = match op.tso() {
            Some(args) => CTRL_UNITS + eth::put_tso(slot, csum, args)?,
            None if is_frame => header,
            None => {
                let unit = CTRL_UNITS + encoder.address_units;
                unit + put_op(slot, unit, &op)?
            }
        };
        let trait_if = |which, bit| if which { bit } else { 0 };
        let takes = if encoder.address_units == 0 { DATA } else { DATA | ADDRESS };
        session.wr = Current {
            wr_id: wr.wr_id,
            first: encoder.hot.first(hw_opcode(O::OPCODE)),
            data,
            ds: data,
            taken,
            takes,
            needs: takes,
            traits: LONG
                | traits_of(O::OPCODE)
                | trait_if(is_frame, FRAME)
                | trait_if(op.tso().is_some(), TSO)
                | trait_if(csum, CSUM),
        };
        Ok(())
    }

    /// Makes sure that data of up to `units` fits behind a WR that took the long way.
    #[inline(always)]
    fn reserve_data(&mut self, held: &SendQueueRef, units: usize) -> Result<(), PostError> {
        if self.session.wr.traits & LONG != 0 { self.reserve_data_cold(held, units) } else { Ok(()) }
    }

    #[cold]
    fn reserve_data_cold(&mut self, held: &SendQueueRef, units: usize) -> Result<(), PostError> {
        let Self { poster, encoder, session } = self;
        let (cursor, wr) = (&mut session.cursor, &session.wr);
        let units = wr.data.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        encoder.reserve_units(poster, held, cursor, units, wr.taken).map(drop)
    }

    /// One entry, of any WR. In scalars, so that the caller keeps none in memory.
    ///
    /// # Safety
    /// As [`WrBuilder::wr_set_sges`].
    #[inline(never)]
    unsafe fn set_sge(&mut self, lkey: u32, addr: u64, length: u32, held: &SendQueueRef) {
        // SAFETY: the caller's promise.
        unsafe { self.set_sges(held, &[RawSge { addr, length, lkey }]) };
    }

    /// The entries of all but the plainest WRs.
    ///
    /// # Safety
    /// As [`WrBuilder::wr_set_sges`].
    #[inline(never)]
    unsafe fn set_sges(&mut self, held: &SendQueueRef, sges: &[RawSge]) {
        if !self.setter(held, DATA) {
            return;
        }
        let wr = self.session.wr;
        // One entry, neither empty nor from 2^31 on: what else is missing is the address.
        if let &[sge] = sges
            && wr.traits & !NO_INLINE == 0
            && sge.length.wrapping_sub(1) < MAX_SGE_LENGTH - 1
        {
            let count_key = u64::from(sge.length) << 32 | u64::from(sge.lkey);
            let slot = WqeWriter::new(held.view(), self.session.cursor.at);
            slot.put(wr.data, [count_key.to_be(), sge.addr.to_be()]);
            return self.set_data(held, Ok(1));
        }
        // SAFETY: the caller's promise.
        let units = unsafe { self.put_sges(held, sges) };
        self.set_data(held, units);
    }

    /// # Safety
    /// As [`WrBuilder::wr_set_sges`].
    #[inline(never)]
    unsafe fn put_sges(&mut self, held: &SendQueueRef, sges: &[RawSge]) -> Result<u32, PostError> {
        let limits = self.encoder.limits;
        self.reserve_data(held, sges.len().min(limits.max_sge as usize))?;
        let wr = self.session.wr;
        let slot = WqeWriter::new(held.view(), self.session.cursor.at);
        if wr.traits & FRAME != 0 {
            let (csum, l2, sges) = (wr.traits & CSUM != 0, self.encoder.l2, sges.iter().copied());
            // SAFETY: the caller's promise.
            let units = unsafe { eth::put_frame_sges(slot, limits, csum, l2, sges) }?;
            return Ok(units - wr.data);
        }
        if wr.traits & TSO != 0 {
            self.encoder.check_tso(sges.iter().map(|sge| u64::from(sge.length)).sum())?;
        }
        put_raw_sges(slot, wr.data, limits, wr.traits & ATOMIC != 0, sges.iter().copied())
    }

    /// `mlx5dv_wr_set_dc_addr`, and the other destinations.
    #[inline(always)]
    fn set_address(&mut self, held: &SendQueueRef, kind: Kind, put: impl FnOnce(WqeWriter<'_>)) {
        if self.encoder.kind != kind {
            // The WR has a setter for its destination, but not this one.
            return self.session.fail(PostError::OrphanSetter);
        }
        if self.setter(held, ADDRESS) {
            put(WqeWriter::new(held.view(), self.session.cursor.at));
            self.settle(held);
        }
    }
}

impl SendQueue {
    /// `mlx5dv_wr_set_dc_addr`: the target of a DC initiator's WR.
    #[inline]
    pub fn wr_set_dc_addr(&mut self, ah: &Ah, remote_dctn: u32, remote_dc_key: u64) {
        let (held, side) = self.split();
        side.set_address(held, Kind::Dc, |slot| slot.put_av(ah.to(remote_dc_key, remote_dctn)));
    }

    /// `mlx5dv_wr_set_dc_addr_stream`: the same on a stream of the initiator.
    pub fn wr_set_dc_addr_stream(&mut self, ah: &Ah, remote_dctn: u32, remote_dc_key: u64, stream: u16) {
        let (held, side) = self.split();
        side.set_address(held, Kind::Dc, |slot| {
            slot.put_av(ah.to(remote_dc_key, remote_dctn));
            slot.add_stream(stream);
        });
    }

    /// Begins any WR but a plain one.
    #[inline(never)]
    fn begin<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: O) {
        let (held, side) = self.split();
        side.session.end_wr();
        side.session.pending = Pending::NO;
        match side.begin_other(held, wr, op) {
            Ok(()) if side.session.wr.needs != 0 => side.session.pending = Pending::OTHER,
            Ok(()) => {}
            Err(error) => side.session.fail(error),
        }
    }

    /// What `wr_start` does where something must be looked at first.
    #[cold]
    fn start_cold(&mut self) {
        let (held, side) = self.split();
        if side.poster.in_session() {
            return side.session.fail(PostError::SessionOpen);
        }
        let opened = side.poster.open_session_cold(held);
        let (cursor, error) = match opened {
            Ok(cursor) => (cursor, PostError::NoSession),
            Err(error) => (Cursor::failed(), error),
        };
        (side.session.cursor, side.session.error) = (cursor, error);
        (side.session.wr, side.session.pending) = (Current::default(), Pending::NO);
    }

    /// What `wr_complete` does where something must be looked at. (Not said to be cold: then it would be called from a frame
    /// that the hot path builds, too.)
    #[inline(never)]
    fn complete_cold(&mut self) -> Result<(), PostError> {
        let (held, side) = self.split();
        let Side { poster, session, .. } = side;
        if !poster.in_session() {
            return Err(PostError::NoSession);
        }
        session.end_wr();
        if session.cursor.is_failed() {
            let _ = poster.end_session(held, None);
            return Err(session.error);
        }
        let cursor = core::mem::replace(&mut session.cursor, Cursor::failed());
        session.pending = Pending::NO;
        poster.end_session(held, Some(&cursor))
    }
}

impl WrBuilder for SendQueue {
    #[inline]
    fn wr_start(&mut self) {
        let Side { poster, session, .. } = &mut self.side;
        let Some(cursor) = poster.open_session() else { return self.start_cold() };
        session.cursor = cursor;
    }

    #[inline(always)]
    fn wr_is_open(&self) -> bool {
        self.side.poster.in_session()
    }

    #[inline(always)]
    fn wr_begin<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: O) {
        let Self { held, side } = self;
        if !side.begin_plain(held, wr, &op) {
            cold_path();
            self.begin(wr, op);
        }
    }

    #[inline]
    fn wr_set_ud_addr(&mut self, ah: &Ah, remote_qpn: u32, remote_qkey: u32) {
        let (held, side) = self.split();
        side.set_address(held, Kind::Datagram, |slot| {
            slot.put_av(ah.to(u64::from(remote_qkey) << 32, remote_qpn));
        });
    }

    #[inline]
    fn wr_set_xrc_srqn(&mut self, remote_srqn: u32) {
        let (held, side) = self.split();
        side.set_address(held, Kind::Xrc, |slot| slot.put_srqn(remote_srqn));
    }

    #[inline(always)]
    unsafe fn wr_set_sges(&mut self, sges: &[RawSge]) {
        let Self { held, side } = self;
        let &[sge] = sges else {
            // SAFETY: the caller's promise.
            return unsafe { side.set_sges(held, sges) };
        };
        // One entry, neither empty nor from 2^31 on, is all that a plain WR waits for.
        let is_ordinary = sge.length.wrapping_sub(1) < MAX_SGE_LENGTH - 1;
        if is_ordinary && side.session.pending.waits_at(CTRL_UNITS + 1) {
            side.put_plain(held, CTRL_UNITS + 1, sge);
        } else if is_ordinary && side.session.pending.waits_at(CTRL_UNITS) {
            side.put_plain(held, CTRL_UNITS, sge);
        } else {
            cold_path();
            // SAFETY: the caller's promise.
            unsafe { side.set_sge(sge.lkey, sge.addr, sge.length, held) };
        }
    }

    #[inline]
    fn wr_set_inline<P: Payload<Sge>>(&mut self, data: P) {
        let (held, side) = self.split();
        if !side.setter(held, DATA) {
            return;
        }
        if side.session.wr.traits != 0 {
            if side.session.wr.traits & NO_INLINE != 0 {
                return side.session.fail(PostError::IllegalFlag);
            }
            let len = data.inline_len().min(side.encoder.limits.max_inline as usize);
            if let Err(error) = side.reserve_data(held, (len + 19) / 16) {
                return side.session.fail(error);
            }
        }
        let (wr, encoder) = (side.session.wr, &side.encoder);
        let slot = WqeWriter::new(held.view(), side.session.cursor.at);
        let units = if wr.traits & FRAME != 0 {
            let csum = wr.traits & CSUM != 0;
            eth::put_frame_inline(slot, encoder.limits, csum, encoder.l2, &data).map(|u| u - wr.data)
        } else {
            put_inline(slot, wr.data, encoder.limits, &data)
        };
        side.session.wr.traits |= INLINED;
        side.set_data(held, units);
    }

    #[cold]
    fn wr_latch(&mut self, error: PostError) {
        if self.wr_is_open() {
            self.side.session.fail(error);
        }
    }

    #[inline]
    fn wr_complete(&mut self) -> Result<(), PostError> {
        let Side { poster, session, .. } = &mut self.side;
        if !session.pending.is_one() && poster.complete_session(&self.held, &mut session.cursor) {
            return Ok(());
        }
        self.complete_cold()
    }

    #[inline]
    fn wr_abort(&mut self) {
        let (held, side) = self.split();
        side.session.fail(PostError::NoSession);
        let _ = side.poster.end_session(held, None);
    }
}
