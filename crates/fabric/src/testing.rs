// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model for tests: a device with one queue, which stores the packets that arrive.

use crate::Fabric;
use crate::model::{Model, Packet, Wait};
use crate::net::Address;
use crate::port::Port;
use crate::timer::Timer;
use crate::wire::{Malformed, Reader, Writer};

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
pub(crate) struct Station {
    pub(crate) timer: Timer,
    /// What arrived, with its time.
    pub(crate) arrived: Vec<(u64, Frame)>,
    /// The times at which the timer expired.
    pub(crate) expired: Vec<u64>,
}

impl Model for Station {
    type Packet = Frame;
    type Hosts = ();
    type Builder = usize;

    fn builder(fabric: &Fabric<Self>, _: &str) -> usize {
        fabric.plug(|number| {
            let address = Address { lid: number + 1, ..Address::new(number, false) };
            (address, |_: &mut Port<'_, Frame>| Self::default())
        })
    }

    fn receive(&mut self, port: &mut Port<'_, Frame>, packet: Frame) {
        self.arrived.push((port.now, packet));
    }

    fn timer(&mut self, queue: u32) -> Option<(&mut Timer, Wait)> {
        (queue == 0).then_some((&mut self.timer, Wait::Answer))
    }

    fn timeout(&mut self, port: &mut Port<'_, Frame>, _: u32) {
        self.expired.push(port.now);
    }

    fn tidy(&mut self, _: &mut Port<'_, Frame>, _: usize) {}

    fn deliver(&mut self) {}

    fn has_work(&self) -> bool {
        false
    }

    fn forget(&mut self, _: &mut Port<'_, Frame>, _: usize) {}
}
