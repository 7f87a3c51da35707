// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3): a batch whose state is in the queue.
//!
//! A builder writes the head of a WQE; its setters then add the data and the destination. A few bits record which
//! setters the WR still needs. They are checked when the next WR begins and when the session ends.
#![expect(unsafe_code)]
// UNSAFETY: functions of the core's trait are `unsafe`, with a contract about memory. This module has no unsafe operation.

use crate::doorbell::SendBell;
use crate::format::{Data, Format};
use crate::producer::PostCursor;
use crate::send::SendQueue;
use crate::wqe;
use uverbs_core::provider::opcodes::opcode_bit;
use uverbs_core::provider::{Head, Inline, Op, PostError, WrBuilder};
use uverbs_core::wr::{SendFlags, Sge, WrOpcode};

/// A builder session, or none.
#[derive(Debug)]
pub(crate) struct Session {
    open: bool,
    cursor: PostCursor,
    wr: Current,
}

impl Default for Session {
    fn default() -> Self {
        Self { open: false, cursor: PostCursor::failed(PostError::NoSession), wr: Current::default() }
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
    /// The flags that its head was written with.
    flags: SendFlags,
    /// Setters that it has, as bits.
    takes: u8,
    /// The setters that were not called yet.
    needs: u8,
}

impl Default for Current {
    /// No WR: no setter is expected.
    fn default() -> Self {
        Self { opcode: WrOpcode(u32::MAX), flags: SendFlags::empty(), takes: 0, needs: 0 }
    }
}

const DATA: u8 = 1;
const ADDRESS: u8 = 2;

impl<F: Format, B: SendBell> SendQueue<F, B> {
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

    /// The position of the WQE that setters write.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn current(&self) -> u32 {
        self.session.cursor.at.wrapping_sub(1)
    }

    /// Adds data that are in the slot to its head.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn set_data(&mut self, wr: Current, data: Result<Data, PostError>) {
        match data {
            Ok(data) => {
                let at = self.current();
                F::set_data(&mut self.ring.slot_at(at), wr.opcode, wr.flags, data);
            }
            Err(error) => self.session.cursor.latch(error),
        }
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
    fn begin_wr(&mut self, head: Head, op: &Op<'_>) -> Result<(), PostError> {
        let opcode = op.opcode();
        if self.config.builder & opcode_bit(opcode) == 0 {
            return Err(PostError::IllegalOpcode);
        }
        let flags = wqe::check_flags(head.flags | self.config.always)?;
        let mut slot = self.ring.slot(&mut self.session.cursor)?;
        F::put_send(&mut slot, Head { flags, ..head }, None, op, wqe::NO_DATA)?;
        self.session.cursor.advance();
        let mut takes = if op.has_data() { DATA } else { 0 };
        if self.config.datagram != 0 {
            takes |= ADDRESS;
        }
        self.session.wr = Current { opcode, flags, takes, needs: takes };
        Ok(())
    }

    /// Ends the session and returns its cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn close(&mut self) -> Option<PostCursor> {
        if !self.session.open {
            return None;
        }
        self.session.open = false;
        Some(self.session.cursor)
    }
}

impl<F: Format, B: SendBell> WrBuilder for SendQueue<F, B> {
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
    unsafe fn wr_begin(&mut self, head: Head, op: Op<'_>) {
        if !self.session.open {
            return;
        }
        self.end_wr();
        if self.session.cursor.error().is_some() {
            return;
        }
        if let Err(error) = self.begin_wr(head, &op) {
            self.session.cursor.latch(error);
        }
    }

    #[inline]
    fn wr_set_ud_addr(&mut self, ah: &F::Ah, remote_qpn: u32, remote_qkey: u32) {
        if self.setter(ADDRESS).is_none() {
            return;
        }
        let (at, to) = (self.current(), self.destination(ah, remote_qpn, remote_qkey));
        F::set_destination(&mut self.ring.slot_at(at), to);
    }

    fn wr_set_xrc_srqn(&mut self, _remote_srqn: u32) {
        // The devices have no XRC, so no WR has this setter.
        self.wr_latch(PostError::OrphanSetter);
    }

    #[inline]
    unsafe fn wr_set_sges(&mut self, sges: &[Sge]) {
        let Some(wr) = self.setter(DATA) else { return };
        let (at, max_sge) = (self.current(), self.config.max_sge);
        let data = wqe::put_send_sges::<F>(&mut self.ring.slot_at(at), max_sge, wr.opcode, sges);
        self.set_data(wr, data);
    }

    #[inline]
    fn wr_set_inline(&mut self, data: Inline<'_>) {
        let Some(wr) = self.setter(DATA) else { return };
        let (at, max_inline) = (self.current(), self.config.max_inline);
        let put = |()| wqe::put_inline(&mut self.ring.slot_at(at), max_inline, &data);
        let data = F::check_inline(wr.opcode).and_then(put);
        self.set_data(wr, data);
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
