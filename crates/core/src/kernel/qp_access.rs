// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access to the two queues of a QP whose posters check its state in each post: the part of `modify_qp` that rxe and siw have
//! in common.
//!
//! Check and publication of a post are one access to the queue ([`QueueAccess::inside`]). So when a control call has stored a
//! state and has waited ([`QpAccess::wait_for_posters`]), no post publishes in the earlier state any more.

use super::QueueAccess;
use crate::attr::QpState;
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::provider::state::StateWord;
use crate::sync::{ControlBarrier, ProcessMutex};
use core::sync::atomic::Ordering;
use std::io;
use std::sync::MutexGuard;

/// The state of a QP that a control call has closed: no state of the verbs, and no reset.
const CLOSED: QpState = QpState(0x7d);

/// The access words of a QP's queues, each with one poster. Both words contain the state and the number of resets.
#[derive(Debug)]
pub struct QpAccess {
    /// The send queue.
    pub send: QueueAccess,
    /// The receive queue.
    pub recv: QueueAccess,
    /// One control call at a time.
    modifying: ProcessMutex<()>,
}

impl QpAccess {
    /// The access words of a QP in `state`.
    ///
    /// # Errors
    /// As [`QueueAccess::new`].
    pub fn new(state: QpState, barrier: ControlBarrier) -> io::Result<Self> {
        let access = || QueueAccess::new(StateWord::new(state).bits(), barrier);
        Ok(Self { send: access()?, recv: access()?, modifying: ProcessMutex::new(()) })
    }

    /// The state that was stored last.
    #[must_use]
    pub fn state(&self) -> StateWord {
        state_word(&self.recv)
    }

    /// Begins a control call that changes the state. Another one waits until the value is dropped.
    ///
    /// # Errors
    /// `ESTALE` in a child of fork(2) if a thread of the parent is in such a call.
    pub fn modify(&self) -> Result<MutexGuard<'_, ()>> {
        let forked = |_| Error::os("modify_qp", "qp of the parent process", Errno::ESTALE);
        self.modifying.lock().map_err(forked)
    }

    /// Stores a new state. RESET counts as a reset.
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

    /// Stores a state that allows less, before the kernel changes it, and waits for the posts in progress.
    ///
    /// # Errors
    /// As [`wait_for_posters`](Self::wait_for_posters): a post may still be in progress, and the state is that of before.
    pub fn close(&self, state: QpState) -> Result<(), Errno> {
        let before = self.state().state();
        self.set_state(state);
        self.wait_for_posters().inspect_err(|_| self.set_state(before))
    }

    /// Ends all posts, until a state is stored. As [`close`](Self::close).
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub fn close_all(&self) -> Result<(), Errno> {
        self.close(CLOSED)
    }

    /// Waits until the posts that began before the last [`set_state`](Self::set_state) have ended.
    ///
    /// # Errors
    /// As [`QueueAccess::wait_idle`].
    pub fn wait_for_posters(&self) -> Result<(), Errno> {
        if state_word(&self.send).is_forked() {
            // The posters are the parent's.
            return Ok(());
        }
        self.send.wait_idle()?;
        self.recv.wait_idle()
    }
}

/// The word of a QP's queue. Acquire: pairs with [`QpAccess::set_state`].
#[cfg_attr(not(debug_assertions), inline(always))]
#[must_use]
pub fn state_word(access: &QueueAccess) -> StateWord {
    StateWord::from_bits(access.word().load(Ordering::Acquire))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_changes_the_word_even_if_the_state_is_the_same_again() {
        let qp = QpAccess::new(QpState::RTS, ControlBarrier::register()).unwrap();
        for access in [&qp.send, &qp.recv] {
            let before = state_word(access);
            qp.set_state(QpState::RESET);
            qp.set_state(QpState::RTS);
            let after = state_word(access);
            assert_eq!(after.state(), QpState::RTS);
            assert_ne!(before, after);
            assert!(before.resets_differ(after));
            qp.set_state(QpState::ERR);
            assert!(!after.resets_differ(state_word(access)));
        }
    }
}
