// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run of a program: its threads and the devices take steps one after the other.

use super::cpu::{Cpu, StepList, Thread};
use super::report::message;
use super::search::{Actor, Choice, Chooser};
use crate::Fabric;
use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use uverbs_fabric::order::{Footprint, Possible};

/// How many times the clock is advanced to the next timer while no step is possible.
const MAX_WAITS: usize = 64;

/// What a thread is doing.
#[derive(Debug, Default)]
enum State {
    /// It runs to its next step.
    #[default]
    Running,
    /// It waits before a step with these accesses.
    Waiting(Footprint),
    /// It is to check whether the step is possible.
    Asked(Footprint),
    /// It has checked.
    Answered(Footprint, bool),
    /// It ended, with the message of its panic.
    Ended(Option<String>),
}

#[derive(Debug)]
struct Slots {
    states: Vec<State>,
    words: Vec<(usize, String)>,
    /// The run is given up: all threads end.
    is_over: bool,
}

/// Lets one thread run at a time.
#[derive(Debug)]
pub(super) struct Turn {
    slots: Mutex<Slots>,
    changed: Condvar,
}

/// The payload of the panic that ends a thread of a run that is given up.
struct GivenUp;

impl Turn {
    fn new(threads: usize) -> Self {
        let states = (0..threads).map(|_| State::Running).collect();
        let slots = Slots { states, words: Vec::new(), is_over: false };
        Self { slots: Mutex::new(slots), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'a>(&self, slots: MutexGuard<'a, Slots>) -> MutexGuard<'a, Slots> {
        self.changed.wait(slots).unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, slots: &mut Slots, index: usize, state: State) {
        if let Some(slot) = slots.states.get_mut(index) {
            *slot = state;
        }
        self.changed.notify_all();
    }

    /// A thread waits before a step.
    pub(super) fn wait(&self, index: usize, footprint: Footprint, ready: &dyn Fn() -> bool) {
        let mut slots = self.lock();
        self.set(&mut slots, index, State::Waiting(footprint));
        loop {
            if slots.is_over {
                drop(slots);
                resume_unwind(Box::new(GivenUp));
            }
            match slots.states.get(index) {
                Some(State::Running) => return,
                Some(State::Asked(footprint)) => {
                    let footprint = footprint.clone();
                    // `ready` may enter the fabric, whose lock is not held here.
                    drop(slots);
                    let is_ready = ready();
                    slots = self.lock();
                    self.set(&mut slots, index, State::Answered(footprint, is_ready));
                }
                _ => slots = self.sleep(slots),
            }
        }
    }

    /// A thread has taken a step.
    pub(super) fn say(&self, index: usize, words: String) {
        self.lock().words.push((index, words));
    }

    fn end(&self, index: usize, panic: Option<String>) {
        let mut slots = self.lock();
        self.set(&mut slots, index, State::Ended(panic));
    }

    /// Waits until no thread runs, and returns the steps that threads can take.
    fn choices(&self) -> Result<(Vec<Choice>, bool), String> {
        let mut slots = self.lock();
        while slots.states.iter().any(|state| matches!(state, State::Running)) {
            slots = self.sleep(slots);
        }
        // Nothing changes while the threads check.
        for slot in &mut slots.states {
            if let State::Waiting(footprint) = slot {
                *slot = State::Asked(core::mem::take(footprint));
            }
        }
        self.changed.notify_all();
        while slots.states.iter().any(|state| matches!(state, State::Asked(_))) {
            slots = self.sleep(slots);
        }
        let mut choices = Vec::new();
        let mut all_ended = true;
        for (index, state) in slots.states.iter_mut().enumerate() {
            match state {
                State::Answered(footprint, is_ready) => {
                    all_ended = false;
                    let footprint = footprint.clone();
                    if *is_ready {
                        choices.push(Choice { actor: Actor::Thread(index), footprint: footprint.clone() });
                    }
                    *state = State::Waiting(footprint);
                }
                State::Ended(Some(panic)) => return Err(panic.clone()),
                _ => {}
            }
        }
        Ok((choices, all_ended))
    }

    /// Lets a thread take its step.
    fn go(&self, index: usize) {
        let mut slots = self.lock();
        self.set(&mut slots, index, State::Running);
    }

    /// Ends all threads.
    fn give_up(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn take_words(&self) -> Vec<(usize, String)> {
        core::mem::take(&mut self.lock().words)
    }
}

/// The threads of a program.
trait Threads {
    /// The steps that they can take, and whether all have ended.
    fn choices(&mut self, fabric: &Fabric) -> Result<(Vec<Choice>, bool), String>;

    /// Lets a thread take its step.
    fn go(&mut self, index: usize, fabric: &Fabric);

    /// Whether a step conflicts with no other one of the program.
    fn is_private(&self, footprint: &Footprint) -> bool;
}

struct Named<'t> {
    turn: &'t Turn,
    names: &'t [&'static str],
}

