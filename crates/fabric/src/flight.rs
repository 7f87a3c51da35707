// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packets in flight, and their bytes by sender.

use crate::map::Map;
use std::collections::VecDeque;

/// The bytes of packets in flight that a port of this process, or another process, may have sent. If they are exceeded,
/// further packets are lost, as at a switch without free buffers.
const MAX_FLIGHT: usize = 256 << 20;
/// The same limit for all devices of another process together.
pub const MAX_FLIGHT_OF_LINK: usize = 64 << 20;

/// The places that the line keeps when it is empty.
const KEPT: usize = 1 << 12;

/// The sender of a packet, whose packets in flight are limited together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Port(usize),
    Link(u32),
}

/// The place of a packet: its time, and the number of its sending.
pub(crate) type Place = (u64, u64);

/// A packet in flight, with the device that receives it.
#[derive(Debug)]
struct Entry<P> {
    at: Place,
    to: usize,
    origin: Origin,
    cost: usize,
    packet: P,
}

/// The packets in flight, in the order of their places.
///
/// Nearly all of them are sent in this order, so they are a queue; a packet that is due before the last one of the queue is in a tree.
#[derive(Debug)]
pub(crate) struct Flight<P> {
    line: VecDeque<Entry<P>>,
    others: Map<Place, Entry<P>>,
    /// The bytes of each sender.
    of_ports: Vec<usize>,
    of_links: Map<u32, usize>,
}

impl<P> Default for Flight<P> {
    fn default() -> Self {
        Self { line: VecDeque::new(), others: Map::new(), of_ports: Vec::new(), of_links: Map::new() }
    }
}

impl<P> Flight<P> {
    /// Counts the bytes of a packet for its sender; `false` if the sender has too many in flight.
    #[inline]
    pub(crate) fn start(&mut self, origin: Origin, cost: usize) -> bool {
        let (bytes, max) = match origin {
            Origin::Port(port) => {
                if port >= self.of_ports.len() {
                    self.of_ports.resize(port + 1, 0);
                }
                (&mut self.of_ports[port], MAX_FLIGHT)
            }
            Origin::Link(link) => (self.of_links.get_or_default(link), MAX_FLIGHT_OF_LINK),
        };
        let has_room = *bytes <= max;
        if has_room {
            *bytes += cost;
        }
        has_room
    }

    /// The packet of these bytes is no longer in flight.
    #[inline]
    pub(crate) fn land(&mut self, origin: Origin, cost: usize) {
        match origin {
            Origin::Port(port) => {
                if let Some(bytes) = self.of_ports.get_mut(port) {
                    *bytes -= cost;
                }
            }
            Origin::Link(link) => {
                if let Some(bytes) = self.of_links.get_mut(&link) {
                    *bytes -= cost;
                    if *bytes == 0 {
                        self.of_links.remove(&link);
                    }
                }
            }
        }
    }

    /// The bytes of packets in flight that another process has sent.
    pub(crate) fn of_link(&self, link: u32) -> usize {
        self.of_links.get(&link).copied().unwrap_or(0)
    }

    /// The number of packets.
    pub(crate) fn len(&self) -> usize {
        self.line.len() + self.others.len()
    }

