// SPDX-License-Identifier: MIT OR Apache-2.0
//! The network between the devices of a fabric: addresses, delivery in the order of the clock, faults from a seed.

use super::packet::Packet;
use std::collections::BTreeMap;

/// The faults of the network. A probability is from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    pub(crate) reorder: f64,
    /// The delay of a packet, ns.
    pub(crate) delay: u64,
}

/// The additional delay of a reordered packet, ns.
const REORDER_NS: u64 = 20_000;

/// The location of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PortLocation {
    /// In this process.
    #[default]
    Here,
    /// In another process, over this connection.
    Away { link: u32 },
    /// Nowhere, because the connection is lost. The slot can be used again.
    Gone,
}

/// A port's addresses.
#[derive(Clone, Debug)]
pub struct Address {
    pub(crate) ethernet: bool,
    /// LID, of an InfiniBand port.
    pub lid: u16,
    /// MAC address, of an Ethernet port.
    pub mac: [u8; 6],
    /// GIDs by index, with `true` for RoCE version 2.
    pub gids: Vec<([u8; 16], bool)>,
    /// Whether the link is up.
    pub up: bool,
    /// The numbers of packets that were sent and received.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) location: PortLocation,
    /// Its number in the fabric, which is unique among the ports of all processes.
    pub(crate) number: u16,
}

impl Address {
    pub(crate) fn has_gid(&self, gid: &[u8; 16]) -> bool {
        // An unused entry is zeros.
        *gid != [0; 16] && self.gids.iter().any(|(g, _)| g == gid)
    }
}

/// The network.
#[derive(Debug, Default)]
pub(crate) struct Net {
    pub(crate) ports: Vec<Address>,
    pub(crate) faults: Faults,
    /// Members of multicast groups: group, device, QP.
    groups: Vec<([u8; 16], usize, u32)>,
    packets: BTreeMap<(u64, u64), (usize, Packet)>,
    timers: BTreeMap<(u64, u64), (usize, u32)>,
    sequence: u64,
    seed: u64,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The next number of the seed's sequence (SplitMix64).
    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.seed ^ self.seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn chance(&mut self, p: f64) -> bool {
        // No number is drawn for a probability of 0, so that a disabled fault does not change the sequence.
        p > 0.0 && ((self.random() >> 11) as f64) / ((1_u64 << 53) as f64) < p
    }

    /// Whether a message of a connection manager, which is not a packet here, is lost on its way.
    pub(crate) fn loses(&mut self, from: usize, to: usize) -> bool {
        let up = |i: usize| self.ports.get(i).is_some_and(|p| p.up);
        let is_cut = from != to && !(up(from) && up(to));
        is_cut || self.chance(self.faults.loss)
    }

    /// Sends a packet to a device.
    pub(crate) fn send(&mut self, now: u64, to: usize, packet: Packet) {
        if let Some(port) = self.ports.get_mut(packet.from) {
            port.sent += 1;
        }
        let up = |i: usize| self.ports.get(i).is_some_and(|p| p.up);
        // A port that is down still reaches itself, as on hardware.
        if to != packet.from && !(up(to) && up(packet.from)) {
            return;
        }
        let faults = self.faults;
        if self.chance(faults.loss) {
            return;
        }
        if self.chance(faults.duplicate) {
            self.queue(now, to, packet.clone());
        }
        self.queue(now, to, packet);
    }

    fn queue(&mut self, now: u64, to: usize, packet: Packet) {
        let mut at = now.saturating_add(self.faults.delay);
        if self.chance(self.faults.reorder) {
            at = at.saturating_add(1 + self.random() % REORDER_NS);
        }
        self.sequence += 1;
        self.packets.insert((at, self.sequence), (to, packet));
    }

