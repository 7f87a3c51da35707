// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue of a ping-pong: polled or with events, with or without timestamps.

use super::by_option;
use super::options::Options;
use crate::patience::Patience;
use anyhow::{Context as _, Result, bail};
use core::hint::spin_loop;
use std::os::fd::AsFd;
use uverbs::provider::Completion;
use uverbs::{CompletionChannel, Context, Driver, Error, PollError, WorkCompletion, raw::Cq};
use uverbs::{
    Exclusive,
    attr::{CqInitAttr, DeviceAttr, WcExFlags},
};

/// Empty polls between two readings of the clock.
const POLLS_PER_LOOK: u32 = 1 << 10;

/// A completion, and its timestamp in ticks of the device's clock.
pub(crate) type Timed = (WorkCompletion, Option<u64>);

/// The queue.
#[derive(Debug)]
pub(crate) struct Completions<D: Driver> {
    cq: Cq<Exclusive, D>,
    channel: Option<CompletionChannel<D>>,
    timestamps: bool,
    /// The array for plain polling.
    wc: Vec<WorkCompletion>,
    /// Yields the CPU after an empty poll, because the other end may be a thread of this process.
    yields: bool,
    /// The number of events that were read.
    pub(crate) events: u64,
}

impl<D: Driver> Completions<D> {
    /// Creates a queue with room for `cqe`, of the kind that the options select.
    pub(crate) fn new(
        context: &Context<D>,
        device: &DeviceAttr,
        options: &Options,
        cqe: u32,
    ) -> Result<Self> {
        let common = &options.common;
        let channel = if common.events { Some(context.create_comp_channel()?) } else { None };
        let mut attr = CqInitAttr::new(cqe);
        if common.ts {
            if device.completion_timestamp_mask == 0 {
                let what = format!("{} has no completion timestamps (-t)", context.name());
                return Err(Error::unsupported("create_cq_ex", what).into());
            }
            attr.wc_flags = WcExFlags::STANDARD | WcExFlags::COMPLETION_TIMESTAMP;
        }
        let cq = context.create_cq_ex(&attr, channel.as_ref()).map_err(by_option)?;
        let wc = vec![WorkCompletion::default(); cqe.clamp(1, 64) as usize];
        Ok(Self { cq, channel, timestamps: common.ts, wc, yields: options.here.is_some(), events: 0 })
    }

    /// The queue, for the creation of QPs.
    pub(crate) fn cq(&self) -> &Cq<Exclusive, D> {
        &self.cq
    }

    /// Requests an event for the next completion, if events are used.
    pub(crate) fn arm(&mut self) -> Result<()> {
        if self.channel.is_some() {
            self.cq.req_notify(false).context("req_notify_cq")?;
        }
        Ok(())
    }

    /// Waits for completions and stores all that are available in `out`, which is cleared first.
    pub(crate) fn wait(&mut self, patience: &Patience, out: &mut Vec<Timed>) -> Result<()> {
        out.clear();
        if self.channel.is_some() { self.sleep(patience, out) } else { self.spin(patience, out) }
    }

    fn spin(&mut self, patience: &Patience, out: &mut Vec<Timed>) -> Result<()> {
        loop {
            for _ in 0..POLLS_PER_LOOK {
                self.poll(out)?;
                if !out.is_empty() {
                    return Ok(());
                }
                if self.yields {
                    std::thread::yield_now();
                } else {
                    spin_loop();
                }
            }
            patience.left("a completion")?;
        }
    }

    /// An event means that a completion was added since the last arming. The order that misses no completion is: read
    /// the event, arm, poll until the queue is empty.
    fn sleep(&mut self, patience: &Patience, out: &mut Vec<Timed>) -> Result<()> {
        while out.is_empty() {
            if let Some(channel) = &self.channel {
                patience.wait_readable(channel.as_fd(), "a completion event")?;
                let id = channel.get_event()?;
                if id != self.cq.id() {
                    bail!("get_cq_event: an event for another CQ");
                }
                self.events += 1;
            }
            self.arm()?;
            loop {
                let before = out.len();
                self.poll(out)?;
                if out.len() == before {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Appends the available completions.
    fn poll(&mut self, out: &mut Vec<Timed>) -> Result<()> {
        if !self.timestamps {
            out.extend(self.cq.poll(&mut self.wc).context("poll_cq")?.iter().map(|wc| (*wc, None)));
            return Ok(());
        }
        let session = self.cq.poll_session(|poll| {
            loop {
                if let Some(c) = poll.current() {
                    out.push((c.to_wc(), c.completion_ts()));
                }
                poll.next()?;
            }
        });
        match session {
            Ok(Ok::<core::convert::Infallible, PollError>(never)) => match never {},
            Ok(Err(PollError::Empty)) | Err(PollError::Empty) => Ok(()),
            Ok(Err(error)) | Err(error) => Err(error).context("next_poll"),
        }
    }

    /// Destroys it. The QPs must be destroyed before.
    pub(crate) fn close(self) -> Result<()> {
        self.cq.close().map_err(|(_, error)| error).context("cannot destroy the CQ")
    }
}
