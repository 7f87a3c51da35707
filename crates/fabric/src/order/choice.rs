// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which steps can be taken, which of them the seed chooses, and the pauses between them.

use super::step::{Kind, Way};
use super::{By, Effect, Front, Held, Lane, Mark, Mode, Order, Placed, Route, Side, Step};
use crate::model::Packet;
use core::sync::atomic::Ordering;
use std::collections::VecDeque;

/// The first writes of a lane, and the first packets of a way, that a step is chosen from: a line passes fewer earlier ones than this.
const WINDOW: usize = 64;
/// The number of steps that the seed chooses from.
const CHOICES: usize = 4 * WINDOW;
/// One choice in so many takes the oldest step, so that none waits for ever.
const OLDEST: u64 = 8;
/// The longest pause between two steps, ns: without pauses a program could not see the states between.
const SPREAD: u64 = 20_000;
/// The longest pause of those that other threads see on a busy machine, too, ns.
const LONG: u64 = 500_000;
/// A thread that sleeps for a pause wakes so much later even on an idle machine, ns. What it is later than that is taken off the next
/// pauses, up to a limit: on a busy machine a large message would take longer than the timers of its requester.
const USUAL_LATENESS: u64 = 200_000;
const MAX_LATENESS: u64 = 20_000_000;

impl<P: Packet> Order<P> {
    /// The next number of the seed's sequence.
    fn draw(&mut self) -> u64 {
        self.random.draw()
    }

    /// The first access after a time without one: it waits, so that the doorbell returns before.
    pub(super) fn begins(&mut self, now: u64) {
        if self.by != By::Hand && self.lanes.is_empty() && self.ways.is_empty() {
            let pause = 1 + self.draw() % SPREAD;
            self.not_before = self.not_before.max(now.saturating_add(pause));
        }
    }

    /// The time from a step to the next one in real time. It depends on the seed alone, not on the clock. One step in four is followed by a
    /// pause; of a large message only one in a window, since it has many.
    fn pause(&mut self, choices: usize) -> u64 {
        if !self.draw().is_multiple_of(choices.max(4) as u64) {
            return 0;
        }
        let longest = if self.draw().is_multiple_of(8) { LONG } else { SPREAD };
        self.draw() % longest
    }

