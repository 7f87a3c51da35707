// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identifiers and memberships, and their addresses.

use super::Cm;
use crate::engine::Net;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use nix::libc::{EADDRINUSE, EADDRNOTAVAIL};
use uverbs_core::Errno;
use uverbs_uapi::cmd::{ib_uverbs_ah_attr, ib_uverbs_global_route};
use uverbs_uapi::verbs::IB_UVERBS_QPT_UD;

/// The state of an identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    /// It has sent a request.
    Connecting,
    /// It was made by a request.
    Requested,
    /// The peer has accepted.
    Answered,
    /// It has accepted.
    Accepted,
    Connected,
    /// It has asked the peer to disconnect.
    Disconnecting,
    /// The peer has asked.
    Disconnected,
    Closed,
}

/// An identifier.
#[derive(Clone, Debug, Default)]
pub(super) struct Ident {
    pub(super) channel: u64,
    pub(super) host: usize,
    pub(super) uid: u64,
    pub(super) ps: u16,
    pub(super) qp_type: u8,
    pub(super) state: State,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) has_device: bool,
    /// Requests that may still wait, of a listener.
    pub(super) backlog: u32,
    /// The identifier at the other end.
    pub(super) peer: Option<u32>,
    pub(super) qp_num: u32,
    pub(super) psn: u32,
    pub(super) remote_qp_num: u32,
    pub(super) remote_psn: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) tos: u8,
    pub(super) can_reuse: bool,
    /// The option that it takes addresses of its own family only, if it was set.
    pub(super) one_family: Option<bool>,
    /// Whether it has the port of its local address: from its binding to its destruction. The identifier of a request has none,
    /// because the port is that of its listener (`rdma_bind_list` of cma.c).
    pub(super) has_port: bool,
    pub(super) ack_timeout: Option<u8>,
    /// How many events were read.
    pub(super) reported: u32,
    /// The message that ends its wait for the answer to a DREQ.
    pub(super) wait: Option<(u64, u64)>,
}

/// A membership in a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) ident: u32,
    pub(super) uid: u64,
    pub(super) group: [u8; 16],
    pub(super) reported: u32,
}

impl Ident {
    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type == IB_UVERBS_QPT_UD
    }

    /// Whether it has an identifier of `cm.c`: from a request, or the begin of listening at a device, on.
    pub(super) fn has_cm_id(&self) -> bool {
        let has_none =
            matches!(self.state, State::Idle | State::Bound | State::AddrResolved | State::RouteResolved);
        self.has_device && !has_none
    }

    /// The port that it has.
    pub(super) fn port(&self) -> Option<u16> {
        self.local.filter(|_| self.has_port).map(|local| local.port())
    }

    /// Whether it takes addresses of the family of its local address only: IPv6 takes both by default.
    fn is_of_one_family(&self, local: SocketAddr) -> bool {
        self.one_family.unwrap_or(local.is_ipv4())
    }

    /// The way to an address, by the GID of this side's address.
    pub(super) fn way(&self, net: &Net, dgid: [u8; 16]) -> ib_uverbs_ah_attr {
        let sgid = self.local.map(|local| gid(local.ip())).unwrap_or_default();
        let grh = ib_uverbs_global_route {
            dgid,
            sgid_index: gid_index(net, self.host, &sgid).unwrap_or(0),
            hop_limit: 64,
            traffic_class: self.tos,
            ..Default::default()
        };
        ib_uverbs_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() }
    }
}

/// The first packet sequence number of an identifier's QP.
pub(super) fn first_psn(number: u32) -> u32 {
    number.wrapping_mul(0x9e_3779) & 0xff_ffff
}

/// An IP address as a GID.
pub(super) fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Index of the GID in the port's table, as RoCE version 2.
fn gid_index(net: &Net, host: usize, gid: &[u8; 16]) -> Option<u8> {
    let port = net.ports.get(host)?;
    let index = port.gids.iter().position(|(g, is_v2)| g == gid && *is_v2)?;
    u8::try_from(index).ok()
}

/// The host that has the address, in this process.
pub(super) fn host_of(net: &Net, ip: IpAddr) -> Option<usize> {
    let host = net.by_gid(&gid(ip))?;
    is_here(net, host, ip).then_some(host)
}

