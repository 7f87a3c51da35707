// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remote procedure calls with deadlines, from hundreds of clients to one server.
//!
//! A [`Server`] executes the calls of its clients by a function of the program. A [`Client`] makes calls, each with a time limit, and
//! connects again when its connection has ended. All clients of a process share a [`Host`].
//!
//! - **Time limits.** A call ends at its limit, whatever the network does, and so does a call that is dropped. Its answer, if it comes,
//!   is discarded: each call has a number that no other call of its connection has, and connections share no queue pair. A
//!   request has the time that is left, so that the server ends what nobody waits for.
//! - **Back-pressure.** A client has as many credits as the server grants; a call takes one, and only the answer gives it back, also if
//!   nobody waits for it. The server answers every request. So the receives of both sides suffice for all that can arrive, and no sender
//!   waits for a receiver that is not ready: the connections are made without retries for that. More calls wait for a credit.
//! - **Memory.** The server has one shared receive queue, and buffers for the credits of all clients; nothing grows with the number of
//!   calls.
//! - **Failures.** Calls in flight end with [`CallError::Lost`] when the connection ends: the peer has disconnected, a request was not
//!   acknowledged, or nothing was received for some time, not even the answer to a [`Kind::Ping`](wire::Kind::Ping). If the client's
//!   device was removed, calls end with [`CallError::Ended`].
//!
//! | module | contents |
//! |---|---|
//! | this one | the errors, and what both sides agree on |
//! | `wire` | the bytes of messages |
//! | `calls` | the calls that are not answered |
//! | `client` | clients |
//! | `server` | the server |
//! | `load` | a program for the server, and calls that check it |

pub mod calls;
mod client;
pub mod load;
mod server;
pub mod wire;

pub use client::{Client, Config as ClientConfig, Host};
pub use server::{Config as ServerConfig, Report, Server};

use self::wire::{Answer, Status, Terms};
use core::fmt;
use core::time::Duration;
use uverbs_cm::ConnParam;

/// The number of the requests that are no calls.
const PING: u64 = u64::MAX;

/// The time limit of a connection that begins, and of one that ends.
const CONNECT: Duration = Duration::from_secs(5);

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// Its time limit has passed. The server may have executed it.
    Deadline,
    /// The connection has ended. The server may have executed it.
    Lost,
    /// The request, or the answer, is longer than [`wire::MAX_BODY`].
    TooLong,
    /// The client was closed, or its device was removed.
    Ended(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("the call was not answered in time"),
            Self::Lost => f.write_str("the connection ended before the answer came"),
            Self::TooLong => write!(f, "a message is longer than {} bytes", wire::MAX_BODY),
            Self::Ended(reason) => write!(f, "the client has ended: {reason}"),
        }
    }
}

impl core::error::Error for CallError {}

/// The parameters of a connection. A peer that does not acknowledge is noticed after about a second: 67 ms, eight times, and what
/// the device adds. A message for which no receive is posted, which the credits exclude, ends the connection.
fn param(credits: u16) -> ConnParam {
    ConnParam::with_private_data(Terms { credits }.encode()).ack_timeout(14).rnr_retry_count(0)
}

/// What an answer is for the program.
fn outcome(answer: &Answer<'_>) -> calls::Outcome {
    match answer.status {
        Status::Done => Ok(answer.body.to_vec()),
        Status::Expired => Err(CallError::Deadline),
        Status::TooLong => Err(CallError::TooLong),
    }
}
