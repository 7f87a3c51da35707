// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a QP's posters and its control path share: the state, and the queue key.
//!
//! The kernel checks the state only after user space has published (`rxe_post_send()`), so the posters check it first.

use core::sync::atomic::{AtomicU32, Ordering};
use uverbs_core::attr::QpState;

/// State and queue key of a QP, written by `modify_qp`, read by the posters.
#[derive(Debug)]
pub struct QpShared {
    /// How often the QP was reset, and its state in the low 8 bits.
    word: AtomicU32,
    qkey: AtomicU32,
}

/// A [`QpShared`]'s state and reset count in one word, so that one compare tells whether anything changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u32);

impl Word {
    /// Equal to no word that [`QpShared`] ever holds.
    pub(crate) const NONE: Self = Self(u32::MAX);

    const fn new(resets: u32, state: QpState) -> Self {
        Self(resets << 8 | (state.0 & 0xff))
    }

    /// The state.
    pub(crate) const fn state(self) -> QpState {
        QpState(self.0 & 0xff)
    }

    /// Whether the QP was reset between the two.
    pub(crate) const fn resets_differ(self, other: Self) -> bool {
        self.0 >> 8 != other.0 >> 8
    }

    /// Whether sends may be posted: the device takes them in SQD and flushes them in SQE and ERR.
    pub(crate) const fn can_send(self) -> bool {
        matches!(self.state(), QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR)
    }

    /// Whether receives may be posted (C10-97.2.1: not in RESET).
    pub(crate) const fn can_receive(self) -> bool {
        matches!(
            self.state(),
            QpState::INIT | QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR
        )
    }
}

impl QpShared {
    /// Of a QP in `state`.
    #[must_use]
    pub const fn new(state: QpState) -> Self {
        Self { word: AtomicU32::new(Word::new(0, state).0), qkey: AtomicU32::new(0) }
    }

    /// The state, as `modify_qp` left it. The device may have gone to ERR by itself.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.word().state()
    }

    #[inline(always)]
    pub(crate) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Notes a new state. RESET counts as a reset, after which the posters look at the rings' indices again.
    pub fn set_state(&self, state: QpState) {
        // Control calls on one QP may race; each leaves a word that some call wrote.
        let reset = u32::from(state == QpState::RESET);
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            // The top value stays free for `Word::NONE`.
            Some(Word::new(((word >> 8) + reset) & 0x7f_ffff, state).0)
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

    #[test]
    fn the_reset_count_wraps_without_meeting_the_reserved_word() {
        let shared = QpShared::new(QpState::RESET);
        shared.word.store(0x7f_ffff << 8 | 6, Ordering::Relaxed);
        shared.set_state(QpState(0xffff_ffff));
        assert_ne!(shared.word(), Word::NONE);
        shared.set_state(QpState::RESET);
        assert_eq!(shared.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn posting_by_state() {
        let table: Vec<_> =
            (0..9).map(|s| Word::new(3, QpState(s))).map(|w| (w.can_send(), w.can_receive())).collect();
        let (t, f) = (true, false);
        assert_eq!(table, [(f, f), (f, t), (f, t), (t, t), (t, t), (t, t), (t, t), (f, f), (f, f)]);
    }
}
