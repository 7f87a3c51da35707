// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection manager of a software NIC: what `/dev/infiniband/rdma_cm` is on a host with one RoCE device.
//!
//! It answers the commands of the kernel's `ucma.c` byte by byte, and exchanges messages with the connection managers of the
//! other devices of the fabric. Each device is a host of its own; its addresses are the GIDs of its port. A device with
//! InfiniBand ports has no IP addresses. The devices of other processes of the fabric are reached, too.
//!
//! | module | contents |
//! |---|---|
//! | this one | the port of a program, and the state of all hosts |
//! | [`ident`] | identifiers |
//! | [`command`] | what each command does |
//! | [`query`] | the answers that describe an identifier |
//! | [`message`] | what is sent to other hosts, and what it does there |
//! | [`away`] | what is sent to other processes |

mod away;
mod command;
mod ident;
mod message;
mod query;
#[cfg(test)]
mod tests;

use crate::Fabric;
use crate::engine::Net;
use crate::engine::net::PortLocation;
use crate::engine::packet::Packet;
use away::Letter;
use core::fmt;
use ident::{Ident, Member, State, place_of};
use message::{Body, CONSUMER_DEFINED, Message};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{CmPort, Process};
use uverbs_fabric::map::{Map, Set};
use uverbs_fabric::model::Outgoing;
use uverbs_fabric::{Hosts, Users};
use uverbs_uapi::rdma_cm::rdma_ucm_event_resp;

/// An event channel of the connection manager of a software NIC.
pub(crate) struct HcaCm {
    fabric: Fabric,
    /// Number of the device.
    host: usize,
    channel: u64,
    signal: Arc<EventFd>,
    creator: Process,
}

impl fmt::Debug for HcaCm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HcaCm").field("host", &self.host).field("channel", &self.channel).finish()
    }
}

impl HcaCm {
    /// Opens a channel at a device.
    pub(crate) fn open(fabric: &Fabric, host: usize) -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let signal = EventFd::from_flags(flags)
            .map_err(|e| Error::os("create_event_channel", format!("device {host}"), e.into()))?;
        let signal = Arc::new(signal);
        let channel = fabric.enter(|world| world.hosts.open(host, Arc::clone(&signal)));
        Ok(Self { fabric: fabric.clone(), host, channel, signal, creator: Process::register() })
    }
}

