// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface between a fabric and the models of its devices.
//!
//! A [`Model`] is a device: the fabric calls it when a packet arrives, or a timer has expired. It gets a [`Port`] in return: the
//! clock, the network, and its place in it. What belongs to a device besides (registers, a kernel) is its [`Front`](crate::Front).
//! All devices of a fabric are of one model, whose [`Packet`]s they send, and one lock protects all of them.

use crate::aside::Aside;
use crate::capture::Captured;
use crate::direct::Near;
use crate::net::{Address, Net};
use crate::order::{Label, Route};
use crate::port::Port;
use crate::ring::{Queue, RingDump};
use crate::script::{Answer, PacketFacts, Rule};
use crate::stat::{QpKind, QpStat};
use crate::timer::Timer;
use crate::violation::Violations;
use crate::wire::{Malformed, Reader, Writer};
use core::fmt;
use uverbs_roce::frame::Grh;
use uverbs_roce::transport;

/// A device of a fabric.
pub trait Model: Sized + Send + fmt::Debug + 'static {
    /// What the devices send to each other.
    type Packet: Packet;
    /// What the hosts of the devices exchange besides packets; `()` for nothing.
    type Hosts: Hosts<Self::Packet>;
    /// What [`Fabric::device`](crate::Fabric::device) returns.
    type Builder;
    /// The types of its QPs.
    type QpKind: QpKind;
    /// An object that a mistake of a driver is about.
    type Object: Clone + fmt::Debug;
    /// A kind of mistake of a driver.
    type Mistake: Clone + fmt::Debug;

    /// A device of this name that is to be built.
    fn builder(fabric: &crate::Fabric<Self>, name: &str) -> Self::Builder;

    /// Receives a packet. The model may give its memory [back](Net::recycle).
    fn receive(&mut self, port: &mut Port<'_, Self::Packet>, packet: Box<Self::Packet>);

    /// The timer of a queue, and what it waits for; `None` if there is no such queue.
    fn timer(&mut self, queue: u32) -> Option<(&mut Timer, Wait)>;

    /// The number of the QP whose timer is that of this queue.
    fn queue_pair(&self, queue: u32) -> u32 {
        queue
    }

    /// The timer of a queue has expired.
    fn timeout(&mut self, port: &mut Port<'_, Self::Packet>, queue: u32);

    /// Whether a queue waits for [`exchange`](Self::exchange).
    fn has_ready(&self) -> bool {
        false
    }

    /// Executes requests of one of the queues that wait for it, at the other devices of the process or by packets. No packet is due. It
    /// ends soon: a queue that has more requests waits again.
    fn exchange(&mut self, port: &mut Port<'_, Self::Packet>, near: &mut Near<'_, Self>) {
        let _ = (port, near);
    }

    /// A copy that it has [left](Net::leave_copy) to a thread has ended: whether all bytes are copied. Nothing has happened to both queues
    /// meanwhile.
    fn copied(
        &mut self,
        port: &mut Port<'_, Self::Packet>,
        near: &mut Near<'_, Self>,
        copy: &Aside,
        is_done: bool,
    ) {
        let _ = (port, near, copy, is_done);
    }

    /// A copy has ended that a request of this queue may have [waited for](Net::after_copies).
    fn go_on(&mut self, port: &mut Port<'_, Self::Packet>, queue: u32) {
        let _ = (port, queue);
    }

    /// No other packet is due: sends what it has held back while there were packets, such as an acknowledgement of all of them.
    fn idle(&mut self, port: &mut Port<'_, Self::Packet>) {
        let _ = port;
    }

    /// Checks what no doorbell tells: at most so many queues. It is called often, also if there is nothing to check.
    fn tidy(&mut self, port: &mut Port<'_, Self::Packet>, most: usize);

    /// Whether [`tidy`](Self::tidy) must be called again soon.
    fn watches(&self) -> bool {
        false
    }

    /// Takes a step that it placed in a lane of the [order](crate::order): it writes a completion.
    fn step(&mut self, port: &mut Port<'_, Self::Packet>, token: u64) {
        let _ = (port, token);
    }

    /// Address and bytes of the memory that an atomic accesses, if it is known.
    fn target(&self, packet: &Self::Packet) -> Option<(u64, u64)> {
        let _ = packet;
        None
    }

    /// Stores a notice for the front: the link or the addresses of the port have changed.
    fn port_event(&mut self, event: PortEvent);

    /// The mistakes of its drivers.
    fn violations(&self) -> &Violations<Self::Object, Self::Mistake>;

    /// As [`violations`](Self::violations), to record or take them.
    fn violations_mut(&mut self) -> &mut Violations<Self::Object, Self::Mistake>;

    /// Packets that it repeated.
    fn repairs(&self) -> u64;

    /// Its QPs, by number.
    fn qp_stats(&self) -> Vec<QpStat<Self::QpKind>>;

    /// The memory of a queue of the QP with this number; `None` if there is none.
    fn queue(&self, qpn: u32, queue: Queue) -> Option<RingDump> {
        let _ = (qpn, queue);
        None
    }

    /// Completes a packet that arrives from outside of the fabric with what the wire does not have. `false`: it is refused, because no
    /// queue of the device expects it from its sender.
    fn admit(&mut self, port: &mut Port<'_, Self::Packet>, packet: &mut Self::Packet) -> bool {
        let _ = (port, packet);
        false
    }

    /// Why a rule of a script has no effect on any device of this model; `None` if it has one.
    #[must_use]
    fn refuses(rule: &Rule) -> Option<&'static str> {
        let _ = rule;
        None
    }

    /// Forgets what is stored about the port of another process: its slot gets another port.
    fn forget(&mut self, port: &mut Port<'_, Self::Packet>, slot: usize);
}

/// A change of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// Its link went up.
    Active,
    /// Its link went down.
    Error,
    /// Its LID changed.
    LidChange,
    /// Its GIDs changed.
    GidChange,
}

/// What the timer of a queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The answer to a packet, which may be in flight.
    Answer,
    /// A receiver that was not ready.
    Receiver {
        /// Whether it waits without a limit of retries.
        for_ever: bool,
    },
    /// Something else: the next packets of a message, for example.
    Other,
}

