// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stress test: threads post, poll, arm, reset, destroy and re-create QPs, and resize CQs, at random, while a model
//! computes which completions may exist.
//!
//! `model` computes which completions may exist, `memory` has the buffers that devices write, `conn` creates and
//! destroys QPs, and `work` has the work of the threads. A seed repeats the choices, but not the timing of the threads.
//!
//! `UVERBS_STRESS_SECONDS` is its duration, `UVERBS_STRESS_SEED` the seed of its choices (0: a new one each time).

mod conn;
mod memory;
mod model;
mod rng;
mod work;

use crate::pair::builder_ops;
use crate::wait::LIMIT;
use crate::{Lab, Outcome};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use conn::{CQS, Conn, End};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use model::{Clock, LANES};
use rng::Rng;
use std::thread;
use std::time::Instant;
use uverbs::attr::EventType;
use uverbs::{Driver, Rc};
pub use uverbs_testkit::stress::length;
use uverbs_testkit::stress::seed;
use work::{Counts, Stop, World};

/// The duration of a round. Each round has new objects.
const ROUND: Duration = Duration::from_millis(700);
/// Connections of a round.
const CONNS: usize = 3;
/// Threads that poll.
const POLLERS: usize = 2;
/// Threads that reset, destroy and resize queues in use.
const CONTROLLERS: usize = 2;

/// The operations on queues that are in use. Each of them can be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disturb {
    /// QPs are reset, and connected again.
    pub reset: bool,
    /// QPs are destroyed, and others are created.
    pub destroy: bool,
    /// CQs are resized.
    pub resize: bool,
}

impl Disturb {
    /// All operations.
    pub const ALL: Self = Self { reset: true, destroy: true, resize: true };

    /// The same if siw has all of them, else `None`: siw does not reset QPs and does not resize CQs.
    fn on_siw(self) -> Option<Self> {
        (!self.reset && !self.resize).then_some(self)
    }
}

/// Runs the test for a part of its [`length`].
pub fn run<D: Driver>(lab: &Lab<D>, disturb: Disturb, length: Duration) -> Outcome {
    let disturb = if D::NAME == "siw" { disturb.on_siw() } else { Some(disturb) };
    let Some(disturb) = disturb else {
        lab.note("siw neither resets QPs nor resizes CQs");
        return Ok(());
    };
    let (start, seed) = (Instant::now(), seed());
    let mut total = String::new();
    let mut sums = [0; 6];
    let mut round = 0;
    while round == 0 || start.elapsed() < length {
        let left = length.saturating_sub(start.elapsed()).clamp(ROUND / 4, ROUND);
        let counts = one_round(lab, disturb, seed, round, left)
            .with_context(|| format!("UVERBS_STRESS_SEED={seed}, round {round}"))?;
        for (sum, n) in sums.iter_mut().zip(counts) {
            *sum += n;
        }
        round += 1;
        total = format!(
            "seed {seed}, {round} rounds: {} posts, {} completions, {} resets, {} destroyed, {} resized, a reset or destruction during {} posts",
            sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]
        );
    }
    lab.note(total);
    Ok(())
}

