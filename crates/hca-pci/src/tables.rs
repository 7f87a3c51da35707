// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flow tables of an Ethernet port, through which frames go: tables with groups of one mask each and entries of one value
//! each, from the root on; the targets that they lead to; and counters.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use uverbs_hca::front::{Classifier, Headers, Hit, Rss, Target};
use uverbs_hca::prm::criteria::match_of;

/// The limits of a frame's path: tables in sequence, and tables in total. Without them, tables that form a cycle would
/// be followed endlessly.
const MAX_DEPTH: usize = 64;
const MAX_VISITS: usize = 1024;

/// `FS_FT_NIC_RX`, `FS_FT_NIC_TX`
pub(crate) const RECEIVE: u64 = 0;
pub(crate) const TRANSMIT: u64 = 1;

/// `MLX5_FLOW_CONTEXT_ACTION_*`
pub(crate) mod action {
    pub(crate) const DROP: u32 = 0x2;
    pub(crate) const FORWARD: u32 = 0x4;
    pub(crate) const COUNT: u32 = 0x8;
    pub(crate) const KNOWN: u32 = 0xf;
}

/// The destination of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Table(u32),
    Tir(u32),
}

/// Entries with a common mask, by range of index.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) mask: Vec<u8>,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// An entry: the frames that it matches, and its actions.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) group: u32,
    pub(crate) value: Vec<u8>,
    pub(crate) tag: u32,
    pub(crate) action: u32,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) counters: Vec<u32>,
}

/// A flow table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) kind: u64,
    /// The table for a frame that matches no entry.
    pub(crate) miss: Option<u32>,
    pub(crate) groups: BTreeMap<u32, Group>,
    /// The entries by index. A frame uses the matching entry with the lowest index.
    pub(crate) entries: BTreeMap<u32, Entry>,
}

/// A target of flows.
#[derive(Clone, Debug)]
pub(crate) struct Tir {
    pub(crate) to: Where,
    /// Frames of this port to itself that are dropped: unicast (bit 0), multicast (bit 1).
    pub(crate) blocks_own: u32,
}

/// The destination of a target.
#[derive(Clone, Debug)]
pub(crate) enum Where {
    Queue(u32),
    /// The queues of a table by a hash over these fields with this key.
    Hash {
        table: u32,
        fields: u64,
        key: Vec<u8>,
    },
}

/// The result of a frame's path through the tables.
#[derive(Debug, Default)]
struct Walk {
    visits: usize,
    /// The targets, with the tags of the entries that name them.
    tirs: Vec<(u32, u32)>,
}

/// All objects that steer frames.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) tables: BTreeMap<u32, Table>,
    pub(crate) root: Option<u32>,
    pub(crate) tirs: BTreeMap<u32, Tir>,
    pub(crate) queue_tables: BTreeMap<u32, Vec<u32>>,
    /// Packets and bytes.
    pub(crate) counters: BTreeMap<u32, (u64, u64)>,
    next: u32,
}

impl State {
    /// A number that no object here has.
    pub(crate) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Whether a target or a table of queues names this queue.
    pub(crate) fn uses_queue(&self, rqn: u32) -> bool {
        self.tirs.values().any(|tir| matches!(tir.to, Where::Queue(n) if n == rqn))
            || self.queue_tables.values().any(|list| list.contains(&rqn))
    }

    /// Whether an entry leads to this target.
    pub(crate) fn uses_tir(&self, tirn: u32) -> bool {
        let leads = |e: &Entry| e.destinations.contains(&Destination::Tir(tirn));
        self.tables.values().any(|t| t.entries.values().any(leads))
    }

    fn collect(&mut self, table: u32, packet: &[u8], len: usize, depth: usize, walk: &mut Walk) {
        walk.visits += 1;
        if depth >= MAX_DEPTH || walk.visits > MAX_VISITS {
            return;
        }
        let Some(found) = self.tables.get(&table) else { return };
        let takes = |e: &&Entry| {
            let mask = found.groups.get(&e.group).map_or(&[][..], |g| &g.mask);
            packet.iter().zip(mask).zip(&e.value).all(|((p, m), v)| (p ^ v) & m == 0)
        };
        let Some(entry) = found.entries.values().find(takes) else {
            if let Some(miss) = found.miss {
                self.collect(miss, packet, len, depth + 1, walk);
            }
            return;
        };
        let (tag, action) = (entry.tag, entry.action);
        let (destinations, counters) = (entry.destinations.clone(), entry.counters.clone());
        if action & action::COUNT != 0 {
            for counter in counters {
                if let Some((packets, bytes)) = self.counters.get_mut(&counter) {
                    (*packets, *bytes) = (*packets + 1, *bytes + len as u64);
                }
            }
        }
        if action & action::DROP != 0 {
            return;
        }
        for destination in destinations {
            match destination {
                Destination::Table(next) => self.collect(next, packet, len, depth + 1, walk),
                Destination::Tir(tirn) => walk.tirs.push((tirn, tag)),
            }
        }
    }

