// SPDX-License-Identifier: MIT OR Apache-2.0
//! The streams over which the exchange runs: TCP, a connection of rdma_cm, or a socket pair of one process. They differ in
//! how a wait ends, and in how an end sees that the other one has gone.

use crate::tcp;
use anyhow::{Context as _, Result};
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use uverbs_cm::{EventChannel, EventKind};

/// The other end sends no more: `POLLRDHUP`, for which nix has no name.
const HAS_ENDED: PollFlags = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);

/// The stream of the exchange.
pub(super) trait Channel: Read + Write {
    /// Changes the time limit of each wait; `None` is no limit.
    fn set_limit(&mut self, limit: Option<Duration>) -> Result<()>;

    /// Sees the end of the stream while a test runs, in which nothing is read from it.
    fn watch(&self) -> Result<Watch>;
}

/// What shows that the other end has closed the stream.
#[derive(Debug)]
pub(super) enum Watch {
    /// A duplicate of the socket. Messages for a later read can be in it.
    Socket(OwnedFd),
    /// The events of the connection.
    Connection(Arc<Ending>),
}

impl Watch {
    fn of_socket(socket: impl AsFd) -> Result<Self> {
        let duplicate = socket.as_fd().try_clone_to_owned();
        Ok(Self::Socket(duplicate.context("cannot duplicate the socket")?))
    }

    /// The descriptor and the events that poll(2) waits for.
    pub(super) fn poll_fd(&self) -> (BorrowedFd<'_>, PollFlags) {
        match self {
            Self::Socket(socket) => (socket.as_fd(), HAS_ENDED),
            Self::Connection(ending) => (ending.channel.as_fd(), PollFlags::POLLIN),
        }
    }

    /// When the other end was first seen to have closed the stream.
    pub(super) fn ended(&self, before: Option<Instant>) -> Result<Option<Instant>> {
        if before.is_some() {
            return Ok(before);
        }
        match self {
            Self::Socket(socket) => {
                let mut fds = [PollFd::new(socket.as_fd(), HAS_ENDED)];
                let has_any = poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0);
                Ok(has_any.then(Instant::now))
            }
            Self::Connection(ending) => ending.look(),
        }
    }
}

/// The end of a connection of rdma_cm.
#[derive(Debug)]
pub(super) struct Ending {
    channel: EventChannel,
    when: OnceLock<Instant>,
}

impl Ending {
    /// Of an identifier whose channel is this one, and has no other identifiers.
    pub(super) fn of(channel: EventChannel) -> Arc<Self> {
        Arc::new(Self { channel, when: OnceLock::new() })
    }

    pub(super) fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Reads the events that have come, and returns when the other end ended the connection.
    pub(super) fn look(&self) -> Result<Option<Instant>> {
        while let Some(event) = self.channel.next_event()? {
            if !matches!(event.kind, EventKind::Established(_)) {
                self.when.get_or_init(Instant::now);
            }
        }
        Ok(self.when.get().copied())
    }
}

impl Channel for tcp::Stream {
    fn set_limit(&mut self, limit: Option<Duration>) -> Result<()> {
        Self::set_limit(self, limit)
    }

    fn watch(&self) -> Result<Watch> {
        Watch::of_socket(self)
    }
}

/// Both ends are in this process: if one fails, it closes the stream.
impl Channel for UnixStream {
    fn set_limit(&mut self, _: Option<Duration>) -> Result<()> {
        Ok(())
    }

    fn watch(&self) -> Result<Watch> {
        Watch::of_socket(self)
    }
}

impl<C: Channel + ?Sized> Channel for &mut C {
    fn set_limit(&mut self, limit: Option<Duration>) -> Result<()> {
        (**self).set_limit(limit)
    }

    fn watch(&self) -> Result<Watch> {
        (**self).watch()
    }
}
