// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queues of devices whose rings are memory that the process shares with the kernel, and whose doorbell is a system call.
//!
//! A driver of such a device has three parts of its own: its format ([`Format`]: the layout of work requests and completions, and the
//! rings that pass them on), its bells, and its control calls ([`Device`]). The rest is here, once: posting by batches, lists and builders,
//! polling, the handshake between posters, pollers and control calls, and the driver of the verbs ([`Soft`]).
//!
//! | module                    | what                                                                     |
//! |---------------------------|--------------------------------------------------------------------------|
//! | `memory`                  | all access to shared memory                                              |
//! | `format`                  | the traits of a format, with the points at which devices differ          |
//! | `producer`                | cursor, room and publication, for every kind of queue with a poster      |
//! | `send`, `list`, `builder` | the three faces of the send queue                                        |
//! | `wqe`                     | the part of a WQE that all formats have                                  |
//! | `recv`                    | receive queues, of a QP or shared                                        |
//! | `cq_state`                | completion queues                                                        |
//! | `shared`                  | the QP's state for its posters                                           |
//! | `doorbell`                | the system calls of the data path                                        |
//! | `device`, `driver`, `object` | control                                                               |
//!
//! Posters and pollers have no lock of their own: each queue is used through `&mut`, and
//! [`Locked`](uverbs_core::sync::Locked) adds one. Nothing here allocates memory in a post or a poll, and no call is dynamic.

mod cq_state;
pub mod device;
mod doorbell;
mod driver;
pub mod format;
mod list;
pub mod memory;
mod object;
mod producer;
mod recv;
mod send;
mod shared;
#[cfg(any(test, feature = "test-utils"))]
#[doc(hidden)]
pub mod testing;
mod wqe;

pub use cq_state::{Completion, CompletionQueue, CqShared, CqState};
pub use device::Device;
pub use doorbell::{ArmBell, FlushBell, KernelBell, SendBell};
pub use driver::{Soft, ThreadDomain};
pub use format::Format;
pub use object::{Cq, Qp, Srq, close};
pub use recv::{Batch as RecvBatch, RecvQueue};
pub use send::{SendConfig, SendQueue};
pub use shared::QpShared;

/// A batch of sends.
pub type SendBatch<'q, F, B> = uverbs_core::provider::batch::Batch<'q, SendQueue<F, B>>;
