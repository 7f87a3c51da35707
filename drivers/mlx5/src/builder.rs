// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3): a batch whose state lives in the queue.
//!
//! A builder writes what its opcode says and leaves room for the destination; its setters go back and add destination and
//! data, in any order, since the place of each follows from transport and opcode. The last one completes the WQE. What a WR
//! still needs is a few bits, looked at when the next begins and when the session ends; an error clears them, and
//! setters that find theirs missing do nothing.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's builder trait, whose `wr_set_sges` carries a promise about memory.

use crate::buf::SqView;
use crate::encoder::{Encoder, Kind, imm_of, put_op};
use crate::poster::{Cursor, Queue};
use crate::send::{SendQueue, Side};
use crate::shared::{QpShared, SqShared};
use crate::wqe::eth;
use crate::wqe::{Ah, CTRL_UNITS, Remote, Sge, Slot, are_plain, hw_opcode, put_inline, put_raw_sges};
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

/// A builder session, or none.
#[derive(Debug)]
pub(crate) struct Session {
    open: bool,
    cursor: Cursor,
    pending: Pending,
    wr: Current,
}

/// Whether a WR waits for setters, and for which.
///
/// Most are plain: to the connected peer, and complete with one entry. All that there is to know of those is in this one
/// word, and the calls which make up most sessions look at no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending(i64);

impl Pending {
    /// None does.
    const NO: Self = Self(0);
    /// One does, of which [`Current`] tells.
    const OTHER: Self = Self(-1);

    /// A plain one: the hardware's opcode, and the units that its WQE has with one entry.
    const fn plain(opcode: u8, ds: u32) -> Self {
        Self((opcode as i64) << 32 | ds as i64)
    }

    /// Whether it is a plain one.
    #[inline(always)]
    const fn is_plain(self) -> bool {
        self.0 > 0
    }

    /// What a plain one adds to the control segment's first word, in host order.
    #[inline(always)]
    const fn first(self) -> u64 {
        self.0.cast_unsigned()
    }

    /// The units of a plain one.
    #[inline(always)]
    const fn ds(self) -> u32 {
        self.0 as u32
    }
}

impl Default for Session {
    fn default() -> Self {
        let cursor = Cursor::failed(PostError::NoSession);
        Self { open: false, cursor, pending: Pending::NO, wr: Current::default() }
    }
}

impl Session {
    /// Ends the last WR, which must have got its setters.
    #[inline(always)]
    fn end_wr(&mut self) {
        if self.pending != Pending::NO {
            self.fail(PostError::MissingSetter);
        }
    }

    /// The WR that setters belong to, also if it is a plain one.
    #[inline(always)]
    fn current(&mut self, encoder: &Encoder, view: SqView<'_>) -> &mut Current {
        if self.pending.is_plain() {
            self.unfold(encoder, view);
        }
        &mut self.wr
    }

    #[inline(never)]
    fn unfold(&mut self, encoder: &Encoder, view: SqView<'_>) {
        let (pending, at) = (self.pending, self.cursor.at);
        let data = pending.ds() - 1;
        self.wr = Current {
            wr_id: view.record(at).wr_id.load(Ordering::Relaxed),
            first: encoder.hot.first(at, 0) | pending.first() & !u64::from(u32::MAX),
            data,
            takes: DATA,
            needs: DATA,
            traits: if (pending.first() >> 32) as u8 == MLX5_OPCODE_RDMA_READ { NO_INLINE } else { 0 },
            ds: data,
            taken: 0,
        };
        self.pending = Pending::OTHER;
    }

    /// Latches an error: there is no WR any more, and no room for one.
    #[cold]
    fn fail(&mut self, error: PostError) {
        self.cursor.latch(error);
        (self.wr, self.pending) = (Current::default(), Pending::NO);
    }
}

/// The WR that setters belong to.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Current {
    wr_id: u64,
    /// The control segment's first word in host order, less the units.
    first: u64,
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

/// The traits that an opcode has by itself.
const fn traits_of(opcode: WrOpcode) -> u8 {
    (if is_atomic(opcode) { ATOMIC } else { 0 }) | (if takes_inline(opcode) { 0 } else { NO_INLINE })
}

impl Side {
    /// Notes that a setter was called; `false` if the WR does not take it now.
    #[inline(always)]
    fn setter(&mut self, view: SqView<'_>, which: u8) -> bool {
        if self.session.current(&self.encoder, view).needs & which == 0 {
            self.refuse_setter(which);
            return false;
        }
        self.session.wr.needs &= !which;
        true
    }

