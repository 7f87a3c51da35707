// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3), for queues whose batches are a [`Cursor`]: a batch whose state is in the queue.
//!
//! A builder begins a request; its setters then add the data and the destination. Bits record which of the two the request still needs.
//! They are checked when the next request begins and when the session ends.
#![expect(unsafe_code)]
// UNSAFETY: functions of the builder's trait are `unsafe`, with a contract about memory. This module has no unsafe operation.

use super::batch::{BatchQueue, Cursor};
use super::error::PostError;
use super::inline::Inline;
use super::op::Op;
use super::send::WrBuilder;
use super::wr::{Head, To};
use crate::wr::Sge;

/// The setter of the data, as a bit.
pub const DATA: u8 = 1;
/// The setter of the destination, as a bit.
pub const ADDRESS: u8 = 2;

/// A builder session, or none.
#[derive(Debug)]
pub struct Session {
    open: bool,
    /// If there is no session, or after an error, it is at its limit.
    cursor: Cursor,
    /// The setters of the request that was begun last.
    takes: u8,
    /// Those of them that were not called yet; 0 if there is no session, and after an error.
    needs: u8,
}

impl Default for Session {
    /// No session.
    fn default() -> Self {
        Self { open: false, cursor: Cursor::failed(PostError::NoSession), takes: 0, needs: 0 }
    }
}

impl Session {
    /// Whether there is one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The position of the request that was begun last, for a setter that is not one of this module; `None` without a session, and after
    /// an error. A session without a request has an error then.
    #[must_use]
    pub fn current(&mut self) -> Option<u32> {
        if !self.open || self.cursor.result().is_err() {
            return None;
        }
        if self.takes == 0 {
            self.latch(PostError::OrphanSetter);
            return None;
        }
        Some(self.cursor.at.wrapping_sub(1))
    }

    /// Ends the session with this error, if there is one.
    #[cold]
    fn latch(&mut self, error: PostError) {
        if self.open {
            self.cursor.latch(error);
            self.needs = 0;
        }
    }

    /// Notes the error of a setter.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn note(&mut self, result: Result<(), PostError>) {
        if let Err(error) = result {
            self.latch(error);
        }
    }

    /// The position of the request, if it can take this setter now.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn setter(&mut self, which: u8) -> Option<u32> {
        if self.needs & which == 0 {
            self.refuse(which);
            return None;
        }
        self.needs &= !which;
        Some(self.cursor.at.wrapping_sub(1))
    }

    /// A setter that the request does not need.
    #[cold]
    fn refuse(&mut self, which: u8) {
        let is_again = self.takes & which != 0;
        self.latch(if is_again { PostError::DoubledSetter } else { PostError::OrphanSetter });
    }

    /// Ends the session and returns its cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn close(&mut self) -> Option<Cursor> {
        if self.needs != 0 {
            self.latch(PostError::MissingSetter);
        }
        if !core::mem::take(&mut self.open) {
            return None;
        }
        let cursor = self.cursor;
        // A request that begins outside a session finds no room.
        self.cursor.close();
        Some(cursor)
    }
}

/// A queue with a builder session. A request that is begun is beyond the published position, where its setters complete it. Without XRC:
/// no request has the setter of that destination.
pub trait BuilderQueue: BatchQueue {
    /// The session.
    fn session(&self) -> &Session;

    /// The session.
    fn session_mut(&mut self) -> &mut Session;

    /// Makes sure that there is room at the cursor.
    ///
    /// # Errors
    /// As [`Cursor::room`].
    fn room(&mut self, cursor: &mut Cursor) -> Result<(), PostError>;

    /// Writes a request without data and destination at a position. Returns the setters that it takes.
    ///
    /// # Errors
    /// The builders do not have the operation, or a flag.
    fn put_head(&mut self, at: u32, head: Head, op: &Op<'_, Self::Remote>) -> Result<u8, PostError>;

    /// Adds the destination to the request at a position.
    ///
    /// # Errors
    /// There is no such destination.
    fn put_destination(&mut self, at: u32, to: &To<'_, Self::Ah>) -> Result<(), PostError>;

    /// Adds entries to the request at a position.
    ///
    /// # Errors
    /// It can't have them.
    fn put_sges(&mut self, at: u32, sges: &[Sge]) -> Result<(), PostError>;

    /// Adds inline data to the request at a position.
    ///
    /// # Errors
    /// It can't have them.
    fn put_inline(&mut self, at: u32, data: &Inline<'_>) -> Result<(), PostError>;
}

/// Begins a request at the cursor of the session.
#[cfg_attr(not(debug_assertions), inline(always))]
fn begin_wr<Q: BuilderQueue>(queue: &mut Q, head: Head, op: &Op<'_, Q::Remote>) {
    let at = queue.session().cursor.at;
    match queue.put_head(at, head, op) {
        Ok(takes) => {
            let session = queue.session_mut();
            session.cursor.advance();
            (session.takes, session.needs) = (takes, takes);
        }
        Err(error) => queue.session_mut().latch(error),
    }
}

/// [`begin_wr`] if there seems to be no room: there is none outside of a session, and after an error. The usual way has no call, so it
/// saves no registers.
// codegen: call
#[cold]
fn begin_at_limit<Q: BuilderQueue>(queue: &mut Q, head: Head, op: Op<'_, Q::Remote>) {
    if !queue.session().open {
        return;
    }
    let mut cursor = queue.session().cursor;
    let result = queue.room(&mut cursor);
    queue.session_mut().cursor = cursor;
    match result {
        Ok(()) => begin_wr(queue, head, &op),
        Err(error) => queue.session_mut().latch(error),
    }
}

impl<Q: BuilderQueue> WrBuilder for Q {
    #[inline]
    fn wr_start(&mut self) {
        if self.session().open {
            return self.session_mut().latch(PostError::SessionOpen);
        }
        let cursor = self.begin();
        *self.session_mut() = Session { open: true, cursor, takes: 0, needs: 0 };
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_is_open(&self) -> bool {
        self.session().open
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_begin(&mut self, head: Head, op: Op<'_, Self::Remote>) {
        if self.session().needs != 0 {
            return self.session_mut().latch(PostError::MissingSetter);
        }
        if self.session().cursor.is_at_limit() {
            return begin_at_limit(self, head, op);
        }
        begin_wr(self, head, &op);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_set_ud_addr(&mut self, ah: &Self::Ah, remote_qpn: u32, remote_qkey: u32) {
        if let Some(at) = self.session_mut().setter(ADDRESS) {
            let result = self.put_destination(at, &To { ah, remote_qpn, remote_qkey });
            self.session_mut().note(result);
        }
    }

    fn wr_set_xrc_srqn(&mut self, _remote_srqn: u32) {
        self.wr_latch(PostError::OrphanSetter);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_set_sges(&mut self, sges: &[Sge]) {
        if let Some(at) = self.session_mut().setter(DATA) {
            let result = self.put_sges(at, sges);
            self.session_mut().note(result);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_set_inline(&mut self, data: Inline<'_>) {
        if let Some(at) = self.session_mut().setter(DATA) {
            let result = self.put_inline(at, &data);
            self.session_mut().note(result);
        }
    }

    #[cold]
    fn wr_latch(&mut self, error: PostError) {
        self.session_mut().latch(error);
    }

    #[inline]
    fn wr_complete(&mut self) -> Result<(), PostError> {
        let cursor = self.session_mut().close().ok_or(PostError::NoSession)?;
        self.publish(&cursor)
    }

    #[inline]
    fn wr_abort(&mut self) {
        let _ = self.session_mut().close();
    }
}