fn one_round<D: Driver>(
    lab: &Lab<D>,
    disturb: Disturb,
    seed: u64,
    round: u64,
    length: Duration,
) -> Result<[u64; 6]> {
    let attr = lab.connect_attr().rnr_retry(7).min_rnr_timer(1);
    let world = World {
        ops: builder_ops::<D, Rc>(lab)?,
        ends: [End::new(lab, &lab.a, CONNS)?, End::new(lab, &lab.b, CONNS)?],
        conns: (0..CONNS).map(Conn::new).collect(),
        disturb,
        clock: Clock::default(),
        attr,
        stop: Stop::default(),
        counts: Counts::default(),
    };
    work::has_wire_form(&world.ends[0].memory)?;
    lab.a.set_async_nonblocking(true)?;
    lab.b.set_async_nonblocking(true)?;
    let world = &world;
    let mut rng = Rng::new(seed, round, 0);
    for conn in &world.conns {
        world.begin(&mut rng, conn)?;
    }
    thread::scope(|scope| {
        let spawn = |number: u64, role: Role| {
            let mut rng = Rng::new(seed, round, number);
            scope.spawn(move || {
                while role.goes_on(world) {
                    if let Err(error) = role.step(world, &mut rng) {
                        world.stop.fail(error);
                    }
                }
            })
        };
        // The last lane is for the end of the round.
        let posters = (0..LANES - 1).map(Role::Poster);
        let controllers = if disturb == Disturb::default() { 0 } else { CONTROLLERS };
        let busy = posters.chain([Role::Controller; CONTROLLERS].into_iter().take(controllers));
        let busy: Vec<_> = (1..).zip(busy).map(|(number, role)| spawn(number, role)).collect();
        for number in 0..POLLERS {
            spawn(20 + number as u64, Role::Poller);
        }
        let end = Instant::now() + length;
        while world.goes_on() && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        world.stop.posters.store(true, Ordering::Relaxed);
        for thread in busy {
            if thread.join().is_err() {
                world.stop.fail(anyhow!("a thread panicked"));
            }
        }
        if world.is_polled()
            && let Err(error) = drain(world, &mut rng)
        {
            world.stop.fail(error);
        }
        world.stop.pollers.store(true, Ordering::Relaxed);
    });
    if let Some(error) = world.stop.failure() {
        // The device may still write to lent memory, so it is not freed.
        return Err(error);
    }
    finish(lab, world, &mut rng)?;
    let Counts { posted, completed, resets, destroyed, resized, straddled } = &world.counts;
    Ok([posted, completed, resets, destroyed, resized, straddled]
        .map(|n: &AtomicU64| n.load(Ordering::Relaxed)))
}

/// The role of a thread.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// Posts, in a separate lane.
    Poster(usize),
    /// Resets, destroys and resizes queues in use.
    Controller,
    /// Polls and arms.
    Poller,
}

impl Role {
    fn goes_on<D: Driver>(self, world: &World<D>) -> bool {
        match self {
            Self::Poller => world.is_polled(),
            _ => world.goes_on(),
        }
    }

    fn step<D: Driver>(self, world: &World<D>, rng: &mut Rng) -> Result<()> {
        match self {
            Self::Poster(lane) => world.post(rng, lane),
            Self::Controller => {
                for _ in 0..rng.below(40) {
                    thread::yield_now();
                }
                world.disturb(rng)
            }
            Self::Poller => {
                if rng.one_in(8) {
                    world.arm(rng)?;
                }
                if world.poll(rng)? == 0 {
                    thread::yield_now();
                }
                Ok(())
            }
        }
    }
}

/// Waits until all WRs that must complete have completed. Posts receives for the messages meanwhile.
fn drain<D: Driver>(world: &World<D>, rng: &mut Rng) -> Result<()> {
    // The wall clock is used, because the threads must make progress, too.
    let end = Instant::now() + LIMIT;
    loop {
        let mut missing = None;
        for conn in &world.conns {
            let era = conn.era()?;
            for side in 0..2 {
                if let Some(what) = era.missing(side) {
                    missing = Some((era.clone(), what));
                    // Not more than needed, because the numbers of a lane are limited.
                    if era.outstanding(1 - side, true, LANES - 1) < 4 {
                        world.post_to(rng, conn, 1 - side, true, LANES - 1, 1)?;
                    }
                }
            }
        }
        let Some((era, what)) = missing else { return Ok(()) };
        if !world.is_polled() {
            bail!("the pollers ended");
        }
        ensure!(Instant::now() < end, "{what}; {}", world.describe(&era));
        thread::sleep(Duration::from_millis(1));
    }
}

/// Destroys all QPs. After that there must be no completions, and no memory may change.
fn finish<D: Driver>(lab: &Lab<D>, world: &World<D>, rng: &mut Rng) -> Result<()> {
    for conn in &world.conns {
        conn.end(world.control(), [true, true])?;
    }
    for side in 0..2 {
        for which in 0..CQS {
            let n = world.poll_cq(rng, side, which).context("after all QPs are destroyed")?;
            ensure!(n == 0, "{n} completions after all QPs are destroyed");
        }
        world.ends[side].memory.check_all()?;
    }
    for context in [&lab.a, &lab.b] {
        while let Ok(event) = context.get_async_event() {
            let fatal = matches!(event.event_type, EventType::CQ_ERR | EventType::DEVICE_FATAL);
            ensure!(!fatal, "{event:?}");
        }
    }
    Ok(())
}
