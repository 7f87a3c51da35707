// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handle of a PCI function.

use crate::pages::Lists;
use crate::state::Function;
use crate::{cmdq, fw, init_seg, uar};
use core::net::IpAddr;
use std::io;
use std::sync::Arc;
use uverbs_hca::bytes::be32;
use uverbs_hca::front::{Device, Front, Plugged, Port};
use uverbs_hca::{DeviceBuilder, Link, UdpPort};
use uverbs_vfio::{Bar, Layout, Vm};

/// `PCI_VENDOR_ID_MELLANOX`
const VENDOR: u16 = 0x15b3;
/// ConnectX-6: a physical function that needs no feature of later devices (`mlx5_core_pci_table`).
const DEVICE: u16 = 0x101b;
/// Network controller, Ethernet; a ConnectX has this class on InfiniBand, too.
const CLASS: u32 = 0x02_0000;
/// Network controller, InfiniBand.
const CLASS_IB: u32 = 0x02_0700;
/// Bytes of BAR 0: the initialization segment and the pages of doorbells.
pub(crate) const BAR_BYTES: u64 = 32 << 20;
/// MSI-X vectors.
pub(crate) const VECTORS: u16 = 16;

/// How the kernel of the guest registers memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registration {
    /// With page lists in commands.
    #[default]
    Command,
    /// With its queue for updates of memory keys (UMR).
    Umr,
}

/// A device as a PCI function. Clones refer to the same device.
#[derive(Clone, Debug)]
pub struct PciFunction {
    plugged: Plugged<Function>,
    vm: Arc<Vm>,
    ethernet: bool,
}

impl PciFunction {
    /// Builds the device as a PCI function, which a VM drives, and plugs it in.
    #[must_use]
    pub fn new(device: DeviceBuilder, registration: Registration) -> Self {
        let vm: Arc<Vm> = Arc::default();
        let plugged = device.build_with(|config, device, port| {
            let ethernet = config.link == Link::Ethernet;
            let mut function = Function::new(config.name.clone(), config.guid, ethernet);
            function.vm = Arc::clone(&vm);
            function.caps.set_blue_flame(config.blue_flame);
            function.caps.set_umr(registration == Registration::Umr);
            function.steer(device);
            device.translate_with(Arc::new(Lists(Arc::clone(&function.vm.memory))));
            if ethernet && let Some(address) = port.address_mut() {
                // The driver sets the entries of the GID table.
                address.gids.clear();
            }
            function
        });
        let ethernet = plugged.read_front(|function: &Function| function.ethernet).unwrap_or_default();
        Self { plugged, vm, ethernet }
    }

    /// The device: its port, its counters and the violations of drivers.
    #[must_use]
    pub fn device(&self) -> &Plugged<impl Front<Device> + use<>> {
        &self.plugged
    }

    /// Gives the port an address of this host and a UDP socket, by which it exchanges packets of RoCE version 2 with devices outside of
    /// the fabric. The guest must use the same address.
    ///
    /// # Errors
    /// The host does not have the address; UDP port 4791 of the address is in use; the MTU of the interface is too small; the port is
    /// InfiniBand.
    pub fn attach_udp(&self, ip: IpAddr) -> io::Result<()> {
        self.plugged.attach_udp(UdpPort::bind(ip)?)
    }

    /// The commands of drivers that the device does not have: opcode and count.
    #[must_use]
    pub fn unknown_commands(&self) -> Vec<(u16, u64)> {
        self.plugged.read_front(|f| f.unknown.iter().map(|(op, n)| (*op, *n)).collect()).unwrap_or_default()
    }

    /// As [`PciFunction::unknown_commands`], for registers (`MLX5_REG_*`).
    #[must_use]
    pub fn unknown_registers(&self) -> Vec<(u16, u64)> {
        let list = |f: &Function| f.unknown_registers.iter().map(|(r, n)| (*r, *n)).collect();
        self.plugged.read_front(list).unwrap_or_default()
    }

    /// The name of a command's opcode, if it has one.
    #[must_use]
    pub fn command_name(opcode: u16) -> Option<&'static str> {
        fw::name(opcode)
    }

    pub(crate) fn enter<R>(
        &self,
        f: impl FnOnce(&mut Device, &mut Function, &mut Port<'_>) -> R,
    ) -> Option<R> {
        self.plugged.enter(f)
    }
}

impl uverbs_vfio::Function for PciFunction {
    fn layout(&self) -> Layout {
        Layout {
            id: (VENDOR, DEVICE),
            subsystem: (VENDOR, 1),
            class: if self.ethernet { CLASS } else { CLASS_IB },
            bars: vec![Bar { index: 0, bytes: BAR_BYTES, prefetchable: true }],
            vectors: VECTORS,
            table: (0, 0x2000, 0x3000),
        }
    }

    fn vm(&self) -> &Vm {
        &self.vm
    }

    fn read(&self, _: u8, offset: u64, data: &mut [u8]) {
        if offset >= init_seg::BYTES {
            return;
        }
        let segment = self.enter(|_, function, port| init_seg::read(port.now, function.command_queue.state));
        let rest = segment.as_ref().and_then(|s| s.get(offset as usize..)).unwrap_or_default();
        let len = data.len().min(rest.len());
        data[..len].copy_from_slice(&rest[..len]);
    }

    fn write(&self, _: u8, offset: u64, data: &[u8]) {
        self.enter(|device, function, port| match offset {
            init_seg::QUEUE_HIGH => function.command_queue.set_high(be32(data, 0)),
            init_seg::QUEUE_LOW => function.command_queue.set_low(be32(data, 0)),
            init_seg::DOORBELL => cmdq::doorbell(device, function, port, be32(data, 0)),
            _ if offset < init_seg::BYTES => {}
            _ => uar::write(device, function, port, offset, data),
        });
    }

    fn reset(&self) {
        self.enter(|device, function, port| function.reset(device, port));
    }
}

impl uverbs_vfio::Device for PciFunction {
    type Model = Device;

    const COMMANDS: &'static str = "lid N LID";

    fn name(&self) -> String {
        self.plugged.read_front(|function| function.name.clone()).unwrap_or_default()
    }

    fn plugged(&self) -> Plugged<()> {
        self.plugged.bare()
    }

    fn unknown(&self) -> Vec<String> {
        let name = |opcode| Self::command_name(opcode).unwrap_or("without a name");
        let commands = self.unknown_commands().into_iter();
        let commands = commands.map(|(op, n)| format!("command {op:#x} {}, {n} times", name(op)));
        let registers = self.unknown_registers().into_iter();
        commands.chain(registers.map(|(r, n)| format!("register {r:#x}, {n} times"))).collect()
    }

    fn command(&self, name: &str, args: &[&str]) -> Option<Result<String, String>> {
        match (name, args) {
            ("lid", [lid]) => {
                let set = lid.parse().is_ok_and(|lid| self.plugged.set_lid(lid));
                Some(if set { Ok(String::new()) } else { Err(format!("{lid}: not a valid LID")) })
            }
            _ => None,
        }
    }
}
