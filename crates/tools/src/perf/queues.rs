// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queues of an end: polls, and the wait if there is nothing to poll, by events or by polling.

use super::channel::Watch;
use crate::patience::Patience;
use crate::tcp::closed;
use anyhow::{Context as _, Result, bail};
use core::time::Duration;
use nix::poll::PollFlags;
use std::os::fd::AsFd;
use std::time::Instant;
use uverbs::{CompletionChannel, Driver, Exclusive, WorkCompletion, raw::Cq};

/// Empty polls between two checks of the time limit.
const POLLS_PER_LOOK: u32 = 1 << 10;
/// Rounds of a loop between two readings of the clock.
const ROUNDS_PER_LOOK: u32 = 1 << 6;
/// The time between two looks at the other end.
const LOOK: Duration = Duration::from_millis(100);
/// How long a test may go on after the other end has gone: it can have ended its part of the test.
const LAST: Duration = Duration::from_secs(2);
/// Completions of a poll.
const POLL_BATCH: usize = 16;
/// Bits of a work request's id that count the messages of a QP; the others are the QP's index.
pub(super) const COUNT_BITS: u32 = 48;

/// The completion queues.
#[derive(Debug)]
pub(super) struct Queues<D: Driver> {
    pub(super) send: Cq<Exclusive, D>,
    pub(super) recv: Cq<Exclusive, D>,
    channel: Option<CompletionChannel<D>>,
    is_armed: bool,
    idle_polls: u32,
    /// Yields the CPU while it waits, because the other end is a thread of this process.
    yields: bool,
    pub(super) patience: Patience,
    /// The stream to the other end.
    pub(super) watch: Option<Watch>,
    rounds: u32,
    last_look: Instant,
    /// When the other end was seen to have gone.
    ended: Option<Instant>,
}

fn poll<D: Driver>(cq: &mut Cq<Exclusive, D>, mut each: impl FnMut(usize, u64)) -> Result<usize> {
    let mut wc = [WorkCompletion::default(); POLL_BATCH];
    let found = cq.poll(&mut wc).context("poll_cq")?;
    for wc in found {
        if !wc.status.is_success() {
            bail!("completion with {:?} ({}), vendor_err {:#x}", wc.status, wc.status, wc.vendor_err);
        }
        each((wc.wr_id >> COUNT_BITS) as usize, wc.wr_id & ((1 << COUNT_BITS) - 1));
    }
    Ok(found.len())
}

impl<D: Driver> Queues<D> {
    pub(super) fn new(
        send: Cq<Exclusive, D>,
        recv: Cq<Exclusive, D>,
        channel: Option<CompletionChannel<D>>,
        yields: bool,
        patience: Patience,
    ) -> Self {
        Self {
            send,
            recv,
            channel,
            is_armed: false,
            idle_polls: 0,
            yields,
            patience,
            watch: None,
            rounds: 0,
            last_look: Instant::now(),
            ended: None,
        }
    }

    /// Looks at the other end from time to time, in a loop that need not be idle.
    pub(super) fn look_at_times(&mut self) -> Result<()> {
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(ROUNDS_PER_LOOK) { self.look() } else { Ok(()) }
    }

    /// Fails if the other end has gone.
    fn look(&mut self) -> Result<()> {
        if self.last_look.elapsed() < LOOK {
            return Ok(());
        }
        self.last_look = Instant::now();
        self.patience.check_other_end()?;
        if let Some(watch) = &self.watch {
            self.ended = watch.ended(self.ended)?;
        }
        match self.ended {
            Some(when) if when.elapsed() >= LAST => Err(closed().into()),
            _ => Ok(()),
        }
    }

    /// Sleeps until the channel has an event.
    fn sleep(&mut self, channel: &CompletionChannel<D>, what: &str) -> Result<()> {
        while self.ended.is_none() {
            let Some(watch) = &self.watch else { return self.patience.wait_readable(channel.as_fd(), what) };
            let fds = [(channel.as_fd(), PollFlags::POLLIN), watch.poll_fd()];
            let [has_event, has_ended] = self.patience.wait_any(fds, what)?;
            if has_ended {
                self.ended = watch.ended(None)?;
            }
            if has_event {
                return Ok(());
            }
        }
        let left = LAST.saturating_sub(self.ended.map_or(Duration::ZERO, |when| when.elapsed()));
        self.patience.check_other_end()?;
        Patience::new(Some(left)).wait_readable(channel.as_fd(), what).map_err(|_| closed().into())
    }

    /// Passes the QP's index and the number of messages that are complete to `each`, for the completions of sends.
    pub(super) fn sent(&mut self, each: impl FnMut(usize, u64)) -> Result<usize> {
        let found = poll(&mut self.send, each)?;
        self.progress(found);
        Ok(found)
    }

    /// As [`sent`](Self::sent), for receives.
    pub(super) fn received(&mut self, each: impl FnMut(usize, u64)) -> Result<usize> {
        let found = poll(&mut self.recv, each)?;
        self.progress(found);
        Ok(found)
    }

    fn progress(&mut self, found: usize) {
        if found > 0 && self.idle_polls > POLLS_PER_LOOK {
            self.patience.renew();
        }
        if found > 0 {
            self.idle_polls = 0;
        }
    }

    fn arm(&mut self) -> Result<()> {
        self.send.req_notify(false).context("req_notify_cq")?;
        self.recv.req_notify(false).context("req_notify_cq")
    }

    /// Waits for an event of the channel, and reads it.
    fn next_event(&mut self, channel: &CompletionChannel<D>, what: &str) -> Result<()> {
        self.sleep(channel, what)?;
        channel.get_event()?;
        self.patience.renew();
        Ok(())
    }

    /// Called after polls that found nothing. With events, the first call arms the queues, so that the caller polls
    /// again, and the second one sleeps.
    pub(super) fn idle(&mut self, what: &str) -> Result<()> {
        self.idle_polls = self.idle_polls.saturating_add(1);
        if let Some(channel) = self.channel.take() {
            let result = if self.is_armed { self.next_event(&channel, what) } else { self.arm() };
            self.channel = Some(channel);
            self.is_armed = !self.is_armed;
            return result;
        }
        if self.idle_polls == POLLS_PER_LOOK {
            // The limit begins with the first look after progress.
            self.patience.renew();
        }
        if self.idle_polls.is_multiple_of(POLLS_PER_LOOK) {
            self.patience.left(what)?;
            self.look()?;
        }
        if self.yields {
            std::thread::yield_now();
        } else {
            core::hint::spin_loop();
        }
        Ok(())
    }
}
