// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock and the network, as a device uses them.

use crate::model::Packet;
use crate::net::{Address, MAX_MEMBERSHIPS, Net};

/// The arguments of a call into a device: the clock and the network.
#[derive(Debug)]
pub struct Port<'a, P> {
    /// The clock, ns.
    pub now: u64,
    /// Number of the device in the fabric.
    pub me: usize,
    /// The network.
    pub net: &'a mut Net<P>,
}

impl<P: Packet> Port<'_, P> {
    /// The port's addresses. `None` if the device is not in the fabric.
    #[must_use]
    pub fn address(&self) -> Option<&Address> {
        self.net.ports.get(self.me)
    }

    /// As [`Port::address`], mutable.
    #[must_use]
    pub fn address_mut(&mut self) -> Option<&mut Address> {
        self.net.changes += 1;
        self.net.ports.get_mut(self.me)
    }

    /// Adds a QP of the device to a multicast group; `false` if it is already a member.
    pub fn join(&mut self, group: [u8; 16], qpn: u32) -> bool {
        self.net.join(group, self.me, qpn)
    }

    /// Whether another QP of the device may join a multicast group: a group has a limit, and the groups of the device.
    #[must_use]
    pub fn has_room(&self, group: &[u8; 16]) -> bool {
        self.net.has_room(group, self.me) && self.net.memberships(self.me) < MAX_MEMBERSHIPS
    }

    /// Removes a QP from a multicast group; `false` if it is not a member.
    pub fn leave(&mut self, group: [u8; 16], qpn: u32) -> bool {
        self.net.leave(group, self.me, qpn)
    }

    /// Whether a QP of the device is in any multicast group.
    #[must_use]
    pub fn is_member(&self, qpn: u32) -> bool {
        self.net.is_member(self.me, qpn)
    }

    /// The number of packets in flight in the fabric.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.net.in_flight()
    }
}
