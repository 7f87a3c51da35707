// SPDX-License-Identifier: MIT OR Apache-2.0
//! The offloads of sends on raw packet queues: checksums and segmentation.

use super::checksum::{checksum, transport_sum};
use super::headers::Headers;
use crate::bytes::{be16, be32, put};
use crate::decode::Eth;

/// Fills in the checksums that the WQE requests.
pub(super) fn fill_checksums(frame: &mut [u8], eth: &Eth) {
    let Some(headers) = Headers::parse(frame) else { return };
    let ip = headers.ip_at;
    if eth.l3_csum && headers.ip_version == 4 {
        put(frame, ip + 10, &[0; 2]);
        let header = frame.get(ip..headers.l4_at).map(checksum);
        if let Some(sum) = header {
            put(frame, ip + 10, &sum.to_be_bytes());
        }
    }
    let field = match headers.proto {
        6 => 16,
        17 => 6,
        _ => return,
    };
    if eth.l4_csum && headers.ip_version != 0 {
        let at = headers.l4_at + field;
        put(frame, at, &[0; 2]);
        let (Some(header), Some(segment)) = (frame.get(ip..), frame.get(headers.l4_at..)) else { return };
        let sum = !transport_sum(header, headers.ip_version, headers.proto, segment);
        // A UDP checksum of 0 means that there is none.
        let sum = if sum == 0 && headers.proto == 17 { 0xffff } else { sum };
        put(frame, at, &sum.to_be_bytes());
    }
}

/// A part of a large send.
pub(super) struct Part {
    /// Its index.
    pub(super) index: u64,
    /// The bytes of data in front of it.
    pub(super) offset: u64,
    pub(super) is_last: bool,
}

/// The frame of a part of a large send, with its lengths, identification, sequence number and TCP flags.
pub(super) fn segment(header: &[u8], parsed: Option<&Headers>, data: &[u8], part: &Part) -> Vec<u8> {
    let mut frame = [header, data].concat();
    let Some(h) = parsed else { return frame };
    let total = frame.len();
    let len = |from: usize| ((total - from.min(total)) as u16).to_be_bytes();
    match h.ip_version {
        4 => {
            put(&mut frame, h.ip_at + 2, &len(h.ip_at));
            let id = be16(header, h.ip_at + 4).wrapping_add(part.index as u16);
            put(&mut frame, h.ip_at + 4, &id.to_be_bytes());
        }
        6 => put(&mut frame, h.ip_at + 4, &len(h.ip_at + 40)),
        _ => {}
    }
    if h.proto == 6 && h.ip_version != 0 {
        let sequence = be32(header, h.l4_at + 4).wrapping_add(part.offset as u32);
        put(&mut frame, h.l4_at + 4, &sequence.to_be_bytes());
        let mut flags = header.get(h.l4_at + 13).copied().unwrap_or(0);
        if !part.is_last {
            // Only the last segment has FIN and PSH.
            flags &= !0x09;
        }
        if part.index > 0 {
            // Only the first segment has CWR.
            flags &= !0x80;
        }
        put(&mut frame, h.l4_at + 13, &[flags]);
    } else if h.proto == 17 && h.ip_version != 0 {
        put(&mut frame, h.l4_at + 4, &len(h.l4_at));
    }
    frame
}