/// The host that has the address, in any process.
pub(super) fn place_of(net: &Net, ip: IpAddr) -> Option<usize> {
    let host = net.by_gid(&gid(ip))?;
    let is_ethernet = net.ports.get(host).is_some_and(|p| p.ethernet);
    (is_ethernet && gid_index(net, host, &gid(ip)).is_some()).then_some(host)
}

/// Whether the host, which is of this process, has the address.
pub(super) fn is_here(net: &Net, host: usize, ip: IpAddr) -> bool {
    use crate::engine::net::PortLocation;
    net.ports.get(host).is_some_and(|p| p.location == PortLocation::Here && p.ethernet)
        && gid_index(net, host, &gid(ip)).is_some()
}

/// The address that a host uses for the family of a destination.
pub(super) fn source(net: &Net, host: usize, to: IpAddr) -> Option<IpAddr> {
    let port = net.ports.get(host).filter(|p| p.ethernet)?;
    if is_here(net, host, to) {
        return Some(to);
    }
    let is_link_local = |ip: Ipv6Addr| ip.is_unicast_link_local();
    port.gids.iter().filter(|(_, is_v2)| *is_v2).find_map(|(gid, _)| {
        let v6 = Ipv6Addr::from(*gid);
        match (to, v6.to_ipv4_mapped()) {
            (IpAddr::V4(_), Some(v4)) => Some(v4.into()),
            (IpAddr::V6(to), None) if to.is_multicast() || is_link_local(to) == is_link_local(v6) => {
                Some(v6.into())
            }
            _ => None,
        }
    })
}

impl Cm {
    /// A port that no identifier of the host has. (`cma_alloc_any_port()` begins with a random one, and may share it between
    /// identifiers with different destinations.)
    pub(super) fn free_port(&mut self, host: usize, ps: u16) -> Result<u16, Errno> {
        const PORTS: core::ops::RangeInclusive<u16> = 32768..=60999;
        for _ in PORTS {
            let next = self.last_port.wrapping_add(1);
            self.last_port = if PORTS.contains(&next) { next } else { *PORTS.start() };
            let port = self.last_port;
            if self.with_port(host, ps, port).next().is_none() {
                return Ok(port);
            }
        }
        Err(Errno::from_raw(EADDRNOTAVAIL))
    }

    /// The identifiers that have a port.
    fn with_port(&self, host: usize, ps: u16, port: u16) -> impl DoubleEndedIterator<Item = (u32, &Ident)> {
        let all = self.of_ports.range((host, ps, port, 0)..=(host, ps, port, u32::MAX));
        all.filter_map(|(.., number)| Some((number, self.idents.get(&number)?)))
    }

    /// Whether an identifier can have an address with this port (`cma_check_port()`). `can_reuse` is false for one that begins to
    /// listen.
    pub(super) fn check_port(
        &self,
        host: usize,
        number: u32,
        local: SocketAddr,
        can_reuse: bool,
    ) -> Result<(), Errno> {
        let Some(this) = self.idents.get(&number) else { return Ok(()) };
        // The kernel looks at the latest first.
        for (other, i) in self.with_port(host, this.ps, local.port()).rev() {
            let Some(theirs) = i.local else { continue };
            if other == number
                || (can_reuse && i.can_reuse)
                || (this.is_of_one_family(local)
                    && i.is_of_one_family(theirs)
                    && local.is_ipv4() != theirs.is_ipv4())
            {
                continue;
            }
            if local.ip().is_unspecified() || theirs.ip().is_unspecified() {
                return Err(Errno::from_raw(EADDRNOTAVAIL));
            }
            if local.ip() == theirs.ip() {
                return Err(Errno::from_raw(EADDRINUSE));
            }
        }
        Ok(())
    }

    /// The listener of an address at a host.
    pub(super) fn listener(&self, host: usize, ps: u16, to: SocketAddr) -> Option<u32> {
        let listens = |i: &Ident| {
            let Some(local) = i.local else { return false };
            let same_family = local.is_ipv4() == to.is_ipv4() || !i.is_of_one_family(local);
            i.state == State::Listening
                && (local.ip() == to.ip() || (local.ip().is_unspecified() && same_family))
        };
        self.with_port(host, ps, to.port()).find(|(_, i)| listens(i)).map(|(number, _)| number)
    }
}
