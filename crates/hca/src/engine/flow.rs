// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering of frames: rules over headers, and the spreading of flows over work queues by a hash (RSS).

use super::ethernet::{checksum, transport_sum};
use crate::bytes::{array, be16};
use std::collections::BTreeMap;

/// The fields of a frame's headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Destination MAC address.
    pub dmac: [u8; 6],
    /// Source MAC address.
    pub smac: [u8; 6],
    /// The type behind an 802.1Q tag.
    pub ethertype: u16,
    /// Tag control information of an 802.1Q tag.
    pub vlan: u16,
    /// Offset of the IP header.
    pub ip_at: usize,
    /// 4, 6, or 0 for none.
    pub ip_version: u8,
    /// Source address; of IPv4 the first 4 bytes.
    pub src: [u8; 16],
    /// Destination address; of IPv4 the first 4 bytes.
    pub dst: [u8; 16],
    /// DSCP and ECN.
    pub tos: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Protocol behind the IP header.
    pub proto: u8,
    /// Offset of the transport header.
    pub l4_at: usize,
    /// Source and destination port of TCP or UDP.
    pub ports: Option<(u16, u16)>,
    /// The checksum of the IP header is right.
    pub l3_ok: bool,
    /// The checksum of TCP or UDP is right.
    pub l4_ok: bool,
}

impl Headers {
    /// `None` if it is too short for a frame.
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

/// A value and which of its bits count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Masked<T> {
    pub(crate) value: T,
    pub(crate) mask: T,
}

macro_rules! matches_int {
    ($($int:ty),*) => {$(
        impl Masked<$int> {
            fn covers(self, found: $int) -> bool {
                (found ^ self.value) & self.mask == 0
            }
        }
    )*};
}
matches_int!(u8, u16);

impl<const N: usize> Masked<[u8; N]> {
    fn covers(&self, found: &[u8; N]) -> bool {
        found.iter().zip(&self.value).zip(&self.mask).all(|((f, v), m)| (f ^ v) & m == 0)
    }
}

/// A condition on one header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spec {
    Eth {
        dmac: Masked<[u8; 6]>,
        smac: Masked<[u8; 6]>,
        ethertype: Masked<u16>,
        vlan: Masked<u16>,
    },
    Ip4 {
        src: Masked<[u8; 4]>,
        dst: Masked<[u8; 4]>,
        proto: Masked<u8>,
        tos: Masked<u8>,
        ttl: Masked<u8>,
    },
    Ip6 {
        src: Masked<[u8; 16]>,
        dst: Masked<[u8; 16]>,
        next: Masked<u8>,
        tclass: Masked<u8>,
        hops: Masked<u8>,
    },
    Ports {
        proto: u8,
        src: Masked<u16>,
        dst: Masked<u16>,
    },
}

impl Spec {
    fn covers(&self, h: &Headers) -> bool {
        match self {
            Self::Eth { dmac, smac, ethertype, vlan } => {
                dmac.covers(&h.dmac)
                    && smac.covers(&h.smac)
                    && ethertype.covers(h.ethertype)
                    && vlan.covers(h.vlan)
            }
            Self::Ip4 { src, dst, proto, tos, ttl } => {
                h.ip_version == 4
                    && array(&h.src, 0).is_some_and(|a| src.covers(&a))
                    && array(&h.dst, 0).is_some_and(|a| dst.covers(&a))
                    && proto.covers(h.proto)
                    && tos.covers(h.tos)
                    && ttl.covers(h.ttl)
            }
            Self::Ip6 { src, dst, next, tclass, hops } => {
                h.ip_version == 6
                    && src.covers(&h.src)
                    && dst.covers(&h.dst)
                    && next.covers(h.proto)
                    && tclass.covers(h.tos)
                    && hops.covers(h.ttl)
            }
            Self::Ports { proto, src, dst } => {
                h.proto == *proto && h.ports.is_some_and(|(s, d)| src.covers(s) && dst.covers(d))
            }
        }
    }
}

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The QP of this number.
    Qp(u32),
    /// The work queue of this number.
    Wq(u32),
    /// A work queue of an indirection table, by a hash.
    Rss(u32),
    /// Nothing.
    Drop,
}

/// A rule.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Lower comes first.
    pub(crate) priority: u16,
    /// Only frames to a group (the multicast default).
    pub(crate) multicast: bool,
    /// Takes a copy; later rules apply, too.
    pub(crate) sniffer: bool,
    pub(crate) specs: Vec<Spec>,
    pub(crate) tag: u32,
    pub(crate) target: Target,
}

/// The result of a rule for a frame.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// The receiver of the frame.
    pub target: Target,
    /// The flow tag in its completion.
    pub tag: u32,
}

/// A hashed receiver: `IBV_RX_HASH_*`.
#[derive(Clone, Debug)]
pub struct Rss {
    /// The hashed fields, `MLX5_RX_HASH_*`.
    pub fields: u64,
    /// The key of the Toeplitz hash.
    pub key: Vec<u8>,
    /// Numbers of work queues; their count is a power of two.
    pub table: Vec<u32>,
}

