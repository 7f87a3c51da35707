// SPDX-License-Identifier: MIT OR Apache-2.0
//! RDMA verbs in pure Rust: typed objects, with drivers that access the NIC directly.
//!
//! The crate does not use libibverbs or other C code. It creates resources through the kernel's uverbs ioctl ABI, and
//! its data path writes to the device's work queues.
//! # Getting started
//! [`devices`] lists the RDMA devices of the machine; [`open()`] opens one by its name. Names are those of the verbs (`post_send`, `wr_id`,
//! `lkey`), so the man pages apply.
//!
//! ```
//! use std::os::unix::net::UnixStream;
//! use uverbs::{Done, Rc};
//!
//! /// One end: sends a message and receives one. `stream` reaches the other end, here or on another host.
//! fn talk(device: &str, mut stream: UnixStream, hello: &[u8]) -> uverbs::Result<Vec<u8>> {
//!     let ctx = uverbs::open(device)?; // "mlx5_0"; with the feature `hca` also "hca0", a software NIC
//!     let pd = ctx.alloc_pd()?;
//!     let mut cq = ctx.cq(64)?;
//!     let mut qp = pd.qp::<Rc>().cq(&cq).depth(16, 16).connect(&mut stream)?;
//!     let pool = pd.pool(64, 4096)?;
//!     qp.recv(pool.get()?)?;
//!     qp.send(pool.get()?.filled(hello))?;
//!     let (mut sent, mut received) = (false, None);
//!     while !sent || received.is_none() {
//!         match cq.wait()?.ok()? {
//!             Done::Sent(_) => sent = true,
//!             Done::Received(message) => received = Some(message.to_vec()),
//!             _ => {}
//!         }
//!     }
//!     Ok(received.unwrap_or_default())
//! }
//! # #[cfg(feature = "hca")]
//! # {
//! # let (a, b) = UnixStream::pair().unwrap();
//! # let peer = std::thread::spawn(|| talk("hca1", b, b"from b"));
//! # assert_eq!(talk("hca0", a, b"from a").unwrap(), b"from b");
//! # assert_eq!(peer.join().unwrap().unwrap(), b"from a");
//! # }
//! ```
//!
//! # Features
//! One for each driver, all on by default: `mlx5`, `efa`, `rxe`, `siw`. [`AnyDriver`] and [`open()`] select one of those that the build has.
//! `hca`: the software NIC of `uverbs-hca` as `uverbs::hca`, for tests and for programs that must run without a NIC. `efa-device`:
//! the software EFA of `uverbs-efa-device` as `uverbs::efa_device`; with any of them `uverbs::software`, software devices behind one type. `counters`:
//! counters (`QpCounters`) of posts and completions, `metrics`: their values for the facade of this name, `tracing`: events.
//!
//! # What is `unsafe`
//! A post takes a [`Buf`] from a [`Pool`] of registered memory, and a poll of the [`Cq`] gives it back: a service needs no `unsafe`.
//! [`soundness`] has the reasons. In [`raw`], a work request names memory by scatter/gather entries; such posts are `unsafe`, because
//! the device uses that memory after the call. Inline sends, invalidations, polling and the whole control path are safe there, too.
//!
//! # Which memory
//! | | |
//! |---|---|
//! | [`ProtectionDomain::pool`](crate::ProtectionDomain::pool) | for this process only: `&[u8]`, `&mut [u8]` |
//! | [`PoolBuilder::exposed`] | for peers, too: copies in and out. [`Window`]s open single buffers, and close them again |
//! | [`ProtectionDomain::dmabuf_pool`](crate::ProtectionDomain::dmabuf_pool) | of another device: not readable here |
//! | [`PoolBuilder::also_in`] | the same memory in several domains and devices |
//! | [`PoolBuilder::pages`], [`PoolBuilder::numa_node`] | huge pages, a NUMA node |
//! | [`SharedBuf`], [`BufPart`] | one buffer in several sends and writes at once; a part of one |
//! | [`BufList`] | several buffers, which one work request gathers from or scatters to |
//! | [`MkeyRegion`] | several buffers, or strided parts of them, as one region of this process or of a peer |
//! | [`Qp::scope`] | memory that the caller borrows, for large or rare transfers |
//! | inline sends | bytes that are copied by the post |
//!

