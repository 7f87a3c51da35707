// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user-space driver of EFA (Amazon's Elastic Fabric Adapter).
//!
//! A send queue is memory of the device, to which the driver writes work requests, and a doorbell. A request
//! names its destination by an address handle, a QP number and a Q_Key, also on the reliable transport (SRD), which has
//! no connection and no order. Every request is completed, in any order, with a number of 16 bits that the driver has chosen.
//!
//! | module       | what                                                                    |
//! |--------------|-------------------------------------------------------------------------|
//! | `memory`     | all access to memory of the device, to rings and to doorbells           |
//! | `table`      | the requests that the device has, by their number                       |
//! | `wqe`        | the encoder: a work request as words                                    |
//! | `send`       | the send queue, with batches; `list`, `builder`: its other two faces    |
//! | `recv`       | receive queues                                                          |
//! | `cq`         | polling and arming; `cq_state`: what pollers share with control calls   |
//! | `completion` | a completion                                                            |
//! | `shared`     | the state of a QP that posters, pollers and control calls share         |
//!
//! Posters and pollers have no lock of their own: each queue is used through `&mut`, and
//! [`Locked`](uverbs_core::sync::Locked) adds one. Nothing here allocates memory in a post or a poll.

mod builder;
mod completion;
mod cq;
mod cq_state;
mod list;
pub mod memory;
mod recv;
mod send;
mod shared;
mod table;
#[cfg(any(test, feature = "test-utils"))]
#[doc(hidden)]
pub mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
mod wqe;

pub use completion::Completion;
pub use cq::CompletionQueue;
pub use cq_state::{CqShared, CqState};
pub use recv::{Batch as RecvBatch, RecvQueue};
pub use send::{Batch as SendBatch, SendQueue};
pub use shared::QpShared;
pub use wqe::{Ah, SendConfig};
