// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ethernet addresses of RoCE peers, from the kernel's routes and neighbours (rtnetlink(7)).
//!
//! Drivers whose kernel part returns the address with an address handle (mlx5) need only [`vlan`]. For the others
//! [`resolve`] does what the kernel does for a packet: it finds the route to the peer, and the neighbour of the route's
//! next hop. If the kernel does not know the neighbour, an empty datagram makes it ask. Three requests are used, each with
//! one answer, so the messages are built here and not by a library.

use crate::errno::{Errno, Outcome};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
    sockopt,
};
use std::ffi::OsString;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::time::Instant;
use uverbs_core::attr::{Gid, GidEntry};

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// The VLAN of an interface that has none.
pub(crate) const NO_VLAN: u16 = 0xffff;

/// The time for the kernel's resolution of a neighbour, and the time between two queries of its state.
const TIME_LIMIT: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(5);
/// The port of the datagram that makes the kernel resolve a neighbour: "discard" of RFC 863.
const DISCARD: u16 = 9;

/// Bytes of a message's header (`struct nlmsghdr`), and of the structs that follow it.
const HEADER: usize = 16;
const RTMSG: usize = 12;
const NDMSG: usize = 12;
const IFINFOMSG: usize = 16;
/// The longest answer.
const ANSWER: usize = 1 << 16;

/// `IFLA_INFO_*`, `IFLA_VLAN_*` of `linux/if_link.h`.
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
/// `NUD_*`: the states in which the kernel uses a neighbour's address.
const USABLE: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE;

/// The address of an IP address that contains it: of a multicast group, or of a link-local address (EUI-64).
fn computed(peer: IpAddr) -> Option<Mac> {
    match peer {
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            if ip.is_multicast() {
                return Some([0x33, 0x33, a, b, c, d]);
            }
            let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, e, f, g, ..] = ip.octets() else { return None };
            Some([e ^ 2, f, g, b, c, d])
        }
    }
}

/// The IP address of a GID.
fn address(gid: Gid) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid.0)).to_canonical()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn from_octets(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|b| Ipv4Addr::from(b).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|b| Ipv6Addr::from(b).into()),
        _ => None,
    }
}

