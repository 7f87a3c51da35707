// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device with its front, as the fabric calls it, and the handle of both.

use crate::device::{Device, Port, QpKind};
use crate::packet::Packet;
use crate::violation::Violation;
use crate::{DeviceBuilder, Fabric};
use core::any::Any;
use core::fmt;
use core::marker::PhantomData;
use uverbs_fabric::model::Wait;
use uverbs_fabric::{Model, Timer};

/// The front of a device: it answers the driver's control path, and passes the device's notices on.
pub trait Front: Any + Send + fmt::Debug {
    /// Passes the device's notices on to the driver. It is called often, also if there are none.
    fn deliver(&mut self, device: &mut Device);

    /// Whether the driver has not yet taken notices that were passed on. Then `deliver` is called again soon.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Whether the driver runs in a VM.
    fn is_in_vm(&self) -> bool {
        false
    }
}

/// A device and its front.
#[derive(Debug)]
pub struct Station {
    pub(crate) device: Device,
    pub(crate) front: Box<dyn Front>,
}

impl Model for Station {
    type Packet = Packet;
    type Hosts = ();
    type Builder = DeviceBuilder;

    fn builder(fabric: &Fabric, name: &str) -> DeviceBuilder {
        DeviceBuilder::new(fabric, name)
    }

    fn receive(&mut self, port: &mut Port<'_>, packet: Packet) {
        self.device.receive(port, packet);
    }

    fn timer(&mut self, queue: u32) -> Option<(&mut Timer, Wait)> {
        let qp = self.device.qp_of_timer(queue)?;
        let wait = match Device::waits_for_receives(qp) {
            Some(for_ever) => Wait::Receiver { for_ever },
            None if qp.kind == QpKind::Srd => Wait::Answer,
            None => Wait::Other,
        };
        Some((&mut qp.timer, wait))
    }

    fn timeout(&mut self, port: &mut Port<'_>, queue: u32) {
        self.device.timeout(port, queue);
    }

    fn tidy(&mut self, port: &mut Port<'_>, _: usize) {
        self.device.cancelled.drain(..).for_each(|entry| port.net.cancel(entry));
    }

    fn deliver(&mut self) {
        self.front.deliver(&mut self.device);
    }

    fn has_work(&self) -> bool {
        self.front.has_backlog()
    }

    fn forget(&mut self, _: &mut Port<'_>, slot: usize) {
        self.device.forget_slot(slot);
    }

    fn is_in_vm(&self) -> bool {
        self.front.is_in_vm()
    }
}

/// A device of a fabric with its front. Clones refer to the same device.
pub struct Plugged<F> {
    fabric: Fabric,
    /// Number of the device in the fabric.
    index: usize,
    front: PhantomData<fn() -> F>,
}

impl<F> Clone for Plugged<F> {
    fn clone(&self) -> Self {
        Self::new(self.fabric.clone(), self.index)
    }
}

impl<F> fmt::Debug for Plugged<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugged").field("fabric", &self.fabric).field("index", &self.index).finish()
    }
}

impl<F> Plugged<F> {
    pub(crate) fn new(fabric: Fabric, index: usize) -> Self {
        Self { fabric, index, front: PhantomData }
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Whether this is the process that created the fabric, and not a child of it.
    pub(crate) fn is_here(&self) -> bool {
        self.fabric.is_here()
    }

    /// Calls `f` with the device, and then processes due packets and timers. `None` if the device does not exist.
    pub fn enter_device<R>(&self, f: impl FnOnce(&mut Device, &mut Port<'_>) -> R) -> Option<R> {
        self.fabric.enter(|world| {
            let (station, mut port) = world.device(self.index)?;
            Some(f(&mut station.device, &mut port))
        })
    }

    /// The number of packets that the port sent and received.
    #[must_use]
    pub fn packets(&self) -> (u64, u64) {
        self.fabric
            .read(|world| world.net.ports.get(self.index).map_or((0, 0), |port| (port.sent, port.received)))
    }

    /// The violations of drivers so far.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.fabric
            .read(|world| world.read(self.index).map(|s| s.device.violations.clone()).unwrap_or_default())
    }

    /// Removes and returns the violations that are `wanted`.
    #[must_use]
    pub fn take_violations_if(&self, mut wanted: impl FnMut(&Violation) -> bool) -> Vec<Violation> {
        let taken = self.enter_device(|device, _| device.violations.extract_if(.., |v| wanted(v)).collect());
        taken.unwrap_or_default()
    }
}

impl<F: Front> Plugged<F> {
    /// Calls `f` with the device, its front and its port, and then processes due packets and timers. `None` is a device
    /// that does not exist or has another front, which no `Plugged` of a [`DeviceBuilder`] is.
    pub fn enter<R>(&self, f: impl FnOnce(&mut Device, &mut F, &mut Port<'_>) -> R) -> Option<R> {
        self.fabric.enter(|world| {
            let (Station { device, front }, mut port) = world.device(self.index)?;
            let front: &mut dyn Any = &mut **front;
            Some(f(device, front.downcast_mut()?, &mut port))
        })
    }

    /// Calls `f` with the front's state. No packets or timers are processed.
    pub fn read_front<R>(&self, f: impl FnOnce(&F) -> R) -> Option<R> {
        self.fabric.read(|world| {
            let front: &dyn Any = &*world.read(self.index)?.front;
            front.downcast_ref().map(f)
        })
    }
}
