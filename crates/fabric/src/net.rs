// SPDX-License-Identifier: MIT OR Apache-2.0
//! The network between the devices of a fabric: addresses, delivery in the order of the clock, faults from a seed.

use crate::aside::Asides;
pub use crate::flight::MAX_FLIGHT_OF_LINK;
use crate::flight::{Flight, Origin, Place};
use crate::map::Map;
use crate::model::{Packet, PortEvent};
use crate::order::{Order, Waits};
use crate::random::Random;
use crate::script::Engine;
use crate::tap::{Fate, Tap, Tapped};
use crate::trace::Traced;
use crate::users::Users;
use core::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The faults of the network. A probability is from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    pub(crate) reorder: f64,
    /// The delay of a packet, ns.
    pub(crate) delay: u64,
}

impl Faults {
    /// Whether none can take place, and packets have no delay.
    #[inline]
    pub(crate) fn are_off(&self) -> bool {
        self.delay == 0 && self.loss <= 0.0 && self.duplicate <= 0.0 && self.reorder <= 0.0
    }
}

/// The additional delay of a reordered packet, ns.
const REORDER_NS: u64 = 20_000;

/// The bit that the numbers of held packets have in a trace, so that they differ from those of other packets.
pub(crate) const HELD: u64 = 1 << 63;

/// The number of packets and of buffers whose memory is kept, and the bytes of a buffer at most: the data of a packet.
const SPARE: usize = 256;
const SPARE_BYTES: usize = 4096;

/// The QPs of a device in a multicast group.
pub const MAX_IN_GROUP: u32 = 240;
/// The memberships of all QPs of a device in multicast groups.
pub const MAX_MEMBERSHIPS: u32 = 1 << 14;

/// The location of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortLocation {
    /// In this process.
    #[default]
    Here,
    /// In another process, over this connection.
    Away {
        /// The number of the connection.
        link: u32,
    },
    /// Nowhere, because the connection is lost. The slot can be used again.
    Gone,
    /// All devices outside of the fabric that the UDP socket of one port reaches.
    Outside,
}

/// The devices outside of the fabric, as a port with a UDP socket reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// Their slot. A packet to it is sent to the address in its own route.
    pub slot: usize,
    /// The bytes of payload in a packet that the network has room for.
    pub mtu: u32,
}

/// A port's addresses.
#[derive(Clone, Debug)]
pub struct Address {
    /// Whether the link layer is Ethernet.
    pub ethernet: bool,
    /// LID, of an InfiniBand port.
    pub lid: u16,
    /// MAC address, of an Ethernet port.
    pub mac: [u8; 6],
    /// GIDs by index, with `true` for RoCE version 2.
    pub gids: Vec<([u8; 16], bool)>,
    /// Whether the link is up.
    pub up: bool,
    /// The number of packets that were sent.
    pub sent: u64,
    /// The number of packets that were received.
    pub received: u64,
    /// In which process it is.
    pub location: PortLocation,
    /// Its number in the fabric, which is unique among the ports of all processes.
    pub number: u16,
    /// The devices outside of the fabric, of a port that has a UDP socket.
    pub outside: Option<Outside>,
    /// The name of the device, for words; empty for a port of another process.
    pub name: Arc<str>,
}

impl Address {
    /// The port of a device of this process, with its link up. It has no addresses.
    #[must_use]
    pub fn new(number: u16, ethernet: bool) -> Self {
        Self {
            ethernet,
            lid: 0,
            mac: [0; 6],
            gids: Vec::new(),
            up: true,
            sent: 0,
            received: 0,
            location: PortLocation::Here,
            number,
            outside: None,
            name: Arc::default(),
        }
    }

    /// Whether the port has a GID.
    #[must_use]
    pub fn has_gid(&self, gid: &[u8; 16]) -> bool {
        // An unused entry is zeros.
        *gid != [0; 16] && self.gids.iter().any(|(g, _)| g == gid)
    }
}

