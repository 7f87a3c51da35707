// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handle of a PCI function.

use crate::pages::Lists;
use crate::state::Function;
use crate::{fw, server};
use std::path::Path;
use std::sync::Arc;
use uverbs_hca::front::{Device, Front, Plugged, Port};
use uverbs_hca::{DeviceBuilder, Link};

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
}

impl PciFunction {
    /// Builds the device as a PCI function, which a VM drives, and plugs it in.
    #[must_use]
    pub fn new(device: DeviceBuilder, registration: Registration) -> Self {
        let plugged = device.build_with(|config, device, port| {
            let ethernet = config.link == Link::Ethernet;
            let mut function = Function::new(config.name.clone(), config.guid, ethernet);
            function.caps.set_blue_flame(config.blue_flame);
            function.caps.set_umr(registration == Registration::Umr);
            function.steer(device);
            device.translate_with(Arc::new(Lists(Arc::clone(&function.guest))));
            if ethernet && let Some(address) = port.address_mut() {
                // The driver sets the entries of the GID table.
                address.gids.clear();
            }
            function
        });
        Self { plugged }
    }

    /// The device: its port, its counters and the violations of drivers.
    #[must_use]
    pub fn device(&self) -> &Plugged<impl Front + use<>> {
        &self.plugged
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.plugged.read_front(|function| function.name.clone()).unwrap_or_default()
    }

    /// Serves VMs at a socket, one after the other, until `stop` returns true after one has disconnected.
    ///
    /// # Errors
    ///
    /// The socket can't be created, or a connection failed.
    pub fn serve(&self, socket: &Path, stop: impl Fn() -> bool) -> std::io::Result<()> {
        server::serve(self, socket, stop)
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