    #[cold]
    fn refuse_setter(&mut self, which: u8) {
        let taken = self.session.wr.takes & which != 0;
        self.session.fail(if taken { PostError::DoubledSetter } else { PostError::OrphanSetter });
    }

    /// Completes the WQE if nothing is missing any more.
    #[inline(always)]
    fn settle(&mut self, view: SqView<'_>) {
        let Session { wr, cursor, pending, .. } = &mut self.session;
        if wr.needs == 0 {
            *pending = Pending::NO;
            Slot::new(view, cursor.at).put_ctrl0((wr.first | u64::from(wr.ds)).to_be());
            cursor.finish(view, wr.wr_id, wr.ds);
        }
    }

    /// Takes in what a data setter wrote.
    #[inline(always)]
    fn set_data(&mut self, view: SqView<'_>, units: Result<u32, PostError>) {
        match units {
            Ok(units) => {
                self.session.wr.ds = self.session.wr.data + units;
                self.settle(view);
            }
            Err(error) => self.session.fail(error),
        }
    }

    /// Begins a plain WR to the connected peer, where most calls are decided by a few tests; whether it was one.
    #[inline(always)]
    fn begin_plain<O: Operation<Remote = Remote>>(&mut self, sq: &SqShared, wr: Wr, op: &O) -> bool {
        let Self { encoder, session, .. } = self;
        if !O::HAS_DATA || is_atomic(O::OPCODE) || session.pending != Pending::NO {
            return false;
        }
        let Some(second) = encoder.plain_ctrl1(wr.flags, imm_of(op)) else { return false };
        if !encoder.is_plain_builder(O::OPCODE) || !session.cursor.has_room() {
            return false;
        }
        let (at, view) = (session.cursor.at, sq.ring.view());
        let slot = Slot::new(view, at);
        slot.put_ctrl1(second);
        let units = if let Some(remote) = op.remote() {
            slot.put(CTRL_UNITS, remote.words);
            2
        } else {
            1
        };
        // The record is the WQE's only, and the place is free: what stands there does not count before it is published.
        view.record(at).wr_id.store(wr.wr_id, Ordering::Relaxed);
        // For a setter that comes twice.
        session.wr.takes = DATA;
        session.pending = Pending::plain(const { hw_opcode(O::OPCODE) }, CTRL_UNITS + units);
        true
    }

    /// Begins any other.
    #[inline(never)]
    fn begin<O: Operation<Remote = Remote>>(&mut self, qp: &QpShared, sq: &SqShared, wr: Wr, op: O) {
        self.session.end_wr();
        match self.begin_other(qp, sq, wr, op) {
            Ok(()) if self.session.wr.needs != 0 => self.session.pending = Pending::OTHER,
            Ok(()) => {}
            Err(error) => self.session.fail(error),
        }
    }

    /// With an address, or what is rarer.
    #[inline(always)]
    fn begin_other<O: Operation<Remote = Remote>>(
        &mut self,
        qp: &QpShared,
        sq: &SqShared,
        wr: Wr,
        op: O,
    ) -> Result<(), PostError> {
        let Self { encoder, session, .. } = self;
        let is_hot = O::HAS_DATA && encoder.is_hot_builder(O::OPCODE) && are_plain(wr.flags);
        if !is_hot || !session.cursor.has_room() {
            return self.begin_rare(qp, sq, wr, op);
        }
        let at = session.cursor.at;
        let slot = Slot::new(sq.ring.view(), at);
        slot.put_ctrl1(encoder.ctrl1(wr.flags, imm_of(&op)));
        let unit = CTRL_UNITS + encoder.address_units;
        let data = unit + put_op(slot, unit, &op)?;
        let takes = if encoder.address_units == 0 { DATA } else { DATA | ADDRESS };
        session.wr = Current {
            wr_id: wr.wr_id,
            first: encoder.hot.first(at, const { hw_opcode(O::OPCODE) }),
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
        qp: &QpShared,
        sq: &SqShared,
        wr: Wr,
        op: O,
    ) -> Result<(), PostError> {
        let q = Queue::new(qp, sq);
        let Self { poster, encoder, session } = self;
        if let Some(error) = session.cursor.error() {
            return Err(error);
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
                    encoder.push_local(poster, q, cursor, wr, &BindMw::<Remote>::new(bind), 0)
                }
                None => encoder.push_local(poster, q, cursor, wr, &op, 0),
            };
        }
        let csum = encoder.check_csum(q, wr.flags)?;
        encoder.check_atomics(O::OPCODE)?;
        let is_frame = encoder.kind == Kind::Raw && O::OPCODE == WrOpcode::SEND;
        let header = CTRL_UNITS
            + match op.tso() {
                Some(args) => eth::tso_units(encoder.max_tso_header, args)?,
                None if is_frame => eth::units(encoder.header_len()),
                None => encoder.address_units + encoder.op_units(O::OPCODE),
            };
        let taken = encoder.reserve_units(poster, q, &mut session.cursor, header, 0)?;
        let at = session.cursor.at;
        let slot = Slot::new(q.view, at);
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
            first: encoder.hot.first(at, hw_opcode(O::OPCODE)),
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
    fn reserve_data(&mut self, q: Queue<'_>, units: usize) -> Result<(), PostError> {
        if self.session.wr.traits & LONG != 0 { self.reserve_data_cold(q.qp, q.sq, units) } else { Ok(()) }
    }

