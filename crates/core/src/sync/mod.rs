// SPDX-License-Identifier: MIT OR Apache-2.0
//! What orders the data path: barriers named by purpose, and the two ways a queue can be locked.

pub mod barrier;
pub mod lock;

pub use lock::{Exclusive, Guard, Locked, Locking, Reentered, Shared};
