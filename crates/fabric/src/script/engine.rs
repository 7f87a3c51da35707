// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which rules of a script match an event.

use super::names::{Key, Opcode, Point, Queue};
use super::report::Counts;
use super::rule::{Action, Change, Rule, Value};
use super::{MAX_RULES, Script};
use crate::flight::Place;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Changes of devices that wait at most.
const MAX_PENDING: usize = 1 << 12;
/// Refused packets that are awaited at most, and how long, ns: a QP may have ended in the meantime.
const MAX_REFUSED: usize = 1 << 16;
const REFUSED_NS: u64 = 1_000_000_000;
/// Queues whose WRs are counted at most.
const MAX_COUNTED: usize = 1 << 20;

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// What it is about.
    pub point: Point,
    /// The device, by its number in the fabric.
    pub device: usize,
    /// The device that gets the packet.
    pub to: Option<usize>,
    /// The QP.
    pub qp: Option<u32>,
    /// The QP that gets the packet.
    pub dest: Option<u32>,
    /// What it is.
    pub opcode: Option<Opcode>,
    /// The number of the WR, from 1.
    pub wr: Option<u32>,
    /// The number of the packet in its message, from 1.
    pub packet: Option<u32>,
    /// The sequence number.
    pub psn: Option<u32>,
    /// The queue.
    pub queue: Option<Queue>,
    /// The verb.
    pub verb: Option<&'a str>,
}

impl Event<'_> {
    /// An event of a device.
    #[must_use]
    pub const fn new(point: Point, device: usize) -> Self {
        Self {
            point,
            device,
            to: None,
            qp: None,
            dest: None,
            opcode: None,
            wr: None,
            packet: None,
            psn: None,
            queue: None,
            verb: None,
        }
    }
}

/// A rule that is in force.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) rule: Rule,
    /// The events that all selectors but `nth` have matched.
    seen: u64,
    /// When the sender, or its link, is free again, ns.
    pub(super) free: u64,
}

/// A change of a device that is due.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) device: usize,
    pub(crate) change: Change,
    pub(crate) qp: Option<u32>,
}

/// A packet that waits for later ones.
#[derive(Debug)]
pub(super) struct Held {
    /// Its place in the network.
    pub(super) place: Place,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) left: u32,
}

/// A script that is in force.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    pub(super) rules: Vec<Active>,
    /// When it was set, ns.
    start: u64,
    /// The number of this process among those of a sweep.
    process: u64,
    /// The names of the devices, by number in the fabric; empty for those of other processes.
    names: Vec<Arc<str>>,
    pub(crate) pending: VecDeque<Pending>,
    pub(super) held: Vec<Held>,
    /// The packets that were refused and must be repeated: their sequence number and the end of the wait, by sender.
    pub(super) refused: HashMap<(usize, u32), (u32, u64)>,
    /// The WRs that were posted or completed, by device, queue and kind of the event.
    numbers: HashMap<(usize, u32, bool), u32>,
    pub(super) counts: Counts,
}

impl Engine {
    pub(crate) fn new(script: Script, process: u64, now: u64) -> Self {
        let mut this = Self { start: now, process, ..Self::default() };
        script.0.into_iter().for_each(|rule| this.push(rule));
        this
    }

    /// Writes what is counted also before the process exits.
    pub(crate) fn write_counts(&mut self) {
        self.counts.is_written = true;
    }

    /// Adds a rule, unless there are too many.
    pub(crate) fn push(&mut self, rule: Rule) {
        let is_here = rule.span(Key::Process).is_none_or(|span| span.has(self.process));
        if is_here && self.rules.len() < MAX_RULES {
            self.rules.push(Active { rule, seen: 0, free: 0 });
        }
    }

    /// Whether it has as many rules as it may have.
    pub(crate) fn is_full(&self) -> bool {
        self.rules.len() >= MAX_RULES
    }

    /// Replaces the rules, and counts anew.
    pub(crate) fn replace(&mut self, script: Script, now: u64) {
        self.rules.clear();
        self.numbers.clear();
        self.start = now;
        script.0.into_iter().for_each(|rule| self.push(rule));
    }

    /// The names of the devices, by number.
    pub(crate) fn name_devices(&mut self, names: Vec<Arc<str>>) {
        self.names = names;
    }

