// SPDX-License-Identifier: MIT OR Apache-2.0
//! The choice of the next step: by depth-first search with sleep sets, or by a seed.

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
}

/// Chooses the next step.
#[derive(Debug)]
pub(super) enum Chooser {
    Search(Search),
    Random(Random),
}

impl Chooser {
    /// The next step; `None` if each would repeat an earlier run.
    pub(super) fn choose(&mut self, options: &[Choice]) -> Option<Actor> {
        match self {
            Self::Search(search) => search.choose(options),
            Self::Random(random) => {
                let n = random.below(options.len() as u64);
                options.get(n as usize).map(|option| option.actor)
            }
        }
    }

    /// A step is taken without a choice.
    pub(super) fn take(&mut self, footprint: &Footprint) {
        if let Self::Search(search) = self {
            search.asleep.retain(|option| !option.footprint.conflicts(footprint));
        }
    }
}

/// A choice that was made.
#[derive(Debug)]
struct Node {
    /// The steps that are to be tried here, the current one first.
    left: Vec<Choice>,
    /// The steps whose orders are covered: those asleep before, and those that were tried here.
    asleep: Vec<Choice>,
}

/// The search: the choices of the current run.
#[derive(Debug, Default)]
pub(super) struct Search {
    nodes: Vec<Node>,
    depth: usize,
    /// The steps that are asleep: each order that begins with one of them is covered.
    asleep: Vec<Choice>,
}

impl Search {
    fn choose(&mut self, options: &[Choice]) -> Option<Actor> {
        if self.depth == self.nodes.len() {
            let is_asleep = |option: &Choice| self.asleep.iter().any(|other| other.actor == option.actor);
            let left: Vec<Choice> = options.iter().filter(|option| !is_asleep(option)).cloned().collect();
            if left.is_empty() {
                return None;
            }
            self.nodes.push(Node { left, asleep: self.asleep.clone() });
        }
        let node = self.nodes.get_mut(self.depth)?;
        self.depth += 1;
        // The memory of this run may have other addresses than that of an earlier one.
        for known in node.left.iter_mut().chain(&mut node.asleep) {
            if let Some(now) = options.iter().find(|option| option.actor == known.actor) {
                known.footprint = now.footprint.clone();
            }
        }
        let chosen = node.left.first()?;
        let still = |option: &&Choice| !option.footprint.conflicts(&chosen.footprint);
        self.asleep = node.asleep.iter().filter(still).cloned().collect();
        Some(chosen.actor)
    }

    /// Changes the last choice that has another step left; `false` if there is none.
    pub(super) fn backtrack(&mut self) -> bool {
        (self.depth, self.asleep) = (0, Vec::new());
        while let Some(node) = self.nodes.last_mut() {
            let tried = node.left.remove(0);
            node.asleep.push(tried);
            if !node.left.is_empty() {
                return true;
            }
            self.nodes.pop();
        }
        false
    }
}
