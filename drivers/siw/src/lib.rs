// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver for `siw`, the kernel's software iWARP device (RDMA over TCP, on any network interface).
//!
//! The kernel implements the device: it reads work requests from rings that it shares with the process, and writes
//! completions to another ring. This crate encodes the requests, decodes the completions and rings the doorbell, which is
//! a system call. The rings have no indices: a flag in each element passes it to the other side.
//!
//! The features are those of the kernel's `drivers/infiniband/sw/siw` for user space: RC QPs that are connected by the
//! connection manager (`uverbs-cm`, librdmacm), with send, send with invalidate, RDMA write and RDMA read; shared receive
//! queues. The device has no immediate data, atomics, memory windows, local invalidation and datagrams.
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
//! | `doorbell`                | the system call of the data path                                         |
//! | `driver`                  | control                                                                  |

mod builder;
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
pub use doorbell::{KernelBell, SendBell};
pub use driver::{Siw, SrqShared, ThreadDomain};
pub use queue::{Ring, RingError};
pub use recv::{Batch as RecvBatch, RecvQueue};
pub use send::{Batch as SendBatch, SendConfig, SendQueue};
pub use shared::QpShared;
pub use wqe::Ah;
