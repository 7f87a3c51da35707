// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a fabric, which one lock protects: the devices, their fronts, the network, the clock.

use crate::cm::Cm;
use crate::engine::Front;
use crate::engine::net::{Address, Net, PortLocation, TimerEntry};
use crate::engine::packet::Packet;
use crate::engine::{Device, Port};
use crate::peers::Peers;
use crate::world_lock::ROUND;
use core::any::Any;
use core::time::Duration;
use std::collections::BTreeSet;
use std::time::Instant;

/// Interval of the checks of queues without doorbells, in real time.
const WATCH: Duration = Duration::from_millis(1);

/// How many packets are delivered between two readings of the clock.
const STEP: u32 = 16;

/// The queues in ERR that are checked for new receives in each call, and by the fabric's thread each time.
const SWEEP: usize = 8;
const SWEEP_OF_THREAD: usize = 256;

/// Timers of queues with packets in flight are postponed by this time, because a packet in flight may be the answer that a
/// timer waits for.
const LATE: u64 = 1_000_000_000;

/// All state of a fabric.
pub(crate) struct World {
    pub(crate) net: Net,
    pub(crate) devices: Vec<Device>,
    /// The front of each device; `None` in slots for ports of other processes.
    pub(crate) fronts: Vec<Option<Box<dyn Front>>>,
    /// The numbers of the devices of this process. The slots for ports of other processes have no work.
    pub(crate) here: Vec<usize>,
    /// Other processes.
    pub(crate) peers: Peers,
    /// The connection managers of the devices.
    pub(crate) cm: Cm,
    /// Nanoseconds.
    pub(crate) now: u64,
    /// Whether the lock must be held only for a short time, because the world has devices of VMs.
    pub(crate) brief: bool,
    /// Whether the thread must end.
    pub(crate) stop: bool,
    /// When the thread will wake up.
    pub(crate) wakes: Option<u64>,
}

