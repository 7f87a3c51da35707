// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of the table: which measurements of the programs are compared, and the limits of ours.

use super::matrix::{Call, Data, Post};
use core::fmt;
use std::sync::LazyLock;

/// How the queues of a program are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Locking {
    /// One thread: ours exclusive, C's in a thread domain.
    Exclusive,
    /// Any thread, behind locks.
    Shared,
}

impl Locking {
    pub(crate) const ALL: [Self; 2] = [Self::Exclusive, Self::Shared];

    /// Its name in the C program.
    pub(crate) const fn of_c(self) -> &'static str {
        match self {
            Self::Exclusive => "td",
            Self::Shared => "shared",
        }
    }

    /// As it is written in the data files.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|locking| locking.to_string() == text)
    }
}

impl fmt::Display for Locking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        })
    }
}

/// A fake device, and the drivers of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Device {
    /// libmlx5 and our driver for it.
    Mlx5,
    /// libefa and our driver for it.
    Efa,
}

impl Device {
    /// C's library.
    pub(crate) const fn library(self) -> &'static str {
        match self {
            Self::Mlx5 => "libmlx5.so.1",
            Self::Efa => "libefa.so.1",
        }
    }
}

/// What a program measures: a device, with a locking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Set {
    pub(crate) device: Device,
    pub(crate) locking: Locking,
}

impl Set {
    /// All programs.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Device::Mlx5, Device::Efa]
            .into_iter()
            .flat_map(|device| Locking::ALL.map(|locking| Self { device, locking }))
    }
}

/// Our program.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device {
            Device::Mlx5 => write!(f, "{}", self.locking),
            Device::Efa => write!(f, "efa-{}", self.locking),
        }
    }
}

/// By which calls a measurement was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Face {
    /// C's library: libmlx5, libefa.
    C,
    /// This project's libibverbs.so.1, called by the same C program.
    Abi,
    /// The typed face.
    Typed,
    /// The raw one: lists, builders, `poll_cq`, extended polls.
    Raw,
    /// Bare stores and fences.
    Floor,
}

impl Face {
    /// Those of this library, which have limits.
    pub(crate) const OURS: [Self; 3] = [Self::Abi, Self::Typed, Self::Raw];

    /// As tables show it.
    #[cfg(test)]
    pub(crate) const fn shown(self) -> &'static str {
        match self {
            Self::Abi => "C ABI",
            face => face.name(),
        }
    }

    /// Its name in the programs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::C => "c",
            Self::Abi => "abi",
            Self::Typed => "typed",
            Self::Raw => "raw",
            Self::Floor => "floor",
        }
    }
}

/// The kind of a row's limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limits {
    /// Raw at most 0.95 of C, typed at most 0.5. The limit of the C ABI is 0.95 of C, with every kind of limits.
    Usual,
    /// As usual, and at most 10 % above the figures of `bench-before.tsv`.
    Kept,
    /// As usual, but typed at most 0.7: the payload is copied, or the queue is an SRQ.
    Loose,
    /// The median of the nanoseconds, which no count shows: typed and raw at most this share of C. Reported only.
    Ns { typed: f64, raw: f64 },
    /// Reported only.
    None,
}

impl Limits {
    /// The limit as a share of C's count.
    pub(crate) fn of_c(self, face: Face) -> Option<f64> {
        match (self, face) {
            (_, Face::Abi) => Some(0.95),
            (Self::None | Self::Ns { .. }, _) | (_, Face::C | Face::Floor) => None,
            (_, Face::Raw) => Some(0.95),
            (Self::Loose, Face::Typed) => Some(0.7),
            (_, Face::Typed) => Some(0.5),
        }
    }

    /// The limit as a share of C's nanoseconds.
    pub(crate) fn of_c_ns(self, face: Face) -> Option<f64> {
        match (self, face) {
            (Self::Ns { typed, .. }, Face::Typed) => Some(typed),
            (Self::Ns { raw, .. }, Face::Raw) => Some(raw),
            _ => None,
        }
    }
}

/// A row: its title, and the programs' names of its measurements, without the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) title: &'static str,
    pub(crate) c: &'static str,
    pub(crate) typed: Option<&'static str>,
    pub(crate) raw: Option<&'static str>,
    /// Whether the C ABI's count is in this row: there is one per measurement of C.
    pub(crate) abi: bool,
    pub(crate) floor: Option<&'static str>,
    /// Sizes of batches.
    pub(crate) batches: &'static [u32],
    pub(crate) limits: Limits,
    /// Only with exclusive queues.
    pub(crate) exclusive: bool,
    pub(crate) device: Device,
}

