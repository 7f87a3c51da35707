// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the queues of a dispatcher use of it: whether it has failed, and the work that they leave to its next poll.

use crate::deferred::{Added, Dry, Ended};
use crate::error::{Error, Result};
use crate::route::RouteId;
use crate::sleeper::Sleeper;
use crate::sync::{Mutex, MutexGuard, lock};
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};
use std::sync::{Arc, OnceLock};
use uverbs::{Driver, PollError};

/// The dispatcher is that of the parent.
pub(crate) const FORKED: Error = Error::Poll(PollError::Forked);

/// The state of a dispatcher. Its queues have it, and not the dispatcher itself, which has them.
pub(crate) struct Life<D: Driver> {
    sleeper: Arc<Sleeper>,
    /// Why nothing is polled any more.
    failure: OnceLock<Error>,
    added: Mutex<Added<D>>,
    /// Whether the next poll has work besides the completions. It changes under the lock of `added`.
    has_deferred: AtomicBool,
}

impl<D: Driver> Life<D> {
    pub(crate) fn new(sleeper: Arc<Sleeper>) -> Self {
        let (failure, added) = (OnceLock::new(), Mutex::new(Added::new()));
        Self { sleeper, failure, added, has_deferred: AtomicBool::new(false) }
    }

    pub(crate) fn sleeper(&self) -> &Arc<Sleeper> {
        &self.sleeper
    }

    /// Nothing is polled any more. The first reason counts.
    pub(crate) fn set_failure(&self, error: Error) {
        let _ = self.failure.set(error);
    }

    /// Why nothing is complete any more: the CQ failed, or this is a child of fork(2).
    pub(crate) fn failure(&self) -> Option<Error> {
        if self.sleeper.is_forked() {
            return Some(FORKED);
        }
        self.failure.get().cloned()
    }

    /// Whether there is a [`failure`](Self::failure).
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.sleeper.is_forked() || self.failure.get().is_some()
    }

    /// Whether the CQ failed, in the process of the dispatcher.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Fails as [`failure`](Self::failure) says.
    pub(crate) fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Whether the next poll has work besides the completions.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.has_deferred.load(Ordering::Relaxed)
    }

    /// The work that was added since the last poll.
    pub(crate) fn added(&self) -> MutexGuard<'_, Added<D>> {
        lock(&self.added)
    }

    /// Notes whether there is more to do, with the lock of the work that was added.
    pub(crate) fn set_deferred(&self, _: &Added<D>, has_more: bool) {
        self.has_deferred.store(has_more, Ordering::Relaxed);
        self.sleeper.set_restless(has_more);
    }

    /// Adds work for the next poll. A sleep ends soon then, although there is no event. After a failure nothing is polled: returns the
    /// work then. Either `fail` finds it, or this finds the failure.
    pub(crate) fn defer<T>(
        &self,
        work: T,
        add: impl FnOnce(&mut Added<D>, T),
    ) -> core::result::Result<(), T> {
        let mut added = lock(&self.added);
        if self.failure.get().is_some() {
            return Err(work);
        }
        add(&mut added, work);
        self.has_deferred.store(true, Ordering::Relaxed);
        self.sleeper.set_restless(true);
        Ok(())
    }

    /// A queue ended. It may end during a poll, so the next poll removes it.
    pub(crate) fn queue_ended(&self, ended: Ended<D>) {
        if self.has_failed() {
            return;
        }
        let lingers = ended.linger.is_some();
        let added = self.defer(ended, |added, ended| added.ended.push(ended));
        if added.is_ok() && lingers {
            self.sleeper.wake_up();
        }
    }

    /// A receive queue is empty because its pool is: it is refilled later.
    pub(crate) fn starved(&self, route: RouteId) {
        if !self.has_failed() && self.defer(route, |added, route| added.starved.push(route)).is_ok() {
            self.sleeper.wake_up();
        }
    }

    /// Waits until the completions that are in the CQ now were passed on. `begun` is the state of the wait.
    pub(crate) fn poll_dry(&self, begun: &mut Option<Arc<Dry>>, waker: &Waker) -> Poll<()> {
        if self.has_failed() {
            return Poll::Ready(());
        }
        let begins = begun.is_none();
        let dry = begun.get_or_insert_default();
        if dry.poll(waker) {
            return Poll::Ready(());
        }
        if begins {
            if self.defer(dry.clone(), Added::add_dry).is_err() {
                return Poll::Ready(());
            }
            self.sleeper.wake_up();
        }
        Poll::Pending
    }
}
