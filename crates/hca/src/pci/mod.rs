// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HCA as a PCI function: what the unmodified Linux `mlx5_core` and `mlx5_ib` bind, served over vfio-user to a VM.
//!
//! A `Function` is the front of a device of the fabric, as the in-process kernel is that of other devices. It has the
//! state of the firmware (command queue, event queues, the contexts that drivers query), creates objects in the engine
//! and turns the engine's notices into event queue entries. Queues and registered memory are lists of the guest's pages
//! (`guest`); doorbells come as trapped register writes (`uar`).
//!
//! Facts from the kernel's `include/linux/mlx5/{mlx5_ifc,device,qp,driver}.h` and from what the drivers of
//! `drivers/net/ethernet/mellanox/mlx5/core` and `drivers/infiniband/hw/mlx5` send and expect.

mod bits;
mod cmdq;
mod config;
mod eq;
mod fw;
mod guest;
#[cfg(test)]
mod header;
mod init_seg;
mod layout;
mod server;
#[cfg(test)]
mod tests;
mod uar;

use crate::engine::net::Net;
use crate::engine::{Device, Port};
use crate::fabric::{Alive, DeviceBuilder};
use cmdq::CommandQueue;
use eq::{Eq, Vectors};
use fw::Caps;
use guest::Guest;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The function's record of a CQ.
#[derive(Debug)]
struct CqRecord {
    /// The event queue of its completions.
    eqn: u8,
    /// `struct mlx5_ifc_cqc_bits`, as it was created or last modified.
    context: Vec<u8>,
}

/// Numbers of one kind that are in use.
#[derive(Debug, Default)]
struct Numbers {
    used: BTreeSet<u32>,
}

impl Numbers {
    /// The lowest free number of a range.
    fn alloc(&mut self, range: core::ops::Range<u32>) -> Option<u32> {
        let free = range.into_iter().find(|n| !self.used.contains(n))?;
        self.used.insert(free);
        Some(free)
    }

    /// Whether it was in use.
    fn free(&mut self, number: u32) -> bool {
        self.used.remove(&number)
    }

    fn has(&self, number: u32) -> bool {
        self.used.contains(&number)
    }
}

/// The firmware's state of one PCI function.
#[derive(Debug)]
pub(crate) struct Function {
    name: String,
    guid: u64,
    ethernet: bool,
    /// The node's description, 64 bytes of text, which an administrator may set.
    description: Vec<u8>,
    guest: Arc<Guest>,
    vectors: Vectors,
    command_queue: CommandQueue,
    caps: Caps,
    eqs: BTreeMap<u8, Eq>,
    cqs: BTreeMap<u32, CqRecord>,
    /// `struct mlx5_ifc_qpc_bits` of each QP as it is now.
    qps: BTreeMap<u32, Vec<u8>>,
    /// `struct mlx5_ifc_dctc_bits` of each DC target.
    dcts: BTreeMap<u32, Vec<u8>>,
    /// Contexts of the shared receive queues.
    srqs: BTreeMap<u32, fw::SrqRecord>,
    /// `struct mlx5_ifc_mkc_bits` of each memory key, by number.
    mkeys: BTreeMap<u32, Vec<u8>>,
    pds: Numbers,
    uars: Numbers,
    xrcds: Numbers,
    domains: Numbers,
    counters: Numbers,
    ethernet_objects: fw::Ethernet,
    /// The number of commands that were used and do not exist, by opcode.
    unknown: BTreeMap<u16, u64>,
    /// The same of registers.
    unknown_registers: BTreeMap<u16, u64>,
}

impl Function {
    fn new(name: String, guid: u64, ethernet: bool) -> Self {
        let mut description = format!("{name} of uverbs").into_bytes();
        description.resize(64, 0);
        Self {
            name,
            guid,
            ethernet,
            description,
            guest: Arc::default(),
            vectors: Vectors::default(),
            command_queue: CommandQueue::default(),
            caps: Caps::new(ethernet),
            eqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            dcts: BTreeMap::new(),
            srqs: BTreeMap::new(),
            mkeys: BTreeMap::new(),
            pds: Numbers::default(),
            uars: Numbers::default(),
            xrcds: Numbers::default(),
            domains: Numbers::default(),
            counters: Numbers::default(),
            ethernet_objects: fw::Ethernet::default(),
            unknown: BTreeMap::new(),
            unknown_registers: BTreeMap::new(),
        }
    }

    /// Frames go through the tables that the driver writes.
    fn steer(&self, device: &mut Device) {
        if self.ethernet {
            device.steering.classifier = Some(Arc::clone(&self.ethernet_objects.tables) as _);
        }
    }

