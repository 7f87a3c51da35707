// SPDX-License-Identifier: MIT OR Apache-2.0
//! A QP's state for its posters: the state and a count of resets, in one word.
//!
//! `modify_qp` stores it; posters load it once per batch. The verbs determine which states allow posting, independently
//! of the driver.

use super::error::PostError;
use crate::attr::QpState;

/// State and reset count, so that one compare detects any change. It is zero only in a child of fork(2), if it is in a
/// [`QueueAccess`](crate::kernel::QueueAccess).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWord(u32);

impl StateWord {
    /// Differs from the word of every QP.
    pub const NONE: Self = Self(u32::MAX);

    /// Set in every word of a QP.
    const LIVE: u32 = 0x80;

    /// The word of a QP that was never reset.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub const fn new(state: QpState) -> Self {
        Self(Self::LIVE | (state.0 & 0x7f))
    }

    /// The state that a QP of a removed device has for its posters: no state of the verbs. No other follows it.
    pub const REMOVED: QpState = QpState(0x7e);

    /// The word after a `modify_qp` to `state`; RESET increments the count.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub const fn next(self, state: QpState) -> Self {
        if self.state().0 == Self::REMOVED.0 {
            return self;
        }
        let resets = (self.0 >> 8) + (state.0 == QpState::RESET.0) as u32;
        // The top value stays free for `NONE`.
        Self((resets & 0x7f_ffff) << 8 | Self::LIVE | (state.0 & 0x7f))
    }

    /// The word as an integer.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Converts a value of [`bits`](Self::bits) back.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The state.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub const fn state(self) -> QpState {
        QpState(self.0 & 0x7f)
    }

    /// Whether it is the word in a child of fork(2), where the QP belongs to the parent.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub const fn is_forked(self) -> bool {
        self.0 == 0
    }

    /// The error of a post that this word does not allow.
    #[cold]
    #[must_use]
    pub const fn refusal(self) -> PostError {
        if self.is_forked() {
            PostError::Forked
        } else if self.state().0 == Self::REMOVED.0 {
            PostError::Removed
        } else {
            PostError::BadState
        }
    }

    /// Whether the QP was reset between the two.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub const fn resets_differ(self, other: Self) -> bool {
        self.0 >> 8 != other.0 >> 8
    }

    /// Whether sends may be posted: the device takes them in SQD and flushes them in SQE and ERR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub const fn can_send(self) -> bool {
        matches!(self.state(), QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR)
    }

    /// Whether receives may be posted (C10-97.2.1: not in RESET).
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub const fn can_receive(self) -> bool {
        matches!(
            self.state(),
            QpState::INIT | QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reset_count_wraps_and_never_gives_the_reserved_word() {
        let last = StateWord::from_bits(0x7f_ffff << 8 | 6);
        assert_ne!(last.next(QpState(u32::MAX)), StateWord::NONE);
        assert_eq!(last.next(QpState::RESET), StateWord::new(QpState::RESET));
        assert!(!last.next(QpState::RESET).is_forked());
        assert!(last.resets_differ(last.next(QpState::RESET)));
        assert!(!last.resets_differ(last.next(QpState::ERR)));
    }

    #[test]
    fn a_removed_device_stays_removed() {
        let removed = StateWord::new(QpState::RTS).next(StateWord::REMOVED);
        assert!(!removed.can_send() && !removed.can_receive());
        for state in [QpState::RESET, QpState::RTS, QpState::ERR] {
            assert_eq!(removed.next(state).refusal(), PostError::Removed);
        }
        assert_eq!(StateWord::new(QpState::RESET).refusal(), PostError::BadState);
        assert_eq!(StateWord::from_bits(0).refusal(), PostError::Forked);
    }

    #[test]
    fn the_state_determines_what_can_be_posted() {
        let table: Vec<_> =
            (0..9).map(|s| StateWord::new(QpState(s))).map(|w| (w.can_send(), w.can_receive())).collect();
        let (t, f) = (true, false);
        assert_eq!(table, [(f, f), (f, t), (f, t), (t, t), (t, t), (t, t), (t, t), (f, f), (f, f)]);
    }
}
