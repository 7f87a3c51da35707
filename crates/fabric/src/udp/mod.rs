// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ports that exchange packets of RoCE version 2 with devices outside of the fabric: NICs, Linux' rxe, other fabrics.
//!
//! Such a port has a UDP socket with one address and port 4791. Neighbours, routes and fragments are the concern of the host's kernel, and
//! the program needs no privileges; but no other program, and not rxe of the same network namespace, may have that UDP port.
//!
//! The port has one slot in the network for all devices outside: a packet to an address that no port of the fabric has is sent to that
//! slot, and then to the address in its own route. So nothing is stored about devices outside, however many there are. What such a
//! device makes this process store is a packet in flight, and these are limited for all of them together.
//!
//! A packet that arrives is decoded by [`uverbs_roce::datagram`]. Then its device completes what the wire does not have
//! ([`Model::admit`]) or refuses it: there is no such QP, or the QP is connected to another address. What is refused is counted.

mod link;
mod socket;

use crate::model::Model;
use crate::net::{Address, Outside, PortLocation};
use crate::world::World;
use crate::world_lock::WorldLock;
use core::net::IpAddr;
use core::time::Duration;
pub(crate) use link::Link;
pub use link::UdpStat;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Datagrams that are processed per locking of the world.
const BATCH: usize = 64;
/// Packets that may wait in the world; while there are more, no datagram is read.
const WAITING: usize = 1 << 14;
/// The pause before the next look at what waits.
const PAUSE: Duration = Duration::from_millis(1);

/// The bytes of packets that one answer may have to a request from outside. The rest of a longer answer is lost, and is requested again.
pub const MAX_ANSWER: u64 = 4 << 20;
/// The packets in flight beyond which such a request has no answer, so that many of them do not occupy the fabric.
pub const MAX_ANSWERS: usize = 1 << 14;

/// A socket that is not a port's yet.
#[derive(Debug)]
pub struct UdpPort {
    socket: UdpSocket,
    ip: IpAddr,
    mtu: u32,
}

impl UdpPort {
    /// Binds a socket to this address of the host and RoCE's UDP port.
    ///
    /// # Errors
    /// The host does not have the address; the UDP port is in use, by another program or by rxe of this network namespace; the MTU
    /// of the interface is too small.
    pub fn bind(ip: IpAddr) -> io::Result<Self> {
        let socket = socket::bind(ip)?;
        let mtu = socket::mtu(&socket, ip)?;
        Ok(Self { socket, ip, mtu })
    }

    /// The GID of the address.
    #[must_use]
    pub fn gid(&self) -> [u8; 16] {
        gid(self.ip)
    }
}

/// The GID of an address.
pub(crate) fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The ports of a fabric that have a socket.
#[derive(Debug)]
pub(crate) struct Links<P>(Option<Arc<Vec<Arc<Link<P>>>>>);

impl<P> Default for Links<P> {
    fn default() -> Self {
        Self(None)
    }
}

impl<P> Clone for Links<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P: crate::Packet> Links<P> {
    fn all(&self) -> &[Arc<Link<P>>] {
        self.0.as_ref().map_or(&[], |links| links)
    }

    /// The socket of a device's port.
    pub(crate) fn of(&self, device: usize) -> Option<&Link<P>> {
        self.all().iter().find(|link| link.device == device).map(|link| &**link)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Queues a packet that was sent to a slot.
    pub(crate) fn push(&self, slot: usize, packet: P) {
        if let Some(link) = self.all().iter().find(|link| link.slot == slot) {
            link.push(packet);
        }
    }

    /// Sends what is queued. The world must not be locked.
    pub(crate) fn flush(&self) {
        self.all().iter().for_each(|link| link.flush());
    }
}

/// A thread of a port, and what ends it.
pub(crate) struct Reader {
    stop: Box<dyn Fn() + Send>,
    thread: JoinHandle<()>,
}

impl Reader {
    /// Ends the thread.
    pub(crate) fn end(self) {
        (self.stop)();
        let _ = self.thread.join();
    }
}

impl<M: Model> World<M> {
    /// Gives the port of a device a socket.
    fn add_link(&mut self, device: usize, port: UdpPort) -> io::Result<Arc<Link<M::Packet>>> {
        let (slot, mtu, gid) = (self.devices.len(), port.mtu, port.gid());
        let address = self.net.ports.get_mut(device).filter(|address| address.ethernet);
        let Some(address) = address.filter(|address| address.outside.is_none()) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the port is InfiniBand, or has a UDP socket already",
            ));
        };
        let link = Arc::new(Link::new(port.socket, device, slot, gid)?);
        address.outside = Some(Outside { slot, mtu });
        self.net.ports.push(Address { location: PortLocation::Outside, ..Address::new(u16::MAX, true) });
        self.net.changes += 1;
        self.devices.push(None);
        let mut links = self.outside.all().to_vec();
        links.push(Arc::clone(&link));
        self.outside = Links(Some(Arc::new(links)));
        Ok(link)
    }

    /// A packet from outside arrives at a port. `false` if its device refuses it.
    fn arrive_from_outside(&mut self, device: usize, mut packet: M::Packet) -> bool {
        let Some((model, mut port)) = self.device(device) else { return false };
        let is_admitted = model.admit(&mut port, &mut packet);
        if is_admitted {
            self.net.send(self.now, device, packet);
        }
        is_admitted
    }
}

/// Gives the port of a device a socket, and begins to read from it.
pub(crate) fn attach<M: Model>(
    shared: &Arc<WorldLock<M>>,
    device: usize,
    port: UdpPort,
) -> io::Result<Reader> {
    let link = shared.enter(|world| world.add_link(device, port))?;
    let (shared, reader) = (Arc::clone(shared), Arc::clone(&link));
    let thread =
        std::thread::Builder::new().name("uverbs-udp".into()).spawn(move || read(&shared, &reader))?;
    Ok(Reader { stop: Box::new(move || link.stop()), thread })
}

/// Reads from a socket until it is stopped.
fn read<M: Model>(shared: &WorldLock<M>, link: &Link<M::Packet>) {
    let waits = |world: &mut World<M>| world.net.in_flight() > WAITING;
    while !link.is_stopped() {
        wait(link);
        link.set_reading(true);
        let packets: Vec<_> = core::iter::from_fn(|| link.receive()).take(BATCH).flatten().collect();
        if packets.is_empty() {
            link.set_reading(false);
            link.flush();
            continue;
        }
        let mut is_full = shared.enter_briefly(|world| {
            for packet in packets {
                if !world.arrive_from_outside(link.device, packet) {
                    link.refuse();
                }
            }
            link.set_reading(false);
            waits(world)
        });
        while is_full && !link.is_stopped() {
            std::thread::sleep(PAUSE);
            is_full = shared.enter_briefly(waits);
        }
    }
}

/// Waits until the socket has datagrams, or has room again for those that could not be sent.
fn wait<P: crate::Packet>(link: &Link<P>) {
    let mut events = PollFlags::POLLIN;
    events.set(PollFlags::POLLOUT, link.is_blocked());
    let mut fds =
        [PollFd::new(link.socket.as_fd(), events), PollFd::new(link.wake.as_fd(), PollFlags::POLLIN)];
    // An interrupted call is as one without an event.
    let _ = poll(&mut fds, PollTimeout::NONE);
    if fds[1].any() == Some(true) {
        let _ = link.wake.read();
    }
}
