// SPDX-License-Identifier: MIT OR Apache-2.0
//! The vfio-user side: regions, interrupts, memory of the VM.

use crate::config::{BAR_BYTES, CONFIG_BYTES, Config, VECTORS};
use crate::{PciFunction, cmdq, init_seg, uar};
use core::panic::AssertUnwindSafe;
use std::fs::File;
use std::io;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;
use uverbs_hca::bytes::be32;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
    vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

/// Bytes of an access to a region at most.
const MAX_ACCESS: usize = 1 << 16;

fn regions() -> Vec<ServerRegion> {
    let region = |index| {
        let size = match index {
            VFIO_PCI_BAR0_REGION_INDEX => BAR_BYTES,
            VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_BYTES,
            _ => 0,
        };
        let flags = if size == 0 { 0 } else { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE };
        let argsz = size_of::<vfio_region_info>() as u32;
        ServerRegion {
            region_info: vfio_region_info { argsz, flags, index, size, ..Default::default() },
            sparse_areas: Vec::new(),
            mmap_fd: None,
        }
    };
    (0..VFIO_PCI_NUM_REGIONS).map(region).collect()
}

fn irqs() -> Vec<IrqInfo> {
    let irq = |index| match index {
        VFIO_PCI_MSIX_IRQ_INDEX => IrqInfo { index, flags: VFIO_IRQ_INFO_EVENTFD, count: VECTORS.into() },
        _ => IrqInfo { index, flags: 0, count: 0 },
    };
    (0..VFIO_PCI_NUM_IRQS).map(irq).collect()
}

/// Serves VMs at a socket, one after the other.
pub(super) fn serve(function: &PciFunction, socket: &Path, stop: impl Fn() -> bool) -> io::Result<()> {
    loop {
        // A socket that a killed server left must be removed, because bind(2) would fail.
        uverbs_hca::socket::clear(socket)?;
        let ethernet = function.enter(|_, f, _| f.ethernet).unwrap_or_default();
        let mut backend = Backend { function: function.clone(), config: Config::new(ethernet) };
        let server = Server::new(socket, true, irqs(), regions()).map_err(io::Error::other)?;
        log::info!("waiting for a VM at {}", socket.display());
        // The protocol's library panics on some malformed messages (a version that is no string): only this VM's connection
        // ends.
        let result = catch_unwind(AssertUnwindSafe(|| server.run(&mut backend)));
        backend.leave();
        match result {
            Err(_) => log::warn!("the VM has sent a malformed message"),
            Ok(Err(error)) => log::warn!("the connection to the VM failed: {error}"),
            Ok(Ok(())) => log::info!("the VM has disconnected"),
        }
        if stop() {
            return Ok(());
        }
    }
}

/// A VM's connection.
struct Backend {
    function: PciFunction,
    config: Config,
}

impl Backend {
    /// The VM has disconnected.
    fn leave(&mut self) {
        self.function.enter(|device, function, port| {
            function.reset(device, port);
            function.vectors.clear();
            function.guest.unmap_all();
        });
    }

    fn write_bar(&mut self, offset: u64, data: &[u8]) {
        self.function.enter(|device, function, port| match offset {
            init_seg::QUEUE_HIGH => function.command_queue.set_high(be32(data, 0)),
            init_seg::QUEUE_LOW => function.command_queue.set_low(be32(data, 0)),
            init_seg::DOORBELL => cmdq::doorbell(device, function, port, be32(data, 0)),
            _ if offset < init_seg::BYTES => {}
            _ => uar::write(device, function, port, offset, data),
        });
    }
}

/// Ends the connection of a VM that accesses more than a page of registers at a time.
fn check_length(data: &[u8]) -> io::Result<()> {
    if data.len() <= MAX_ACCESS { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        check_length(data)?;
        data.fill(0);
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.config.read(offset, data);
        } else if region == VFIO_PCI_BAR0_REGION_INDEX && offset < init_seg::BYTES {
            let segment = self
                .function
                .enter(|_, function, port| init_seg::read(port.now, function.command_queue.state));
            let rest = segment.as_ref().and_then(|s| s.get(offset as usize..)).unwrap_or_default();
            let len = data.len().min(rest.len());
            data[..len].copy_from_slice(&rest[..len]);
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        check_length(data)?;
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.config.write(offset, data);
        } else if region == VFIO_PCI_BAR0_REGION_INDEX {
            self.write_bar(offset, data);
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        _: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        // ROMs have no file, and the device does not access them.
        if let Some(file) = fd {
            let guest = self.function.enter(|_, function, _| Arc::clone(&function.guest)).unwrap_or_default();
            if let Err(reason) = guest.map(address, size, &file, offset) {
                log::warn!(
                    "the device can't access memory of the VM, {size:#x} bytes at {address:#x}: {reason}"
                );
            }
        }
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.function.enter(|_, function, _| function.guest.unmap(address, size));
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.config = Config::new(self.function.enter(|_, f, _| f.ethernet).unwrap_or_default());
        self.function.enter(|device, function, port| function.reset(device, port));
        Ok(())
    }

    fn set_irqs(&mut self, index: u32, _: u32, start: u32, count: u32, fds: Vec<File>) -> io::Result<()> {
        if index == VFIO_PCI_MSIX_IRQ_INDEX {
            self.function.enter(|_, function, _| {
                // No vectors: the VM disables the interrupts.
                let count = if count == 0 { VECTORS.into() } else { count };
                function.vectors.set(start, count, fds);
            });
        }
        Ok(())
    }
}
