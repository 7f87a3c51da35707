// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queues of an end: polls, and the wait if there is nothing to poll, by events or by polling.

use crate::patience::Patience;
use anyhow::{Context as _, Result, bail};
use std::os::fd::AsFd;
use uverbs::{CompletionChannel, CompletionQueue, Driver, WorkCompletion};

/// Empty polls between two checks of the time limit.
const POLLS_PER_LOOK: u32 = 1 << 10;
/// Completions of a poll.
const POLL_BATCH: usize = 16;
/// Bits of a work request's id that count the messages of a QP; the others are the QP's index.
pub(super) const COUNT_BITS: u32 = 48;

/// The completion queues.
#[derive(Debug)]
pub(super) struct Queues<D: Driver> {
    pub(super) send: CompletionQueue<D>,
    pub(super) recv: CompletionQueue<D>,
    pub(super) channel: Option<CompletionChannel<D>>,
    pub(super) is_armed: bool,
    pub(super) idle_polls: u32,
    /// Yields the CPU while it waits, because the other end is a thread of this process.
    pub(super) yields: bool,
    pub(super) patience: Patience,
}

fn poll<D: Driver>(cq: &mut CompletionQueue<D>, mut each: impl FnMut(usize, u64)) -> Result<usize> {
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

    /// Called after polls that found nothing. With events, the first call arms the queues, so that the caller polls
    /// again, and the second one sleeps.
    pub(super) fn idle(&mut self, what: &str) -> Result<()> {
        self.idle_polls = self.idle_polls.saturating_add(1);
        if let Some(channel) = &self.channel {
            if self.is_armed {
                self.patience.wait_readable(channel.as_fd(), what)?;
                channel.get_event()?;
                self.patience.renew();
            } else {
                self.send.req_notify(false).context("req_notify_cq")?;
                self.recv.req_notify(false).context("req_notify_cq")?;
            }
            self.is_armed = !self.is_armed;
            return Ok(());
        }
        if self.idle_polls == POLLS_PER_LOOK {
            // The limit begins with the first look after progress.
            self.patience.renew();
        }
        if self.idle_polls.is_multiple_of(POLLS_PER_LOOK) {
            self.patience.left(what)?;
        }
        if self.yields {
            std::thread::yield_now();
        } else {
            core::hint::spin_loop();
        }
        Ok(())
    }
}