    /// The time of the first packet.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        let first = self.line.front().map(|entry| entry.at.0);
        if self.others.is_empty() {
            return first;
        }
        first.into_iter().chain(self.others.keys().next().map(|at| at.0)).min()
    }

    /// Adds a packet, whose bytes were counted by [`start`](Self::start), at a place where no other one is.
    #[inline]
    pub(crate) fn put(&mut self, at: Place, to: usize, origin: Origin, cost: usize, packet: P) {
        let entry = Entry { at, to, origin, cost, packet };
        if self.line.back().is_none_or(|last| last.at < at) {
            self.line.push_back(entry);
        } else {
            self.others.insert(at, entry);
        }
    }

    /// Whether there is a packet at this place.
    pub(crate) fn has(&self, at: Place) -> bool {
        self.others.contains_key(&at) || self.line.binary_search_by_key(&at, |entry| entry.at).is_ok()
    }

    /// Moves a packet to a place where no other one is. The cost grows with the packets in flight.
    pub(crate) fn move_to(&mut self, from: Place, to: Place) {
        let entry = match self.line.binary_search_by_key(&from, |entry| entry.at) {
            Ok(index) => self.line.remove(index),
            Err(_) => self.others.remove(&from),
        };
        if let Some(entry) = entry {
            self.put(to, entry.to, entry.origin, entry.cost, entry.packet);
        }
    }

    /// Removes the first packet, if it is due by `until`: its place, its receiver, the packet.
    #[inline]
    pub(crate) fn pop(&mut self, until: u64) -> Option<(Place, usize, P)> {
        let front = self.line.front().map(|entry| entry.at);
        let other = if self.others.is_empty() { None } else { self.others.keys().next() };
        let entry = match (front, other) {
            (front, Some(other)) if front.is_none_or(|front| other < front) => {
                if other.0 > until {
                    return None;
                }
                self.others.remove(&other)?
            }
            (Some(front), _) if front.0 <= until => {
                let entry = self.line.pop_front()?;
                if self.line.is_empty() && self.line.capacity() > KEPT {
                    self.line.shrink_to(KEPT);
                }
                entry
            }
            _ => return None,
        };
        self.land(entry.origin, entry.cost);
        Some((entry.at, entry.to, entry.packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Origin = Origin::Port(3);

    fn put(flight: &mut Flight<u32>, at: Place, packet: u32) {
        assert!(flight.start(FROM, 10));
        flight.put(at, 0, FROM, 10, packet);
    }

    #[test]
    fn packets_come_in_the_order_of_their_places() {
        let mut flight = Flight::default();
        // One in the middle is late, so those behind it are due before it.
        for (packet, at) in [(0, 5), (1, 5), (2, 90), (3, 6), (4, 4), (5, 6), (6, 100)] {
            put(&mut flight, (at, u64::from(packet)), packet);
        }
        assert_eq!((flight.len(), flight.next(), flight.of_ports[3]), (7, Some(4), 70));
        assert!(flight.pop(3).is_none());
        let until = |flight: &mut Flight<u32>, until| {
            core::iter::from_fn(|| flight.pop(until).map(|(_, _, packet)| packet)).collect::<Vec<_>>()
        };
        assert_eq!(until(&mut flight, 5), [4, 0, 1]);
        assert_eq!(until(&mut flight, 90), [3, 5, 2]);
        assert_eq!((until(&mut flight, u64::MAX), flight.len(), flight.of_ports[3]), (vec![6], 0, 0));
    }

    #[test]
    fn packets_move_to_other_places() {
        let mut flight = Flight::default();
        for (packet, at) in [(0, 5), (1, 9), (2, 7), (3, 10)] {
            put(&mut flight, (at, u64::from(packet)), packet);
        }
        // One of the line, one of the tree, and one that is not there.
        for (from, to) in [((9, 1), (6, 10)), ((7, 2), (11, 11)), ((9, 1), (1, 12))] {
            assert_eq!(flight.has(from), to.0 != 1);
            flight.move_to(from, to);
        }
        let order = core::iter::from_fn(|| flight.pop(u64::MAX).map(|((at, _), _, packet)| (at, packet)));
        assert_eq!(order.collect::<Vec<_>>(), [(5, 0), (6, 1), (10, 3), (11, 2)]);
        assert_eq!(flight.of_ports[3], 0);
    }

    #[test]
    fn senders_have_a_limit() {
        let mut flight = Flight::<u32>::default();
        for origin in [Origin::Port(1), Origin::Link(1)] {
            assert!(flight.start(origin, MAX_FLIGHT + 1) && !flight.start(origin, 1));
            flight.land(origin, MAX_FLIGHT + 1);
            assert!(flight.start(origin, 1));
        }
        assert_eq!((flight.of_link(1), flight.of_link(2)), (1, 0));
    }

    #[test]
    fn an_empty_line_gives_its_memory_back() {
        let mut flight = Flight::default();
        for i in 0..100_000 {
            put(&mut flight, (0, i), 0);
        }
        while flight.pop(0).is_some() {}
        assert!(flight.line.capacity() <= 2 * KEPT);
    }
}
