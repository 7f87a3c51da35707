// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core of `uverbs`: the interface to the kernel, the control verbs, the traits of a driver and the C-style face.
//!
//! Programs use the crate `uverbs`. This crate is for drivers, and for other interfaces on top of them.
//!
//! | module | what |
//! |---|---|
//! | [`device`] | finds the RDMA devices of the machine |
//! | [`kernel`] | the interface to the kernel, or to a software device in its place; access to queues during control calls |
//! | [`control`] | the control verbs: one command each, with checks of the answer |
//! | [`attr`] | the attributes of the control verbs |
//! | [`provider`] | the traits of a driver: queues, operations, errors of posts and polls; the C-style face |
//! | [`wr`], [`wc`] | work requests and work completions in C's layout |
//! | [`sync`] | locks, barriers, copies of memory that a device accesses |
//! | [`wake`] | the wakers of tasks, which may run any code |
//! | [`error`], [`errno`] | errors of control verbs |

#[macro_use]
mod drivers;
#[macro_use]
mod setters;

pub mod attr;
pub mod control;
pub mod device;
pub mod errno;
pub mod error;
pub mod kernel;
pub mod provider;
pub mod sync;
pub mod wake;
pub mod wc;
pub mod wr;

pub use errno::Errno;
pub use error::{Error, LockedSizes, Result};
