// SPDX-License-Identifier: MIT OR Apache-2.0
//! The header fields that steering rules compare, in the format of the PRM.

use super::layout::{fte_match_param, fte_match_set_lyr_2_4 as lyr};
use crate::bytes::put;
use crate::engine::headers::Headers;

/// Bytes of a match (`struct mlx5_ifc_fte_match_param_bits`).
pub const MATCH: usize = 512;

/// A frame's headers as a match.
#[must_use]
pub fn match_of(h: &Headers) -> Vec<u8> {
    let mut bytes = vec![0; MATCH];
    let outer = fte_match_param::OUTER_HEADERS.bytes_mut(&mut bytes);
    put(outer, 0, &h.smac);
    put(outer, 8, &h.dmac);
    let fields = [
        (lyr::ETHERTYPE, u32::from(h.ethertype)),
        (lyr::FIRST_VID, u32::from(h.vlan & 0xfff)),
        (lyr::CVLAN_TAG, u32::from(h.ip_at == 18)),
        (lyr::IP_VERSION, u32::from(h.ip_version)),
        (lyr::IP_PROTOCOL, u32::from(h.proto)),
        (lyr::IP_DSCP, u32::from(h.tos >> 2)),
        (lyr::IP_ECN, u32::from(h.tos & 3)),
        (lyr::TTL_HOPLIMIT, u32::from(h.ttl)),
    ];
    for (field, value) in fields {
        field.set(outer, value);
    }
    if let Some((source, destination)) = h.ports {
        let (s, d) =
            if h.proto == 6 { (lyr::TCP_SPORT, lyr::TCP_DPORT) } else { (lyr::UDP_SPORT, lyr::UDP_DPORT) };
        s.set(outer, source);
        d.set(outer, destination);
    }
    // An IPv4 address is in the last four of the sixteen bytes.
    let (skip, len) = if h.ip_version == 4 { (12, 4) } else { (0, 16) };
    put(lyr::SRC_IPV4_SRC_IPV6.bytes_mut(outer), skip, &h.src[..len]);
    put(lyr::DST_IPV4_DST_IPV6.bytes_mut(outer), skip, &h.dst[..len]);
    bytes
}
