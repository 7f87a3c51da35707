// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order in which the accesses of devices to memory take place, in the modes that permit more than one.
//!
//! A device executes its protocol as without a mode, but what it would write to memory, it *places* in a lane, and what it would read, it
//! names in the packet as a *fill*. What is placed becomes visible in steps: a line of 64 bytes at a time, or a completion. A packet is
//! delivered when its fills are read. A scheduler chooses the next step among those that the [`Mode`] permits: by a seed, or from outside.
//!
//! | step | takes place |
//! |---|---|
//! | a line of data is read into a packet | after the writes that its [`Mark`] names; under [`Mode::Pcie`] after the lines before it |
//! | a packet is delivered | in the order of its [`Route`]; that of a fenced request after the writes of all requests before it; an atomic after the earlier writes of its peer, and not between the two halves of another one |
//! | a line of data becomes visible | if the mode permits, before earlier writes of its lane; else after them |
//! | a completion is written | after all earlier writes of its lane |

mod bus;
mod choice;
mod environment;
mod mode;
mod race;
mod record;
mod step;
#[cfg(test)]
mod tests;

pub use bus::{ATOMICS, Possible};
pub use mode::{Mode, Setting, UnknownOrder};
pub use race::Race;
pub use record::Schedule;
pub use step::{Fill, Footprint, LINE, Label, Lane, Mark, ModelStep, Route, Side, Step, Store, Waits};

use crate::map::Map;
use crate::memory::Memory;
use crate::model::Packet;
use crate::random::Random;
use crate::trace::Access;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use record::Record;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use step::{Kind, Way};

/// The limit of the memory of the writes that wait in lanes, with their records. Beyond it the oldest are executed.
const MAX_WAITING: usize = 64 << 20;

/// The orders of this process.
static EPOCHS: AtomicU64 = AtomicU64::new(0);

/// Who chooses the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The seed, when the time of the step has come.
    Seed(u64),
    /// The caller of [`Fabric::take_step`](crate::Fabric::take_step).
    Hand,
}

/// What is placed in a lane.
#[derive(Debug)]
enum Effect {
    Store {
        memory: Arc<dyn Memory>,
        offset: u64,
        bytes: Vec<u8>,
        atomic: bool,
    },
    /// A step of the model, by its token.
    Model {
        token: u64,
        object: u32,
        /// Whether the packets of the queue pair are read before: no acknowledgement tells that they have arrived.
        after_reads: bool,
    },
}

#[derive(Debug)]
struct Placed {
    number: u64,
    due: u64,
    passes: bool,
    /// Address and bytes of the data.
    range: (u64, u64),
    effect: Effect,
    label: Label,
    line: Part,
    /// Whether it was found to be free to pass the earlier writes of its lane. They only become fewer.
    is_free: AtomicBool,
}

impl Placed {
    fn new(label: Label, line: Part) -> Self {
        let effect = Effect::Model { token: 0, object: 0, after_reads: false };
        Self { number: 0, due: 0, passes: false, range: (0, 0), effect, label, line, is_free: false.into() }
    }

    /// The memory that it takes while it waits.
    fn cost(&self) -> usize {
        let data = if let Effect::Store { bytes, .. } = &self.effect { bytes.len() } else { 0 };
        size_of::<Self>() + data
    }
}

#[derive(Debug)]
struct Fetch {
    number: u64,
    due: u64,
    fill: Fill,
    line: Part,
}

/// Which line of how many lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    line: usize,
    of: usize,
}

impl Part {
    /// The part before the first line of these bytes.
    fn before(memory: &dyn Memory, offset: u64, len: usize) -> Self {
        let at = memory.address(offset).unwrap_or(offset) as usize % LINE;
        Self { line: 0, of: at.saturating_add(len).div_ceil(LINE) }
    }

    fn next(&mut self) -> Self {
        self.line += 1;
        *self
    }
}

/// A packet that waits for its fills, and for the packets before it.
#[derive(Debug)]
struct Held<P> {
    number: u64,
    due: u64,
    fills: Vec<Fetch>,
    /// The writes that must be visible before: the request is fenced.
    after: Option<Mark>,
    packet: P,
}

/// A lane or a way.
#[derive(Clone, Copy, Debug)]
enum Front {
    Lane(Lane),
    Way(Way),
}

/// What a step has left to do, which needs the devices.
#[derive(Debug)]
pub(crate) enum Rest<P> {
    /// Nothing.
    Done,
    /// The device has to take a step of its own.
    Model { device: usize, token: u64 },
    /// A packet arrives at this device.
    Arrive { to: usize, packet: P },
}

