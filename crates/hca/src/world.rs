// SPDX-License-Identifier: MIT OR Apache-2.0
//! One fabric behind one lock: the devices, their fronts, the network, the clock.

use crate::engine::net::{Address, Net, PortLocation};
use crate::engine::packet::Packet;
use crate::engine::{Device, Port};
use crate::kernel::front::Front;
use crate::trunk::Peers;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Interval of the checks of queues without doorbells, in real time.
const WATCH: Duration = Duration::from_millis(1);

/// How long a call processes due work, on a fabric that must answer soon; the thread processes the rest. A VM is
/// stopped while its device does not answer, and disconnects after some seconds (QEMU's vfio-user: five).
const BRIEF: Duration = Duration::from_micros(250);

/// How long the thread holds such a fabric at a time.
const ROUND: Duration = Duration::from_millis(1);

/// How many packets are delivered between two readings of the clock.
const STEP: u32 = 16;

/// While packets are on their way, an answer that is late for a timer may be among them. So those timers wait, this
/// long.
const LATE: u64 = 1_000_000_000;

/// How the thread waits for others that need the lock: number and duration of its pauses.
const COURTESY: (u32, Duration) = (50, Duration::from_micros(20));

/// All state of a fabric.
pub(crate) struct World {
    pub(crate) net: Net,
    pub(crate) devices: Vec<Device>,
    pub(crate) fronts: Vec<Front>,
    /// Of devices that are PCI functions; their `fronts` have no contexts.
    #[cfg(feature = "pci")]
    pub(crate) functions: Vec<Option<Box<crate::pci::Function>>>,
    /// Other processes.
    pub(crate) peers: Peers,
    /// Nanoseconds.
    pub(crate) now: u64,
    /// Nobody may be kept waiting while much is moved: devices of VMs are here.
    pub(crate) brief: bool,
    stop: bool,
    /// When the thread will wake up.
    wakes: Option<u64>,
}

impl World {
    /// A device and its surroundings.
    pub(crate) fn device(&mut self, index: usize) -> Option<(&mut Device, Port<'_>)> {
        let device = self.devices.get_mut(index)?;
        Some((device, Port { now: self.now, me: index, net: &mut self.net }))
    }

    /// A device, its front, and its surroundings.
    pub(crate) fn parts(&mut self, index: usize) -> Option<(&mut Device, &mut Front, Port<'_>)> {
        let device = self.devices.get_mut(index)?;
        let front = self.fronts.get_mut(index)?;
        Some((device, front, Port { now: self.now, me: index, net: &mut self.net }))
    }

    /// A device that is a PCI function, that, and its surroundings.
    #[cfg(feature = "pci")]
    pub(crate) fn function(
        &mut self,
        index: usize,
    ) -> Option<(&mut Device, &mut crate::pci::Function, Port<'_>)> {
        let device = self.devices.get_mut(index)?;
        let function = self.functions.get_mut(index)?.as_mut()?;
        Some((device, function, Port { now: self.now, me: index, net: &mut self.net }))
    }

    /// Delivers a packet that is due.
    fn deliver_one(&mut self) -> bool {
        let Some((_, to, packet)) = self.net.pop_packet(self.now) else { return false };
        self.arrive(to, packet);
        true
    }

    /// A packet is there, or goes on to another process.
    fn arrive(&mut self, to: usize, packet: Packet) {
        match self.net.ports.get(to).map(|p| p.location) {
            Some(PortLocation::Here) => {
                if let Some((device, mut port)) = self.device(to) {
                    device.receive(&mut port, packet);
                }
            }
            Some(PortLocation::Away { link, number }) => self.peers.forward(link, number, packet),
            Some(PortLocation::Gone) | None => {}
        }
    }

