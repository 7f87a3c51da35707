// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device with its front, as the fabric calls it.

use super::packet::Packet;
use super::{Device, Front, Port};
use crate::DeviceBuilder;
use crate::cm::Cm;
use uverbs_fabric::model::Wait;
use uverbs_fabric::{Model, Timer};

/// A device and its front.
#[derive(Debug)]
pub struct Station {
    pub(crate) device: Device,
    pub(crate) front: Box<dyn Front>,
}

impl Model for Station {
    type Packet = Packet;
    type Hosts = Cm;
    type Builder = DeviceBuilder;

    fn builder(fabric: &crate::Fabric, name: &str) -> DeviceBuilder {
        DeviceBuilder::new(fabric, name)
    }

    fn receive(&mut self, port: &mut Port<'_>, packet: Packet) {
        self.device.receive(port, packet);
    }

    fn timer(&mut self, queue: u32) -> Option<(&mut Timer, Wait)> {
        let qp = self.device.qps.get_mut(&queue)?;
        let wait = match qp.req.waits_for_receiver() {
            true => Wait::Receiver { for_ever: qp.req.waits_for_ever(&qp.attr) },
            false if qp.is_reliable() => Wait::Answer,
            false => Wait::Other,
        };
        Some((&mut qp.timer, wait))
    }

    fn timeout(&mut self, port: &mut Port<'_>, queue: u32) {
        self.device.with_qp(port, queue, |device, port, qp| device.timeout(port, qp));
    }

    fn tidy(&mut self, port: &mut Port<'_>, most: usize) {
        self.device.end_users_of_broken_cqs(port);
        self.device.cancelled.drain(..).for_each(|entry| port.net.cancel(entry));
        if self.device.watches() {
            self.device.sweep(port, most);
        }
    }

    fn deliver(&mut self) {
        self.front.deliver(&mut self.device);
    }

    fn has_work(&self) -> bool {
        self.device.watches() || self.front.has_backlog()
    }

    fn forget(&mut self, port: &mut Port<'_>, slot: usize) {
        self.device.end_sessions(port, slot);
    }

    fn is_in_vm(&self) -> bool {
        self.front.is_in_vm()
    }
}
