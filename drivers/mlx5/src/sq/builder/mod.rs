// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builders of ibv_wr_post(3): a batch whose state is in the queue.
//!
//! A builder writes the segments that its opcode determines and leaves room for the destination. Its setters then write
//! destination and data, in any order, because the position of each follows from transport and opcode. The last setter
//! completes the WQE. The missing setters of a WR are a few bits, which are checked when the next WR begins and when the
//! session ends. An error clears them, and setters that are not expected do nothing.
#![expect(unsafe_code)]
// UNSAFETY: implements the core's builder trait, whose `wr_set_sges` has a contract about the entries' memory.

mod begin;
mod mkey;
mod raw_wqe;
mod session;
mod setters;

pub(crate) use session::Session;

use crate::sq::SendQueue;
use crate::sq::consts::Kind;
use crate::sq::cursor::SqCursor;
use crate::wqe::plain::{Carries, Dest};
use crate::wqe::{Ah, Remote, SHORT_INLINE, WqeWriter, ordinary_words, put_ordinary};
use core::sync::atomic::Ordering;
use session::{Current, SlowPathFlags};
use uverbs_core::provider::op::MwBind;
use uverbs_core::provider::{Head, Inline, Op, PostError, To, WrBuilder};
use uverbs_core::wr::Sge as RawSge;

/// `wr_bind_mw` is for windows of type 2, whatever type the window has (ibv_wr_post(3)).
#[cfg_attr(not(debug_assertions), inline(always))]
const fn type_2(bind: MwBind) -> MwBind {
    MwBind { mw_type: 2, ..bind }
}

impl SendQueue {
    /// `wr_start` if something must be checked first.
    #[cold]
    #[inline(never)]
    fn start_cold(&mut self) {
        let Self { queue, producer, session, .. } = self;
        if let Some(cursor) = producer.open_fenced() {
            session.cursor = cursor;
            return session.wr.clear();
        }
        if producer.in_session() {
            return session.fail(PostError::SessionOpen);
        }
        let (cursor, error) = match producer.open_session_cold(queue) {
            Ok(cursor) => (cursor, PostError::NoSession),
            Err(error) => (SqCursor::failed(), error),
        };
        (session.cursor, session.wr, session.error) = (cursor, Current::NONE, error);
    }

    /// `wr_complete` if something must be checked. (Not marked as cold, because it would then be called from a stack frame
    /// that the fast path builds, too.)
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
        let cursor = core::mem::replace(&mut session.cursor, SqCursor::failed());
        producer.end_session(queue, Some(&cursor))
    }
}

impl WrBuilder for SendQueue {
    #[inline]
    fn wr_start(&mut self) {
        let Some(cursor) = self.producer.open_session() else { return self.start_cold() };
        self.session.cursor = cursor;
        self.session.wr.clear();
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_is_open(&self) -> bool {
        self.producer.in_session()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_begin(&mut self, head: Head, op: Op<'_, Remote>) {
        match op {
            Op::Send => self.begin(head, || Op::Send),
            Op::SendImm(imm) => self.begin(head, move || Op::SendImm(imm)),
            Op::SendInv(rkey) => self.begin(head, move || Op::SendInv(rkey)),
            Op::Write(to) => self.begin(head, move || Op::Write(to)),
            Op::WriteImm(to, imm) => self.begin(head, move || Op::WriteImm(to, imm)),
            Op::Read(from) => self.begin(head, move || Op::Read(from)),
            Op::CmpSwp(at, compare, swap) => self.begin(head, move || Op::CmpSwp(at, compare, swap)),
            Op::FetchAdd(at, add) => self.begin(head, move || Op::FetchAdd(at, add)),
            Op::Tso(args) => self.begin(head, move || Op::Tso(args)),
            Op::BindMw(bind) => self.begin_local(head, move || Op::BindMw(type_2(bind))),
            Op::LocalInv(rkey) => self.begin_local(head, move || Op::LocalInv(rkey)),
            Op::Flush(..) | Op::AtomicWrite(..) => self.begin_cold(head, &op),
        }
    }

    #[inline]
    fn wr_set_ud_addr(&mut self, ah: &Ah, remote_qpn: u32, remote_qkey: u32) {
        self.set_address(Kind::Datagram, &Dest::Ud(To { ah, remote_qpn, remote_qkey }));
    }

    #[inline]
    fn wr_set_xrc_srqn(&mut self, remote_srqn: u32) {
        self.set_address(Kind::Xrc, &Dest::Xrc(remote_srqn));
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_set_sge(&mut self, sge: RawSge) {
        let Self { queue, session: Session { wr, .. }, .. } = self;
        // The length of an empty entry wraps around.
        if sge.length.wrapping_sub(1) < wr.max_entry {
            let [count_key, addr] = ordinary_words(sge);
            let to = queue.view().unit_at(wr.data);
            to[0].store(count_key, Ordering::Relaxed);
            to[1].store(addr, Ordering::Relaxed);
            return wr.end_data();
        }
        // SAFETY: the entry's memory fulfils the contract of `wr_set_sge` (the contract of this function).
        unsafe { self.set_entry(sge.addr, sge.length, sge.lkey) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_set_sges(&mut self, sges: &[RawSge]) {
        let Self { queue, session, encoder, .. } = self;
        let state = session.wr.state;
        if state.takes_data(SlowPathFlags::NO_INLINE) && !sges.is_empty() {
            let writer = WqeWriter::new(queue.view(), session.wr.place);
            if let Some(units) = put_ordinary(writer, state.units.into(), &encoder.fast.limits, sges) {
                // codegen: live
                let wr = session.wr;
                return session.end_fast(queue.view(), &wr, units, Carries::Entries);
            }
        }
        // SAFETY: the entries' memory fulfils the contract of this function.
        unsafe { self.set_entries_cold(sges) };
    }

    #[inline]
    fn wr_set_inline(&mut self, data: Inline<'_>) {
        // codegen: call
        match data {
            Inline::Bytes(bytes) if bytes.len() <= SHORT_INLINE => self.set_inline_short(bytes),
            Inline::Bytes(bytes) => self.set_inline_long(bytes),
            Inline::Bufs(bufs) => self.set_inline_bufs(bufs),
            Inline::List(_) | Inline::Sges(_) => self.set_inline_cold(&data),
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
        if session.wr.state.needs.is_empty() && producer.complete_session(queue, &mut session.cursor) {
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
