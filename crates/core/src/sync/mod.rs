// SPDX-License-Identifier: MIT OR Apache-2.0
//! What orders the data path: barriers named by purpose, the barrier against the control path, and the ways a queue can
//! be locked; and copies of memory that others access meanwhile.

pub mod barrier;
pub mod control_barrier;
pub mod copy;
pub mod lock;

pub use control_barrier::ControlBarrier;
pub use lock::{Dynamic, Exclusive, Guard, Locked, Locking, Reentered, Shared};