/// The accesses that have not taken place.
#[derive(Debug)]
pub struct Order<P> {
    mode: Mode,
    by: By,
    random: Random,
    next: u64,
    epoch: u64,
    /// The time of the next step, if a seed chooses and the clock is real.
    not_before: u64,
    /// How much later the steps were than their times, which the next pauses make up for.
    late: u64,
    lanes: BTreeMap<Lane, VecDeque<Placed>>,
    ways: BTreeMap<Way, VecDeque<Held<P>>>,
    /// The first of each lane and of each way, by number.
    fronts: Map<u64, Front>,
    /// The number of held packets that are, or bring, an answer to a queue pair: by device and number of it.
    answers: Map<(usize, u32), usize>,
    /// The results of atomics that are not visible, by device.
    atomics: Map<usize, usize>,
    waiting: usize,
    record: Record,
    races: Vec<Race>,
}

impl<P: Packet> Order<P> {
    pub(crate) fn new(mode: Mode, by: By) -> Self {
        let random = Random::new(if let By::Seed(seed) = by { seed } else { 0 });
        Self {
            mode,
            by,
            random,
            next: 0,
            epoch: EPOCHS.fetch_add(1, Ordering::Relaxed),
            not_before: 0,
            late: 0,
            lanes: BTreeMap::new(),
            ways: BTreeMap::new(),
            fronts: Map::new(),
            answers: Map::new(),
            atomics: Map::new(),
            waiting: 0,
            record: Record::default(),
            races: Vec::new(),
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The number of the last step that has arisen.
    pub(crate) fn arisen(&self) -> u64 {
        self.next
    }

    /// The names of the devices, by number.
    pub(crate) fn name_devices(&mut self, names: Vec<Arc<str>>) {
        self.record.names = names;
    }

    /// Writes each step from now on to a file, too.
    pub(crate) fn write_to(&mut self, file: std::fs::File) {
        self.record.write_to(file);
    }

    /// Adds a line of the program to the schedule.
    pub(crate) fn say(&mut self, now: u64, text: String) {
        self.record.say(now, text);
    }

    pub(crate) fn schedule(&self) -> Schedule {
        self.record.schedule()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// All writes of a lane so far.
    pub(crate) fn mark(&self, lane: Lane) -> Mark {
        Mark { lane, last: self.next, epoch: self.epoch }
    }

    /// Whether all writes before the mark are visible.
    fn is_reached(&self, mark: &Mark) -> bool {
        let first = self.lanes.get(&mark.lane).and_then(VecDeque::front);
        mark.epoch != self.epoch || first.is_none_or(|first| first.number > mark.last)
    }

    /// Places data in a lane, in steps of a line.
    pub(crate) fn place(&mut self, now: u64, lane: Lane, store: Store) {
        let Store { memory, mut offset, bytes, relaxed, atomic, label } = store;
        let passes = self.mode.passes(relaxed) && !atomic;
        let mut rest = &bytes[..];
        let mut part = Part::before(&*memory, offset, bytes.len());
        while !rest.is_empty() {
            let (line, behind) = rest.split_at(line_len(&*memory, offset, rest.len()));
            let range = (memory.address(offset).unwrap_or(offset), line.len() as u64);
            let effect = Effect::Store { memory: Arc::clone(&memory), offset, bytes: line.into(), atomic };
            self.put(now, lane, Placed { passes, range, effect, ..Placed::new(label, part.next()) });
            offset = offset.saturating_add(line.len() as u64);
            rest = behind;
        }
    }

    /// Places a step of the model in a lane: a completion.
    pub(crate) fn place_step(&mut self, now: u64, lane: Lane, step: ModelStep) {
        let ModelStep { token, object, after_reads, label } = step;
        let effect = Effect::Model { token, object, after_reads };
        self.put(now, lane, Placed { effect, ..Placed::new(label, Part::default()) });
    }

    fn put(&mut self, now: u64, lane: Lane, placed: Placed) {
        self.begins(now);
        let number = self.number();
        self.waiting += placed.cost();
        if let Effect::Store { atomic: true, .. } = &placed.effect {
            *self.atomics.get_or_default(lane.device) += 1;
        }
        let all = self.lanes.entry(lane).or_default();
        if all.is_empty() {
            self.fronts.insert(number, Front::Lane(lane));
        }
        all.push_back(Placed { number, due: now, ..placed });
    }

    /// Holds a packet back until its fills are read, and returns its number. `overtaken` if later packets of its route may be delivered
    /// before it.
    pub(crate) fn hold(
        &mut self,
        (now, at): (u64, u64),
        (from, to): (usize, usize),
        route: Route,
        packet: P,
        Waits { fills, after }: Waits,
        overtaken: bool,
    ) -> u64 {
        self.begins(now);
        let number = self.number();
        let mut steps = Vec::new();
        for fill in fills {
            let Fill { memory, offset, at, len, after } = fill;
            let mut done = 0;
            let mut part = Part::before(&*memory, offset, len);
            while done < len {
                let here = offset.saturating_add(done as u64);
                let n = line_len(&*memory, here, len - done);
                let fill = Fill { memory: Arc::clone(&memory), offset: here, at: at + done, len: n, after };
                steps.push(Fetch { number: self.number(), due: now, fill, line: part.next() });
                done += n;
            }
        }
        let way = Way { from, to, route, alone: if overtaken { number } else { 0 } };
        *self.answers.get_or_default(way.answers()) += 1;
        let all = self.ways.entry(way).or_default();
        if all.is_empty() {
            self.fronts.insert(number, Front::Way(way));
        }
        all.push_back(Held { number, due: at, fills: steps, after, packet });
        number
    }

    /// The accesses since the last call, for a trace.
    pub(crate) fn untold(&mut self) -> Vec<Access> {
        self.record.untold()
    }

    /// Whether an answer to a queue pair can't be there, because its requests, or answers to it, are held, or its writes wait.
    pub(crate) fn delays_answer(&self, device: usize, queue: u32) -> bool {
        let first = Lane { device, ..Lane::of_queue(queue, Side::Requester) };
        let last = Lane { message: u64::MAX, ..first };
        self.by != By::Hand
            && (self.answers.contains_key(&(device, queue))
                || self.lanes.range(first..=last).next().is_some())
    }

    /// The number of packets that are held.
    pub(crate) fn held(&self) -> usize {
        self.ways.values().map(VecDeque::len).sum()
    }

    /// What a step accesses.
    pub(crate) fn footprint(&self, step: Step) -> Footprint {
        let range = |memory: &Arc<dyn Memory>, offset, len: usize| {
            Some((memory.address(offset).unwrap_or(offset), len as u64))
        };
        let mut footprint = Footprint::default();
        match step.kind {
            Kind::Place(lane) => match self.placed(lane, step.number).map(|placed| &placed.effect) {
                Some(Effect::Store { memory, offset, bytes, .. }) => {
                    footprint.writes = range(memory, *offset, bytes.len());
                }
                Some(Effect::Model { object, .. }) => footprint.object = Some((lane.device, *object)),
                None => {}
            },
            Kind::Fetch(way) => {
                let held = self.ways.get(&way).into_iter().flatten();
                let fetch = held.flat_map(|held| &held.fills).find(|fetch| fetch.number == step.number);
                footprint.reads =
                    fetch.and_then(|Fetch { fill, .. }| range(&fill.memory, fill.offset, fill.len));
            }
            Kind::Deliver(way) => {
                footprint.object = Some((way.to, way.route.dest));
                // An atomic reads the memory of a key, which only the device knows: `Model::target`.
                let first = self.ways.get(&way).and_then(VecDeque::front);
                footprint.everything = first.is_some_and(|held| held.packet.is_atomic());
            }
        }
        footprint
    }

    /// The packet whose delivery the step is, and its device.
    pub(crate) fn packet(&self, step: Step) -> Option<(usize, &P)> {
        let Kind::Deliver(way) = step.kind else { return None };
        Some((way.to, &self.ways.get(&way)?.front()?.packet))
    }

    /// Whether the step is the delivery of a packet that reads and writes no memory at once, and takes no possibility from another step. An
    /// atomic does, and under [`Mode::Pcie`] an answer: the reads of later requests wait for its writes.
    pub(crate) fn is_quiet(&self, step: Step) -> bool {
        match step.kind {
            Kind::Deliver(way) => {
                let first = self.ways.get(&way).and_then(VecDeque::front);
                let matters = self.mode == Mode::Pcie && way.route.is_response;
                !matters && first.is_some_and(|held| !held.packet.is_atomic())
            }
            _ => false,
        }
    }

    fn placed(&self, lane: Lane, number: u64) -> Option<&Placed> {
        self.lanes.get(&lane)?.iter().find(|placed| placed.number == number)
    }

    /// Executes a step, as far as that needs no device.
    pub(crate) fn take(&mut self, now: u64, step: Step, mut show: impl FnMut(usize, &P)) -> Option<Rest<P>> {
        match step.kind {
            Kind::Place(lane) => {
                let placed = self.lanes.get_mut(&lane)?;
                let at = placed.iter().position(|placed| placed.number == step.number)?;
                let one = placed.remove(at)?;
                let next = placed.front().map(|front| front.number);
                if next.is_none() {
                    self.lanes.remove(&lane);
                }
                if at == 0 {
                    self.replace_front(one.number, next, Front::Lane(lane));
                }
                Some(self.execute(now, lane, one))
            }
            Kind::Fetch(way) => {
                let held = self.ways.get_mut(&way)?;
                let one = held.iter_mut().find(|held| held.fills.iter().any(|f| f.number == step.number))?;
                let at = one.fills.iter().position(|fetch| fetch.number == step.number)?;
                let step = one.fills.remove(at);
                fetch(&mut one.packet, &step.fill);
                self.record.fetched(now, &way, &step, one.packet.label());
                Some(Rest::Done)
            }
            Kind::Deliver(way) => {
                let held = self.ways.get_mut(&way)?;
                let one = held.pop_front()?;
                let next = held.front().map(|front| front.number);
                if next.is_none() {
                    self.ways.remove(&way);
                }
                self.replace_front(one.number, next, Front::Way(way));
                if let Some(count) = self.answers.get_mut(&way.answers()) {
                    *count -= 1;
                    if *count == 0 {
                        self.answers.remove(&way.answers());
                    }
                }
                show(way.to, &one.packet);
                self.record.arrived(now, &way, one.packet.label());
                Some(Rest::Arrive { to: way.to, packet: one.packet })
            }
        }
    }

    /// The first write of a lane, or packet of a way, is taken; `next` is the one behind it.
    fn replace_front(&mut self, taken: u64, next: Option<u64>, front: Front) {
        self.fronts.remove(&taken);
        if let Some(next) = next {
            self.fronts.insert(next, front);
        }
    }

    fn execute(&mut self, now: u64, lane: Lane, placed: Placed) -> Rest<P> {
        self.record.placed(now, lane, &placed);
        self.waiting -= placed.cost();
        match placed.effect {
            Effect::Store { memory, offset, bytes, atomic } => {
                let result = match <[u8; 8]>::try_from(&bytes[..]) {
                    Ok(word) if atomic => memory.publish(offset, word),
                    _ => memory.write(offset, &bytes),
                };
                if let Err(fault) = result {
                    log::warn!("a write of {} bytes is lost: {fault}", bytes.len());
                }
                if atomic && let Some(count) = self.atomics.get_mut(&lane.device) {
                    *count -= 1;
                    if *count == 0 {
                        self.atomics.remove(&lane.device);
                    }
                }
                Rest::Done
            }
            Effect::Model { token, .. } => Rest::Model { device: lane.device, token },
        }
    }

    /// Executes the oldest write of all lanes, if too many wait.
    pub(crate) fn overdue(&mut self, now: u64) -> Option<Rest<P>> {
        if self.waiting <= MAX_WAITING {
            return None;
        }
        let of_lane = |(number, front): (u64, &Front)| match front {
            Front::Lane(lane) => Some((number, *lane)),
            Front::Way(_) => None,
        };
        let (number, lane) = self.fronts.iter().find_map(of_lane)?;
        self.take(now, Step { number, kind: Kind::Place(lane) }, |_, _| {})
    }

    /// Reads the fills of all packets of a device, and executes the writes of its lanes, in order. What is left for the device is returned:
    /// a command waits for the accesses before it.
    pub(crate) fn drain(&mut self, now: u64, device: usize) -> Vec<u64> {
        let mut tokens = Vec::new();
        let first = Lane { device, ..Lane::of_queue(0, Side::Requester) };
        let lanes = self.lanes.range(first..).map(|(lane, _)| *lane);
        let lanes: Vec<Lane> = lanes.take_while(|lane| lane.device == device).collect();
        for lane in lanes {
            let placed = self.lanes.remove(&lane).unwrap_or_default();
            if let Some(front) = placed.front() {
                self.fronts.remove(&front.number);
            }
            for placed in placed {
                if let Rest::Model { token, .. } = self.execute(now, lane, placed) {
                    tokens.push(token);
                }
            }
        }
        let route = Route { src: 0, dest: 0, is_response: false };
        let first = Way { from: device, route, to: 0, alone: 0 };
        for (_, held) in self.ways.range_mut(first..).take_while(|(way, _)| way.from == device) {
            for one in held {
                for Fetch { fill, .. } in core::mem::take(&mut one.fills) {
                    fetch(&mut one.packet, &fill);
                }
            }
        }
        tokens
    }
}

/// Reads a line into a packet.
fn fetch<P: Packet>(packet: &mut P, fill: &Fill) {
    let place = packet.data_mut().and_then(|data| data.get_mut(fill.at..fill.at + fill.len));
    if let Some(place) = place
        && let Err(fault) = fill.memory.read(fill.offset, place)
    {
        log::warn!("a read of {} bytes gets nothing: {fault}", fill.len);
    }
}

/// The bytes from `offset` to the end of its line, at most `len`.
fn line_len(memory: &dyn Memory, offset: u64, len: usize) -> usize {
    let at = memory.address(offset).unwrap_or(offset) as usize % LINE;
    len.min(LINE - at)
}