impl Threads for Named<'_> {
    fn choices(&mut self, fabric: &Fabric) -> Result<(Vec<Choice>, bool), String> {
        let choices = self.turn.choices();
        for (index, words) in self.turn.take_words() {
            fabric.say(format!("{} {words}", self.names.get(index).copied().unwrap_or_default()));
        }
        choices
    }

    fn go(&mut self, index: usize, _: &Fabric) {
        self.turn.go(index);
    }

    fn is_private(&self, _: &Footprint) -> bool {
        false
    }
}

struct Scripts<'s, 'a> {
    step_lists: &'s mut [&'a mut dyn StepList],
    is_private: &'s dyn Fn(&Footprint) -> bool,
}

impl Threads for Scripts<'_, '_> {
    fn choices(&mut self, _: &Fabric) -> Result<(Vec<Choice>, bool), String> {
        let (mut choices, mut all_ended) = (Vec::new(), true);
        for (index, script) in self.step_lists.iter().enumerate() {
            let Some(footprint) = script.next() else { continue };
            all_ended = false;
            if script.is_ready() {
                choices.push(Choice { actor: Actor::Thread(index), footprint });
            }
        }
        Ok((choices, all_ended))
    }

    fn go(&mut self, index: usize, fabric: &Fabric) {
        if let Some(words) = self.step_lists.get_mut(index).and_then(|script| script.act()) {
            fabric.say(words);
        }
    }

    fn is_private(&self, footprint: &Footprint) -> bool {
        (self.is_private)(footprint)
    }
}

/// A run of the program.
#[derive(Debug)]
pub struct Run {
    fabric: Fabric,
    chooser: Mutex<Chooser>,
    redundant: core::sync::atomic::AtomicBool,
    max_steps: usize,
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

    /// Runs threads and devices until the threads have ended and the devices have nothing left to do.
    ///
    /// # Panics
    /// A thread panics; no step is possible and a thread waits; there are too many steps.
    #[track_caller]
    pub fn together<'a>(&self, threads: impl IntoIterator<Item = Thread<'a>>) {
        let threads: Vec<Thread<'a>> = threads.into_iter().collect();
        let names: Vec<&'static str> = threads.iter().map(|thread| thread.name).collect();
        let turn = Turn::new(threads.len());
        let result = std::thread::scope(|scope| {
            for (index, Thread { body, .. }) in threads.into_iter().enumerate() {
                let turn = &turn;
                scope.spawn(move || {
                    let cpu = Cpu { turn, index };
                    let result = catch_unwind(AssertUnwindSafe(|| body(&cpu)));
                    let panic = result.err().filter(|payload| !payload.is::<GivenUp>());
                    turn.end(index, panic.map(|payload| message(&*payload)));
                });
            }
            let threads = Named { turn: &turn, names: &names };
            let result = catch_unwind(AssertUnwindSafe(|| self.schedule(threads)));
            turn.give_up();
            result
        });
        match result {
            Ok(Ok(())) => {}
            // Not by `panic!`: most such ends are of runs that repeat an earlier one, which are no failures.
            Ok(Err(message)) => resume_unwind(Box::new(message)),
            Err(payload) => resume_unwind(payload),
        }
    }

    /// As [`together`](Self::together), with threads that are lists of steps: it needs no threads of the system, and is faster. `is_private`
    /// tells whether no other step of the whole program conflicts with one, so that a device can take it as soon as it is possible.
    ///
    /// # Panics
    /// As [`together`](Self::together).
    #[track_caller]
    pub fn step_lists(&self, step_lists: &mut [&mut dyn StepList], is_private: &dyn Fn(&Footprint) -> bool) {
        if let Err(message) = self.schedule(Scripts { step_lists, is_private }) {
            resume_unwind(Box::new(message));
        }
    }

    fn schedule(&self, mut threads: impl Threads) -> Result<(), String> {
        let mut chooser = self.chooser.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut steps, mut waits) = (0, 0);
        loop {
            let (mut choices, all_ended) = threads.choices(&self.fabric)?;
            let possible = self.fabric.steps();
            let is_first = |step: &&Possible| step.is_quiet || threads.is_private(&step.footprint);
            if let Some(quiet) = possible.iter().find(is_first) {
                chooser.take(&quiet.footprint);
                self.fabric.take_step(quiet.step);
                continue;
            }
            let devices = possible.into_iter();
            choices.extend(devices.map(|p| Choice { actor: Actor::Device(p.step), footprint: p.footprint }));
            if choices.is_empty() {
                if all_ended {
                    return Ok(());
                }
                waits += 1;
                if waits > MAX_WAITS || !self.fabric.pass_to_next_timer() {
                    return Err("the program hangs: no step is possible, and a thread waits".into());
                }
                continue;
            }
            steps += 1;
            if steps > self.max_steps {
                return Err(format!("the program takes more than {} steps", self.max_steps));
            }
            match chooser.choose(&choices) {
                Some(Actor::Device(step)) => drop(self.fabric.take_step(step)),
                Some(Actor::Thread(index)) => threads.go(index, &self.fabric),
                None => {
                    self.redundant.store(true, core::sync::atomic::Ordering::Relaxed);
                    return Err("the run repeats an earlier one".into());
                }
            }
        }
    }
}
