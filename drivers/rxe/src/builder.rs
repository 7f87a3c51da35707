// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3): a batch whose state is in the queue.
//!
//! A builder writes the head of a WQE; its setters then add the data and the destination. A few bits record which
//! setters the WR still needs. They are checked when the next WR begins and when the session ends.
#![expect(unsafe_code)]
// UNSAFETY: `wr_set_sges` is an `unsafe fn` of the core's trait, with a contract about memory. This module has no
// unsafe operation.

use crate::doorbell::SendBell;
use crate::producer::Cursor;
use crate::send::SendQueue;
use crate::wqe::{self, Ah, Data};
use uverbs_core::attr::QpType;
use uverbs_core::provider::opcodes::{opcode_bit, takes_inline};
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{Operation, Payload, PostError, Wr, WrBuilder};
use uverbs_core::wr::{SendFlags, Sge, WrOpcode};

/// A builder session, or none.
#[derive(Debug)]
pub(crate) struct Session {
    open: bool,
    cursor: Cursor,
    wr: Current,
}

impl Default for Session {
    fn default() -> Self {
        Self { open: false, cursor: Cursor::failed(PostError::NoSession), wr: Current::default() }
    }
}

impl Session {
    /// Whether there is one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }
}

/// The WR that setters belong to.
#[derive(Clone, Copy, Debug)]
struct Current {
    opcode: WrOpcode,
    /// The flags in its WQE.
    flags: u32,
    /// Setters that it has, as bits.
    takes: u8,
    /// The setters that were not called yet.
    needs: u8,
}

impl Default for Current {
    /// No WR: no setter is expected.
    fn default() -> Self {
        Self { opcode: WrOpcode(u32::MAX), flags: 0, takes: 0, needs: 0 }
    }
}

const DATA: u8 = 1;
const ADDRESS: u8 = 2;

impl<B: SendBell> SendQueue<B> {
    /// Checks that the WR can take this setter now, and records the call. `None` if there is no session or it has
    /// failed.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn setter(&mut self, which: u8) -> Option<Current> {
        let session = &mut self.session;
        if !session.open || session.cursor.error().is_some() {
            return None;
        }
        let wr = session.wr;
        if wr.needs & which == 0 {
            let error =
                if wr.takes & which != 0 { PostError::DoubledSetter } else { PostError::OrphanSetter };
            session.cursor.latch(error);
            return None;
        }
        session.wr.needs &= !which;
        Some(wr)
    }

    /// The index of the WQE that setters write.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn current(&self) -> u32 {
        self.ring.before(self.session.cursor.at)
    }

    /// Latches `MissingSetter` if the last WR lacks one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn end_wr(&mut self) {
        if self.session.wr.needs != 0 {
            self.session.cursor.latch(PostError::MissingSetter);
        }
        self.session.wr = Current::default();
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin_wr<O: Operation<Remote = RemoteAddr>>(&mut self, wr: Wr, op: &O) -> Result<(), PostError> {
        if self.ops.builder & opcode_bit(O::OPCODE) == 0 {
            return Err(PostError::IllegalOpcode);
        }
        let flags = wqe::check_flags(wr.flags)?;
        let (mut slot, next) = self.ring.slot(&mut self.session.cursor)?;
        wqe::put_send_head(&mut slot, wr.wr_id, flags, None, op, Data::default())?;
        self.session.cursor.at = next;
        let mut takes = if O::HAS_DATA { DATA } else { 0 };
        if self.qp_type == QpType::Ud {
            takes |= ADDRESS;
        }
        self.session.wr = Current { opcode: O::OPCODE, flags, takes, needs: takes };
        Ok(())
    }

    /// Ends the session and returns its cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn close(&mut self) -> Option<Cursor> {
        if !self.session.open {
            return None;
        }
        self.session.open = false;
        Some(self.session.cursor)
    }
}

impl<B: SendBell> WrBuilder for SendQueue<B> {
    #[inline]
    fn wr_start(&mut self) {
        if self.session.open {
            self.session.cursor.latch(PostError::SessionOpen);
            return;
        }
        let cursor = self.begin();
        self.session = Session { open: true, cursor, wr: Current::default() };
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_is_open(&self) -> bool {
        self.session.open
    }

    #[inline]
    fn wr_begin<O: Operation<Remote = RemoteAddr>>(&mut self, wr: Wr, op: O) {
        if !self.session.open {
            return;
        }
        self.end_wr();
        if self.session.cursor.error().is_some() {
            return;
        }
        if let Err(error) = self.begin_wr(wr, &op) {
            self.session.cursor.latch(error);
        }
    }

    #[inline]
    fn wr_set_ud_addr(&mut self, ah: &Ah, remote_qpn: u32, remote_qkey: u32) {
        if self.setter(ADDRESS).is_none() {
            return;
        }
        let (index, qkey) = (self.current(), self.resolve_qkey(remote_qkey));
        wqe::set_destination(&mut self.ring.slot_at(index), ah, remote_qpn, qkey);
    }

    fn wr_set_xrc_srqn(&mut self, _remote_srqn: u32) {
        // rxe has no XRC, so no WR has this setter.
        self.wr_latch(PostError::OrphanSetter);
    }

    #[inline]
    unsafe fn wr_set_sges(&mut self, sges: &[Sge]) {
        let Some(wr) = self.setter(DATA) else { return };
        let (index, limits) = (self.current(), self.limits);
        let mut slot = self.ring.slot_at(index);
        match wqe::put_send_sges(&mut slot, limits, wr.opcode, sges) {
            Ok(data) => wqe::set_data(&mut slot, data, wr.flags),
            Err(error) => self.session.cursor.latch(error),
        }
    }

    #[inline]
    fn wr_set_inline<P: Payload<Sge>>(&mut self, data: P) {
        let Some(wr) = self.setter(DATA) else { return };
        if !takes_inline(wr.opcode) {
            return self.session.cursor.latch(PostError::IllegalFlag);
        }
        let (index, limits) = (self.current(), self.limits);
        let mut slot = self.ring.slot_at(index);
        match wqe::put_inline(&mut slot, limits.max_inline, &data) {
            Ok(data) => wqe::set_data(&mut slot, data, wr.flags | SendFlags::INLINE.bits()),
            Err(error) => self.session.cursor.latch(error),
        }
    }

    #[cold]
    fn wr_latch(&mut self, error: PostError) {
        if self.session.open {
            self.session.cursor.latch(error);
        }
    }

    #[inline]
    fn wr_complete(&mut self) -> Result<(), PostError> {
        self.end_wr();
        let cursor = self.close().ok_or(PostError::NoSession)?;
        self.finish(&cursor)
    }

    #[inline]
    fn wr_abort(&mut self) {
        let _ = self.close();
    }
}