impl Row {
    /// The programs' name of a measurement, if the row has it.
    pub(crate) fn name(&self, face: Face, batch: u32) -> Option<String> {
        let name = match face {
            Face::C => Some(self.c),
            Face::Abi => self.abi.then_some(self.c),
            Face::Typed => self.typed,
            Face::Raw => self.raw,
            Face::Floor => self.floor,
        };
        name.map(|name| format!("{} {name} x{batch}", face.name()))
    }

    /// Whether it is measured with that locking.
    pub(crate) const fn has(&self, locking: Locking) -> bool {
        matches!(locking, Locking::Exclusive) || !self.exclusive
    }
}

/// A row whose measurements have one name, or their own.
const fn row(title: &'static str, c: &'static str, limits: Limits) -> Row {
    let both = Some(c);
    Row {
        title,
        c,
        typed: both,
        raw: both,
        abi: true,
        floor: None,
        batches: &[1, 32],
        limits,
        exclusive: false,
        device: Device::Mlx5,
    }
}

impl Row {
    const fn typed(self, typed: Option<&'static str>) -> Self {
        Self { typed, ..self }
    }
    const fn raw(self, raw: Option<&'static str>) -> Self {
        Self { raw, ..self }
    }
    /// A second row with the same measurement of C.
    const fn again(self) -> Self {
        Self { raw: None, abi: false, ..self }
    }
    const fn floor(self, floor: &'static str) -> Self {
        Self { floor: Some(floor), ..self }
    }
    const fn batches(self, batches: &'static [u32]) -> Self {
        Self { batches, ..self }
    }
    const fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }
    const fn efa(self) -> Self {
        Self { device: Device::Efa, ..self }
    }
}

use Limits::{Kept, Loose, Usual};

/// The rows that the table of posts does not have: posts of other data, receives, polls, events, and many QPs.
const OTHERS: &[Row] = &[
    row("inline 32 B, constant length", "post_send inline", Usual).floor("inline"),
    row("inline 32 B, run-time length", "post_send inline", Usual)
        .typed(Some("post_send inline, run-time length"))
        .again()
        .floor("inline"),
    row("SEND, 3 entries", "post_send send3", Usual).floor("send3"),
    row("wr_* write, inline 32 B", "wr inline", Usual).typed(None).floor("inline"),
    row("wr_* send, inline 32 B", "wr send inline", Usual).floor("send inline"),
    row("wr_* send, 3 entries", "wr send3", Usual).typed(None).floor("send3"),
    row("post_recv", "post_recv", Kept).floor("recv"),
    row("post_srq_recv", "post_srq_recv", Loose).floor("recv"),
    row("poll requester", "poll requester", Kept).floor("poll"),
    row("poll requester into an array", "poll requester", Limits::None)
        .typed(Some("poll requester, array"))
        .again()
        .floor("poll"),
    row("poll responder", "poll responder", Usual).floor("poll"),
    row("poll responder into an array", "poll responder", Limits::None)
        .typed(Some("poll responder, array"))
        .again()
        .floor("poll"),
    row("poll responder, inline scatter", "poll scatter", Loose).floor("poll"),
    row("poll SRQ", "poll srq", Usual).floor("poll"),
    row("poll empty", "poll empty", Usual).batches(&[1]),
    row("extended poll requester", "start_poll requester", Usual).typed(None).floor("poll"),
    row("extended poll responder", "start_poll responder", Usual).typed(None).floor("poll"),
    row("extended poll responder, 4 more fields", "start_poll responder more", Usual).typed(None),
    row("extended poll empty", "start_poll empty", Usual).typed(None).batches(&[1]),
    row("poll 64 QPs in turn", "poll 64 QPs", Limits::Ns { typed: 0.35, raw: 0.6 }).batches(&[32]),
    row("poll 1,024 QPs in turn", "poll 1024 QPs", Limits::Ns { typed: 1.0, raw: 1.0 }).batches(&[32]),
    row("poll 10,000 QPs in turn", "poll 10000 QPs", Limits::Ns { typed: 1.0, raw: 1.0 }).batches(&[32]),
    row("post to 64 QPs in turn, rings of 4", "post 64 QPs", Usual).batches(&[1]),
    row("post to 1,024 QPs in turn, rings of 4", "post 1024 QPs", Usual).batches(&[1]),
    row("post to 10,000 QPs in turn, rings of 4", "post 10000 QPs", Usual).batches(&[1]),
    row("post to a ring of 4", "post small ring", Usual).batches(&[1]),
    row("request an event", "arm", Usual).raw(None).batches(&[1]),
    row("take an event and request the next", "event", Usual).raw(None).batches(&[1]),
    row("WRITE and a write-combining burst", "post_send write burst", Limits::None)
        .floor("write burst")
        .exclusive(),
    row("WRITE, no thread domain, 5th QP", "post_send write 5th", Usual)
        .raw(None)
        .floor("write")
        .batches(&[1])
        .exclusive(),
];

