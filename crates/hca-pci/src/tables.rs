// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flow tables of an Ethernet port, through which frames go: tables with groups of one mask each and entries of one value
//! each, from the root on; the targets that they lead to; and counters.

use crate::fw::Status;
use crate::limits::{LOG_MAX_FLOW, LOG_MAX_FLOW_TABLES, LOG_MAX_GROUPS, LOG_MAX_LISTED, room};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use uverbs_hca::front::{Classifier, Headers, Hit, Rss, Target, Users};
use uverbs_hca::prm::criteria::match_of;

/// The limits of a frame's path: tables in sequence, tables in total, entries that it is compared with, and receivers.
/// Without them, tables that form a cycle would be followed endlessly, and a frame could occupy the fabric for seconds.
const MAX_DEPTH: usize = 64;
const MAX_VISITS: usize = 1024;
const MAX_COMPARED: usize = 1 << 17;
const MAX_RECEIVERS: usize = 256;

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
    /// The groups by their first index. They do not overlap.
    pub(crate) starts: BTreeMap<u32, u32>,
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
    compared: usize,
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
    /// The targets and tables of queues that name each queue; the entries that lead to each target.
    of_queues: Users,
    of_tirs: Users,
    /// The groups and entries of all tables; the queues of all tables of queues; the destinations and counters of all
    /// entries.
    groups: usize,
    entries: usize,
    listed: usize,
    in_entries: usize,
    next: u32,
}

impl Table {
    pub(crate) fn new(kind: u64, miss: Option<u32>) -> Self {
        Self { kind, miss, groups: BTreeMap::new(), starts: BTreeMap::new(), entries: BTreeMap::new() }
    }

    /// Whether a group has one of these indices.
    fn overlaps(&self, start: u32, end: u32) -> bool {
        let last = self.starts.range(..=end).next_back();
        last.and_then(|(_, id)| self.groups.get(id)).is_some_and(|group| group.end >= start)
    }
}

impl Entry {
    fn listed(&self) -> usize {
        self.destinations.len() + self.counters.len()
    }

    fn tirs(&self) -> impl Iterator<Item = u32> {
        self.destinations.iter().filter_map(|to| match to {
            Destination::Tir(tirn) => Some(*tirn),
            Destination::Table(_) => None,
        })
    }
}

impl State {
    /// A number that no object here has.
    pub(crate) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Whether a target or a table of queues names this queue.
    pub(crate) fn uses_queue(&self, rqn: u32) -> bool {
        self.of_queues.has(&rqn)
    }

    pub(crate) fn add_tir(&mut self, tirn: u32, tir: Tir) {
        if let Where::Queue(rqn) = tir.to {
            self.of_queues.add(rqn);
        }
        self.tirs.insert(tirn, tir);
    }

    pub(crate) fn remove_tir(&mut self, tirn: u32) -> Option<()> {
        if let Where::Queue(rqn) = self.tirs.remove(&tirn)?.to {
            self.of_queues.remove(&rqn);
        }
        Some(())
    }

    /// Adds a table of queues, or replaces its queues.
    pub(crate) fn set_queue_table(&mut self, rqtn: u32, list: Vec<u32>) -> Result<(), Status> {
        let old = self.queue_tables.get(&rqtn).map_or(0, Vec::len);
        let listed = self.listed - old + list.len();
        if listed > 1 << LOG_MAX_LISTED {
            return Err(Status::LIMIT);
        }
        self.listed = listed;
        list.iter().for_each(|rqn| self.of_queues.add(*rqn));
        let old = self.queue_tables.insert(rqtn, list);
        old.iter().flatten().for_each(|rqn| self.of_queues.remove(rqn));
        Ok(())
    }

    pub(crate) fn remove_queue_table(&mut self, rqtn: u32) -> Option<()> {
        let list = self.queue_tables.remove(&rqtn)?;
        self.listed -= list.len();
        list.iter().for_each(|rqn| self.of_queues.remove(rqn));
        Some(())
    }

    pub(crate) fn add_table(&mut self, table: Table) -> Result<u32, Status> {
        room(self.tables.len(), LOG_MAX_FLOW_TABLES)?;
        let id = self.number();
        self.tables.insert(id, table);
        Ok(id)
    }

