// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps of the connection manager in unusual orders, with the results that the kernel gives. They run on the kernel in the VM and on
//! the connection manager of software NICs in this process, which must not differ from it.

use crate::bed::DropGuard;
use crate::env::End;
use crate::runner::Outcome;
use crate::wait::LIMIT;
use anyhow::{Context as _, Result, bail, ensure};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use libc::{EADDRINUSE, EADDRNOTAVAIL, ECONNRESET, EINVAL};
use std::thread;
use uverbs_cm::{ConnParam, Error, Event, EventChannel, EventKind, Id, PortSpace, RejectReason};

/// Two hosts with a connection manager. End A serves.
pub trait Hosts: fmt::Debug {
    /// A new channel at an end.
    fn channel(&self, end: End) -> Result<EventChannel>;
    /// A new identifier of a channel of this end.
    fn id(&self, end: End, channel: &EventChannel, port_space: PortSpace) -> Result<Id>;
    /// The IPv4 address of an end.
    fn ip(&self, end: End) -> Result<IpAddr>;
    /// Delays messages in both directions until the result is dropped. `None`: that is impossible, because messages do not
    /// leave the device.
    fn delay(&self, time: Duration) -> Result<Option<DropGuard>>;
}

/// A test: its name, and what it does with a port of its own.
pub type Steps = (&'static str, fn(&dyn Hosts, u16) -> Outcome);

/// The tests.
pub const ALL: [Steps; 8] = [
    ("ports_of_ended_connections", ports_of_ended_connections),
    ("ports_of_clients", ports_of_clients),
    ("shared_ports", shared_ports),
    ("a_disconnection_without_a_connection", a_disconnection_without_a_connection),
    ("a_disconnection_of_datagrams", a_disconnection_of_datagrams),
    ("both_disconnect", both_disconnect),
    ("rejections_in_each_state", rejections_in_each_state),
    ("a_rejection_crosses_the_last_message", a_rejection_crosses_the_last_message),
];

/// A time in which nothing more happens.
const QUIET: Duration = Duration::from_millis(300);

/// The errno of a call, 0 for none.
fn errno<T>(result: Result<T, Error>) -> i32 {
    result.err().map_or(0, |error| error.errno().raw())
}

/// A host with its only channel.
struct Host<'a> {
    hosts: &'a dyn Hosts,
    end: End,
    channel: EventChannel,
    port_space: PortSpace,
}

impl<'a> Host<'a> {
    fn both(hosts: &'a dyn Hosts) -> Result<[Self; 2]> {
        Self::both_of(hosts, PortSpace::Tcp)
    }

    fn both_of(hosts: &'a dyn Hosts, port_space: PortSpace) -> Result<[Self; 2]> {
        let host =
            |end| -> Result<Self> { Ok(Self { hosts, end, channel: hosts.channel(end)?, port_space }) };
        Ok([host(End::A)?, host(End::B)?])
    }

    fn id(&self) -> Result<Id> {
        self.hosts.id(self.end, &self.channel, self.port_space)
    }

    fn address(&self, port: u16) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.hosts.ip(self.end)?, port))
    }

    fn listen(&self, port: u16) -> Result<Id> {
        let id = self.id()?;
        id.bind_addr(self.address(port)?)?;
        id.listen(0)?;
        Ok(id)
    }

    /// The errno of a binding.
    fn bind(&self, to: SocketAddr) -> Result<(Id, i32)> {
        let id = self.id()?;
        let errno = errno(id.bind_addr(to));
        Ok((id, errno))
    }

    /// The next event.
    fn event(&self) -> Result<Event> {
        self.channel.wait(Some(LIMIT))?.with_context(|| format!("no event at {}", self.end.name()))
    }

    /// The next event, which must be of this kind and identifier.
    fn expect(&self, id: &Id, name: &str) -> Result<EventKind> {
        let event = self.event().with_context(|| name.to_owned())?;
        let found = event.name();
        ensure!(found == name && event.token == id.token(), "{event:?} at {}, not {name}", self.end.name());
        Ok(event.kind)
    }

    fn rejection(&self, id: &Id) -> Result<RejectReason> {
        match self.expect(id, "a failure")? {
            EventKind::Failed(Error::Rejected { reason, .. }) => Ok(reason),
            other => bail!("{other:?}"),
        }
    }

    fn nothing(&self) -> Result<()> {
        match self.channel.wait(Some(QUIET))? {
            None => Ok(()),
            Some(event) => bail!("{event:?} at {}", self.end.name()),
        }
    }

    /// An identifier whose route is resolved.
    fn resolve(&self, to: SocketAddr) -> Result<Id> {
        let id = self.id()?;
        id.resolve_addr(None, to, LIMIT)?;
        self.expect(&id, "ADDR_RESOLVED")?;
        id.resolve_route(LIMIT)?;
        self.expect(&id, "ROUTE_RESOLVED")?;
        Ok(id)
    }

    /// An identifier that has sent a request.
    fn request(&self, to: SocketAddr) -> Result<Id> {
        let id = self.resolve(to)?;
        id.connect(&param(5))?;
        Ok(id)
    }

    /// The identifier of a request.
    fn requested(&self, listener: &Id) -> Result<Id> {
        match self.expect(listener, "CONNECT_REQUEST")? {
            EventKind::ConnectRequest(request) => Ok(request.id),
            other => bail!("{other:?}"),
        }
    }
}

