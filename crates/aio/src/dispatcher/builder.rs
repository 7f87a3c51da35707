// SPDX-License-Identifier: MIT OR Apache-2.0
//! The creation of a dispatcher.

use super::{Dispatcher, Inner};
use crate::error::Result;
use crate::events::{Hub, Subscriber};
use crate::poller::Poller;
use crate::sleeper::Sleeper;
use crate::timers::{Clock, Monotonic};
use core::time::Duration;
use std::sync::Arc;
use uverbs::{Context, Driver};

/// The parameters of a dispatcher that is to be created.
#[derive(Debug)]
#[must_use]
pub struct DispatcherBuilder<'a, D: Driver> {
    pub(super) context: &'a Context<D>,
    pub(super) hub: Option<Arc<Hub<D>>>,
    pub(super) cqe: u32,
    pub(super) spin: Duration,
    pub(super) clock: Option<Arc<dyn Clock>>,
}

impl<D: Driver> DispatcherBuilder<'_, D> {
    /// Entries of the CQ: at least the depths of all queues that complete to it. 1024 by default.
    pub fn cqe(self, cqe: u32) -> Self {
        Self { cqe, ..self }
    }

    /// How long the CQ is polled without a completion before the dispatcher sleeps: the latency of a system call is saved for a
    /// completion that arrives in this time. 20 us by default; 0 for a program that shares its processors. The time is halved
    /// whenever it was spent for nothing, down to a sixteenth, and restored by a completion.
    pub fn spin(self, time: Duration) -> Self {
        Self { spin: time, ..self }
    }

    /// The clock of the time limits.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Creates the CQ and its channel.
    ///
    /// # Errors
    /// The kernel's refusal, or too many open files.
    pub fn build(self) -> Result<Dispatcher<D>> {
        let Self { context, hub, cqe, spin, clock } = self;
        let channel = context.create_comp_channel()?;
        channel.set_nonblocking(true)?;
        let cq = context.cq_with(cqe, Some(&channel))?;
        let sleeper = Sleeper::new(clock.unwrap_or_else(|| Arc::new(Monotonic::new())), spin)?;
        sleeper.watch_channel(&channel)?;
        let hub = match hub {
            Some(hub) => hub,
            None => Hub::new(context)?,
        };
        sleeper.watch_async_events(hub.as_fd())?;
        let poller = Poller::new((cq, channel, cqe), Arc::new(sleeper), hub);
        let subscriber: Arc<dyn Subscriber> = poller.clone();
        poller.hub().add(&subscriber);
        let inner = Arc::new(Inner {
            poller,
            context: context.clone(),
            #[cfg(feature = "tokio")]
            stations: crate::station::Stations::default(),
        });
        Ok(Dispatcher { inner })
    }
}
