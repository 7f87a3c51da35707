// SPDX-License-Identifier: MIT OR Apache-2.0
//! The vfio-user side: regions, interrupts, memory of the VM.

use crate::Vm;
use crate::config::{CONFIG_BYTES, Config, Layout};
use core::panic::AssertUnwindSafe;
use std::fs::File;
use std::io;
use std::panic::catch_unwind;
use std::path::Path;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR5_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

/// A PCI function, as a VM uses it. Nothing that a VM does may panic, or store more than the function's limits.
pub trait Function: Clone + Send + Sync + 'static {
    /// What it is. It does not change.
    fn layout(&self) -> Layout;

    /// Its VM. The server maps memory and sets interrupts, and removes both when the VM disconnects, after a reset.
    fn vm(&self) -> &Vm;

    /// The VM reads at an offset of a BAR, which the layout has. `data` are zeros.
    fn read(&self, bar: u8, offset: u64, data: &mut [u8]);

    /// The VM writes at an offset of a BAR, which the layout has.
    fn write(&self, bar: u8, offset: u64, data: &[u8]);

    /// Resets the function: it does not access the VM until its driver sets it up again.
    fn reset(&self);
}

/// Bytes of an access to a region at most.
const MAX_ACCESS: usize = 1 << 16;

/// The BAR of a region.
fn bar(region: u32) -> Option<u8> {
    (VFIO_PCI_BAR0_REGION_INDEX..=VFIO_PCI_BAR5_REGION_INDEX).contains(&region).then_some(region as u8)
}

fn regions(layout: &Layout) -> Vec<ServerRegion> {
    let region = |index| {
        let bar = bar(index).and_then(|bar| layout.bars.iter().find(|b| b.index == bar));
        let size = match index {
            VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_BYTES,
            _ => bar.map_or(0, |bar| bar.bytes),
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

fn irqs(layout: &Layout) -> Vec<IrqInfo> {
    let irq = |index| match index {
        VFIO_PCI_MSIX_IRQ_INDEX => {
            IrqInfo { index, flags: VFIO_IRQ_INFO_EVENTFD, count: layout.vectors.into() }
        }
        _ => IrqInfo { index, flags: 0, count: 0 },
    };
    (0..VFIO_PCI_NUM_IRQS).map(irq).collect()
}

/// Serves VMs at a socket, one after the other, until `stop` returns true after one has disconnected.
///
/// # Errors
/// The socket can't be created.
pub fn serve(function: &impl Function, socket: &Path, stop: impl Fn() -> bool) -> io::Result<()> {
    let layout = function.layout();
    loop {
        // A socket that a killed server left must be removed, because bind(2) would fail.
        uverbs_fabric::socket::clear(socket)?;
        let config = Config::new(&layout);
        let mut backend = Backend { function: function.clone(), layout: layout.clone(), config };
        let server = Server::new(socket, true, irqs(&layout), regions(&layout)).map_err(io::Error::other)?;
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
struct Backend<F> {
    function: F,
    layout: Layout,
    config: Config,
}

impl<F: Function> Backend<F> {
    /// The BAR of a region, if it has this range.
    fn bar(&self, region: u32, offset: u64, len: usize) -> Option<u8> {
        let index = bar(region)?;
        let bytes = self.layout.bars.iter().find(|bar| bar.index == index)?.bytes;
        offset.checked_add(len as u64).filter(|end| *end <= bytes).map(|_| index)
    }

    /// The VM has disconnected.
    fn leave(&mut self) {
        self.function.reset();
        let vm = self.function.vm();
        vm.vectors.clear();
        vm.memory.unmap_all();
    }
}

/// Ends the connection of a VM that accesses more than a page of registers at a time.
fn check_length(data: &[u8]) -> io::Result<()> {
    if data.len() <= MAX_ACCESS { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

impl<F: Function> ServerBackend for Backend<F> {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        check_length(data)?;
        data.fill(0);
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.config.read(offset, data);
        } else if let Some(bar) = self.bar(region, offset, data.len()) {
            self.function.read(bar, offset, data);
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        check_length(data)?;
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.config.write(offset, data);
        } else if let Some(bar) = self.bar(region, offset, data.len()) {
            self.function.write(bar, offset, data);
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
        if let Some(file) = fd
            && let Err(reason) = self.function.vm().memory.map(address, size, &file, offset)
        {
            log::warn!("the device can't access memory of the VM, {size:#x} bytes at {address:#x}: {reason}");
        }
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.function.vm().memory.unmap(address, size);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.config = Config::new(&self.layout);
        self.function.reset();
        Ok(())
    }

    fn set_irqs(&mut self, index: u32, _: u32, start: u32, count: u32, fds: Vec<File>) -> io::Result<()> {
        if index == VFIO_PCI_MSIX_IRQ_INDEX {
            let max = self.layout.vectors;
            // No vectors: the VM disables the interrupts.
            let count = if count == 0 { max.into() } else { count };
            self.function.vm().vectors.set(max, start, count, fds);
        }
        Ok(())
    }
}
