// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NICs of one side, the QPs of each (its lanes), and their connection. The two sides also have a TCP stream, over which they compare
//! their sizes and exchange addresses.

use super::Plan;
use super::lane_qp::{LaneQp, unordered};
use super::proto::MESSAGE;
use crate::link::{self, LIMIT, Path};
use crate::nic::Nic;
use anyhow::{Context as _, Result, ensure};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use uverbs::attr::{AccessFlags, DriverQp, MwType};
use uverbs::{AnyDriver, ConnectAttr, Context, Pool, ProtectionDomain, WithDeadline};
use uverbs_aio::{Dispatcher, DispatcherThread, Link, Listener, Qp};
use uverbs_cm::ConnParam;

/// How the QPs are connected.
#[derive(Clone, Debug)]
pub enum Way {
    /// By an exchange of endpoints over the TCP stream.
    Exchange(Path),
    /// By the RDMA connection manager. The receiver listens on these addresses, one for each NIC, or, if there are none, on
    /// those of the NICs' GIDs.
    Cm(Vec<IpAddr>),
}

impl Default for Way {
    fn default() -> Self {
        Self::Exchange(Path::default())
    }
}

/// A NIC, and the thread that runs its dispatcher.
#[derive(Debug)]
pub struct Port {
    /// The NIC.
    pub nic: Nic,
    /// Its domain.
    pub pd: ProtectionDomain,
    /// Whether it has memory windows.
    pub has_windows: bool,
    pub(super) dispatcher: Dispatcher,
    pub(super) context: Context,
    _thread: DispatcherThread,
}

/// A QP. It is connected to the lane of the other side that has its number.
#[derive(Debug)]
pub struct Lane {
    /// Its number, in the order of the NICs and their QPs.
    pub number: u32,
    /// The name of its NIC.
    pub nic: String,
    /// The QP.
    pub qp: LaneQp,
    /// The domain of the QP.
    pub pd: ProtectionDomain,
    /// Buffers of messages to the other side.
    pub messages: Pool,
    /// Whether the NIC has memory windows.
    pub has_windows: bool,
    /// The connection, if it is one of the connection manager.
    _link: Option<Link>,
}

impl Port {
    fn new(nic: &Nic, plan: &Plan, messages: u32) -> Result<Self> {
        let context = nic.open::<AnyDriver>()?;
        let pd = context.alloc_pd()?;
        let dispatcher = Dispatcher::builder(&context).cqe(plan.qps * (plan.depth + messages)).build()?;
        let has_windows = match pd.alloc_mw(MwType::Type2) {
            Ok(_) => true,
            Err(error) if error.is_unsupported() => false,
            Err(error) => return Err(error.into()),
        };
        let thread = dispatcher.spawn()?;
        Ok(Self { nic: nic.clone(), pd, has_windows, dispatcher, context, _thread: thread })
    }

    /// Listens for the sender, at the `n`th address.
    fn listen(&self, addresses: &[IpAddr], n: usize) -> Result<Listener> {
        let own = match &self.nic {
            Nic::Software(device) => device.addresses().first().copied(),
            Nic::Machine(_) => link::source(&self.context, true).map(|address| address.ip()),
        };
        let at = addresses.get(n).copied().or(own);
        let at = at.with_context(|| format!("the address of {} is needed: --cm IP", self.nic.name()))?;
        Ok(Listener::bind(&self.dispatcher, &self.nic.connection_manager()?, (at, 0).into())?)
    }

    /// Waits for a step of the connection.
    fn wait<T, E: From<uverbs_aio::Error>>(&self, step: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.dispatcher.block_on(self.dispatcher.timeout(LIMIT, step))
    }
}

/// The NICs.
///
/// # Errors
/// A device can't be opened.
pub fn ports(nics: &[Nic], plan: &Plan) -> Result<Vec<Port>> {
    let port = |nic| Port::new(nic, plan, receives(plan, nics.len()));
    let mut ports = nics.iter().map(port).collect::<Result<Vec<_>>>()?;
    // An area may be at any of them.
    let has_windows = ports.iter().all(|port| port.has_windows);
    ports.iter_mut().for_each(|port| port.has_windows = has_windows);
    Ok(ports)
}

/// Receives of a lane: one message for each of its areas, also if it has those of all other lanes.
fn receives(plan: &Plan, nics: usize) -> u32 {
    plan.areas() * nics as u32 + 1
}

/// The attributes of a connection. A dead lane is noticed after about a second: 134 ms, seven times.
pub(super) fn attr(path: Path) -> ConnectAttr {
    link::attr(path, AccessFlags::REMOTE_WRITE).timeout(15)
}

fn param() -> ConnParam {
    link::param(AccessFlags::REMOTE_WRITE, false)
}

