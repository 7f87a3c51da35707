// SPDX-License-Identifier: MIT OR Apache-2.0
//! The traits that a driver implements and that the faces use.
//!
//! The path of a post: a face (typed in `uverbs`, raw in [`raw`]) converts the user's call into an operation ([`op`]),
//! an address and a payload ([`payload`]), and passes them to the driver's [`SendBatch`] or [`WrBuilder`] ([`send`]).
//! The driver's encoder is generic over all three, so each call site compiles to the stores of its WQE.
//!
//! Every queue type here is an *engine*: `&mut self`, no lock. [`crate::sync::Locked`] adds a lock.

pub mod completion;
pub mod driver;
pub mod error;
pub mod list;
pub mod op;
pub mod opcodes;
pub mod parts;
pub mod payload;
pub mod raw;
pub mod recv;
pub mod send;
pub mod state;
pub mod wire;

pub use completion::{Completion, CompletionQueue};
pub use driver::{DcDriver, Driver};
pub use error::{BadWr, PollError, PostError, QueueError, QueueKind, QueueName};
pub use op::{Address, Connected, DcTarget, Operation, RemoteSrq, To};
pub use parts::{
    CqParts, DctCreate, DctParts, DmParts, QpCreate, QpParts, RssQpCreate, SrqCreate, SrqParts, WqCreate,
    WqParts,
};
pub use payload::{Inline, InlineArray, InlineList, NoData, Payload};
pub use recv::{RecvBatch, RecvQueue};
pub use send::{SendBatch, SendQueue, Wr, WrBuilder};
pub use wire::{WireRemote, WireSge};
