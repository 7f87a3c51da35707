// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of queues that their posters, the pollers of their completions and the control path share. Each is in an `Arc`.
//!
//! | module | what |
//! |---|---|
//! | `qp` | a QP: its numbers, its state word, and the parts of its queues |
//! | `sq`, `rq`, `srq` | a work queue: its ring, the data for completions, and how far it is complete |
//! | `published` | how far a send queue is published |
//! | `mkey` | an indirect key: the room of its list, its signature |
//! | `user_index` | user indices: the numbers by which completions name resources |

pub mod mkey;
mod published;
mod qp;
mod rq;
mod sq;
mod srq;
mod user_index;

pub use qp::{QpAccess, QpShared};
pub use rq::RqShared;
pub(crate) use sq::{NoSends, RetireBy};
pub use sq::{SqShared, umr_op};
pub(crate) use srq::SrqRecord;
pub use srq::SrqShared;
pub use user_index::{UserIndex, UserIndices};
