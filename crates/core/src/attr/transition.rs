// SPDX-License-Identifier: MIT OR Apache-2.0
//! The legal QP state transitions, with the attributes that each requires and allows per QP type.
//!
//! From the InfiniBand Architecture Specification (11.2.5.2, "Modify Queue Pair", tables of required and optional
//! attributes) as the kernel's drivers apply it (`ib_modify_qp_is_ok()` in drivers/infiniband/core/verbs.c). The kernel
//! reports only `EINVAL`; [`explain`] turns that into a reason.

use super::{QpAttrMask as M, QpState, QpType};
use core::fmt;

/// The attributes that a transition of a QP type requires and allows, in addition to the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Required attributes.
    pub required: M,
    /// Optional attributes.
    pub optional: M,
}

/// Why a transition can't be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Illegal {
    /// The state machine has no transition between the two states.
    NoSuchTransition,
    /// Attributes are missing.
    Lacks(M),
    /// Attributes are given that this transition can't set.
    Refuses(M),
}

const NONE: M = M::empty();

/// PKEY_INDEX, PORT and ACCESS_FLAGS, which the connected types set in INIT.
const CONNECTED_INIT: M = M::PKEY_INDEX.union(M::PORT).union(M::ACCESS_FLAGS);
/// The path to the peer, as every connected type sets it on the way to RTR.
const CONNECTED_RTR: M = M::AV.union(M::PATH_MTU).union(M::DEST_QPN).union(M::RQ_PSN);
/// Attributes that a QP needs to serve the peer's reads.
const RESPONDER: M = M::MAX_DEST_RD_ATOMIC.union(M::MIN_RNR_TIMER);
/// Attributes that a reliable requester needs.
const REQUESTER: M = M::TIMEOUT.union(M::RETRY_CNT).union(M::RNR_RETRY).union(M::MAX_QP_RD_ATOMIC);
/// Attributes that can be changed in a connected QP.
const LIVE: M = M::CUR_STATE.union(M::ALT_PATH).union(M::ACCESS_FLAGS).union(M::PATH_MIG_STATE);

/// Whether the type has a timer for its "receiver not ready" answers.
const fn has_rnr_timer(qp_type: QpType) -> bool {
    matches!(qp_type, QpType::Rc | QpType::XrcRecv)
}

/// Attributes that can be changed in a QP of this type in a transition to (or within) RTS.
const fn live(qp_type: QpType) -> M {
    match qp_type {
        QpType::Ud => M::CUR_STATE.union(M::QKEY),
        QpType::RawPacket => M::RATE_LIMIT,
        QpType::Driver => NONE,
        _ if has_rnr_timer(qp_type) => LIVE.union(M::MIN_RNR_TIMER),
        _ => LIVE,
    }
}

