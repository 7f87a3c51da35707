// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits with time limits.

use anyhow::{Result, bail, ensure};
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::thread;
use std::time::Instant;
use uverbs::{Driver, Shared, WcOpcode, WcStatus, WorkCompletion, raw::Cq};

/// The time limit of anything that must happen. It ends a test that hangs and has no other meaning: the host of an
/// emulated machine may be busy for many seconds.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The time after which a test concludes that nothing happens.
pub const QUIET: Duration = Duration::from_millis(30);

/// The function that advances the clock of devices in this process.
static WORK: OnceLock<fn(Duration)> = OnceLock::new();

/// Devices of this process have a virtual clock, which advances only during waits: `work` advances it by this much. Without
/// `work`, a wait is a sleep.
pub fn work_while_waiting(work: fn(Duration)) {
    let _ = WORK.set(work);
}

/// Waits for this time of the devices' clock.
pub fn rest(time: Duration) {
    match WORK.get() {
        Some(work) => work(time),
        None => thread::sleep(time),
    }
}

/// A time limit. Waits first yield the CPU, and later sleep.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    start: Instant,
    limit: Duration,
    turns: u32,
    /// The time waited on the devices' clock, if it is virtual.
    waited: Duration,
}

/// The time by which a turn of waiting advances the devices' clock.
const TURN: Duration = Duration::from_micros(200);

/// The limit with a virtual clock: waiting costs no time, but threads still wait for each other.
const BRISK: Duration = Duration::from_secs(5);

impl Deadline {
    /// A deadline after this time.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self { start: Instant::now(), limit, turns: 0, waited: Duration::ZERO }
    }

    /// A deadline after the usual time.
    #[must_use]
    pub fn usual() -> Self {
        Self::after(LIMIT)
    }

    /// Whether the deadline has passed. If the devices have a virtual clock, it is used: on a busy machine a turn may
    /// take milliseconds, and if a peer has exited, the last retry is after thousands of turns.
    #[must_use]
    pub fn passed(&self) -> bool {
        let limit = if WORK.get().is_some() { self.limit.min(BRISK) } else { self.limit };
        self.start.elapsed() >= limit && (WORK.get().is_none() || self.waited >= self.limit)
    }

    /// Yields the CPU to the thread that makes progress.
    pub fn pause(&mut self) {
        self.turns = self.turns.saturating_add(1);
        if self.turns < 100 && WORK.get().is_none() {
            thread::yield_now();
        } else {
            self.waited += TURN;
            rest(TURN);
        }
    }

    /// Called after progress: the next waits are short again.
    pub fn progress(&mut self) {
        self.turns = 0;
    }
}

/// Waits until `f` returns true.
pub fn until(what: &str, limit: Duration, mut f: impl FnMut() -> Result<bool>) -> Result<()> {
    let mut deadline = Deadline::after(limit);
    while !f()? {
        ensure!(!deadline.passed(), "{what}: not within {limit:?}");
        deadline.pause();
    }
    Ok(())
}

/// Waits for exactly `n` completions, and returns them in order.
pub fn completions<D: Driver>(cq: &Cq<Shared, D>, n: usize) -> Result<Vec<WorkCompletion>> {
    let mut deadline = Deadline::usual();
    let mut all = Vec::with_capacity(n);
    let mut some = [WorkCompletion::default(); 16];
    while all.len() < n {
        let want = (n - all.len()).min(some.len());
        let got = cq.poll(&mut some[..want])?;
        if got.is_empty() {
            if deadline.passed() {
                bail!("{} of {n} completions after {LIMIT:?}: {}", all.len(), list(&all));
            }
            deadline.pause();
        } else {
            deadline.progress();
            all.extend_from_slice(got);
        }
    }
    Ok(all)
}

/// As [`completions`], and checks that all are successful.
pub fn successes<D: Driver>(cq: &Cq<Shared, D>, n: usize) -> Result<Vec<WorkCompletion>> {
    let all = completions(cq, n)?;
    ensure!(all.iter().all(|wc| wc.status.is_success()), "not all successful: {}", list(&all));
    Ok(all)
}

/// Checks that there is no completion.
pub fn none<D: Driver>(cq: &Cq<Shared, D>) -> Result<()> {
    rest(QUIET);
    let mut some = [WorkCompletion::default(); 16];
    let got = cq.poll(&mut some)?;
    ensure!(got.is_empty(), "unexpected completions: {}", list(got));
    Ok(())
}

/// Completions in a short form, for messages.
#[must_use]
pub fn list(all: &[WorkCompletion]) -> String {
    let one = |wc: &WorkCompletion| {
        let WorkCompletion { wr_id, status, opcode, byte_len, .. } = wc;
        match *status {
            WcStatus::SUCCESS => format!("{wr_id:#x}:{opcode:?}:{byte_len}"),
            status => format!("{wr_id:#x}:{status:?}"),
        }
    };
    let text: Vec<_> = all.iter().take(20).map(one).collect();
    format!("[{}{}]", text.join(" "), if all.len() > 20 { " ..." } else { "" })
}

/// Id and status of each completion, for comparisons.
#[must_use]
pub fn statuses(all: &[WorkCompletion]) -> Vec<(u64, WcStatus)> {
    all.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Id and opcode of each completion, for comparisons.
#[must_use]
pub fn opcodes(all: &[WorkCompletion]) -> Vec<(u64, WcOpcode)> {
    all.iter().map(|wc| (wc.wr_id, wc.opcode)).collect()
}

/// Waits until a descriptor is readable; `false` if it is not in time.
pub fn readable(fd: BorrowedFd<'_>, limit: Duration) -> Result<bool> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let own_clock = WORK.get().is_some();
    let end = Instant::now() + limit;
    let mut rested = Duration::ZERO;
    loop {
        let left = if own_clock { Duration::ZERO } else { end.saturating_duration_since(Instant::now()) };
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
            Ok(0) if own_clock && rested < limit => {
                const STEP: Duration = Duration::from_millis(1);
                rest(STEP);
                rested += STEP;
            }
            Ok(n) => return Ok(n > 0),
            Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
