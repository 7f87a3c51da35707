// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two sides of a connection of rdma_cm, before it is established.

use anyhow::{Context as _, Result};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::net::ToSocketAddrs;
use uverbs::device::DeviceInfo;
use uverbs_cm::{
    ConnParam, Connectable, Connection, EventChannel, Id, Listener, PortSpace, Request, Resolved,
};

/// A connection that is not established.
#[derive(Debug)]
pub(crate) enum Side {
    Active(Resolved),
    Passive(Request),
}

impl Side {
    pub(crate) fn device(&self) -> uverbs_cm::Result<DeviceInfo> {
        match self {
            Self::Active(resolved) => resolved.device(),
            Self::Passive(request) => request.device(),
        }
    }

    fn id(&self) -> &Id {
        match self {
            Self::Active(resolved) => resolved.id(),
            Self::Passive(request) => request.id(),
        }
    }

    /// The addresses of this end and of the other one.
    pub(crate) fn addresses(&self) -> Result<[SocketAddr; 2]> {
        let bound = self.id().bound()?;
        Ok([bound.local.context("no local address")?, bound.remote.context("no remote address")?])
    }

    /// Moves a QP from RESET to INIT, posts its first receives with `post`, and establishes the connection.
    pub(crate) fn establish_after<Q: Connectable>(
        self,
        mut qp: Q,
        param: &ConnParam,
        limit: Option<Duration>,
        post: impl FnOnce(&mut Q) -> Result<()>,
    ) -> Result<Connection<Q>> {
        match self {
            Self::Active(resolved) => {
                let prepared = resolved.prepare(&qp, param)?;
                post(&mut qp)?;
                Ok(prepared.connect(qp, param, limit)?)
            }
            Self::Passive(request) => {
                request.prepare(&qp, param)?;
                post(&mut qp)?;
                Ok(request.accept(qp, param, limit)?)
            }
        }
    }

    /// Establishes the connection with a QP that is in RESET. That of the passive side may be in INIT.
    pub(crate) fn establish<Q: Connectable>(
        self,
        qp: Q,
        param: &ConnParam,
        limit: Option<Duration>,
    ) -> uverbs_cm::Result<Connection<Q>> {
        match self {
            Self::Active(resolved) => resolved.connect(qp, param, limit),
            Self::Passive(request) => request.accept(qp, param, limit),
        }
    }
}

/// The address of a server.
pub(crate) fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let mut addresses = (host, port).to_socket_addrs().with_context(|| format!("cannot resolve {host}"))?;
    addresses.next().with_context(|| format!("{host} has no address"))
}

/// Listens on a port, by default of all addresses.
pub(crate) fn listen(
    manager: &EventChannel,
    space: PortSpace,
    bind: Option<IpAddr>,
    port: u16,
) -> Result<Listener> {
    let address = SocketAddr::new(bind.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port);
    Listener::with(manager, space, address, 0).with_context(|| format!("cannot listen on {address}"))
}

/// Waits for a request.
pub(crate) fn wait(listener: &Listener, limit: Option<Duration>) -> Result<Request> {
    listener.wait(limit)?.context("timed out: no client has connected")
}