/// The entry of a timer: its time, and a number that is unique.
pub type TimerEntry = (u64, u64);

/// A member of a multicast group: group, device, QP.
type Member = ([u8; 16], usize, u32);

/// The members of multicast groups, by group and by member.
#[derive(Debug, Default)]
struct Groups {
    members: BTreeSet<Member>,
    of_qps: BTreeSet<(usize, u32, [u8; 16])>,
    /// How many QPs of a device are in a group, and in all groups.
    counts: BTreeMap<([u8; 16], usize), u32>,
    of_devices: Users<usize>,
}

impl Groups {
    fn add(&mut self, (group, device, qpn): Member) -> bool {
        let is_new = self.members.insert((group, device, qpn));
        if is_new {
            self.of_qps.insert((device, qpn, group));
            *self.counts.entry((group, device)).or_insert(0) += 1;
            self.of_devices.add(device);
        }
        is_new
    }

    fn remove(&mut self, (group, device, qpn): Member) -> bool {
        let was_member = self.members.remove(&(group, device, qpn));
        if was_member {
            self.of_qps.remove(&(device, qpn, group));
            if let Entry::Occupied(mut count) = self.counts.entry((group, device)) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            self.of_devices.remove(&device);
        }
        was_member
    }

    /// The memberships of QPs of a device with these numbers.
    fn of(&self, device: usize, first: u32, last: u32) -> impl Iterator<Item = Member> {
        let all = self.of_qps.range((device, first, [0; 16])..=(device, last, [0xff; 16]));
        all.map(|(device, qpn, group)| (*group, *device, *qpn))
    }

    fn remove_of(&mut self, device: usize, first: u32, last: u32) -> bool {
        let left: Vec<Member> = self.of(device, first, last).collect();
        left.iter().for_each(|member| {
            self.remove(*member);
        });
        !left.is_empty()
    }

    /// The members of a group.
    fn in_group(&self, group: &[u8; 16]) -> impl Iterator<Item = (usize, u32)> {
        let all = self.members.range((*group, 0, 0)..=(*group, usize::MAX, u32::MAX));
        all.map(|(_, device, qpn)| (*device, *qpn))
    }
}

/// The network.
#[derive(Debug)]
pub struct Net<P> {
    /// The ports by number of the device. Who changes an address counts the change.
    pub ports: Vec<Address>,
    pub(crate) faults: Faults,
    groups: Groups,
    packets: Flight<Box<P>>,
    /// The memory of packets that have arrived.
    records: Vec<Box<P>>,
    timers: Map<TimerEntry, (usize, u32)>,
    sequence: u64,
    random: Random,
    /// Counts the changes of ports and groups.
    pub changes: u64,
    index: RefCell<Index>,
    tap: Tapped<P>,
    /// The memory of the data of packets that have arrived.
    spare: Vec<Vec<u8>>,
    /// The accesses that have not taken place, in a mode that permits more than one order.
    pub(crate) order: Option<Box<Order<P>>>,
    pub(crate) traced: Traced,
    /// The script of faults.
    pub(crate) script: Option<Box<Engine>>,
    /// The changes of ports by the script, of which devices are not told yet.
    pub(crate) port_events: Vec<(usize, PortEvent)>,
    /// Whether the clock of the fabric is not virtual.
    pub in_real_time: bool,
    /// The packets that were executed at their receiver at once.
    pub(crate) passed: u64,
    /// The bytes of their data since the lock was last offered to others.
    pub(crate) held: u64,
    pub(crate) asides: Asides,
}

/// The ports by their addresses. Of several ports with an address, the first one has it.
#[derive(Debug, Default)]
struct Index {
    /// The [`Net::changes`] that it contains.
    at: Option<u64>,
    gids: HashMap<[u8; 16], usize>,
    lids: HashMap<u16, usize>,
    macs: HashMap<[u8; 6], usize>,
    numbers: HashMap<u16, Vec<usize>>,
}