/// What devices send to each other.
pub trait Packet: Clone + fmt::Debug + Send + 'static {
    /// The first bytes of each connection between two processes of such a fabric, with the version of the protocol.
    const PROTOCOL: [u8; 8];

    /// Whether [`captured`](Self::captured) gives the packet: it has a public format.
    const IS_PUBLIC: bool = false;

    /// The number of the device that sent it.
    fn source(&self) -> usize;

    /// The packet as it is on the wire between two ports, for a capture file. `None` for packets that have no such form.
    fn captured(&self, from: &Address, to: &Address) -> Option<Captured> {
        let _ = (from, to);
        None
    }

    /// The QPs of the sender and of the receiver, for a trace.
    fn qpns(&self) -> (u32, u32) {
        (0, 0)
    }

    /// What it is in words, and the addresses in it, for a trace.
    fn words(&self) -> (String, String) {
        (format!("{self:?}"), String::new())
    }

    /// What a script may select it by. It is called if there is a script.
    fn facts(&self) -> PacketFacts {
        PacketFacts::default()
    }

    /// The answer of its receiver if it refuses the packet, from no device yet; `None` if the packet has no such answer.
    fn refused(&self, answer: Answer) -> Option<Self> {
        let _ = answer;
        None
    }

    /// The packet as a datagram of RoCE version 2: its route and transport packet. `None` for packets that have no such form.
    fn into_datagram(self) -> Option<(Grh, transport::Packet)> {
        None
    }

    /// The packet of a datagram, as far as the wire has its fields, with this source. `None` for packets that a device does not accept:
    /// the sender may be malicious.
    fn of_datagram(source: usize, route: Grh, packet: transport::Packet) -> Option<Self> {
        let _ = (source, route, packet);
        None
    }

    /// Sets the number of the device that sent it.
    fn set_source(&mut self, source: usize);

    /// The bytes that it takes while it is in flight: its data, and about as much as the network's records of it.
    fn cost(&self) -> usize;

    /// The route on which it stays in order, if the [modes of order](crate::order) apply to it.
    fn route(&self) -> Option<Route> {
        None
    }

    /// Whether other packets of its route overtake it, in the modes of order.
    fn is_unordered(&self) -> bool {
        false
    }

    /// Its data, which are read in steps.
    fn data_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    /// Whether it executes an atomic.
    fn is_atomic(&self) -> bool {
        false
    }

    /// The request that it belongs to, for words.
    fn label(&self) -> Label {
        Label::default()
    }

    /// Encodes it for another process, without its source.
    fn encode(&self, to: &mut Writer);

    /// Decodes it, with this source.
    ///
    /// # Errors
    /// The bytes are not a packet that a device accepts: the other process may be malicious.
    fn decode(source: usize, from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// A message between hosts, for another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The connection to that process.
    pub link: u32,
    /// The number of the port in the fabric.
    pub to: u16,
    /// The message, at most [`MAX_HOST`](crate::wire::MAX_HOST) bytes.
    pub bytes: Vec<u8>,
}

/// What the hosts of all devices exchange besides packets: the messages of a connection manager, for example.
pub trait Hosts<P: Packet>: Default + Send {
    /// The time of the next message.
    fn next(&self) -> Option<u64>;

    /// Delivers the next message that is due by `until`, and returns its time.
    fn deliver(&mut self, net: &mut Net<P>, now: u64, until: u64) -> Option<u64>;

    /// A message of another process for the host with this number arrives.
    fn arrived(&mut self, net: &mut Net<P>, now: u64, link: u32, to: u16, bytes: Vec<u8>);

    /// The port of another process is removed.
    fn lost(&mut self, net: &mut Net<P>, now: u64, slot: usize);

    /// The messages for other processes, which are removed.
    fn outgoing(&mut self) -> Vec<Outgoing>;

    /// The device of this host is removed.
    fn unplug(&mut self, _: &Net<P>, _now: u64, _host: usize) {}

    /// All processes of this host end at once, and peers are not told.
    fn kill(&mut self, _: &Net<P>, _now: u64, _host: usize) {}
}

impl<P: Packet> Hosts<P> for () {
    fn next(&self) -> Option<u64> {
        None
    }

    fn deliver(&mut self, _: &mut Net<P>, _: u64, _: u64) -> Option<u64> {
        None
    }

    fn arrived(&mut self, _: &mut Net<P>, _: u64, _: u32, _: u16, _: Vec<u8>) {}

    fn lost(&mut self, _: &mut Net<P>, _: u64, _: usize) {}

    fn outgoing(&mut self) -> Vec<Outgoing> {
        Vec::new()
    }
}
