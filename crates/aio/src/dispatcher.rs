// SPDX-License-Identifier: MIT OR Apache-2.0
//! A dispatcher: a CQ that is polled, and the tasks that wait for its completions.

mod builder;
mod event_loop;

pub use builder::DispatcherBuilder;
pub use event_loop::SleepLimit;

use crate::error::{Error, Result};
use crate::poller::Poller;
use crate::sleep::{Sleep, Timeout};
use core::fmt;
use core::future::Future;
use core::time::Duration;
use std::sync::Arc;
use uverbs::{AnyDriver, Context, Driver};

/// The shared part of a dispatcher.
pub(crate) struct Inner<D: Driver> {
    pub(crate) poller: Arc<Poller<D>>,
    context: Context<D>,
    #[cfg(feature = "tokio")]
    pub(crate) stations: crate::station::Stations<D>,
}

/// A CQ, and the tasks that wait for its completions. Clones share it.
///
/// It has to be run, see [the crate](crate#running-a-dispatcher).
pub struct Dispatcher<D: Driver = AnyDriver> {
    pub(crate) inner: Arc<Inner<D>>,
}

impl<D: Driver> Clone for Dispatcher<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<D: Driver> fmt::Debug for Dispatcher<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("cqe", &self.inner.poller.cqe()).finish_non_exhaustive()
    }
}

impl<D: Driver> Dispatcher<D> {
    /// A dispatcher with the default sizes. It takes over the asynchronous events of the context, see
    /// [`events`](Self::events).
    ///
    /// # Errors
    /// As [`DispatcherBuilder::build`].
    pub fn new(context: &Context<D>) -> Result<Self> {
        Self::builder(context).build()
    }

    /// Begins the creation of a dispatcher.
    pub fn builder(context: &Context<D>) -> DispatcherBuilder<'_, D> {
        DispatcherBuilder { context, hub: None, cqe: 1024, spin: Duration::from_micros(20), clock: None }
    }

    /// Begins the creation of another dispatcher of the same context, for example for another thread. They share the
    /// asynchronous events.
    pub fn another(&self) -> DispatcherBuilder<'_, D> {
        DispatcherBuilder { hub: Some(self.inner.poller.hub().clone()), ..Self::builder(&self.inner.context) }
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Context<D> {
        &self.inner.context
    }

    /// What was counted since it was created. Waits for a poll that is running.
    ///
    /// # Errors
    /// In a child of fork(2): the dispatcher is the parent's.
    #[cfg(feature = "counters")]
    pub fn counters(&self) -> Result<crate::counters::DispatcherCounters> {
        let poller = &self.inner.poller;
        if poller.sleeper().is_forked() { Err(crate::life::FORKED) } else { Ok(poller.counters()) }
    }

    /// The asynchronous events of the context, from now on: port down, QP fatal, device removed.
    #[must_use]
    pub fn events(&self) -> crate::events::Events<D> {
        {
            let poller = &self.inner.poller;
            poller.hub().subscribe(poller.sleeper().is_forked())
        }
    }

    /// Waits for this time.
    #[must_use]
    pub fn sleep(&self, time: Duration) -> Sleep {
        Sleep::new(self.inner.poller.sleeper().clone(), time)
    }

    /// The result of `future`, or [`Error::TimedOut`] if it takes longer than `limit`. The future stays in the value that this
    /// returns, and is dropped with it.
    pub fn timeout<F, T, E>(&self, limit: Duration, future: F) -> Timeout<F>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        Timeout::new(future, self.sleep(limit))
    }
}