impl World {
    /// A world without devices, whose network has this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            net: Net::new(seed),
            devices: Vec::new(),
            fronts: Vec::new(),
            here: Vec::new(),
            peers: Peers::default(),
            cm: Cm::default(),
            now: 0,
            brief: false,
            stop: false,
            wakes: None,
        }
    }

    /// A device, and the clock and network for it.
    pub(crate) fn device(&mut self, index: usize) -> Option<(&mut Device, Port<'_>)> {
        let device = self.devices.get_mut(index)?;
        Some((device, Port { now: self.now, me: index, net: &mut self.net }))
    }

    /// A device, its front, and the clock and network for them; `None` if its front is not an `F`.
    pub(crate) fn parts<F: Front>(&mut self, index: usize) -> Option<(&mut Device, &mut F, Port<'_>)> {
        let device = self.devices.get_mut(index)?;
        let front: &mut dyn Any = &mut **self.fronts.get_mut(index)?.as_mut()?;
        Some((device, front.downcast_mut()?, Port { now: self.now, me: index, net: &mut self.net }))
    }

    /// The front of a device; `None` if it is not an `F`.
    pub(crate) fn front<F: Front>(&self, index: usize) -> Option<&F> {
        let front: &dyn Any = &**self.fronts.get(index)?.as_ref()?;
        front.downcast_ref()
    }

    /// Delivers a packet that is due.
    fn deliver_one(&mut self) -> bool {
        let Some((_, to, packet)) = self.net.pop_packet(self.now) else { return false };
        self.arrive(to, packet);
        true
    }

    /// Delivers a packet to its device, or passes it on to another process.
    fn arrive(&mut self, to: usize, packet: Packet) {
        match self.net.ports.get(to).map(|p| p.location) {
            Some(PortLocation::Here) => {
                if let Some((device, mut port)) = self.device(to) {
                    device.receive(&mut port, packet);
                }
            }
            Some(PortLocation::Away { link }) => {
                let (Some(to), Some(from)) = (self.net.number(to), self.net.number(packet.from)) else {
                    return;
                };
                self.peers.forward(link, from, to, packet);
            }
            Some(PortLocation::Gone) | None => {}
        }
    }

    /// Adds a slot for a port of another process: a device without objects, to which no packet is delivered.
    pub(crate) fn push_away(&mut self) -> usize {
        let slot = self.devices.len();
        let gids = Vec::new();
        self.net.ports.push(Address {
            ethernet: false,
            lid: 0,
            mac: [0; 6],
            gids,
            up: false,
            sent: 0,
            received: 0,
            location: PortLocation::Gone,
            number: 0,
        });
        self.net.changes += 1;
        self.devices.push(Device::new(false, 1));
        self.fronts.push(None);
        slot
    }

    /// Delivers the packets that are due by `until`. A virtual clock is advanced to the time of each.
    fn deliver_packets(&mut self, until: u64, moves: bool) {
        while let Some((at, to, packet)) = self.net.pop_packet(until) {
            if moves {
                self.now = self.now.max(at);
            }
            self.arrive(to, packet);
        }
    }

    /// Delivers the messages of connection managers that are due by `until`. A virtual clock is advanced to the time of each.
    fn deliver_messages(&mut self, until: u64, moves: bool) {
        while let Some(at) = self.cm.deliver(&mut self.net, self.now, until) {
            if moves {
                self.now = self.now.max(at);
            }
        }
    }

    fn fire(&mut self, entry: TimerEntry, index: usize, qpn: u32) {
        if let Some((device, mut port)) = self.device(index) {
            device.timer(&mut port, qpn, entry);
        }
    }

    /// Sets a timer again that was popped and not run.
    fn set_again(&mut self, entry: TimerEntry, index: usize, qpn: u32) {
        let qp = self.devices.get_mut(index).and_then(|d| d.qps.get_mut(&qpn));
        if let Some(qp) = qp.filter(|qp| qp.timer.queued == Some(entry)) {
            qp.timer.queued = Some(self.net.wake(entry.0, index, qpn));
        }
    }

    /// Processes due work in real time, until `end` if there is one.
    fn settle_real(&mut self, end: Option<Instant>) {
        loop {
            let mut idle = false;
            while !idle && end.is_none_or(|end| Instant::now() < end) {
                idle = !(0..STEP).all(|_| self.deliver_one());
            }
            if !idle {
                self.fire_early();
                return;
            }
            match self.net.pop_timer(self.now) {
                Some((entry, index, qpn)) => self.fire(entry, index, qpn),
                None if self.net.next_packet().is_none_or(|at| at > self.now) => return,
                None => {}
            }
        }
    }

    /// Runs each due timer once, except timers that wait for an answer, which may be among the due packets.
    fn fire_early(&mut self) {
        let due: Vec<_> = core::iter::from_fn(|| self.net.pop_timer(self.now)).collect();
        for (entry, index, qpn) in due {
            let qp = self.devices.get(index).and_then(|d| d.qps.get(&qpn));
            let answer = qp.is_some_and(|qp| qp.is_reliable() && !qp.req.waits_for_receiver());
            if answer && entry.0.saturating_add(LATE) > self.now {
                self.set_again(entry, index, qpn);
            } else {
                self.fire(entry, index, qpn);
            }
        }
    }

    /// Processes all packets, and runs each timer that waits for a receiver, or each timer, once. Returns whether any
    /// request waits with a limit.
    fn settle_virtual(&mut self, all_timers: bool) -> bool {
        self.deliver_packets(u64::MAX, true);
        let mut looked = BTreeSet::new();
        let mut later = Vec::new();
        let mut finite = false;
        while let Some((entry, index, qpn)) = self.net.pop_timer(u64::MAX) {
            let qp = self.devices.get_mut(index).and_then(|d| d.qps.get_mut(&qpn));
            let at = entry.0;
            let Some(qp) = qp.filter(|qp| qp.timer.queued == Some(entry)) else { continue };
            let Some(deadline) = qp.timer.deadline else {
                qp.timer.queued = None;
                continue;
            };
            if deadline > at {
                // It was queued too early, and is queued again for its time.
                self.fire(entry, index, qpn);
                continue;
            }
            let looks = all_timers || qp.req.waits_for_receiver();
            if !looks || !looked.insert((index, qpn)) {
                finite |= !qp.req.waits_for_ever(&qp.attr);
                later.push((entry, index, qpn));
                continue;
            }
            self.now = self.now.max(at);
            self.fire(entry, index, qpn);
            self.deliver_packets(u64::MAX, true);
        }
        for (entry, index, qpn) in later {
            self.set_again(entry, index, qpn);
        }
        finite
    }

    /// How long due work is processed at a time, if the lock must be held only for a short time.
    pub(crate) fn round(&self) -> Option<Duration> {
        self.brief.then_some(ROUND)
    }

    /// Processes what is due, at most for `limit` in real time.
    pub(crate) fn settle(&mut self, is_virtual: bool, all_timers: bool, limit: Option<Duration>) -> bool {
        self.deliver_messages(if is_virtual { u64::MAX } else { self.now }, is_virtual);
        let more = if is_virtual {
            self.settle_virtual(all_timers)
        } else {
            self.settle_real(limit.map(|limit| Instant::now() + limit));
            false
        };
        // Only the fabric's thread, and a run of a virtual clock, look at more than a few queues in ERR at a time.
        self.tidy(match (all_timers, is_virtual) {
            (true, true) => usize::MAX,
            (true, false) => SWEEP_OF_THREAD,
            (false, _) => SWEEP,
        });
        more
    }

    /// Processes everything that is due by `until`, and advances the clock to that time.
    pub(crate) fn pass(&mut self, until: u64) {
        self.deliver_messages(until, true);
        loop {
            self.deliver_packets(until, true);
            let Some((entry, index, qpn)) = self.net.pop_timer(until) else { break };
            self.now = self.now.max(entry.0);
            self.fire(entry, index, qpn);
        }
        self.now = self.now.max(until);
        self.tidy(usize::MAX);
    }

    /// Checks queues without doorbells, and delivers notices to the programs.
    fn tidy(&mut self, sweep: usize) {
        for i in 0..self.here.len() {
            let index = self.here[i];
            if let Some((device, mut port)) = self.device(index) {
                device.end_users_of_broken_cqs(&mut port);
                device.cancelled.drain(..).for_each(|entry| port.net.cancel(entry));
                if device.watches() {
                    device.sweep(&mut port, sweep);
                }
            }
        }
        for index in self.here.iter().copied() {
            let (device, front) = (self.devices.get_mut(index), self.fronts.get_mut(index));
            if let (Some(device), Some(Some(front))) = (device, front) {
                front.deliver(device);
            }
        }
        self.peers.send_changes(&self.net);
        // After the ports, which the peers must have to answer.
        for (link, message) in self.cm.outgoing() {
            self.peers.send(link, &message);
        }
    }

    /// The time at which the thread must run next; `None` for never.
    pub(crate) fn next(&self) -> Option<u64> {
        let waits = |index: &usize| {
            let device = self.devices.get(*index).is_some_and(Device::watches);
            device || self.fronts.get(*index).is_some_and(|f| f.as_ref().is_some_and(|f| f.has_backlog()))
        };
        let watched = self.here.iter().any(waits);
        let watch = watched.then(|| self.now.saturating_add(WATCH.as_nanos() as u64));
        [self.net.next_packet(), self.net.next_timer(), self.cm.next(), watch].into_iter().flatten().min()
    }
}
