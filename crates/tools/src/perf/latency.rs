// SPDX-License-Identifier: MIT OR Apache-2.0
//! The latency tests: one message at a time.
//!
//! Sends and writes go to and fro, so half the time between two posts is the latency. The end of a write is visible in
//! memory only: each message ends with its number, and the receiver polls that byte. Reads and atomics are answered by
//! the device, so the server does nothing.

use super::carrier::Carrier;
use super::clock::{Clock, Phase};
use super::end::{End, Shot};
use super::options::{Plan, Verb};
use super::progress::Progress;
use anyhow::Result;
use core::time::Duration;
use std::time::Instant;
use uverbs::Driver;

/// The measured times.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Times {
    /// From each post to the next one, in the order of the messages.
    Each(Vec<Duration>),
    /// The number of messages within a time.
    Sum(u64, Duration),
}

/// What a loop counts.
struct Count<'a> {
    plan: &'a Plan,
    clock: Clock,
    posted: Vec<Instant>,
    measured: u64,
    progress: &'a Progress,
}

impl<'a> Count<'a> {
    fn new(plan: &'a Plan, progress: &'a Progress) -> Self {
        let clock = Clock::new(plan.duration);
        Self { plan, clock, posted: Vec::with_capacity(plan.iters as usize), measured: 0, progress }
    }

    /// Whether message number `n`, from 0, belongs to the run.
    fn has(&self, n: u64) -> bool {
        if self.clock.is_timed() { !self.clock.is_over() } else { n < self.plan.iters.into() }
    }

    fn posting(&mut self) {
        if !self.clock.is_timed() {
            self.posted.push(Instant::now());
        }
    }

    fn complete(&mut self, total: u64) {
        if self.clock.is_timed() && self.clock.phase() == Phase::Measured {
            self.measured += 1;
        }
        self.progress.set(total);
    }

    fn times(self) -> Times {
        if self.clock.is_timed() {
            return Times::Sum(self.measured, self.clock.measured());
        }
        Times::Each(self.posted.windows(2).map(|pair| pair[1] - pair[0]).collect())
    }
}

/// Runs the test for one size. The receives of sends must be posted.
pub(super) fn run<D: Driver, T: Carrier<D>>(
    end: &mut End<D, T>,
    plan: &Plan,
    bytes: u32,
    progress: &Progress,
) -> Result<Times> {
    let count = Count::new(plan, progress);
    match plan.verb {
        Verb::Send => sends(end, count, bytes),
        Verb::Write => writes(end, count, bytes),
        Verb::Read | Verb::Atomic => one_sided(end, count, bytes),
    }
}

/// Waits until the sends of this message are complete; `false` if the time is over before.
fn wait_sent<D: Driver, T: Carrier<D>>(end: &mut End<D, T>, clock: &Clock) -> Result<bool> {
    while end.cqs.sent(|_, _| ())? == 0 {
        if clock.is_over() {
            return Ok(false);
        }
        end.cqs.idle("a completion")?;
    }
    Ok(true)
}

fn sends<D: Driver, T: Carrier<D>>(end: &mut End<D, T>, mut count: Count<'_>, bytes: u32) -> Result<Times> {
    let plan = count.plan;
    let is_client = plan.is_client();
    let shot = Shot { bytes, moves: false };
    let receiver = end.receivers().start;
    let (mut sent, mut received, mut outstanding) = (0_u64, 0_u64, 0_u64);
    if is_client {
        count.clock.start();
    }
    // The time of the server begins with the first message.
    while count.has(sent) || count.has(received) {
        if count.has(received) && (sent > 0 || !is_client) {
            while outstanding_receives(end, &mut outstanding)? == 0 {
                if count.clock.is_over() {
                    return Ok(count.times());
                }
                end.cqs.idle("a message")?;
            }
            outstanding -= 1;
            count.clock.start();
            received += 1;
            count.complete(received);
            if count.clock.is_timed() || received + u64::from(plan.rx_depth) <= plan.iters.into() {
                end.post_recv(receiver, bytes, 1)?;
            }
        }
        if count.has(sent) {
            count.posting();
            let is_last = sent + 1 == u64::from(plan.iters);
            let is_signaled = (sent + 1) % u64::from(plan.cq_mod) == 0 || is_last;
            end.post(0, shot, (sent, 1), |_| is_signaled)?;
            sent += 1;
            if is_signaled && !wait_sent(end, &count.clock)? {
                break;
            }
        }
    }
    Ok(count.times())
}

/// The receives that were found but not counted. A poll may find more than one.
fn outstanding_receives<D: Driver, T: Carrier<D>>(end: &mut End<D, T>, outstanding: &mut u64) -> Result<u64> {
    if *outstanding == 0 {
        *outstanding = end.cqs.received(|_, _| ())? as u64;
    }
    Ok(*outstanding)
}

fn writes<D: Driver, T: Carrier<D>>(end: &mut End<D, T>, mut count: Count<'_>, bytes: u32) -> Result<Times> {
    let is_client = count.plan.is_client();
    let shot = Shot { bytes, moves: false };
    let (mut sent, mut received) = (0_u64, 0_u64);
    count.clock.start();
    while count.has(sent) || count.has(received) {
        // The server begins, as perftest's does in this test.
        if count.has(received) && (sent > 0 || is_client) {
            received += 1;
            while end.arrived(bytes)? != received as u8 {
                if count.clock.is_over() {
                    return Ok(count.times());
                }
                end.cqs.idle("a written message")?;
            }
        }
        if count.has(sent) {
            count.posting();
            sent += 1;
            end.mark(bytes, sent as u8)?;
            end.post(0, shot, (sent - 1, 1), |_| true)?;
            if !wait_sent(end, &count.clock)? {
                break;
            }
            count.complete(sent);
        }
    }
    Ok(count.times())
}

fn one_sided<D: Driver, T: Carrier<D>>(
    end: &mut End<D, T>,
    mut count: Count<'_>,
    bytes: u32,
) -> Result<Times> {
    let shot = Shot { bytes, moves: false };
    let mut sent = 0;
    count.clock.start();
    while count.has(sent) {
        count.posting();
        end.post(0, shot, (sent, 1), |_| true)?;
        sent += 1;
        if !wait_sent(end, &count.clock)? {
            break;
        }
        count.complete(sent);
    }
    Ok(count.times())
}
