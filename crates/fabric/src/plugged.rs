// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handle of a device and its front.

use crate::fabric::Fabric;
use crate::front::Front;
use crate::model::{Model, PortEvent};
use crate::net::Address;
use crate::port::Port;
use crate::ring::{Queue, RingDump};
use crate::stat::Stat;
use crate::udp::{UdpPort, UdpStat};
use crate::violation::Violation;
use crate::world::World;
use core::any::Any;
use core::fmt;
use core::marker::PhantomData;

/// A device of a fabric with its front. Clones refer to the same device.
pub struct Plugged<M: Model, F> {
    fabric: Fabric<M>,
    /// Number of the device in the fabric.
    index: usize,
    front: PhantomData<fn() -> F>,
}

impl<M: Model, F> Clone for Plugged<M, F> {
    fn clone(&self) -> Self {
        Self::new(self.fabric.clone(), self.index)
    }
}

impl<M: Model, F> fmt::Debug for Plugged<M, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugged").field("fabric", &self.fabric).field("index", &self.index).finish()
    }
}

/// The unicast LIDs (InfiniBand specification, 4.1.3).
const UNICAST_LIDS: core::ops::RangeInclusive<u16> = 1..=0xbfff;

impl<M: Model, F> Plugged<M, F> {
    /// The device of this number. Its front must be an `F`.
    pub(crate) fn new(fabric: Fabric<M>, index: usize) -> Self {
        Self { fabric, index, front: PhantomData }
    }

    /// The handle of the device, without its front.
    #[must_use]
    pub fn bare(&self) -> Plugged<M, ()> {
        Plugged::new(self.fabric.clone(), self.index)
    }

    /// The fabric.
    #[must_use]
    pub fn fabric(&self) -> &Fabric<M> {
        &self.fabric
    }

