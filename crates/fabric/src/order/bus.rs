// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order, as devices and the world use it.

use super::{By, Footprint, Lane, Mark, Mode, ModelStep, Order, Rest, Schedule, Setting, Step, Store};
use crate::fabric::Fabric;
use crate::model::{Model, Packet};
use crate::net::{HELD, Net};
use crate::port::Port;
use crate::tap::Fate;
use crate::world::World;
use std::sync::Arc;

impl<P: Packet> Net<P> {
    /// Tells the names of the devices to the order and to the script.
    pub(crate) fn name_devices(&mut self) {
        let names: Vec<Arc<str>> = self.ports.iter().map(|port| Arc::clone(&port.name)).collect();
        if let Some(script) = &mut self.script {
            script.name_devices(names.clone());
        }
        if let Some(order) = &mut self.order {
            order.name_devices(names);
        }
    }

    /// The mode of order.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.order.as_ref().map_or(Mode::Ordered, |order| order.mode())
    }

    /// All writes of a lane so far; `None` if each is visible at once.
    #[must_use]
    pub fn mark(&self, lane: Lane) -> Option<Mark> {
        self.order.as_ref().map(|order| order.mark(lane))
    }

    /// Executes a step as far as that needs no device.
    fn take_step(&mut self, now: u64, step: Step) -> Option<Rest<P>> {
        let mut order = self.order.take()?;
        let rest = order.take(now, step, |to, packet| self.show(now, to, packet, Fate::Sent));
        self.order = Some(order);
        self.tell_accesses();
        if let Some(Rest::Arrive { to, packet }) = &rest {
            self.arrives(*to, packet);
            self.tell_arrival(now, step.number | HELD, *to, packet);
        }
        rest
    }
}

impl<P: Packet> Port<'_, P> {
    /// Places data in a lane of this device. Without a mode nothing is placed: the device writes at once.
    pub fn place(&mut self, lane: Lane, store: Store) {
        let lane = Lane { device: self.me, ..lane };
        debug_assert!(self.net.order.is_some(), "data are placed in a mode only");
        if let Some(order) = &mut self.net.order {
            order.place(self.now, lane, store);
        }
    }

    /// Places a step of the device in a lane of it. `false` if there is no mode: the device takes it at once.
    pub fn place_step(&mut self, lane: Lane, step: ModelStep) -> bool {
        let lane = Lane { device: self.me, ..lane };
        match &mut self.net.order {
            Some(order) => {
                order.place_step(self.now, lane, step);
                true
            }
            None => false,
        }
    }

    /// Lets all accesses of the device take place that it has begun: a command waits for them.
    pub fn drain<M: Model<Packet = P>>(&mut self, device: &mut M) {
        let Some(order) = &mut self.net.order else { return };
        let tokens = order.drain(self.now, self.me);
        self.net.tell_accesses();
        for token in tokens {
            device.step(self, token);
        }
    }
}

impl<M: Model> World<M> {
    /// Finishes a step.
    fn finish(&mut self, rest: Rest<M::Packet>) {
        match rest {
            Rest::Done => {}
            Rest::Model { device, token } => {
                if let Some((device, mut port)) = self.device(device) {
                    device.step(&mut port, token);
                }
            }
            Rest::Arrive { to, packet } => self.arrive(to, Box::new(packet)),
        }
    }

    /// Takes a step; `false` if it can't be taken.
    pub(crate) fn take_step(&mut self, step: Step) -> bool {
        let Some(rest) = self.net.take_step(self.now, step) else { return false };
        self.finish(rest);
        true
    }

    /// Takes a step that the seed chooses among those that are due by `until`; `false` if there is none.
    pub(crate) fn take_due_step(&mut self, until: u64) -> bool {
        let now = self.now;
        let Some(order) = &mut self.net.order else { return false };
        if let Some(rest) = order.overdue(now) {
            self.net.tell_accesses();
            self.finish(rest);
            return true;
        }
        match order.choose(until) {
            Some(step) => self.take_step(step),
            None => false,
        }
    }

