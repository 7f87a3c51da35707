// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checksums of IP, TCP and UDP.

use crate::bytes::be16;

/// One's complement sum of 16-bit words, complemented (RFC 1071).
pub(super) fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

pub(super) fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |b| u32::from(*b) << 8);
    words.map(|w| u32::from(be16(w, 0))).sum::<u32>() + odd
}

pub(super) fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum of TCP or UDP over `segment`, with the current value of its checksum field, and the pseudo header.
pub(super) fn transport_sum(ip: &[u8], version: u8, proto: u8, segment: &[u8]) -> u16 {
    let addresses = if version == 4 { ip.get(12..20) } else { ip.get(8..40) };
    let len = segment.len() as u32;
    let pseudo = sum(addresses.unwrap_or_default()) + u32::from(proto) + (len >> 16) + (len & 0xffff);
    let folded = u32::from(fold(pseudo));
    fold(folded + u32::from(fold(sum(segment))))
}
