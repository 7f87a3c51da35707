// SPDX-License-Identifier: MIT OR Apache-2.0
//! The choice of the next step: by depth-first search with source sets and sleep sets, or by a seed.
//!
//! An *event* is a step that was chosen, with the steps behind it that are taken without a choice. Two events of a run race if they
//! conflict, and nothing between them orders them. For each race the search adds to the place of the first event a step by which the second
//! one can come before it, unless a step that is tried there already leads to the same orders (source sets, of P. Abdulla, S. Aronis,
//! B. Jonsson and K. Sagonas, "Optimal Dynamic Partial Order Reduction", POPL 2014). A step that was tried sleeps until an event conflicts
//! with it (sleep sets).

use super::events::{Access, Before};
use uverbs_fabric::order::{Footprint, Step};
use uverbs_fabric::random::Random;

/// What can take the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    /// A device of the fabric.
    Device(Step),
    /// A thread of the program, by its index.
    Thread(usize),
}

/// A step that can be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) actor: Actor,
    pub(super) footprint: Footprint,
    /// Whether other steps can take its possibility away: it has a condition, or it is an atomic.
    pub(super) has_condition: bool,
}

/// Why no step was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoChoice {
    /// Each step would repeat an earlier run.
    Covered,
    /// The step is not possible that was possible in earlier runs after the same steps.
    Changed,
}

/// Chooses the next step.
#[derive(Debug)]
pub(super) enum Chooser {
    Search(Search),
    Random(Random),
}

impl Chooser {
    /// The next step.
    /// `arisen` is the number of the last step of a device that has arisen.
    pub(super) fn choose(&mut self, options: Vec<Choice>, arisen: u64) -> Result<Choice, NoChoice> {
        match self {
            Self::Search(search) => search.choose(options, arisen),
            Self::Random(random) => {
                let n = random.below(options.len() as u64);
                options.into_iter().nth(n as usize).ok_or(NoChoice::Covered)
            }
        }
    }

    /// A step is taken without a choice.
    pub(super) fn take(&mut self, footprint: Footprint) {
        if let Self::Search(search) = self {
            search.take(footprint);
        }
    }

    /// No step was possible, and a timer ran: what comes now depends on all that was before.
    pub(super) fn pass_time(&mut self) {
        if let Self::Search(search) = self {
            search.floor = search.depth;
        }
    }
}

/// A step whose orders are covered, with the accesses of its event.
#[derive(Clone, Debug)]
struct Covered {
    actor: Actor,
    access: Access,
}

/// A place where a step was chosen, and the event that began with it.
#[derive(Debug)]
struct Node {
    /// The steps that are possible here.
    options: Vec<Choice>,
    /// The last step of a device that has arisen before.
    arisen: u64,
    chosen: Actor,
    has_condition: bool,
    /// The steps that are to be tried here, too.
    todo: Vec<Actor>,
    /// The steps whose orders are covered: those asleep before, and those that were tried here.
    asleep: Vec<Covered>,
    access: Access,
    /// The events before it that its place depends on.
    before: Before,
    /// The number of events before the last timer.
    floor: usize,
}

impl Node {
    fn has_option(&self, actor: Actor) -> bool {
        self.options.iter().any(|option| option.actor == actor)
    }

    /// Whether orders that begin with this step are, or will be, covered.
    fn covers(&self, actor: Actor) -> bool {
        self.chosen == actor
            || self.todo.contains(&actor)
            || self.asleep.iter().any(|covered| covered.actor == actor)
    }
}

/// The search: the choices of the current run.
#[derive(Debug, Default)]
pub(super) struct Search {
    nodes: Vec<Node>,
    /// The choices of the current run so far.
    depth: usize,
    /// The events whose races are known.
    examined: usize,
    floor: usize,
    /// The steps that are asleep: each order that begins with one of them is covered.
    asleep: Vec<Covered>,
}

impl Search {
    fn choose(&mut self, options: Vec<Choice>, arisen: u64) -> Result<Choice, NoChoice> {
        self.disable(&options);
        self.examine();
        if self.depth == self.nodes.len() {
            let is_awake =
                |option: &&Choice| !self.asleep.iter().any(|covered| covered.actor == option.actor);
            let chosen = options.iter().find(is_awake).ok_or(NoChoice::Covered)?.actor;
            self.nodes.push(Node {
                options,
                arisen,
                chosen,
                has_condition: false,
                todo: Vec::new(),
                asleep: core::mem::take(&mut self.asleep),
                access: Access::default(),
                before: Before::default(),
                floor: self.floor,
            });
        } else if let Some(node) = self.nodes.get_mut(self.depth) {
            node.options = options;
        }
        let node = self.nodes.get_mut(self.depth).ok_or(NoChoice::Changed)?;
        self.depth += 1;
        // The memory of this run may have other addresses than that of an earlier one.
        for covered in &mut node.asleep {
            if let Some(now) = node.options.iter().find(|option| option.actor == covered.actor) {
                covered.access.set_first(&now.footprint);
            }
        }
        let chosen = node.options.iter().find(|option| option.actor == node.chosen);
        let chosen = chosen.ok_or(NoChoice::Changed)?.clone();
        node.access = Access::of(&chosen.footprint);
        node.has_condition = chosen.has_condition;
        let still = |covered: &&Covered| !covered.access.meets(&chosen.footprint);
        self.asleep = node.asleep.iter().filter(still).cloned().collect();
        Ok(chosen)
    }

