// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reliable exchange with another device (an SRD context): what is outstanding, and what has arrived.
//!
//! Messages to a device are numbered. They arrive in any order, each at most once: the receiver remembers the outcome of each
//! message until the sender says that it is settled, which each packet does for all messages before its `floor`. The numbers that may be
//! outstanding are limited, so what a receiver remembers is, too.

use super::window::Window;
use crate::packet::Place;
use uverbs_fabric::map::Map;

/// The messages to a device, from the lowest one that is not settled, that may have begun.
pub(super) const MESSAGES: u64 = 4096;

/// What is known of a message that arrives.
#[derive(Debug)]
pub(super) enum Arrival {
    /// These packets have arrived.
    Open(Window),
    /// It has arrived, with this status.
    Done(u8),
}

/// The messages that arrive.
#[derive(Debug, Default)]
struct Incoming {
    epoch: u32,
    floor: u64,
    arrivals: Map<u64, Arrival>,
}

/// The exchange with a device.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// The next number.
    next: u64,
    /// The messages that are not settled, with their QPs.
    outstanding: Map<u64, u16>,
    /// Whether it has ever answered.
    pub(super) has_answered: bool,
    incoming: Option<Incoming>,
}

impl Peer {
    /// Numbers a message of a QP; `None` if too many are outstanding.
    pub(super) fn begin(&mut self, qpn: u16) -> Option<u64> {
        if self.next - self.floor() >= MESSAGES {
            return None;
        }
        let message = self.next;
        self.next += 1;
        self.outstanding.insert(message, qpn);
        Some(message)
    }

    /// All messages before this one are settled.
    pub(super) fn floor(&self) -> u64 {
        self.outstanding.keys().next().unwrap_or(self.next)
    }

    /// The QP of a message that is not settled.
    pub(super) fn qpn(&self, message: u64) -> Option<u16> {
        self.outstanding.get(&message).copied()
    }

    /// A message is settled.
    pub(super) fn settle(&mut self, message: u64) {
        self.outstanding.remove(&message);
    }

    /// Forgets what has arrived: the other end is a new one.
    pub(super) fn forget(&mut self) {
        (self.incoming, self.has_answered) = (None, false);
    }

    /// The message that a packet belongs to; `None` if the packet is late, or may not have been sent.
    pub(super) fn arrival(&mut self, place: Place) -> Option<&mut Arrival> {
        let incoming = self.incoming.get_or_insert_default();
        // Epochs are compared in sequence space.
        if incoming.epoch == 0 || (place.epoch.wrapping_sub(incoming.epoch)).cast_signed() > 0 {
            *incoming = Incoming { epoch: place.epoch, floor: place.floor, arrivals: Map::new() };
        }
        if place.epoch != incoming.epoch {
            return None;
        }
        if place.floor > incoming.floor {
            incoming.floor = place.floor;
            while incoming.arrivals.first_key_value().is_some_and(|(message, _)| message < place.floor) {
                incoming.arrivals.pop_first();
            }
        }
        let ahead = place.message.checked_sub(incoming.floor)?;
        if ahead >= MESSAGES {
            return None;
        }
        Some(incoming.arrivals.get_or_insert_with(place.message, || Arrival::Open(Window::default())))
    }

    /// How many messages are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.incoming.as_ref().map_or(0, |incoming| incoming.arrivals.len())
    }
}

#[cfg(test)]
impl super::Device {
    /// How many messages of all peers are remembered.
    pub(crate) fn remembered(&self) -> usize {
        self.peers.values().map(Peer::remembered).sum()
    }
}
