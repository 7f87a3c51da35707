// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections by rdma_cm, for the subcommands: how an end reaches the other one, and the two sides of a connection that
//! is not established yet.

use anyhow::{Context as _, Result};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::net::ToSocketAddrs;
use uverbs::Driver;
use uverbs::Errno;
use uverbs::device::DeviceInfo;
use uverbs::qp::QpControl;
use uverbs_cm::{
    ConnParam, Connectable, Connection, EventChannel, Id, Listener, Peer, PortSpace, Request, Resolved,
};

/// The time limit of each step of the resolution.
const RESOLVE: Duration = Duration::from_secs(5);

/// Opens the kernel's connection manager.
pub(crate) fn open() -> Result<EventChannel> {
    EventChannel::open().map_err(|error| match error.errno() {
        Errno::ENOENT => {
            anyhow::Error::from(error).context("rdma_cm: is the kernel's module rdma_ucm loaded?")
        }
        _ => error.into(),
    })
}

/// How an end reaches the other one.
#[derive(Debug)]
pub(crate) enum Line {
    /// The client.
    Call { manager: EventChannel, address: SocketAddr },
    /// The server, with a listener for each port space.
    Serve(Vec<(PortSpace, Listener)>),
}

impl Line {
    /// The server's: listens, by default on all addresses.
    pub(crate) fn serve(
        manager: &EventChannel,
        spaces: &[PortSpace],
        bind: Option<IpAddr>,
        port: u16,
    ) -> Result<Self> {
        let address = SocketAddr::new(bind.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port);
        let listen = |space: &PortSpace| {
            let listener = Listener::with(manager, *space, address, 0);
            Ok((*space, listener.with_context(|| format!("cannot listen on {address}"))?))
        };
        spaces.iter().map(listen).collect::<Result<_>>().map(Self::Serve)
    }

    /// The next connection: resolves the address, or waits for a request.
    pub(crate) fn side(&self, space: PortSpace, tos: Option<u8>, limit: Option<Duration>) -> Result<Side> {
        match self {
            Self::Call { manager, address } => {
                let id = manager.open_another()?.create_id(space)?;
                if let Some(tos) = tos {
                    id.set_tos(tos)?;
                }
                let resolved = Resolved::from_id(id, None, *address, RESOLVE);
                Ok(Side::Active(resolved.with_context(|| address.to_string())?))
            }
            Self::Serve(listeners) => {
                let listener = listeners.iter().find(|(of, _)| *of == space);
                let (_, listener) = listener.context("this end does not listen for this transport")?;
                let request = listener.wait(limit)?.context("timed out: no client has connected")?;
                Ok(Side::Passive(request))
            }
        }
    }
}

/// A QP that belongs to other queues, and that rdma_cm connects.
#[derive(Debug)]
pub(crate) struct Borrowed<'a, D: Driver>(pub(crate) &'a QpControl<D>);

impl<D: Driver> Connectable for Borrowed<'_, D> {
    type Driver = D;

    fn control(&self) -> &QpControl<D> {
        self.0
    }

    /// Its owner destroys it.
    fn close(self) -> uverbs::Result<()> {
        Ok(())
    }
}

/// Queues with QPs that rdma_cm connects.
pub(crate) trait Queues<D: Driver> {
    /// A QP.
    fn control(&self, index: usize) -> Result<&QpControl<D>>;

    /// Posts the first receives. They come before the connection, so that the first message finds one.
    fn post_first(&mut self, index: usize) -> Result<()>;
}

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

    /// Moves a QP of these queues from RESET to INIT, posts its first receives, and establishes the connection. Returns its
    /// identifier, which must be kept, and the parameters of the peer.
    pub(crate) fn establish<D: Driver>(
        self,
        queues: &mut impl Queues<D>,
        index: usize,
        param: &ConnParam,
        limit: Option<Duration>,
    ) -> Result<(Id, Peer)> {
        fn parts<D: Driver>(connection: Connection<Borrowed<'_, D>>) -> (Id, Peer) {
            let peer = connection.peer().clone();
            (connection.into_parts().1, peer)
        }
        match self {
            Self::Active(resolved) => {
                let prepared = resolved.prepare(&Borrowed(queues.control(index)?), param)?;
                queues.post_first(index)?;
                Ok(parts(prepared.connect(Borrowed(queues.control(index)?), param, limit)?))
            }
            Self::Passive(request) => {
                request.prepare(&Borrowed(queues.control(index)?), param)?;
                queues.post_first(index)?;
                Ok(parts(request.accept(Borrowed(queues.control(index)?), param, limit)?))
            }
        }
    }
}

/// The address of a server.
pub(crate) fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let mut addresses = (host, port).to_socket_addrs().with_context(|| format!("cannot resolve {host}"))?;
    addresses.next().with_context(|| format!("{host} has no address"))
}
