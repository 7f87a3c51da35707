// SPDX-License-Identifier: MIT OR Apache-2.0
//! The headers of a frame.

use super::checksum::{checksum, transport_sum};
use crate::bytes::{array, be16};

/// The fields of a frame's headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Destination MAC address.
    pub dmac: [u8; 6],
    /// Source MAC address.
    pub smac: [u8; 6],
    /// The Ethernet type, behind a VLAN tag if there is one.
    pub ethertype: u16,
    /// Tag control information of an 802.1Q tag.
    pub vlan: u16,
    /// Offset of the IP header.
    pub ip_at: usize,
    /// IP version: 4, 6, or 0 for none.
    pub ip_version: u8,
    /// Source address; of IPv4 the first 4 bytes.
    pub src: [u8; 16],
    /// Destination address; of IPv4 the first 4 bytes.
    pub dst: [u8; 16],
    /// DSCP and ECN.
    pub tos: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// The protocol of the IP payload.
    pub proto: u8,
    /// Offset of the transport header.
    pub l4_at: usize,
    /// Source and destination port of TCP or UDP.
    pub ports: Option<(u16, u16)>,
    /// The checksum of the IP header is correct.
    pub l3_ok: bool,
    /// The checksum of TCP or UDP is correct.
    pub l4_ok: bool,
}

impl Headers {
    /// Parses a frame; `None` if it is too short.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let mut h = Self {
            dmac: array(frame, 0)?,
            smac: array(frame, 6)?,
            ethertype: be16(frame, 12),
            ..Self::default()
        };
        frame.get(13)?;
        h.ip_at = 14;
        if h.ethertype == 0x8100 {
            h.vlan = be16(frame, 14);
            h.ethertype = be16(frame, 16);
            h.ip_at = 18;
        }
        let ip = frame.get(h.ip_at..).unwrap_or_default();
        let fragment = match (h.ethertype, ip.first().map(|b| b >> 4)) {
            (0x0800, Some(4)) if ip.len() >= 20 => {
                let header = usize::from(ip[0] & 0xf) * 4;
                h.ip_version = 4;
                (h.tos, h.ttl, h.proto) = (ip[1], ip[8], ip[9]);
                h.src[..4].copy_from_slice(&ip[12..16]);
                h.dst[..4].copy_from_slice(&ip[16..20]);
                h.l4_at = h.ip_at + header;
                h.l3_ok = header >= 20 && ip.get(..header).is_some_and(|b| checksum(b) == 0);
                be16(ip, 6) & 0x3fff != 0
            }
            (0x86dd, Some(6)) if ip.len() >= 40 => {
                h.ip_version = 6;
                h.tos = (be16(ip, 0) >> 4) as u8;
                (h.proto, h.ttl) = (ip[6], ip[7]);
                h.src.copy_from_slice(&ip[8..24]);
                h.dst.copy_from_slice(&ip[24..40]);
                h.l4_at = h.ip_at + 40;
                h.l3_ok = true;
                false
            }
            _ => return Some(h),
        };
        let l4 = frame.get(h.l4_at..).unwrap_or_default();
        if !fragment && matches!(h.proto, 6 | 17) && l4.len() >= 8 {
            h.ports = Some((be16(l4, 0), be16(l4, 2)));
            // Padding after the IP packet does not belong to the segment.
            let len = match h.ip_version {
                4 => usize::from(be16(ip, 2)).saturating_sub(h.l4_at - h.ip_at),
                _ => usize::from(be16(ip, 4)),
            };
            let segment = l4.get(..len).unwrap_or(l4);
            let none = h.proto == 17 && h.ip_version == 4 && be16(l4, 6) == 0;
            h.l4_ok = none || transport_sum(ip, h.ip_version, h.proto, segment) == 0xffff;
        }
        Some(h)
    }
}