    #[cold]
    fn reserve_data_cold(&mut self, qp: &QpShared, sq: &SqShared, units: usize) -> Result<(), PostError> {
        let Self { poster, encoder, session } = self;
        let (cursor, wr) = (&mut session.cursor, &session.wr);
        let units = wr.data.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        encoder.reserve_units(poster, Queue::new(qp, sq), cursor, units, wr.taken).map(drop)
    }

    /// One entry, of any WR. In scalars, so that the caller keeps none in memory.
    ///
    /// # Safety
    /// As [`WrBuilder::wr_set_sges`].
    #[inline(never)]
    unsafe fn set_sge(&mut self, qp: &QpShared, sq: &SqShared, addr: u64, length: u32, lkey: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.set_sges(qp, sq, &[RawSge { addr, length, lkey }]) };
    }

    /// The entries of all but the plainest WRs.
    ///
    /// # Safety
    /// As [`WrBuilder::wr_set_sges`].
    #[inline(never)]
    unsafe fn set_sges(&mut self, qp: &QpShared, sq: &SqShared, sges: &[RawSge]) {
        let q = Queue::new(qp, sq);
        if !self.setter(q.view, DATA) {
            return;
        }
        let wr = self.session.wr;
        // One entry, neither empty nor from 2^31 on: what else is missing is the address.
        if let &[sge] = sges
            && wr.traits & !NO_INLINE == 0
            && sge.length.wrapping_sub(1) < MAX_SGE_LENGTH - 1
        {
            let count_key = u64::from(sge.length) << 32 | u64::from(sge.lkey);
            let slot = Slot::new(q.view, self.session.cursor.at);
            slot.put(wr.data, [count_key.to_be(), sge.addr.to_be()]);
            return self.set_data(q.view, Ok(1));
        }
        // SAFETY: the caller's promise.
        let units = unsafe { self.put_sges(q, sges) };
        self.set_data(q.view, units);
    }

    /// # Safety
    /// As [`WrBuilder::wr_set_sges`].
    unsafe fn put_sges(&mut self, q: Queue<'_>, sges: &[RawSge]) -> Result<u32, PostError> {
        let limits = self.encoder.limits;
        self.reserve_data(q, sges.len().min(limits.max_sge as usize))?;
        let wr = self.session.wr;
        let slot = Slot::new(q.view, self.session.cursor.at);
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
    fn set_address(&mut self, view: SqView<'_>, kind: Kind, put: impl FnOnce(Slot<'_>)) {
        if self.encoder.kind != kind {
            // The WR has a setter for its destination, but not this one.
            return self.session.fail(PostError::OrphanSetter);
        }
        if self.setter(view, ADDRESS) {
            put(Slot::new(view, self.session.cursor.at));
            self.settle(view);
        }
    }
}

impl SendQueue {
    /// `mlx5dv_wr_set_dc_addr`: the target of a DC initiator's WR.
    #[inline]
    pub fn wr_set_dc_addr(&mut self, ah: &Ah, remote_dctn: u32, remote_dc_key: u64) {
        let (q, side) = self.split();
        side.set_address(q.view, Kind::Dc, |slot| slot.put_av(ah.to(remote_dc_key, remote_dctn)));
    }

    /// `mlx5dv_wr_set_dc_addr_stream`: the same on a stream of the initiator.
    pub fn wr_set_dc_addr_stream(&mut self, ah: &Ah, remote_dctn: u32, remote_dc_key: u64, stream: u16) {
        let (q, side) = self.split();
        side.set_address(q.view, Kind::Dc, |slot| {
            slot.put_av(ah.to(remote_dc_key, remote_dctn));
            slot.add_stream(stream);
        });
    }

