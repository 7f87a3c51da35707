// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packets of the model as they are on the wire, for a capture file.
//!
//! The model's packets have the fields of the real headers, but no headers: in process nothing is encoded. The addresses are those of the
//! QP's address vector; where a packet has none, they are those of the two ports. DC has no public format: its packets are shown with
//! the opcodes of RC, and the comment names it.

use crate::engine::datagram::mapped;
use crate::engine::packet::{Atomic, Body, Nak, Packet, Path, Transport};
use uverbs_fabric::Captured;
use uverbs_fabric::net::Address;
use uverbs_roce::capture::LinkType;
use uverbs_roce::frame::{Ethernet, Frame, Grh, Infiniband, Ipv4, Link, Net};
use uverbs_roce::opcode::{Opcode, Operation, Service};
use uverbs_roce::transport as wire;

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
    let frame = Frame { link, packet: transport_packet(packet)? };
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

/// The transport packet.
fn transport_packet(packet: &Packet) -> Option<wire::Packet> {
    let Packet { transport, src_qpn, dest_qpn, psn, ack, solicited, srqn, msn, body, .. } = packet;
    let service = match transport {
        Transport::Rc | Transport::Dc => Service::Rc,
        Transport::Uc => Service::Uc,
        Transport::Ud => Service::Ud,
        Transport::Xrc => Service::Xrc,
        Transport::Ethernet => return None,
    };
    let operation = operation(body)?;
    let opcode = Opcode::new(service, operation)?;
    let mut headers = headers(body, *msn);
    if opcode.extended().xrceth {
        headers.xrc_srqn = Some(*srqn);
    }
    if let Some(deth) = &mut headers.deth {
        deth.src_qpn = *src_qpn;
    }
    let payload = match body {
        Body::Send { data, .. }
        | Body::Write { data, .. }
        | Body::ReadResponse { data, .. }
        | Body::Datagram { data, .. } => data.clone(),
        _ => Vec::new(),
    };
    let bth = wire::Bth {
        solicited: *solicited,
        dest_qpn: *dest_qpn,
        ack_req: *ack,
        psn: *psn,
        ..wire::Bth::new(opcode)
    };
    Some(wire::Packet { bth, headers, payload })
}

/// The operation of a packet's opcode.
fn operation(body: &Body) -> Option<Operation> {
    use Operation as O;
    Some(match body {
        Body::Send { first, last, imm, invalidate, .. } => match (first, last, imm, invalidate) {
            (true, false, ..) => O::SendFirst,
            (false, false, ..) => O::SendMiddle,
            (false, true, Some(_), _) => O::SendLastImm,
            (false, true, _, Some(_)) => O::SendLastInv,
            (false, true, ..) => O::SendLast,
            (true, true, Some(_), _) => O::SendOnlyImm,
            (true, true, _, Some(_)) => O::SendOnlyInv,
            (true, true, ..) => O::SendOnly,
        },
        Body::Write { start, last, imm, .. } => match (start.is_some(), last, imm) {
            (true, false, _) => O::WriteFirst,
            (false, false, _) => O::WriteMiddle,
            (false, true, Some(_)) => O::WriteLastImm,
            (false, true, None) => O::WriteLast,
            (true, true, Some(_)) => O::WriteOnlyImm,
            (true, true, None) => O::WriteOnly,
        },
        Body::Read { .. } => O::ReadRequest,
        Body::Atomic { op: Atomic::CmpSwap { .. }, .. } => O::CmpSwap,
        Body::Atomic { op: Atomic::FetchAdd(_), .. } => O::FetchAdd,
        Body::ReadResponse { first, last, .. } => match (first, last) {
            (true, false) => O::ReadFirst,
            (false, false) => O::ReadMiddle,
            (false, true) => O::ReadLast,
            (true, true) => O::ReadOnly,
        },
        Body::AtomicResponse(_) => O::AtomicAck,
        Body::Ack | Body::Nak(_) | Body::Rnr(_) => O::Ack,
        Body::Datagram { imm, .. } => {
            if imm.is_some() {
                O::SendOnlyImm
            } else {
                O::SendOnly
            }
        }
        Body::Frame(_) => return None,
    })
}

/// The extended headers. That of datagrams has no sender yet.
fn headers(body: &Body, msn: u32) -> wire::Headers {
    let none = wire::Headers::default();
    let aeth = |syndrome| Some(wire::Aeth { syndrome, msn });
    let acknowledged = aeth(wire::Syndrome::NO_CREDITS);
    match *body {
        Body::Send { last, imm, invalidate, .. } => {
            let imm = imm.filter(|_| last);
            wire::Headers { imm, ieth: invalidate.filter(|_| last && imm.is_none()), ..none }
        }
        Body::Write { start, last, imm, .. } => {
            let reth = start.map(|(addr, rkey, len)| wire::Reth { addr, rkey, len });
            wire::Headers { reth, imm: imm.filter(|_| last), ..none }
        }
        Body::Read { addr, rkey, len } => {
            wire::Headers { reth: Some(wire::Reth { addr, rkey, len }), ..none }
        }
        Body::Atomic { addr, rkey, op } => {
            let (swap_add, compare) = match op {
                Atomic::CmpSwap { compare, swap } => (swap, compare),
                Atomic::FetchAdd(add) => (add, 0),
            };
            wire::Headers { atomic: Some(wire::AtomicEth { addr, rkey, swap_add, compare }), ..none }
        }
        // A middle response has no header.
        Body::ReadResponse { first, last, .. } => {
            wire::Headers { aeth: acknowledged.filter(|_| first || last), ..none }
        }
        Body::AtomicResponse(value) => wire::Headers { aeth: acknowledged, atomic_ack: Some(value), ..none },
        Body::Ack => wire::Headers { aeth: acknowledged, ..none },
        Body::Nak(nak) => {
            let nak = match nak {
                Nak::Sequence => wire::Nak::Sequence,
                Nak::Invalid => wire::Nak::Invalid,
                Nak::Access => wire::Nak::Access,
                Nak::Operation => wire::Nak::Operation,
            };
            wire::Headers { aeth: aeth(wire::Syndrome::Nak(nak)), ..none }
        }
        Body::Rnr(timer) => wire::Headers { aeth: aeth(wire::Syndrome::Rnr(timer & 31)), ..none },
        Body::Datagram { qkey, imm, .. } => {
            wire::Headers { deth: Some(wire::Deth { qkey, src_qpn: 0 }), imm, ..none }
        }
        Body::Frame(_) => none,
    }
}
