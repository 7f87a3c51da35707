// SPDX-License-Identifier: MIT OR Apache-2.0
//! Synchronisation of the data path: barriers named by purpose, the barrier against the control path, the lockings of a
//! queue, mutexes for which a child of fork(2) does not wait, copies of memory that is accessed at the same time, stores of blocks to write-combining memory, the values
//! of work requests in flight, and a stack of free numbers.

pub mod barrier;
pub mod burst;
pub mod control_barrier;
pub mod copy;
mod home;
pub mod in_flight;
pub mod index_stack;
pub mod lock;

pub use control_barrier::ControlBarrier;
pub use home::{Home, ProcessMutex, StaticMutex};
pub use in_flight::InFlight;
pub use index_stack::IndexStack;
pub use lock::{Dynamic, Exclusive, Guard, LockError, Locked, Locking, Shared};