    fn take(&mut self, footprint: Footprint) {
        if footprint == Footprint::default() {
            return;
        }
        self.asleep.retain(|covered| !covered.access.meets(&footprint));
        if let Some(node) = self.depth.checked_sub(1).and_then(|last| self.nodes.get_mut(last)) {
            node.access.add(footprint);
        }
    }

    /// The last event took the possibility from steps that are not among these: they are to be tried before it.
    fn disable(&mut self, options: &[Choice]) {
        if self.depth <= self.examined {
            return;
        }
        let Some(node) = self.depth.checked_sub(1).and_then(|last| self.nodes.get_mut(last)) else { return };
        let is_gone = |actor: Actor| !options.iter().any(|option| option.actor == actor);
        let actors = node.options.iter().map(|option| option.actor);
        let gone: Vec<Actor> = actors.filter(|actor| is_gone(*actor) && !node.covers(*actor)).collect();
        node.todo.extend(gone);
    }

    /// Examines the events that are complete.
    fn examine(&mut self) {
        while self.examined < self.depth.min(self.nodes.len()) {
            self.examine_event(self.examined);
            self.examined += 1;
        }
    }

    /// The event that made the step of an event possible, and whether the step had arisen before and waited.
    fn cause(&self, at: usize) -> Option<(usize, bool)> {
        let event = self.nodes.get(at)?;
        let mut earlier = self.nodes.get(..at)?.iter().enumerate().skip(event.floor).rev();
        let (i, cause) =
            earlier.find(|(_, node)| node.chosen == event.chosen || !node.has_option(event.chosen))?;
        let waited = match event.chosen {
            Actor::Device(step) => step.number <= cause.arisen,
            Actor::Thread(_) => cause.chosen != event.chosen,
        };
        Some((i, waited))
    }

    /// What an event depends on, and its races.
    fn examine_event(&mut self, at: usize) {
        let cause = self.cause(at);
        let Some((event, earlier)) = self.nodes.get(at).zip(self.nodes.get(..at)) else { return };
        let floor = event.floor;
        // Events that are ordered by one in between do not race. But if that one made a condition true again, as the end of an atomic lets
        // another one begin, the step can come before both.
        let (mut before, mut ordered) = (Before::first(floor), Before::first(floor));
        let mut races = Vec::new();
        for (i, other) in earlier.iter().enumerate().skip(floor).rev() {
            if ordered.has(i) {
                continue;
            }
            let hides = match cause {
                Some((cause, waited)) if cause == i => !(waited && event.has_condition),
                _ if event.access.conflicts(&other.access) => {
                    races.push(i);
                    !event.has_condition
                }
                _ => continue,
            };
            before.add(i, &other.before);
            if hides {
                ordered.add(i, &other.before);
            }
        }
        if let Some(event) = self.nodes.get_mut(at) {
            event.before = before;
        }
        for race in races {
            self.reverse(race, at);
        }
    }

    /// Lets an event come before another one that it races with.
    fn reverse(&mut self, first: usize, second: usize) {
        // The events between them that do not depend on the first one, and the second one. Those can begin which depend on none of these.
        let mut taken: Vec<usize> = Vec::new();
        let mut initials: Vec<Actor> = Vec::new();
        let Some(place) = self.nodes.get(first) else { return };
        for at in first + 1..=second {
            let Some(event) = self.nodes.get(at) else { continue };
            if at < second && event.before.has(first) {
                continue;
            }
            if !taken.iter().any(|other| event.before.has(*other)) && place.has_option(event.chosen) {
                if place.covers(event.chosen) {
                    return;
                }
                initials.push(event.chosen);
            }
            taken.push(at);
        }
        if let Some(initial) = initials.first().copied()
            && let Some(place) = self.nodes.get_mut(first)
        {
            place.todo.push(initial);
        }
    }

    /// Changes the last choice that has another step left; `false` if there is none.
    pub(super) fn backtrack(&mut self) -> bool {
        self.disable(&[]);
        self.examine();
        (self.depth, self.floor, self.asleep) = (0, 0, Vec::new());
        while let Some(node) = self.nodes.last_mut() {
            let access = core::mem::take(&mut node.access);
            node.asleep.push(Covered { actor: node.chosen, access });
            if let Some(next) = node.todo.pop() {
                node.chosen = next;
                self.examined = self.nodes.len() - 1;
                return true;
            }
            self.nodes.pop();
        }
        false
    }
}
