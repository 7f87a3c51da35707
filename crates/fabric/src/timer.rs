// SPDX-License-Identifier: MIT OR Apache-2.0
//! The timer of a queue, and when it runs.

use crate::model::{Model, Packet, Wait};
use crate::net::{Address, PortLocation, TimerEntry};
use crate::port::Port;
use crate::udp;
use crate::world::World;

/// A timer waits so much longer than its time, ns, for packets and datagrams that are there and were not delivered: one of them may be the
/// answer. The program, or the thread that reads them, was not scheduled in time.
const LATE: u64 = 1_000_000_000;
/// Until the next check of a timer that waits for datagrams which the socket of its port has, ns.
const BEHIND: u64 = 1_000_000;
/// A timer whose answer a mode of order keeps back is set again for this time, ns.
const LATER: u64 = 10_000_000;
/// How many times one is set again whose answer comes from another process: together about a second, for each of its retries.
const MOST_POSTPONED: u32 = 100;

/// A timer. Its entry in the network may be too early, but never too late.
#[derive(Debug, Default)]
pub struct Timer {
    /// When it expires; `None` for never.
    pub deadline: Option<u64>,
    /// Its entry in the network.
    pub queued: Option<TimerEntry>,
    /// How often it was set again instead of being run.
    pub(crate) postponed: u32,
}

impl Timer {
    /// Sets it to expire at this time, as the timer of this queue.
    pub fn arm<P: Packet>(&mut self, port: &mut Port<'_, P>, queue: u32, at: u64) {
        (self.deadline, self.postponed) = (Some(at), 0);
        if self.queued.is_none_or(|(queued, _)| queued > at) {
            // A later entry would stay until its time, which may be hours away.
            self.queued.into_iter().for_each(|entry| port.net.cancel(entry));
            self.queued = Some(port.net.wake(at, port.me, queue));
        }
    }
}

/// The state of the fabric in which a due timer is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// On a virtual clock.
    Virtual,
    /// In real time, while no packet is due.
    Idle,
    /// In real time, while packets are due that were not delivered.
    Busy,
}

/// What becomes of a timer whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// It fires.
    Fires,
    /// It is checked again at this time. Its deadline stays.
    CheckAgain(u64),
    /// This time becomes its deadline.
    Postponed(u64),
}

impl<M: Model> World<M> {
    /// Whether the timer of a queue pair may fire that waits for an answer. Neither the peer nor the network is slow while the answer may be
    /// - among the packets that are due: at most for [`LATE`],
    /// - in a mode of order, among what it keeps back, or what it may keep back in the process of the peer,
    /// - in the socket of the port: at most for [`LATE`].
    fn timer_may_fire(&self, index: usize, qpn: u32, deadline: u64, postponed: u32, check: Check) -> Due {
        let waits = deadline.saturating_add(LATE) > self.now;
        if check == Check::Busy && waits {
            // It stays due.
            return Due::CheckAgain(deadline);
        }
        let is_here = |port: &Address| matches!(port.location, PortLocation::Here | PortLocation::Gone);
        if check != Check::Virtual
            && let Some(order) = &self.net.order
            && (order.delays_answer(index, qpn)
                || postponed < MOST_POSTPONED && !self.net.ports.iter().all(is_here))
        {
            return Due::Postponed(self.now.saturating_add(LATER));
        }
        if waits && self.outside.of(index).is_some_and(udp::Link::is_behind) {
            return Due::CheckAgain(self.now.saturating_add(BEHIND));
        }
        Due::Fires
    }

    /// Runs the timer of a queue, if it is due and may fire. `entry` is its entry in the network.
    pub(crate) fn fire(&mut self, entry: TimerEntry, index: usize, queue: u32, check: Check) {
        let Some((device, mut port)) = self.device(index) else { return };
        let qpn = device.queue_pair(queue);
        let Some((timer, wait)) = device.timer(queue).filter(|(timer, _)| timer.queued == Some(entry)) else {
            // The queue that set it is destroyed.
            return;
        };
        timer.queued = None;
        let Some(deadline) = timer.deadline else { return };
        if deadline > port.now {
            // It was queued too early.
            return timer.arm(&mut port, queue, deadline);
        }
        let postponed = timer.postponed;
        let due = match wait {
            Wait::Answer => self.timer_may_fire(index, qpn, deadline, postponed, check),
            _ => Due::Fires,
        };
        let Some((device, mut port)) = self.device(index) else { return };
        let Some((timer, _)) = device.timer(queue) else { return };
        match due {
            Due::Fires => {
                timer.deadline = None;
                device.timeout(&mut port, queue);
            }
            Due::CheckAgain(at) => timer.queued = Some(port.net.wake(at, index, queue)),
            Due::Postponed(at) => {
                timer.arm(&mut port, queue, at);
                timer.postponed = postponed + 1;
            }
        }
    }

