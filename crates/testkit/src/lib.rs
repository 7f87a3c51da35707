// SPDX-License-Identifier: MIT OR Apache-2.0
//! The vocabulary of the tests: work requests as values, and functions that post them on each interface.
//!
//! A test describes a [`Wr`](uverbs_core::provider::Wr) once, or an [`OwnedRequest`], and posts it as C's [`List`], by a [`Session`] of the
//! `wr_*` builder, or on any [`Face`]: with [`post`] on a driver's queue, or with the functions of `verbs` on the queues of
//! the `uverbs` crate (feature `verbs`). The end-to-end suite, the reference vectors, the fuzz targets and `uverbs selftest` use it.
//!
//! [`check_claims`] checks where a driver's poll takes what belongs to a completion.
//!
//! [`kernel::Scripted`] is the kernel of tests that need one, with answers that each test specifies.
//!
//! `recorder` keeps what a test reports by `tracing`.
//!
//! [`stress`] has the duration of a stress test, and its seed.
//!
//! [`machine`] is for tests that need more of the machine than Rust, or less than root's rights.
//!
//! The crate has no expectations. Whether a request is valid, and what the device must see, is decided by the models and
//! decoders of the tests, which share no code with each other.
#![deny(unsafe_code)]
#![cfg_attr(
    feature = "verbs",
    expect(clippy::missing_errors_doc, reason = "as the functions that they call")
)]

mod claims;
pub mod kernel;
mod list;
pub mod machine;
mod owned;
mod push;
#[cfg(feature = "tracing")]
pub mod recorder;
mod request;
mod session;
pub mod stress;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use claims::check_claims;
pub use list::{List, as_recv_list, recv_nodes, refused};
pub use owned::{OwnedData, OwnedDest, OwnedRequest};
pub use push::{as_wire, begin, build, post, push, single, wire, wire_remote};
pub use request::{Face, Handle, Refused, handle};
pub use session::Session;
