// SPDX-License-Identifier: MIT OR Apache-2.0
//! The software EFA as a PCI function: the unmodified Linux `efa` of a VM binds to it. It is served over vfio-user.
//!
//! A [`PciFunction`] gives the registers and queues of [`uverbs_efa_device::function`] a bus: the memory and the interrupts of a VM.
//! The send rings are memory of this process, the BAR that drivers map write-combined. A thread sends the signs of life.
//!
//! The program `uverbs-efa` of this package provides such functions to QEMU.

#[cfg(test)]
mod tests;

use core::time::Duration;
use std::sync::{Arc, Weak};
use uverbs_efa_device::device::Port;
use uverbs_efa_device::function::bus::Bus;
use uverbs_efa_device::function::{DOORBELL_BAR, DOORBELL_BYTES, Function, REGISTER_BYTES};
use uverbs_efa_device::{DeviceBuilder, Plugged, device};
use uverbs_fabric::memory::{Fault, Memory};
use uverbs_vfio::{Bar, Layout, Mapped, Vm};

/// `PCI_VENDOR_ID_AMAZON`
const VENDOR: u16 = 0x1d0f;
/// Network controller, Ethernet.
const CLASS: u32 = 0x02_0000;
/// The BARs of registers and of send rings (`EFA_REG_BAR`, `EFA_MEM_BAR` of `efa_main.c`).
const REGISTERS: u8 = 0;
const SEND_RINGS: u8 = 2;
const DOORBELLS: u8 = DOORBELL_BAR as u8;
/// MSI-X vectors: one for commands and asynchronous events, and one for each event queue.
const VECTORS: u16 = 33;
/// Offsets of their table and pending bits, behind the registers.
const TABLE: u32 = 0x1000;
const PENDING: u32 = 0x1800;
/// The time between signs of life. Amazon's documents have none; the driver waits for several seconds.
const ALIVE: Duration = Duration::from_secs(1);

/// The machine of a function: its VM.
#[derive(Debug)]
struct Machine(Arc<Vm>);

impl Bus for Machine {
    fn read(&self, addr: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.0.memory.read(addr, to)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), Fault> {
        self.0.memory.write(addr, from)
    }

    fn publish(&self, addr: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.0.memory.publish(addr, bytes)
    }

    fn interrupt(&self, vector: u8) {
        self.0.vectors.raise(vector.into());
    }
}

/// A device as a PCI function. Clones refer to the same device.
#[derive(Clone, Debug)]
pub struct PciFunction {
    plugged: Plugged<Function>,
    vm: Arc<Vm>,
    llq: Arc<Mapped>,
    name: String,
    pci_device: u16,
}

impl PciFunction {
    /// Builds the device as a PCI function, which a VM drives, and plugs it in.
    ///
    /// # Errors
    /// There is no memory for the send rings, or no thread.
    pub fn new(device: DeviceBuilder) -> std::io::Result<Self> {
        let vm: Arc<Vm> = Arc::default();
        let llq = Arc::new(Mapped::zeros(Function::llq_bytes(&device.caps()))?);
        let (bus, ring): (Arc<dyn Bus>, _) = (Arc::new(Machine(Arc::clone(&vm))), Arc::clone(&llq));
        let mut identity = (String::new(), 0);
        let plugged = device.build_with(|config, device, _| {
            identity = (config.name, device.caps.pci_device);
            Function::new(config.guid, bus, ring)
        });
        let (name, pci_device) = identity;
        let this = Self { plugged, vm, llq, name, pci_device };
        this.live(&Arc::downgrade(&this.vm))?;
        Ok(this)
    }

    /// Sends signs of life while the function exists.
    fn live(&self, exists: &Weak<Vm>) -> std::io::Result<()> {
        let (plugged, exists) = (self.plugged.clone(), exists.clone());
        let thread = std::thread::Builder::new().name("efa".into());
        thread.spawn(move || {
            while exists.strong_count() > 1 {
                std::thread::sleep(ALIVE);
                plugged.enter(|_, function, port| function.keep_alive(port.now));
            }
        })?;
        Ok(())
    }

    fn enter<R>(&self, f: impl FnOnce(&mut device::Device, &mut Function, &mut Port<'_>) -> R) -> Option<R> {
        self.plugged.enter(f)
    }
}

impl uverbs_vfio::Function for PciFunction {
    fn layout(&self) -> Layout {
        let bar =
            |index, bytes: u64, prefetchable| Bar { index, bytes: bytes.next_power_of_two(), prefetchable };
        Layout {
            id: (VENDOR, self.pci_device),
            subsystem: (VENDOR, self.pci_device),
            class: CLASS,
            bars: vec![
                bar(REGISTERS, REGISTER_BYTES, false),
                bar(SEND_RINGS, self.llq.len(), true),
                bar(DOORBELLS, DOORBELL_BYTES, false),
            ],
            vectors: VECTORS,
            table: (REGISTERS, TABLE, PENDING),
        }
    }

    fn vm(&self) -> &Vm {
        &self.vm
    }

    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        match bar {
            REGISTERS if let (Ok(offset), 4) = (u32::try_from(offset), data.len()) => {
                let value = self.plugged.read_front(|function| function.read_register(offset));
                data.copy_from_slice(&value.unwrap_or_default().to_le_bytes());
            }
            // The rest of a BAR whose size was rounded up has no memory, and is 0.
            SEND_RINGS => drop(self.llq.read(offset, data)),
            _ => {}
        }
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) {
        let value = <[u8; 4]>::try_from(data).map(u32::from_le_bytes);
        match (bar, value) {
            (SEND_RINGS, _) => drop(self.llq.write(offset, data)),
            (REGISTERS, Ok(value)) if let Ok(offset) = u32::try_from(offset) => {
                self.enter(|device, function, port| function.write_register(device, port, offset, value));
            }
            (DOORBELLS, Ok(value)) => {
                self.enter(|device, function, port| function.write_doorbell(device, port, offset, value));
            }
            _ => log::debug!("{}: a write of {} bytes to {offset:#x} of BAR {bar}", self.name, data.len()),
        }
    }

    fn reset(&self) {
        self.enter(|device, function, port| function.power_up(device, port));
    }
}

impl uverbs_vfio::Device for PciFunction {
    type Model = device::Device;

    const COMMANDS: &'static str = "stop N; go N; fatal N";

    fn name(&self) -> String {
        self.name.clone()
    }

    fn plugged(&self) -> Plugged<()> {
        self.plugged.bare()
    }

    fn command(&self, name: &str, args: &[&str]) -> Option<Result<String, String>> {
        if !args.is_empty() {
            return None;
        }
        self.enter(|device, function, port| match name {
            "stop" => function.set_stopped(device, port, true),
            "go" => function.set_stopped(device, port, false),
            _ => function.fail(port.now),
        });
        Some(Ok(String::new()))
    }
}
