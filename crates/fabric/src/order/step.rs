// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps of devices: what the scheduler chooses from, what each accesses, and each in words.

use crate::memory::Memory;
use core::fmt;
use std::sync::Arc;

/// Bytes of a step that reads or writes data: a line of the cache.
pub const LINE: usize = 64;

/// Whose accesses of a queue pair: those for its own requests, or those for the requests of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Responses and completions of its own requests.
    Requester,
    /// The requests of its peer.
    Responder,
}

/// The writes of a device for one side of one queue pair, which become visible one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// The number of the device in the fabric.
    pub device: usize,
    /// The number of the queue pair.
    pub queue: u32,
    /// The side of it.
    pub side: Side,
    /// The message, on a queue pair whose messages have no order; else 0.
    pub message: u64,
}

impl Lane {
    /// The lane of a queue pair whose messages are in order. [`Port::place`](crate::Port::place) sets the device.
    #[must_use]
    pub const fn of_queue(queue: u32, side: Side) -> Self {
        Self { device: 0, queue, side, message: 0 }
    }
}

/// A position in a lane: all its writes so far. [`Fill::after`] waits until they are visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub(super) lane: Lane,
    /// The number of the last step of the fabric at that time.
    pub(super) last: u64,
    /// The order that it is of: with another order, all earlier writes are visible.
    pub(super) epoch: u64,
}

/// The way of packets that stay in order: from a queue pair to a queue pair, requests and responses apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The number of the sender's queue pair.
    pub src: u32,
    /// The number of the receiver's queue pair.
    pub dest: u32,
    /// Whether it is a response.
    pub is_response: bool,
}

/// Bytes of a packet that are read from memory before it is sent.
#[derive(Clone, Debug)]
pub struct Fill {
    /// The memory.
    pub memory: Arc<dyn Memory>,
    /// Offset in the memory.
    pub offset: u64,
    /// Offset in the data of the packet.
    pub at: usize,
    /// Bytes.
    pub len: usize,
    /// The writes that must be visible before.
    pub after: Option<Mark>,
}

/// What a packet waits for before it is delivered; by default nothing.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// The data that are read into it.
    pub fills: Vec<Fill>,
    /// The writes that must be visible before: its request is fenced.
    pub after: Option<Mark>,
}

/// Bytes that a device writes to memory.
#[derive(Debug)]
pub struct Store {
    /// The memory.
    pub memory: Arc<dyn Memory>,
    /// Offset in the memory.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether it may become visible before earlier writes: the region has `IBV_ACCESS_RELAXED_ORDERING`.
    pub relaxed: bool,
    /// Whether it is the result of an atomic, 8 aligned bytes: other atomics of the device wait for it.
    pub atomic: bool,
    /// The request that it belongs to.
    pub label: Label,
}

/// A step of a device that it takes itself, when its place in a lane is reached: it writes a completion.
#[derive(Clone, Copy, Debug)]
pub struct ModelStep {
    /// The step, for the device.
    pub token: u64,
    /// The object that it changes.
    pub object: u32,
    /// Whether the packets of the queue pair are read before: a completion without an acknowledgement of the peer.
    pub after_reads: bool,
    /// The request that it belongs to.
    pub label: Label,
}

/// A request of a queue pair, for words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// The operation: "WRITE".
    pub op: &'static str,
    /// The sequence number of the packet.
    pub psn: u32,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, psn } = self;
        write!(f, "{op}, PSN {psn}")
    }
}

/// A step that can be executed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// Its number: steps are numbered as they arise.
    pub number: u64,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Place(Lane),
    Fetch(Way),
    Deliver(Way),
}

/// The key of a queue of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    pub(super) from: usize,
    /// Before `to`, so that the ways from a queue pair are neighbours.
    pub(super) route: Route,
    pub(super) to: usize,
    /// Not 0 for a packet that others may overtake.
    pub(super) alone: u64,
}

impl Way {
    /// The queue pair, by device and number, that gets an answer by its packets.
    pub(super) fn answers(&self) -> (usize, u32) {
        if self.route.is_response { (self.to, self.route.dest) } else { (self.from, self.route.src) }
    }
}

/// What a step accesses: two steps without a common access, or that both only read it, can be exchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Address and bytes of memory that it reads.
    pub reads: Option<(u64, u64)>,
    /// Address and bytes of memory that it writes.
    pub writes: Option<(u64, u64)>,
    /// The object of a device that it changes: number of the device, and of the object.
    pub object: Option<(usize, u32)>,
    /// Whether it may access anything.
    pub everything: bool,
}

impl Footprint {
    /// Whether the order of two steps can make a difference.
    #[must_use]
    pub fn conflicts(&self, other: &Self) -> bool {
        let meet = |a: Option<(u64, u64)>, b: Option<(u64, u64)>| match (a, b) {
            (Some((a, n)), Some((b, m))) => a < b.saturating_add(m) && b < a.saturating_add(n),
            _ => false,
        };
        self.everything
            || other.everything
            || meet(self.writes, other.writes)
            || meet(self.writes, other.reads)
            || meet(self.reads, other.writes)
            || self.object.is_some() && self.object == other.object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_accesses_of_the_same_bytes_with_a_write_conflict() {
        let read = |at, len| Footprint { reads: Some((at, len)), ..Footprint::default() };
        let write = |at, len| Footprint { writes: Some((at, len)), ..Footprint::default() };
        let object = |n| Footprint { object: Some((0, n)), ..Footprint::default() };
        assert!(!read(0, 8).conflicts(&read(0, 8)));
        assert!(read(0, 8).conflicts(&write(7, 1)) && write(7, 1).conflicts(&read(0, 8)));
        assert!(!read(0, 8).conflicts(&write(8, 8)));
        assert!(write(0, 8).conflicts(&write(4, 8)));
        assert!(object(1).conflicts(&object(1)) && !object(1).conflicts(&object(2)));
        assert!(!object(1).conflicts(&write(0, 1)));
        assert!(write(u64::MAX - 1, 8).conflicts(&read(u64::MAX - 1, 1)));
    }
}
