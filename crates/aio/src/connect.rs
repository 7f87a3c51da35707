// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connecting QPs without blocking: by the connection manager, and by an exchange of endpoints over TCP.

use crate::dispatcher::Dispatcher;
use crate::error::{Error, Result};
use crate::pair::Qp;
use core::future::{Future as _, poll_fn};
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::Poll;
use core::time::Duration;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use uverbs::connect::ENDPOINT_LEN;
use uverbs::{AnyDriver, ConnectAttr, Driver, Endpoint, Rc};
use uverbs_cm::{ConnParam, EventChannel, EventKind, Id, Peer, PortSpace};

/// The time limit of the resolution of an address and of a route.
const RESOLVE: Duration = Duration::from_secs(5);

/// The last byte of an exchange: this side's QP can receive.
const READY: u8 = b'r';

/// Waits for the event of the identifier that `wanted` takes.
async fn expect<D: Driver, R>(
    dispatcher: &Dispatcher<D>,
    id: &Id,
    verb: &'static str,
    mut wanted: impl FnMut(EventKind) -> Option<R>,
) -> Result<R> {
    let mut events = id.own_events();
    loop {
        let mut readable = dispatcher.readable(id.channel());
        let next = poll_fn(|cx| match events.poll_next(cx.waker()) {
            Ok(None) => Pin::new(&mut readable).poll(cx).map_ok(|()| None),
            next => Poll::Ready(next.map_err(Into::into)),
        });
        let Some(event) = next.await? else { continue };
        if let Some(result) = wanted(id.check(event, verb)?) {
            return Ok(result);
        }
    }
}

/// A connection of the connection manager. Dropping it disconnects, so it must be kept as long as the QP is used.
#[derive(Debug)]
pub struct Link {
    id: Id,
    peer: Peer,
}

impl Link {
    /// The parameters of the peer, such as its private data.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The identifier.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Waits until the peer has disconnected.
    ///
    /// # Errors
    /// The device was removed, or the kernel's error.
    pub async fn disconnected<D: Driver>(&self, dispatcher: &Dispatcher<D>) -> Result<()> {
        let ended = |kind| matches!(kind, EventKind::TimewaitExit).then_some(());
        match expect(dispatcher, &self.id, "disconnect", ended).await {
            Err(Error::Cm(error)) if matches!(*error, uverbs_cm::Error::Disconnected { .. }) => Ok(()),
            other => other,
        }
    }

    /// Notifies the peer that the connection has ended.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn disconnect(&self) -> Result<()> {
        Ok(self.id.disconnect()?)
    }
}

impl<D: Driver> Qp<Rc, D> {
    /// Connects a QP that is in RESET to a server of the connection manager. The receives are posted before.
    ///
    /// The [timers](ConnParam#timers) of `param` are those of this side's QP: a peer that dies is noticed after 2.1 s by default.
    ///
    /// Give it a [time limit](Dispatcher::timeout): without one, the kernel's retries are the limit, which may take a minute.
    ///
    /// # Errors
    /// [`Error::Cm`]: no route, rejected with a reason, not answered in time; or the error of a state of the QP.
    pub async fn connect_to(
        &self,
        manager: &EventChannel,
        server: SocketAddr,
        param: &ConnParam,
    ) -> Result<Link> {
        self.connect_from(manager, None, server, param).await
    }

    /// As [`connect_to`](Self::connect_to), from this local address, which selects the device. Without it, the route to the
    /// server does.
    ///
    /// # Errors
    /// As [`connect_to`](Self::connect_to).
    pub async fn connect_from(
        &self,
        manager: &EventChannel,
        local: Option<SocketAddr>,
        server: SocketAddr,
        param: &ConnParam,
    ) -> Result<Link> {
        self.connect_by(manager.open_another()?.create_id(PortSpace::Tcp)?, local, server, param).await
    }

    /// As [`connect_from`](Self::connect_from), with an identifier whose options the program has set, such as the type of service. Its
    /// event channel has no other identifier.
    ///
    /// # Errors
    /// As [`connect_to`](Self::connect_to).
    pub async fn connect_by(
        &self,
        id: Id,
        local: Option<SocketAddr>,
        server: SocketAddr,
        param: &ConnParam,
    ) -> Result<Link> {
        let dispatcher = &self.dispatcher();
        id.resolve_addr(local, server, RESOLVE)?;
        let resolved = |kind| matches!(kind, EventKind::AddrResolved).then_some(());
        expect(dispatcher, &id, "resolve_addr", resolved).await?;
        id.resolve_route(RESOLVE)?;
        let resolved = |kind| matches!(kind, EventKind::RouteResolved).then_some(());
        expect(dispatcher, &id, "resolve_route", resolved).await?;
        id.init_qp(self.control(), param)?;
        self.post_receives();
        id.connect(&param.clone().qp_num(self.qp_num()))?;
        // On iWARP the peer's answer establishes the connection, and the kernel has moved the QP to RTS.
        let accepted = |kind| match kind {
            EventKind::ConnectResponse(peer) => Some((peer, false)),
            EventKind::Established(peer) => Some((peer, true)),
            _ => None,
        };
        let (peer, is_established) = expect(dispatcher, &id, "connect", accepted).await?;
        if !is_established {
            let connected = id.connect_qp(self.control(), param).and_then(|()| id.establish());
            connected.map_err(|error| id.given_up("connect", error))?;
        }
        Ok(Link { id, peer })
    }

