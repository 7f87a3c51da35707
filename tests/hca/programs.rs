// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs of verbs against the model of `uverbs_tests::programs`.
//!
//! The environment variable `UVERBS_PROGRAMS` is the number of programs, and `UVERBS_SEED` the seed. A failing program
//! is shortened before it is printed.

use anyhow::{Context as _, Result, anyhow};
use core::time::Duration;
use proptest::prelude::*;
use proptest::test_runner::{Config as RunnerConfig, RngSeed, TestCaseError, TestError, TestRunner};
use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use uverbs::attr::Mtu;
use uverbs::{Driver, Exclusive, Rc, Shared, Uc, Ud};
use uverbs_tests::programs::model::{self, Change, Effect, LEN, Memory};
use uverbs_tests::programs::world::World;
use uverbs_tests::programs::{Config, Step, Tally, Verb, Wr, Wrong};
use uverbs_tests::{Disturbance, Face, Lab, LabTest, Lock, Outcome, Test, TestBed, Typed};

/// The default number of programs, of all transports and lockings together.
const PROGRAMS: u32 = 100;

/// The transport and locking that all QPs of a program have.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Rc,
    RcLossy,
    Uc,
    Ud,
}

#[derive(Clone, Debug)]
struct Program {
    kind: Kind,
    shared: bool,
    config: Config,
    steps: Vec<Step>,
    tally: Arc<Mutex<Tally>>,
}

impl LabTest for Program {
    fn run<D: Driver>(self, lab: &Lab<D>) -> Outcome {
        match (self.kind, self.shared) {
            (Kind::Rc | Kind::RcLossy, false) => self.play::<D, Rc, Exclusive>(lab),
            (Kind::Rc | Kind::RcLossy, true) => self.play::<D, Rc, Shared>(lab),
            (Kind::Uc, false) => self.play::<D, Uc, Exclusive>(lab),
            (Kind::Uc, true) => self.play::<D, Uc, Shared>(lab),
            (Kind::Ud, false) => self.play::<D, Ud, Exclusive>(lab),
            (Kind::Ud, true) => self.play::<D, Ud, Shared>(lab),
        }
    }
}

impl Program {
    fn play<D: Driver, T: Typed<D>, L: Lock>(self, lab: &Lab<D>) -> Result<()> {
        let _disturbed = match self.config.lossy {
            true => {
                let what =
                    Disturbance { loss: 3, duplicate: 3, reorder: Some((95, 0)), ..Disturbance::default() };
                Some(lab.bed.disturb(&what)?)
            }
            false => None,
        };
        let mut world = World::<D, T, L>::new(lab, &self.config)?;
        for (i, step) in self.steps.iter().enumerate() {
            world.step(step).with_context(|| format!("step {i}: {step:?}"))?;
        }
        world.finish().context("at the end")?;
        *self.tally.lock().unwrap_or_else(PoisonError::into_inner) += world.tally;
        Ok(())
    }
}

