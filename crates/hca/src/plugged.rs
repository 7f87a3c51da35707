// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handle of a device and its front.

use crate::Fabric;
use crate::engine::Front;
use crate::engine::{Device, Notice, Port, Station, event};
use crate::violation::Violation;
use core::any::Any;
use core::fmt;
use core::marker::PhantomData;
use uverbs_fabric::World;

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

/// The unicast LIDs (InfiniBand specification, 4.1.3).
const UNICAST_LIDS: core::ops::RangeInclusive<u16> = 1..=0xbfff;

impl<F> Plugged<F> {
    /// The device of this number. Its front must be an `F`.
    pub(crate) fn new(fabric: Fabric, index: usize) -> Self {
        Self { fabric, index, front: PhantomData }
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Number of the device in the fabric.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Whether this is the process that created the fabric, and not a child of it.
    pub(crate) fn is_here(&self) -> bool {
        self.fabric.is_here()
    }

    /// Calls `f` with the device, and then processes due packets and timers. `None` if the device does not exist.
    pub(crate) fn enter_device<R>(&self, f: impl FnOnce(&mut Device, &mut Port<'_>) -> R) -> Option<R> {
        self.fabric.enter(|world| {
            let (station, mut port) = world.device(self.index)?;
            Some(f(&mut station.device, &mut port))
        })
    }

    /// Calls `f` with the device. No packets or timers are processed.
    fn read<R>(&self, f: impl FnOnce(&Device) -> R) -> R {
        self.fabric.read(|world| f(&world.read(self.index).expect("a device is never removed").device))
    }

    /// Adds a notice of the port.
    fn note(&self, world: &mut World<Station>, event: u32) {
        if let Some((station, _)) = world.device(self.index) {
            station.device.notices.push(Notice::Port { event });
        }
    }

    /// Takes the port's link down or up. The front gets a notice. While the link is down, packets are lost.
    pub fn set_link_up(&self, up: bool) {
        self.fabric.enter(|world| {
            let port = &mut world.net.ports[self.index];
            if port.up != up {
                port.up = up;
                world.net.changes += 1;
                let event = if up { event::PORT_ACTIVE } else { event::PORT_ERR };
                self.note(world, event);
            }
        });
    }

    /// Changes the LID of an InfiniBand port, as a subnet manager does: the front gets a notice, and packets to the old
    /// LID are lost. `false` if the LID is out of range or that of another port, or the port is not InfiniBand.
    #[must_use]
    pub fn set_lid(&self, lid: u16) -> bool {
        self.fabric.enter(|world| {
            let free = world.net.by_lid(lid).is_none_or(|owner| owner == self.index);
            let port = &mut world.net.ports[self.index];
            if port.ethernet || !UNICAST_LIDS.contains(&lid) || !free {
                return false;
            }
            if port.lid != lid {
                port.lid = lid;
                world.net.changes += 1;
                self.note(world, event::LID_CHANGE);
            }
            true
        })
    }

    /// The number of packets that the port sent and received.
    #[must_use]
    pub fn packets(&self) -> (u64, u64) {
        self.fabric.read(|world| {
            let port = &world.net.ports[self.index];
            (port.sent, port.received)
        })
    }

    /// The number of repeated requests and responses, because packets were lost, duplicated or out of order.
    #[must_use]
    pub fn repairs(&self) -> u64 {
        self.read(|device| device.repairs)
    }

    /// The violations of drivers so far.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.read(|device| device.violations.clone())
    }

    /// Removes and returns the violations that are `wanted`.
    #[must_use]
    pub fn take_violations_if(&self, mut wanted: impl FnMut(&Violation) -> bool) -> Vec<Violation> {
        self.fabric.enter(|world| {
            let device = world.device(self.index).map(|(station, _)| &mut station.device);
            let taken = device
                .map(|device| device.violations.extract_if(.., |violation| wanted(violation)).collect());
            taken.unwrap_or_default()
        })
    }
}

impl<F: Front> Plugged<F> {
    /// Calls `f` with the device, its front and its port, and then processes due packets and timers. `None` is a device
    /// that does not exist or has another front, which no `Plugged` of a [`DeviceBuilder`](crate::DeviceBuilder) is.
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
