// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model for tests: a device with one queue, which stores the packets that arrive.

use crate::model::{Model, Packet, PortEvent, Wait};
use crate::net::Address;
use crate::script::PacketFacts;
use crate::wire::{Malformed, Reader, Writer};
use crate::{Fabric, Front, Plugged, Port, QpKind, QpStat, State, Timer, Violations};

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) source: usize,
    pub(crate) queue: u32,
    pub(crate) data: Vec<u8>,
}

impl Packet for Frame {
    const PROTOCOL: [u8; 8] = *b"uvtest\0\x01";

    fn source(&self) -> usize {
        self.source
    }

    fn facts(&self) -> PacketFacts {
        PacketFacts { qp: Some(self.queue), bytes: self.data.len(), ..PacketFacts::default() }
    }

    fn set_source(&mut self, source: usize) {
        self.source = source;
    }

    fn cost(&self) -> usize {
        self.data.len() + 64
    }

    fn encode(&self, to: &mut Writer) {
        to.u32(self.queue);
        to.data(&self.data);
    }

    fn decode(source: usize, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { source, queue: from.u24()?, data: from.data(2 << 20)? })
    }
}

/// A device.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub(crate) timer: Timer,
    /// What arrived, with its time.
    pub(crate) arrived: Vec<(u64, Frame)>,
    /// The times at which the timer expired.
    pub(crate) expired: Vec<u64>,
    pub(crate) port_events: Vec<PortEvent>,
    /// How often the fabric has called for what it has to do.
    pub(crate) tidied: usize,
    violations: Violations<u32, Mistake>,
}

/// The only type of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Only;

impl QpKind for Only {
    const ALL: &'static [Self] = &[Self];

    fn ib_type(self) -> u8 {
        0xff
    }
}

/// A mistake of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    Odd,
    Even,
}

/// The front: what it has delivered.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) delivered: Vec<PortEvent>,
}

impl Front<Device> for Kernel {
    fn deliver(&mut self, device: &mut Device) {
        self.delivered.append(&mut device.port_events);
    }
}

impl Model for Device {
    type Packet = Frame;
    type Hosts = ();
    type Builder = Plugged<Self, Kernel>;
    type QpKind = Only;
    type Object = u32;
    type Mistake = Mistake;

    fn builder(fabric: &Fabric<Self>, name: &str) -> Self::Builder {
        fabric.plug(|number| {
            let address = Address { lid: number + 1, name: name.into(), ..Address::new(number, false) };
            (address, |_: &mut Port<'_, Frame>| <(Self, Kernel)>::default())
        })
    }

    fn receive(&mut self, port: &mut Port<'_, Frame>, packet: Box<Frame>) {
        self.arrived.push((port.now, *packet));
    }

    fn timer(&mut self, queue: u32) -> Option<(&mut Timer, Wait)> {
        (queue == 0).then_some((&mut self.timer, Wait::Answer))
    }

    fn timeout(&mut self, port: &mut Port<'_, Frame>, _: u32) {
        self.expired.push(port.now);
    }

    fn tidy(&mut self, _: &mut Port<'_, Frame>, _: usize) {
        self.tidied += 1;
    }

    fn port_event(&mut self, event: PortEvent) {
        self.port_events.push(event);
    }

    fn violations(&self) -> &Violations<u32, Mistake> {
        &self.violations
    }

    fn violations_mut(&mut self) -> &mut Violations<u32, Mistake> {
        &mut self.violations
    }

    fn repairs(&self) -> u64 {
        self.expired.len() as u64
    }

    fn qp_stats(&self) -> Vec<QpStat<Only>> {
        vec![QpStat::new(0, Only, State::Rts)]
    }

    fn forget(&mut self, _: &mut Port<'_, Frame>, _: usize) {}
}
