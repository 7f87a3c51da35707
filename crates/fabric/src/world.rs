// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a fabric, which one lock protects: the devices, the network, the clock.

use crate::direct::PIECE;
use crate::front::{Front, Station};
use crate::model::{Hosts, Model, Outgoing, Packet, Wait};
use crate::net::{Address, Net, PortLocation};
use crate::peers::Peers;
use crate::port::Port;
use crate::timer::Check;
use crate::udp;
use crate::wire::Message;
use crate::world_lock::ROUND;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Interval of the checks of queues without doorbells, in real time.
const WATCH: Duration = Duration::from_millis(1);

/// How many packets are delivered between two readings of the clock.
const STEP: u32 = 16;

/// The queues in ERR that are checked for new receives in each call, and by the fabric's thread each time.
const SWEEP: usize = 8;
const SWEEP_OF_THREAD: usize = 256;

/// All state of a fabric.
pub struct World<M: Model> {
    /// The network.
    pub net: Net<M::Packet>,
    /// What the hosts of the devices exchange besides packets.
    pub hosts: M::Hosts,
    /// The clock, ns.
    pub now: u64,
    /// The devices; `None` in slots for ports of other processes.
    pub(crate) devices: Vec<Option<Station<M>>>,
    /// The numbers of the devices of this process. The slots for ports of other processes have no work.
    pub(crate) here: Vec<usize>,
    /// Those that were used since they were tidied, or have more work.
    pub(crate) listed: Vec<usize>,
    /// Other processes.
    pub(crate) peers: Peers<M::Packet>,
    /// The UDP sockets of ports.
    pub(crate) outside: udp::Links<M::Packet>,
    /// Whether the lock must be held only for a short time, because the world has devices of VMs.
    pub(crate) brief: bool,
    /// Whether the thread must end.
    pub(crate) stop: bool,
    /// When the thread will wake up.
    pub(crate) wakes: Option<u64>,
    /// The number of threads that wait for the lock.
    pub(crate) waiting: Arc<AtomicUsize>,
}

impl<M: Model> fmt::Debug for World<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.now).field("here", &self.here).finish_non_exhaustive()
    }
}