    /// Clears all state except its identity, its memory and its interrupts, for a reset or after the driver is
    /// unloaded.
    fn reset(&mut self, device: &mut Device, net: &mut Net, me: usize) {
        for qpn in self.qps.keys().chain(self.dcts.keys()) {
            net.leave_all(me, *qpn);
        }
        *device = device.renewed();
        let fresh = Self::new(core::mem::take(&mut self.name), self.guid, self.ethernet);
        let old = core::mem::replace(self, fresh);
        (self.guest, self.vectors, self.unknown) = (old.guest, old.vectors, old.unknown);
        self.unknown_registers = old.unknown_registers;
        (self.command_queue, self.caps) = (old.command_queue, old.caps);
        self.caps.renew();
        self.steer(device);
    }
}

/// A device as a PCI function.
#[derive(Clone, Debug)]
pub struct PciFunction {
    alive: Arc<Alive>,
    index: usize,
}

impl DeviceBuilder {
    /// Plugs it in as a PCI function, which a VM drives.
    #[must_use]
    pub fn build_pci(self) -> PciFunction {
        let alive = self.alive();
        let deterministic = alive.shared.deterministic;
        let index = self.plug_in(|world, index, config, guid| {
            let ethernet = config.link == crate::Link::Ethernet;
            let mut function = Function::new(config.name.clone(), guid, ethernet);
            function.caps.set_blue_flame(config.blue_flame);
            function.caps.set_umr(config.umr_registration);
            function.steer(&mut world.devices[index]);
            let lists = guest::Lists(Arc::clone(&function.guest));
            world.devices[index].translate = Some(Arc::new(lists));
            world.functions[index] = Some(Box::new(function));
            world.devices[index].late_doorbells = true;
            // The clock of a deterministic fabric does not advance in a doorbell, so all packets are sent at once.
            world.devices[index].paced = !deterministic;
            world.brief = !deterministic;
            if ethernet {
                // The driver sets the table's entries.
                world.net.ports[index].gids.clear();
            }
        });
        PciFunction { alive, index }
    }
}

impl PciFunction {
    /// Serves VMs at a socket, one after the other, until `stop` returns true after one has disconnected.
    ///
    /// # Errors
    /// The socket can't be made, or a connection broke.
    pub fn serve(&self, socket: &Path, stop: impl Fn() -> bool) -> std::io::Result<()> {
        server::serve(self, socket, stop)
    }

    /// Takes the port's link down, or up again.
    pub fn set_link_up(&self, up: bool) {
        crate::fabric::set_link_up(&self.alive, self.index, up);
    }

    /// Gives an InfiniBand port another LID, as a subnet manager does; `false` if it can't be the port's.
    #[must_use]
    pub fn set_lid(&self, lid: u16) -> bool {
        crate::fabric::set_lid(&self.alive, self.index, lid)
    }

    /// The number of repeated requests and responses, because packets were lost, duplicated or out of order.
    #[must_use]
    pub fn repairs(&self) -> u64 {
        self.alive.shared.read(|world| world.devices[self.index].repairs)
    }

    /// Packets that its port sent and received.
    #[must_use]
    pub fn packets(&self) -> (u64, u64) {
        self.alive.shared.read(|world| {
            let port = &world.net.ports[self.index];
            (port.sent, port.received)
        })
    }

    /// The commands that a driver gave and the device does not have: opcode and how often.
    #[must_use]
    pub fn unknown_commands(&self) -> Vec<(u16, u64)> {
        self.alive.shared.read(|world| {
            let function = world.functions.get(self.index).and_then(Option::as_ref);
            function.map_or_else(Vec::new, |f| f.unknown.iter().map(|(op, n)| (*op, *n)).collect())
        })
    }

    /// As [`PciFunction::unknown_commands`], of registers (`MLX5_REG_*`).
    #[must_use]
    pub fn unknown_registers(&self) -> Vec<(u16, u64)> {
        self.alive.shared.read(|world| {
            let function = world.functions.get(self.index).and_then(Option::as_ref);
            function.map_or_else(Vec::new, |f| f.unknown_registers.iter().map(|(r, n)| (*r, *n)).collect())
        })
    }

    /// The name of a command's opcode, if it has one.
    #[must_use]
    pub fn command_name(opcode: u16) -> Option<&'static str> {
        fw::name(opcode)
    }

    /// As [`PciFunction::violations`]; they are forgotten.
    #[must_use]
    pub fn take_violations(&self) -> Vec<crate::Violation> {
        self.take_violations_if(|_| true)
    }

    /// As [`PciFunction::take_violations`], for the violations that are `wanted`.
    #[must_use]
    pub fn take_violations_if(&self, wanted: impl FnMut(&crate::Violation) -> bool) -> Vec<crate::Violation> {
        crate::fabric::take_violations_if(&self.alive, self.index, wanted)
    }

    /// The violations of drivers so far.
    #[must_use]
    pub fn violations(&self) -> Vec<crate::Violation> {
        self.alive.shared.read(|world| world.devices[self.index].violations.clone())
    }

    fn enter<R>(&self, f: impl FnOnce(&mut Device, &mut Function, &mut Port<'_>) -> R) -> Option<R> {
        self.alive.shared.enter(|world| {
            let (device, function, mut port) = world.function(self.index)?;
            Some(f(device, function, &mut port))
        })
    }
}