#[macro_use]
pub mod any;
pub mod access;
pub mod ah;
mod brief;
pub mod buf;
pub mod comp_channel;
pub mod connect;
pub mod context;
mod count;
#[cfg(feature = "counters")]
pub mod counters;
pub mod cq;
pub mod dc;
pub mod dm;
pub mod done;
pub mod drain;
pub mod dump;
pub mod event;
mod flight;
pub mod flow;
pub mod gid;
mod held;
mod id;
pub mod import;
mod known;
mod label;
pub mod list;
pub mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod mkey;
mod mkey_post;
pub mod mkey_region;
pub mod mr;
pub mod mw;
pub mod open;
pub mod pd;
pub mod pool;
pub mod post;
pub mod post_to;
pub mod qp;
pub mod raw;
pub mod recv;
pub mod rejected;
pub mod remote;
pub mod scope;
pub mod send;
pub mod soundness;
pub mod stat;
#[doc(hidden)]
pub mod trace;
pub mod value;
mod wait;
pub mod window;
pub mod xrcd;

pub use access::{Access, Unmapped};
pub use ah::AddressHandle;
pub use buf::{PageBuf, StableBuf};
pub use comp_channel::CompletionChannel;
pub use connect::{ConnectAttr, Endpoint, WithDeadline};
pub use context::Context;
#[cfg(feature = "counters")]
pub use counters::{ContextCounters, CqCounters, PoolCounters, QpCounters, QueueCounters};
pub use cq::{Completed, Cq, Polled, ScopePoll};
pub use dc::DcTarget;
pub use dm::{DeviceMemory, DmRegion};
pub use done::Done;
pub use drain::{DrainOwned, Drained};
pub use dump::{QpDump, QueueDump};
pub use event::{AsyncEvents, Event, EventSource};
pub(crate) use flight::{Flights, Holds};
pub use flow::{Counters, Flow};
pub use id::{CqId, SrqId};
pub use import::ImportedRegion;
pub use list::{BufList, MAX_BUFS, Memory, Source};
pub use memory::PageSize;
pub use mkey::Mkey;
pub use mkey_region::{MkeyRegion, PeerPiece, Piece, Segment, Strided};
pub use mr::{Exposed, MemoryRegion, Private, RegError};
pub use mw::MemoryWindow;
pub use open::{AnyDriver, DriverVisitor, OpenBy, devices, open, open_with};
pub use pd::{ProtectionDomain, ThreadDomain};
pub use pool::{Acquire, Buf, BufPart, Filled, Pool, PoolBuilder, PoolEmpty, SharedBuf};
pub use post::IntoMemory;
pub use post_to::{AtOnce, Batch, PostTo, ToBatch};
pub use qp::{Dci, DrainCq, Halves, Qp, QpBuilder, QpControl, RawPacket, Rc, Srd, Uc, Ud, XrcRecv, XrcSend};
pub use recv::{RecvBatch, RecvGuard, RecvQueue, Srq};
pub use rejected::{Lend, Rejected};
pub use remote::RemoteRegion;
pub use scope::{Scope, ScopeError, ScopeTo, ScopedOp};
pub use send::{SendGuard, SendQueue, Wr};
pub use value::Operation;
pub use window::Window;
pub use xrcd::XrcDomain;

pub use uverbs_core::attr;
pub use uverbs_core::device;
pub use uverbs_core::provider::{self, Driver, PollError, PostError, QueueError, QueueKind, QueueName};
pub use uverbs_core::sync::{Exclusive, LockError, Shared};
pub use uverbs_core::wc::{self, Fault, WcError, WcFlags, WcOpcode, WcStatus, WorkCompletion};
pub use uverbs_core::wr::{self, ImmData, SendFlags};
pub use uverbs_core::{Errno, Error, LockedSizes, Result};
#[cfg(feature = "software")]
pub use uverbs_software as software;

/// The crates of the drivers.
macro_rules! reexport {
    (() $([$name:ident $feature:literal $module:ident $krate:ident])*) => {
        $(#[cfg(feature = $feature)]
        pub use $krate as $module;)*
    };
}
uverbs_core::drivers!(reexport());

/// The crates of the software devices.
#[cfg(feature = "software")]
macro_rules! reexport_models {
    (() $([$device:ident $feature:literal $module:ident $krate:ident])*) => {
        $(#[cfg(feature = $feature)]
        #[doc(no_inline)]
        pub use uverbs_software::$module;)*
    };
}
#[cfg(feature = "software")]
uverbs_software::models!(reexport_models());

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
