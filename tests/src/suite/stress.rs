// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that randomly post, poll, and reset, destroy or resize queues in use; see [`crate::stress`].

use crate::stress::{Disturb, length, run};
use crate::{Lab, Outcome};
use uverbs::Driver;

/// Posts and polls only.
fn traffic_without_control_calls<D: Driver>(lab: &Lab<D>) -> Outcome {
    run(lab, Disturb::default(), length() / 8)
}

/// CQs are resized.
fn traffic_during_resizes<D: Driver>(lab: &Lab<D>) -> Outcome {
    run(lab, Disturb { resize: true, ..Disturb::default() }, length() / 8)
}

/// QPs are reset.
fn traffic_during_resets<D: Driver>(lab: &Lab<D>) -> Outcome {
    run(lab, Disturb { reset: true, ..Disturb::default() }, length() / 4)
}

/// QPs are destroyed, and others are created.
fn traffic_during_destroys<D: Driver>(lab: &Lab<D>) -> Outcome {
    run(lab, Disturb { destroy: true, ..Disturb::default() }, length() / 4)
}

/// All of these at the same time.
fn traffic_during_all_control_calls<D: Driver>(lab: &Lab<D>) -> Outcome {
    run(lab, Disturb::ALL, length())
}

crate::tests!(
    traffic_without_control_calls,
    traffic_during_resizes,
    traffic_during_resets,
    traffic_during_destroys,
    traffic_during_all_control_calls
);
