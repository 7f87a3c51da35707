// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads of a program: each waits before each of its steps until the explorer lets it go on.

use super::turn::Turn;
use crate::Hca;
use core::sync::atomic::{AtomicU64, Ordering};
use uverbs_fabric::order::{Footprint, Mode};

/// A thread of the program.
pub struct Thread<'a> {
    pub(super) name: &'static str,
    pub(super) body: Box<dyn FnOnce(&Cpu<'_>) + Send + 'a>,
}

impl core::fmt::Debug for Thread<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Thread").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'a> Thread<'a> {
    /// A thread of this name.
    pub fn new(name: &'static str, body: impl FnOnce(&Cpu<'_>) + Send + 'a) -> Self {
        Self { name, body: Box::new(body) }
    }
}

/// A thread of the program as a list of steps.
pub trait StepList {
    /// What the next step accesses; `None` after the last one.
    fn next(&self) -> Option<Footprint>;

    /// Whether the step can be taken. It must change nothing.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether [`is_ready`](Self::is_ready) depends on what others do. `false` saves runs.
    fn has_condition(&self) -> bool {
        true
    }

    /// Takes the step. Returns it in words, for the schedule, or nothing.
    fn act(&mut self) -> Option<String>;
}

/// What a thread does that others can see. Each call is a step.
#[derive(Debug)]
pub struct Cpu<'a> {
    pub(super) turn: &'a Turn<'a>,
    pub(super) index: usize,
}

fn range(word: &AtomicU64) -> Option<(u64, u64)> {
    Some((word.as_ptr().addr() as u64, 8))
}

impl Cpu<'_> {
    /// Loads a word.
    #[must_use]
    pub fn load(&self, word: &AtomicU64) -> u64 {
        let footprint = Footprint { reads: range(word), ..Footprint::default() };
        self.step(footprint, || {
            let value = word.load(Ordering::SeqCst);
            (value, format!("loads {value:#x} from {:#x}", word.as_ptr().addr()))
        })
    }

    /// Stores a word.
    pub fn store(&self, word: &AtomicU64, value: u64) {
        let footprint = Footprint { writes: range(word), ..Footprint::default() };
        self.step(footprint, || {
            word.store(value, Ordering::SeqCst);
            ((), format!("stores {value:#x} to {:#x}", word.as_ptr().addr()))
        });
    }

    /// Waits until a word has another value than `old`, and returns it.
    pub fn wait_while(&self, word: &AtomicU64, old: u64) -> u64 {
        let footprint = Footprint { reads: range(word), ..Footprint::default() };
        let ready = || word.load(Ordering::SeqCst) != old;
        self.step_when(footprint, ready, || {
            let value = word.load(Ordering::SeqCst);
            (value, format!("loads {value:#x} from {:#x}", word.as_ptr().addr()))
        })
    }

    /// Posts to the queue pair with this number: calls `post`.
    pub fn post<T>(&self, hca: &Hca, qp_num: u32, post: impl FnOnce() -> T) -> T {
        // Without a mode the devices execute the request in the call.
        let everything = hca.fabric().mode() == Mode::Ordered;
        let object = Some((hca.index(), qp_num));
        let footprint = Footprint { object, everything, ..Footprint::default() };
        self.step(footprint, || (post(), format!("posts to QP {qp_num:#x}")))
    }

    /// Polls the completion queue with this number, whether it has entries or not: calls `poll`.
    pub fn poll<T>(&self, hca: &Hca, cqn: u32, poll: impl FnOnce() -> T) -> T {
        let footprint = Footprint { object: Some((hca.index(), cqn)), ..Footprint::default() };
        self.step(footprint, || (poll(), format!("polls CQ {cqn:#x}")))
    }

    /// Waits until the completion queue with this number has an entry, and calls `poll`.
    pub fn wait<T>(&self, hca: &Hca, cqn: u32, poll: impl FnOnce() -> T) -> T {
        let footprint = Footprint { object: Some((hca.index(), cqn)), ..Footprint::default() };
        let ready = || hca.unread(cqn).is_some_and(|unread| unread > 0);
        self.step_when(footprint, ready, || (poll(), format!("polls CQ {cqn:#x}, which has an entry")))
    }

    /// Takes a step with these accesses; `act` returns its result, and the step in words.
    pub fn step<T>(&self, footprint: Footprint, act: impl FnOnce() -> (T, String)) -> T {
        self.step_if(footprint, None, act)
    }

    /// As [`step`](Self::step), when `ready` is true. `ready` must change nothing, and depend on nothing but what `footprint` has: it is called
    /// again after a step that conflicts with `footprint`, and if that is empty, after each step.
    pub fn step_when<T>(
        &self,
        footprint: Footprint,
        ready: impl Fn() -> bool,
        act: impl FnOnce() -> (T, String),
    ) -> T {
        self.step_if(footprint, Some(&ready), act)
    }

    fn step_if<T>(
        &self,
        footprint: Footprint,
        ready: Option<&dyn Fn() -> bool>,
        act: impl FnOnce() -> (T, String),
    ) -> T {
        self.turn.wait(self.index, footprint, ready);
        let (result, words) = act();
        self.turn.say(self.index, &words);
        result
    }
}