    /// Sets a timer again that was popped and not run.
    pub(crate) fn set_again(&mut self, entry: TimerEntry, index: usize, queue: u32) {
        let Some((device, port)) = self.device(index) else { return };
        if let Some((timer, _)) = device.timer(queue).filter(|(timer, _)| timer.queued == Some(entry)) {
            timer.queued = Some(port.net.wake(entry.0, index, queue));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fabric;
    use crate::order::{Mode, Route, Setting, Waits};
    use crate::testing::{Device, Frame};

    /// What becomes of the timer of queue 0 of a device at the time `now`, which has expired at 1 s. In the mode a packet of the queue is held.
    fn due(mode: Mode, now: u64, postponed: u32, check: Check) -> Due {
        let fabric: Fabric<Device> = Fabric::deterministic(0);
        let _a = fabric.device("a");
        fabric.order(Setting { mode, seed: Some(0) });
        fabric.enter(|world| {
            if let Some(order) = &mut world.net.order {
                let route = Route { src: 0, dest: 9, is_response: false };
                let frame = Frame { source: 0, queue: 0, data: Vec::new() };
                order.hold((0, 0), (0, 0), route, frame, Waits::default(), false);
            }
            world.now = now;
            // What other calls of the fabric would make of it.
            let due = world.timer_may_fire(0, 0, LATE, postponed, check);
            world.take_all_steps();
            due
        })
    }

    #[test]
    fn a_timer_waits_for_what_is_there_or_kept_back_and_not_for_ever() {
        let (soon, late) = (LATE + 5, 2 * LATE);
        let ordered = |now, check| due(Mode::Ordered, now, 0, check);
        assert_eq!(ordered(soon, Check::Virtual), Due::Fires);
        assert_eq!(ordered(soon, Check::Idle), Due::Fires);
        assert_eq!(ordered(soon, Check::Busy), Due::CheckAgain(LATE));
        assert_eq!(ordered(late, Check::Busy), Due::Fires);
        for postponed in [0, MOST_POSTPONED] {
            let model = |now, check| due(Mode::Model, now, postponed, check);
            assert_eq!(model(soon, Check::Virtual), Due::Fires);
            assert_eq!(model(soon, Check::Idle), Due::Postponed(soon + LATER));
            assert_eq!(model(soon, Check::Busy), Due::CheckAgain(LATE));
            assert_eq!(model(late, Check::Busy), Due::Postponed(late + LATER));
        }
    }

    #[test]
    fn a_timer_runs_once_and_a_stale_entry_runs_none() {
        let fabric: Fabric<Device> = Fabric::deterministic(0);
        let a = fabric.device("a");
        fabric.enter(|world| {
            let (device, mut port) = world.device(0).unwrap();
            device.timer.arm(&mut port, 0, 100);
            device.timer.arm(&mut port, 0, 200);
            let (entry, index, queue) = world.net.pop_timer(150).unwrap();
            world.now = 150;
            world.fire(entry, index, queue, Check::Virtual);
            // It was too early, and is set for its time.
            assert_eq!(world.net.next_timer(), Some(200));
            world.fire(entry, index, queue, Check::Virtual);
            let (entry, ..) = world.net.pop_timer(200).unwrap();
            world.now = 200;
            world.fire(entry, index, queue, Check::Busy);
            // Packets are due: it stays due.
            assert_eq!(world.net.next_timer(), Some(200));
            let (entry, ..) = world.net.pop_timer(200).unwrap();
            world.fire(entry, index, queue, Check::Idle);
            assert_eq!(world.read(0).unwrap().expired, [200]);
            assert_eq!(world.net.next_timer(), None);
        });
        drop(a);
    }
}
