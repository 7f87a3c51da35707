// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver for mlx5 devices (NVIDIA ConnectX and BlueField): work requests go to the device without the kernel.
//!
//! Queues are page-aligned memory of the process that the kernel pins when it creates the object; the doorbell
//! registers (UARs) are mapped from the device. A post writes WQEs to the queue, its index to the doorbell record, and
//! eight bytes, or a whole WQE, to the register. The crate `uverbs-mlx5-hw` defines the formats.

//!
//! | module | what |
//! |---|---|
//! | `control` | opening a device, creating and modifying objects, doorbell register allocation |
//! | `memory` | rings, index types, doorbell records: all `unsafe` about queue memory |
//! | `doorbell` | the registers by which a queue notifies the device |
//! | `wqe` | encodes work requests |
//! | `sq`, `rq`, `cq` | send queues, receive queues, completion queues |
//! | `shared` | the parts of queues that their posters, pollers and the control path share; below all that use them |

#![expect(unreachable_pub, reason = "`testing` makes internals reachable with the feature `test-utils`")]

mod control;
mod cq;
mod doorbell;
mod memory;
mod rq;
mod shared;
mod sq;
#[cfg(any(test, feature = "test-utils"))]
#[doc(hidden)]
pub mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
mod wqe;

pub use control::{Cq, Devx, Mlx5, Options, Qp, QpControl, Srq, ThreadDomain, Wq};
pub use control::{devx, dv, steering};
pub use cq::{Completion, CompletionQueue, CqShared};
pub use memory::{Allocator, MemoryUse, Pages, QueueAllocator};
pub use rq::srq::{Batch as SrqBatch, SharedRecvQueue};
pub use rq::{Batch as RecvBatch, RecvConfig, RecvQueue};
pub use sq::{Batch as SendBatch, SendConfig, SendQueue};
pub use wqe::{Ah, Remote, Sge};