/// The numbers of QPs need not exist, because no QP is connected.
fn param(qp_num: u32) -> ConnParam {
    ConnParam::new().qp_num(qp_num)
}

/// A listener, and the ends of a connection of its port: the server has accepted, and the client has the answer.
fn answered(server: &Host<'_>, client: &Host<'_>, port: u16) -> Result<[Id; 3]> {
    let listener = server.listen(port)?;
    let active = client.request(server.address(port)?)?;
    let passive = server.requested(&listener)?;
    passive.accept(&param(6))?;
    client.expect(&active, "CONNECT_RESPONSE")?;
    Ok([listener, active, passive])
}

/// As [`answered`], established.
fn connected(server: &Host<'_>, client: &Host<'_>, port: u16) -> Result<[Id; 3]> {
    let [listener, active, passive] = answered(server, client, port)?;
    active.establish()?;
    server.expect(&passive, "ESTABLISHED")?;
    Ok([listener, active, passive])
}

/// The identifier that a request creates does not have the port of its listener, in no state.
fn ports_of_ended_connections(hosts: &dyn Hosts, port: u16) -> Outcome {
    let [server, client] = Host::both(hosts)?;
    let at = server.address(port)?;
    let [listener, active, passive] = connected(&server, &client, port)?;
    ensure!(server.bind(at)?.1 == EADDRINUSE);
    ensure!(server.bind((Ipv4Addr::UNSPECIFIED, port).into())?.1 == EADDRNOTAVAIL);
    drop(listener);
    drop(server.listen(port).context("a connection is established")?);
    active.disconnect()?;
    server.expect(&passive, "DISCONNECTED")?;
    drop(server.listen(port).context("a connection was ended by the client")?);
    passive.disconnect()?;
    client.expect(&active, "DISCONNECTED")?;
    drop(server.listen(port).context("a connection has ended")?);
    let listener = server.listen(port)?;
    let active = client.request(at)?;
    let passive = server.requested(&listener)?;
    drop(listener);
    drop(server.listen(port).context("a request waits")?);
    passive.reject(RejectReason::CONSUMER_DEFINED, b"")?;
    ensure!(client.rejection(&active)? == RejectReason::CONSUMER_DEFINED);
    drop(server.listen(port).context("a request was rejected")?);
    Ok(())
}

/// A client has its port until its identifier is destroyed.
fn ports_of_clients(hosts: &dyn Hosts, port: u16) -> Outcome {
    let [server, client] = Host::both(hosts)?;
    let [_listener, active, passive] = connected(&server, &client, port)?;
    let local = active.bound()?.local.context("no local address")?;
    ensure!(client.bind(local)?.1 == EADDRINUSE, "established");
    active.disconnect()?;
    server.expect(&passive, "DISCONNECTED")?;
    passive.disconnect()?;
    client.expect(&active, "DISCONNECTED")?;
    ensure!(client.bind(local)?.1 == EADDRINUSE, "ended");
    drop(active);
    ensure!(client.bind(local)?.1 == 0, "destroyed");
    Ok(())
}

