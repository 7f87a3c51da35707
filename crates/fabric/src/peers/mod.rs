// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other processes of a fabric: a link to each, and the state that was sent to it.
//!
//! The threads that carry the messages are those of [`trunk`](crate::trunk).

mod outbox;

use crate::model::Packet;
use crate::net::{Address, Net, PortLocation};
use crate::wire::{MAX_MEMBERS, MAX_PORTS, Malformed, Message, Port};
use core::hash::BuildHasher;
use core::marker::PhantomData;
pub(crate) use outbox::Outbox;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::RandomState;
use std::sync::Arc;

/// The number of devices that a process can have; the listening process assigns numbers in blocks of this size.
const NUMBERS: u16 = 64;
/// The number of other processes that can join.
pub const MAX_PEERS: usize = 64;
/// The addresses of all ports of a process that has joined. Others are not known to the other processes.
pub(crate) const MAX_ADDRESSES: usize = 2048;
/// The [`Message::Sync`] of a peer that may wait for answers.
const MAX_SYNCS: usize = 256;

/// The data about the peers.
#[derive(Debug)]
pub(crate) struct Peers<P> {
    links: BTreeMap<u32, Link>,
    next: u32,
    /// Number of the own first device; 0 is that of the listening process.
    pub(crate) base: u16,
    /// The number that was assigned last.
    assigned: u16,
    /// Whether other processes have joined or left since the last [`send_changes`](Self::send_changes).
    changed: bool,
    /// The [`Net::changes`] that were sent last.
    sent: Option<u64>,
    hasher: RandomState,
    /// `Sync` messages of peers that other peers must answer first.
    relayed: Vec<Relayed>,
    packets: PhantomData<fn() -> P>,
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
    /// Hashes of the ports and members of groups that were last sent to the peer.
    sent: [Option<u64>; 2],
    /// Numbers of the last [`Message::Sync`] and of the last answer.
    asked: u32,
    answered: u32,
}

impl<P: Packet> Peers<P> {
    pub(crate) fn new() -> Self {
        Self {
            links: BTreeMap::new(),
            next: 0,
            base: 0,
            assigned: 0,
            changed: false,
            sent: None,
            hasher: RandomState::new(),
            relayed: Vec::new(),
            packets: PhantomData,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Sends a packet between two ports, by their numbers.
    pub(crate) fn forward(&self, link: u32, from: u16, to: u16, mut packet: P) {
        packet.set_source(from.into());
        self.send(link, &Message::Packet { to, packet });
    }

    /// The number of the first device of a peer; 0 is that of the process that this one has joined.
    pub(crate) fn base_of(&self, link: u32) -> Option<u16> {
        self.links.get(&link).map(|link| link.base)
    }

    /// Whether a peer may have a port with this number.
    pub(crate) fn may_have(&self, link: u32, number: u16) -> bool {
        let is_of = |base: u16| number.checked_sub(base).is_some_and(|n| n < NUMBERS);
        match self.base_of(link) {
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
            link.outbox.push(&Message::<P>::Sync(link.asked));
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
        let link = Link { outbox: Arc::clone(&outbox), base, sent: [None; 2], asked: 0, answered: 0 };
        self.links.insert(self.next, link);
        (self.next, outbox)
    }

    /// The number of the first device of a joining process: its previous one, if that is free. Other numbers are
    /// assigned in turn, so that a packet to a process that has exited does not reach the next one.
    pub(crate) fn number(&mut self, wanted: Option<u16>) -> Option<u16> {
        if self.links.len() >= MAX_PEERS {
            return None;
        }
        let used: BTreeSet<u16> = self.links.values().map(|link| link.base).collect();
        let free = |base: &u16| *base != self.base && !used.contains(base);
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
    pub(crate) fn send_changes(&mut self, net: &Net<P>) {
        if self.is_empty() {
            return;
        }
        if !self.changed && self.sent == Some(net.changes) {
            return;
        }
        let most = if self.base == 0 { usize::MAX } else { MAX_ADDRESSES };
        for (id, link) in &mut self.links {
            let messages = [ports(net, *id, most), members(net, *id)];
            for (sent, message) in link.sent.iter_mut().zip(messages) {
                let hash = self.hasher.hash_one(message.bytes());
                if *sent != Some(hash) {
                    link.outbox.push(&message);
                    *sent = Some(hash);
                }
            }
        }
        (self.changed, self.sent) = (false, Some(net.changes));
    }

    /// Answers a [`Message::Sync`] of a peer when the other peers have processed all messages that were sent to them
    /// before. A peer that does not wait for its answers is refused.
    pub(crate) fn relay(&mut self, link: u32, number: u32) -> Result<(), Malformed> {
        if self.relayed.iter().filter(|relayed| relayed.link == link).count() >= MAX_SYNCS {
            return Err(Malformed);
        }
        let mut others = Vec::new();
        for (id, other) in self.links.iter_mut().filter(|(id, _)| **id != link) {
            other.asked = other.asked.wrapping_add(1);
            other.outbox.push(&Message::<P>::Sync(other.asked));
            others.push((*id, other.asked));
        }
        self.relayed.push(Relayed { link, number, others });
        self.answer();
        Ok(())
    }

    /// Answers each [`Message::Sync`] for which no other peer's answer is missing.
    fn answer(&mut self) {
        for Relayed { link, number, .. } in self.relayed.extract_if(.., |relayed| relayed.others.is_empty()) {
            if let Some(link) = self.links.get(&link) {
                link.outbox.push(&Message::<P>::Synced(number));
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
    pub(crate) fn send(&self, link: u32, message: &Message<P>) {
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
fn is_reached(address: &Address, to: u32) -> bool {
    match address.location {
        PortLocation::Here => true,
        PortLocation::Away { link } => to != link,
        PortLocation::Gone | PortLocation::Outside => false,
    }
}

/// The ports that a peer reaches through this process, with at most so many addresses.
fn ports<P: Packet>(net: &Net<P>, to: u32, mut most: usize) -> Message<P> {
    let ports = net.ports.iter().filter(|p| is_reached(p, to));
    let of = |address| {
        let mut port = Port::of(address);
        port.gids.truncate(most);
        most -= port.gids.len();
        port
    };
    Message::Ports(ports.take(MAX_PORTS).map(of).collect())
}

/// The members of groups at these ports.
fn members<P: Packet>(net: &Net<P>, to: u32) -> Message<P> {
    let members = net.all_members().filter_map(|(group, i, qpn)| {
        let port = net.ports.get(i).filter(|p| is_reached(p, to))?;
        Some((group, port.number, qpn))
    });
    Message::Members(members.take(MAX_MEMBERS).collect())
}
