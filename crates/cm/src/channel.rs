// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event channels (rdma_create_event_channel(3), rdma_get_cm_event(3)).

use crate::error::{Error, Result};
use crate::event::Event;
use crate::id::{Id, PortSpace};
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;
use uverbs::{Context, Driver};
use uverbs_core::Errno;
use uverbs_core::kernel::{CmPort, RdmaCmFd};
use uverbs_uapi::rdma_cm::{RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_event_resp, rdma_ucm_get_event};
use zerocopy::IntoBytes;

/// An event channel: the source of the events of its identifiers. Clones share it; it is closed when it and all of its
/// identifiers are dropped.
///
/// Its descriptor ([`AsFd`]) is readable while there is an event, so it can be used with poll(2), epoll(7) or an
/// asynchronous runtime.
#[derive(Clone, Debug)]
pub struct EventChannel {
    port: Arc<dyn CmPort>,
}

impl EventChannel {
    /// Opens the kernel's connection manager.
    ///
    /// # Errors
    /// The error of open(2): `ENOENT` if the kernel's module `rdma_ucm` is not loaded.
    pub fn open() -> Result<Self> {
        Ok(Self::from_port(Arc::new(RdmaCmFd::open()?)))
    }

    /// Opens the connection manager of a device: that of the kernel, or that of a software NIC.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of<D: Driver>(context: &Context<D>) -> Result<Self> {
        Ok(Self::from_port(context.kernel().connection_manager()?))
    }

    /// Creates a channel of another connection manager, such as that of a software NIC.
    #[must_use]
    pub fn from_port(port: Arc<dyn CmPort>) -> Self {
        Self { port }
    }

    /// Creates another channel of the same connection manager.
    ///
    /// # Errors
    /// As [`EventChannel::open`].
    pub fn open_another(&self) -> Result<Self> {
        Ok(Self { port: self.port.open_channel()? })
    }

    /// `rdma_create_id`: creates an identifier, whose events this channel gets.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create_id(&self, port_space: PortSpace) -> Result<Id> {
        Id::create(self, port_space)
    }

    /// Takes the next event; `None` if there is none. It does not wait.
    ///
    /// # Errors
    /// The kernel's error; `ESTALE` in a child of fork(2).
    pub fn next_event(&self) -> Result<Option<Event>> {
        let mut answer = rdma_ucm_event_resp::default();
        let command = rdma_ucm_get_event::default();
        match self.port.command(RDMA_USER_CM_CMD_GET_EVENT, command.as_bytes(), answer.as_mut_bytes()) {
            Ok(()) => {
                let event = Event::decode(self, &answer);
                #[cfg(feature = "tracing")]
                crate::names::report(&event, answer.id);
                Ok(Some(event))
            }
            Err(Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(self.error("get_cm_event", errno)),
        }
    }

    /// `rdma_get_cm_event`: waits for the next event.
    ///
    /// # Errors
    /// As [`EventChannel::next_event`].
    pub fn get_event(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.wait(None)? {
                return Ok(event);
            }
        }
    }

    /// Waits for the next event, at most this long; `None` if there was none.
    ///
    /// # Errors
    /// As [`EventChannel::next_event`].
    pub fn wait(&self, limit: Option<Duration>) -> Result<Option<Event>> {
        self.wait_until(deadline(limit))
    }

    /// As [`wait`](Self::wait), until this time: for calls that wait for one of several events, of which each must not
    /// start the limit again.
    pub(crate) fn wait_until(&self, end: Option<Instant>) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.next_event()? {
                return Ok(Some(event));
            }
            let timeout = match end {
                None => PollTimeout::NONE,
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    // Rounded up, so that the last wait is not a busy loop.
                    PollTimeout::try_from(left.saturating_add(Duration::from_millis(1)))
                        .unwrap_or(PollTimeout::MAX)
                }
            };
            match poll(&mut [PollFd::new(self.port.fd(), PollFlags::POLLIN)], timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(self.error("poll", errno.into())),
            }
        }
    }

    pub(crate) fn port(&self) -> &Arc<dyn CmPort> {
        &self.port
    }

    fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::command(verb, format!("event channel {}", self.port.fd().as_raw_fd()), errno)
    }
}

/// The end of a time limit that begins now; `None` for no limit.
pub(crate) fn deadline(limit: Option<Duration>) -> Option<Instant> {
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }
}
