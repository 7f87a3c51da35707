// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's state of a device: what a driver of the kernel stores and does, and the destruction of its objects.

use crate::handles::Reported;
use crate::object::Object;
use crate::tables::Tables;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::error::Error;
use uverbs_core::kernel::{CmPort, DoorbellPort, Mapping, Protection, RawCommand};
use uverbs_fabric::{Front, Hosts as _, Model, Plugged, Port};

/// The clock and the network, for a device of a driver.
pub type PortOf<'n, D> = Port<'n, <<D as Driver>::Model as Model>::Packet>;
/// The handle of a device whose front is a driver.
pub type PluggedOf<D> = Plugged<<D as Driver>::Model, D>;
/// What a driver stores with each context.
pub type DataOf<D> = <<D as Driver>::Object as Object>::Data;

/// What a call into a device has: the device, the kernel's state of it, its port, and the context of the caller.
#[derive(Debug)]
pub struct Entered<'w, 'n, D: Driver> {
    /// The device.
    pub device: &'w mut D::Model,
    /// The kernel's state.
    pub state: &'w mut D,
    /// The port.
    pub port: &'w mut PortOf<'n, D>,
    /// The number of the context.
    pub context: u32,
}

/// The kernel's state of a device, which is its front: the contexts, and what a driver of the kernel stores.
pub trait Driver: Front<Self::Model> + Sized {
    /// The device.
    type Model: Model;
    /// The objects of a context.
    type Object: Object;
    /// `RDMA_DRIVER_*`
    const ID: u32;
    /// Whether programs can read the clock of the device.
    const HAS_CLOCK: bool;

    /// The contexts.
    fn tables(&self) -> &Tables<Self::Object>;

    /// As [`tables`](Self::tables), to change them.
    fn tables_mut(&mut self) -> &mut Tables<Self::Object>;

    /// Whether the device uses an object, which has no users among the objects of its context.
    fn is_busy(&self, device: &Self::Model, port: &PortOf<'_, Self>, object: &Self::Object) -> bool;

    /// Removes an object, which was taken from a context, from the device.
    fn undo(
        &mut self,
        device: &mut Self::Model,
        port: &mut PortOf<'_, Self>,
        context: u32,
        object: Self::Object,
    );

    /// The place of an object in the order in which the objects of a context are destroyed: each comes before those that it uses.
    fn order(object: &Self::Object) -> u8;

    /// A context was closed, whose objects were destroyed before.
    fn closed(&mut self, device: &mut Self::Model, context: u32, data: DataOf<Self>);

    /// Executes a command.
    ///
    /// # Errors
    /// Those of the kernel.
    fn run(entered: Entered<'_, '_, Self>, command: &mut RawCommand<'_, '_>) -> Result<(), Errno>;

    /// Maps memory.
    ///
    /// # Errors
    /// The context has no such mapping.
    fn map(
        entered: Entered<'_, '_, Self>,
        offset: u64,
        len: usize,
        protection: Protection,
    ) -> Result<Mapping, Errno>;

    /// Maps a page of doorbells.
    ///
    /// # Errors
    /// The context has no such page.
    fn doorbells(
        entered: Entered<'_, '_, Self>,
        plugged: &PluggedOf<Self>,
        offset: u64,
        len: usize,
    ) -> Result<Arc<dyn DoorbellPort>, Errno>;

    /// Reads a file below the directory of the device in sysfs.
    ///
    /// # Errors
    /// There is no such file.
    fn attribute(entered: Entered<'_, '_, Self>, path: &str) -> Result<Vec<u8>, Errno>;

    /// Opens an event channel of the connection manager of the device's host.
    ///
    /// # Errors
    /// The process has too many open files, or the device has no connection manager, as by default.
    fn connection_manager(_: &PluggedOf<Self>) -> uverbs_core::Result<Arc<dyn CmPort>> {
        Err(Error::os("open", "connection manager", Errno::ENOENT))
    }

    /// Destroys an object, if `is` is true for it.
    ///
    /// # Errors
    /// There is no such object (`ENOENT`), or it is in use (`EBUSY`).
    fn destroy(
        &mut self,
        device: &mut Self::Model,
        port: &mut PortOf<'_, Self>,
        context: u32,
        handle: u32,
        is: impl Fn(&Self::Object) -> bool,
    ) -> Result<Reported, Errno> {
        self.tables_mut().unused(context, handle, is)?;
        if self.is_busy(device, port, self.tables().get(context, handle)?) {
            return Err(Errno::EBUSY);
        }
        self.remove(device, port, context, handle)
    }

    /// Destroys an object, which nothing uses.
    ///
    /// # Errors
    /// There is no such object.
    fn remove(
        &mut self,
        device: &mut Self::Model,
        port: &mut PortOf<'_, Self>,
        context: u32,
        handle: u32,
    ) -> Result<Reported, Errno> {
        // The device's notices about the object must be in the files before its events are removed from them.
        self.deliver(device);
        let (object, reported) = self.tables_mut().take(context, handle)?;
        self.undo(device, port, context, object);
        Ok(reported)
    }

    /// Closes the device file: destroys all objects, each before the objects that it uses.
    fn close(&mut self, device: &mut Self::Model, port: &mut PortOf<'_, Self>, context: u32) {
        port.drain(device);
        let Some(handles) = self.tables_mut().begin_close(context, Self::order) else { return };
        for handle in handles {
            let _ = self.remove(device, port, context, handle);
        }
        let data = self.tables_mut().close(context).unwrap_or_default();
        self.closed(device, context, data);
    }

    /// Ends all contexts, with an event if the device is removed.
    fn end_all(&mut self, device: &mut Self::Model, port: &mut PortOf<'_, Self>, is_removed: bool) {
        self.deliver(device);
        for number in self.tables().numbers() {
            let files = self.tables_mut().take_asyncs(number);
            self.close(device, port, number);
            self.tables_mut().end(number, files, is_removed);
        }
        self.tables_mut().end_channels(is_removed);
        if is_removed && let Some(address) = port.address_mut() {
            address.up = false;
        }
    }
}

/// Removes a device while its contexts are open.
pub fn unplug<D: Driver>(plugged: &PluggedOf<D>) {
    plugged.enter(|device, state, port| state.end_all(device, port, true));
    plugged.fabric().enter(|world| world.hosts.unplug(&world.net, world.now, plugged.index()));
}

/// Ends all contexts of a device, as if their processes had died.
pub fn kill<D: Driver>(plugged: &PluggedOf<D>) {
    plugged.enter(|device, state, port| state.end_all(device, port, false));
    plugged.fabric().enter(|world| world.hosts.kill(&world.net, world.now, plugged.index()));
}

/// A doorbell on a page of a context. It has no effect in a child of fork(2), where the device does not exist, and after the end
/// of the context: the kernel replaces the pages of a removed device by pages without a device.
pub fn ring<D: Driver>(
    plugged: &PluggedOf<D>,
    context: u32,
    f: impl FnOnce(&mut D::Model, &mut PortOf<'_, D>),
) {
    if plugged.is_here() {
        plugged.enter_beside(|device, state, port| {
            if !state.tables().has_ended(context) {
                f(device, port);
            }
        });
    }
}