impl Index {
    fn of(ports: &[Address], at: u64) -> Self {
        let mut this = Self { at: Some(at), ..Self::default() };
        for (slot, port) in ports.iter().enumerate().filter(|(_, p)| p.location != PortLocation::Outside) {
            for (gid, _) in port.gids.iter().filter(|(gid, _)| *gid != [0; 16]) {
                this.gids.entry(*gid).or_insert(slot);
            }
            if port.ethernet {
                this.macs.entry(port.mac).or_insert(slot);
            } else {
                this.lids.entry(port.lid).or_insert(slot);
            }
            if port.location != PortLocation::Gone {
                this.numbers.entry(port.number).or_default().push(slot);
            }
        }
        this
    }
}

impl<P: Packet> Net<P> {
    /// Looks up a port in the index.
    fn find<R>(&self, f: impl FnOnce(&Index) -> R) -> R {
        let mut index = self.index.borrow_mut();
        if index.at != Some(self.changes) {
            *index = Index::of(&self.ports, self.changes);
        }
        f(&index)
    }

    /// The ports with this number: usually one.
    #[must_use]
    pub fn by_number(&self, number: u16) -> Vec<usize> {
        self.find(|index| index.numbers.get(&number).cloned().unwrap_or_default())
    }

    /// The bytes of packets in flight that another process has sent.
    #[must_use]
    pub fn flight_of(&self, link: u32) -> usize {
        self.packets.of_link(link)
    }

    /// Adds a packet, unless its sender has too many in flight. Returns its number.
    pub(crate) fn put(&mut self, at: u64, to: usize, origin: Origin, packet: P) -> Option<u64> {
        let cost = packet.cost();
        if !self.packets.start(origin, cost) {
            return None;
        }
        self.sequence += 1;
        let packet = match self.records.pop() {
            Some(mut record) => {
                *record = packet;
                record
            }
            None => Box::new(packet),
        };
        self.packets.put((at, self.sequence), to, origin, cost, packet);
        Some(self.sequence)
    }

