// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering of frames: rules over headers.

use super::headers::Headers;
use super::rss::Rss;
use super::table::Users;
use crate::bytes::array;
use crate::prm::criteria::match_of;
use uverbs_fabric::map::{Key, Map};

/// A value, and a mask of the bits that are compared.
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
    /// All header fields in the format of the PRM.
    Match {
        mask: Vec<u8>,
        value: Vec<u8>,
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
            Self::Match { mask, value } => {
                let found = match_of(h);
                found.iter().zip(value).zip(mask).all(|((f, v), m)| (f ^ v) & m == 0)
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

impl Key for Target {
    const BITS: u32 = 34;

    fn number(self) -> u128 {
        match self {
            Self::Qp(qpn) => (0_u16, qpn),
            Self::Wq(rqn) => (1, rqn),
            Self::Rss(id) => (2, id),
            Self::Drop => (3, 0),
        }
        .number()
    }

    fn of(number: u128) -> Self {
        let (kind, id) = <(u16, u32)>::of(number);
        match kind & 3 {
            0 => Self::Qp(id),
            1 => Self::Wq(id),
            2 => Self::Rss(id),
            _ => Self::Drop,
        }
    }
}

/// A rule.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// The priority: lower numbers come first.
    pub(crate) priority: u16,
    /// Only frames to a group (the multicast default).
    pub(crate) multicast: bool,
    /// A sniffer: it gets a copy, and later rules apply, too.
    pub(crate) sniffer: bool,
    pub(crate) specs: Vec<Spec>,
    pub(crate) tag: u32,
    pub(crate) target: Target,
    /// The number of its set of counters.
    pub(crate) counters: Option<u32>,
}

/// The result of a rule for a frame.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// The receiver of the frame.
    pub target: Target,
    /// The flow tag in its completion.
    pub tag: u32,
}

/// Steers frames by tables that a driver writes itself, instead of rules.
pub trait Classifier: Send + Sync + core::fmt::Debug {
    /// The receivers of a frame of `len` bytes; `own` if this port sent it.
    fn hits(&self, headers: &Headers, len: usize, own: bool) -> Vec<Hit>;
}

/// The numbers of frames and bytes that matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// The rules of a device, and the hashed receivers.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    /// If set, it is used instead of the rules.
    pub(crate) classifier: Option<std::sync::Arc<dyn Classifier>>,
    rules: Map<u32, Rule>,
    /// The rules of each destination.
    targets: Users<Target>,
    next: u32,
    pub(crate) rss: Map<u32, Rss>,
    /// Counters by their number.
    pub(crate) counters: Map<u32, Counted>,
}

impl Steering {
    pub(crate) fn add(&mut self, rule: Rule) -> u32 {
        self.next += 1;
        self.targets.add(rule.target);
        self.rules.insert(self.next, rule);
        self.next
    }

    pub(crate) fn remove(&mut self, id: u32) -> bool {
        let removed = self.rules.remove(&id);
        removed.iter().for_each(|rule| self.targets.remove(&rule.target));
        removed.is_some()
    }

    /// Whether a rule has this destination.
    pub(crate) fn uses(&self, target: Target) -> bool {
        self.targets.has(&target)
    }

    /// The rules that get a frame of `len` bytes: sniffers, and all matching rules of the best priority. Updates their
    /// counters.
    pub(crate) fn find(&mut self, headers: &Headers, len: usize) -> Vec<Hit> {
        let covers = |rule: &&Rule| {
            (!rule.multicast || headers.dmac[0] & 1 != 0) && rule.specs.iter().all(|s| s.covers(headers))
        };
        let matching: Vec<&Rule> = self.rules.values().filter(covers).collect();
        let best = matching.iter().filter(|r| !r.sniffer).map(|r| (r.multicast, r.priority)).min();
        let taken = matching.iter().filter(|r| r.sniffer || Some((r.multicast, r.priority)) == best);
        let mut hits = Vec::new();
        for rule in taken {
            if let Some(counted) = rule.counters.and_then(|number| self.counters.get_mut(&number)) {
                counted.packets += 1;
                counted.bytes += len as u64;
            }
            hits.push(Hit { target: rule.target, tag: rule.tag });
        }
        hits
    }

    /// The queue of a destination.
    pub(crate) fn queue(&self, target: Target, headers: &Headers) -> Option<Target> {
        match target {
            Target::Rss(id) => self.rss.get(&id)?.pick(headers).map(Target::Wq),
            Target::Drop => None,
            other => Some(other),
        }
    }
}