/// The rows of EFA that the table of posts does not have.
const EFA: &[Row] = &[
    row("EFA post_recv", "efa post_recv", Usual).efa(),
    row("EFA post_recv, 2 entries", "efa post_recv sge2", Usual).efa(),
    row("EFA poll sends", "efa poll sends", Usual).efa(),
    row("EFA poll receives", "efa poll receives", Usual).efa(),
    row("EFA poll empty", "efa poll empty", Usual).batches(&[1]).efa(),
    row("EFA extended poll sends", "efa start_poll sends", Usual).typed(None).efa(),
    row("EFA extended poll receives", "efa start_poll receives", Usual).typed(None).efa(),
    row("EFA extended poll receives, 4 more fields", "efa start_poll receives more", Usual).typed(None).efa(),
    row("EFA extended poll empty", "efa start_poll empty", Usual).typed(None).batches(&[1]).efa(),
    row("EFA request an event", "efa arm", Usual).raw(None).batches(&[1]).efa(),
    row("EFA take an event and request the next", "efa event", Usual).raw(None).batches(&[1]).efa(),
    // Only `efadv_create_qp_ex` creates such QPs.
    row("EFA wr_* SRD WRITE, inline 32 B", "wr srd write inline32", Loose).typed(None).raw(None).efa(),
];

/// The floors of rows of the table of posts, by the name of their measurements.
const FLOORS: [(&str, &str); 9] = [
    ("post_send rc write", "write"),
    ("post_send rc send", "send"),
    ("post_send rc cmp_swp", "atomic"),
    ("post_send ud send", "ud"),
    ("wr rc write", "write"),
    ("wr rc send", "send"),
    ("wr rc read", "write"),
    ("wr rc fetch_add", "atomic"),
    ("wr ud send", "ud"),
];

/// The rows of the table of posts whose limits were set before.
const KEPT: [&str; 4] = ["post_send rc write", "post_send rc send", "wr rc write", "wr rc send"];

/// The row of a post.
fn row_of(post: &Post) -> Row {
    let c = &*post.name().leak();
    let data = match post.data {
        Data::Usual => String::new(),
        Data::Entries(n) => format!(", {n} entries"),
        Data::Inline(n) => format!(", inline {n} B"),
        Data::InlineList(n) => format!(", inline {n} buffers"),
    };
    let call = match post.call {
        Call::List => "",
        Call::Builder => "wr_* ",
    };
    let transport = post.transport.name().to_uppercase().replace('_', " ");
    let title = format!("{call}{transport} {}{data}", post.operation.name().to_uppercase());
    let limits = match post.data {
        _ if KEPT.contains(&c) => Kept,
        Data::Inline(_) | Data::InlineList(_) => Loose,
        _ => Usual,
    };
    let floor = FLOORS.iter().find(|(name, _)| *name == c).map(|(_, floor)| *floor);
    let raw = post.is_raw().then_some(c);
    Row { typed: post.is_typed().then_some(c), raw, floor, ..row(title.leak(), c, limits) }
}

/// The table: the posts, in which no operation of a transport can be missing, and the other rows.
pub(crate) static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let mlx5 = Post::all().iter().map(row_of).chain(OTHERS.iter().copied()).collect::<Vec<_>>();
    let efa = Post::efa();
    mlx5.into_iter().chain(efa.iter().map(|post| row_of(post).efa())).chain(EFA.iter().copied()).collect()
});

/// A row with a batch and a locking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) row: &'static Row,
    pub(crate) batch: u32,
    pub(crate) locking: Locking,
}

impl Line {
    /// The lines whose "TITLE xBATCH" contains the filter, in capital letters or not.
    pub(crate) fn selected(filter: &str) -> Vec<Self> {
        let filter = filter.to_lowercase();
        let mut lines = Vec::new();
        for locking in Locking::ALL {
            for row in ROWS.iter().filter(|row| row.has(locking)) {
                let line = |&batch| Self { row, batch, locking };
                lines.extend(
                    row.batches.iter().map(line).filter(|l| l.title().to_lowercase().contains(&filter)),
                );
            }
        }
        lines
    }

    /// The program that measures it.
    pub(crate) fn set(&self) -> Set {
        Set { device: self.row.device, locking: self.locking }
    }

    /// The row's title and the batch.
    pub(crate) fn title(&self) -> String {
        format!("{} x{}", self.row.title, self.batch)
    }

    /// A measurement of this line, if it has one by that face.
    pub(crate) fn key(&self, face: Face) -> Option<Key> {
        Some(Key { locking: self.locking, name: self.row.name(face, self.batch)? })
    }
}

