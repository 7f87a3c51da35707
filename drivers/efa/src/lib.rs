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
//! | `wqe`        | the encoder: a work request as words                                    |
//! | `send`       | the send queue, with batches; `list`: its face for lists of C            |
//! | `recv`       | receive queues                                                          |
//! | `cq_state`   | completion queues: what their pollers share with control calls          |
//! | `completion` | a completion                                                            |
//! | `shared`     | the state of a QP that posters, pollers and control calls share         |
//! | [`control`]  | the context and the control calls                                       |
//!
//! Posters and pollers have no lock of their own: each queue is used through `&mut`, and
//! [`Locked`](uverbs_core::sync::Locked) adds one. Nothing here allocates memory in a post or a poll.

mod completion;
pub mod control;
mod cq_state;
mod direct;
mod list;
pub mod memory;
mod recv;
mod send;
mod shared;
#[cfg(any(test, feature = "test-utils"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod wqe;

pub use {
    completion::Completion,
    control::Efa,
    cq_state::{CompletionQueue, CqBell, CqShared, CqState, Events},
    direct::{DoorbellPlace, QpPlaces, QueuePlace},
    recv::{Batch as RecvBatch, RecvQueue},
    send::SendQueue,
    shared::QpShared,
    wqe::{Ah, SendConfig},
};