    /// Takes as many steps as the seed says, on a virtual clock: programs run between the calls.
    pub(crate) fn take_some_steps(&mut self) {
        let most = self.net.order.as_mut().map_or(0, |order| order.steps_at_once());
        for _ in 0..most {
            if !self.take_due_step(u64::MAX) {
                return;
            }
        }
    }

    /// Takes steps until there is none.
    pub(crate) fn take_all_steps(&mut self) {
        while self.take_due_step(u64::MAX) {}
    }
}

impl<M: Model> Fabric<M> {
    /// Sets the order in which the accesses of the devices to memory become visible. Accesses that have begun take place before. Returns
    /// the seed, which selects one of the orders that the mode permits; with the same seed a deterministic program has the same run.
    ///
    /// On a fabric in real time the seed also selects pauses between steps, of up to 500 us, so that programs can see the states
    /// between. On a deterministic fabric each call takes a few steps, and [`run`](Fabric::run) takes all.
    pub fn order(&self, setting: Setting) -> u64 {
        let seed = setting.seed.unwrap_or_else(drawn_seed);
        self.set_order(setting.mode, By::Seed(seed));
        seed
    }

    /// As [`order`](Self::order), but the caller takes the steps: [`steps`](Self::steps), [`take_step`](Self::take_step).
    pub fn order_by_hand(&self, mode: Mode) {
        self.set_order(mode, By::Hand);
    }

    fn set_order(&self, mode: Mode, by: By) {
        self.enter(|world| {
            world.take_all_steps();
            world.net.order = (mode != Mode::Ordered).then(|| Box::new(Order::new(mode, by)));
            world.net.name_devices();
        });
    }

    /// The mode of order.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.read(|world| world.net.mode())
    }

    /// The steps that can be taken now.
    #[must_use]
    pub fn steps(&self) -> Vec<Possible> {
        self.read(|world| {
            let Some(order) = &world.net.order else { return Vec::new() };
            let possible = |step| {
                let (mut footprint, is_quiet) = (order.footprint(step), order.is_quiet(step));
                if footprint.everything
                    && let Some((to, packet)) = order.packet(step)
                    && let Some(Some(station)) = world.devices.get(to)
                    && let Some(target) = station.device.target(packet)
                {
                    footprint = Footprint {
                        reads: Some(target),
                        object: Some((to, ATOMICS)),
                        ..Footprint::default()
                    };
                }
                Possible { step, footprint, is_quiet }
            };
            order.steps().into_iter().map(possible).collect()
        })
    }

    /// The number of the last step that has arisen since the order was set, whether it can be taken or has to wait.
    #[must_use]
    pub fn arisen_steps(&self) -> u64 {
        self.read(|world| world.net.order.as_ref().map_or(0, |order| order.arisen()))
    }

    /// Takes a step; `false` if it can't be taken any more.
    #[expect(clippy::must_use_candidate, reason = "a step of `steps` can be taken")]
    pub fn take_step(&self, step: Step) -> bool {
        self.enter(|world| world.take_step(step))
    }

    /// The steps that were taken since the order was set, in words.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        self.read(|world| world.net.order.as_ref().map(|order| order.schedule()).unwrap_or_default())
    }

    /// Advances a virtual clock to the next timer, and runs it; `false` if there is none.
    #[expect(clippy::must_use_candidate, reason = "the next steps tell, too")]
    pub fn pass_to_next_timer(&self) -> bool {
        self.enter(|world| world.run_next_timer())
    }

    /// Adds a line of the program to the [schedule](Self::schedule).
    pub fn say(&self, text: impl Into<String>) {
        let text = text.into();
        self.enter(|world| {
            let now = world.now;
            if let Some(order) = &mut world.net.order {
                order.say(now, text);
            }
        });
    }
}

/// Stands for the atomics of a device among the numbers of its objects, which have 24 bits.
pub const ATOMICS: u32 = u32::MAX;

/// A step that can be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Possible {
    /// The step.
    pub step: Step,
    /// What it accesses.
    pub footprint: Footprint,
    /// Whether it is the delivery of a packet that accesses no memory itself: it only makes further steps possible.
    pub is_quiet: bool,
}

/// A seed that no other run has.
fn drawn_seed() -> u64 {
    use core::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() >> 32
}