    /// A slot for a port of another process: a device without anything, that nothing reaches.
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
        });
        self.devices.push(Device::new(false, 1));
        self.fronts.push(Front::new(crate::fabric::Config::default(), 0));
        #[cfg(feature = "pci")]
        self.functions.push(None);
        slot
    }

    /// Delivers the packets that are due by `until`; the clock follows if it is virtual.
    fn deliver_packets(&mut self, until: u64, moves: bool) {
        while let Some((at, to, packet)) = self.net.pop_packet(until) {
            if moves {
                self.now = self.now.max(at);
            }
            self.arrive(to, packet);
        }
    }

    fn fire(&mut self, index: usize, qpn: u32) {
        if let Some((device, mut port)) = self.device(index) {
            device.timer(&mut port, qpn);
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
                Some((_, index, qpn)) => self.fire(index, qpn),
                None if self.net.next_packet().is_none_or(|at| at > self.now) => return,
                None => {}
            }
        }
    }

    /// The timers that are due, once each; but not those that wait for an answer: it may be among the packets that are due.
    fn fire_early(&mut self) {
        let due: Vec<_> = core::iter::from_fn(|| self.net.pop_timer(self.now)).collect();
        for (at, index, qpn) in due {
            let qp = self.devices.get(index).and_then(|d| d.qps.get(&qpn));
            let answer = qp.is_some_and(|qp| qp.is_reliable() && !qp.req.waits_for_receiver());
            if answer && at.saturating_add(LATE) > self.now {
                self.net.wake(at, index, qpn);
            } else {
                self.fire(index, qpn);
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
        while let Some((at, index, qpn)) = self.net.pop_timer(u64::MAX) {
            let qp = self.devices.get_mut(index).and_then(|d| d.qps.get_mut(&qpn));
            let Some(qp) = qp else { continue };
            let Some(deadline) = qp.timer.deadline else {
                qp.timer.queued = None;
                continue;
            };
            if deadline > at {
                // Queued too early: comes again at its time.
                self.fire(index, qpn);
                continue;
            }
            let looks = all_timers || qp.req.waits_for_receiver();
            if !looks || !looked.insert((index, qpn)) {
                finite |= !qp.req.waits_for_ever(&qp.attr);
                later.push((at, index, qpn));
                continue;
            }
            self.now = self.now.max(at);
            self.fire(index, qpn);
            self.deliver_packets(u64::MAX, true);
        }
        for (at, index, qpn) in later {
            self.net.wake(at, index, qpn);
        }
        finite
    }

    fn settle(&mut self, is_virtual: bool, all_timers: bool, limit: Duration) -> bool {
        let more = if is_virtual {
            self.settle_virtual(all_timers)
        } else {
            self.settle_real(self.brief.then(|| Instant::now() + limit));
            false
        };
        self.tidy();
        more
    }

    /// Everything that is due by `until`, which it is then.
    fn pass(&mut self, until: u64) {
        loop {
            self.deliver_packets(until, true);
            let Some((at, index, qpn)) = self.net.pop_timer(until) else { break };
            self.now = self.now.max(at);
            self.fire(index, qpn);
        }
        self.now = self.now.max(until);
        self.tidy();
    }

    /// Checks queues without doorbells, and delivers notices to the programs.
    fn tidy(&mut self) {
        for index in 0..self.devices.len() {
            if let Some((device, mut port)) = self.device(index) {
                device.end_users_of_broken_cqs(&mut port);
                if device.watches() {
                    device.sweep(&mut port);
                }
            }
        }
        #[cfg(feature = "pci")]
        for (device, function) in self.devices.iter_mut().zip(&mut self.functions) {
            if let Some(function) = function {
                function.deliver(device);
            }
        }
        for (device, front) in self.devices.iter_mut().zip(&mut self.fronts) {
            front.deliver(&mut device.notices);
        }
        self.tell_peers();
    }

    /// The time at which the thread must run next; `None` for never.
    fn next(&self) -> Option<u64> {
        let watched = self.devices.iter().any(Device::watches) || self.fronts.iter().any(Front::has_backlog);
        let watch = watched.then(|| self.now.saturating_add(WATCH.as_nanos() as u64));
        [self.net.next_packet(), self.net.next_timer(), watch].into_iter().flatten().min()
    }
}

/// The lock around the world, and what the thread waits for.
pub(crate) struct Shared {
    world: Mutex<World>,
    /// How many wait for the lock, which the thread would take again before they are awake.
    waiting: AtomicUsize,
    wake: Condvar,
    start: Instant,
    pub(crate) deterministic: bool,
}

impl Shared {
    pub(crate) fn new(seed: u64, deterministic: bool) -> Self {
        let world = World {
            net: Net::new(seed),
            devices: Vec::new(),
            fronts: Vec::new(),
            #[cfg(feature = "pci")]
            functions: Vec::new(),
            peers: Peers::default(),
            now: 0,
            brief: false,
            stop: false,
            wakes: None,
        };
        let waiting = AtomicUsize::new(0);
        Self { world: Mutex::new(world), waiting, wake: Condvar::new(), start: Instant::now(), deterministic }
    }

    /// The state is consistent between any two steps, so a panic of another thread (in a test's assertion, for example)
    /// does not affect it.
    fn lock(&self) -> MutexGuard<'_, World> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if !self.deterministic {
            world.now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
        world
    }

    /// Does something, and then what follows from it.
    pub(crate) fn enter<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        let mut world = self.lock();
        let result = f(&mut world);
        world.settle(self.deterministic, false, BRIEF);
        self.tell_thread(&mut world);
        result
    }

    /// Asks something that changes nothing, and lets nothing happen.
    pub(crate) fn read<R>(&self, f: impl FnOnce(&World) -> R) -> R {
        f(&self.lock())
    }

    fn tell_thread(&self, world: &mut World) {
        let next = world.next();
        if !self.deterministic && next.is_some_and(|at| world.wakes.is_none_or(|wakes| at < wakes)) {
            world.wakes = next;
            self.wake.notify_one();
        }
    }

    pub(crate) fn run(&self) {
        let mut world = self.lock();
        while world.settle(self.deterministic, true, ROUND) {}
    }

    pub(crate) fn run_for(&self, time: u64) {
        let mut world = self.lock();
        if self.deterministic {
            let until = world.now.saturating_add(time);
            world.pass(until);
        } else {
            world.settle(false, true, ROUND);
        }
    }

    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.wake.notify_one();
    }

    /// Lets others have the lock first.
    fn stand_back(&self) {
        let (tries, pause) = COURTESY;
        for _ in 0..tries {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::sleep(pause);
        }
    }

    /// The thread: sleeps until something is due.
    pub(crate) fn run_timers(&self) {
        let mut world = self.lock();
        while !world.stop {
            world.settle(false, true, ROUND);
            let next = world.next();
            world.wakes = next;
            world = match next {
                None => self.wake.wait(world).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at <= world.now && world.brief => {
                    drop(world);
                    self.stand_back();
                    self.world.lock().unwrap_or_else(PoisonError::into_inner)
                }
                Some(at) => {
                    let wait = Duration::from_nanos(at.saturating_sub(world.now));
                    self.wake.wait_timeout(world, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            world.now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
    }
}
