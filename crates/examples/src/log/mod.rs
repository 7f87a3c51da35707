// SPDX-License-Identifier: MIT OR Apache-2.0
//! A replicated log: a leader writes entries to the memory of its followers, and a new leader locks the old one out.
//!
//! Each [`Follower`] has two pieces of memory. The *term* is a word that every candidate may change by an atomic compare-and-swap. The
//! *log* can be written through a window only, which is open to one QP: that of the leader. An [`Entry`] is durable when it
//! is in the logs of a majority.
//!
//! - **Election.** A candidate reads the terms, swaps a higher one with its own number into each, and asks each follower for the log. A
//!   follower ends the window of the old leader by a work request, opens one for the candidate, and sends its key. With a majority of keys
//!   the candidate is the leader.
//! - **Fencing.** The window of the old leader is closed on a majority, so the old leader can't write a majority any more: the device
//!   refuses its key. It needs no clock and no lease.
//! - **Agreement.** Before its first entry, the new leader reads the logs of its majority, takes the one with the newest entry, and writes it
//!   to the others.
//!
//! Nothing here is `unsafe`: an entry is one shared buffer that is posted to all followers, the follower reads its log while the window is
//! open, and a window that was ended gives its buffer back.

pub mod entry;
pub mod follower;
pub mod leader;

pub use entry::Entry;
pub use follower::Follower;
pub use leader::{Leader, LogError};

use core::time::Duration;
use uverbs::ConnectAttr;
use uverbs::attr::AccessFlags;

/// The access of a leader to the memory of a follower.
pub const ACCESS: AccessFlags =
    AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);

/// The most time for one step: a message, or a work request and its repetitions.
pub const LIMIT: Duration = Duration::from_secs(5);

/// A dead peer is noticed after about a second: 17 ms, seven times, and what the device adds.
#[must_use]
pub fn connect_attr() -> ConnectAttr {
    ConnectAttr::new().access(ACCESS).timeout(12)
}
