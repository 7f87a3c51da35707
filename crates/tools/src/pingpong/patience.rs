// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time limit without progress, after which the program fails.

use anyhow::{Result, bail};
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// The limit, and the time of the last progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    limit: Option<Duration>,
    since: Instant,
}

impl Patience {
    /// Starts the limit now; `None` means no limit.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, since: Instant::now() }
    }

    /// Restarts the limit after progress.
    pub(crate) fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// The remaining time, at least a millisecond (0 means "for ever" for a socket); `None` means no limit.
    ///
    /// # Errors
    /// The time is over. `what` names the event that was awaited.
    pub(crate) fn left(&self, what: &str) -> Result<Option<Duration>> {
        let Some(limit) = self.limit else { return Ok(None) };
        match limit.checked_sub(self.since.elapsed()) {
            Some(left) if !left.is_zero() => Ok(Some(left.max(Duration::from_millis(1)))),
            _ => bail!("timed out: waited {} s for {what}", limit.as_secs()),
        }
    }

    /// Waits until a descriptor can be read.
    pub(crate) fn wait_readable(&self, fd: BorrowedFd<'_>, what: &str) -> Result<()> {
        loop {
            let timeout = match self.left(what)? {
                // Rounded up, so that the last round does not spin.
                Some(left) => {
                    PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
                }
                None => PollTimeout::NONE,
            };
            match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => bail!("poll(2) for {what}: {errno}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_timeout_names_what_was_awaited() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let patience = Patience::new(Some(Duration::from_millis(20)));
        let error = patience.wait_readable(reader.as_fd(), "nothing").unwrap_err();
        assert!(error.to_string().contains("for nothing"), "{error}");
        assert!(Patience::new(None).left("anything").unwrap().is_none());
    }
}
