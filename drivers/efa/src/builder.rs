// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3): a batch whose state is in the queue.
//!
//! A builder begins an entry; its setters add the data and the destination, which every request has. Bits record which of the two the
//! request still needs. They are checked when the next request begins and when the session ends.
#![expect(unsafe_code)]
// UNSAFETY: functions of the core's trait are `unsafe`, with a contract about memory. This module has no unsafe operation.

use crate::memory::Wqe;
use crate::progress::Cursor;
use crate::send::SendQueue;
use crate::wqe::{Ah, SendConfig};
use uverbs_core::provider::{Head, Inline, Op, PostError, To, WrBuilder};
use uverbs_core::wr::Sge;

const DATA: u8 = 1;
const ADDRESS: u8 = 2;

/// A builder session, or none.
#[derive(Debug)]
pub(crate) struct Session {
    open: bool,
    /// If there is no session, or after an error, it is at its limit.
    cursor: Cursor,
    /// Whether a request has begun, to which setters belong.
    begun: bool,
    /// The setters that it needs; 0 if there is no session, and after an error.
    needs: u8,
}

impl Default for Session {
    fn default() -> Self {
        Self { open: false, cursor: Cursor::failed(PostError::NoSession), begun: false, needs: 0 }
    }
}

impl Session {
    /// Whether there is one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Ends the session with this error, if there is one.
    #[cold]
    fn latch(&mut self, error: PostError) {
        if self.open {
            self.cursor.latch(error);
            self.needs = 0;
        }
    }

    /// A setter that the request does not need.
    #[cold]
    fn refuse(&mut self) {
        self.latch(if self.begun { PostError::DoubledSetter } else { PostError::OrphanSetter });
    }
}

impl SendQueue {
    /// The entry of the request, if it can take this setter now.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn setter(&mut self, which: u8) -> Option<(&mut Wqe, &SendConfig)> {
        let Self { session, ring, config, .. } = self;
        if session.needs & which == 0 {
            session.refuse();
            return None;
        }
        session.needs &= !which;
        Some((ring.staged(session.cursor.at.wrapping_sub(1)), config))
    }

    /// Notes the error of a setter.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn note(&mut self, result: Result<(), PostError>) {
        if let Err(error) = result {
            self.session.latch(error);
        }
    }

    /// The hints for the request that was begun last, `EFA_IO_PROCESSING_HINT_*` (`efadv_wr_set_processing_hints`).
    pub fn wr_set_processing_hints(&mut self, hints: u8) {
        let Self { session, ring, .. } = self;
        if !session.open || session.cursor.result().is_err() {
            return;
        }
        if !session.begun {
            return session.latch(PostError::OrphanSetter);
        }
        ring.staged(session.cursor.at.wrapping_sub(1)).put_hints(hints);
    }

    /// Begins a request at the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin_wr(&mut self, head: Head, op: &Op<'_>) {
        let at = self.session.cursor.at;
        let ((number, phase), is_wide) = (self.number(at, head.wr_id), self.ring.is_wide());
        match self.ring.staged(at).begin(&self.config, number, phase, head.flags, op, is_wide) {
            Ok(()) => {
                self.session.cursor.at = at.wrapping_add(1);
                (self.session.begun, self.session.needs) = (true, DATA | ADDRESS);
            }
            Err(error) => self.session.latch(error),
        }
    }

    /// [`begin_wr`](Self::begin_wr) if there seems to be no room: there is none outside of a session, and after an error. The usual way has
    /// no call, so it saves no registers.
    // codegen: call
    #[cold]
    fn begin_at_limit(&mut self, head: Head, op: &Op<'_>) {
        if !self.session.open {
            return;
        }
        let mut cursor = self.session.cursor;
        let result = self.room(&mut cursor);
        self.session.cursor = cursor;
        match result {
            Ok(()) => self.begin_wr(head, op),
            Err(error) => self.session.latch(error),
        }
    }

    /// Ends the session and returns its cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn close(&mut self) -> Option<Cursor> {
        if self.session.needs != 0 {
            self.session.latch(PostError::MissingSetter);
        }
        let session = &mut self.session;
        if !core::mem::take(&mut session.open) {
            return None;
        }
        let cursor = session.cursor;
        // A request that begins outside a session finds no room.
        session.cursor.close();
        Some(cursor)
    }
}

impl WrBuilder for SendQueue {
    #[inline]
    fn wr_start(&mut self) {
        if self.session.open {
            return self.session.latch(PostError::SessionOpen);
        }
        let cursor = self.begin();
        self.session = Session { open: true, cursor, begun: false, needs: 0 };
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_is_open(&self) -> bool {
        self.session.open
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_begin(&mut self, head: Head, op: Op<'_>) {
        if self.session.needs != 0 {
            return self.session.latch(PostError::MissingSetter);
        }
        if self.session.cursor.is_at_limit() {
            return self.begin_at_limit(head, &op);
        }
        self.begin_wr(head, &op);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_set_ud_addr(&mut self, ah: &Ah, remote_qpn: u32, remote_qkey: u32) {
        if let Some((wqe, _)) = self.setter(ADDRESS) {
            let result = wqe.put_destination(&To { ah, remote_qpn, remote_qkey });
            self.note(result);
        }
    }

    fn wr_set_xrc_srqn(&mut self, _remote_srqn: u32) {
        self.wr_latch(PostError::OrphanSetter);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_set_sges(&mut self, sges: &[Sge]) {
        if let Some((wqe, config)) = self.setter(DATA) {
            let result = wqe.put_sges(config, sges);
            self.note(result);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_set_inline(&mut self, data: Inline<'_>) {
        if let Some((wqe, config)) = self.setter(DATA) {
            let result = wqe.put_inline(config, &data);
            self.note(result);
        }
    }

    #[cold]
    fn wr_latch(&mut self, error: PostError) {
        self.session.latch(error);
    }

    #[inline]
    fn wr_complete(&mut self) -> Result<(), PostError> {
        let cursor = self.close().ok_or(PostError::NoSession)?;
        self.publish(&cursor)
    }

    #[inline]
    fn wr_abort(&mut self) {
        let _ = self.close();
    }
}