fn wr() -> impl Strategy<Value = Wr> {
    let wrong = prop_oneof![
        40 => Just(None),
        1 => Just(Some(Wrong::Sges)),
        1 => Just(Some(Wrong::Inline)),
    ];
    let flags =
        (prop::bool::weighted(0.5), prop::bool::weighted(0.1), any::<bool>(), prop::bool::weighted(0.3));
    let verb = prop::sample::select(&Verb::ALL[..]);
    (verb, flags, any::<u16>(), any::<(u16, u16)>(), any::<[u16; 3]>(), any::<u64>(), wrong).prop_map(
        |(verb, (signaled, fence, solicited, inline), len, at, cuts, word, wrong)| Wr {
            verb,
            signaled,
            fence,
            solicited,
            inline,
            len,
            at,
            cuts,
            word,
            wrong,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let face = prop::sample::select(&Face::ALL[..]);
    let recv_face = prop::sample::select(&[Face::List, Face::Batch, Face::Single][..]);
    let (pair, end) = (0..3_u8, 0..2_u8);
    prop_oneof![
        30 => (pair.clone(), end.clone(), face, prop::collection::vec(wr(), 0..7))
            .prop_map(|(pair, end, face, wrs)| Step::Post { pair, end, face, wrs }),
        18 => (pair.clone(), end.clone(), recv_face, 1..9_u8, any::<u16>())
            .prop_map(|(pair, end, face, count, cut)| Step::Recv { pair, end, face, count, cut }),
        24 => (end.clone(), 0..3_u8, 1..12_u8, 0..3_u8)
            .prop_map(|(end, cq, max, way)| Step::Poll { end, cq, max, way }),
        3 => (pair.clone(), end.clone()).prop_map(|(pair, end)| Step::Drain { pair, end }),
        4 => (pair.clone(), end.clone()).prop_map(|(pair, end)| Step::Resume { pair, end }),
        2 => (pair.clone(), end.clone()).prop_map(|(pair, end)| Step::Fail { pair, end }),
        2 => pair.clone().prop_map(|pair| Step::Reset { pair }),
        2 => pair.prop_map(|pair| Step::Destroy { pair }),
        2 => (end, 0..3_u8, 0..700_u16).prop_map(|(end, cq, cqe)| Step::Resize { end, cq, cqe }),
        2 => (1..5_u8).prop_map(|ms| Step::Rest { ms }),
    ]
}

fn config(lossy: bool) -> impl Strategy<Value = Config> {
    let mtu = prop::sample::select(&[Mtu::MTU_256, Mtu::MTU_512, Mtu::MTU_1024][..]);
    (1..4_usize, 1..4_usize, any::<bool>(), prop::bool::weighted(0.2), 4..40_u32, 1..5_u32, 0..100_u32, mtu)
        .prop_map(move |(pairs, cqs, srq, sq_sig_all, max_send_wr, max_sge, max_inline, mtu)| Config {
            pairs,
            cqs,
            srq,
            sq_sig_all,
            max_send_wr,
            max_sge,
            max_inline,
            mtu,
            lossy,
        })
}

fn number(name: &str, default: u32) -> Result<u32> {
    match env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}

/// Generates programs of a kind and runs them.
fn draw<P: TestBed>(kind: Kind, share: u32) -> Outcome {
    let cases = number("UVERBS_PROGRAMS", PROGRAMS)?.div_ceil(100) * share;
    let seed = u64::from(number("UVERBS_SEED", 1)?) << 8 | kind as u64;
    let config_of = RunnerConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 3000,
        max_shrink_time: 60_000,
        rng_seed: RngSeed::Fixed(seed),
        ..RunnerConfig::default()
    };
    let tally = Arc::new(Mutex::new(Tally::default()));
    let start = Instant::now();
    let strategy =
        (any::<bool>(), config(matches!(kind, Kind::RcLossy)), prop::collection::vec(step(), 1..60));
    let result = TestRunner::new(config_of).run(&strategy, |(shared, config, steps)| {
        let program = Program { kind, shared, config, steps, tally: tally.clone() };
        P::run(program).map_err(|e| TestCaseError::fail(format!("{e:#}")))
    });
    match result {
        Ok(()) => {
            let tally = *tally.lock().unwrap_or_else(PoisonError::into_inner);
            uverbs_tests::runner::note(format_args!(
                "{cases} programs in {:.1} s: {tally:?}",
                start.elapsed().as_secs_f32()
            ));
            // Programs without completions would test nothing.
            anyhow::ensure!(
                tally.posted > u64::from(cases) && tally.completed.iter().all(|n| *n > 0),
                "{tally:?}"
            );
            Ok(())
        }
        Err(TestError::Fail(reason, program)) => Err(anyhow!("{reason}\n(seed {seed:#x}) {program:#?}")),
        Err(TestError::Abort(reason)) => Err(anyhow!("aborted: {reason}")),
    }
}

/// The model changes memory only in the windows of a direction.
fn model_changes_only_its_windows() -> Outcome {
    let before = Memory::new();
    let effects = [
        Effect::Write { at: model::target(1) + 5, data: vec![1, 2, 3] },
        Effect::Read { from: model::target(1), to: model::results(1) + 9, len: 100 },
        Effect::Atomic { at: model::words(1) + 8, to: model::results(1), change: Change::Add(1) },
        Effect::Atomic {
            at: model::words(1),
            to: model::results(1) + 8,
            change: Change::Swap { compare: 0, swap: 1 },
        },
    ];
    for effect in effects {
        let mut after = before.clone();
        effect.apply(&mut after, 0);
        for end in 0..2 {
            for i in 0..LEN {
                let inside = model::windows(1, 0).iter().any(|(e, r)| *e == end && r.contains(&i));
                anyhow::ensure!(
                    inside || before.0[end][i] == after.0[end][i],
                    "{effect:?} changed byte {i} at end {end}"
                );
            }
        }
    }
    Ok(())
}

/// The tests of this file.
pub(crate) fn tests<P: TestBed>() -> Vec<Test> {
    const HOUR: Duration = Duration::from_secs(3600);
    vec![
        Test::long("programs::model_changes_only_its_windows", HOUR, model_changes_only_its_windows),
        Test::long("programs::rc", HOUR, || draw::<P>(Kind::Rc, 45)),
        Test::long("programs::rc_lossy", HOUR, || draw::<P>(Kind::RcLossy, 25)),
        Test::long("programs::uc", HOUR, || draw::<P>(Kind::Uc, 15)),
        Test::long("programs::ud", HOUR, || draw::<P>(Kind::Ud, 15)),
    ]
}
