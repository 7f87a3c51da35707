// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time limit without progress, after which the program fails.

use anyhow::{Result, bail};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// The longest sleep of an end whose other end is in this process and may fail.
const NAP: Duration = Duration::from_millis(50);

/// The limit, and the time of the last progress.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    limit: Option<Duration>,
    since: Instant,
    /// Set when the other end, in this process, has failed.
    has_failed: Option<Arc<AtomicBool>>,
}

/// The other end, in this process, has failed. Its own error is the reason of the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OtherEndFailed;

impl fmt::Display for OtherEndFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the other end in this process has failed")
    }
}

impl core::error::Error for OtherEndFailed {}

impl Patience {
    /// Starts the limit now; `None` means no limit.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, since: Instant::now(), has_failed: None }
    }

    /// Also ends when this is set, for an end whose other end is in this process.
    pub(crate) fn or_failure(self, has_failed: Arc<AtomicBool>) -> Self {
        Self { has_failed: Some(has_failed), ..self }
    }

    /// Changes the limit, and restarts it; `None` means no limit.
    pub(crate) fn set_limit(&mut self, limit: Option<Duration>) {
        self.limit = limit;
        self.renew();
    }

    /// Restarts the limit after progress.
    pub(crate) fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// Whether the other end, in this process, has not failed.
    ///
    /// # Errors
    /// [`OtherEndFailed`].
    pub(crate) fn check_other_end(&self) -> Result<(), OtherEndFailed> {
        let has_failed = self.has_failed.as_ref().is_some_and(|failed| failed.load(Ordering::Relaxed));
        if has_failed { Err(OtherEndFailed) } else { Ok(()) }
    }

    /// The remaining time, at least a millisecond (0 means "for ever" for a socket); `None` means no limit.
    ///
    /// # Errors
    /// The time is over: `what` names the event that was awaited. Or the other end has failed: [`OtherEndFailed`].
    pub(crate) fn left(&self, what: &str) -> Result<Option<Duration>> {
        self.check_other_end()?;
        let Some(limit) = self.limit else { return Ok(None) };
        match limit.checked_sub(self.since.elapsed()) {
            Some(left) if !left.is_zero() => Ok(Some(left.max(Duration::from_millis(1)))),
            _ => bail!("timed out: waited {} s for {what}", limit.as_secs()),
        }
    }

    /// Waits until a descriptor can be read.
    pub(crate) fn wait_readable(&self, fd: BorrowedFd<'_>, what: &str) -> Result<()> {
        self.wait_any([(fd, PollFlags::POLLIN)], what).map(drop)
    }

    /// Waits for one of these events, or more; returns which descriptors have any. An error of a descriptor is an event.
    pub(crate) fn wait_any<const N: usize>(
        &self,
        fds: [(BorrowedFd<'_>, PollFlags); N],
        what: &str,
    ) -> Result<[bool; N]> {
        let mut polled = fds.map(|(fd, events)| PollFd::new(fd, events));
        loop {
            let nap = self.has_failed.as_ref().map(|_| NAP);
            let left = self.left(what)?;
            let timeout = match left.min(nap).or(left).or(nap) {
                // Rounded up, so that the last round does not spin.
                Some(left) => {
                    PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
                }
                None => PollTimeout::NONE,
            };
            match poll(&mut polled, timeout) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                Ok(_) => return Ok(polled.map(|fd| fd.any().unwrap_or(true))),
                Err(errno) => bail!("poll(2) for {what}: {errno}"),
            }
        }
    }
}

/// Whether an error only shows that the other end has failed: it says so, or has closed the stream of the exchange.
pub(crate) fn follows(error: &anyhow::Error) -> bool {
    let kind = error.chain().find_map(|e| e.downcast_ref::<std::io::Error>()).map(std::io::Error::kind);
    let is_closed = |kind| {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof)
    };
    error.is::<OtherEndFailed>() || kind.is_some_and(is_closed)
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

    #[test]
    fn a_failure_of_the_other_end_ends_the_wait() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let failed = Arc::new(AtomicBool::new(false));
        let patience = Patience::new(None).or_failure(failed.clone());
        assert!(patience.left("anything").unwrap().is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| patience.wait_readable(reader.as_fd(), "nothing").unwrap_err());
            failed.store(true, Ordering::Relaxed);
            assert!(waiting.join().unwrap().is::<OtherEndFailed>());
        });
    }
}
