// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver for `siw`, the kernel's software iWARP device (RDMA over TCP, on any network interface).
//!
//! The kernel implements the device: it reads work requests from rings that it shares with the process, and writes
//! completions to another ring. The queues are those of `uverbs-soft`; this crate has their format, and the control calls. The rings have no
//! indices: a flag in each element passes it to the other side.
//!
//! The features are those of the kernel's `drivers/infiniband/sw/siw` for user space: RC QPs that are connected by the
//! connection manager (`uverbs-cm`, librdmacm), with send, send with invalidate, RDMA write and RDMA read; shared receive
//! queues. The device has no immediate data, atomics, memory windows, local invalidation and datagrams.
//!
//! | module       | what                                               |
//! |--------------|----------------------------------------------------|
//! | `ring`       | the shared rings, with flags                       |
//! | `wqe`        | the format of work requests, the doorbell          |
//! | `completion` | the format of completions                          |
//! | `shared`     | what is known of a QP's connection                 |
//! | `driver`     | control                                            |

mod completion;
mod driver;
mod ring;
mod shared;
#[cfg(any(test, feature = "test-utils"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod wqe;

pub use completion::Completion;
pub use driver::{Siw, SiwDevice};
pub use ring::{CompletionRing, RecvHead, Ring, RingError, SendHead, Work, WqeOf};
pub use shared::Connection;
pub use uverbs_soft::{KernelBell, SendBell, ThreadDomain};
pub use wqe::{Ah, SendConfig};

/// A send queue, with `B` as its doorbell.
pub type SendQueue<B> = uverbs_soft::SendQueue<SiwDevice, B>;
/// A batch of sends.
pub type SendBatch<'q, B> = uverbs_soft::SendBatch<'q, SiwDevice, B>;
/// A receive queue.
pub type RecvQueue = uverbs_soft::RecvQueue<SiwDevice, ()>;
/// A batch of receives.
pub type RecvBatch<'q> = uverbs_soft::RecvBatch<'q, SiwDevice, ()>;
/// A completion queue.
pub type CompletionQueue = uverbs_soft::CompletionQueue<SiwDevice, ()>;
/// State of a QP.
pub type QpShared = uverbs_soft::QpShared<SiwDevice>;
/// The ring of a completion queue.
pub type CqShared = uverbs_soft::CqShared<SiwDevice>;