    /// Whether a line may become visible before these earlier writes of its lane. Two WRITEs of a connection to the same bytes have an order
    /// (InfiniBand 10.8.3.3); only a region with relaxed order gives it up.
    fn overtakes<'a>(&self, mut earlier: impl Iterator<Item = &'a Placed>, line: &Placed) -> bool {
        if !line.passes || self.mode == Mode::Relaxed || line.is_free.load(Ordering::Relaxed) {
            return line.passes;
        }
        let (at, len) = line.range;
        let is_apart =
            |(other, n): (u64, u64)| at >= other.saturating_add(n) || other >= at.saturating_add(len);
        let is_free = earlier.all(|other| is_apart(other.range));
        line.is_free.store(is_free, Ordering::Relaxed);
        is_free
    }

    /// Whether a packet can be delivered, apart from its fills and its predecessors.
    fn may_arrive(&self, way: &Way, packet: &P) -> bool {
        if !packet.is_atomic() {
            return true;
        }
        let lane = Lane { device: way.to, ..Lane::of_queue(way.route.dest, Side::Responder) };
        !self.lanes.contains_key(&lane) && !self.atomics.contains_key(&way.to)
    }

    /// Whether the packets of the queue pair have their data, if this is a completion that has to wait for them.
    fn has_read(&self, lane: &Lane, placed: &Placed) -> bool {
        if !matches!(placed.effect, Effect::Model { after_reads: true, .. }) {
            return true;
        }
        let route = Route { src: lane.queue, dest: 0, is_response: false };
        let first = Way { from: lane.device, route, to: 0, alone: 0 };
        let is_own = |way: &Way| (way.from, way.route.src) == (lane.device, lane.queue);
        let own = self.ways.range(first..).take_while(|(way, _)| is_own(way));
        let own = own.filter(|(way, _)| !way.route.is_response);
        own.flat_map(|(_, held)| held).all(|held| held.fills.is_empty() || held.number > placed.number)
    }

    /// Calls `f` with each step of a lane that can be executed, the oldest first, and its time, until it returns `false`, as this does then.
    fn each_of_lane(
        &self,
        lane: &Lane,
        placed: &VecDeque<Placed>,
        f: &mut impl FnMut(Step, u64) -> bool,
    ) -> bool {
        let most = if self.mode == Mode::Pcie { 1 } else { WINDOW };
        placed.iter().take(most).enumerate().all(|(i, one)| {
            let ready =
                i == 0 && self.has_read(lane, one) || i > 0 && self.overtakes(placed.iter().take(i), one);
            !ready || f(Step { number: one.number, kind: Kind::Place(*lane) }, one.due)
        })
    }

    /// As [`each_of_lane`](Self::each_of_lane), of a way.
    fn each_of_way(
        &self,
        way: &Way,
        held: &VecDeque<Held<P>>,
        f: &mut impl FnMut(Step, u64) -> bool,
    ) -> bool {
        let in_order = self.mode == Mode::Pcie;
        // The lines of a packet wait for the same writes.
        let mut last: Option<(Mark, bool)> = None;
        let mut is_reached = |mark: &Option<Mark>| match (*mark, last) {
            (None, _) => true,
            (Some(mark), Some((known, reached))) if known == mark => reached,
            (Some(mark), _) => {
                let reached = self.is_reached(&mark);
                last = Some((mark, reached));
                reached
            }
        };
        for (i, one) in held.iter().take(WINDOW).enumerate() {
            if one.fills.is_empty() {
                let step = Step { number: one.number, kind: Kind::Deliver(*way) };
                let may_arrive = i == 0 && is_reached(&one.after) && self.may_arrive(way, &one.packet);
                if may_arrive && !f(step, one.due) {
                    return false;
                }
                continue;
            }
            for fetch in one.fills.iter().take(if in_order { 1 } else { WINDOW }) {
                let step = Step { number: fetch.number, kind: Kind::Fetch(*way) };
                if is_reached(&fetch.fill.after) && !f(step, fetch.due) {
                    return false;
                }
            }
            if in_order {
                break;
            }
        }
        true
    }

    /// Calls `f` with each step that can be executed, and its time, until it returns `false`.
    pub(super) fn each(&self, mut f: impl FnMut(Step, u64) -> bool) {
        let _ = self.lanes.iter().all(|(lane, placed)| self.each_of_lane(lane, placed, &mut f))
            && self.ways.iter().all(|(way, held)| self.each_of_way(way, held, &mut f));
    }

    /// The steps that can be executed.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        self.each(|step, _| {
            steps.push(step);
            true
        });
        steps
    }

    /// The time of the first step that can be executed, if a seed chooses.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let mut first: Option<u64> = None;
        if self.by != By::Hand {
            // One that is due before the pause ends is as good as the first.
            self.each(|_, due| {
                first = Some(first.map_or(due, |first| first.min(due)));
                due > self.not_before
            });
        }
        first.map(|first| first.max(self.not_before))
    }

    /// The oldest step that can be executed and is due.
    pub(super) fn oldest(&self, now: u64) -> Option<Step> {
        let mut oldest: Option<Step> = None;
        for (first, front) in self.fronts.iter() {
            if oldest.is_some_and(|oldest| oldest.number < first) {
                break;
            }
            // The steps of a lane or a way come by their numbers.
            let mut first_due = |step: Step, at| {
                let is_due = at <= now;
                if is_due && oldest.is_none_or(|other| step.number < other.number) {
                    oldest = Some(step);
                }
                !is_due
            };
            match front {
                Front::Lane(lane) => {
                    let placed = self.lanes.get(lane);
                    placed.is_none_or(|placed| self.each_of_lane(lane, placed, &mut first_due))
                }
                Front::Way(way) => {
                    self.ways.get(way).is_none_or(|held| self.each_of_way(way, held, &mut first_due))
                }
            };
        }
        oldest
    }

    /// A step that the seed chooses among those that are due; on a virtual clock, at `u64::MAX`, among all. Now and then it is the oldest one,
    /// so that none waits for ever.
    pub(crate) fn choose(&mut self, now: u64) -> Option<Step> {
        let in_real_time = now != u64::MAX;
        if in_real_time && (self.by == By::Hand || now < self.not_before) {
            return None;
        }
        let mut due = Vec::new();
        self.each(|step, at| {
            if at <= now {
                due.push(step);
            }
            due.len() < CHOICES
        });
        if due.is_empty() {
            return None;
        }
        if in_real_time {
            let late = now.saturating_sub(self.not_before).saturating_sub(USUAL_LATENESS);
            self.late = self.late.saturating_add(late).min(MAX_LATENESS);
            let pause = self.pause(due.len());
            let made_up = pause.min(self.late);
            self.late -= made_up;
            self.not_before = now.saturating_add(pause - made_up);
        }
        if self.draw().is_multiple_of(OLDEST) {
            return self.oldest(now);
        }
        let n = self.draw() % due.len() as u64;
        due.get(n as usize).copied()
    }

    /// How many steps are taken in a call, on a virtual clock.
    pub(crate) fn steps_at_once(&mut self) -> u64 {
        match self.by {
            By::Seed(_) => self.draw() % 8,
            By::Hand => 0,
        }
    }
}
