// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a small program under every order of accesses to memory that a mode permits.
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//! use uverbs_hca::explore::{Explorer, Thread};
//!
//! let flag = AtomicU64::new(0);
//! let report = Explorer::new().explore(|run| {
//!     run.together([
//!         Thread::new("writer", |cpu| cpu.store(&flag, 1)),
//!         Thread::new("reader", |cpu| drop(cpu.load(&flag))),
//!     ]);
//! });
//! assert_eq!(report.runs, 2);
//! ```
//! The program is a closure. It is called once for each run, builds devices of [`Run::fabric`], queue pairs and memory, and calls
//! [`Run::together`] with its threads. A thread does what other threads or devices can see by its [`Cpu`]: each such call is a step. Between
//! two steps of a thread, the steps of the other threads and of the devices take place, in an order that the explorer chooses. Threads see
//! each other's steps in that order: the store buffers of a processor are not part of the model.
//!
//! # What is explored
//! [`Explorer::explore`] covers each class of orders that differ only in exchanged neighbours without a common access (source sets, of P.
//! Abdulla, S. Aronis, B. Jonsson and K. Sagonas, "Optimal Dynamic Partial Order Reduction", POPL 2014, and sleep sets, of P. Godefroid,
//! "Partial-Order Methods", 1996). Deliveries of packets take place at once, since they only make further steps possible, except
//! those of atomics, which read memory. Timers run if nothing else can. The bounds are [`Explorer::max_runs`] and
//! [`Explorer::max_steps`]; [`Report::is_complete`] tells whether they sufficed.
//!
//! [`Explorer::seeds`] makes one run per seed instead, each with an order that the seed selects.

mod cpu;
mod events;
mod report;
mod run;
mod search;
mod turn;

pub use cpu::{Cpu, StepList, Thread};
pub use report::{Failure, Report};
pub use run::Run;
pub use uverbs_fabric::order::{ATOMICS, Footprint, Mode, Schedule};

use crate::Fabric;
use core::panic::AssertUnwindSafe;
use search::{Chooser, Search};
use std::panic::catch_unwind;
use uverbs_fabric::random::Random;

/// Runs a small program under many orders.
#[derive(Clone, Debug)]
pub struct Explorer {
    mode: Mode,
    max_runs: usize,
    max_steps: usize,
}

impl Default for Explorer {
    fn default() -> Self {
        Self { mode: Mode::Model, max_runs: 100_000, max_steps: 10_000 }
    }
}

/// The end of a run.
enum End {
    /// The program ended.
    Ended,
    /// The run would have repeated an earlier one, in another order of independent steps.
    Redundant,
    Failed(Failure),
}

impl Explorer {
    /// An explorer of [`Mode::Model`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The most runs of an exploration; by default 100,000.
    #[must_use]
    pub fn max_runs(mut self, max: usize) -> Self {
        self.max_runs = max;
        self
    }

    /// The most steps of a run; by default 10,000. A run with more fails: it may have no end.
    #[must_use]
    pub fn max_steps(mut self, max: usize) -> Self {
        self.max_steps = max;
        self
    }

    /// Runs the program under every order.
    ///
    /// # Panics
    /// A run fails: the program panics, hangs, or makes too many steps. The message has the schedule.
    #[track_caller]
    pub fn explore(&self, program: impl Fn(&Run)) -> Report {
        let report = self.search(program);
        if let Some(failure) = &report.failure {
            panic!("{failure}");
        }
        report
    }

    /// As [`explore`](Self::explore), up to the first run that fails, which the report has.
    pub fn search(&self, program: impl Fn(&Run)) -> Report {
        self.search_with(&|| Fabric::deterministic(0), program)
    }

    /// As [`search`](Self::search), on a [deterministic](Fabric::deterministic) fabric that has its devices: a run needs less time. What a run
    /// leaves, the program of the next run finds, and has to undo. Accesses that a run has left take place before the next run.
    pub fn search_on(&self, fabric: &Fabric, program: impl Fn(&Run)) -> Report {
        self.search_with(&|| fabric.clone(), program)
    }

    fn search_with(&self, fabric: &dyn Fn() -> Fabric, program: impl Fn(&Run)) -> Report {
        let mut search = Search::default();
        let mut report = Report::default();
        while report.runs + report.redundant < self.max_runs {
            let (chooser, end) = self.run(fabric(), Chooser::Search(search), &program);
            let Chooser::Search(next) = chooser else { break };
            search = next;
            match end {
                End::Ended => report.runs += 1,
                End::Redundant => report.redundant += 1,
                End::Failed(failure) => {
                    report.runs += 1;
                    report.failure = Some(failure);
                    return report;
                }
            }
            if !search.backtrack() {
                report.is_complete = true;
                break;
            }
        }
        report
    }

    /// Runs the program once for each seed, up to the first run that fails, which the report has.
    pub fn seeds(&self, seeds: impl IntoIterator<Item = u64>, program: impl Fn(&Run)) -> Report {
        self.seeds_with(&|| Fabric::deterministic(0), seeds, program)
    }

    /// As [`seeds`](Self::seeds), on a fabric that has its devices, as [`search_on`](Self::search_on).
    pub fn seeds_on(
        &self,
        fabric: &Fabric,
        seeds: impl IntoIterator<Item = u64>,
        program: impl Fn(&Run),
    ) -> Report {
        self.seeds_with(&|| fabric.clone(), seeds, program)
    }

    fn seeds_with(
        &self,
        fabric: &dyn Fn() -> Fabric,
        seeds: impl IntoIterator<Item = u64>,
        program: impl Fn(&Run),
    ) -> Report {
        let mut report = Report { is_complete: true, ..Report::default() };
        for seed in seeds {
            report.runs += 1;
            let chooser = Chooser::Random(Random::new(seed));
            if let (_, End::Failed(failure)) = self.run(fabric(), chooser, &program) {
                report.failure = Some(Failure { seed: Some(seed), ..failure });
                break;
            }
        }
        report
    }

    fn run(&self, fabric: Fabric, chooser: Chooser, program: &impl Fn(&Run)) -> (Chooser, End) {
        fabric.order_by_hand(self.mode);
        let run = Run::new(fabric, chooser, self.max_steps);
        let result = catch_unwind(AssertUnwindSafe(|| program(&run)));
        let (chooser, fabric, redundant) = run.end();
        let end = match result {
            _ if redundant => End::Redundant,
            Ok(()) => End::Ended,
            Err(payload) => {
                let (message, schedule) = (report::message(&*payload), fabric.schedule());
                End::Failed(Failure { mode: self.mode, seed: None, message, schedule })
            }
        };
        (chooser, end)
    }
}