    /// Number of the device in the fabric.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether this is the process that created the fabric, and not a child of it.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.fabric.is_here()
    }

    /// Calls `f` with the device, and then processes due packets and timers. `None` if the device does not exist.
    pub fn enter_device<R>(&self, f: impl FnOnce(&mut M, &mut Port<'_, M::Packet>) -> R) -> Option<R> {
        self.fabric.enter(|world| {
            let (device, mut port) = world.device(self.index)?;
            Some(f(device, &mut port))
        })
    }

    /// As [`enter_device`](Self::enter_device), [beside](Fabric::enter_beside) the copies of long messages.
    pub fn enter_device_beside<R>(&self, f: impl FnOnce(&mut M, &mut Port<'_, M::Packet>) -> R) -> Option<R> {
        self.fabric.enter_beside(|world| {
            let (device, mut port) = world.device(self.index)?;
            Some(f(device, &mut port))
        })
    }

    /// Calls `f` with the device. No packets or timers are processed.
    pub fn read_device<R>(&self, f: impl FnOnce(&M) -> R) -> R {
        self.read(|device, _| f(device))
    }

    /// Calls `f` with the device and its port's addresses. No packets or timers are processed.
    fn read<R>(&self, f: impl FnOnce(&M, &Address) -> R) -> R {
        self.fabric.read(|world| {
            f(world.read(self.index).expect("a device is never removed"), &world.net.ports[self.index])
        })
    }

    /// Tells the device that its port has changed.
    fn port_event(&self, world: &mut World<M>, event: PortEvent) {
        world.net.changes += 1;
        if let Some((device, _)) = world.device(self.index) {
            device.port_event(event);
        }
    }

    /// Takes the port's link down or up. The front gets a notice. While the link is down, packets are lost.
    pub fn set_link_up(&self, up: bool) {
        self.fabric.enter(|world| {
            let port = &mut world.net.ports[self.index];
            if core::mem::replace(&mut port.up, up) != up {
                self.port_event(world, if up { PortEvent::Active } else { PortEvent::Error });
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
            if core::mem::replace(&mut port.lid, lid) != lid {
                self.port_event(world, PortEvent::LidChange);
            }
            true
        })
    }

    /// Adds a GID to the port's table, of RoCE version 2 on Ethernet, and returns its index. The front gets a notice.
    pub fn add_gid(&self, gid: [u8; 16]) -> usize {
        self.fabric.enter(|world| {
            let port = &mut world.net.ports[self.index];
            port.gids.push((gid, port.ethernet));
            let index = port.gids.len() - 1;
            self.port_event(world, PortEvent::GidChange);
            index
        })
    }

    /// Gives the port a UDP socket, by which it exchanges packets of RoCE version 2 with devices outside of the fabric: see
    /// [`udp`](crate::udp). The GID of the socket's address must be in its table.
    ///
    /// # Errors
    /// The port is InfiniBand, or has a socket already; the fabric is deterministic; no thread can be started.
    pub fn attach_udp(&self, port: UdpPort) -> std::io::Result<()> {
        self.fabric.attach_udp(self.index, port)
    }

    /// What the port exchanged by its UDP socket, if it has one.
    #[must_use]
    pub fn udp_stat(&self) -> Option<UdpStat> {
        self.fabric.read(|world| world.outside.of(self.index).map(|link| link.stat()))
    }

    /// The number of packets that the port sent and received.
    #[must_use]
    pub fn packets(&self) -> (u64, u64) {
        self.read(|_, port| (port.sent, port.received))
    }

    /// The number of packets that the device repeated, because packets were lost, duplicated or out of order.
    #[must_use]
    pub fn repairs(&self) -> u64 {
        self.read(|device, _| device.repairs())
    }

    /// The port and the QPs of the device, for an operator.
    #[must_use]
    pub fn stat(&self) -> Stat<M::QpKind> {
        self.read(|device, port| Stat {
            up: port.up,
            sent: port.sent,
            received: port.received,
            repairs: device.repairs(),
            qps: device.qp_stats(),
        })
    }

    /// The memory of a queue of a QP at this time; `None` if there is none.
    #[must_use]
    pub fn queue(&self, qpn: u32, queue: Queue) -> Option<RingDump> {
        self.read(|device, _| device.queue(qpn, queue))
    }

    /// The violations of drivers so far.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation<M::Object, M::Mistake>> {
        self.read(|device, _| device.violations().all().to_vec())
    }

    /// Removes and returns the violations that are `wanted`.
    #[must_use]
    pub fn take_violations_if(
        &self,
        wanted: impl FnMut(&Violation<M::Object, M::Mistake>) -> bool,
    ) -> Vec<Violation<M::Object, M::Mistake>> {
        self.enter_device(|device, _| device.violations_mut().take_if(wanted)).unwrap_or_default()
    }
}

impl<M: Model, F: Front<M>> Plugged<M, F> {
    /// Calls `f` with the device, its front and its port, and then processes due packets and timers. `None` is a device
    /// that does not exist or has another front, which no `Plugged` of [`Fabric::plug`] is.
    pub fn enter<R>(&self, f: impl FnOnce(&mut M, &mut F, &mut Port<'_, M::Packet>) -> R) -> Option<R> {
        self.enter_if(true, f)
    }

    /// As [`enter`](Self::enter), [beside](Fabric::enter_beside) the copies of long messages.
    pub fn enter_beside<R>(
        &self,
        f: impl FnOnce(&mut M, &mut F, &mut Port<'_, M::Packet>) -> R,
    ) -> Option<R> {
        self.enter_if(false, f)
    }

    /// As [`enter`](Self::enter) if `f` must wait for the copies of long messages, or [`enter_beside`](Self::enter_beside).
    pub fn enter_if<R>(
        &self,
        waits: bool,
        f: impl FnOnce(&mut M, &mut F, &mut Port<'_, M::Packet>) -> R,
    ) -> Option<R> {
        self.fabric.enter_if(waits, |world| {
            let (station, mut port) = world.station(self.index)?;
            let front: &mut dyn Any = &mut *station.front;
            Some(f(&mut station.device, front.downcast_mut()?, &mut port))
        })
    }

    /// Calls `f` with the front's state. No packets or timers are processed.
    pub fn read_front<R>(&self, f: impl FnOnce(&F) -> R) -> Option<R> {
        self.fabric.read(|world| {
            let front: &dyn Any = world.front(self.index)?;
            front.downcast_ref().map(f)
        })
    }
}