    /// A network without ports, whose faults this seed selects.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            ports: Vec::new(),
            faults: Faults::default(),
            groups: Groups::default(),
            packets: Flight::default(),
            records: Vec::new(),
            timers: Map::new(),
            sequence: 0,
            random: Random::new(seed),
            changes: 0,
            index: RefCell::default(),
            tap: Tapped::default(),
            order: None,
            spare: Vec::new(),
            traced: Traced::default(),
            script: None,
            port_events: Vec::new(),
            in_real_time: false,
            passed: 0,
            held: 0,
            asides: Asides::default(),
        }
    }

    /// An empty buffer for the data of a packet. It may have the memory of an earlier one.
    #[must_use]
    #[inline]
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps the memory of the data of a packet for [`buffer`](Self::buffer), up to a limit.
    #[inline]
    pub fn reuse(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE && (1..=SPARE_BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Keeps the memory of a packet that has arrived for another one, up to a limit. Its data should be taken out before.
    #[inline]
    pub fn recycle(&mut self, packet: Box<P>) {
        if self.records.len() < SPARE {
            self.records.push(packet);
        }
    }

    /// The next number of the seed's sequence.
    pub fn random(&mut self) -> u64 {
        self.random.draw()
    }

    fn chance(&mut self, p: f64) -> bool {
        // No number is drawn for a probability of 0, so that a disabled fault does not change the sequence.
        p > 0.0 && ((self.random() >> 11) as f64) / ((1_u64 << 53) as f64) < p
    }

    /// The delay of every packet, ns.
    #[must_use]
    pub fn delay(&self) -> u64 {
        self.faults.delay
    }

    /// Whether a message between hosts, which is not a packet here, is lost on its way.
    pub fn loses(&mut self, from: usize, to: usize) -> bool {
        let up = |i: usize| self.ports.get(i).is_some_and(|p| p.up);
        let is_cut = from != to && !(up(from) && up(to));
        is_cut || self.chance(self.faults.loss)
    }

    /// Sends a packet to a device.
    pub fn send(&mut self, now: u64, to: usize, packet: P) {
        self.send_when(now, to, packet, Waits::default());
    }

    /// As [`send`](Self::send); it is delivered after what it waits for.
    pub fn send_when(&mut self, now: u64, to: usize, packet: P, waits: Waits) {
        if let Some(port) = self.ports.get_mut(packet.source()) {
            port.sent += 1;
        }
        if self.is_scripted() {
            return self.send_by_script(now, to, packet, waits);
        }
        let fate = self.fate(to, packet.source());
        // A packet that waits for its data is shown when it has them.
        let is_sent = matches!(fate, Fate::Sent | Fate::Twice);
        if !(self.is_held(&packet) && is_sent) {
            self.show(now, to, &packet, fate);
        }
        match fate {
            Fate::Sent => {}
            Fate::Twice => self.queue(now, to, packet.clone(), waits.clone()),
            Fate::LinkDown | Fate::Lost | Fate::Corrupt | Fate::Refused | Fate::Behind => {
                self.sent(self.sending(now, to, &packet), None, fate.words());
                return;
            }
        }
        self.queue(now, to, packet, waits);
    }

    /// What becomes of a packet.
    pub(crate) fn fate(&mut self, to: usize, from: usize) -> Fate {
        // A port that is down still reaches itself, as on hardware.
        if !self.connects(from, to) {
            return Fate::LinkDown;
        }
        let faults = self.faults;
        if self.chance(faults.loss) {
            Fate::Lost
        } else if self.chance(faults.duplicate) {
            Fate::Twice
        } else {
            Fate::Sent
        }
    }

    /// A packet that was held has arrived.
    pub(crate) fn arrives(&mut self, to: usize, packet: &P) {
        self.packets.land(Origin::Port(packet.source()), packet.cost());
        if let Some(port) = self.ports.get_mut(to) {
            port.received += 1;
        }
    }

    /// Shows a packet to the tap.
    pub(crate) fn show(&mut self, now: u64, to: usize, packet: &P, fate: Fate) {
        if let Some(tap) = self.tap.as_mut()
            && let (Some(from), Some(to)) = (self.ports.get(packet.source()), self.ports.get(to))
        {
            tap.packet(now, from, to, packet, fate);
        }
    }

    /// Shows each packet that a port of this process sends, and each that another process sends to one, to `tap` from now on, instead
    /// of the tap before; to none with `None`.
    pub fn set_tap(&mut self, tap: Option<Box<dyn Tap<P>>>) {
        self.tap.set(tap);
    }

    /// Whether there is a tap. Models fill fields in that only a capture needs.
    #[must_use]
    pub fn is_tapped(&self) -> bool {
        self.tap.is_set()
    }

    /// Whether a packet is held in a mode of order. It is shown when it is delivered.
    pub(crate) fn is_held(&self, packet: &P) -> bool {
        self.order.is_some() && packet.route().is_some()
    }

    pub(crate) fn queue(&mut self, now: u64, to: usize, packet: P, waits: Waits) {
        let mut at = now.saturating_add(self.faults.delay);
        let is_late = self.chance(self.faults.reorder);
        if is_late {
            at = at.saturating_add(1 + self.random() % REORDER_NS);
        }
        let sending = self.sending(now, to, &packet);
        let origin = Origin::Port(packet.source());
        let id = match packet.route().filter(|_| self.order.is_some()) {
            Some(route) => match &mut self.order {
                Some(order) if self.packets.start(origin, packet.cost()) => {
                    let ways = (packet.source(), to);
                    let overtaken = is_late || packet.is_unordered();
                    Some(order.hold((now, at), ways, route, packet, waits, overtaken) | HELD)
                }
                _ => None,
            },
            None => self.put(at, to, origin, packet),
        };
        self.sent(sending, id, if id.is_none() { "lost: too much is in flight" } else { "" });
    }

    /// The place of the packet that was put last, at this time, if it is in flight.
    pub(crate) fn last_place(&self, at: u64) -> Option<Place> {
        let place = (at, self.sequence);
        self.packets.has(place).then_some(place)
    }

    /// Moves a packet in flight behind those of a time.
    pub(crate) fn move_packet(&mut self, place: Place, at: u64) {
        self.sequence += 1;
        self.packets.move_to(place, (at, self.sequence));
    }

    /// The time of the next packet or timer.
    pub(crate) fn next_packet(&self) -> Option<u64> {
        self.packets.next()
    }

    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.timers.keys().next().map(|(at, _)| at)
    }

    /// Changes with each packet and timer.
    pub(crate) fn puts(&self) -> u64 {
        self.sequence
    }

    /// The number of packets in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.packets.len() + self.order.as_ref().map_or(0, |order| order.held())
    }

    /// The number of entries of timers.
    #[must_use]
    pub fn timers(&self) -> usize {
        self.timers.len()
    }

    /// The first packet that is due by `until`, with its time and device.
    pub fn pop_packet(&mut self, until: u64) -> Option<(u64, usize, Box<P>)> {
        let ((at, id), to, packet) = self.packets.pop(until)?;
        if let Some(port) = self.ports.get_mut(to) {
            port.received += 1;
        }
        self.tell_arrival(at, id, to, &packet);
        Some((at, to, packet))
    }

    /// Sets a timer of a QP. Returns its entry.
    pub fn wake(&mut self, at: u64, device: usize, qpn: u32) -> TimerEntry {
        self.sequence += 1;
        let entry = (at, self.sequence);
        self.timers.insert(entry, (device, qpn));
        entry
    }

    /// Removes an entry of a timer.
    pub fn cancel(&mut self, entry: TimerEntry) {
        self.timers.remove(&entry);
    }

    /// The first timer that is due by `until`: its entry, device and QP.
    pub(crate) fn pop_timer(&mut self, until: u64) -> Option<(TimerEntry, usize, u32)> {
        let entry = self.timers.keys().next().filter(|(at, _)| *at <= until)?;
        let (device, qpn) = self.timers.remove(&entry)?;
        Some((entry, device, qpn))
    }

    /// The device with this GID.
    #[must_use]
    pub fn by_gid(&self, gid: &[u8; 16]) -> Option<usize> {
        self.find(|index| index.gids.get(gid).copied())
    }

    /// The device with this LID.
    #[must_use]
    pub fn by_lid(&self, lid: u16) -> Option<usize> {
        self.find(|index| index.lids.get(&lid).copied())
    }

    /// The device that receives a packet on InfiniBand. Switches forward by the LID. If the packet has a GRH, the port
    /// drops it unless the GID is one of its own (InfiniBand specification, 9.6.1.2).
    #[must_use]
    pub fn in_subnet(&self, lid: u16, gid: Option<&[u8; 16]>) -> Option<usize> {
        let to = self.by_lid(lid)?;
        gid.is_none_or(|gid| self.ports[to].has_gid(gid)).then_some(to)
    }

    /// The device with this MAC address.
    #[must_use]
    pub fn by_mac(&self, mac: &[u8; 6]) -> Option<usize> {
        self.find(|index| index.macs.get(mac).copied())
    }

    /// Adds a QP to a group; `false` if it is already a member.
    pub fn join(&mut self, group: [u8; 16], device: usize, qpn: u32) -> bool {
        let is_new = self.groups.add((group, device, qpn));
        self.changes += u64::from(is_new);
        is_new
    }

    /// Whether a QP is a member of a group.
    #[must_use]
    pub fn is_in_group(&self, group: &[u8; 16], device: usize, qpn: u32) -> bool {
        self.groups.members.contains(&(*group, device, qpn))
    }

    /// Whether another QP of a device may join a group.
    #[must_use]
    pub fn has_room(&self, group: &[u8; 16], device: usize) -> bool {
        self.groups.counts.get(&(*group, device)).is_none_or(|count| *count < MAX_IN_GROUP)
    }

    /// The memberships of all QPs of a device.
    #[must_use]
    pub fn memberships(&self, device: usize) -> u32 {
        self.groups.of_devices.count(&device)
    }

    /// Removes a QP from a group; `false` if it is not a member.
    pub fn leave(&mut self, group: [u8; 16], device: usize, qpn: u32) -> bool {
        let was_member = self.groups.remove((group, device, qpn));
        self.changes += u64::from(was_member);
        was_member
    }

    /// Removes a QP from all groups.
    pub fn leave_all(&mut self, device: usize, qpn: u32) {
        let was_member = self.groups.remove_of(device, qpn, qpn);
        self.changes += u64::from(was_member);
    }

    /// Whether the QP is in any group.
    #[must_use]
    pub fn is_member(&self, device: usize, qpn: u32) -> bool {
        self.groups.of(device, qpn, qpn).next().is_some()
    }

    /// All members of all groups.
    pub(crate) fn all_members(&self) -> impl Iterator<Item = ([u8; 16], usize, u32)> {
        self.groups.members.iter().copied()
    }

    /// Stores the port of another process in a slot.
    pub(crate) fn away(&self, link: u32, number: u16) -> Option<usize> {
        let is_there = |slot: &usize| self.ports[*slot].location == PortLocation::Away { link };
        self.by_number(number).into_iter().find(is_there)
    }

    /// The number in the fabric of a port.
    #[must_use]
    pub fn number(&self, slot: usize) -> Option<u16> {
        self.ports.get(slot).map(|p| p.number)
    }

    /// Removes a port of another process.
    pub(crate) fn take_away(&mut self, slot: usize) {
        self.groups.remove_of(slot, 0, u32::MAX);
        self.changes += 1;
        if let Some(port) = self.ports.get_mut(slot) {
            (port.lid, port.mac, port.up, port.location) = (0, [0; 6], false, PortLocation::Gone);
            port.gids.clear();
        }
    }

    /// Replaces the members of groups at a connection.
    pub(crate) fn replace_members(&mut self, link: u32, members: Vec<([u8; 16], usize, u32)>) {
        for slot in 0..self.ports.len() {
            if self.ports[slot].location == (PortLocation::Away { link }) {
                self.groups.remove_of(slot, 0, u32::MAX);
            }
        }
        members.into_iter().for_each(|member| {
            self.groups.add(member);
        });
        self.changes += 1;
    }

    /// Receives a packet from another process, which has already applied its faults. The packet is for a port of this
    /// process, or is forwarded to a third process. A packet to an unknown port, or back to the process that sent it,
    /// is dropped.
    pub fn inject(&mut self, now: u64, to: u16, packet: P) {
        let from = self.ports.get(packet.source()).map(|p| p.location);
        let is_target = |p: &Address| {
            let elsewhere = p.location == PortLocation::Here || Some(p.location) != from;
            elsewhere && p.up
        };
        let found = self.by_number(to).into_iter().find(|slot| is_target(&self.ports[*slot]));
        let origin = match from {
            Some(PortLocation::Away { link }) => Origin::Link(link),
            _ => Origin::Port(packet.source()),
        };
        if let Some(slot) = found {
            if self.ports[slot].location == PortLocation::Here {
                self.show(now, slot, &packet, Fate::Sent);
            }
            self.put(now, slot, origin, packet);
        }
    }

    /// The members of a group.
    #[must_use]
    pub fn members(&self, group: &[u8; 16]) -> Vec<(usize, u32)> {
        self.groups.in_group(group).collect()
    }
}