/// The first attribute of this type (`struct rtattr`) in a sequence of attributes.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (head, _) = bytes.split_first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        // The two top bits are flags.
        let kind = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
        let data = bytes.get(4..len)?;
        if kind == wanted {
            return Some(data);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

fn append(message: &mut Vec<u8>, kind: u16, data: &[u8]) {
    message.extend(((data.len() + 4) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(data);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// A socket to the kernel's routing tables.
struct Netlink(OwnedFd);

/// The next hop of a route.
#[derive(Debug, PartialEq, Eq)]
enum Hop {
    /// The peer is this host.
    Local,
    Neighbour {
        address: IpAddr,
        interface: u32,
    },
}

impl Netlink {
    fn new() -> Outcome<Self> {
        let protocol = SockProtocol::NetlinkRoute;
        Ok(Self(socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?))
    }

    /// Sends a request and returns the answer without its header.
    fn ask(&self, kind: u16, body: &[u8], attributes: &[(u16, &[u8])]) -> Outcome<Vec<u8>> {
        let mut message = vec![0; HEADER];
        message.extend(body);
        for (kind, data) in attributes {
            append(&mut message, *kind, data);
        }
        let len = (message.len() as u32).to_ne_bytes();
        message[..4].copy_from_slice(&len);
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
        sendto(self.0.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut answer = vec![0; ANSWER];
        let len = loop {
            match recv(self.0.as_raw_fd(), &mut answer, MsgFlags::empty()) {
                Err(nix::errno::Errno::EINTR) => {}
                len => break len?,
            }
        };
        answer.truncate(len);
        if len < HEADER + 4 {
            return Err(Errno::EIO);
        }
        if u16::from_ne_bytes([answer[4], answer[5]]) == libc::NLMSG_ERROR as u16 {
            let error = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
            return Err(Errno::from_raw(error.wrapping_neg()));
        }
        Ok(answer.split_off(HEADER))
    }

    /// The next hop to a peer through an interface.
    fn route(&self, peer: IpAddr, interface: u32) -> Outcome<Hop> {
        let octets = octets(peer);
        let mut body = [0; RTMSG];
        (body[0], body[1]) = (family(peer), (octets.len() * 8) as u8);
        let attributes = [(libc::RTA_DST, &octets[..]), (libc::RTA_OIF, &interface.to_ne_bytes())];
        let answer = self.ask(libc::RTM_GETROUTE, &body, &attributes)?;
        hop(&answer, peer, interface).ok_or(Errno::EHOSTUNREACH)
    }

    /// The address of a neighbour, if the kernel knows it.
    fn neighbour(&self, peer: IpAddr, interface: u32) -> Outcome<Option<Mac>> {
        let mut body = [0; NDMSG];
        body[0] = family(peer);
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        match self.ask(libc::RTM_GETNEIGH, &body, &[(libc::NDA_DST, &octets(peer))]) {
            Ok(answer) => Ok(usable(&answer)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The attributes of an interface.
    fn link(&self, interface: u32) -> Outcome<Vec<u8>> {
        let mut body = [0; IFINFOMSG];
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        let mut answer = self.ask(libc::RTM_GETLINK, &body, &[])?;
        Ok(if answer.len() < IFINFOMSG { Vec::new() } else { answer.split_off(IFINFOMSG) })
    }
}

/// The next hop in a message about a route.
fn hop(route: &[u8], peer: IpAddr, interface: u32) -> Option<Hop> {
    let kind = *route.get(7)?;
    let attributes = route.get(RTMSG..)?;
    if kind == libc::RTN_LOCAL {
        return Some(Hop::Local);
    }
    if kind != libc::RTN_UNICAST {
        return None;
    }
    let interface = match attribute(attributes, libc::RTA_OIF) {
        Some(index) => u32::from_ne_bytes(index.try_into().ok()?),
        None => interface,
    };
    let address = match (attribute(attributes, libc::RTA_GATEWAY), attribute(attributes, libc::RTA_VIA)) {
        (Some(gateway), _) => from_octets(gateway)?,
        // A gateway of another family, which is before the address.
        (None, Some(via)) => from_octets(via.get(2..)?)?,
        (None, None) => peer,
    };
    Some(Hop::Neighbour { address, interface })
}

/// The address in a message about a neighbour, if the kernel uses it.
fn usable(neighbour: &[u8]) -> Option<Mac> {
    let state = neighbour.get(8..10)?;
    if u16::from_ne_bytes([state[0], state[1]]) & USABLE == 0 {
        return None;
    }
    attribute(neighbour.get(NDMSG..)?, libc::NDA_LLADDR)?.try_into().ok()
}

/// The VLAN in the attributes of an interface.
fn vlan_of(link: &[u8]) -> Option<u16> {
    let info = attribute(link, libc::IFLA_LINKINFO)?;
    if attribute(info, IFLA_INFO_KIND)?.strip_suffix(b"\0")? != b"vlan" {
        return None;
    }
    Some(u16::from_ne_bytes(attribute(attribute(info, IFLA_INFO_DATA)?, IFLA_VLAN_ID)?.try_into().ok()?))
}

/// The VLAN of an interface, or [`NO_VLAN`].
pub(crate) fn vlan(interface: u32) -> u16 {
    let link = Netlink::new().and_then(|netlink| netlink.link(interface));
    link.ok().and_then(|link| vlan_of(&link)).unwrap_or(NO_VLAN)
}

/// The name in the attributes of an interface.
fn name_of(link: &[u8]) -> Option<OsString> {
    let name = attribute(link, libc::IFLA_IFNAME)?.strip_suffix(b"\0")?;
    Some(OsString::from_vec(name.to_vec()))
}

/// Sends an empty datagram through an interface, even to an address of this host that another interface has.
fn ask(source: IpAddr, peer: IpAddr, interface: &OsString) -> std::io::Result<()> {
    let socket = UdpSocket::bind((source, 0))?;
    // Kernels before 5.7 permit this to privileged processes only; then the kernel selects the interface.
    let _ = setsockopt(&socket, sockopt::BindToDevice, interface);
    socket.send_to(&[], (peer, DISCARD))?;
    Ok(())
}

/// The Ethernet address of the peer with the GID `peer`, for packets from the GID `source`.
///
/// # Errors
/// `EINVAL` if the source has no interface, `EHOSTUNREACH` if there is no route, or no answer within 3 seconds.
pub(crate) fn resolve(source: &GidEntry, peer: Gid) -> Outcome<Mac> {
    let (peer, interface) = (address(peer), source.ndev_ifindex);
    if let Some(mac) = computed(peer) {
        return Ok(mac);
    }
    if interface == 0 {
        return Err(Errno::EINVAL);
    }
    let netlink = Netlink::new()?;
    let no_route = |_| Errno::EHOSTUNREACH;
    let (next, interface) = match netlink.route(peer, interface).map_err(no_route)? {
        Hop::Neighbour { address, interface } => (address, interface),
        Hop::Local => {
            let link = netlink.link(interface)?;
            let own = attribute(&link, libc::IFLA_ADDRESS).and_then(|mac| mac.try_into().ok());
            return own.ok_or(Errno::EHOSTUNREACH);
        }
    };
    let started = Instant::now();
    let mut has_asked = false;
    loop {
        if let Some(mac) = netlink.neighbour(next, interface)? {
            return Ok(mac);
        }
        if !has_asked {
            let name = name_of(&netlink.link(interface)?).ok_or(Errno::EHOSTUNREACH)?;
            ask(address(source.gid), peer, &name).map_err(|_| Errno::EHOSTUNREACH)?;
            has_asked = true;
        }
        if started.elapsed() >= TIME_LIMIT {
            return Err(Errno::EHOSTUNREACH);
        }
        std::thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn mapped(text: &str) -> Gid {
        match ip(text) {
            IpAddr::V4(ip) => Gid(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Gid(ip.octets()),
        }
    }

    fn source(text: &str, interface: u32) -> GidEntry {
        GidEntry::new(mapped(text)).ndev_ifindex(interface)
    }

    #[test]
    fn multicast_and_link_local_addresses_contain_the_ethernet_address() {
        assert_eq!(computed(ip("239.129.2.3")), Some([0x01, 0x00, 0x5e, 1, 2, 3]));
        assert_eq!(computed(ip("ff02::1:ff28:9c5a")), Some([0x33, 0x33, 0xff, 0x28, 0x9c, 0x5a]));
        assert_eq!(computed(ip("fe80::5054:ff:fe12:3456")), Some([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]));
        assert_eq!(computed(ip("10.0.0.1")), None);
        assert_eq!(computed(ip("fe80:0:0:1::1")), None, "not of the prefix fe80::/64");
        assert_eq!(computed(ip("2001:db8::1")), None);
    }

    #[test]
    fn attributes_are_found_and_damaged_ones_end_the_search() {
        let mut bytes = Vec::new();
        append(&mut bytes, 3, b"abc");
        append(&mut bytes, 0x8005, b"nested flag");
        assert_eq!(attribute(&bytes, 3), Some(&b"abc"[..]));
        assert_eq!(attribute(&bytes, 5), Some(&b"nested flag"[..]));
        assert_eq!(attribute(&bytes, 7), None);
        for cut in 0..bytes.len() {
            let _ = attribute(&bytes[..cut], 5);
        }
        assert_eq!(attribute(&[0; 64], 5), None, "an attribute of length 0");
    }

    fn route(kind: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = vec![0; RTMSG];
        message[7] = kind;
        attributes.iter().for_each(|(kind, data)| append(&mut message, *kind, data));
        message
    }

    #[test]
    fn the_next_hop_is_the_gateway_or_the_peer() {
        let peer = ip("10.0.0.1");
        let direct = route(libc::RTN_UNICAST, &[(libc::RTA_OIF, &7_u32.to_ne_bytes())]);
        assert_eq!(hop(&direct, peer, 3), Some(Hop::Neighbour { address: peer, interface: 7 }));
        let gateway = route(libc::RTN_UNICAST, &[(libc::RTA_GATEWAY, &[10, 0, 0, 254])]);
        let next = Hop::Neighbour { address: ip("10.0.0.254"), interface: 3 };
        assert_eq!(hop(&gateway, peer, 3), Some(next));
        let mut via = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        via.extend(octets(ip("fe80::1")));
        let other = route(libc::RTN_UNICAST, &[(libc::RTA_VIA, &via)]);
        assert_eq!(hop(&other, peer, 3), Some(Hop::Neighbour { address: ip("fe80::1"), interface: 3 }));
        assert_eq!(hop(&route(libc::RTN_LOCAL, &[]), peer, 3), Some(Hop::Local));
        assert_eq!(hop(&route(libc::RTN_BLACKHOLE, &[]), peer, 3), None);
        assert_eq!(hop(&[], peer, 3), None);
    }

    #[test]
    fn only_a_resolved_neighbour_has_an_address() {
        let message = |state: u16| {
            let mut bytes = vec![0; NDMSG];
            bytes[8..10].copy_from_slice(&state.to_ne_bytes());
            append(&mut bytes, libc::NDA_LLADDR, &[1, 2, 3, 4, 5, 6]);
            bytes
        };
        assert_eq!(usable(&message(libc::NUD_STALE)), Some([1, 2, 3, 4, 5, 6]));
        assert_eq!(usable(&message(libc::NUD_FAILED)), None);
        assert_eq!(usable(&message(libc::NUD_INCOMPLETE)), None);
        assert_eq!(usable(&[]), None);
    }

    #[test]
    fn the_vlan_is_in_the_attributes_of_its_kind_of_interface() {
        let link = |kind: &[u8]| {
            let (mut data, mut info, mut link) = (Vec::new(), Vec::new(), Vec::new());
            append(&mut data, IFLA_VLAN_ID, &5_u16.to_ne_bytes());
            append(&mut info, IFLA_INFO_KIND, kind);
            append(&mut info, IFLA_INFO_DATA, &data);
            append(&mut link, libc::IFLA_ADDRESS, &[0; 6]);
            append(&mut link, libc::IFLA_LINKINFO, &info);
            link
        };
        assert_eq!(vlan_of(&link(b"vlan\0")), Some(5));
        assert_eq!(vlan_of(&link(b"veth\0")), None);
        assert_eq!(vlan_of(&[]), None);
    }

    /// Interface 1 of every network namespace is `lo`.
    #[test]
    fn the_kernel_answers_for_this_host() {
        assert_eq!(vlan(1), NO_VLAN);
        assert_eq!(vlan(u32::MAX >> 1), NO_VLAN);
        assert_eq!(resolve(&source("127.0.0.1", 1), mapped("127.0.0.1")), Ok([0; 6]));
        assert_eq!(resolve(&source("127.0.0.1", 0), mapped("127.0.0.1")), Err(Errno::EINVAL));
        let nowhere = resolve(&source("127.0.0.1", u32::MAX >> 1), mapped("192.0.2.1"));
        assert_eq!(nowhere, Err(Errno::EHOSTUNREACH));
    }
}
