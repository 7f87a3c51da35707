// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver for `rdma_rxe`, the kernel's software RDMA device (RoCE v2 over any network interface).
//!
//! The kernel implements the device: it reads WQEs from rings that it shares with the process, and writes completions
//! to another ring. This crate encodes the WQEs, decodes the completions and rings the doorbell, which is a system
//! call. The features are those of the kernel's `drivers/infiniband/sw/rxe`: RC, UC and UD; no XRC, no raw packets, no
//! segmentation offload.
//!
//! | module                    | what                                                                     |
//! |---------------------------|--------------------------------------------------------------------------|
//! | `queue`                   | the shared ring; all pointer access                                      |
//! | `wqe`                     | the encoder                                                              |
//! | `producer`                | cursor, room and publication, for every kind of queue with a poster      |
//! | `send`, `list`, `builder` | the three faces of the send queue                                        |
//! | `recv`                    | receive queues, of a QP or shared                                        |
//! | `cq`, `cq_shared`         | completion queues                                                        |
//! | `shared`                  | the QP's state for its posters                                           |
//! | `doorbell`, `calls`       | the system calls of the data path                                        |
//! | `driver`, `av`            | control                                                                  |

mod av;
mod builder;
mod calls;
mod cq;
mod cq_shared;
mod doorbell;
mod driver;
mod list;
mod producer;
mod queue;
mod recv;
mod send;
mod shared;
#[cfg(any(test, feature = "test-utils"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod wqe;

pub use cq::{Completion, CompletionQueue};
pub use cq_shared::CqShared;
pub use doorbell::{ArmBell, FlushBell, KernelBell, SendBell};
pub use driver::{Rxe, SrqShared, ThreadDomain};
pub use queue::{Ring, RingError};
pub use recv::{Batch as RecvBatch, RecvQueue};
pub use send::{Batch as SendBatch, Extensions, SendConfig, SendQueue};
pub use shared::QpShared;
pub use wqe::Ah;
