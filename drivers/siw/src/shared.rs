// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that a QP's posters and its control path share: the state.
//!
//! The kernel's connection manager moves the QP to RTS, of which user space is not informed; so sends may be posted in
//! INIT, RTR and RTS, and the doorbell returns whether the QP is connected. The posters check the state in the
//! access to the queue in which they publish ([`QpAccess`]). So no post publishes after the kernel has flushed or destroyed
//! the QP.

use crate::cq_shared::CqShared;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::control::Removed;
use uverbs_core::kernel::QpAccess;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::ControlBarrier;

/// The state of a QP, written by `modify_qp`, read by the posters.
#[derive(Debug)]
pub struct QpShared {
    /// The state, and access to the queues.
    pub(crate) access: QpAccess,
    /// The CQs of the QP. They contain no completion of it after it was destroyed.
    cqs: Vec<Arc<CqShared>>,
    qp_num: u32,
    /// Completions that were removed.
    pub(crate) removed: Removed,
    /// A doorbell found the QP connected.
    connected: AtomicBool,
    /// A flushed work request was polled: the kernel has moved the QP to ERR, or is about to.
    saw_flush: AtomicBool,
    /// `modify_qp` has moved the QP to ERR, and the kernel has flushed it.
    flushed: AtomicBool,
}

impl QpShared {
    /// The shared part of a QP whose completions go to `cqs`. An SRQ has one, too: it is treated as a QP without a number
    /// that always takes receives.
    ///
    /// # Errors
    /// As [`QueueAccess::new`].
    pub(crate) fn create(
        state: QpState,
        barrier: ControlBarrier,
        cqs: Vec<Arc<CqShared>>,
        qp_num: u32,
    ) -> io::Result<Self> {
        let access = QpAccess::new(state, barrier)?;
        let no = || AtomicBool::new(false);
        let (connected, saw_flush, flushed) = (no(), no(), no());
        Ok(Self { access, cqs, qp_num, removed: Removed::default(), connected, saw_flush, flushed })
    }

    /// The shared part of a QP in `state` without CQs.
    ///
    /// # Panics
    /// If memory can't be allocated.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn new(state: QpState) -> Self {
        Self::create(state, ControlBarrier::register(), Vec::new(), 0).expect("a page of memory")
    }

    /// The state that `modify_qp` stored, or ERR since a flushed work request was polled. The kernel enters RTS and ERR by itself.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.access.state().state()
    }

    /// Whether this is a child of fork(2), and the QP its parent's.
    pub(crate) fn is_forked(&self) -> bool {
        self.access.state().is_forked()
    }

    /// Notes that a doorbell found the QP connected.
    #[cold]
    pub(crate) fn note_connected(&self) {
        self.connected.store(true, Ordering::Relaxed);
    }

    /// Whether a doorbell has found the QP connected.
    pub(crate) fn was_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Notes that a flushed work request was polled. What is posted from now on would never complete.
    pub(crate) fn note_flush(&self) {
        // SeqCst: either `store_state` finds this, or its store is before that of ERR here.
        self.saw_flush.store(true, Ordering::SeqCst);
        if is_open(self.access.state()) {
            self.set_state(QpState::ERR);
        }
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

    /// Stores a state that `modify_qp` has set, unless a flush has shown that the kernel has left it since.
    pub(crate) fn store_state(&self, state: QpState) {
        self.set_state(state);
        if self.saw_flush.load(Ordering::SeqCst) && is_open(self.access.state()) {
            self.set_state(QpState::ERR);
        }
    }

    /// Tells the CQs which QP has this number.
    pub(crate) fn attach(self: &Arc<Self>) {
        for cq in &self.cqs {
            cq.stopped(|state| state.attach(self.qp_num, self));
        }
    }

    /// Stores a new state.
    pub fn set_state(&self, state: QpState) {
        self.access.set_state(state);
    }

    /// Removes the QP, which the kernel has destroyed, and its completions from its CQs. The caller ensures that
    /// its number is not yet that of another QP: the kernel assigns the lowest free number.
    pub(crate) fn detach(&self) {
        for cq in &self.cqs {
            cq.stopped(|state| {
                state.remove(self.qp_num, |wr_id| self.removed.push(wr_id));
                state.detach(self.qp_num);
            });
        }
    }
}

/// Whether work requests may be posted in this state. The kernel flushes what is posted before it enters ERR, and nothing
/// that is posted later (`siw_qp_modify()`): such a work request would never complete.
pub(crate) fn is_open(word: StateWord) -> bool {
    matches!(word.state(), QpState::INIT | QpState::RTR | QpState::RTS)
}