/// Identifiers that permit it share a port, until one of them listens.
fn shared_ports(hosts: &dyn Hosts, port: u16) -> Outcome {
    let [server, _] = Host::both(hosts)?;
    let at = server.address(port)?;
    let shared = || -> Result<(Id, i32)> {
        let id = server.id()?;
        id.set_reuse_addr(true)?;
        let errno = errno(id.bind_addr(at));
        Ok((id, errno))
    };
    let (first, bound) = shared()?;
    ensure!(bound == 0);
    let (second, bound) = shared()?;
    ensure!(bound == 0, "the second");
    ensure!(server.bind(at)?.1 == EADDRINUSE, "one that does not permit it");
    ensure!(errno(first.listen(0)) == EADDRINUSE, "the port is shared");
    drop(second);
    ensure!(errno(first.listen(0)) == 0, "the port is its own");
    ensure!(shared()?.1 == EADDRINUSE, "it listens");
    ensure!(errno(first.set_reuse_addr(true)) == EINVAL, "it listens");
    // A change while it is bound: to permit it, not to forbid it.
    drop(first);
    let (bound, _) = server.bind(at)?;
    ensure!(errno(bound.set_reuse_addr(false)) == EINVAL);
    ensure!(errno(bound.set_reuse_addr(true)) == 0);
    ensure!(shared()?.1 == 0);
    // One family each.
    drop(bound);
    let v6: SocketAddr = SocketAddr::new(core::net::Ipv6Addr::UNSPECIFIED.into(), port);
    let only = server.id()?;
    only.set_ipv6_only(true)?;
    only.bind_addr(v6)?;
    ensure!(server.bind((Ipv4Addr::UNSPECIFIED, port).into())?.1 == 0, "IPv4 besides IPv6");
    drop(only);
    let (_both, bound) = server.bind(v6)?;
    ensure!(bound == 0);
    ensure!(server.bind((Ipv4Addr::UNSPECIFIED, port).into())?.1 == EADDRNOTAVAIL, "IPv6 takes both");
    Ok(())
}

/// `rdma_disconnect()` sends nothing unless the connection is established, and is an error only before there is a request.
fn a_disconnection_without_a_connection(hosts: &dyn Hosts, port: u16) -> Outcome {
    let [server, client] = Host::both(hosts)?;
    let listener = server.listen(port)?;
    ensure!(errno(listener.disconnect()) == 0, "it listens at a device");
    let id = client.id()?;
    ensure!(errno(id.disconnect()) == EINVAL, "new");
    id.bind_addr(client.address(0)?)?;
    ensure!(errno(id.disconnect()) == EINVAL, "bound");
    let active = client.resolve(server.address(port)?)?;
    ensure!(errno(active.disconnect()) == EINVAL, "resolved");
    active.connect(&param(5))?;
    ensure!(errno(active.disconnect()) == 0, "requested");
    let passive = server.requested(&listener)?;
    ensure!(errno(passive.disconnect()) == 0, "a request");
    passive.accept(&param(6))?;
    ensure!(errno(passive.disconnect()) == 0, "accepted");
    client.expect(&active, "CONNECT_RESPONSE")?;
    ensure!(errno(active.disconnect()) == 0, "answered");
    client.nothing()?;
    active.establish()?;
    server.expect(&passive, "ESTABLISHED")?;
    client.nothing()?;
    active.disconnect()?;
    server.expect(&passive, "DISCONNECTED")?;
    passive.disconnect()?;
    client.expect(&active, "DISCONNECTED")?;
    ensure!(errno(active.disconnect()) == 0 && errno(passive.disconnect()) == 0, "ended");
    Ok(())
}

/// Datagrams have no connection that could end.
fn a_disconnection_of_datagrams(hosts: &dyn Hosts, port: u16) -> Outcome {
    let [server, client] = Host::both_of(hosts, PortSpace::Udp)?;
    let listener = server.listen(port)?;
    let active = client.resolve(server.address(port)?)?;
    ensure!(errno(active.disconnect()) == EINVAL, "resolved");
    active.connect(&param(5))?;
    let passive = server.requested(&listener)?;
    ensure!(errno(passive.disconnect()) == 0 && errno(active.disconnect()) == 0, "requested");
    passive.accept(&param(6))?;
    client.expect(&active, "ESTABLISHED")?;
    ensure!(errno(passive.disconnect()) == 0 && errno(active.disconnect()) == 0, "answered");
    client.nothing()?;
    server.nothing()
}