/// A measurement: the locking, and the programs' name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) locking: Locking,
    pub(crate) name: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::matrix::Transport;
    use std::collections::HashSet;
    use uverbs_core::attr::QpType;
    use uverbs_core::provider::opcodes::opcodes_of;

    #[test]
    fn a_measurement_of_the_c_abi_is_in_one_row() {
        let names: Vec<_> = ROWS.iter().filter(|row| row.abi).map(|row| row.c).collect();
        let unique: HashSet<_> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len());
        assert_eq!(unique, ROWS.iter().map(|row| row.c).collect());
    }

    /// The types of QPs by their transports' names.
    const TYPES: [(&str, QpType); 6] = [
        ("rc", QpType::Rc),
        ("uc", QpType::Uc),
        ("ud", QpType::Ud),
        ("xrc", QpType::XrcSend),
        ("raw", QpType::RawPacket),
        ("dc", QpType::Driver),
    ];

    /// The operations are those that the driver checks posts against, so a new one has no row only if this test fails.
    #[test]
    fn every_operation_of_the_driver_has_its_rows() {
        let lines = Line::selected("");
        let has = |name: &str, face: Face| {
            Locking::ALL.into_iter().all(|locking| {
                [1, 32].iter().all(|batch| {
                    let name = format!("{} {name} x{batch}", face.name());
                    lines.iter().any(|line| line.key(face) == Some(Key { locking, name: name.clone() }))
                })
            })
        };
        for (transport, qp_type) in TYPES {
            let known: Vec<_> = Transport::ALL.into_iter().filter(|t| t.name() == transport).collect();
            let [known] = known[..] else { panic!("{transport} is not in the table") };
            let operations = opcodes_of(qp_type);
            assert_ne!(operations, 0, "{transport}");
            for opcode in (0..32).filter(|opcode| operations >> opcode & 1 != 0) {
                let found = known.operations().iter().find(|operation| operation.opcode() == opcode);
                let operation = found.unwrap_or_else(|| panic!("{transport} has no row of opcode {opcode}"));
                let calls: &[&str] = if transport == "dc" { &["wr"] } else { &["post_send", "wr"] };
                for call in calls {
                    let name = format!("{call} {transport} {}", operation.name());
                    assert!(has(&name, Face::C) && has(&name, Face::Abi), "{name}");
                    assert!(has(&name, Face::Raw) || transport == "dc", "{name}");
                    assert!(has(&name, Face::Typed) || *call == "wr", "{name}");
                }
            }
            assert_eq!(operations.count_ones() as usize, known.operations().len(), "{transport}");
        }
        assert!(has("wr dc write", Face::Typed));
    }

    /// As above, of EFA: the operations are those of a device that has all.
    #[test]
    fn every_operation_of_efa_has_its_rows() {
        let lines = Line::selected("");
        let has = |name: &str, face: Face| {
            let key = |set: Set, batch| {
                let name = format!("{} {name} x{batch}", face.name());
                lines.iter().any(|line| {
                    line.set() == set
                        && line.key(face) == Some(Key { locking: set.locking, name: name.clone() })
                })
            };
            let mut sets = Set::all().filter(|set| set.device == Device::Efa);
            sets.all(|set| [1, 32].into_iter().all(|batch| key(set, batch)))
        };
        for (transport, qp_type) in [(Transport::Srd, QpType::Driver), (Transport::EfaUd, QpType::Ud)] {
            let operations = uverbs_efa::control::opcodes_of(qp_type);
            assert_eq!(operations.count_ones() as usize, transport.operations().len(), "{transport:?}");
            for operation in transport.operations() {
                assert_ne!(operations >> operation.opcode() & 1, 0, "{transport:?} {operation:?}");
                let (transport, name) = (transport.name(), operation.name());
                assert!(has(&format!("wr {transport} {name}"), Face::C), "{transport} {name}");
                assert!(has(&format!("wr {transport} {name}"), Face::Raw), "{transport} {name}");
                assert!(has(&format!("wr {transport} {name}"), Face::Abi), "{transport} {name}");
                let call = if name.starts_with("send") { "post_send" } else { "wr" };
                assert!(has(&format!("{call} {transport} {name}"), Face::Typed), "{transport} {name}");
            }
        }
    }

    #[test]
    fn the_lengths_and_counts_of_data_have_rows() {
        let names: HashSet<_> = ROWS.iter().map(|row| row.c).collect();
        for call in ["post_send", "wr"] {
            for data in [
                "",
                " sge4",
                " sge16",
                " sge30",
                " inline64",
                " inline128",
                " inline256",
                " inline448",
                " inline960",
            ] {
                assert!(names.contains(&*format!("{call} rc write{data}")), "{call}{data}");
            }
            for data in ["", " sge2", " inline8", " inline16", " inline32", " inline64"] {
                assert!(names.contains(&*format!("{call} srd send{data}")), "{call}{data}");
            }
        }
    }

    #[test]
    fn titles_are_unique() {
        let titles: HashSet<_> = ROWS.iter().map(|row| row.title).collect();
        assert_eq!(titles.len(), ROWS.len());
    }
}
