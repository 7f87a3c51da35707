// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3): a batch whose state is in the queue.
//!
//! A builder begins an entry; its setters add the data and the destination, which every request has. Bits record which of the two the
//! request still needs. They are checked when the next request begins and when the session ends.
#![expect(unsafe_code)]
// UNSAFETY: functions of the core's trait are `unsafe`, with a contract about memory. This module has no unsafe operation.

use crate::memory::Wqe;
use crate::send::{SendQueue, SqCursor};
use crate::wqe::{Ah, SendConfig};
use uverbs_core::provider::{Head, Inline, Op, PostError, To, WrBuilder};
use uverbs_core::wr::Sge;

const DATA: u8 = 1;
const ADDRESS: u8 = 2;

/// A builder session, or none.
#[derive(Debug)]
pub(crate) struct Session {
    open: bool,
    cursor: SqCursor,
    /// Whether a request has begun, to which setters belong.
    begun: bool,
    /// The setters that it needs.
    needs: u8,
}

impl Default for Session {
    fn default() -> Self {
        Self { open: false, cursor: SqCursor::failed(PostError::NoSession), begun: false, needs: 0 }
    }
}

impl Session {
    /// Whether there is one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }
}

impl SendQueue {
    /// Checks that the request can take this setter now, and adds to its entry what `put` does.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn set(&mut self, which: u8, put: impl FnOnce(&mut Wqe, &SendConfig) -> Result<(), PostError>) {
        let session = &mut self.session;
        if !session.open || session.cursor.error().is_some() {
            return;
        }
        if session.needs & which == 0 {
            let error = if session.begun { PostError::DoubledSetter } else { PostError::OrphanSetter };
            session.cursor.latch(error);
            return;
        }
        session.needs &= !which;
        let (at, config) = (session.cursor.at.wrapping_sub(1), self.config);
        if let Err(error) = put(self.local(at), &config) {
            self.session.cursor.latch(error);
        }
    }

    /// The hints for the request that was begun last, `EFA_IO_PROCESSING_HINT_*` (`efadv_wr_set_processing_hints`).
    pub fn wr_set_processing_hints(&mut self, hints: u8) {
        let session = &mut self.session;
        if !session.open || session.cursor.error().is_some() {
            return;
        }
        if !session.begun {
            return session.cursor.latch(PostError::OrphanSetter);
        }
        let at = session.cursor.at.wrapping_sub(1);
        self.local(at).put_hints(hints);
    }

    /// Latches `MissingSetter` if the last request lacks one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn end_wr(&mut self) {
        if self.session.needs != 0 {
            self.session.cursor.latch(PostError::MissingSetter);
        }
        (self.session.begun, self.session.needs) = (false, 0);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin_wr(&mut self, head: Head, op: &Op<'_>) -> Result<(), PostError> {
        let (mut cursor, config) = (self.session.cursor, self.config);
        let (number, phase) = self.next(&mut cursor, head.wr_id)?;
        self.local(cursor.at).begin(&config, number, phase, head.flags, op)?;
        cursor.at = cursor.at.wrapping_add(1);
        self.session.cursor = cursor;
        (self.session.begun, self.session.needs) = (true, DATA | ADDRESS);
        Ok(())
    }

    /// Ends the session and returns its cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn close(&mut self) -> Option<SqCursor> {
        core::mem::take(&mut self.session.open).then_some(self.session.cursor)
    }
}

impl WrBuilder for SendQueue {
    #[inline]
    fn wr_start(&mut self) {
        if self.session.open {
            return self.session.cursor.latch(PostError::SessionOpen);
        }
        let cursor = self.begin();
        self.session = Session { open: true, cursor, begun: false, needs: 0 };
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
    fn wr_set_ud_addr(&mut self, ah: &Ah, remote_qpn: u32, remote_qkey: u32) {
        self.set(ADDRESS, |wqe, _| wqe.put_destination(&To { ah, remote_qpn, remote_qkey }));
    }

    fn wr_set_xrc_srqn(&mut self, _remote_srqn: u32) {
        self.wr_latch(PostError::OrphanSetter);
    }

    #[inline]
    unsafe fn wr_set_sges(&mut self, sges: &[Sge]) {
        self.set(DATA, |wqe, config| wqe.put_sges(config, sges));
    }

    #[inline]
    fn wr_set_inline(&mut self, data: Inline<'_>) {
        self.set(DATA, |wqe, config| wqe.put_inline(config, &data));
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