impl CmPort for HcaCm {
    fn command(&self, cmd: u32, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        self.fabric.enter(|world| {
            if let Some(errno) = world.net.script_call(world.now, self.host, command::verb(cmd), None) {
                return Err(errno);
            }
            let mut call =
                Call { net: &mut world.net, now: world.now, host: self.host, channel: self.channel };
            world.hosts.command(&mut call, cmd, input, output)
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    fn open_channel(&self) -> Result<Arc<dyn CmPort>> {
        Ok(Arc::new(Self::open(&self.fabric, self.host)?))
    }

    fn is_creator_process(&self) -> bool {
        self.creator.is_current()
    }
}

impl Drop for HcaCm {
    fn drop(&mut self) {
        // A child of fork(2) has a copy of the lock that may stay locked for ever.
        if self.is_creator_process() {
            self.fabric.enter(|world| {
                let mut call =
                    Call { net: &mut world.net, now: world.now, host: self.host, channel: self.channel };
                world.hosts.close(&mut call);
            });
        }
    }
}

/// The surroundings of a command or message.
pub(crate) struct Call<'w> {
    pub(crate) net: &'w mut Net,
    pub(crate) now: u64,
    /// The device.
    pub(crate) host: usize,
    pub(crate) channel: u64,
}

/// A channel.
struct Channel {
    host: usize,
    signal: Arc<EventFd>,
    events: VecDeque<Queued>,
    /// Whether its process has died.
    has_ended: bool,
}

/// An event that was not read yet.
struct Queued {
    /// The identifier or membership that it is of.
    owner: u32,
    event: rdma_ucm_event_resp,
    /// The identifier that a connection request created.
    created: Option<u32>,
}

/// The connection managers of all hosts of a fabric.
#[derive(Default)]
pub struct Cm {
    channels: Map<u64, Channel>,
    /// The channels by host and descriptor.
    of_fds: Map<(usize, RawFd), u64>,
    idents: Map<u32, Ident>,
    /// The identifiers by channel; by the identifier at the other end; by host, port space and port.
    of_channels: Set<(u64, u32)>,
    of_peers: Set<(u32, u32)>,
    of_ports: Set<(usize, u16, u16, u32)>,
    members: Map<u32, Member>,
    /// The memberships by identifier.
    of_idents: Set<(u32, u32)>,
    /// The events of each identifier and membership that were not read.
    unread: Users,
    messages: Map<(u64, u64), Message>,
    /// Messages to other processes.
    outgoing: Vec<Outgoing>,
    /// The hosts whose device was removed.
    gone: Set<usize>,
    /// The last numbers that were used.
    last_channel: u64,
    last_ident: u32,
    last_port: u16,
    sequence: u64,
}

impl Cm {
    fn open(&mut self, host: usize, signal: Arc<EventFd>) -> u64 {
        self.last_channel += 1;
        self.of_fds.insert((host, signal.as_raw_fd()), self.last_channel);
        self.channels
            .insert(self.last_channel, Channel { host, signal, events: VecDeque::new(), has_ended: false });
        self.last_channel
    }

    /// Closes a channel and destroys its identifiers.
    fn close(&mut self, call: &mut Call<'_>) {
        let left = self.of_channels.range((call.channel, 0)..=(call.channel, u32::MAX));
        let left: Vec<u32> = left.map(|(_, number)| number).collect();
        for number in left {
            self.destroy(call, number);
        }
        if let Some(channel) = self.channels.remove(&call.channel) {
            self.of_fds.remove(&(channel.host, channel.signal.as_raw_fd()));
        }
    }

    fn add_ident(&mut self, number: u32, ident: Ident) {
        self.of_channels.insert((ident.channel, number));
        self.of_peers.extend(ident.peer.map(|peer| (peer, number)));
        self.idents.insert(number, ident);
    }

    fn remove_ident(&mut self, number: u32) -> Option<Ident> {
        let ident = self.idents.remove(&number)?;
        if let Some(place) = ident.wait {
            self.messages.remove(&place);
        }
        self.of_channels.remove(&(ident.channel, number));
        if let Some(peer) = ident.peer {
            self.of_peers.remove(&(peer, number));
        }
        if let Some(port) = ident.port() {
            self.of_ports.remove(&(ident.host, ident.ps, port, number));
        }
        Some(ident)
    }

    fn set_peer(&mut self, number: u32, peer: u32) {
        if let Some(ident) = self.idents.get_mut(&number) {
            if let Some(old) = ident.peer.replace(peer) {
                self.of_peers.remove(&(old, number));
            }
            self.of_peers.insert((peer, number));
        }
    }

    fn set_channel(&mut self, number: u32, channel: u64) {
        if let Some(ident) = self.idents.get_mut(&number) {
            self.of_channels.remove(&(ident.channel, number));
            ident.channel = channel;
            self.of_channels.insert((channel, number));
        }
    }

    /// The identifiers whose peer has this number.
    fn of_peer(&self, peer: u32) -> impl Iterator<Item = (u32, &Ident)> {
        let all = self.of_peers.range((peer, 0)..=(peer, u32::MAX));
        all.filter_map(|(_, number)| Some((number, self.idents.get(&number)?)))
    }

    /// The memberships of an identifier.
    fn members_of(&self, number: u32) -> Vec<u32> {
        self.of_idents.range((number, 0)..=(number, u32::MAX)).map(|(_, member)| member).collect()
    }

    fn remove_member(&mut self, number: u32) {
        if let Some(member) = self.members.remove(&number) {
            self.of_idents.remove(&(member.ident, number));
        }
    }

    /// The channel of this host whose descriptor has this number.
    fn channel_of_fd(&self, host: usize, fd: u32) -> Option<u64> {
        self.of_fds.get(&(host, i32::try_from(fd).ok()?)).copied()
    }

    /// Appends an event to a channel.
    fn report(&mut self, channel: u64, queued: Queued) {
        let Some(channel) = self.channels.get_mut(&channel) else { return };
        self.unread.add(queued.owner);
        channel.events.push_back(queued);
        channel.update();
    }

    /// Sends a message to a host, which is in another process.
    fn send_away(&mut self, net: &Net, host: usize, letter: &Letter) {
        let Some(port) = net.ports.get(host) else { return };
        if let PortLocation::Away { link } = port.location {
            self.outgoing.push(Outgoing { link, to: port.number, bytes: letter.bytes() });
        }
    }
}

impl Hosts<Packet> for Cm {
    /// The device of a host is removed: identifiers that are bound to it get an event, and peers get no more messages.
    /// (A listener on all addresses is bound to no device.)
    fn unplug(&mut self, net: &Net, now: u64, host: usize) {
        self.gone.insert(host);
        let bound: Vec<u32> =
            self.idents.iter().filter(|(_, i)| i.host == host && i.has_device).map(|(n, _)| n).collect();
        for number in bound {
            self.fall_silent(net, now, number);
            self.removed(number);
        }
    }

    /// The processes of a host die: their channels and identifiers end, and peers are not told.
    fn kill(&mut self, net: &Net, now: u64, host: usize) {
        let left: Vec<u32> = self.idents.iter().filter(|(_, i)| i.host == host).map(|(n, _)| n).collect();
        for number in left {
            self.fall_silent(net, now, number);
            for member in self.members_of(number) {
                self.remove_member(member);
            }
            self.remove_ident(number);
        }
        for channel in self.channels.values_mut().filter(|c| c.host == host) {
            channel.events.drain(..).for_each(|queued| self.unread.remove(&queued.owner));
            channel.has_ended = true;
            channel.update();
        }
    }

    /// A message of another process for the host with this number arrives. It is forwarded if that is in a third process.
    fn arrived(&mut self, net: &mut Net, now: u64, link: u32, to: u16, bytes: Vec<u8>) {
        let Some(host) = net.by_number(to).first().copied() else { return };
        match net.ports[host].location {
            PortLocation::Away { link: other } if other != link => {
                self.outgoing.push(Outgoing { link: other, to, bytes });
            }
            PortLocation::Here => {
                if let Some(letter) = Letter::parse(&bytes) {
                    self.receive_letter(&mut Call { net, now, host, channel: 0 }, letter);
                }
            }
            PortLocation::Away { .. } | PortLocation::Gone | PortLocation::Outside => {}
        }
    }

    /// A port of another process is removed: its connections end, as they do when the kernel closes the files of a process.
    fn lost(&mut self, net: &mut Net, now: u64, slot: usize) {
        let is_there = |i: &Ident| i.remote.and_then(|to| place_of(net, to.ip())) == Some(slot);
        let lost = self.idents.iter().filter(|(_, i)| !i.is_datagram() && is_there(i));
        let lost: Vec<_> = lost.map(|(number, i)| (number, i.host, i.state)).collect();
        for (ident, host, state) in lost {
            let body = match state {
                State::Connecting | State::Answered | State::Requested => {
                    Body::Reject(CONSUMER_DEFINED, vec![])
                }
                _ => Body::Disconnect,
            };
            self.receive(&mut Call { net, now, host, channel: 0 }, Message { ident, body });
        }
    }

    /// The time of the next message.
    fn next(&self) -> Option<u64> {
        self.messages.keys().next().map(|(at, _)| at)
    }

    /// Delivers the next message that is due by `until`, and returns its time.
    fn deliver(&mut self, net: &mut Net, now: u64, until: u64) -> Option<u64> {
        let key = self.messages.keys().next().filter(|(at, _)| *at <= until)?;
        let message = self.messages.remove(&key)?;
        self.receive(&mut Call { net, now: now.max(key.0), host: 0, channel: 0 }, message);
        Some(key.0)
    }

    fn outgoing(&mut self) -> Vec<Outgoing> {
        core::mem::take(&mut self.outgoing)
    }
}

impl Channel {
    /// Makes the descriptor readable if there are events or the channel has ended, and only then.
    fn update(&self) {
        // Both are non-blocking: a full counter is readable, an empty one is not.
        let _ = self.signal.read();
        if !self.events.is_empty() || self.has_ended {
            let _ = self.signal.write(1);
        }
    }
}
