// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver for mlx5 devices (NVIDIA ConnectX and BlueField): work requests go to the device without the kernel.
//!
//! Queues are page-aligned memory of ours that the kernel pins when it creates the object; the doorbell registers
//! (UARs) are mapped from the device. A post writes WQEs to the queue, its index to the doorbell record and eight
//! bytes, or a whole WQE, to the register. The format of all of it stands in `uverbs-mlx5-hw`.

mod av;
pub mod buf;
mod builder;
mod calls;
mod context;
pub mod cq;
mod cqe;
mod cursor;
pub mod dbrec;
mod driver;
mod encoder;
mod list;
pub mod lookup;
mod ops;
mod options;
mod poster;
mod recv;
mod send;
pub mod shared;
mod size;
mod srq;
#[cfg(any(test, feature = "test-utils"))]
#[doc(hidden)]
pub mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod uar;
mod uars;
mod wqe;

pub use cq::{Completion, CompletionQueue, CqShared};
pub use driver::{Mlx5, QpControl, SrqControl, ThreadDomain};
pub use encoder::SendConfig;
pub use options::Options;
pub use recv::{Batch as RecvBatch, RecvConfig, RecvQueue};
pub use send::{Batch as SendBatch, SendQueue};
pub use srq::{Batch as SrqBatch, SharedRecvQueue};
pub use wqe::{Ah, Remote, Sge};
