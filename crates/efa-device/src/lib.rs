// SPDX-License-Identifier: MIT OR Apache-2.0
//! A software EFA (Amazon's Elastic Fabric Adapter): SRD and datagrams with no instance, no root and no VM.
//!
//! A device of this crate executes the queues that an EFA driver writes: send entries in memory of the device, receive rings,
//! completion queues with phase bits, doorbells. The crate includes the kernel's part, a [`Kernel`](uverbs_core::kernel::Kernel) port that
//! answers the uverbs ioctl ABI in this process as `ib_uverbs` and `efa` do.
//!
//! SRD is reliable and unordered. Each packet takes a path of its own, drawn by the fabric's seed, so messages overtake each other,
//! and the packets of a message do, too. Lost packets are repeated by the device.
//!
//! ```
//! use uverbs_efa_device::{Fabric, Generation};
//!
//! let fabric = Fabric::deterministic(7);
//! let a = fabric.device("efa_0").build();
//! let b = fabric.device("efa_1").generation(Generation::Second).build();
//! fabric.loss(0.01);
//! let (client, server) = (a.open(), b.open());
//! # let _ = (client, server);
//! ```
//!
//! [`EfaDevice::violations`] returns the mistakes of a driver that a device does not report. A test should check at its end that there
//! are none.

pub mod caps;
pub mod device;
mod fabric;
pub mod function;
mod kernel;
mod packet;
mod software;
#[cfg(test)]
mod tests;
mod violation;

pub use caps::{Caps, Generation};
pub use fabric::{DeviceBuilder, EfaDevice, Fabric};
pub use uverbs_fabric::Front;

/// A device of a fabric with its front. Clones refer to the same device.
pub type Plugged<F> = uverbs_fabric::Plugged<device::Device, F>;
/// The port and the QPs of a device at a time.
pub type Stat = uverbs_fabric::Stat<device::QpKind>;
/// A QP.
pub type QpStat = uverbs_fabric::QpStat<device::QpKind>;
pub use violation::{Mistake, Object, Violation};
