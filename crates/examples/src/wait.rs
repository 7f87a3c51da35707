// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for completions: a loop polls for a while, then arms the CQ and sleeps on the completion channel.

use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, BorrowedFd};
use uverbs::{CompletionChannel, Driver, Errno, PollError};

/// Empty polls before the loop arms the CQ. On a machine with few cores the other side needs the processor.
const SPINS: u32 = 200;

/// The state of a loop that polls a CQ.
#[derive(Debug)]
pub struct Waiter<D: Driver> {
    channel: CompletionChannel<D>,
    spins: u32,
    armed: bool,
}

impl<D: Driver> Waiter<D> {
    /// For the CQs of this channel.
    ///
    /// # Errors
    /// The error of fcntl(2).
    pub fn new(channel: CompletionChannel<D>) -> uverbs::Result<Self> {
        channel.set_nonblocking(true)?;
        Ok(Self { channel, spins: 0, armed: false })
    }

    /// The channel, for the creation of its CQs.
    #[must_use]
    pub fn channel(&self) -> &CompletionChannel<D> {
        &self.channel
    }

    /// The loop has found something to do.
    #[inline]
    pub fn busy(&mut self) {
        self.spins = 0;
    }

    /// The loop has found nothing. Returns at once until it has found nothing often enough; then it calls `arm` and lets
    /// the loop poll once more, because a completion that arrived before raises no event; then it sleeps until there is an
    /// event, `other` is readable, or the limit has passed. Returns whether `other` is readable.
    ///
    /// # Errors
    /// That of `arm`, of poll(2), or of the channel.
    pub fn idle(
        &mut self,
        other: Option<BorrowedFd<'_>>,
        limit: Duration,
        arm: impl FnOnce() -> Result<(), PollError>,
    ) -> anyhow::Result<bool> {
        if self.spins < SPINS {
            self.spins += 1;
            std::thread::yield_now();
            return Ok(false);
        }
        if !self.armed {
            arm()?;
            self.armed = true;
            return Ok(false);
        }
        let mut files = vec![PollFd::new(self.channel.as_fd(), PollFlags::POLLIN)];
        files.extend(other.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut files, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match self.channel.get_event() {
            Ok(_) => (self.armed, self.spins) = (false, 0),
            Err(error) if error.errno() == Errno::EAGAIN => {}
            Err(error) => return Err(error.into()),
        }
        Ok(files.get(1).and_then(PollFd::any).unwrap_or(false))
    }
}
