// SPDX-License-Identifier: MIT OR Apache-2.0
//! A software mlx5 HCA: RDMA with no NIC, no root and no VM.
//!
//! A device of this crate executes the queues that an mlx5 driver writes: send, receive and completion queues in
//! memory, doorbell records, doorbells and BlueFlame. The crate includes the kernel's part, a
//! [`Kernel`](uverbs_core::kernel::Kernel) port that answers the uverbs ioctl ABI in this process, so everything above
//! the system call is the real code.
//!
//! # In a test
//! A service's test opens a context on it as it would open one on a NIC:
//! ```text
//! let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
//! ```
//! Each [`Hca::open`] is a new context of the same device, as a second `open` of `/dev/infiniband/uverbs0` is.
//!
//! # Several devices, and an unreliable network
//! ```
//! use uverbs_hca::{Fabric, Link};
//!
//! let fabric = Fabric::deterministic(7);
//! let a = fabric.device("hca0").link(Link::InfiniBand).build();
//! let b = fabric.device("hca1").link(Link::InfiniBand).build();
//! fabric.loss(0.01).duplicate(0.01).reorder(0.05);
//! let (client, server) = (a.open(), b.open());
//! # let _ = (client, server);
//! ```
//!
//! # Time
//! By default the fabric runs in real time: packets are delivered within the doorbell that sends them (unless there is
//! a delay), and timers are run by a thread that sleeps while there are none. A [deterministic](Fabric::deterministic)
//! fabric has a virtual clock and no thread: the same calls with the same seed give the same run. Its clock advances
//! only if there is nothing else to do. Each doorbell and each command checks once the requests that wait for a
//! receiver that was not ready, and [`Fabric::run`] runs all timers until none is left.
//!
//! # Mistakes
//! Mistakes that a NIC does not report (a doorbell before its WQE, a wrong index or size, an overrun CQ) are handled as
//! hardware does, recorded, and returned by [`Hca::violations`]. A test should check at its end that there are none.

pub mod bytes;
mod capture;
mod cm;
mod config;
mod cqe;
pub mod decode;
mod engine;
pub mod explore;
mod fabric;
pub mod front;
mod kernel;
pub mod prm;
mod roce;
mod software;
mod violation;

pub use config::{InlineMode, Link};
pub use fabric::{DeviceBuilder, Fabric, Hca};
pub(crate) use uverbs_fabric::numbers;
pub use uverbs_fabric::udp::{UdpPort, UdpStat};
pub use uverbs_fabric::{backing, memory, process, ring, socket, trace};

/// The port and the QPs of a device at a time.
pub type Stat = uverbs_fabric::Stat<front::QpKind>;
/// A QP.
pub type QpStat = uverbs_fabric::QpStat<front::QpKind>;
pub use violation::{Mistake, Object, Violation};
