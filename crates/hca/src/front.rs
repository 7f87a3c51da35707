// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface between a device and its front.
//!
//! The device executes work queues; it has no system calls, commands or interrupts. Its front has them: it answers the
//! driver's control path, creates and destroys the objects of the device, and passes the device's notices on to the
//! driver. Each device has one front. The in-process kernel of this crate is a front, the PCI function of the crate
//! `uverbs-hca-pci` is another one.
//!
//! # A front
//! A front implements [`Front<Device>`](Front). [`DeviceBuilder::build_with`](crate::DeviceBuilder::build_with) builds a device with it
//! and returns a [`Plugged`], the handle of both. The whole fabric is protected by one lock:
//! [`Plugged::enter`] takes it and calls a closure with
//!
//! - the [`Device`]: its objects by number ([`Device::qps`], [`Device::cqs`] and so on), which the front adds and
//!   removes ([`Device::add_qp`] and so on), and [`Device::doorbell`];
//! - the front's own state;
//! - the [`Port`]: the clock, the port's addresses and multicast groups.
//!
//! When the closure returns, due packets and timers are processed, and [`Front::deliver`] is called with each device.
//!
//! # Memory
//! The device accesses memory by the trait [`Memory`](crate::memory::Memory) only. A front implements it for the memory
//! of its driver, and gives each queue an [`Area`](crate::memory::Area) of it and each memory key a
//! [`Region`](MkeyKind::Region).

pub use crate::config::Config;
pub use crate::engine::cq::{Cq, CqParts};
pub use crate::engine::flow::{Classifier, Hit, Target};
pub use crate::engine::headers::Headers;
pub use crate::engine::indirect::{Indirect, LOG_MAX_LIST, MAX_INDIRECTION};
pub use crate::engine::mkey::{Denied, Kind as MkeyKind, Mkey, Mkeys, NULL_MKEY, Translate, access};
pub use crate::engine::net::Address;
pub use crate::engine::qp::{Attr, Qp, QpKind, SendRing, State};
pub use crate::engine::recv::{RecvRing, Srq, Wq};
pub use crate::engine::rss::Rss;
pub use crate::engine::signature::Psvs;
pub use crate::engine::table::{Table, Users};
pub use crate::engine::{Device, Notice, Port, event};
pub use crate::numbers::Numbers;
pub use uverbs_fabric::Front;

/// A device of a fabric with its front. Clones refer to the same device.
pub type Plugged<F> = uverbs_fabric::Plugged<Device, F>;