    /// The device with this name.
    fn device(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| **n == *name)
    }

    /// Notes that a receiver refuses a packet, and waits for it again.
    pub(super) fn refuse(&mut self, now: u64, event: &Event<'_>) {
        if let (Some(qp), Some(psn)) = (event.qp, event.psn)
            && self.refused.len() < MAX_REFUSED
        {
            self.refused.insert((event.device, qp), (psn, now.saturating_add(REFUSED_NS)));
        }
    }

    /// Whether a receiver drops a packet, because it waits for an earlier one that it has refused (InfiniBand specification, 9.7.5.2.8).
    pub(super) fn is_behind_refused(&mut self, now: u64, event: &Event<'_>) -> bool {
        let (Some(qp), Some(psn)) = (event.qp, event.psn) else { return false };
        let key = (event.device, qp);
        let Some((refused, until)) = self.refused.get(&key).copied() else { return false };
        // Sequence numbers have 24 bits.
        let ahead = psn.wrapping_sub(refused) & 0xff_ffff;
        let is_behind = now < until && (1..1 << 23).contains(&ahead);
        if !is_behind {
            self.refused.remove(&key);
        }
        is_behind
    }

    /// The next number of a WR on a queue: of a post, or of a completion.
    pub(super) fn number(&mut self, device: usize, queue: u32, is_post: bool) -> Option<u32> {
        let key = (device, queue, is_post);
        if self.numbers.len() >= MAX_COUNTED && !self.numbers.contains_key(&key) {
            return None;
        }
        let number = self.numbers.entry(key).or_default();
        *number = number.saturating_add(1);
        Some(*number)
    }

    /// Calls `f` with each rule that matches an event. Changes of devices are noted.
    pub(super) fn each(&mut self, now: u64, event: &Event<'_>, mut f: impl FnMut(&mut Active)) {
        let time = now.saturating_sub(self.start);
        let mut changes = Vec::new();
        for active in &mut self.rules {
            if active.rule.point != event.point || !matches(&active.rule, event, &self.names, time) {
                continue;
            }
            active.seen += 1;
            if active.rule.span(Key::Nth).is_some_and(|span| !span.has(active.seen)) {
                continue;
            }
            log::info!("script: {}", active.rule);
            match &active.rule.action {
                Action::Change(change, on) => changes.push((*change, on.clone())),
                _ => f(active),
            }
        }
        for (change, on) in changes {
            self.note(change, on.as_deref(), event.device, event.qp);
        }
    }

    /// Notes a change of a device.
    fn note(&mut self, change: Change, on: Option<&str>, device: usize, qp: Option<u32>) {
        let device = match on {
            None => device,
            Some(name) => match self.device(name) {
                Some(device) => device,
                None => return log::warn!("script: no device {name} in this process"),
            },
        };
        if self.pending.len() < MAX_PENDING {
            self.pending.push_back(Pending { device, change, qp });
        }
    }

    /// When the next rule of the clock is due.
    pub(crate) fn next_clock(&self) -> Option<u64> {
        let clock = self.rules.iter().filter(|active| active.rule.point == Point::Clock && active.seen == 0);
        clock.map(|active| self.due(&active.rule)).min()
    }

    fn due(&self, rule: &Rule) -> u64 {
        self.start.saturating_add(rule.span(Key::Time).map_or(0, |span| span.first))
    }

    /// Notes what rules of the clock that are due say.
    pub(crate) fn run_clock(&mut self, now: u64) {
        for i in 0..self.rules.len() {
            let active = &self.rules[i];
            let rule = &active.rule;
            if rule.point != Point::Clock || active.seen > 0 || self.due(rule) > now {
                continue;
            }
            let Action::Change(change, on) = rule.action.clone() else { continue };
            let device = rule.name(Key::Device).map(str::to_owned);
            log::info!("script: {rule}");
            self.rules[i].seen = 1;
            // Without a device the change is of the process.
            match on.or(device) {
                Some(name) => self.note(change, Some(&name), 0, None),
                None => self.note(change, None, 0, None),
            }
        }
    }
}

/// Whether all selectors but `nth` match.
fn matches(rule: &Rule, event: &Event<'_>, names: &[Arc<str>], time: u64) -> bool {
    let named = |device: Option<usize>, name: &str| {
        device.and_then(|device| names.get(device)).is_some_and(|found| **found == *name)
    };
    rule.selectors.iter().all(|(key, value)| match (key, value) {
        (Key::Process | Key::Nth, _) => true,
        (Key::Device, Value::Name(name)) => named(Some(event.device), name),
        (Key::To, Value::Name(name)) => named(event.to, name),
        (Key::Verb, Value::Name(name)) => event.verb == Some(name),
        (Key::Opcode, Value::Opcode(opcode)) => event.opcode == Some(*opcode),
        (Key::Queue, Value::Queue(queue)) => event.queue == Some(*queue),
        (Key::Time, Value::Span(span)) => span.has(time),
        (key, Value::Span(span)) => {
            let number = match key {
                Key::Qp => event.qp,
                Key::Dest => event.dest,
                Key::Wr => event.wr,
                Key::Packet => event.packet,
                Key::Psn => event.psn,
                _ => None,
            };
            number.is_some_and(|number| span.has(number.into()))
        }
        _ => false,
    })
}
