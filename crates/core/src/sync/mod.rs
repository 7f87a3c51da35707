// SPDX-License-Identifier: MIT OR Apache-2.0
//! Synchronisation of the data path: barriers named by purpose, the barrier against the control path, the lockings of a
//! queue, and copies of memory that is accessed at the same time.

pub mod barrier;
pub mod control_barrier;
pub mod copy;
pub mod lock;

pub use control_barrier::ControlBarrier;
pub use lock::{Dynamic, Exclusive, Guard, Locked, Locking, Reentered, Shared};
