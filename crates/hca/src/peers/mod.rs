// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other processes of a fabric: a link to each, and the state that was sent to it.
//!
//! The threads that carry the messages are those of [`trunk`](crate::trunk).

mod outbox;
pub(crate) mod wire;

use crate::engine::net::{Address, Net, PortLocation};
use crate::engine::packet::Packet;
pub(crate) use outbox::Outbox;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{MAX_MEMBERS, MAX_PORTS, Message, Port};

/// The number of devices that a process can have; the listening process assigns numbers in blocks of this size.
const NUMBERS: u16 = 64;

/// The data about the peers.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    links: BTreeMap<u32, Link>,
    next: u32,
    /// Number of the own first device; 0 is that of the listening process.
    pub(crate) base: u16,
    /// The number that was assigned last.
    assigned: u16,
    /// Whether other processes, or their ports or members of groups, have changed since the last [`send_changes`](Self::send_changes).
    changed: bool,
    /// The own ports and members that were sent last.
    sent: [Vec<u8>; 2],
    /// `Sync` messages of peers that other peers must answer first.
    relayed: Vec<Relayed>,
}

/// A [`Message::Sync`] of a peer.
#[derive(Debug)]
struct Relayed {
    link: u32,
    number: u32,
    /// The links that must answer first, and the number of the `Sync` that was sent to each.
    others: Vec<(u32, u32)>,
}

#[derive(Debug)]
struct Link {
    outbox: Arc<Outbox>,
    /// The number of the peer's first device; 0 is the listening process, through which all other processes are reached.
    base: u16,
    /// The ports and members of groups that were last sent to the peer.
    sent: [Vec<u8>; 2],
    /// Numbers of the last [`Message::Sync`] and of the last answer.
    asked: u32,
    answered: u32,
}

impl Peers {
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Sends a packet between two ports, by their numbers.
    pub(crate) fn forward(&self, link: u32, from: u16, to: u16, packet: Packet) {
        let packet = Packet { from: from.into(), ..packet };
        self.send(link, &Message::Packet { to, packet });
    }

    /// Called when ports or members of other processes have changed.
    pub(crate) fn set_changed(&mut self) {
        self.changed = true;
    }

    /// Whether a peer may have a port with this number.
    pub(crate) fn may_have(&self, link: u32, number: u16) -> bool {
        let is_of = |base: u16| number.checked_sub(base).is_some_and(|n| n < NUMBERS);
        match self.links.get(&link).map(|link| link.base) {
            Some(0) => !is_of(self.base),
            Some(base) => is_of(base),
            None => false,
        }
    }

    /// Requests an answer from all peers, which they send after they, and the processes behind them, have processed all
    /// earlier messages; see [`has_answers`](Self::has_answers).
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

    /// The links to all peers.
    pub(crate) fn outboxes(&self) -> Vec<Arc<Outbox>> {
        self.links.values().map(|link| Arc::clone(&link.outbox)).collect()
    }

    /// Adds a peer, whose first device has this number.
    pub(crate) fn add(&mut self, base: u16) -> (u32, Arc<Outbox>) {
        self.next += 1;
        self.changed = true;
        let outbox = Arc::new(Outbox::default());
        let sent = [Vec::new(), Vec::new()];
        let link = Link { outbox: Arc::clone(&outbox), base, sent, asked: 0, answered: 0 };
        self.links.insert(self.next, link);
        (self.next, outbox)
    }

    /// The number of the first device of a joining process: its previous one, if that is free. Other numbers are
    /// assigned in turn, so that a packet to a process that has exited does not reach the next one.
    pub(crate) fn number(&mut self, wanted: Option<u16>) -> Option<u16> {
        let free = |base: &u16| *base != self.base && self.links.values().all(|link| link.base != *base);
        let all = || (1..=u16::MAX / NUMBERS).map(|k| k * NUMBERS);
        match wanted {
            Some(base) => all().find(|b| *b == base).filter(free),
            None => {
                let after = all().filter(|base| *base > self.assigned);
                self.assigned = after.chain(all()).find(free)?;
                Some(self.assigned)
            }
        }
    }

    /// Sends peers the changes of the ports and groups that they reach through this process: its own, and in the
    /// listening process those of the other peers.
    pub(crate) fn send_changes(&mut self, net: &Net) {
        if self.is_empty() {
            return;
        }
        let here = [ports(net, None), members(net, None)].map(|message| message.bytes());
        if !self.changed && self.sent == here {
            return;
        }
        for (id, link) in &mut self.links {
            let messages = [ports(net, Some(*id)), members(net, Some(*id))];
            for (sent, message) in link.sent.iter_mut().zip(messages) {
                let bytes = message.bytes();
                if *sent != bytes {
                    link.outbox.push(&message);
                    *sent = bytes;
                }
            }
        }
        (self.changed, self.sent) = (false, here);
    }

    /// Answers a [`Message::Sync`] of a peer when the other peers have processed all messages that were sent to them
    /// before.
    pub(crate) fn relay(&mut self, link: u32, number: u32) {
        let mut others = Vec::new();
        for (id, other) in self.links.iter_mut().filter(|(id, _)| **id != link) {
            other.asked = other.asked.wrapping_add(1);
            other.outbox.push(&Message::Sync(other.asked));
            others.push((*id, other.asked));
        }
        self.relayed.push(Relayed { link, number, others });
        self.answer();
    }

    /// Answers each [`Message::Sync`] for which no other peer's answer is missing.
    fn answer(&mut self) {
        for Relayed { link, number, .. } in self.relayed.extract_if(.., |relayed| relayed.others.is_empty()) {
            if let Some(link) = self.links.get(&link) {
                link.outbox.push(&Message::Synced(number));
            }
        }
    }

    /// Handles the answer to a [`Message::Sync`]: the peer has processed all earlier messages.
    pub(crate) fn answered(&mut self, link: u32, number: u32) {
        if let Some(link) = self.links.get_mut(&link) {
            link.answered = number;
        }
        for relayed in &mut self.relayed {
            relayed.others.retain(|other| *other != (link, number));
        }
        self.answer();
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
        self.changed = true;
        self.relayed.retain(|relayed| relayed.link != link);
        for relayed in &mut self.relayed {
            relayed.others.retain(|(other, _)| *other != link);
        }
        self.answer();
    }
}

/// Whether a port belongs to this process, or to another process that is not reached over the link `to`.
fn is_reached(address: &Address, to: Option<u32>) -> bool {
    match address.location {
        PortLocation::Here => true,
        PortLocation::Away { link } => to.is_some_and(|to| to != link),
        PortLocation::Gone => false,
    }
}

/// The ports that a peer reaches through this process; without a peer, its own.
fn ports(net: &Net, to: Option<u32>) -> Message {
    let ports = net.ports.iter().filter(|p| is_reached(p, to));
    Message::Ports(ports.take(MAX_PORTS).map(Port::of).collect())
}

/// The members of groups at these ports.
fn members(net: &Net, to: Option<u32>) -> Message {
    let members = net.all_members().filter_map(|(group, i, qpn)| {
        let port = net.ports.get(i).filter(|p| is_reached(p, to))?;
        Some((group, port.number, qpn))
    });
    Message::Members(members.take(MAX_MEMBERS).collect())
}
