// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control calls on queues that are in use: reset, destroy and resize during polls and posts.
//!
//! The test determines the moment of the control call: in a callback of the poll, in a system call of the resize, at
//! the doorbell of the post. `rig` has the devices with these hooks. The other files are named after the operation in
//! progress: `polls`, `resize`, `posts`; `process` has the tests that affect the whole process (fork(2),
//! membarrier(2)).

mod polls;
mod posts;
mod process;
mod resize;
mod rig;

use core::time::Duration;
pub(crate) use process::{WITHOUT_MEMBARRIER, refuse_membarrier};
use uverbs_tests::{Outcome, Test};

/// The time limit of a test, which takes seconds at most if the machine is idle.
const LIMIT: Duration = Duration::from_secs(240);

/// A test and its name.
type Named = (&'static str, fn() -> Outcome);

/// The tests of this folder.
pub(crate) fn tests() -> Vec<Test> {
    [polls::tests(), resize::tests(), posts::tests(), process::tests()].into_iter().flatten().collect()
}