/// Each end has one event, and both leave the timewait state.
fn both_disconnect(hosts: &dyn Hosts, port: u16) -> Outcome {
    let [server, client] = Host::both(hosts)?;
    let [_listener, active, passive] = connected(&server, &client, port)?;
    active.disconnect()?;
    server.expect(&passive, "DISCONNECTED")?;
    passive.disconnect()?;
    client.expect(&active, "DISCONNECTED")?;
    client.expect(&active, "TIMEWAIT_EXIT")?;
    server.expect(&passive, "TIMEWAIT_EXIT")?;
    // At the same time: each waits for the other's request, and answers it with a second call.
    let [_listener, active, passive] = {
        drop([_listener, active, passive]);
        connected(&server, &client, port)?
    };
    {
        // Without a delay, the second one answers the first one.
        let _slow = hosts.delay(Duration::from_millis(500))?;
        active.disconnect()?;
        passive.disconnect()?;
        server.expect(&passive, "DISCONNECTED")?;
        client.expect(&active, "DISCONNECTED")?;
    }
    client.nothing()?;
    server.nothing()?;
    active.disconnect()?;
    passive.disconnect()?;
    client.expect(&active, "TIMEWAIT_EXIT")?;
    server.expect(&passive, "TIMEWAIT_EXIT")?;
    Ok(())
}

/// `rdma_reject()` ends the connection before it is established. (Where the kernel repeats a message that the rejection makes pointless,
/// it destroys the identifier only minutes later, so the states in which a request or an acceptance has no answer are not here.)
fn rejections_in_each_state(hosts: &dyn Hosts, port: u16) -> Outcome {
    let [server, client] = Host::both(hosts)?;
    let reject = |id: &Id| errno(id.reject(RejectReason::CONSUMER_DEFINED, b"no"));
    let unanswered = client.resolve(server.address(port)?)?;
    ensure!(reject(&unanswered) == EINVAL, "resolved");
    drop(unanswered);
    // The server, before it has accepted.
    let listener = server.listen(port)?;
    ensure!(reject(&listener) == EINVAL, "it listens");
    let active = client.request(server.address(port)?)?;
    let passive = server.requested(&listener)?;
    ensure!(reject(&passive) == 0, "a request");
    ensure!(client.rejection(&active)? == RejectReason::CONSUMER_DEFINED);
    ensure!(errno(active.establish()) == EINVAL, "after a rejection");
    // That of a request is `Error::Disconnected`.
    ensure!(reject(&passive) == ECONNRESET && reject(&active) == EINVAL, "rejected");
    ensure!(passive.accept(&param(6)).is_err(), "rejected");
    server.nothing()?;
    drop([listener, active, passive]);
    // The client, after it has the answer.
    let [listener, active, passive] = answered(&server, &client, port)?;
    ensure!(reject(&active) == 0, "answered");
    ensure!(server.rejection(&passive)? == RejectReason::CONSUMER_DEFINED);
    drop([listener, active, passive]);
    // An established connection.
    let [_listener, active, passive] = connected(&server, &client, port)?;
    ensure!(reject(&active) == EINVAL && reject(&passive) == EINVAL, "established");
    Ok(())
}

/// The server gives up while the last message of the client, or its disconnection, is on its way.
fn a_rejection_crosses_the_last_message(hosts: &dyn Hosts, port: u16) -> Outcome {
    let [server, client] = Host::both(hosts)?;
    for disconnects in [false, true] {
        let [listener, active, passive] = answered(&server, &client, port)?;
        {
            let Some(_slow) = hosts.delay(Duration::from_secs(2))? else {
                crate::runner::note("messages can't be delayed here");
                return Ok(());
            };
            thread::scope(|scope| {
                // It sends the rejection, and can take until that has left.
                scope.spawn(|| drop(passive));
                thread::sleep(Duration::from_millis(200));
                active.establish()?;
                if disconnects { active.disconnect() } else { Ok(()) }
            })?;
            let reason = client.rejection(&active)?;
            ensure!(reason == RejectReason::CONSUMER_DEFINED, "{reason:?}");
        }
        client.nothing()?;
        server.nothing()?;
        ensure!(errno(active.disconnect()) == 0);
        drop(listener);
    }
    Ok(())
}
