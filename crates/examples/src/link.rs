// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connecting an owned QP: by the RDMA connection manager, or by an exchange of endpoints over TCP.
//!
//! Both give the connected QP and a [`Link`], which reports that the peer has gone, also if it was killed.

use crate::nic::Nic;
use anyhow::{Context as _, Result, bail};
use core::net::{Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use uverbs::Qp;
use uverbs::device::DeviceInfo;
use uverbs::{ConnectAttr, Context, Driver, Endpoint, Rc, WithDeadline};
use uverbs::{Exclusive, attr::AccessFlags};
use uverbs_cm::{ConnParam, Event, EventKind, Id, PortSpace, Request, Resolved};

/// The time limit for a peer to answer during the connection.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Reads that each end may have outstanding.
pub const READS: u8 = 4;

/// What lives as long as the connection.
#[derive(Debug)]
pub enum Link {
    /// The stream of the exchange, whose end is that of the peer.
    Tcp(TcpStream),
    /// The identifier of the connection manager.
    Cm(Id),
}

impl Link {
    /// Notifies the peer that the connection ends. Its errors mean that it has ended already.
    pub fn close(&self) {
        match self {
            Self::Tcp(stream) => drop(stream.shutdown(Shutdown::Both)),
            Self::Cm(id) => drop(id.disconnect()),
        }
    }

    /// Whether the peer has gone. Called when the [descriptor](AsFd) is readable.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            // The peer sends nothing.
            Self::Tcp(_) => true,
            Self::Cm(id) => match id.channel().wait(Some(Duration::ZERO)) {
                Ok(Some(event)) => !is_established(event),
                Ok(None) => false,
                Err(_) => true,
            },
        }
    }

    /// Waits until the peer has gone, or until `stop` is set and the connection is [closed](Self::close).
    pub fn wait_gone(&self, stop: &AtomicBool) {
        match self {
            // The peer sends nothing; a byte that it does send ends the connection, too.
            Self::Tcp(stream) => drop((&*stream).read(&mut [0])),
            Self::Cm(id) => loop {
                match id.channel().wait(Some(Duration::from_millis(500))) {
                    Ok(None) if stop.load(Ordering::Relaxed) => return,
                    Ok(None) => {}
                    Ok(Some(event)) => {
                        if !is_established(event) {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            },
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Cm(id) => id.channel().as_fd(),
        }
    }
}

/// The other events of a connection are those of its end.
fn is_established(event: Event) -> bool {
    matches!(event.ok("wait").map(|e| e.kind), Ok(EventKind::Established(_)))
}

/// Where a server is.
#[derive(Clone, Debug)]
pub enum Target {
    /// Its TCP address, for the exchange of endpoints.
    Tcp(SocketAddr),
    /// Its RDMA address.
    Cm(SocketAddr),
}

/// The values of a connection that the user may choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path {
    /// Index of the local GID; `None` selects the best one. Not used by the connection manager.
    pub gid_index: Option<u8>,
}

/// The attributes of a connection over an exchanged endpoint.
#[must_use]
pub fn attr(path: Path, access: AccessFlags) -> ConnectAttr {
    ConnectAttr::new()
        .sgid_index(path.gid_index)
        .access(access)
        .hop_limit(64)
        .timeout(16)
        .max_rd_atomic(READS)
        .max_dest_rd_atomic(READS)
}

/// The parameters of a connection by the connection manager.
pub fn param(access: AccessFlags, srq: bool) -> ConnParam {
    ConnParam::new().access(access).srq(srq).responder_resources(READS).initiator_depth(READS)
}

/// Connects to a server. `prepare` is called with the QP in INIT, to post receives.
///
/// # Errors
/// The server does not answer or refuses; those of `prepare`.
pub fn connect<D: Driver>(
    mut qp: Qp<Rc, Exclusive, D>,
    context: &Context<D>,
    nic: &Nic,
    target: &Target,
    path: Path,
    prepare: impl FnOnce(&mut Qp<Rc, Exclusive, D>) -> Result<()>,
) -> Result<(Qp<Rc, Exclusive, D>, Link)> {
    match target {
        Target::Tcp(address) => {
            let attr = attr(path, AccessFlags::empty());
            qp.init(&attr)?;
            prepare(&mut qp)?;
            let stream = TcpStream::connect(address).with_context(|| format!("no server at {address}"))?;
            let here = qp.control().endpoint(qp.qp_num(), &attr)?;
            let mut stream = WithDeadline::new(stream, LIMIT);
            let there = here.exchange(&mut stream).context("the server did not accept")?;
            qp.connect(&here, &there, &attr)?;
            Ok((qp, Link::Tcp(stream.into_inner())))
        }
        Target::Cm(address) => {
            // Without it, the route could go by another device of this machine.
            let source = source(context, address.is_ipv4());
            let manager = nic.connection_manager()?;
            let resolved = Resolved::with(&manager, PortSpace::Tcp, source, *address, LIMIT)?;
            check_device(resolved.device(), nic.name())?;
            let param = param(AccessFlags::empty(), false);
            let prepared = resolved.prepare(&qp, &param)?;
            prepare(&mut qp)?;
            let (qp, id) = prepared.connect(qp, &param, Some(LIMIT))?.into_parts();
            Ok((qp, Link::Cm(id)))
        }
    }
}

/// Accepts a client over TCP. `ready` takes the connected QP before the client gets its endpoint, so the server knows the QP
/// before the first message arrives.
///
/// # Errors
/// The client does not follow the protocol; those of `ready`.
pub fn accept_tcp<D: Driver>(
    qp: Qp<Rc, Exclusive, D>,
    stream: TcpStream,
    path: Path,
    access: AccessFlags,
    ready: impl FnOnce(Qp<Rc, Exclusive, D>, &Arc<Link>) -> Result<()>,
) -> Result<Arc<Link>> {
    let attr = attr(path, access);
    qp.init(&attr)?;
    let here = qp.control().endpoint(qp.qp_num(), &attr)?;
    let mut limited = WithDeadline::new(stream, LIMIT);
    let there = Endpoint::receive(&mut limited)?;
    qp.connect(&here, &there, &attr)?;
    let stream = limited.into_inner();
    let link = Arc::new(Link::Tcp(stream.try_clone()?));
    ready(qp, &link)?;
    here.send(&stream)?;
    Ok(link)
}

/// Accepts a client of the connection manager. Its first messages may arrive before `ready` is called.
///
/// # Errors
/// The client does not answer; those of `ready`.
pub fn accept_cm<D: Driver>(
    qp: Qp<Rc, Exclusive, D>,
    request: Request,
    access: AccessFlags,
    ready: impl FnOnce(Qp<Rc, Exclusive, D>, &Arc<Link>) -> Result<()>,
) -> Result<Arc<Link>> {
    let (qp, id) = request.accept(qp, &param(access, true), Some(LIMIT))?.into_parts();
    let link = Arc::new(Link::Cm(id));
    ready(qp, &link)?;
    Ok(link)
}

/// The IPv4 address of the first port of a RoCE device. Other devices are found by the route to the server.
#[must_use]
pub fn source<D: Driver>(context: &Context<D>, is_ipv4: bool) -> Option<SocketAddr> {
    let gid = context.best_gid(1).ok().filter(|_| is_ipv4)?.gid;
    let address = Ipv6Addr::from(gid.0).to_ipv4_mapped()?;
    Some((address, 0).into())
}

/// How long a server waits after a client that could not be accepted: if the process has too many files, the next one can't be
/// accepted either.
pub const PAUSE: Duration = Duration::from_millis(50);

/// Whether a listener of the connection manager has ended. Its other errors are those of one client.
#[must_use]
pub fn is_lost(error: &uverbs_cm::Error) -> bool {
    matches!(error, uverbs_cm::Error::DeviceGone { .. })
}

/// Checks that a connection goes by the device that this program has opened.
///
/// # Errors
/// It goes by another one.
pub fn check_device(device: uverbs_cm::Result<DeviceInfo>, name: &str) -> Result<()> {
    match device {
        Ok(info) if info.name != name => bail!("the connection goes by {}, not by {name}", info.name),
        // A software NIC has no entry in the machine's list.
        Ok(_) | Err(_) => Ok(()),
    }
}
