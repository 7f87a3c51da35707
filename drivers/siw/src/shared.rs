// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that a QP's posters and its control path share: the state.
//!
//! The kernel's connection manager moves the QP to RTS, of which user space is not informed; so sends may be posted in any
//! state but RESET and ERR, and the doorbell returns whether the QP is connected. Check and publication are one access to
//! the queue ([`QueueAccess::inside`]): a control call that closes the queue waits for its end, so no post publishes after the kernel has
//! flushed or destroyed the QP.

use crate::cq_shared::CqShared;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::{Arc, MutexGuard};
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::control::Removed;
use uverbs_core::error::Error;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::{ControlBarrier, ProcessMutex};

/// The state of a QP, written by `modify_qp`, read by the posters.
#[derive(Debug)]
pub struct QpShared {
    /// Access to the send queue and to the receive queue, each with one poster. Both words contain the state.
    pub(crate) send: QueueAccess,
    pub(crate) recv: QueueAccess,
    /// One control call at a time.
    modifying: ProcessMutex<()>,
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
        let access = || QueueAccess::new(StateWord::new(state).bits(), barrier);
        let (send, recv) = (access()?, access()?);
        let no = || AtomicBool::new(false);
        let (connected, saw_flush, flushed) = (no(), no(), no());
        let (modifying, removed) = (ProcessMutex::new(()), Removed::default());
        Ok(Self { send, recv, modifying, cqs, qp_num, removed, connected, saw_flush, flushed })
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
        word(&self.recv).state()
    }

    /// Whether this is a child of fork(2), and the QP its parent's.
    pub(crate) fn is_forked(&self) -> bool {
        word(&self.recv).is_forked()
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
        if is_open(word(&self.recv)) {
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
        if self.saw_flush.load(Ordering::SeqCst) && is_open(word(&self.recv)) {
            self.set_state(QpState::ERR);
        }
    }

    /// Tells the CQs which QP has this number.
    pub(crate) fn attach(self: &Arc<Self>) {
        for cq in &self.cqs {
            cq.stopped(|state| state.attach(self.qp_num, self));
        }
    }

    /// Begins a control call that changes the state.
    pub(crate) fn modify(&self) -> Result<MutexGuard<'_, ()>, Error> {
        let forked = |_| Error::os("modify_qp", "qp of the parent process", Errno::ESTALE);
        self.modifying.lock().map_err(forked)
    }

    /// Stores a new state.
    pub fn set_state(&self, state: QpState) {
        for access in [&self.send, &self.recv] {
            // In a child of fork(2) the word is 0 and stays 0.
            let next = |bits| {
                let word = StateWord::from_bits(bits);
                (!word.is_forked()).then(|| word.next(state).bits())
            };
            let _ = access.word().fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        }
    }

    /// Waits until the posts that began before the last [`set_state`](Self::set_state) have ended.
    ///
    /// # Errors
    /// As [`QueueAccess::wait_idle`].
    pub(crate) fn wait_for_posters(&self) -> Result<(), Errno> {
        if word(&self.send).is_forked() {
            // The posters are the parent's.
            return Ok(());
        }
        self.send.wait_idle()?;
        self.recv.wait_idle()
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

/// A queue's word. Acquire: pairs with [`QpShared::set_state`].
#[inline(always)]
pub(crate) fn word(access: &QueueAccess) -> StateWord {
    StateWord::from_bits(access.word().load(Ordering::Acquire))
}
