// SPDX-License-Identifier: MIT OR Apache-2.0
//! The passive side: from a port to established connections.

use crate::channel::{EventChannel, deadline};
use crate::connection::Connection;
use crate::error::Result;
use crate::event::EventKind;
use crate::id::{Id, PortSpace};
use crate::param::{ConnParam, Peer};
use crate::qp::Connectable;
use crate::reason::RejectReason;
use crate::resolved::expect;
use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};
use uverbs::device::DeviceInfo;

/// Listens on a port. Its descriptor is readable while a request waits.
///
/// [The crate](crate#a-connection) has a program whose server accepts. This one rejects a client by its private data:
/// ```
/// use uverbs::{Context, Rc, mlx5::Mlx5};
/// use uverbs_cm::{ConnParam, Error, EventChannel, Listener, RejectReason, Resolved};
/// use uverbs_hca::Fabric;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::new(1);
/// let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
/// let address = (server.addresses()[0], 7471).into();
/// let listener = Listener::bind(&EventChannel::from_port(server.connection_manager()?), address)?;
/// let serving = std::thread::spawn(move || -> uverbs_cm::Result<()> {
///     let request = listener.accept()?;
///     assert!(request.peer().private_data.starts_with(b"version 1"));
///     request.reject(b"version 2 is needed")
/// });
///
/// let resolved = Resolved::new(&EventChannel::from_port(client.connection_manager()?), address)?;
/// let context = Context::<Mlx5>::from_kernel(client.open())?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(8, None)?);
/// let qp = pd.raw_qp::<Rc>().cq(&cq).create()?;
/// match resolved.connect(qp, &ConnParam::with_private_data(*b"version 1"), None) {
///     Err(Error::Rejected { reason, private_data, .. }) => {
///         assert_eq!(reason, RejectReason::CONSUMER_DEFINED);
///         assert!(private_data.starts_with(b"version 2 is needed"));
///     }
///     other => panic!("not rejected: {other:?}"),
/// }
/// serving.join().expect("the server does not panic")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    id: Id,
}

impl Listener {
    /// Listens for reliable connections. An unspecified address is that of all devices; port 0 selects a port.
    ///
    /// # Errors
    /// [`Error::NoRoute`](crate::Error::NoRoute) if no device has the address; `EADDRINUSE`.
    pub fn bind(manager: &EventChannel, local: SocketAddr) -> Result<Self> {
        Self::with(manager, PortSpace::Tcp, local, 0)
    }

    /// As [`Listener::bind`], for any port space, with the number of requests that may wait (0: the maximum).
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn with(
        manager: &EventChannel,
        port_space: PortSpace,
        local: SocketAddr,
        backlog: u32,
    ) -> Result<Self> {
        Self::from_id(manager.open_another()?.create_id(port_space)?, local, backlog)
    }

    /// As [`Listener::with`], with an identifier that has options. It must be the only one of its channel.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn from_id(id: Id, local: SocketAddr, backlog: u32) -> Result<Self> {
        id.bind_addr(local)?;
        id.listen(backlog)?;
        Ok(Self { id })
    }

    /// The address and port on which it listens.
    ///
    /// # Errors
    /// As [`Id::bound`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let local = self.id.bound()?.local;
        local.ok_or_else(|| crate::Error::protocol("query_addr", "no local address"))
    }

    /// The identifier.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// [`Error::DeviceGone`](crate::Error::DeviceGone) if its device is removed; the kernel's error.
    pub fn accept(&self) -> Result<Request> {
        loop {
            if let Some(request) = self.wait(None)? {
                return Ok(request);
            }
        }
    }

    /// Waits for a request, at most for this time. A limit of 0 does not wait.
    ///
    /// # Errors
    /// As [`Listener::accept`].
    pub fn wait(&self, limit: Option<Duration>) -> Result<Option<Request>> {
        let (channel, end) = (self.id.channel(), deadline(limit));
        while let Some(event) = self.id.wait_own(end)? {
            if let EventKind::ConnectRequest(request) = self.id.check(event, "accept")? {
                let mut id = request.id;
                // Its events must not be among those of the listener and of other connections.
                let migrated = channel.open_another().and_then(|own| id.migrate(&own));
                return migrated.map(|()| Some(Request { id, peer: request.peer }));
            }
        }
        Ok(None)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.channel().as_fd()
    }
}

/// A connection request. Dropping it rejects the peer.
#[derive(Debug)]
#[must_use = "dropping it rejects the peer"]
pub struct Request {
    id: Id,
    peer: Peer,
}

impl Request {
    /// The parameters of the peer.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The identifier of the connection.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The device to which the QP must belong.
    ///
    /// # Errors
    /// As [`Bound::device`](crate::Bound::device).
    pub fn device(&self) -> Result<DeviceInfo> {
        self.id.bound()?.device()
    }

    /// `rdma_reject`, with data for the peer.
    ///
    /// # Errors
    /// As [`Id::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.id.reject(RejectReason::CONSUMER_DEFINED, private_data)
    }

    /// Moves a QP from RESET to INIT, so that receives can be posted before [`accept`](Self::accept), which does this
    /// itself if it was not done.
    ///
    /// # Errors
    /// The error of a state of the QP; [`Error::Disconnected`](crate::Error::Disconnected) if the peer has given up.
    pub fn prepare<Q: Connectable>(&self, qp: &Q, param: &ConnParam) -> Result<()> {
        self.id.init_qp(qp.control(), param)
    }

    /// Accepts with a QP that is in RESET or was [prepared](Self::prepare), and waits until the connection is
    /// established. Datagrams have no connection, so their acceptance does not wait. The QP gets the
    /// [timers](ConnParam#timers) of `param`.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut), [`Error::DeviceGone`](crate::Error::DeviceGone); or the error of a state of the
    /// QP. A peer that gave up before is [`Error::Disconnected`](crate::Error::Disconnected), one that gives up meanwhile is
    /// [`Error::Rejected`](crate::Error::Rejected), with the reason [`RejectReason::TIMEOUT`].
    pub fn accept<Q: Connectable>(
        self,
        qp: Q,
        param: &ConnParam,
        limit: Option<Duration>,
    ) -> Result<Connection<Q>> {
        if qp.control().state()? == uverbs::attr::QpState::RESET {
            self.prepare(&qp, param)?;
        }
        let Self { id, peer } = self;
        id.connect_qp(qp.control(), param)?;
        id.accept(&param.clone().qp_num(qp.control().qp_num()))?;
        if !id.is_datagram() {
            expect(&id, "accept", limit, |kind| matches!(kind, EventKind::Established(_)).then_some(()))?;
        }
        Ok(Connection::new(id, qp, peer))
    }
}