    fn resolve(&self, tirn: u32, h: &Headers, own: bool) -> Option<Target> {
        let tir = self.tirs.get(&tirn)?;
        let block = if h.dmac[0] & 1 == 0 { 1 } else { 2 };
        if own && tir.blocks_own & block != 0 {
            return None;
        }
        match &tir.to {
            Where::Queue(rqn) => Some(Target::Wq(*rqn)),
            Where::Hash { table, fields, key } => {
                let table = self.queue_tables.get(table)?.clone();
                Rss { fields: *fields, key: key.clone(), table }.pick(h).map(Target::Wq)
            }
        }
    }
}

/// The tables as the engine's classifier.
#[derive(Debug, Default)]
pub(crate) struct Tables(Mutex<State>);

impl Tables {
    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Classifier for Tables {
    fn hits(&self, headers: &Headers, len: usize, own: bool) -> Vec<Hit> {
        let mut state = self.state();
        let Some(root) = state.root else { return Vec::new() };
        let mut walk = Walk::default();
        state.collect(root, &match_of(headers), len, 0, &mut walk);
        let hit = |(tirn, tag)| Some(Hit { target: state.resolve(tirn, headers, own)?, tag });
        walk.tirs.into_iter().filter_map(hit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{fte_match_param, fte_match_set_lyr_2_4 as lyr};
    use uverbs_hca::prm::criteria::MATCH;

    /// An IPv4 UDP frame from port 7 to this one.
    fn frame(port: u16) -> Headers {
        Headers {
            dmac: [2, 0, 0, 0, 0, 1],
            smac: [2, 0, 0, 0, 0, 2],
            ethertype: 0x0800,
            ip_at: 14,
            ip_version: 4,
            proto: 17,
            ports: Some((7, port)),
            ..Headers::default()
        }
    }

    fn table(miss: Option<u32>) -> Table {
        Table { kind: RECEIVE, miss, groups: BTreeMap::new(), entries: BTreeMap::new() }
    }

    /// A group that matches the UDP destination port, and an entry for one.
    fn entry(table: &mut Table, index: u32, port: u16, action: u32, destinations: Vec<Destination>) {
        let field = |value: u16| {
            let mut bytes = vec![0; MATCH];
            lyr::UDP_DPORT.set(fte_match_param::OUTER_HEADERS.bytes_mut(&mut bytes), value);
            bytes
        };
        table.groups.entry(1).or_insert_with(|| Group { mask: field(u16::MAX), start: 0, end: 9 });
        let counters = vec![5];
        let entry = Entry { group: 1, value: field(port), tag: index, action, destinations, counters };
        table.entries.insert(index, entry);
    }

    #[test]
    fn frames_follow_the_first_matching_entry() {
        let tables = Tables::default();
        {
            let mut state = tables.state();
            let (mut first, mut second) = (table(Some(2)), table(None));
            entry(&mut first, 0, 80, action::DROP | action::COUNT, vec![]);
            entry(&mut first, 1, 90, action::FORWARD, vec![Destination::Table(2)]);
            entry(&mut second, 3, 90, action::FORWARD | action::COUNT, vec![Destination::Tir(4)]);
            entry(&mut second, 4, 91, action::FORWARD, vec![Destination::Tir(4), Destination::Tir(99)]);
            state.tables.extend([(1, first), (2, second)]);
            state.counters.insert(5, (0, 0));
            state.tirs.insert(4, Tir { to: Where::Queue(77), blocks_own: 1 });
        }
        let hits = |port, own| -> Vec<(Target, u32)> {
            tables.hits(&frame(port), 100, own).iter().map(|hit| (hit.target, hit.tag)).collect()
        };
        assert!(hits(90, false).is_empty(), "no root yet");
        tables.state().root = Some(1);
        assert!(hits(80, false).is_empty(), "dropped");
        assert_eq!(hits(90, false), [(Target::Wq(77), 3)], "by the second table");
        assert_eq!(
            hits(91, false),
            [(Target::Wq(77), 4)],
            "by the table for misses; a missing target receives nothing"
        );
        assert!(hits(91, true).is_empty(), "its own frames do not match");
        assert!(hits(92, false).is_empty(), "frames for other addresses");
        assert_eq!(tables.state().counters[&5], (2, 200));
    }

    #[test]
    fn circular_tables_do_not_loop_without_end() {
        let tables = Tables::default();
        {
            let mut state = tables.state();
            let mut first = table(None);
            entry(&mut first, 0, 80, action::FORWARD, vec![Destination::Table(1); 256]);
            state.tables.extend([(1, first), (2, table(Some(2)))]);
            state.root = Some(1);
        }
        assert!(tables.hits(&frame(80), 100, false).is_empty());
        tables.state().root = Some(2);
        assert!(tables.hits(&frame(80), 100, false).is_empty());
    }
}
