// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls for an event loop of the program, which waits for the dispatcher's descriptor itself.

use super::Dispatcher;
use crate::error::Result;
use crate::life::FORKED;
use crate::wakeup::Who;
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use uverbs::Driver;
use uverbs_core::wake::Wakes;

impl<D: Driver> Dispatcher<D> {
    /// Polls the CQ and the timers once, and wakes the tasks whose operations are complete. Returns the number of
    /// completions.
    ///
    /// # Errors
    /// The CQ failed. All operations end with the same error.
    pub fn poll_once(&self) -> Result<usize> {
        let mut wakes = Wakes::new();
        let polled = self.inner.poller.poll(false, false, &mut wakes);
        wakes.wake();
        Ok(polled?)
    }

    /// For an event loop of the program: polls once, and arms the CQ. If there is nothing to do, returns the time limit of the sleep;
    /// the dispatcher's descriptor becomes readable when there is. Otherwise returns `None`, and the program does not sleep.
    ///
    /// A dispatcher has at most one event loop, because the descriptor does not tell which one has read an event. Other threads may
    /// use [`block_on`](Self::block_on) at the same time. After the sleep the loop calls [`after_sleep`](Self::after_sleep), also if the
    /// descriptor is not readable.
    ///
    /// # Errors
    /// As [`poll_once`](Self::poll_once).
    pub fn prepare_sleep(&self) -> Result<Option<SleepLimit>> {
        let mut wakes = Wakes::new();
        self.inner.poller.sleeper().announce(Who::Loop);
        let polled = self.inner.poller.poll(false, true, &mut wakes);
        let idle = matches!(polled, Ok(0)) && wakes.is_empty();
        if !idle {
            self.inner.poller.sleeper().cancel(Who::Loop);
        }
        wakes.wake();
        polled?;
        Ok(idle.then(|| SleepLimit(self.inner.poller.sleeper().time_to_sleep())))
    }

    /// For an event loop of the program: reads the descriptors that became readable, after the sleep. It does not wait.
    ///
    /// # Errors
    /// As [`poll_once`](Self::poll_once).
    pub fn after_sleep(&self) -> Result<()> {
        if self.inner.poller.sleeper().is_forked() {
            return Err(FORKED);
        }
        let mut wakes = Wakes::new();
        let slept = self.inner.poller.sleep(Some(Duration::ZERO), &mut wakes);
        if let Ok(readable) = slept {
            if readable.channel {
                self.inner.poller.read_channel(&mut wakes);
            }
            if readable.wakeup || readable.channel {
                self.inner.poller.sleeper().pass_wakeup();
            }
        }
        self.inner.poller.sleeper().cancel(Who::Loop);
        wakes.wake();
        slept?;
        Ok(())
    }
}

/// How long an event loop may wait for the dispatcher's descriptor; `None` without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepLimit(pub Option<Duration>);

/// Readable when there is something to do, after [`Dispatcher::prepare_sleep`].
impl<D: Driver> AsFd for Dispatcher<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.poller.sleeper().as_fd()
    }
}

impl<D: Driver> AsRawFd for Dispatcher<D> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
