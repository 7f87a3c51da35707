// SPDX-License-Identifier: MIT OR Apache-2.0
//! The traits that a driver implements and that the faces use.
//!
//! The path of a post: a face (typed in `uverbs`, raw in [`raw`]) makes a [`Wr`] of the user's call, a value with operation
//! ([`op`]), destination and data ([`wr`]), and passes it to the driver's [`SendBatch`] or [`WrBuilder`] ([`send`]). The
//! driver's encoder is inlined into the caller, so each call site compiles to the stores of its WQE.
//!
//! Every queue type here is an *engine*: `&mut self`, no lock. [`crate::sync::Locked`] adds a lock.

pub mod batch;
pub mod builder;
pub mod completion;
pub mod driver;
pub mod error;
pub mod inline;
pub mod list;
pub mod mkey;
pub mod object;
pub mod op;
pub mod opcodes;
pub mod parts;
mod poll_session;
pub mod poller;
pub mod raw;
pub mod recv;
pub mod requests;
pub mod send;
pub mod state;
pub mod wire;
pub mod wr;

pub use completion::{Completion, CompletionQueue};
pub use driver::{DcDriver, Driver, Import};
pub use error::{BadWr, PollError, PostError, QueueError, QueueKind, QueueName};
pub use inline::Inline;
pub use mkey::{MkeyLayout, MkeyMemory, MkeyObject, MkeyPart};
pub use object::{
    CqObject, Kept, Life, NoSrq, NoWq, Notify, Object, QpEnd, QpObject, SrqObject, WqObject, or_destroy,
    same_context,
};
pub use op::Op;
pub use parts::{
    CqParts, DctCreate, DmParts, QpCreate, QpParts, RssQpCreate, SrqCreate, SrqParts, WqCreate, WqParts,
};
pub use poller::{Poller, Source};
pub use recv::{RecvBatch, RecvQueue};
pub use send::{SendBatch, SendQueue, WrBuilder};
pub use wire::{RemoteAddr, WireRemote, WireSge};
pub use wr::{Data, DcTarget, Dest, Head, To, Wr};