    /// The time of the next packet or timer.
    pub(crate) fn next_packet(&self) -> Option<u64> {
        self.packets.keys().next().map(|(at, _)| *at)
    }

    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    /// The number of packets in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.packets.len()
    }

    /// The number of entries of timers.
    #[cfg(test)]
    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// The first packet that is due by `until`, with its time and device.
    pub(crate) fn pop_packet(&mut self, until: u64) -> Option<(u64, usize, Packet)> {
        let key = *self.packets.keys().next().filter(|(at, _)| *at <= until)?;
        let (to, packet) = self.packets.remove(&key)?;
        if let Some(port) = self.ports.get_mut(to) {
            port.received += 1;
        }
        Some((key.0, to, packet))
    }

    /// Sets a timer of a QP.
    pub(crate) fn wake(&mut self, at: u64, device: usize, qpn: u32) {
        self.sequence += 1;
        self.timers.insert((at, self.sequence), (device, qpn));
    }

    /// The first timer that is due by `until`.
    pub(crate) fn pop_timer(&mut self, until: u64) -> Option<(u64, usize, u32)> {
        let key = *self.timers.keys().next().filter(|(at, _)| *at <= until)?;
        let (device, qpn) = self.timers.remove(&key)?;
        Some((key.0, device, qpn))
    }

    /// The device with this GID.
    pub(crate) fn by_gid(&self, gid: &[u8; 16]) -> Option<usize> {
        self.ports.iter().position(|p| p.has_gid(gid))
    }

    pub(crate) fn by_lid(&self, lid: u16) -> Option<usize> {
        self.ports.iter().position(|p| !p.ethernet && p.lid == lid)
    }

    /// The device that receives a packet on InfiniBand. Switches forward by the LID. If the packet has a GRH, the port
    /// drops it unless the GID is one of its own (InfiniBand specification, 9.6.1.2).
    pub(crate) fn in_subnet(&self, lid: u16, gid: Option<&[u8; 16]>) -> Option<usize> {
        let to = self.by_lid(lid)?;
        gid.is_none_or(|gid| self.ports[to].has_gid(gid)).then_some(to)
    }

    pub(crate) fn by_mac(&self, mac: &[u8; 6]) -> Option<usize> {
        self.ports.iter().position(|p| p.ethernet && p.mac == *mac)
    }

    /// Adds a QP to a group; `false` if it is already a member.
    pub(crate) fn join(&mut self, group: [u8; 16], device: usize, qpn: u32) -> bool {
        let member = (group, device, qpn);
        let new = !self.groups.contains(&member);
        if new {
            self.groups.push(member);
        }
        new
    }

    /// Removes a QP from a group; `false` if it is not a member.
    pub(crate) fn leave(&mut self, group: [u8; 16], device: usize, qpn: u32) -> bool {
        let before = self.groups.len();
        self.groups.retain(|m| *m != (group, device, qpn));
        self.groups.len() < before
    }

    /// Removes a QP from all groups.
    pub(crate) fn leave_all(&mut self, device: usize, qpn: u32) {
        self.groups.retain(|(_, d, q)| (*d, *q) != (device, qpn));
    }

    /// Whether the QP is in any group.
    pub(crate) fn is_member(&self, device: usize, qpn: u32) -> bool {
        self.groups.iter().any(|(_, d, q)| (*d, *q) == (device, qpn))
    }

    /// All members of all groups.
    pub(crate) fn all_members(&self) -> impl Iterator<Item = ([u8; 16], usize, u32)> {
        self.groups.iter().copied()
    }

    /// Stores the port of another process in a slot.
    pub(crate) fn away(&self, link: u32, number: u16) -> Option<usize> {
        self.ports.iter().position(|p| p.location == PortLocation::Away { link } && p.number == number)
    }

    /// The number in the fabric of a port.
    pub(crate) fn number(&self, slot: usize) -> Option<u16> {
        self.ports.get(slot).map(|p| p.number)
    }

    /// Removes a port of another process.
    pub(crate) fn take_away(&mut self, slot: usize) {
        self.groups.retain(|(_, device, _)| *device != slot);
        if let Some(port) = self.ports.get_mut(slot) {
            (port.lid, port.mac, port.up, port.location) = (0, [0; 6], false, PortLocation::Gone);
            port.gids.clear();
        }
    }

    /// Replaces the members of groups at a connection.
    pub(crate) fn replace_members(&mut self, link: u32, members: Vec<([u8; 16], usize, u32)>) {
        let ports = &self.ports;
        self.groups.retain(|(_, device, _)| {
            ports.get(*device).is_none_or(|p| p.location != PortLocation::Away { link })
        });
        self.groups.extend(members);
    }

    /// Receives a packet from another process, which has already applied its faults. The packet is for a port of this
    /// process, or is forwarded to a third process. A packet to an unknown port, or back to the process that sent it,
    /// is dropped.
    pub(crate) fn inject(&mut self, now: u64, to: u16, packet: Packet) {
        let from = self.ports.get(packet.from).map(|p| p.location);
        let is_target = |p: &Address| {
            let elsewhere = p.location == PortLocation::Here || Some(p.location) != from;
            p.number == to && p.location != PortLocation::Gone && elsewhere && p.up
        };
        if let Some(slot) = self.ports.iter().position(is_target) {
            self.sequence += 1;
            self.packets.insert((now, self.sequence), (slot, packet));
        }
    }

    /// The members of a group.
    pub(crate) fn members(&self, group: &[u8; 16]) -> Vec<(usize, u32)> {
        self.groups.iter().filter(|(g, ..)| g == group).map(|(_, d, q)| (*d, *q)).collect()
    }
}
