// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver for `rdma_rxe`, the kernel's software RDMA device (RoCE v2 over any network interface).
//!
//! The kernel implements the device: it reads WQEs from rings that it shares with the process, and writes completions
//! to another ring. The queues are those of `uverbs-soft`; this crate has their format, and the control calls. The features are those of the
//! kernel's `drivers/infiniband/sw/rxe`: RC, UC and UD; no XRC, no raw packets, no segmentation offload.
//!
//! | module            | what                                                                     |
//! |-------------------|--------------------------------------------------------------------------|
//! | `ring`            | the shared ring, with indices                                            |
//! | `wqe`             | the format of WQEs                                                       |
//! | `completion`      | the format of completions                                                |
//! | `config`          | the operations of a QP                                                   |
//! | `driver`, `calls` | control                                                                  |
//! | `av`              | the address in a datagram's WQE                                          |

mod av;
mod calls;
mod completion;
mod config;
mod driver;
mod ring;
#[cfg(any(test, feature = "test-utils"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod wqe;

pub use completion::Completion;
pub use config::{Extensions, SendConfig};
pub use driver::{FlushByModify, Rxe, RxeDevice};
pub use ring::{Ring, RingError};
pub use uverbs_soft::{ArmBell, FlushBell, KernelBell, SendBell, ThreadDomain};
pub use wqe::{Ah, QueueKey};

/// A send queue, with `B` as its doorbell.
pub type SendQueue<B> = uverbs_soft::SendQueue<RxeDevice, B>;
/// A batch of sends.
pub type SendBatch<'q, B> = uverbs_soft::SendBatch<'q, RxeDevice, B>;
/// A receive queue, which `B` flushes in ERR.
pub type RecvQueue<B> = uverbs_soft::RecvQueue<RxeDevice, B>;
/// A batch of receives.
pub type RecvBatch<'q, B> = uverbs_soft::RecvBatch<'q, RxeDevice, B>;
/// A completion queue, which `B` arms.
pub type CompletionQueue<B> = uverbs_soft::CompletionQueue<RxeDevice, B>;
/// State and queue key of a QP.
pub type QpShared = uverbs_soft::QpShared<RxeDevice>;
/// The ring of a completion queue.
pub type CqShared = uverbs_soft::CqShared<RxeDevice>;