/// Creates a lane for each QP of the plan, and connects it by `connect`. SRD has no connection: there the two sides exchange addresses.
fn lanes(
    ports: &[Port],
    plan: &Plan,
    (stream, way): (&TcpStream, &Way),
    mut connect: impl FnMut(usize, &Port, &Qp) -> Result<Option<Link>>,
) -> Result<Vec<Arc<Lane>>> {
    let mut lanes = Vec::new();
    for (n, port) in ports.iter().enumerate() {
        let count = receives(plan, ports.len());
        let messages = port.pd.pool(plan.qps * count, MESSAGE as u32)?;
        // A part of a batch has half of the queue, so its messages come back in time.
        let incoming = port.pd.pool(plan.qps * (count + plan.window), MESSAGE as u32)?;
        for _ in 0..plan.qps {
            let (qp, link) = if port.context.driver_qp() == Some(DriverQp::Srd) {
                (unordered(port, plan, count, &incoming, stream, way)?, None)
            } else {
                let qp = port.dispatcher.qp(&port.pd).depth(plan.depth, count).pool(&incoming).create()?;
                let link = connect(n, port, &qp)?;
                (LaneQp::Rc(qp), link)
            };
            lanes.push(Arc::new(Lane {
                number: lanes.len() as u32,
                nic: port.nic.name().to_owned(),
                qp,
                pd: port.pd.clone(),
                messages: messages.clone(),
                has_windows: port.has_windows,
                _link: link,
            }));
        }
    }
    Ok(lanes)
}

/// The sizes and the way of connecting as they are sent, so that both sides have the same.
fn sizes(plan: &Plan, nics: usize, way: &Way) -> [u8; 28] {
    let Plan { blocks, block_size, qps, batches, window, .. } = *plan;
    let mut out = [0; 28];
    for (word, n) in out.chunks_exact_mut(4).zip([
        if matches!(way, Way::Cm(_)) { *b"blkC" } else { *b"blk2" },
        u32::try_from(nics).unwrap_or(u32::MAX).to_be_bytes(),
        blocks.to_be_bytes(),
        block_size.to_be_bytes(),
        qps.to_be_bytes(),
        batches.to_be_bytes(),
        window.to_be_bytes(),
    ]) {
        word.copy_from_slice(&n);
    }
    out
}

fn same_sizes(stream: &TcpStream, plan: &Plan, nics: usize, way: &Way) -> Result<()> {
    let mut stream = WithDeadline::new(stream, LIMIT);
    let ours = sizes(plan, nics, way);
    stream.write_all(&ours)?;
    let mut theirs = [0; 28];
    stream.read_exact(&mut theirs)?;
    ensure!(ours == theirs, "the other side has other sizes: give both the same options");
    Ok(())
}

/// Bytes of an address: that of IPv6, to which one of IPv4 is mapped, and the port.
const ADDRESS: usize = 18;

fn send_address(stream: &TcpStream, address: SocketAddr) -> Result<()> {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    Ok(WithDeadline::new(stream, LIMIT).write_all(&bytes)?)
}

fn receive_address(stream: &TcpStream) -> Result<SocketAddr> {
    let mut stream = WithDeadline::new(stream, LIMIT);
    let (mut ip, mut port) = ([0; 16], [0; 2]);
    stream.read_exact(&mut ip)?;
    stream.read_exact(&mut port)?;
    Ok((Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes(port)).into())
}

/// Connects all lanes to those of the receiver.
///
/// # Errors
/// The receiver does not answer in time, or has other sizes.
pub fn connect(ports: &[Port], stream: &TcpStream, plan: &Plan, way: &Way) -> Result<Vec<Arc<Lane>>> {
    same_sizes(stream, plan, ports.len(), way)?;
    let mut to = None;
    lanes(ports, plan, (stream, way), |n, port, qp| match way {
        Way::Exchange(path) => exchange(port, qp, stream, *path),
        Way::Cm(_) => {
            let address = match to {
                Some((of, address)) if of == n => address,
                _ => to.insert((n, receive_address(stream)?)).1,
            };
            let local = link::source(&port.context, address.is_ipv4());
            let (manager, param) = (port.nic.connection_manager()?, param());
            let link = port.wait(qp.connect_from(&manager, local, address, &param))?;
            link::check_device(link.id().bound()?.device(), port.nic.name())?;
            Ok(Some(link))
        }
    })
}

/// The receiver's side of [`connect`].
///
/// # Errors
/// The sender does not answer in time, or has other sizes.
pub fn accept(ports: &[Port], stream: &TcpStream, plan: &Plan, way: &Way) -> Result<Vec<Arc<Lane>>> {
    same_sizes(stream, plan, ports.len(), way)?;
    let mut listening: Option<(usize, Listener)> = None;
    lanes(ports, plan, (stream, way), |n, port, qp| match way {
        Way::Exchange(path) => exchange(port, qp, stream, *path),
        Way::Cm(addresses) => {
            if listening.as_ref().is_none_or(|(of, _)| *of != n) {
                let listener = port.listen(addresses, n)?;
                send_address(stream, listener.local_addr()?)?;
                listening = Some((n, listener));
            }
            let Some((_, listener)) = &listening else { return Ok(None) };
            let request = port.wait(listener.accept()).context("the sender does not connect")?;
            link::check_device(request.id().bound()?.device(), port.nic.name())?;
            Ok(Some(port.wait(request.accept(qp, &param()))?))
        }
    })
}

fn exchange(port: &Port, qp: &Qp, stream: &TcpStream, path: Path) -> Result<Option<Link>> {
    port.wait(qp.exchange(stream, &attr(path))).context("exchange with the other side")?;
    // The next message may be read or written by `WithDeadline`, which sets the time limits of the socket.
    stream.set_nonblocking(false)?;
    Ok(None)
}