    /// Ends the session, if one is open; gives its cursor.
    #[inline(always)]
    fn close(&mut self) -> Option<Cursor> {
        let Side { session, poster, .. } = &mut self.side;
        if !session.open {
            return None;
        }
        let cursor = session.cursor;
        session.open = false;
        (session.wr.takes, session.wr.needs, session.pending) = (0, 0, Pending::NO);
        // Builders and setters without a session find no room and no WR.
        session.cursor.close(PostError::NoSession);
        poster.close_session();
        Some(cursor)
    }
}

impl WrBuilder for SendQueue {
    #[inline]
    fn wr_start(&mut self) {
        let (q, side) = self.split();
        if side.session.open {
            return side.session.fail(PostError::SessionOpen);
        }
        side.session.cursor = side.poster.open_session(q.qp, q.sq);
        side.session.open = true;
        (side.session.wr.takes, side.session.wr.needs, side.session.pending) = (0, 0, Pending::NO);
    }

    #[inline(always)]
    fn wr_is_open(&self) -> bool {
        self.side.session.open
    }

    #[inline(always)]
    fn wr_begin<O: Operation<Remote = Remote>>(&mut self, wr: Wr, op: O) {
        let Self { qp, sq, side } = self;
        if !side.begin_plain(sq, wr, &op) {
            side.begin(qp, sq, wr, op);
        }
    }

    #[inline]
    fn wr_set_ud_addr(&mut self, ah: &Ah, remote_qpn: u32, remote_qkey: u32) {
        let (q, side) = self.split();
        side.set_address(q.view, Kind::Datagram, |slot| {
            slot.put_av(ah.to(u64::from(remote_qkey) << 32, remote_qpn));
        });
    }

    #[inline]
    fn wr_set_xrc_srqn(&mut self, remote_srqn: u32) {
        let (q, side) = self.split();
        side.set_address(q.view, Kind::Xrc, |slot| slot.put_srqn(remote_srqn));
    }

    #[inline(always)]
    unsafe fn wr_set_sges(&mut self, sges: &[RawSge]) {
        let Self { qp, sq, side } = self;
        let &[sge] = sges else {
            // SAFETY: the caller's promise.
            return unsafe { side.set_sges(qp, sq, sges) };
        };
        let Session { pending, cursor, .. } = &mut side.session;
        // One entry, neither empty nor from 2^31 on, is all that a plain WR waits for.
        if pending.is_plain() && sge.length.wrapping_sub(1) < MAX_SGE_LENGTH - 1 {
            let (view, at, ds) = (sq.ring.view(), cursor.at, pending.ds());
            let slot = Slot::new(view, at);
            let count_key = u64::from(sge.length) << 32 | u64::from(sge.lkey);
            slot.put_near(ds - 1, [count_key.to_be(), sge.addr.to_be()]);
            slot.put_ctrl0((side.encoder.hot.first(at, 0) | pending.first()).to_be());
            *pending = Pending::NO;
            return cursor.finish_record(view.record(at));
        }
        // SAFETY: the caller's promise.
        unsafe { side.set_sge(qp, sq, sge.addr, sge.length, sge.lkey) }
    }

    #[inline]
    fn wr_set_inline<P: Payload<Sge>>(&mut self, data: P) {
        let (q, side) = self.split();
        if !side.setter(q.view, DATA) {
            return;
        }
        if side.session.wr.traits != 0 {
            if side.session.wr.traits & NO_INLINE != 0 {
                return side.session.fail(PostError::IllegalFlag);
            }
            let len = data.inline_len().min(side.encoder.limits.max_inline as usize);
            if let Err(error) = side.reserve_data(q, (len + 19) / 16) {
                return side.session.fail(error);
            }
        }
        let (wr, encoder) = (side.session.wr, &side.encoder);
        let slot = Slot::new(q.view, side.session.cursor.at);
        let units = if wr.traits & FRAME != 0 {
            let csum = wr.traits & CSUM != 0;
            eth::put_frame_inline(slot, encoder.limits, csum, encoder.l2, &data).map(|u| u - wr.data)
        } else {
            put_inline(slot, wr.data, encoder.limits, &data)
        };
        side.session.cursor.inline = true;
        side.set_data(q.view, units);
    }

    #[cold]
    fn wr_latch(&mut self, error: PostError) {
        if self.side.session.open {
            self.side.session.fail(error);
        }
    }

    #[inline]
    fn wr_complete(&mut self) -> Result<(), PostError> {
        self.side.session.end_wr();
        let cursor = self.close().ok_or(PostError::NoSession)?;
        let (q, side) = self.split();
        side.finish(q, &cursor)
    }

    #[inline]
    fn wr_abort(&mut self) {
        let _ = self.close();
    }
}