/// The transition from `from` to `to` for this type, or `None` if there is none. A transition to RESET or ERR has no
/// attributes. A driver's own QP type has rules of its own; here it requires and allows no attributes.
#[must_use]
pub const fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    let (required, optional) = match (from, to) {
        (QpState::RESET, QpState::RESET)
        | (
            QpState::INIT | QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQE,
            QpState::RESET | QpState::ERR,
        )
        | (QpState::ERR, QpState::RESET | QpState::ERR) => (NONE, NONE),
        (QpState::RESET, QpState::INIT) => (
            match qp_type {
                QpType::Ud => M::PKEY_INDEX.union(M::PORT).union(M::QKEY),
                QpType::RawPacket => M::PORT,
                QpType::Driver => NONE,
                _ => CONNECTED_INIT,
            },
            NONE,
        ),
        (QpState::INIT, QpState::INIT) => (
            NONE,
            match qp_type {
                QpType::Ud => M::PKEY_INDEX.union(M::PORT).union(M::QKEY),
                QpType::RawPacket | QpType::Driver => NONE,
                _ => CONNECTED_INIT,
            },
        ),
        (QpState::INIT, QpState::RTR) => match qp_type {
            QpType::Ud => (NONE, M::PKEY_INDEX.union(M::QKEY)),
            QpType::RawPacket | QpType::Driver => (NONE, NONE),
            _ => (
                if has_rnr_timer(qp_type) { CONNECTED_RTR.union(RESPONDER) } else { CONNECTED_RTR },
                M::ALT_PATH.union(M::ACCESS_FLAGS).union(M::PKEY_INDEX),
            ),
        },
        (QpState::RTR, QpState::RTS) => (
            match qp_type {
                QpType::Ud | QpType::Uc => M::SQ_PSN,
                QpType::Rc | QpType::XrcSend => REQUESTER.union(M::SQ_PSN),
                QpType::XrcRecv => M::TIMEOUT.union(M::SQ_PSN),
                QpType::RawPacket | QpType::Driver => NONE,
            },
            live(qp_type),
        ),
        (QpState::RTS, QpState::RTS) => (NONE, live(qp_type)),
        (QpState::RTS, QpState::SQD) => (
            NONE,
            match qp_type {
                QpType::RawPacket | QpType::Driver => NONE,
                _ => M::EN_SQD_ASYNC_NOTIFY,
            },
        ),
        (QpState::SQD, QpState::RTS) => (
            NONE,
            match qp_type {
                QpType::RawPacket => NONE,
                _ => live(qp_type),
            },
        ),
        (QpState::SQD, QpState::SQD) => (NONE, drained(qp_type)),
        (QpState::SQE, QpState::RTS) => (
            NONE,
            match qp_type {
                QpType::Ud => M::CUR_STATE.union(M::QKEY),
                QpType::Uc => M::CUR_STATE.union(M::ACCESS_FLAGS),
                _ => NONE,
            },
        ),
        _ => return None,
    };
    Some(Transition { required, optional })
}

/// Attributes that can be changed in a QP of this type while its send queue is drained.
const fn drained(qp_type: QpType) -> M {
    let path = M::AV.union(M::ALT_PATH).union(M::ACCESS_FLAGS).union(M::PKEY_INDEX).union(M::PATH_MIG_STATE);
    match qp_type {
        QpType::Ud => M::PKEY_INDEX.union(M::QKEY),
        QpType::Uc => path,
        QpType::Rc => path.union(M::PORT).union(REQUESTER).union(RESPONDER),
        QpType::XrcSend => path.union(M::PORT).union(REQUESTER),
        QpType::XrcRecv => path.union(M::PORT).union(M::TIMEOUT).union(RESPONDER),
        QpType::RawPacket | QpType::Driver => NONE,
    }
}

/// Attributes that uverbs removes from the mask before it calls the driver, because the type does not use them
/// (`modify_qp_mask()` in uverbs_cmd.c).
const fn ignored(qp_type: QpType) -> M {
    match qp_type {
        QpType::XrcSend => RESPONDER,
        QpType::XrcRecv => M::MAX_QP_RD_ATOMIC.union(M::RETRY_CNT).union(M::RNR_RETRY),
        _ => NONE,
    }
}

/// Checks a `modify_qp` with this mask. `to` is `from` if the mask has no `STATE`.
///
/// # Errors
/// The first of: no such transition, missing attributes, attributes that the transition does not allow.
pub fn check(qp_type: QpType, from: QpState, to: QpState, mask: M) -> Result<(), Illegal> {
    let rules = transition(qp_type, from, to).ok_or(Illegal::NoSuchTransition)?;
    let mask = mask.difference(ignored(qp_type));
    let missing = rules.required.difference(mask);
    if !missing.is_empty() {
        return Err(Illegal::Lacks(missing));
    }
    let extra = mask.difference(rules.required | rules.optional | M::STATE);
    if extra.is_empty() { Ok(()) } else { Err(Illegal::Refuses(extra)) }
}

