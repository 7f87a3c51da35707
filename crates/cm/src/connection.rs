// SPDX-License-Identifier: MIT OR Apache-2.0
//! An established connection: a typed QP with its identifier.

use crate::channel::deadline;
use crate::error::Result;
use crate::event::EventKind;
use crate::id::Id;
use crate::param::Peer;
use crate::qp::Connectable;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};
use uverbs::attr::QpState;

/// An established connection. Dropping it destroys the QP, and disconnects. [The crate](crate#a-connection) has a program
/// with both sides.
///
/// Its descriptor is readable when the peer has disconnected, or has another event.
#[derive(Debug)]
pub struct Connection<Q> {
    /// The QP, in RTS: a [`Qp`](uverbs::raw::Qp) or [`Qp`](uverbs::Qp).
    pub qp: Q,
    id: Id,
    peer: Peer,
}

impl<Q: Connectable> Connection<Q> {
    pub(crate) fn new(id: Id, qp: Q, peer: Peer) -> Self {
        Self { qp, id, peer }
    }

    /// The parameters of the peer: those of its acceptance on the active side, those of its request on the passive
    /// side.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The identifier.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// `rdma_disconnect`: moves the QP to ERR (of iWARP to SQD, so that data in flight arrive), which flushes its work
    /// requests, and notifies the peer. It also succeeds if the peer has already disconnected.
    ///
    /// # Errors
    /// As [`Id::disconnect`].
    pub fn disconnect(&self) -> Result<()> {
        if self.id.is_datagram() {
            return Ok(());
        }
        // The kernel has no attributes for an identifier that is not connected any more.
        let end = if self.id.is_iwarp().unwrap_or(false) { QpState::SQD } else { QpState::ERR };
        self.qp.control().modify_state(end)?;
        self.id.disconnect()
    }

    /// Waits until the connection has ended, at most for this time. Returns whether it has ended.
    ///
    /// # Errors
    /// [`Error::DeviceGone`](crate::Error::DeviceGone), or the kernel's error.
    pub fn wait_disconnected(&self, limit: Option<Duration>) -> Result<bool> {
        let end = deadline(limit);
        while let Some(event) = self.id.wait_own(end)? {
            if matches!(event.kind, EventKind::Disconnected | EventKind::TimewaitExit) {
                return Ok(true);
            }
            self.id.check(event, "disconnect")?;
        }
        Ok(false)
    }

    /// The QP and the identifier. The identifier must be kept as long as the connection is used.
    pub fn into_parts(self) -> (Q, Id) {
        (self.qp, self.id)
    }

    /// Destroys the QP and the identifier and reports a failure, which `Drop` would only log.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(self) -> Result<()> {
        let Self { qp, id, .. } = self;
        let closed = qp.close();
        id.close()?;
        Ok(closed?)
    }
}

impl<Q> AsFd for Connection<Q> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.channel().as_fd()
    }
}
