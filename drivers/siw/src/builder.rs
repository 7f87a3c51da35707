// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3): a batch whose state is in the queue.
//!
//! A builder writes the head of an element; its setter then adds the data. Whether the WR still needs its setter is checked
//! when the next WR begins and when the session ends.
#![expect(unsafe_code)]
// UNSAFETY: `wr_set_sges` is an `unsafe fn` of the core's trait, with a contract about memory. This module has no
// unsafe operation.

use crate::doorbell::SendBell;
use crate::producer::Cursor;
use crate::send::SendQueue;
use crate::wqe::{self, Ah, Data};
use uverbs_core::provider::opcodes::opcode_bit;
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{Operation, Payload, PostError, Wr, WrBuilder};
use uverbs_core::wr::{Sge, WrOpcode};

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
    /// The flags of its element.
    flags: u16,
    /// Whether it has data.
    takes: bool,
    /// Whether the setter of its data was not called yet.
    needs: bool,
}

impl Default for Current {
    /// No WR: no setter is expected.
    fn default() -> Self {
        Self { opcode: WrOpcode(u32::MAX), flags: 0, takes: false, needs: false }
    }
}

impl<B: SendBell> SendQueue<B> {
    /// Checks that the WR can take its data now, and records the call. `None` if there is no session or it has failed.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn setter(&mut self) -> Option<Current> {
        let session = &mut self.session;
        if !session.open || session.cursor.error().is_some() {
            return None;
        }
        let wr = session.wr;
        if !wr.needs {
            let error = if wr.takes { PostError::DoubledSetter } else { PostError::OrphanSetter };
            session.cursor.latch(error);
            return None;
        }
        session.wr.needs = false;
        Some(wr)
    }

    /// Adds the data to the current WR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn set_data(&mut self, data: Result<Data, PostError>, flags: u16) {
        match data {
            Ok(data) => {
                let index = self.current();
                self.ring.slot_at(index).put_num_sge(data.num_sge);
                self.ring.set_flags(index, flags | data.flags);
            }
            Err(error) => self.session.cursor.latch(error),
        }
    }

    /// The position of the element that setters write.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn current(&self) -> u32 {
        self.session.cursor.at.wrapping_sub(1)
    }

    /// Latches `MissingSetter` if the last WR lacks one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn end_wr(&mut self) {
        if self.session.wr.needs {
            self.session.cursor.latch(PostError::MissingSetter);
        }
        self.session.wr = Current::default();
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin_wr<O: Operation<Remote = RemoteAddr>>(&mut self, wr: Wr, op: &O) -> Result<(), PostError> {
        if self.builder_ops & opcode_bit(O::OPCODE) == 0 {
            return Err(PostError::IllegalOpcode);
        }
        let flags = wqe::check_flags(wr.flags | self.always, O::OPCODE)?;
        let cursor = &mut self.session.cursor;
        let mut slot = self.ring.slot(cursor)?;
        wqe::put_send_head(&mut slot, wr.wr_id, op, Data::default());
        self.ring.set_flags(cursor.at, flags);
        cursor.at = cursor.at.wrapping_add(1);
        self.session.wr = Current { opcode: O::OPCODE, flags, takes: O::HAS_DATA, needs: O::HAS_DATA };
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

    fn wr_set_ud_addr(&mut self, ah: &Ah, _remote_qpn: u32, _remote_qkey: u32) {
        match *ah {}
    }

    fn wr_set_xrc_srqn(&mut self, _remote_srqn: u32) {
        // The device has no XRC, so no WR has this setter.
        self.wr_latch(PostError::OrphanSetter);
    }

    #[inline]
    unsafe fn wr_set_sges(&mut self, sges: &[Sge]) {
        let Some(wr) = self.setter() else { return };
        let (index, limits) = (self.current(), self.limits);
        let data = wqe::put_send_sges(&mut self.ring.slot_at(index), limits, wr.opcode, sges);
        self.set_data(data, wr.flags);
    }

    #[inline]
    fn wr_set_inline<P: Payload<Sge>>(&mut self, data: P) {
        let Some(wr) = self.setter() else { return };
        let (index, limits) = (self.current(), self.limits);
        let mut slot = self.ring.slot_at(index);
        let data =
            wqe::check_inline(wr.opcode).and_then(|()| wqe::put_inline(&mut slot, limits.max_inline, &data));
        self.set_data(data, wr.flags);
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
