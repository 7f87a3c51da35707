// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run of a program: its threads and the devices take steps one after the other.

use super::cpu::{StepList, Thread};
use super::search::{Actor, Choice, Chooser, NoChoice};
use super::turn::Turn;
use crate::Fabric;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use uverbs_fabric::order::{ATOMICS, Footprint, Possible};

/// How many times the clock is advanced to the next timer while no step is possible.
const MAX_WAITS: usize = 64;

/// A run of the program.
#[derive(Debug)]
pub struct Run {
    fabric: Fabric,
    chooser: Mutex<Chooser>,
    redundant: AtomicBool,
    max_steps: usize,
}

/// What happens next.
#[derive(Debug)]
pub(super) enum Next {
    /// This thread takes its step.
    Go(usize),
    /// A device has taken a step with these accesses: the threads are asked again what they can do.
    Taken(Footprint),
    /// The clock has advanced: the threads are asked again.
    Passed,
    /// Nothing is left to do.
    Done,
}

/// The steps of a call of [`Run::together`] or [`Run::step_lists`] so far.
#[derive(Debug, Default)]
pub(super) struct Steps {
    taken: usize,
    waits: usize,
}

impl Run {
    pub(super) fn new(fabric: Fabric, chooser: Chooser, max_steps: usize) -> Self {
        Self { fabric, chooser: Mutex::new(chooser), redundant: false.into(), max_steps }
    }

    pub(super) fn end(self) -> (Chooser, Fabric, bool) {
        let chooser = self.chooser.into_inner().unwrap_or_else(PoisonError::into_inner);
        (chooser, self.fabric, self.redundant.into_inner())
    }

    /// The fabric. It has no devices at first, unless the program gave the explorer one.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Runs threads and devices until the threads have ended and the devices have nothing left to do. The first thread of the program is
    /// the calling thread.
    ///
    /// # Panics
    /// A thread panics; no step is possible and a thread waits; there are too many steps.
    #[track_caller]
    pub fn together<'a>(&self, threads: impl IntoIterator<Item = Thread<'a>>) {
        Turn::run(self, threads.into_iter().collect());
    }

    /// As [`together`](Self::together), with threads that are lists of steps: it needs no threads of the system, and is faster. `is_private`
    /// tells whether no other step of the whole program conflicts with one, so that a device can take it as soon as it is possible.
    ///
    /// # Panics
    /// As [`together`](Self::together).
    #[track_caller]
    pub fn step_lists(&self, step_lists: &mut [&mut dyn StepList], is_private: &dyn Fn(&Footprint) -> bool) {
        let mut steps = Steps::default();
        loop {
            let (mut choices, mut all_ended) = (Vec::new(), true);
            for (index, list) in step_lists.iter().enumerate() {
                let Some(footprint) = list.next() else { continue };
                all_ended = false;
                if list.is_ready() {
                    let has_condition = list.has_condition();
                    choices.push(Choice { actor: Actor::Thread(index), footprint, has_condition });
                }
            }
            match self.next(&mut steps, choices, all_ended, is_private) {
                Ok(Next::Go(index)) => {
                    if let Some(words) = step_lists.get_mut(index).and_then(|list| list.act()) {
                        self.fabric.say(words);
                    }
                }
                Ok(Next::Taken(_) | Next::Passed) => {}
                Ok(Next::Done) => return,
                // Not by `panic!`: most such ends are of runs that repeat an earlier one, which are no failures.
                Err(message) => resume_unwind(Box::new(message)),
            }
        }
    }

    /// Chooses the next step, and takes it if it is of a device. `choices` are the steps that threads can take.
    pub(super) fn next(
        &self,
        steps: &mut Steps,
        mut choices: Vec<Choice>,
        all_ended: bool,
        is_private: &dyn Fn(&Footprint) -> bool,
    ) -> Result<Next, String> {
        let mut chooser = self.chooser.lock().unwrap_or_else(PoisonError::into_inner);
        let possible = self.fabric.steps();
        let is_first = |step: &&Possible| step.is_quiet || is_private(&step.footprint);
        if let Some(quiet) = possible.iter().find(is_first) {
            let footprint = quiet.footprint.clone();
            if !is_private(&footprint) {
                chooser.take(footprint.clone());
            }
            self.fabric.take_step(quiet.step);
            return Ok(Next::Taken(footprint));
        }
        let devices = possible.into_iter();
        choices.extend(devices.map(|Possible { step, footprint, .. }| {
            let has_condition = footprint.object.is_some_and(|(_, number)| number == ATOMICS);
            Choice { actor: Actor::Device(step), footprint, has_condition }
        }));
        if choices.is_empty() {
            if all_ended {
                return Ok(Next::Done);
            }
            steps.waits += 1;
            if steps.waits > MAX_WAITS || !self.fabric.pass_to_next_timer() {
                return Err("the program hangs: no step is possible, and a thread waits".into());
            }
            chooser.pass_time();
            return Ok(Next::Passed);
        }
        steps.taken += 1;
        if steps.taken > self.max_steps {
            return Err(format!("the program takes more than {} steps", self.max_steps));
        }
        match chooser.choose(choices, self.fabric.arisen_steps()) {
            Ok(Choice { actor: Actor::Device(step), footprint, .. }) => {
                self.fabric.take_step(step);
                Ok(Next::Taken(footprint))
            }
            Ok(Choice { actor: Actor::Thread(index), .. }) => Ok(Next::Go(index)),
            Err(NoChoice::Covered) => {
                self.redundant.store(true, Ordering::Relaxed);
                Err("the run repeats an earlier one".into())
            }
            Err(NoChoice::Changed) => {
                Err("a step is not possible that was possible after the same steps: the program has another source of order".into())
            }
        }
    }
}
