// SPDX-License-Identifier: MIT OR Apache-2.0
//! One fabric behind one lock: the devices, their fronts, the network, the clock.

use crate::engine::net::Net;
use crate::engine::{Device, Port};
use crate::kernel::front::Front;
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How often queues that nobody tells of are looked at, in real time.
const WATCH: Duration = Duration::from_millis(1);

/// All state of a fabric.
pub(crate) struct World {
    pub(crate) net: Net,
    pub(crate) devices: Vec<Device>,
    pub(crate) fronts: Vec<Front>,
    /// Of devices that are PCI functions; their `fronts` have no contexts.
    #[cfg(feature = "pci")]
    pub(crate) functions: Vec<Option<Box<crate::pci::Function>>>,
    /// Nanoseconds.
    pub(crate) now: u64,
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

    /// Delivers the packets that are due by `until`; the clock follows if it is virtual.
    fn deliver_packets(&mut self, until: u64, moves: bool) {
        while let Some((at, to, packet)) = self.net.pop_packet(until) {
            if moves {
                self.now = self.now.max(at);
            }
            if let Some((device, mut port)) = self.device(to) {
                device.receive(&mut port, packet);
            }
        }
    }

    fn fire(&mut self, index: usize, qpn: u32) {
        if let Some((device, mut port)) = self.device(index) {
            device.timer(&mut port, qpn);
        }
    }

    /// What is due in real time.
    fn settle_real(&mut self) {
        loop {
            self.deliver_packets(self.now, false);
            match self.net.pop_timer(self.now) {
                Some((_, index, qpn)) => self.fire(index, qpn),
                None if self.net.next_packet().is_none_or(|at| at > self.now) => break,
                None => {}
            }
        }
    }

    /// All packets, and one look at each timer that waits for a receiver, or at each timer; whether any waits that is
    /// not for ever.
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

    fn settle(&mut self, is_virtual: bool, all_timers: bool) -> bool {
        let more = if is_virtual {
            self.settle_virtual(all_timers)
        } else {
            self.settle_real();
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

    /// Looks at queues that nobody tells of, and tells the programs what there is to tell.
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
    }

    /// When the thread must look next: `None` for never.
    fn next(&self) -> Option<u64> {
        let watched = self.devices.iter().any(Device::watches) || self.fronts.iter().any(Front::has_backlog);
        let watch = watched.then(|| self.now.saturating_add(WATCH.as_nanos() as u64));
        [self.net.next_packet(), self.net.next_timer(), watch].into_iter().flatten().min()
    }
}

/// The lock around the world, and what the thread waits for.
pub(crate) struct Shared {
    world: Mutex<World>,
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
            now: 0,
            stop: false,
            wakes: None,
        };
        Self { world: Mutex::new(world), wake: Condvar::new(), start: Instant::now(), deterministic }
    }

    /// The state is whole between any two steps, so a panic of another thread (in a test's assertion, say) spoils
    /// nothing.
    fn lock(&self) -> MutexGuard<'_, World> {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.deterministic {
            world.now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
        world
    }

    /// Does something, and then what follows from it.
    pub(crate) fn enter<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        let mut world = self.lock();
        let result = f(&mut world);
        world.settle(self.deterministic, false);
        self.tell_thread(&mut world);
        result
    }

    /// Asks something that changes nothing, and lets nothing happen.
    pub(crate) fn look<R>(&self, f: impl FnOnce(&World) -> R) -> R {
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
        while world.settle(self.deterministic, true) {}
    }

    pub(crate) fn run_for(&self, time: u64) {
        let mut world = self.lock();
        if self.deterministic {
            let until = world.now.saturating_add(time);
            world.pass(until);
        } else {
            world.settle(false, true);
        }
    }

    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.wake.notify_one();
    }

    /// The thread: sleeps until something is due.
    pub(crate) fn run_timers(&self) {
        let mut world = self.lock();
        while !world.stop {
            world.settle(false, true);
            let next = world.next();
            world.wakes = next;
            world = match next {
                None => self.wake.wait(world).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let wait = Duration::from_nanos(at.saturating_sub(world.now));
                    self.wake.wait_timeout(world, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            world.now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
    }
}
