// SPDX-License-Identifier: MIT OR Apache-2.0
//! The active side: from an address to an established connection.

use crate::channel::{EventChannel, deadline};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::id::{Id, PortSpace};
use crate::param::ConnParam;
use crate::qp::Connectable;
use core::net::SocketAddr;
use core::time::Duration;
use uverbs::device::DeviceInfo;

/// The time limit of the resolution of an address and of a route.
const RESOLVE: Duration = Duration::from_secs(5);

/// A resolved address: its device and route are determined. The QP that is connected must belong to that device. [The
/// crate](crate#a-connection) has a program with both sides of a connection.
#[derive(Debug)]
pub struct Resolved {
    id: Id,
}

impl Resolved {
    /// Resolves the address of a server of reliable connections.
    ///
    /// # Errors
    /// [`Error::NoRoute`], [`Error::TimedOut`], or the kernel's error.
    pub fn new(manager: &EventChannel, remote: SocketAddr) -> Result<Self> {
        Self::with(manager, PortSpace::Tcp, None, remote, RESOLVE)
    }

    /// As [`Resolved::new`], for any port space, from this local address, with this time limit of each step.
    ///
    /// # Errors
    /// As [`Resolved::new`].
    pub fn with(
        manager: &EventChannel,
        port_space: PortSpace,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        limit: Duration,
    ) -> Result<Self> {
        Self::from_id(manager.open_another()?.create_id(port_space)?, local, remote, limit)
    }

    /// As [`Resolved::with`], with an identifier that has options. It must be the only one of its channel.
    ///
    /// # Errors
    /// As [`Resolved::new`].
    pub fn from_id(id: Id, local: Option<SocketAddr>, remote: SocketAddr, limit: Duration) -> Result<Self> {
        id.resolve_addr(local, remote, limit)?;
        expect(&id, "resolve_addr", None, |kind| matches!(kind, EventKind::AddrResolved).then_some(()))?;
        id.resolve_route(limit)?;
        expect(&id, "resolve_route", None, |kind| matches!(kind, EventKind::RouteResolved).then_some(()))?;
        Ok(Self { id })
    }

    /// The identifier.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The device to open.
    ///
    /// # Errors
    /// As [`Bound::device`](crate::Bound::device).
    pub fn device(&self) -> Result<DeviceInfo> {
        self.id.bound()?.device()
    }

    /// Connects a QP that is in RESET, and waits until the connection is established. `limit` is a time limit; without
    /// it, the kernel's retries are the limit, which may take a minute. The QP gets the [timers](ConnParam#timers) of `param`.
    ///
    /// # Errors
    /// [`Error::Rejected`] with the peer's reason and private data; [`Error::Disconnected`]; [`Error::TimedOut`];
    /// [`Error::DeviceGone`]; or the error of a state of the QP.
    pub fn connect<Q: Connectable>(
        self,
        qp: Q,
        param: &ConnParam,
        limit: Option<Duration>,
    ) -> Result<Connection<Q>> {
        self.prepare(&qp, param)?.connect(qp, param, limit)
    }

    /// Moves the QP to INIT, so that receives can be posted before [`connect`](Prepared::connect).
    ///
    /// # Errors
    /// The error of a state of the QP.
    pub fn prepare<Q: Connectable>(self, qp: &Q, param: &ConnParam) -> Result<Prepared> {
        self.id.init_qp(qp.control(), param)?;
        Ok(Prepared { id: self.id, qp_num: qp.control().qp_num() })
    }
}

/// A resolved address with a QP in INIT (a datagram QP is in RTS).
#[derive(Debug)]
pub struct Prepared {
    id: Id,
    qp_num: u32,
}

impl Prepared {
    /// As [`Resolved::connect`], with the QP that was prepared.
    ///
    /// # Errors
    /// As [`Resolved::connect`]; another QP is invalid.
    pub fn connect<Q: Connectable>(
        self,
        qp: Q,
        param: &ConnParam,
        limit: Option<Duration>,
    ) -> Result<Connection<Q>> {
        const VERB: &str = "connect";
        let Self { id, qp_num } = self;
        if qp.control().qp_num() != qp_num {
            return Err(Error::invalid(
                VERB,
                "qp",
                format!("QP {}, but {qp_num} was prepared", qp.control().qp_num()),
            ));
        }
        id.connect(&param.clone().qp_num(qp_num))?;
        // Of iWARP the peer's answer establishes the connection, and the kernel has moved the QP to RTS.
        let (peer, is_established) = expect(&id, VERB, limit, |kind| match kind {
            EventKind::ConnectResponse(peer) => Some((peer, false)),
            EventKind::Established(peer) => Some((peer, true)),
            _ => None,
        })?;
        if !id.is_datagram() && !is_established {
            let connected = id.connect_qp(qp.control(), param);
            if connected.is_err() {
                // The peer waits for an answer. If this fails, it gets none and times out.
                let _ = id.reject(crate::RejectReason::CONSUMER_DEFINED, &[]);
            }
            connected.and_then(|()| id.establish()).map_err(|error| id.given_up(VERB, error))?;
        }
        Ok(Connection::new(id, qp, peer))
    }
}

/// Waits for the event that `wanted` takes. A failure is the error of that event; other events are skipped.
pub(crate) fn expect<R>(
    id: &Id,
    verb: &'static str,
    limit: Option<Duration>,
    mut wanted: impl FnMut(EventKind) -> Option<R>,
) -> Result<R> {
    let end = deadline(limit);
    loop {
        let Some(event) = id.wait_own(end)? else {
            return Err(Error::TimedOut { verb, object: id.object() });
        };
        if let Some(result) = wanted(id.check(event, verb)?) {
            return Ok(result);
        }
    }
}
