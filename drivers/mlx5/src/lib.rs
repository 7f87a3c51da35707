// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver for mlx5 devices (NVIDIA ConnectX and BlueField): work requests go to the device without the kernel.
//!
//! Queues are page-aligned memory of ours that the kernel pins when it creates the object; the doorbell registers
//! (UARs) are mapped from the device. A post writes WQEs to the queue, its index to the doorbell record and eight
//! bytes, or a whole WQE, to the register. The format of all of it stands in `uverbs-mlx5-hw`.

pub mod buf;
mod builder;
pub mod cq;
mod cqe;
pub mod dbrec;
mod encoder;
mod list;
pub mod lookup;
mod poster;
mod recv;
mod send;
pub mod shared;
mod srq;
pub mod uar;
mod wqe;

pub use cq::{Completion, CompletionQueue, CqShared};
pub use encoder::SendConfig;
pub use recv::{Batch as RecvBatch, RecvConfig, RecvQueue};
pub use send::{Batch as SendBatch, SendQueue};
pub use srq::{Batch as SrqBatch, SharedRecvQueue};
pub use wqe::{Ah, Remote, Sge};
