// SPDX-License-Identifier: MIT OR Apache-2.0
//! RoCE version 2 by a UDP socket: the bytes of a datagram, whose IP and UDP headers the kernel makes and removes.
//!
//! The ICRC covers these headers, except the fields that a router changes. A program knows all of the others but one: the identification
//! of an IPv4 packet. Linux sends 0 from a socket that is not connected and whose packets must not be fragmented (`IP_MTU_DISCOVER`:
//! `ip_select_ident_segs()` in include/net/ip.h); [`encode`] expects this. Other senders use other numbers: Linux' rxe counts
//! (`prepare_ipv4_hdr()` in drivers/infiniband/sw/rxe/rxe_net.c). Because a CRC is linear, [`decode`] computes the number that fits the
//! ICRC. So the ICRC of a packet with another identification than 0 detects fewer errors: all but 1 of 2^16 instead of 2^32.

use crate::frame::{BTH_LEN, Grh, ICRC_LEN, Ipv4, Net, UDP_LEN};
use crate::transport::Packet;
use crate::{Error, Result, crc};

/// Bytes of a datagram beside the payload at most.
pub const OVERHEAD: usize = 64;
/// What has the identification of an IPv4 packet behind it: flags, hops, protocol, checksum, addresses.
const AFTER_IDENTIFICATION: usize = 14;

/// The headers of a datagram between two addresses of one version: IPv4 addresses are in GIDs as IPv4-mapped IPv6 addresses.
#[must_use]
pub fn route(grh: &Grh, source_port: u16) -> Net {
    let v4 = |gid: &[u8; 16]| match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, address @ ..] => Some(*address),
        _ => None,
    };
    match (v4(&grh.sgid), v4(&grh.dgid)) {
        (Some(source), Some(destination)) => {
            Net::V4(Ipv4 { source, destination, tos: grh.tclass, ttl: grh.hop_limit }, source_port)
        }
        _ => Net::V6(*grh, source_port),
    }
}

/// The bytes of the datagram: from the base transport header to the ICRC.
///
/// # Errors
/// Those of [`Packet::encode`]; the packet is too long for the length of a header; the network header is that of RoCE version 1.
pub fn encode(net: &Net, packet: &Packet) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(packet.payload.len() + OVERHEAD + ICRC_LEN);
    packet.encode(&mut bytes)?;
    seal(net, bytes)
}

/// Appends the ICRC to the bytes of a transport packet, which may be any: [`Packet::decode`] may refuse them.
///
/// # Errors
/// There are fewer bytes than in a base transport header, or too many for the length of a header; the network header is that of RoCE
/// version 1.
pub fn seal(net: &Net, mut transport: Vec<u8>) -> Result<Vec<u8>> {
    if transport.len() < BTH_LEN {
        return Err(Error::Short("BTH"));
    }
    let icrc = net.icrc(&headers(net, transport.len())?, &transport);
    transport.extend(icrc.to_le_bytes());
    Ok(transport)
}

/// The transport packet of a datagram with these headers.
///
/// # Errors
/// The bytes are cut, have a wrong ICRC, or a header has a field that is not known.
pub fn decode(net: &Net, bytes: &[u8]) -> Result<Packet> {
    let (transport, icrc) = bytes.split_last_chunk().ok_or(Error::Short("ICRC"))?;
    if transport.len() < BTH_LEN {
        return Err(Error::Short("BTH"));
    }
    let (found, expected) = (u32::from_le_bytes(*icrc), net.icrc(&headers(net, transport.len())?, transport));
    let fits = |after: usize| {
        u16::try_from(after).is_ok_and(|after| crc::two_bytes(found ^ expected, after).is_some())
    };
    let is_right = match net {
        _ if found == expected => true,
        Net::V4(..) => fits(AFTER_IDENTIFICATION + UDP_LEN + transport.len()),
        Net::V6(..) | Net::Grh(_) => false,
    };
    if !is_right {
        return Err(Error::Crc { name: "ICRC", found, expected });
    }
    Packet::decode(transport)
}

/// The headers of a packet of this length.
fn headers(net: &Net, len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(OVERHEAD);
    match net {
        Net::Grh(_) => Err(Error::Headers(0)),
        Net::V4(..) | Net::V6(..) => net.encode(len + ICRC_LEN, &mut bytes).map(|()| bytes),
    }
}
