// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a completion: poll for a short time, then sleep until the device raises an event.
//!
//! The event of a CQ goes to its own channel, so nobody else takes it. Of several threads that wait at a shared CQ, one sleeps at the
//! channel, and the others sleep until it leaves. The one at the channel has requested an event and has polled after that, so it can't miss
//! a completion. When it leaves, with a completion, with an error or at its deadline, it wakes the next one, which does the same.

use crate::brief::brief;
use crate::comp_channel::CompletionChannel;
use crate::cq::{Completed, Cq};
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use uverbs_core::errno::Errno;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, PollError};
use uverbs_core::sync::{Exclusive, Shared};

/// The time for which a wait polls before it sleeps: about that of a round trip and of a system call.
const SPIN: Duration = Duration::from_micros(20);

/// What the waits at a CQ share.
pub(crate) struct Waits<D: Driver> {
    /// The channel of this CQ only; `None` if the CQ has one of the program, or none.
    channel: Option<CompletionChannel<D>>,
    /// Whether a thread is at the channel.
    is_taken: Mutex<bool>,
    /// A thread has left the channel.
    left: Condvar,
}

brief!([D: Driver] Waits<D>, |this| "Waits at {:?}", this.channel);

/// The place at the channel. A drop, also by a panic, lets the next thread have it.
struct Place<'w, D: Driver>(&'w Waits<D>);

impl<D: Driver> Drop for Place<'_, D> {
    fn drop(&mut self) {
        *self.0.lock() = false;
        self.0.left.notify_one();
    }
}

/// The end of a wait; `None` is no limit.
#[derive(Clone, Copy)]
struct End(Option<Instant>);

impl End {
    /// The time that is left: `None` after the end, `Some(None)` without a limit.
    fn left(self) -> Option<Option<Duration>> {
        match self.0.map(|end| end.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => None,
            left => Some(left),
        }
    }
}

/// A CQ for the time of a wait: through `&mut` of an exclusive one, or `&` of a shared one.
trait Queue<D: Driver> {
    fn poll_one(&mut self) -> Result<Option<Completed<D>>>;
    /// Requests the event of the next completion.
    fn arm(&mut self) -> Result<()>;
}

impl<D: Driver> Waits<D> {
    pub(crate) fn new(channel: Option<CompletionChannel<D>>) -> Self {
        Self { channel, is_taken: Mutex::new(false), left: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        // The value is a flag, which no panic leaves half changed.
        self.is_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread is at the channel. `None` at the end.
    fn place(&self, end: End) -> Option<Place<'_, D>> {
        let mut is_taken = self.lock();
        while *is_taken {
            is_taken = match end.left()? {
                None => self.left.wait(is_taken).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    self.left.wait_timeout(is_taken, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *is_taken = true;
        Some(Place(self))
    }

    /// Waits for a completion. `None` at the end.
    fn wait(&self, limit: Option<Duration>, mut cq: impl Queue<D>) -> Result<Option<Completed<D>>> {
        let begin = Instant::now();
        let end = End(limit.and_then(|limit| begin.checked_add(limit)));
        let channel = loop {
            if let Some(completed) = cq.poll_one()? {
                return Ok(Some(completed));
            }
            if end.left().is_none() {
                return Ok(None);
            }
            match &self.channel {
                _ if begin.elapsed() < SPIN => core::hint::spin_loop(),
                Some(channel) => break channel,
                None => std::thread::yield_now(),
            }
        };
        let Some(_place) = self.place(end) else { return Ok(None) };
        loop {
            cq.arm()?;
            if let Some(completed) = cq.poll_one()? {
                return Ok(Some(completed));
            }
            let Some(time) = end.left() else { return Ok(None) };
            sleep(channel, time)?;
            // Each event is of completions that the poll finds, here or after the next request.
            while channel.next_event()?.is_some() {}
            if let Some(completed) = cq.poll_one()? {
                return Ok(Some(completed));
            }
        }
    }
}

/// Sleeps until the channel has an event, a signal arrives, or the time is over.
fn sleep<D: Driver>(channel: &CompletionChannel<D>, time: Option<Duration>) -> Result<()> {
    // Rounded up, so that the last round does not spin.
    let time = time.map_or(PollTimeout::NONE, |time| {
        PollTimeout::try_from(time.saturating_add(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], time) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(errno) => Err(Error::os("poll", "completion channel", Errno::from_raw(errno as i32))),
    }
}

macro_rules! waiting {
    ($locking:ident, [$($this:tt)*]) => {
        impl<D: Driver> Queue<D> for $($this)* Cq<$locking, D> {
            fn poll_one(&mut self) -> Result<Option<Completed<D>>> {
                Cq::<$locking, D>::poll_one(self).map_err(|error| failed(self.device(), error))
            }

            fn arm(&mut self) -> Result<()> {
                self.req_notify(false).map_err(|error| failed(self.device(), error))
            }
        }

        impl<D: Driver> Cq<$locking, D> {
            /// The next completion. It polls for some microseconds and then sleeps until the device raises an event. (A CQ of
            /// [`cq_with`](crate::Context::cq_with), whose channel belongs to the program, has nothing to sleep at: it is polled, and the
            /// thread yields in between.)
            ///
            /// # Errors
            /// Those of a poll and of a request for an event; `EIO` if the device was removed.
            pub fn wait($($this)* self) -> Result<Completed<D>> {
                let waits = self.waits().clone();
                loop {
                    if let Some(completed) = waits.wait(None, $($this)* *self)? {
                        return Ok(completed);
                    }
                }
            }

            /// As [`wait`](Self::wait), for at most `limit`; `None` if no completion has arrived by then.
            ///
            /// # Errors
            /// As `wait`.
            pub fn wait_timeout($($this)* self, limit: Duration) -> Result<Option<Completed<D>>> {
                let waits = self.waits().clone();
                waits.wait(Some(limit), $($this)* *self)
            }
        }
    };
}

waiting!(Exclusive, [&mut]);
waiting!(Shared, [&]);

#[cold]
fn failed(device: &str, error: PollError) -> Error {
    Error::os("poll_cq", format!("cq of {device}: {error}"), error.errno())
}
