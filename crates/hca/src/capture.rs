// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packets of the model as they are on the wire, for a capture file.
//!
//! The model's packets have the fields of the real headers, but no headers: in process nothing is encoded. The addresses are those of the
//! QP's address vector; where a packet has none, they are those of the two ports. DC has no public format: its packets are shown with
//! the opcodes of RC, and the comment names it.

use crate::engine::datagram::mapped;
use crate::engine::packet::{Body, Packet, Path, Transport};
use crate::roce;
use uverbs_fabric::Captured;
use uverbs_fabric::net::Address;
use uverbs_roce::capture::LinkType;
use uverbs_roce::frame::{Ethernet, Frame, Grh, Infiniband, Ipv4, Link, Net};

/// The first byte of the addresses of groups.
const MULTICAST: u8 = 0xff;
/// The hops of a packet without an address vector.
const HOPS: u8 = 64;
/// The first source port of RoCE; the others are derived from the QP numbers, as hardware does without a flow label.
const FIRST_PORT: u16 = 0xc000;

/// The packet on the wire between two ports.
pub(crate) fn captured(packet: &Packet, from: &Address, to: &Address) -> Option<Captured> {
    let Packet { src_qpn, transport, .. } = packet;
    let kind = match transport {
        Transport::Dc => "DC, ",
        _ => "",
    };
    let comment = format!("{kind}from QP {src_qpn:#08x} of port {} to port {}", from.number, to.number);
    if let Body::Frame(bytes) = &packet.body {
        return Some(Captured { link: LinkType::Ethernet, bytes: bytes.clone(), comment });
    }
    let (link, kind) = match from.ethernet {
        true => (Link::Ethernet(ethernet(packet, from, to)), LinkType::Ethernet),
        false => (Link::Infiniband(infiniband(packet, from, to)), LinkType::Infiniband),
    };
    let mut shown = roce::transport_packet(packet)?;
    shown.payload = packet.body.data().cloned().unwrap_or_default();
    let frame = Frame { link, packet: shown };
    let bytes = frame
        .encode()
        .inspect_err(|error| log::warn!("a packet is not captured: {error}; {comment}"))
        .ok()?;
    Some(Captured { link: kind, bytes, comment })
}

/// The route of a packet: its own, or from the last version 2 address of one port to that of the other.
fn route(packet: &Packet, from: &Address, to: &Address) -> (Grh, bool) {
    if let Some(grh) = &packet.path.grh {
        let flow_label = grh.flow_label & 0xf_ffff;
        let (tclass, hop_limit) = (grh.tclass, grh.hop_limit);
        return (Grh { sgid: grh.sgid, dgid: grh.dgid, tclass, flow_label, hop_limit }, grh.ip);
    }
    let last = |port: &Address| {
        port.gids.iter().rfind(|(_, v2)| *v2 == port.ethernet).map_or([0; 16], |(gid, _)| *gid)
    };
    (Grh { sgid: last(from), dgid: last(to), tclass: 0, flow_label: 0, hop_limit: HOPS }, from.ethernet)
}

fn ethernet(packet: &Packet, from: &Address, to: &Address) -> Ethernet {
    let (grh, is_ip) = route(packet, from, to);
    let port = FIRST_PORT | ((packet.src_qpn ^ packet.dest_qpn) & 0x3fff) as u16;
    let v4 = |gid: [u8; 16]| [gid[12], gid[13], gid[14], gid[15]];
    let net = match is_ip {
        true if mapped(&grh.sgid) && mapped(&grh.dgid) => {
            let (source, destination) = (v4(grh.sgid), v4(grh.dgid));
            Net::V4(Ipv4 { source, destination, tos: grh.tclass, ttl: grh.hop_limit }, port)
        }
        true => Net::V6(grh, port),
        false => Net::Grh(grh),
    };
    let destination = match grh.dgid[0] {
        // The address of an IPv6 group (RFC 2464, section 7).
        MULTICAST => {
            let [.., a, b, c, d] = grh.dgid;
            [0x33, 0x33, a, b, c, d]
        }
        _ => to.mac,
    };
    Ethernet { source: from.mac, destination, vlan: None, net }
}

fn infiniband(packet: &Packet, from: &Address, to: &Address) -> Infiniband {
    let Path { slid, sl, grh, .. } = &packet.path;
    let slid = if *slid == 0 { from.lid } else { *slid };
    let grh = grh.as_ref().map(|_| route(packet, from, to).0);
    Infiniband { slid, dlid: to.lid, sl: sl & 15, vl: 0, grh }
}
