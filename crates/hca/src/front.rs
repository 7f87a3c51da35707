// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface between a device and its front.
//!
//! The device executes work queues; it knows no system calls, commands or interrupts. Its front does: it answers the
//! driver's control path, creates and destroys the objects of the device, and passes the device's notices on to the
//! driver. Each device has one front. The in-process kernel of this crate is a front, the PCI function of the crate
//! `uverbs-hca-pci` is another one.
//!
//! # A front
//! A front implements [`Front`]. [`DeviceBuilder::build_with`](crate::DeviceBuilder::build_with) builds a device with it
//! and returns a [`Plugged`], the handle of both. The whole fabric is protected by one lock:
//! [`Plugged::enter`] takes it and calls a closure with
//!
//! - the [`Device`]: its objects by number ([`Device::qps`], [`Device::cqs`] and so on), which the front inserts and
//!   removes, and [`Device::doorbell`];
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
pub use crate::engine::mkey::{Bound, Kind as MkeyKind, Mkey, Mkeys, Translate, access};
pub use crate::engine::net::Address;
pub use crate::engine::qp::{Attr, Qp, QpKind, SendRing, State};
pub use crate::engine::recv::{RecvRing, Srq};
pub use crate::engine::rss::Rss;
pub use crate::engine::{Device, NULL_MKEY, Notice, Port, Wq, event};
pub use crate::plugged::Plugged;

use core::any::Any;
use core::fmt;

/// The front of a device: its state, which is protected by the fabric's lock.
pub trait Front: Any + Send + fmt::Debug {
    /// Passes the device's notices on to the driver. It is called often, also if there are none.
    fn deliver(&mut self, device: &mut Device);

    /// Whether the driver has not yet taken notices that were passed on. Then `deliver` is called again soon.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Whether the driver runs in a VM. Then doorbells may arrive late; and because a VM is stopped while its device does
    /// not answer, a call processes due work for a short time only, and the fabric's thread processes the rest.
    fn is_in_vm(&self) -> bool {
        false
    }
}
