// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads of a program take turns: one runs at a time, to its next step.
//!
//! No thread of its own chooses the next step: the thread does that which was the last one to reach a step. If its own step is chosen, it goes
//! on without a change of threads. Whether a step with a condition is possible is asked again when a step was taken that conflicts with it.

use super::cpu::{Cpu, Thread};
use super::report::message;
use super::run::{Next, Run, Steps};
use super::search::{Actor, Choice};
use core::any::Any;
use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use uverbs_fabric::order::Footprint;

/// What a thread is doing.
#[derive(Debug)]
enum State {
    /// It runs to its next step.
    Running,
    /// It waits before a step.
    Waiting(Waiting),
    Ended,
}

/// A step that a thread waits before.
#[derive(Debug)]
struct Waiting {
    footprint: Footprint,
    has_condition: bool,
    /// Whether the step is possible, if that was asked since the last step that conflicts with it.
    is_ready: Option<bool>,
}

impl Waiting {
    /// A step with these accesses is taken.
    fn passes(&mut self, taken: &Footprint) {
        // A condition without accesses may depend on anything.
        if self.has_condition && (self.footprint == Footprint::default() || self.footprint.conflicts(taken)) {
            self.is_ready = None;
        }
    }
}

/// How the run has ended.
#[derive(Debug)]
enum End {
    Done,
    Failed(String),
    Panicked(Box<dyn Any + Send>),
}

#[derive(Debug)]
struct Slots {
    states: Vec<State>,
    steps: Steps,
    /// The thread that is asked whether its step is possible, and then chooses the next step.
    asked: Option<usize>,
    end: Option<End>,
}

impl Slots {
    fn waiting(&mut self) -> impl Iterator<Item = (usize, &mut Waiting)> {
        self.states.iter_mut().enumerate().filter_map(|(index, state)| match state {
            State::Waiting(waiting) => Some((index, waiting)),
            State::Running | State::Ended => None,
        })
    }

    fn passes(&mut self, taken: &Footprint) {
        self.waiting().for_each(|(_, waiting)| waiting.passes(taken));
    }

    fn is_any_running(&self) -> bool {
        self.states.iter().any(|state| matches!(state, State::Running))
    }
}

/// A thread, and the condition of its step.
type Own<'c> = Option<(usize, &'c dyn Fn() -> bool)>;

/// Lets one thread run at a time.
#[derive(Debug)]
pub(super) struct Turn<'r> {
    run: &'r Run,
    names: Vec<&'static str>,
    slots: Mutex<Slots>,
    /// Wakes a thread. The first one is that of the calling thread, if the program has no threads, too.
    wakers: Vec<Condvar>,
}

/// The payload of the panic that ends a thread of a run that is given up.
struct GivenUp;

impl<'r> Turn<'r> {
    /// Runs threads and devices until nothing is left to do.
    #[track_caller]
    pub(super) fn run(run: &'r Run, threads: Vec<Thread<'_>>) {
        let slots = Slots {
            states: threads.iter().map(|_| State::Running).collect(),
            steps: Steps::default(),
            asked: None,
            end: None,
        };
        let turn = Turn {
            run,
            names: threads.iter().map(|thread| thread.name).collect(),
            wakers: (0..threads.len().max(1)).map(|_| Condvar::new()).collect(),
            slots: Mutex::new(slots),
        };
        std::thread::scope(|scope| {
            let mut threads = threads.into_iter().enumerate();
            let first = threads.next();
            for (index, thread) in threads {
                let turn = &turn;
                scope.spawn(move || turn.execute(index, thread));
            }
            match first {
                Some((index, thread)) => turn.execute(index, thread),
                None => turn.schedule(turn.lock(), None),
            }
            let mut slots = turn.lock();
            while slots.end.is_none() {
                slots = turn.sleep(slots, 0);
            }
        });
        match turn.slots.into_inner().unwrap_or_else(PoisonError::into_inner).end {
            Some(End::Done) | None => {}
            // Not by `panic!`: most such ends are of runs that repeat an earlier one, which are no failures.
            Some(End::Failed(message)) => resume_unwind(Box::new(message)),
            Some(End::Panicked(payload)) => resume_unwind(payload),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'s>(&self, slots: MutexGuard<'s, Slots>, index: usize) -> MutexGuard<'s, Slots> {
        match self.wakers.get(index) {
            Some(waker) => waker.wait(slots).unwrap_or_else(PoisonError::into_inner),
            None => slots,
        }
    }

