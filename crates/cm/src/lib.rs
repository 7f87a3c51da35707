// SPDX-License-Identifier: MIT OR Apache-2.0
//! The RDMA connection manager (rdma_cm(7)) in pure Rust: queue pairs of the crate [`uverbs`] are connected by IP
//! address.
//!
//! The crate uses the kernel's device file `/dev/infiniband/rdma_cm`, and not librdmacm. A peer may be a program that
//! uses librdmacm, because the messages are the same.
//!
//! # Two levels
//! [`Listener`] and [`Resolved`] give an established [`Connection`] with a typed QP in a few lines. [`EventChannel`]
//! and [`Id`] correspond to librdmacm: identifiers, asynchronous events from a file descriptor that can be polled, and
//! a call for each step. Their names are those of librdmacm without `rdma_`, so its man pages apply.
//!
//! # A connection
//! ```
#![doc = include_str!("../examples/hello_cm.rs")]
//! ```
//! With a NIC, `EventChannel::open()` replaces `hca.connection_manager()`, and `resolved.device()` names the device to
//! open.
//!
//! # Differences from librdmacm
//! - Events are values. They need no acknowledgement, and [`Id`]s can be destroyed at any time, by any thread.
//! - The QP has [timers that suit a service](ConnParam#timers): a receiver without a posted receive costs its peer 0.64 ms (and not 655 ms),
//!   and a dead peer is noticed after 2.1 s (and not 17 s).
//! - The QP gets only the access rights in [`ConnParam::access`], none by default. (librdmacm grants remote write, read
//!   and atomics.)
//! - In a child of fork(2) every call fails with `ESTALE`, and dropping an [`Id`] does nothing.
#![forbid(unsafe_code)]

mod address;
mod bell;
mod channel;
mod connect_to;
mod connection;
mod error;
mod event;
mod id;
mod listener;
mod multicast;
#[cfg(feature = "tracing")]
mod names;
mod option;
mod param;
mod qp;
mod reason;
mod resolved;
mod route;
mod wait;

pub use channel::EventChannel;
pub use connect_to::ConnectTo;
pub use connection::Connection;
pub use error::{Error, Result};
pub use event::{ConnectRequest, Event, EventKind};
pub use id::{Id, PortSpace, Token};
pub use listener::{Listener, Request};
pub use multicast::{Membership, Multicast};
pub use param::{ConnParam, Peer};
pub use qp::Connectable;
pub use reason::RejectReason;
pub use resolved::{Prepared, Resolved};
pub use route::{Bound, Route};

pub use uverbs_core::kernel::CmPort;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
