// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver for mlx5 devices (NVIDIA ConnectX and BlueField): work requests go to the device without the kernel.
//!
//! Queues are page-aligned memory of ours that the kernel pins when it creates the object; the doorbell registers
//! (UARs) are mapped from the device. A post writes WQEs to the queue, its index to the doorbell record and eight
//! bytes, or a whole WQE, to the register. The format of all of it stands in `uverbs-mlx5-hw`.

pub mod buf;
pub mod cq;
mod cqe;
pub mod dbrec;
pub mod lookup;
pub mod shared;
pub mod uar;

pub use cq::{Completion, CompletionQueue, CqShared};
