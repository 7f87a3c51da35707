// SPDX-License-Identifier: MIT OR Apache-2.0
//! A key-value store over RDMA, without `unsafe`.
//!
//! - Requests and answers are SENDs, inline if they are short. All clients of a server share one SRQ ([`server`]).
//! - A small value is in the answer. A large one stays in the server's memory: the answer describes it, and the client
//!   READs it. A lease keeps it unchanged meanwhile.
//! - The client WRITEs a large value to one of its slots in the server's memory. The immediate data of the WRITE are the number
//!   of the slot. Where a device has no immediate data (iWARP), a SEND follows the WRITE. The client finds out by the creation of its
//!   QP with the operations that it needs ([`client`]).
//! - Each client has a number of credits: requests that may be outstanding. So no queue overflows, and a client that ignores its
//!   credits is disconnected.
//! - A request is checked before it is executed ([`proto`]); the memory of a slot is copied first, because the client may
//!   write to it at any time.
//!
//! The clients of a server trust each other: the key of a region is a number of 32 bits, and all clients are in one protection
//! domain.
//!
//! | module | contents |
//! |---|---|
//! | [`proto`] | the messages |
//! | [`store`] | the values |
//! | [`server`] | the server: its threads, the SRQ, connections and their end |
//! | [`client`] | the client, with several requests outstanding |
//! | [`ledger`] | the client's outstanding requests, without its queues |
//! | [`aio`] | both as futures |
//! | [`mod@bench`] | rates and latencies |

pub mod aio;
pub mod bench;
pub mod client;
pub mod ledger;
mod peer;
pub mod proto;
pub mod server;
mod session;
pub mod store;

pub use client::{Client, Outcome};
pub use server::{Config, Listen, Report, Server};

/// Bytes of inline data that both ends request. Every device has at least this number.
pub(crate) const INLINE: u32 = 64;
