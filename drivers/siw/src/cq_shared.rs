// SPDX-License-Identifier: MIT OR Apache-2.0
//! A completion queue's ring, which its poller and the control path share.
//!
//! [`Polled`] gives the ring one user at a time. So after a control call has destroyed a QP and removed its completions, no
//! poll reports one of them, and none takes a slot in the ring. (With libsiw, the next poll reports them.)

use crate::queue::Ring;
use crate::shared::QpShared;
use core::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use uverbs_core::kernel::Polled;
use uverbs_uapi::siw::{
    SIW_NOTIFY_NEXT_COMPLETION, SIW_NOTIFY_SOLICITED, SIW_WC_WR_FLUSH_ERR, SIW_WQE_VALID, siw_cqe,
};

/// The ring of a completion queue.
pub type CqShared = Polled<CqState>;

/// A ring of completions, and the position of the poller.
#[derive(Debug)]
pub struct CqState {
    ring: Ring<siw_cqe>,
    /// The first completion that is not polled, counted without end.
    at: u32,
    /// The QPs that complete to the queue. A flushed work request shows that the kernel has moved its QP to ERR.
    qps: Vec<(u32, Weak<QpShared>)>,
}

impl CqState {
    pub(crate) fn new(ring: Ring<siw_cqe>) -> Self {
        Self { ring, at: 0, qps: Vec::new() }
    }

    /// The number of completions that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.slots()
    }

    /// Whether the kernel has written the completion at this position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_written(&self, index: u32) -> bool {
        const { assert!(SIW_WQE_VALID <= 0xff) };
        self.ring.flags_of(index) & SIW_WQE_VALID as u8 != 0
    }

    /// Whether there is a completion.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn has_entry(&self) -> bool {
        self.is_written(self.at)
    }

    /// Takes the next completion and returns its slot, if there is one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn take(&mut self) -> Option<siw_cqe> {
        if !self.has_entry() {
            return None;
        }
        let cqe = self.ring.read(self.at);
        self.ring.give_back(self.at);
        self.at = self.at.wrapping_add(1);
        if cqe.status == SIW_WC_WR_FLUSH_ERR {
            self.note_flush(cqe.qp_id);
        }
        Some(cqe)
    }

    #[cold]
    fn note_flush(&self, qp_id: u64) {
        let qp = self.qps.iter().find(|(number, _)| u64::from(*number) == qp_id);
        if let Some(qp) = qp.and_then(|(_, qp)| qp.upgrade()) {
            qp.note_flush();
        }
    }

    /// Adds a QP.
    pub(crate) fn attach(&mut self, qp_num: u32, qp: &Arc<QpShared>) {
        self.detach(qp_num);
        self.qps.push((qp_num, Arc::downgrade(qp)));
    }

    /// Removes a QP.
    pub(crate) fn detach(&mut self, qp_num: u32) {
        self.qps.retain(|(number, _)| *number != qp_num);
    }

    /// Requests an event for the next (solicited) completion.
    ///
    /// The order of all stores and loads is that of the program, here and in the kernel (`smp_store_mb()` in
    /// `siw_sqe_complete()`): either a poll after this call finds a completion, or the kernel finds the request.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let next = if solicited_only { 0 } else { SIW_NOTIFY_NEXT_COMPLETION };
        self.ring.notify().store(SIW_NOTIFY_SOLICITED | next, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Removes the completions of a QP. The completions before them move up, in order, so the room is at the poller's end.
    /// The kernel writes only from its own position on, to slots that were returned. Calls `removed` with their `wr_id`s.
    pub(crate) fn remove(&mut self, qp_num: u32, mut removed: impl FnMut(u64)) {
        let all = (0..self.ring.slots()).take_while(|i| self.is_written(self.at.wrapping_add(*i))).count();
        let end = self.at.wrapping_add(all as u32);
        let (mut from, mut to) = (end, end);
        for _ in 0..all {
            from = from.wrapping_sub(1);
            let cqe = self.ring.read(from);
            if cqe.qp_id == u64::from(qp_num) {
                removed(cqe.id);
                continue;
            }
            to = to.wrapping_sub(1);
            if from != to {
                self.ring.replace(to, &cqe);
            }
        }
        while self.at != to {
            self.ring.give_back(self.at);
            self.at = self.at.wrapping_add(1);
        }
    }
}