    fn wake(&self, index: usize) {
        if let Some(waker) = self.wakers.get(index) {
            waker.notify_one();
        }
    }

    fn end(&self, slots: &mut Slots, end: End) {
        slots.end.get_or_insert(end);
        self.wakers.iter().for_each(Condvar::notify_one);
    }

    /// Executes a thread.
    fn execute(&self, index: usize, thread: Thread<'_>) {
        let cpu = Cpu { turn: self, index };
        let result = catch_unwind(AssertUnwindSafe(|| (thread.body)(&cpu)));
        let mut slots = self.lock();
        if let Some(state) = slots.states.get_mut(index) {
            *state = State::Ended;
        }
        match result {
            Err(payload) if !payload.is::<GivenUp>() => {
                self.end(&mut slots, End::Failed(message(&*payload)));
            }
            _ if slots.end.is_none() && !slots.is_any_running() => self.schedule(slots, None),
            _ => {}
        }
    }

    /// A thread waits before a step. `ready` is the condition of the step.
    pub(super) fn wait(&self, index: usize, footprint: Footprint, ready: Option<&dyn Fn() -> bool>) {
        let has_condition = ready.is_some();
        let is_ready = if has_condition { None } else { Some(true) };
        let own = ready.map(|ready| (index, ready));
        let mut slots = self.lock();
        if let Some(state) = slots.states.get_mut(index) {
            *state = State::Waiting(Waiting { footprint, has_condition, is_ready });
        }
        if slots.end.is_none() && !slots.is_any_running() {
            self.schedule(slots, own);
            slots = self.lock();
        }
        loop {
            if slots.end.is_some() {
                drop(slots);
                resume_unwind(Box::new(GivenUp));
            }
            if let Some(State::Running) = slots.states.get(index) {
                return;
            }
            if slots.asked == Some(index) {
                slots.asked = None;
                self.schedule(slots, own);
                slots = self.lock();
            } else {
                slots = self.sleep(slots, index);
            }
        }
    }

    /// A thread has taken a step.
    pub(super) fn say(&self, index: usize, words: &str) {
        let name = self.names.get(index).copied().unwrap_or_default();
        self.run.fabric().say(format!("{name} {words}"));
    }

    /// Lets devices take steps until a thread goes on, or another thread is asked.
    fn schedule(&self, mut slots: MutexGuard<'_, Slots>, own: Own<'_>) {
        let result = catch_unwind(AssertUnwindSafe(|| self.steps(&mut slots, own)));
        match result {
            Ok(Ok(())) => {}
            Ok(Err(message)) => self.end(&mut slots, End::Failed(message)),
            Err(payload) => self.end(&mut slots, End::Panicked(payload)),
        }
    }

    fn steps(&self, slots: &mut Slots, own: Own<'_>) -> Result<(), String> {
        loop {
            if let Some((index, ready)) = own
                && let Some(State::Waiting(waiting)) = slots.states.get_mut(index)
                && waiting.is_ready.is_none()
            {
                waiting.is_ready = Some(ready());
            }
            let unknown =
                slots.waiting().find(|(_, waiting)| waiting.is_ready.is_none()).map(|(index, _)| index);
            if let Some(index) = unknown {
                slots.asked = Some(index);
                self.wake(index);
                return Ok(());
            }
            let all_ended = slots.waiting().next().is_none();
            let ready = slots.waiting().filter(|(_, waiting)| waiting.is_ready == Some(true));
            let choices = ready
                .map(|(index, waiting)| Choice {
                    actor: Actor::Thread(index),
                    footprint: waiting.footprint.clone(),
                    has_condition: waiting.has_condition,
                })
                .collect();
            match self.run.next(&mut slots.steps, choices, all_ended, &|_| false)? {
                Next::Go(index) => {
                    let Some(state) = slots.states.get_mut(index) else { continue };
                    if let State::Waiting(Waiting { footprint, .. }) =
                        core::mem::replace(state, State::Running)
                    {
                        slots.passes(&footprint);
                    }
                    self.wake(index);
                    return Ok(());
                }
                Next::Taken(footprint) => slots.passes(&footprint),
                Next::Passed => {
                    let all = Footprint { everything: true, ..Footprint::default() };
                    slots.passes(&all);
                }
                Next::Done => {
                    self.end(slots, End::Done);
                    return Ok(());
                }
            }
        }
    }
}
