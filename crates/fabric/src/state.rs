// SPDX-License-Identifier: MIT OR Apache-2.0
//! The states of a QP.

/// `IB_QPS_*`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// `IB_QPS_RESET`
    #[default]
    Reset,
    /// `IB_QPS_INIT`
    Init,
    /// `IB_QPS_RTR`
    Rtr,
    /// `IB_QPS_RTS`
    Rts,
    /// `IB_QPS_SQD`
    Sqd,
    /// `IB_QPS_SQE`
    Sqe,
    /// `IB_QPS_ERR`
    Err,
}

impl State {
    /// All, by their numbers in `enum ib_qp_state`.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// The state with this number in `enum ib_qp_state`.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Its number in `enum ib_qp_state`.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Whether the QP accepts packets.
    #[must_use]
    pub fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_its_number() {
        for (number, state) in (0..).zip(State::ALL) {
            assert_eq!((State::of(number), state.number()), (Some(state), number));
        }
        assert_eq!((State::of(7), State::of(u32::MAX)), (None, None));
    }
}
