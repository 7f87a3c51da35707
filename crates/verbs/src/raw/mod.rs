// SPDX-License-Identifier: MIT OR Apache-2.0
//! The typed face whose posts are `unsafe`: the program says when memory may be used.
//!
//! Queues, completions and `wr_id`s are those of the verbs. A post names memory by scatter/gather entries, and the program
//! guarantees that it stays registered and is not used before the completion. The front of the crate ([`Qp`](crate::Qp),
//! [`Cq`](crate::Cq)) posts buffers that it owns, and needs no `unsafe`; both have the same objects below.
//!
//! [`create`]: the creation of QPs. [`qp`]: a QP and its halves. [`send`] and [`wr`]: posting sends. [`recv`], [`receiver`], [`srq`]
//! and [`wq`]: posting receives. [`cq`]: polling.

pub mod cq;
pub mod create;
pub mod qp;
pub mod receiver;
pub mod recv;
pub mod send;
pub mod srq;
pub mod wq;
pub mod wr;

pub use cq::{Cq, Poll};
pub use create::QpBuilder;
pub use qp::Qp;
pub use receiver::{Receiver, RecvBatch, RecvGuard};
pub use recv::RecvQueue;
pub use send::{Batch, SendGuard, SendQueue};
pub use srq::Srq;
pub use wq::{RssQp, RwqIndTable, Wq};
pub use wr::{AtOnce, PostTo, ToBatch, Wr};