/// Explains why the kernel refused a `modify_qp`, for example `INIT->RTR on RC lacks PATH_MTU, DEST_QPN`. `None` if the
/// table allows the mask; then the kernel refused a value.
#[must_use]
pub fn explain(qp_type: QpType, from: QpState, to: QpState, mask: M) -> Option<String> {
    let illegal = check(qp_type, from, to, mask).err()?;
    Some(format!("{from:?}->{to:?} on {qp_type} {illegal}"))
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchTransition => f.write_str("is not a legal transition"),
            Self::Lacks(missing) => write!(f, "lacks {}", missing.names()),
            Self::Refuses(extra) => write!(f, "can't set {}", extra.names()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATES: [QpState; 7] =
        [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::SQE, QpState::ERR];

    #[test]
    fn an_rc_qp_has_the_transitions_to_rts() {
        let init = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        let rtr = M::STATE
            | M::AV
            | M::PATH_MTU
            | M::DEST_QPN
            | M::RQ_PSN
            | M::MAX_DEST_RD_ATOMIC
            | M::MIN_RNR_TIMER;
        let rts = M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
        assert_eq!(check(QpType::Rc, QpState::RESET, QpState::INIT, init), Ok(()));
        assert_eq!(check(QpType::Rc, QpState::INIT, QpState::RTR, rtr), Ok(()));
        assert_eq!(check(QpType::Rc, QpState::RTR, QpState::RTS, rts), Ok(()));
    }

    #[test]
    fn the_reason_names_missing_and_forbidden_attributes() {
        let mask = M::STATE | M::AV | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        assert_eq!(
            explain(QpType::Rc, QpState::INIT, QpState::RTR, mask).unwrap(),
            "INIT->RTR on RC lacks PATH_MTU, DEST_QPN"
        );
        assert_eq!(
            explain(QpType::Ud, QpState::RTR, QpState::RTS, M::STATE | M::SQ_PSN | M::TIMEOUT).unwrap(),
            "RTR->RTS on UD can't set TIMEOUT"
        );
        assert_eq!(
            explain(QpType::Rc, QpState::RESET, QpState::RTS, M::STATE).unwrap(),
            "RESET->RTS on RC is not a legal transition"
        );
        assert_eq!(explain(QpType::Uc, QpState::RTS, QpState::ERR, M::STATE), None);
    }

    #[test]
    fn any_state_but_reset_can_go_to_err_and_every_state_to_reset() {
        for qp_type in QpType::ALL {
            for from in STATES {
                assert!(transition(qp_type, from, QpState::RESET).is_some(), "{from:?}");
                assert_eq!(
                    transition(qp_type, from, QpState::ERR).is_some(),
                    from != QpState::RESET,
                    "{from:?}"
                );
            }
        }
    }

    #[test]
    fn xrc_ignores_attributes_of_the_other_half() {
        let rtr = M::STATE | CONNECTED_RTR | RESPONDER;
        assert_eq!(check(QpType::XrcSend, QpState::INIT, QpState::RTR, rtr), Ok(()));
        let rts = M::STATE | REQUESTER | M::SQ_PSN;
        assert_eq!(check(QpType::XrcRecv, QpState::RTR, QpState::RTS, rts), Ok(()));
    }

    proptest! {
        #[test]
        fn required_and_optional_never_overlap_and_required_alone_passes(t in 0usize..7, a in 0u32..9, b in 0u32..9) {
            let (qp_type, from, to) = (QpType::ALL[t], QpState(a), QpState(b));
            if let Some(rules) = transition(qp_type, from, to) {
                prop_assert!(!rules.required.intersects(rules.optional));
                prop_assert_eq!(check(qp_type, from, to, rules.required | M::STATE), Ok(()));
                prop_assert_eq!(check(qp_type, from, to, rules.required | rules.optional | M::STATE), Ok(()));
            }
        }

        #[test]
        fn explain_never_panics(t in 0usize..7, a: u32, b: u32, mask: u32) {
            let _ = explain(QpType::ALL[t], QpState(a), QpState(b), M::from_bits_retain(mask));
        }
    }
}