    pub(crate) fn remove_table(&mut self, id: u32) -> Option<()> {
        let table = self.tables.remove(&id)?;
        if self.root == Some(id) {
            self.root = None;
        }
        self.groups -= table.groups.len();
        table.entries.values().for_each(|entry| self.forget(entry));
        Some(())
    }

    /// An entry is no longer in a table.
    fn forget(&mut self, entry: &Entry) {
        self.entries -= 1;
        self.in_entries -= entry.listed();
        entry.tirs().for_each(|tirn| self.of_tirs.remove(&tirn));
    }

    /// Adds a group to a table. Returns its number.
    pub(crate) fn add_group(&mut self, table: u32, group: Group) -> Result<u32, Status> {
        let id = self.number();
        let found = self.tables.get_mut(&table).ok_or(Status::BAD_RESOURCE)?;
        if group.start > group.end || found.overlaps(group.start, group.end) {
            return Err(Status::BAD_PARAM);
        }
        room(self.groups, LOG_MAX_GROUPS)?;
        self.groups += 1;
        found.starts.insert(group.start, id);
        found.groups.insert(id, group);
        Ok(id)
    }

    pub(crate) fn remove_group(&mut self, table: u32, id: u32) -> Result<(), Status> {
        let found = self.tables.get_mut(&table).ok_or(Status::BAD_RESOURCE)?;
        let group = found.groups.get(&id).ok_or(Status::BAD_RESOURCE)?;
        let (start, end) = (group.start, group.end);
        if found.entries.range(start..=end).next().is_some() {
            return Err(Status::BUSY);
        }
        found.groups.remove(&id);
        found.starts.remove(&start);
        self.groups -= 1;
        Ok(())
    }

    /// Adds an entry to a table, or changes it.
    pub(crate) fn set_entry(
        &mut self,
        table: u32,
        index: u32,
        entry: Entry,
        is_change: bool,
    ) -> Result<(), Status> {
        let found = self.tables.get_mut(&table).ok_or(Status::BAD_RESOURCE)?;
        let is_inside = found.groups.get(&entry.group).is_some_and(|g| (g.start..=g.end).contains(&index));
        let old = found.entries.get(&index);
        if !is_inside || is_change && old.is_none() {
            return Err(Status::BAD_RESOURCE);
        }
        let listed = self.in_entries - old.map_or(0, Entry::listed) + entry.listed();
        if old.is_none() && self.entries >= 1 << LOG_MAX_FLOW || listed > 1 << LOG_MAX_LISTED {
            return Err(Status::LIMIT);
        }
        self.entries += 1;
        self.in_entries += entry.listed();
        entry.tirs().for_each(|tirn| self.of_tirs.add(tirn));
        if let Some(old) = found.entries.insert(index, entry) {
            self.forget(&old);
        }
        Ok(())
    }

    pub(crate) fn remove_entry(&mut self, table: u32, index: u32) -> Option<()> {
        let entry = self.tables.get_mut(&table)?.entries.remove(&index)?;
        self.forget(&entry);
        Some(())
    }

    /// Whether an entry leads to this target.
    pub(crate) fn uses_tir(&self, tirn: u32) -> bool {
        self.of_tirs.has(&tirn)
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
        let left = MAX_COMPARED - walk.compared;
        let counted = found.entries.values().take(left).inspect(|_| walk.compared += 1).find(takes);
        let Some(entry) = counted else {
            if let Some(miss) = found.miss.filter(|_| walk.compared < MAX_COMPARED) {
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
                Destination::Tir(tirn) if walk.tirs.len() < MAX_RECEIVERS => walk.tirs.push((tirn, tag)),
                Destination::Tir(_) => return,
            }
        }
    }

    /// The number of entries that a packet is compared with.
    #[cfg(test)]
    pub(crate) fn compared_with(&mut self, table: u32, packet: &[u8]) -> usize {
        let mut walk = Walk::default();
        self.collect(table, packet, 100, 0, &mut walk);
        walk.compared
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
                Rss::pick_by(*fields, key, self.queue_tables.get(table)?, h).map(Target::Wq)
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
        Table::new(RECEIVE, miss)
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
