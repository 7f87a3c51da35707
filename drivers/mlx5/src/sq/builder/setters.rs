// SPDX-License-Identifier: MIT OR Apache-2.0
//! The setters of data and destination.
#![expect(unsafe_code)]
// UNSAFETY: passes entries to the encoder, whose contract about their memory is that of the setters.

use super::session::{CurrentState, Session, Setters, SlowPathFlags};
use crate::sq::SendQueue;
use crate::sq::consts::Kind;
use crate::wqe::plain::{Carries, Dest, Written, put_destination};
use crate::wqe::{Ah, Answer, WqeWriter, eth, ordinary_words};
use crate::wqe::{put_entries, put_inline, put_ordinary_inline, put_short_inline};
use uverbs_core::provider::inline::InlineBufs;
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{DcTarget, Inline, PostError};
use uverbs_core::wr::Sge as RawSge;

impl SendQueue {
    /// A writer at the WQE of the WR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn writer(&self) -> WqeWriter<'_> {
        WqeWriter::new(self.queue.view(), self.session.wr.place)
    }

    /// Ends the data of a WR, which a setter wrote into `units` units.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn end_data(&mut self, units: u32, carries: Carries) {
        let Self { queue, session, .. } = self;
        let (wr, view) = (session.wr, queue.view());
        let written = Written::new(u32::from(wr.state.units) + units, carries);
        if wr.state.slow.contains(SlowPathFlags::LONG) {
            session.cursor.finish_recorded(view, written);
        }
        session.end_fast(view, &wr, units, written.carries);
    }

    /// Checks that data of up to `units` units fit, unless that is certain.
    pub(super) fn reserve_data(&mut self, units: usize) -> Result<(), PostError> {
        let Self { queue, producer, encoder, session } = self;
        let state = session.wr.state;
        if !state.slow.contains(SlowPathFlags::LONG) {
            return Ok(());
        }
        let units = u32::from(state.units).saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        encoder.reserve_units(producer, queue, &mut session.cursor, units, session.taken).map(drop)
    }

    /// Sets the only entry of any WR.
    ///
    /// # Safety
    /// The entry's memory fulfils the contract of [`WrBuilder::wr_set_sge`].
    // codegen: words
    #[inline(never)]
    pub(super) unsafe fn set_entry(&mut self, addr: u64, length: u32, lkey: u32) {
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
    pub(super) unsafe fn set_entries_cold(&mut self, entries: &[RawSge]) {
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
    pub(super) unsafe fn put_entries_cold(&mut self, entries: &[RawSge]) -> Result<u32, PostError> {
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
    pub(super) fn set_inline_short(&mut self, bytes: &[u8]) {
        let Self { queue, session, encoder, .. } = self;
        // codegen: reload
        let (wr, view) = (session.wr, queue.view());
        if wr.state.takes_data(SlowPathFlags::empty()) {
            let writer = WqeWriter::new(view, wr.place);
            let units = put_short_inline(writer, wr.state.units.into(), &encoder.fast.limits, bytes);
            if let Some(units) = units {
                return session.end_short(view, &wr, units as u32);
            }
        }
        self.set_inline_slow(move || Inline::Bytes(bytes));
    }

    /// Sets long inline data in one buffer.
    #[inline(never)]
    pub(super) fn set_inline_long(&mut self, bytes: &[u8]) {
        self.set_inline_far(move || Inline::Bytes(bytes));
    }

    /// Sets the inline data of several buffers.
    #[inline(never)]
    pub(super) fn set_inline_bufs(&mut self, bufs: InlineBufs<'_>) {
        self.set_inline_far(move || Inline::Bufs(bufs));
    }

    /// Sets inline data that are long or several buffers.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn set_inline_far<'d>(&mut self, data: impl Fn() -> Inline<'d>) {
        let Self { queue, session, encoder, .. } = self;
        let state = session.wr.state;
        if state.takes_data(SlowPathFlags::empty()) {
            let writer = WqeWriter::new(queue.view(), session.wr.place);
            let units = put_ordinary_inline(writer, state.units.into(), &encoder.fast.limits, &data());
            if let Some(units) = units {
                // codegen: live
                let wr = session.wr;
                return session.end_fast(queue.view(), &wr, units as u32, Carries::Inline);
            }
        }
        self.set_inline_slow(data);
    }

    /// [`set_inline_cold`](Self::set_inline_cold), which is called from here, so that the fast path needs no memory for the
    /// value.
    #[inline(never)]
    pub(super) fn set_inline_slow<'d>(&mut self, data: impl Fn() -> Inline<'d>) {
        self.set_inline_cold(&data());
    }

    /// Sets the inline data of any WR.
    #[inline(never)]
    pub(super) fn set_inline_cold(&mut self, data: &Inline<'_>) {
        if !self.session.wr.state.needs.contains(Setters::DATA) {
            return self.session.refuse_setter(Setters::DATA);
        }
        match self.put_inline_cold(data) {
            Ok(units) => self.end_data(units, Carries::Inline),
            Err(error) => self.session.fail(error),
        }
    }

    pub(super) fn put_inline_cold(&mut self, data: &Inline<'_>) -> Result<u32, PostError> {
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
        let len = data.len().min(self.encoder.fast.limits.max_inline as usize);
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
    pub(super) fn set_address(&mut self, kind: Kind, to: &Dest<'_>) {
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
        self.set_address(Kind::Dc, &Dest::Dc(DcTarget { ah, remote_dctn, remote_dc_key }));
    }

    /// [`wr_set_dc_addr`](Self::wr_set_dc_addr) with a stream of the initiator (`mlx5dv_wr_set_dc_addr_stream`).
    pub fn wr_set_dc_addr_stream(&mut self, ah: &Ah, remote_dctn: u32, remote_dc_key: u64, stream: u16) {
        if self.encoder.kind == Kind::Dc && self.session.wr.state.needs.contains(Setters::ADDRESS) {
            self.writer().add_stream(stream);
        }
        self.wr_set_dc_addr(ah, remote_dctn, remote_dc_key);
    }
}
