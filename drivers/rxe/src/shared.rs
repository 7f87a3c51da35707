// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a QP's posters and its control path share: the state, and the queue key.
//!
//! The kernel checks the state only after user space has published (`rxe_post_send()`), so the posters check it first.

use core::sync::atomic::{AtomicU32, Ordering};
use uverbs_core::attr::QpState;
use uverbs_core::provider::state::StateWord;

/// State and queue key of a QP, written by `modify_qp`, read by the posters.
#[derive(Debug)]
pub struct QpShared {
    /// How often the QP was reset, and its state in the low 8 bits.
    word: AtomicU32,
    qkey: AtomicU32,
}

impl QpShared {
    /// Of a QP in `state`.
    #[must_use]
    pub const fn new(state: QpState) -> Self {
        Self { word: AtomicU32::new(StateWord::new(state).bits()), qkey: AtomicU32::new(0) }
    }

    /// The state, as `modify_qp` left it. The device may have gone to ERR by itself.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.word().state()
    }

    #[inline(always)]
    pub(crate) fn word(&self) -> StateWord {
        StateWord::from_bits(self.word.load(Ordering::Acquire))
    }

    /// Notes a new state. RESET counts as a reset, after which the posters look at the rings' indices again.
    pub fn set_state(&self, state: QpState) {
        // Control calls on one QP may race; each leaves a word that some call wrote.
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            Some(StateWord::from_bits(word).next(state).bits())
        });
    }

    /// The QP's own queue key.
    #[inline]
    pub(crate) fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Relaxed)
    }

    /// Notes a new queue key.
    pub fn set_qkey(&self, qkey: u32) {
        self.qkey.store(qkey, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_changes_the_word_even_if_the_state_is_the_same_again() {
        let shared = QpShared::new(QpState::RTS);
        let before = shared.word();
        shared.set_state(QpState::RESET);
        shared.set_state(QpState::RTS);
        let after = shared.word();
        assert_eq!(after.state(), QpState::RTS);
        assert_ne!(before, after);
        assert!(before.resets_differ(after));
        shared.set_state(QpState::ERR);
        assert!(!after.resets_differ(shared.word()));
    }
}
