// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library of the end-to-end tests.
//!
//! A test is a function that is generic over the driver and gets a [`Lab`]: two devices of a [`Bed`] that are joined by
//! a link, each opened as a context. It makes a [`Pair`] of connected QPs of any transport and locking, posts
//! [`Req`]uests through any [`Face`], waits for completions with a time limit, and checks the data at the other end.
//! Differences between devices and kernels are determined from the attributes of the device, not from its name.
//!
//! One thread handles both ends, because two threads that poll are slow under emulation.
#![expect(
    clippy::missing_errors_doc,
    reason = "an error is that of the verb which failed; a test ends with it"
)]

pub mod bed;
pub mod child;
pub mod cm;
pub mod dialect;
pub mod env;
pub mod iwarp;
pub mod lab;
pub mod pair;
pub mod pattern;
pub mod post;
pub mod programs;
pub mod roles;
pub mod runner;
pub mod semantics;
pub mod sges;
pub mod stress;
pub mod suite;
pub mod wait;

pub use bed::{Bed, Disturbance, TestBed};
pub use child::{Child, run};
pub use dialect::Dialect;
pub use env::LabEnv;
pub use lab::Lab;
pub use pair::{Pair, PairEnd, Spec};
pub use post::{Data, Dest, Face, Inline, Lock, Op, Refused, RemoteAddr, Req, To, Typed, post, post_recv};
pub use runner::{LabTest, Outcome, Test, Vm};
pub use wait::{Deadline, LIMIT};