impl<M: Model> World<M> {
    /// A world without devices, whose network has this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            net: Net::new(seed),
            hosts: M::Hosts::default(),
            now: 0,
            devices: Vec::new(),
            here: Vec::new(),
            listed: Vec::new(),
            peers: Peers::new(),
            outside: udp::Links::default(),
            brief: false,
            stop: false,
            wakes: None,
            waiting: Arc::default(),
        }
    }

    /// A device of this process by its number, and the clock and network for it.
    pub fn device(&mut self, index: usize) -> Option<(&mut M, Port<'_, M::Packet>)> {
        self.station(index).map(|(station, port)| (&mut station.device, port))
    }

    /// As [`World::device`], with its front.
    pub(crate) fn station(&mut self, index: usize) -> Option<(&mut Station<M>, Port<'_, M::Packet>)> {
        let station = self.devices.get_mut(index)?.as_mut()?;
        if !station.is_listed {
            station.is_listed = true;
            self.listed.push(index);
        }
        Some((station, Port { now: self.now, me: index, net: &mut self.net }))
    }

    /// The device of this number must be tidied.
    pub(crate) fn list(&mut self, index: usize) {
        self.station(index);
    }

    /// The front of a device of this process.
    pub(crate) fn front(&self, index: usize) -> Option<&dyn Front<M>> {
        Some(&*self.devices.get(index)?.as_ref()?.front)
    }

    /// As [`World::device`], to read it.
    #[must_use]
    pub fn read(&self, index: usize) -> Option<&M> {
        self.devices.get(index)?.as_ref().map(|station| &station.device)
    }

    /// Delivers a packet that is due.
    fn deliver_one(&mut self) -> bool {
        if self.take_due_step(self.now) {
            return true;
        }
        let Some((_, to, packet)) = self.net.pop_packet(self.now) else {
            return self.exchange() || self.tell_idle();
        };
        self.arrive(to, packet);
        true
    }

    /// Tells the devices that no packet is due; returns whether they have sent packets then.
    fn tell_idle(&mut self) -> bool {
        let before = self.net.puts();
        for i in 0..self.listed.len() {
            if let Some((device, mut port)) = self.device(self.listed[i]) {
                device.idle(&mut port);
            }
        }
        self.net.puts() != before
    }

    /// Delivers a packet to its device, or passes it on to another process.
    pub(crate) fn arrive(&mut self, to: usize, packet: Box<M::Packet>) {
        match self.net.ports.get(to).map(|p| p.location) {
            Some(PortLocation::Here) => {
                if let Some((device, mut port)) = self.device(to) {
                    device.receive(&mut port, packet);
                }
            }
            Some(PortLocation::Away { link }) => {
                if let (Some(to), Some(from)) = (self.net.number(to), self.net.number(packet.source())) {
                    self.peers.forward(link, from, to, *packet);
                }
            }
            Some(PortLocation::Outside) => self.outside.push(to, *packet),
            Some(PortLocation::Gone) | None => {}
        }
        self.apply_script();
    }

    /// Adds a slot for a port of another process. No packet is delivered to it.
    pub(crate) fn push_away(&mut self) -> usize {
        let slot = self.devices.len();
        self.net.ports.push(Address { up: false, location: PortLocation::Gone, ..Address::new(0, false) });
        self.net.changes += 1;
        self.devices.push(None);
        slot
    }

    /// Delivers the packets that are due by `until`. A virtual clock is advanced to the time of each.
    fn deliver_packets(&mut self, until: u64, moves: bool) {
        loop {
            let is_later = self.net.next_packet().is_none_or(|at| at > self.now);
            if is_later && self.tell_idle() {
                continue;
            }
            if let Some(at) = self.net.next_packet().filter(|at| *at <= until) {
                self.run_script(at, moves);
            }
            let Some((at, to, packet)) = self.net.pop_packet(until) else { return };
            if moves {
                self.now = self.now.max(at);
            }
            self.arrive(to, packet);
        }
    }

    /// Delivers the messages of connection managers that are due by `until`. A virtual clock is advanced to the time of each.
    fn deliver_messages(&mut self, until: u64, moves: bool) {
        while let Some(at) = self.hosts.deliver(&mut self.net, self.now, until) {
            if moves {
                self.now = self.now.max(at);
            }
        }
    }

    /// Processes due work in real time, until `end` if there is one. Returns whether it has stopped for a thread that waits for the lock, or
    /// for a copy without it.
    fn settle_real(&mut self, end: Option<Instant>) -> bool {
        loop {
            let mut idle = false;
            while !idle && end.is_none_or(|end| Instant::now() < end) {
                for _ in 0..STEP {
                    idle = !self.deliver_one();
                    if idle || self.net.held >= PIECE {
                        break;
                    }
                }
                if self.net.held >= PIECE {
                    self.net.held = 0;
                    if !idle && (self.net.has_left_copy() || self.waiting.load(Ordering::Relaxed) > 0) {
                        return true;
                    }
                }
            }
            if !idle {
                // What the devices send now is delivered in the next call.
                self.tell_idle();
                self.fire_early();
                return false;
            }
            match self.net.pop_timer(self.now) {
                Some((entry, index, queue)) => self.fire(entry, index, queue, Check::Idle),
                None if self.net.next_packet().is_none_or(|at| at > self.now) => return false,
                None => {}
            }
        }
    }

    /// Runs each due timer once, while packets are due that were not delivered.
    fn fire_early(&mut self) {
        let due: Vec<_> = core::iter::from_fn(|| self.net.pop_timer(self.now)).collect();
        for (entry, index, queue) in due {
            self.fire(entry, index, queue, Check::Busy);
        }
    }

    /// Processes all packets, and runs each timer that waits for a receiver, or each timer, once. Returns whether any
    /// request waits with a limit.
    fn settle_virtual(&mut self, all_timers: bool) -> bool {
        self.deliver_packets(u64::MAX, true);
        if self.net.order.is_some() {
            if !all_timers {
                self.take_some_steps();
                return true;
            }
            self.take_all_steps();
        }
        let mut looked = BTreeSet::new();
        let mut later = Vec::new();
        let mut finite = false;
        while let Some((entry, index, queue)) = self.net.pop_timer(u64::MAX) {
            let at = entry.0;
            let timer = self.devices.get_mut(index).and_then(|device| device.as_mut()?.device.timer(queue));
            let Some((timer, wait)) = timer.filter(|(timer, _)| timer.queued == Some(entry)) else {
                continue;
            };
            let Some(deadline) = timer.deadline else {
                timer.queued = None;
                continue;
            };
            if deadline > at {
                // It was queued too early, and is queued again for its time.
                self.fire(entry, index, queue, Check::Virtual);
                continue;
            }
            let looks = all_timers || matches!(wait, Wait::Receiver { .. });
            if !looks || !looked.insert((index, queue)) {
                finite |= wait != Wait::Receiver { for_ever: true };
                later.push((entry, index, queue));
                continue;
            }
            self.now = self.now.max(at);
            self.fire(entry, index, queue, Check::Virtual);
            self.deliver_packets(u64::MAX, true);
            self.take_all_steps();
        }
        for (entry, index, queue) in later {
            self.set_again(entry, index, queue);
        }
        finite
    }

    /// How long due work is processed at a time, if the lock must be held only for a short time.
    pub(crate) fn round(&self) -> Option<Duration> {
        self.brief.then_some(ROUND)
    }

    /// Processes what is due, at most for `limit` in real time. Returns whether there is more to do now: on a virtual clock, whether a
    /// request waits with a limit; in real time, whether it has stopped for a thread that waits for the lock, or for a copy without it.
    pub(crate) fn settle(&mut self, is_virtual: bool, all_timers: bool, limit: Option<Duration>) -> bool {
        self.apply_script();
        self.run_script(self.now, false);
        self.deliver_messages(if is_virtual { u64::MAX } else { self.now }, is_virtual);
        let mut more = if is_virtual {
            self.settle_virtual(all_timers)
        } else {
            self.settle_real(limit.map(|limit| Instant::now() + limit))
        };
        if is_virtual
            && all_timers
            && !more
            && let Some(at) = self.next_of_script()
        {
            self.run_script(at, true);
            more = true;
        }
        // Only the fabric's thread, and a run of a virtual clock, look at more than a few queues in ERR at a time.
        let sweep = match (all_timers, is_virtual) {
            (true, true) => usize::MAX,
            (true, false) => SWEEP_OF_THREAD,
            (false, _) => SWEEP,
        };
        self.tidy(sweep, more && !is_virtual);
        more
    }

    /// Processes everything that is due by `until`, and advances the clock to that time.
    pub(crate) fn pass(&mut self, until: u64) {
        self.deliver_messages(until, true);
        loop {
            self.deliver_packets(until, true);
            self.take_all_steps();
            let clock = self.next_of_script().filter(|at| *at <= until);
            if let Some(at) = clock.filter(|at| self.net.next_timer().is_none_or(|timer| *at <= timer)) {
                self.run_script(at, true);
                continue;
            }
            let Some((entry, index, queue)) = self.net.pop_timer(until) else { break };
            self.now = self.now.max(entry.0);
            self.fire(entry, index, queue, Check::Virtual);
        }
        self.now = self.now.max(until);
        self.tidy(usize::MAX, false);
    }

    /// Advances the clock to the next timer, and runs it; `false` if there is none.
    pub(crate) fn run_next_timer(&mut self) -> bool {
        let Some((entry, index, queue)) = self.net.pop_timer(u64::MAX) else { return false };
        self.now = self.now.max(entry.0);
        self.fire(entry, index, queue, Check::Virtual);
        true
    }

    /// Checks queues without doorbells, and delivers notices to the programs. `is_stopped`: there are more packets now, so that no device
    /// was told that there is none.
    fn tidy(&mut self, sweep: usize, is_stopped: bool) {
        self.apply_script();
        // Only devices that were used have something to check or to deliver, so that the cost of a call does not grow with the
        // number of devices.
        for i in 0..self.listed.len() {
            if let Some((device, mut port)) = self.device(self.listed[i]) {
                device.tidy(&mut port, sweep);
            }
        }
        let devices = &mut self.devices;
        self.listed.retain(|index| {
            let Some(Some(station)) = devices.get_mut(*index) else { return false };
            station.deliver();
            station.is_listed = is_stopped || station.has_work();
            station.is_listed
        });
        self.peers.send_changes(&self.net);
        // After the ports, which the peers must have to answer.
        for Outgoing { link, to, bytes } in self.hosts.outgoing() {
            self.peers.send(link, &Message::Host { to, bytes });
        }
    }

    /// The time at which the thread must run next; `None` for never.
    pub(crate) fn next(&self) -> Option<u64> {
        // A listed device has work.
        let watch = (!self.listed.is_empty()).then(|| self.now.saturating_add(WATCH.as_nanos() as u64));
        let step = self.net.order.as_ref().and_then(|order| order.next_due());
        let ready = self.has_ready().then_some(self.now);
        let times = [
            ready,
            self.net.next_packet(),
            self.net.next_timer(),
            self.hosts.next(),
            watch,
            step,
            self.next_of_script(),
        ];
        times.into_iter().flatten().min()
    }
}
