// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other processes of a fabric, as the world knows them: a link to each, and the state that was sent to it.
//!
//! The threads that carry the messages are those of [`trunk`](crate::trunk).

mod outbox;
pub(crate) mod wire;

use crate::engine::net::{Net, PortLocation};
use crate::engine::packet::Packet;
pub(crate) use outbox::Outbox;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{Message, Port};

/// Devices that a process can have: the distance of the numbers that are given out.
const NUMBERS: u16 = 64;

/// The data about the peers.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    links: BTreeMap<u32, Link>,
    next: u32,
    /// Number of the own first device.
    pub(crate) base: u16,
}

#[derive(Debug)]
struct Link {
    outbox: Arc<Outbox>,
    /// The number of the peer's first device.
    base: u16,
    /// The ports and members that were sent to it last.
    sent: [Vec<u8>; 2],
    /// Numbers of the last [`Message::Sync`] and of the last answer.
    asked: u32,
    answered: u32,
}

impl Peers {
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Sends a packet on.
    pub(crate) fn forward(&self, link: u32, to: u16, packet: Packet) {
        self.send(link, &Message::Packet { to, packet });
    }

    /// Asks all peers whether they have heard everything; see [`has_answers`](Self::has_answers).
    pub(crate) fn ask(&mut self) {
        for link in self.links.values_mut() {
            link.asked = link.asked.wrapping_add(1);
            link.outbox.push(&Message::Sync(link.asked));
        }
    }

    /// Whether all connected peers have answered.
    pub(crate) fn has_answers(&self) -> bool {
        self.links.values().all(|link| link.asked == link.answered)
    }

    /// The ways to all peers.
    pub(crate) fn outboxes(&self) -> Vec<Arc<Outbox>> {
        self.links.values().map(|link| Arc::clone(&link.outbox)).collect()
    }

    /// Adds a peer, whose first device has this number.
    pub(crate) fn add(&mut self, base: u16) -> (u32, Arc<Outbox>) {
        self.next += 1;
        let outbox = Arc::new(Outbox::default());
        let sent = [Vec::new(), Vec::new()];
        let link = Link { outbox: Arc::clone(&outbox), base, sent, asked: 0, answered: 0 };
        self.links.insert(self.next, link);
        (self.next, outbox)
    }

    /// A number for devices of one that joins, the one it had if it is free.
    pub(crate) fn number(&self, wanted: Option<u16>) -> Option<u16> {
        let free = |base: &u16| *base != self.base && self.links.values().all(|link| link.base != *base);
        let all = || (1..=u16::MAX / NUMBERS).map(|k| k * NUMBERS);
        match wanted {
            Some(base) => all().find(|b| *b == base).filter(free),
            None => all().find(free),
        }
    }

    /// Tells peers what has changed of the own ports and groups.
    pub(crate) fn tell(&mut self, net: &Net) {
        if self.is_empty() {
            return;
        }
        let here = |i: usize| net.ports.get(i).is_some_and(|p| p.location == PortLocation::Here);
        let ports = net.ports.iter().enumerate().filter(|(i, _)| here(*i));
        let ports = Message::Ports(ports.map(|(i, p)| Port::of(i as u16, p)).collect());
        let members = net.all_members().filter(|(_, i, _)| here(*i));
        let members = Message::Members(members.map(|(group, i, qpn)| (group, i as u16, qpn)).collect());
        for link in self.links.values_mut() {
            for (sent, message) in link.sent.iter_mut().zip([&ports, &members]) {
                let bytes = message.bytes();
                if *sent != bytes {
                    link.outbox.push(message);
                    *sent = bytes;
                }
            }
        }
    }

    /// A peer has processed everything up to a [`Message::Sync`].
    pub(crate) fn answered(&mut self, link: u32, number: u32) {
        if let Some(link) = self.links.get_mut(&link) {
            link.answered = number;
        }
    }

    /// Sends a message to a peer.
    pub(crate) fn send(&self, link: u32, message: &Message) {
        if let Some(link) = self.links.get(&link) {
            link.outbox.push(message);
        }
    }

    /// Removes a peer whose connection is lost.
    pub(crate) fn remove(&mut self, link: u32) {
        self.links.remove(&link);
    }
}