    /// Connects a QP that is in RESET to that of the peer, which calls this, too, over a TCP connection between them. The
    /// connection can be used for something else, or closed, afterwards; it is non-blocking then.
    ///
    /// # Errors
    /// The TCP connection ended, the peer sent something else; or the error of a state of the QP.
    pub async fn exchange(&self, stream: &TcpStream, attr: &ConnectAttr) -> Result<()> {
        let dispatcher = &self.dispatcher();
        stream.set_nonblocking(true)?;
        self.init(attr)?;
        // Any number; it only has to be that of this side's endpoint.
        let here = self.endpoint(self.qp_num().wrapping_mul(0x9e37_79b9) & 0xff_ffff, attr)?;
        let mut message = [0; ENDPOINT_LEN];
        here.send(&mut message[..])?;
        write_all(dispatcher, stream, &message).await?;
        read_exact(dispatcher, stream, &mut message).await?;
        self.connect(&here, &Endpoint::receive(&message[..])?, attr)?;
        // Neither side sends before the other can receive.
        write_all(dispatcher, stream, &[READY]).await?;
        let mut ready = [0];
        read_exact(dispatcher, stream, &mut ready).await?;
        if ready != [READY] {
            return Err(std::io::Error::from(ErrorKind::InvalidData).into());
        }
        Ok(())
    }
}

async fn write_all<D: Driver>(
    dispatcher: &Dispatcher<D>,
    mut stream: &TcpStream,
    mut data: &[u8],
) -> Result<()> {
    while !data.is_empty() {
        match stream.write(data) {
            Ok(0) => return Err(std::io::Error::from(ErrorKind::WriteZero).into()),
            Ok(n) => data = data.get(n..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A few bytes on a new connection: the buffer of the socket has room soon.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                dispatcher.sleep(Duration::from_millis(1)).await
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn read_exact<D: Driver>(
    dispatcher: &Dispatcher<D>,
    mut stream: &TcpStream,
    data: &mut [u8],
) -> Result<()> {
    let mut read = 0;
    while read < data.len() {
        match stream.read(data.get_mut(read..).unwrap_or_default()) {
            Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(n) => read += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => dispatcher.readable(stream).await?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Listens for connections of the connection manager.
#[derive(Debug)]
pub struct Listener<D: Driver = AnyDriver> {
    id: Id,
    dispatcher: Dispatcher<D>,
}

impl<D: Driver> Listener<D> {
    /// Listens on a port. An unspecified address is that of all devices; port 0 selects a port.
    ///
    /// # Errors
    /// [`Error::Cm`]: no device has the address, or the port is in use.
    pub fn bind(dispatcher: &Dispatcher<D>, manager: &EventChannel, local: SocketAddr) -> Result<Self> {
        let id = manager.open_another()?.create_id(PortSpace::Tcp)?;
        id.bind_addr(local)?;
        id.listen(0)?;
        Ok(Self { id, dispatcher: dispatcher.clone() })
    }

    /// The address and port on which it listens.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let local = self.id.bound()?.local;
        local.ok_or_else(|| std::io::Error::from(ErrorKind::AddrNotAvailable).into())
    }

    /// The dispatcher that waits for the requests.
    #[must_use]
    pub fn dispatcher(&self) -> &Dispatcher<D> {
        &self.dispatcher
    }

    /// The next request. A dropped future loses none. Several tasks may wait: each request goes to one of them.
    ///
    /// # Errors
    /// The device was removed, or the kernel's error.
    pub async fn accept(&self) -> Result<Request> {
        let request = |kind| match kind {
            EventKind::ConnectRequest(request) => Some(request),
            _ => None,
        };
        let request = expect(&self.dispatcher, &self.id, "accept", request).await?;
        let mut id = request.id;
        // Its events must not be among those of the listener.
        id.migrate(&self.id.channel().open_another()?)?;
        Ok(Request { id, peer: request.peer })
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

    /// The identifier of the connection, for example for the device to which the QP must belong.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Rejects the peer, with data for it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        Ok(self.id.reject(uverbs_cm::RejectReason::CONSUMER_DEFINED, private_data)?)
    }

    /// Accepts with a QP that is in RESET, and waits until the connection is established. The receives are posted before. The
    /// [timers](ConnParam#timers) of `param` are those of this side's QP.
    ///
    /// # Errors
    /// [`Error::Cm`]: the peer has given up (`Disconnected`) or gives up meanwhile (`Rejected`); or the error of a state of the QP.
    pub async fn accept<D: Driver>(self, qp: &Qp<Rc, D>, param: &ConnParam) -> Result<Link> {
        let Self { id, peer } = self;
        id.init_qp(qp.control(), param)?;
        qp.post_receives();
        id.connect_qp(qp.control(), param)?;
        id.accept(&param.clone().qp_num(qp.qp_num()))?;
        let established = |kind| matches!(kind, EventKind::Established(_)).then_some(());
        expect(&qp.dispatcher(), &id, "accept", established).await?;
        Ok(Link { id, peer })
    }
}
