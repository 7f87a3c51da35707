// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device, as the fabric calls it.

use super::notice::{Notice, event};
use super::packet::Packet;
use super::qp::{Qp, QpKind};
use super::{Device, Port, trace};
use crate::DeviceBuilder;
use crate::cm::Cm;
use crate::violation::{Mistake, Object};
use uverbs_fabric::model::Wait;
use uverbs_fabric::ring::{Queue, RingDump};
use uverbs_fabric::script::{Action, Point, Rule};
use uverbs_fabric::{Aside, Model, Near, PortEvent, QpStat, Timer, Violations};

impl uverbs_fabric::QpKind for QpKind {
    const ALL: &'static [Self] = &[
        Self::Rc,
        Self::Uc,
        Self::Ud,
        Self::XrcSend,
        Self::XrcRecv,
        Self::Dci,
        Self::Dct,
        Self::Raw,
        Self::Keys,
    ];

    fn ib_type(self) -> u8 {
        match self {
            Self::Rc => 2,
            Self::Uc => 3,
            Self::Ud => 4,
            Self::Raw => 8,
            Self::XrcSend => 9,
            Self::XrcRecv => 10,
            Self::Dci | Self::Dct | Self::Keys => 0xff,
        }
    }
}

impl Model for Device {
    type Packet = Packet;
    type Hosts = Cm;
    type Builder = DeviceBuilder;
    type QpKind = QpKind;
    type Object = Object;
    type Mistake = Mistake;

    fn builder(fabric: &crate::Fabric, name: &str) -> DeviceBuilder {
        DeviceBuilder::new(fabric, name)
    }

    fn receive(&mut self, port: &mut Port<'_>, packet: Box<Packet>) {
        self.arrive(port, packet);
    }

    fn timer(&mut self, queue: u32) -> Option<(&mut Timer, Wait)> {
        let qp = self.qps.get_mut(&queue)?;
        let wait = match qp.req.waits_for_receiver() {
            true => Wait::Receiver { for_ever: qp.req.waits_for_ever(&qp.attr) },
            false if qp.is_reliable() => Wait::Answer,
            false => Wait::Other,
        };
        Some((&mut qp.timer, wait))
    }

    fn timeout(&mut self, port: &mut Port<'_>, queue: u32) {
        self.with_qp(port, queue, |device, port, qp| {
            if qp.copying.holds_timer() {
                return;
            }
            trace::timer(port, qp);
            device.expire(port, qp);
        });
    }

    fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn exchange(&mut self, port: &mut Port<'_>, near: &mut Near<'_, Self>) {
        self.exchange_one(port, near);
    }

    fn copied(&mut self, port: &mut Port<'_>, near: &mut Near<'_, Self>, copy: &Aside, is_done: bool) {
        self.end_copy(port, near, copy, is_done);
    }

    fn go_on(&mut self, port: &mut Port<'_>, queue: u32) {
        self.with_qp(port, queue, |device, port, qp| device.transmit(port, qp));
    }

    fn idle(&mut self, port: &mut Port<'_>) {
        if !self.unacknowledged.is_empty() {
            self.acknowledge(port);
        }
    }

    fn tidy(&mut self, port: &mut Port<'_>, most: usize) {
        self.end_users_of_broken_cqs(port);
        self.cancelled.drain(..).for_each(|entry| port.net.cancel(entry));
        if self.watches() {
            self.sweep(port, most);
        }
        self.close_blocks(port);
        self.trace_notices(port);
    }

    fn watches(&self) -> bool {
        self.has_failed()
    }

    fn target(&self, packet: &Packet) -> Option<(u64, u64)> {
        let super::packet::Body::Atomic { addr, rkey, .. } = &packet.body else { return None };
        let qp = self.qps.get(&packet.dest_qpn)?;
        let user = self.remote_user(qp, packet);
        let (memory, offset) =
            self.mkeys.resolve(user, *rkey, *addr, 8, super::mkey::access::REMOTE_ATOMIC).ok()??;
        Some((memory.address(offset)?, 8))
    }

    fn step(&mut self, port: &mut Port<'_>, token: u64) {
        if let Some((cqn, cqe)) = self.placed_completion(token) {
            self.complete_now(port, cqn, cqe);
        }
    }

    fn port_event(&mut self, event: PortEvent) {
        let event = match event {
            PortEvent::Active => event::PORT_ACTIVE,
            PortEvent::Error => event::PORT_ERR,
            PortEvent::LidChange => event::LID_CHANGE,
            PortEvent::GidChange => event::GID_CHANGE,
        };
        self.notices.push(Notice::Port { event });
    }

    fn violations(&self) -> &Violations<Object, Mistake> {
        &self.violations
    }

    fn violations_mut(&mut self) -> &mut Violations<Object, Mistake> {
        &mut self.violations
    }

    fn repairs(&self) -> u64 {
        self.repairs
    }

    fn qp_stats(&self) -> Vec<QpStat<QpKind>> {
        let stat = |qp: &Qp| {
            let mut stat = QpStat::new(qp.qpn, qp.kind, qp.state);
            stat.remote = (qp.attr.dest_qpn != 0 && qp.state.receives()).then_some(qp.attr.dest_qpn);
            (stat.sq_psn, stat.rq_psn) = (qp.req.next_psn(), qp.resp.expected_psn());
            stat
        };
        self.qps.values().map(stat).collect()
    }

    fn refuses(rule: &Rule) -> Option<&'static str> {
        let is_kept = matches!(rule.action, Action::Drop | Action::Delay(_));
        let reason = "the completions of a software ConnectX are in order, and none is lost";
        (rule.point == Point::Completion && is_kept).then_some(reason)
    }

    fn queue(&self, qpn: u32, queue: Queue) -> Option<RingDump> {
        self.dump(qpn, queue)
    }

    fn admit(&mut self, port: &mut Port<'_>, packet: &mut Packet) -> bool {
        Self::admit(self, port, packet)
    }

    fn forget(&mut self, port: &mut Port<'_>, slot: usize) {
        self.end_sessions(port, slot);
    }
}
