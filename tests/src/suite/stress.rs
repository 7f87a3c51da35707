// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that post, poll and end each other's queues at random; see [`crate::stress`].

use crate::stress::{Disturb, length, run};
use crate::{Lab, Outcome};
use uverbs::Driver;

/// Posts and polls only.
fn undisturbed<D: Driver>(lab: &Lab<D>) -> Outcome {
    run(lab, Disturb::default(), length() / 8)
}

/// CQs change their size.
fn resized<D: Driver>(lab: &Lab<D>) -> Outcome {
    run(lab, Disturb { resize: true, ..Disturb::default() }, length() / 8)
}

/// QPs are reset.
fn reset<D: Driver>(lab: &Lab<D>) -> Outcome {
    run(lab, Disturb { reset: true, ..Disturb::default() }, length() / 4)
}

/// QPs are destroyed, and others made.
fn destroyed<D: Driver>(lab: &Lab<D>) -> Outcome {
    run(lab, Disturb { destroy: true, ..Disturb::default() }, length() / 4)
}

/// Everything at once.
fn all_at_once<D: Driver>(lab: &Lab<D>) -> Outcome {
    run(lab, Disturb::ALL, length())
}

crate::tests!(undisturbed, resized, reset, destroyed, all_at_once);
