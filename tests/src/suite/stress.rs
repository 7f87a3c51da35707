// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that randomly post, poll, and reset, destroy or resize queues in use; see [`crate::stress`].

use crate::stress::{Disturb, length, run};

crate::tests!(
    // Posts and polls only.
    traffic_without_control_calls = |lab| run(lab, Disturb::default(), length() / 8),
    // CQs are resized.
    traffic_during_resizes = |lab| run(lab, Disturb { resize: true, ..Disturb::default() }, length() / 8),
    // QPs are reset.
    traffic_during_resets = |lab| run(lab, Disturb { reset: true, ..Disturb::default() }, length() / 4),
    // QPs are destroyed, and others are created.
    traffic_during_destroys = |lab| run(lab, Disturb { destroy: true, ..Disturb::default() }, length() / 4),
    // All of these at the same time.
    traffic_during_all_control_calls = |lab| run(lab, Disturb::ALL, length()),
);
