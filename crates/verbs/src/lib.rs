// SPDX-License-Identifier: MIT OR Apache-2.0
//! RDMA verbs in pure Rust: typed objects, with drivers that access the NIC directly.
//!
//! The crate does not use libibverbs or other C code. It creates resources through the kernel's uverbs ioctl ABI, and
//! its data path writes to the device's work queues.
//! # Getting started
//! [`devices`] lists the RDMA devices of the machine; [`open()`] opens one with the driver that it needs. Names are
//! those of the verbs (`post_send`, `wr_id`, `lkey`), so the man pages apply.
//!
//! # Features
//! `mlx5`, `rxe` and `siw`, all on by default: the drivers. [`AnyDriver`] and [`open()`] select one of those that the build has.
//! `hca`: the software NIC of `uverbs-hca` as `uverbs::hca`, for tests and for programs that must run
//! without a NIC.
//!
//! # What is `unsafe`
//! Posting a work request that names memory by scatter/gather entries is `unsafe`, because the device uses that memory
//! after the call. Inline sends, invalidations, polling and the whole control path are safe.
//! Posts that [own their buffers](owned) are safe, too: a service needs no `unsafe`.

pub mod ah;
#[cfg(any(
    all(feature = "mlx5", feature = "rxe"),
    all(feature = "mlx5", feature = "siw"),
    all(feature = "rxe", feature = "siw"),
))]
pub mod any;
pub mod buf;
pub mod comp_channel;
pub mod connect;
pub mod context;
pub mod cq;
pub mod dc;
pub mod dm;
pub mod event;
pub mod flow;
pub mod gid;
mod id;
pub mod import;
pub mod mr;
pub mod mw;
pub mod open;
pub mod owned;
pub mod pd;
pub mod qp;
pub mod recv;
pub mod remote;
pub mod srq;
pub mod wq;
pub mod xrcd;

pub use ah::AddressHandle;
pub use buf::{PageBuf, StableBuf};
pub use comp_channel::CompletionChannel;
pub use connect::{ConnectAttr, Endpoint, WithDeadline};
pub use context::Context;
pub use cq::CompletionQueue;
pub use dc::DcTarget;
pub use dm::{DeviceMemory, DmRegion};
pub use event::{AsyncEvents, Event, EventSource};
pub use flow::{Counters, Flow};
pub use import::ImportedRegion;
pub use mr::{MemoryRegion, RegError};
pub use mw::MemoryWindow;
#[cfg(any(feature = "mlx5", feature = "rxe", feature = "siw"))]
pub use open::{AnyDriver, open};
pub use open::{DriverVisitor, devices, open_with};
pub use pd::{ProtectionDomain, ThreadDomain};
pub use qp::{Dci, DrainCq, Qp, RawPacket, Rc, Uc, Ud, XrcRecv, XrcSend};
pub use remote::RemoteRegion;
pub use srq::SharedReceiveQueue;
pub use wq::{RssQp, RwqIndTable, WorkQueue};
pub use xrcd::XrcDomain;

pub use uverbs_core::attr;
pub use uverbs_core::device;
pub use uverbs_core::provider::{self, Driver, PollError, PostError};
pub use uverbs_core::sync::{Exclusive, Shared};
pub use uverbs_core::wc::{self, WcFlags, WcOpcode, WcStatus, WorkCompletion};
pub use uverbs_core::wr::{self, ImmData, SendFlags};
pub use uverbs_core::{Errno, Error, LockedSizes, Result};
#[cfg(feature = "hca")]
pub use uverbs_hca as hca;
#[cfg(feature = "mlx5")]
pub use uverbs_mlx5 as mlx5;
#[cfg(feature = "rxe")]
pub use uverbs_rxe as rxe;
#[cfg(feature = "siw")]
pub use uverbs_siw as siw;

#[cfg(all(doctest, any(feature = "mlx5", feature = "rxe", feature = "siw")))]
#[doc = include_str!("../README.md")]
struct Readme;
