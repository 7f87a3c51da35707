// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device, as the fabric calls it.

use super::qp::{QpKind, Ring};
use super::{Device, Notice, Port, trace};
use crate::DeviceBuilder;
use crate::packet::{Body, Packet};
use crate::violation::{Mistake, Object};
use uverbs_fabric::model::Wait;
use uverbs_fabric::order::Label;
use uverbs_fabric::ring::{Queue, RingDump};
use uverbs_fabric::script::{Action, Key, Point, Rule};
use uverbs_fabric::{Model, Packet as _, PortEvent, QpStat, Timer, Violations};

impl uverbs_fabric::QpKind for QpKind {
    const ALL: &'static [Self] = &[Self::Ud, Self::Srd];

    fn ib_type(self) -> u8 {
        match self {
            Self::Ud => 4,
            Self::Srd => 0xff,
        }
    }
}

impl Model for Device {
    type Packet = Packet;
    type Hosts = ();
    type Builder = DeviceBuilder;
    type QpKind = QpKind;
    type Object = Object;
    type Mistake = Mistake;

    fn builder(fabric: &crate::Fabric, name: &str) -> DeviceBuilder {
        DeviceBuilder::new(fabric, name)
    }

    fn step(&mut self, port: &mut Port<'_>, token: u64) {
        if let Some(completion) = self.deferred_completion(token) {
            self.complete_now(port, completion);
        }
    }

    fn receive(&mut self, port: &mut Port<'_>, packet: Box<Packet>) {
        self.begin(port, packet.label());
        self.stats.rx_pkts += 1;
        self.stats.rx_bytes += packet.body.data().len() as u64;
        match packet.body {
            Body::Datagram { .. } => self.datagram(port, *packet),
            Body::Ack { status } => self.answered(port, &packet, status),
            Body::ReadData { ref data } => self.read_answered(port, &packet, data),
            Body::Send { .. } | Body::Write { .. } | Body::Read { .. } => self.request(port, *packet),
        }
    }

    fn timer(&mut self, queue: u32) -> Option<(&mut Timer, Wait)> {
        let qp = self.qps.get_mut(&u16::try_from(queue).ok()?)?;
        let wait = match Self::waits_for_receives(qp) {
            Some(for_ever) => Wait::Receiver { for_ever },
            None if qp.kind == QpKind::Srd => Wait::Answer,
            None => Wait::Other,
        };
        Some((&mut qp.timer, wait))
    }

    fn queue_pair(&self, queue: u32) -> u32 {
        let qpn = u16::try_from(queue).ok().and_then(|index| self.qpn_of_index(index));
        qpn.map_or(queue, u32::from)
    }

    fn timeout(&mut self, port: &mut Port<'_>, queue: u32) {
        self.begin(port, Label::default());
        let Some(qpn) = u16::try_from(queue).ok().and_then(|i| self.qps.get(&i)).map(|qp| qp.qpn) else {
            return;
        };
        trace::timer(port, qpn);
        self.with_qp(qpn, |device, qp| device.expire(port, qp));
    }

    fn tidy(&mut self, port: &mut Port<'_>, _: usize) {
        self.cancelled.drain(..).for_each(|entry| port.net.cancel(entry));
        if port.net.is_traced() {
            self.notices.iter().for_each(|notice| trace::event(port, notice));
        }
    }

    fn port_event(&mut self, event: PortEvent) {
        let up = match event {
            PortEvent::Active => true,
            PortEvent::Error => false,
            // The kernel's driver has no such events: a device has one GID, and no LID.
            PortEvent::LidChange | PortEvent::GidChange => return,
        };
        self.notices.push(Notice::Link { up });
    }

    fn violations(&self) -> &Violations<Object, Mistake> {
        &self.violations
    }

    fn violations_mut(&mut self) -> &mut Violations<Object, Mistake> {
        &mut self.violations
    }

    fn repairs(&self) -> u64 {
        self.stats.retrans_pkts
    }

    fn qp_stats(&self) -> Vec<QpStat<QpKind>> {
        self.qps.values().map(|qp| QpStat::new(qp.qpn.into(), qp.kind, qp.state)).collect()
    }

    fn refuses(rule: &Rule) -> Option<&'static str> {
        let is_of_packet = rule.point == Point::Packet;
        match rule.action {
            Action::Nak(_) | Action::Rnr(_) => Some("a software EFA sends no NAK"),
            _ if is_of_packet && rule.selectors.iter().any(|(key, _)| *key == Key::Wr) => {
                Some("the packets of a software EFA have no number of a WR")
            }
            _ => None,
        }
    }

    fn queue(&self, qpn: u32, queue: Queue) -> Option<RingDump> {
        let qp = self.qps.values().find(|qp| u32::from(qp.qpn) == qpn)?;
        let kind = if qp.kind == QpKind::Ud { "ud" } else { "rc" };
        let ring = |ring: &Ring, what| {
            let next = u32::from(ring.next) & (ring.count - 1);
            RingDump::read(&ring.area, ("efa", what, kind), ring.entry as u32, next)
        };
        let cq = |(number, _): (u16, u16)| self.cqs.get(&number)?.dump(kind);
        match queue {
            Queue::Send => ring(qp.sq.as_ref()?, "wqe"),
            Queue::Recv => ring(qp.rq.as_ref()?, "recv"),
            Queue::SendCq => cq(qp.send_queue()),
            Queue::RecvCq => cq(qp.recv_queue()),
        }
    }

    fn forget(&mut self, _: &mut Port<'_>, slot: usize) {
        self.forget_slot(slot);
    }
}
