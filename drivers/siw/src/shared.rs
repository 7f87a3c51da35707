// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a QP's connection.
//!
//! The kernel's connection manager moves the QP to RTS, of which user space is not informed; so sends may be posted in
//! INIT, RTR and RTS, and the doorbell returns whether the QP is connected.

use crate::QpShared;
use core::sync::atomic::{AtomicBool, Ordering};
use uverbs_core::attr::QpState;
use uverbs_core::provider::state::StateWord;

/// What posters, pollers and control calls have found out of a QP.
#[derive(Debug, Default)]
pub struct Connection {
    /// A doorbell found the QP connected.
    connected: AtomicBool,
    /// A flushed work request was polled: the kernel has moved the QP to ERR, or is about to.
    saw_flush: AtomicBool,
    /// `modify_qp` has moved the QP to ERR, and the kernel has flushed it.
    flushed: AtomicBool,
}

impl Connection {
    /// Notes that a doorbell found the QP connected.
    #[cold]
    pub(crate) fn note_connected(&self) {
        self.connected.store(true, Ordering::Relaxed);
    }

    /// Whether a doorbell has found the QP connected.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn was_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Notes that the kernel has moved the QP to ERR at the request of `modify_qp`. It flushes before it returns, and then takes no
    /// more receives (`siw_qp_modify()`, which excludes `siw_qp_llp_data_ready()` by a lock).
    pub(crate) fn note_flushed(&self) {
        self.flushed.store(true, Ordering::Release);
    }

    /// Whether [`note_flushed`](Self::note_flushed) was called.
    pub(crate) fn is_flushed(&self) -> bool {
        self.flushed.load(Ordering::Acquire)
    }
}

/// Notes that a flushed work request was polled. What is posted from now on would never complete.
pub(crate) fn note_flush(qp: &QpShared) {
    // SeqCst: either `store_state` finds this, or its store is before that of ERR here.
    qp.own().saw_flush.store(true, Ordering::SeqCst);
    if is_open(qp.access().state()) {
        qp.set_state(QpState::ERR);
    }
}

/// Stores a state that `modify_qp` has set, unless a flush has shown that the kernel has left it since.
pub(crate) fn store_state(qp: &QpShared, state: QpState) {
    qp.set_state(state);
    if qp.own().saw_flush.load(Ordering::SeqCst) && is_open(qp.access().state()) {
        qp.set_state(QpState::ERR);
    }
}

/// Whether work requests may be posted in this state. The kernel flushes what is posted before it enters ERR, and nothing
/// that is posted later (`siw_qp_modify()`): such a work request would never complete.
pub(crate) fn is_open(word: StateWord) -> bool {
    matches!(word.state(), QpState::INIT | QpState::RTR | QpState::RTS)
}
