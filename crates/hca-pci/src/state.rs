// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the firmware of one PCI function.

use crate::caps::Caps;
use crate::command_queue::CommandQueue;
use crate::eq::Eq;
use crate::ethernet::Ethernet;
use crate::limits;
use crate::pages::Pages;
use std::collections::BTreeMap;
use std::sync::Arc;
use uverbs_hca::front::{Device, Front, Numbers, Port};
use uverbs_hca::prm::general;
use uverbs_mlx5_hw::doorbell::UAR_BYTES;
use uverbs_vfio::Vm;

/// The number of the first doorbell page, which is behind the initialization segment and the table of interrupts.
const FIRST_UAR: u32 = 0x100;
const LAST_UAR: u32 = (crate::function::BAR_BYTES / UAR_BYTES as u64) as u32;

/// The function's record of a CQ.
#[derive(Debug)]
pub(crate) struct CqRecord {
    /// The event queue of its completions.
    pub(crate) eqn: u8,
    /// `struct mlx5_ifc_cqc_bits`, as it was created or last modified.
    pub(crate) context: Vec<u8>,
}

/// The function's record of a shared receive queue: its context, in the format of its kind.
#[derive(Debug)]
pub(crate) struct SrqRecord {
    pub(crate) context: Vec<u8>,
    pub(crate) is_pool: bool,
}

/// The firmware's state of one PCI function.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) ethernet: bool,
    /// The node's description, 64 bytes of text, which an administrator may set.
    pub(crate) description: Vec<u8>,
    pub(crate) vm: Arc<Vm>,
    pub(crate) command_queue: CommandQueue,
    pub(crate) caps: Caps,
    pub(crate) eqs: BTreeMap<u8, Eq>,
    pub(crate) cqs: BTreeMap<u32, CqRecord>,
    /// `struct mlx5_ifc_qpc_bits` of each QP as it is now.
    pub(crate) qps: BTreeMap<u32, Vec<u8>>,
    /// `struct mlx5_ifc_dctc_bits` of each DC target.
    pub(crate) dcts: BTreeMap<u32, Vec<u8>>,
    /// Contexts of the shared receive queues.
    pub(crate) srqs: BTreeMap<u32, SrqRecord>,
    /// `struct mlx5_ifc_mkc_bits` of each memory key, by number.
    pub(crate) mkeys: BTreeMap<u32, Box<[u8]>>,
    pub(crate) pds: Numbers,
    pub(crate) uars: Numbers,
    pub(crate) xrcds: Numbers,
    pub(crate) domains: Numbers,
    pub(crate) counters: Numbers,
    /// Contexts of users.
    pub(crate) uctxs: Numbers,
    /// Memory that commands name, by number.
    pub(crate) umems: BTreeMap<u32, Arc<Pages>>,
    pub(crate) umem_ids: Numbers,
    /// Objects that commands name by their type and number.
    pub(crate) general_objects: BTreeMap<(u32, u32), general::Object>,
    pub(crate) ethernet_objects: Ethernet,
    /// The number of commands that were used and do not exist, by opcode.
    pub(crate) unknown: BTreeMap<u16, u64>,
    /// The number of accesses to registers that do not exist, by number.
    pub(crate) unknown_registers: BTreeMap<u16, u64>,
}

impl Function {
    /// The state after a reset.
    pub(crate) fn new(name: String, guid: u64, ethernet: bool) -> Self {
        let mut description = format!("{name} of uverbs").into_bytes();
        description.resize(64, 0);
        Self {
            name,
            guid,
            ethernet,
            description,
            vm: Arc::default(),
            command_queue: CommandQueue::default(),
            caps: Caps::new(ethernet),
            eqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            dcts: BTreeMap::new(),
            srqs: BTreeMap::new(),
            mkeys: BTreeMap::new(),
            pds: Numbers::new(1..1 << limits::LOG_MAX_PD),
            uars: Numbers::new(FIRST_UAR..LAST_UAR),
            xrcds: Numbers::new(1..1 << limits::LOG_MAX_XRCD),
            domains: Numbers::new(1..1 << limits::LOG_MAX_TRANSPORT_DOMAIN),
            counters: Numbers::new(1..1 << limits::LOG_MAX_Q_COUNTERS),
            uctxs: Numbers::new(1..1 << limits::LOG_MAX_UCTX),
            umems: BTreeMap::new(),
            umem_ids: Numbers::new(1..1 << limits::LOG_MAX_UMEM),
            general_objects: BTreeMap::new(),
            ethernet_objects: Ethernet::default(),
            unknown: BTreeMap::new(),
            unknown_registers: BTreeMap::new(),
        }
    }

    /// Steers frames by the tables that the driver writes.
    pub(crate) fn steer(&self, device: &mut Device) {
        if self.ethernet {
            device.classify_with(Arc::clone(&self.ethernet_objects.tables) as _);
        }
    }

    /// Clears all state except its identity, its memory and its interrupts, for a reset or after the driver is
    /// unloaded.
    pub(crate) fn reset(&mut self, device: &mut Device, port: &mut Port<'_>) {
        port.drain(device);
        device.reset(port);
        let fresh = Self::new(core::mem::take(&mut self.name), self.guid, self.ethernet);
        let old = core::mem::replace(self, fresh);
        (self.vm, self.unknown) = (old.vm, old.unknown);
        self.unknown_registers = old.unknown_registers;
        (self.command_queue, self.caps) = (old.command_queue, old.caps);
        self.caps.renew();
        self.steer(device);
    }
}

impl Front<Device> for Function {
    fn deliver(&mut self, device: &mut Device) {
        self.post_notices(device);
    }

    fn is_in_vm(&self) -> bool {
        true
    }
}
