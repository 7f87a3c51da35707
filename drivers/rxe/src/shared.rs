// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that a QP's posters and its control path share: the state, and the queue key.
//!
//! The kernel checks the state only after user space has published (`rxe_post_send()`), so the posters check it first. Check
//! and publication are one access to the queue ([`QueueAccess::inside`]): a control call that closes the queue waits for its end, so no post
//! publishes after the kernel has reset the QP.

use crate::cq_shared::CqShared;
use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::sync::{Arc, MutexGuard};
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::control::Removed;
use uverbs_core::error::Error;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::{ControlBarrier, ProcessMutex};

/// State and queue key of a QP, written by `modify_qp`, read by the posters.
#[derive(Debug)]
pub struct QpShared {
    /// Access to the send queue and to the receive queue, each with one poster. Both words contain the number of resets of
    /// the QP and its state.
    pub(crate) send: QueueAccess,
    pub(crate) recv: QueueAccess,
    qkey: AtomicU32,
    /// One control call at a time.
    modifying: ProcessMutex<()>,
    /// The CQs of the QP. They contain no completion of it after it was reset or destroyed.
    cqs: Vec<Arc<CqShared>>,
    qp_num: u32,
    /// Completions that were removed.
    pub(crate) removed: Removed,
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
        Ok(Self {
            send,
            recv,
            qkey: AtomicU32::new(0),
            modifying: ProcessMutex::new(()),
            cqs,
            qp_num,
            removed: Removed::default(),
        })
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

    /// The state that `modify_qp` stored. The device may have entered ERR by itself.
    #[must_use]
    pub fn state(&self) -> QpState {
        word(&self.recv).state()
    }

    /// Begins a control call that changes the state.
    pub(crate) fn modify(&self) -> Result<MutexGuard<'_, ()>, Error> {
        let forked = |_| Error::os("modify_qp", "qp of the parent process", Errno::ESTALE);
        self.modifying.lock().map_err(forked)
    }

    /// Stores a new state. RESET counts as a reset, after which the posters read the rings' indices again.
    pub fn set_state(&self, state: QpState) {
        for access in [&self.send, &self.recv] {
            // In a child of fork(2) the word is 0 and stays 0. Release: a poster that sees the state also sees the
            // kernel's earlier changes to the ring.
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

    /// Removes the completions of the QP, which the kernel has reset or destroyed, from its CQs. The kernel assigns numbers in a cycle
    /// (`__rxe_add_to_pool()`), so this number is not yet that of another QP.
    pub(crate) fn remove_completions(&self) {
        for cq in &self.cqs {
            cq.stopped(|state| state.remove(self.qp_num, |wr_id| self.removed.push(wr_id)));
        }
    }

    /// The QP's own queue key.
    #[inline]
    pub(crate) fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Relaxed)
    }

    /// Stores a new queue key.
    pub fn set_qkey(&self, qkey: u32) {
        self.qkey.store(qkey, Ordering::Relaxed);
    }
}

/// A queue's word. Acquire: pairs with [`QpShared::set_state`].
#[inline(always)]
pub(crate) fn word(access: &QueueAccess) -> StateWord {
    StateWord::from_bits(access.word().load(Ordering::Acquire))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_changes_the_word_even_if_the_state_is_the_same_again() {
        let shared = QpShared::new(QpState::RTS);
        for access in [&shared.send, &shared.recv] {
            let before = word(access);
            shared.set_state(QpState::RESET);
            shared.set_state(QpState::RTS);
            let after = word(access);
            assert_eq!(after.state(), QpState::RTS);
            assert_ne!(before, after);
            assert!(before.resets_differ(after));
            shared.set_state(QpState::ERR);
            assert!(!after.resets_differ(word(access)));
        }
    }
}