/// `MLX5_RX_HASH_*`
mod field {
    pub(super) const SRC_IP: u64 = 1 | 1 << 2;
    pub(super) const DST_IP: u64 = 1 << 1 | 1 << 3;
    pub(super) const SRC_PORT: u64 = 1 << 4 | 1 << 6;
    pub(super) const DST_PORT: u64 = 1 << 5 | 1 << 7;
    pub(super) const IPV4: u64 = 0b11;
    pub(super) const IPV6: u64 = 0b1100;
    pub(super) const TCP: u64 = 0b11 << 4;
    pub(super) const UDP: u64 = 0b11 << 6;
}

impl Rss {
    /// The WQ of a flow. Frames without the hashed headers go to the first one.
    #[must_use]
    pub fn pick(&self, h: &Headers) -> Option<u32> {
        let ip = match h.ip_version {
            4 => self.fields & field::IPV4,
            6 => self.fields & field::IPV6,
            _ => 0,
        };
        let l4 = match h.proto {
            6 => self.fields & field::TCP,
            17 => self.fields & field::UDP,
            _ => 0,
        };
        let bytes = if h.ip_version == 4 { 4 } else { 16 };
        let mut input = Vec::with_capacity(36);
        if ip & field::SRC_IP != 0 {
            input.extend_from_slice(&h.src[..bytes]);
        }
        if ip & field::DST_IP != 0 {
            input.extend_from_slice(&h.dst[..bytes]);
        }
        if let Some((src, dst)) = h.ports {
            if l4 & field::SRC_PORT != 0 {
                input.extend_from_slice(&src.to_be_bytes());
            }
            if l4 & field::DST_PORT != 0 {
                input.extend_from_slice(&dst.to_be_bytes());
            }
        }
        let hash = toeplitz(&self.key, &input) as usize;
        self.table.get(hash & self.table.len().checked_sub(1)?).copied()
    }
}

/// The Toeplitz hash: for each set bit of the input, the 32 bits of the key that start there.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |i: usize| key.get(i / 8).map_or(0, |b| u32::from(b >> (7 - i % 8) & 1));
    let mut window = (0..32).fold(0, |w, i| w << 1 | bit(i));
    let mut hash = 0;
    for (i, byte) in input.iter().enumerate() {
        for j in 0..8 {
            if byte >> (7 - j) & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | bit(i * 8 + j + 32);
        }
    }
    hash
}

/// Steers frames by tables that a driver writes itself, instead of rules.
pub trait Classifier: Send + Sync + core::fmt::Debug {
    /// The receivers of a frame of `len` bytes; `own` if this port sent it.
    fn hits(&self, headers: &Headers, len: usize, own: bool) -> Vec<Hit>;
}

/// The rules of a device, and the hashed receivers.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    /// Takes the place of the rules.
    pub(crate) classifier: Option<std::sync::Arc<dyn Classifier>>,
    rules: BTreeMap<u32, Rule>,
    next: u32,
    pub(crate) rss: BTreeMap<u32, Rss>,
}

impl Steering {
    pub(crate) fn add(&mut self, rule: Rule) -> u32 {
        self.next += 1;
        self.rules.insert(self.next, rule);
        self.next
    }

    pub(crate) fn remove(&mut self, id: u32) -> bool {
        self.rules.remove(&id).is_some()
    }

    /// Whether a rule sends frames there.
    pub(crate) fn uses(&self, target: Target) -> bool {
        self.rules.values().any(|r| r.target == target)
    }

    /// The rules that take a frame: sniffers, and all of the best priority (a copy each).
    pub(crate) fn find(&self, headers: &Headers) -> Vec<Hit> {
        let covers = |rule: &&Rule| {
            (!rule.multicast || headers.dmac[0] & 1 != 0) && rule.specs.iter().all(|s| s.covers(headers))
        };
        let matching: Vec<&Rule> = self.rules.values().filter(covers).collect();
        let best = matching.iter().filter(|r| !r.sniffer).map(|r| (r.multicast, r.priority)).min();
        let taken = matching.iter().filter(|r| r.sniffer || Some((r.multicast, r.priority)) == best);
        taken.map(|r| Hit { target: r.target, tag: r.tag }).collect()
    }

    /// The queue behind a target.
    pub(crate) fn queue(&self, target: Target, headers: &Headers) -> Option<Target> {
        match target {
            Target::Rss(id) => self.rss.get(&id)?.pick(headers).map(Target::Wq),
            Target::Drop => None,
            other => Some(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_has_the_published_value() {
        // Verification suite of Microsoft's RSS: 66.9.149.187:2794 -> 161.142.100.80:1766.
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
            0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
            0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let addresses = [66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&key, &addresses), 0x323e_8fc2);
        let ports = [&addresses[..], &2794_u16.to_be_bytes(), &1766_u16.to_be_bytes()].concat();
        assert_eq!(toeplitz(&key, &ports), 0x51cc_c178);
    }
}
