// SPDX-License-Identifier: MIT OR Apache-2.0
//! The software HCA as a PCI function: the unmodified Linux `mlx5_core` and `mlx5_ib` of a VM bind to it. It is served over
//! vfio-user.
//!
//! A [`PciFunction`] is the front ([`uverbs_hca::front`]) of a device of a [`Fabric`](uverbs_hca::Fabric), where other
//! devices have the in-process kernel. It has the state of the firmware (command queue, event queues, the contexts that
//! drivers query), creates objects in the device and turns the device's notices into event queue entries. Queues and
//! registered memory are lists of the guest's pages (`pages`); doorbells are trapped register writes (`uar`).
//!
//! Facts from the kernel's `include/linux/mlx5/{mlx5_ifc,device,qp,driver}.h` and from what the drivers of
//! `drivers/net/ethernet/mellanox/mlx5/core` and `drivers/infiniband/hw/mlx5` send and expect.
//!
//! The program `uverbs-hca` of this package provides such functions to QEMU.

mod caps;
mod cmdq;
mod command_queue;
mod eq;
mod ethernet;
mod events;
mod function;
mod fw;
#[cfg(test)]
mod header;
mod init_seg;
mod limits;
mod pages;
mod state;
mod tables;
#[cfg(test)]
mod tests;
mod uar;

use uverbs_hca::prm::{bits, layout};

pub use function::{PciFunction, Registration};
