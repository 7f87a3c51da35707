// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rule of a script, and its text.

use super::names::{Event, Key, Opcode, Point, Queue, Refusal, Status};
use core::fmt;
use core::net::Ipv6Addr;
use uverbs_core::Errno;

/// Numbers from one to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub first: u64,
    /// The last; `u64::MAX` for no end.
    pub last: u64,
}

impl Span {
    /// Whether a number is one of them.
    #[must_use]
    pub const fn has(self, number: u64) -> bool {
        self.first <= number && number <= self.last
    }

    /// The text of the numbers, each as `show` writes it.
    fn write(self, f: &mut fmt::Formatter<'_>, show: impl Fn(u64) -> String) -> fmt::Result {
        match self {
            Self { first, last } if first == last => f.write_str(&show(first)),
            Self { first, last: u64::MAX } => write!(f, "{}-", show(first)),
            Self { first, last } => write!(f, "{}-{}", show(first), show(last)),
        }
    }
}

/// The value of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// Numbers, or times in ns.
    Span(Span),
    /// A name: of a device or a verb.
    Name(String),
    /// An opcode.
    Opcode(Opcode),
    /// A queue.
    Queue(Queue),
}

/// A change of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Its link goes down or up.
    Port {
        /// Whether it goes up.
        up: bool,
    },
    /// Its port gets another GID.
    AddGid(Ipv6Addr),
    /// The entry of the table of GIDs becomes empty.
    RemoveGid(u16),
    /// Its port gets another LID.
    Lid(u16),
    /// It is removed.
    Remove,
    /// All its contexts end, as if their processes had died.
    Kill,
    /// This process ends at once, by SIGKILL.
    Exit,
    /// Its contexts get an asynchronous event.
    Event(Event),
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// The packet is lost, or the completion.
    Drop,
    /// The packet arrives with a wrong ICRC, so that the receiver drops it.
    Corrupt,
    /// The packet arrives this later, ns, or the completion is written so much later.
    Delay(u64),
    /// The packet arrives so many times more.
    Duplicate(u32),
    /// The packet arrives behind so many later ones of the same sender and receiver.
    Reorder(u32),
    /// The sender gets a NAK, and the packet does not arrive.
    Nak(Refusal),
    /// The sender gets an RNR NAK with this code of a timer, and the packet does not arrive.
    Rnr(u8),
    /// The packets take their time on a link of so many bits in a second, one after the other.
    Bandwidth(u64),
    /// Each packet takes this time of the sender, ns, one after the other.
    Slow(u64),
    /// The WR completes with this status, and its QP goes to ERR (SQE, if its transport has that state).
    Status(Status),
    /// The CQ has no room for the completion: it is in error, as after an overrun.
    Full,
    /// The verb fails and does nothing.
    Errno(Errno),
    /// A device changes: that of the event, or another one.
    Change(Change, Option<String>),
}

impl Action {
    /// Whether a rule at this point may have it.
    #[must_use]
    pub const fn is_of(&self, point: Point) -> bool {
        match self {
            Self::Change(..) => true,
            Self::Status(_) | Self::Full => matches!(point, Point::Completion),
            Self::Drop | Self::Delay(_) => matches!(point, Point::Packet | Point::Completion),
            Self::Errno(_) => matches!(point, Point::Call),
            _ => matches!(point, Point::Packet),
        }
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it is about.
    pub point: Point,
    /// What must be true, at most one of a kind.
    pub selectors: Vec<(Key, Value)>,
    /// What happens then.
    pub action: Action,
}

impl Rule {
    /// The value of a selector.
    pub(super) fn get(&self, key: Key) -> Option<&Value> {
        self.selectors.iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// Numbers of a selector.
    pub(super) fn span(&self, key: Key) -> Option<Span> {
        match self.get(key) {
            Some(Value::Span(span)) => Some(*span),
            _ => None,
        }
    }

    /// The name of a selector.
    pub(super) fn name(&self, key: Key) -> Option<&str> {
        match self.get(key) {
            Some(Value::Name(name)) => Some(name),
            _ => None,
        }
    }
}

/// A time in the largest unit of which it is a multiple.
fn time(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")];
    match units.iter().find(|(unit, _)| ns > 0 && ns.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", ns / unit),
        None => format!("{ns}ns"),
    }
}

/// A number of bits in a second, in the largest unit of which it is a multiple.
fn rate(bits: u64) -> String {
    let units = [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1000, "kbit")];
    match units.iter().find(|(unit, _)| bits > 0 && bits.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bits / unit),
        None => format!("{bits}bit"),
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port { up } => write!(f, "port {}", if *up { "up" } else { "down" }),
            Self::AddGid(gid) => write!(f, "gid add {gid}"),
            Self::RemoveGid(index) => write!(f, "gid remove {index}"),
            Self::Lid(lid) => write!(f, "lid {lid}"),
            Self::Remove => f.write_str("remove"),
            Self::Kill => f.write_str("kill"),
            Self::Exit => f.write_str("exit"),
            Self::Event(event) => write!(f, "event {event}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Corrupt => f.write_str("corrupt"),
            Self::Delay(ns) => write!(f, "delay {}", time(*ns)),
            Self::Duplicate(count) => write!(f, "duplicate {count}"),
            Self::Reorder(count) => write!(f, "reorder {count}"),
            Self::Nak(refusal) => write!(f, "nak {refusal}"),
            Self::Rnr(timer) => write!(f, "rnr {timer}"),
            Self::Bandwidth(bits) => write!(f, "bandwidth {}", rate(*bits)),
            Self::Slow(ns) => write!(f, "slow {}", time(*ns)),
            Self::Status(status) => write!(f, "status {status}"),
            Self::Full => f.write_str("full"),
            Self::Errno(errno) => match errno.name() {
                Some(name) => write!(f, "errno {name}"),
                None => write!(f, "errno {}", errno.raw()),
            },
            Self::Change(change, None) => write!(f, "{change}"),
            Self::Change(change, Some(device)) => write!(f, "{change} on {device}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.point)?;
        for (key, value) in &self.selectors {
            write!(f, " {key}=")?;
            match value {
                Value::Span(span) => match key {
                    Key::Qp | Key::Dest => span.write(f, |n| format!("{n:#x}"))?,
                    Key::Time => span.write(f, time)?,
                    _ => span.write(f, |n| n.to_string())?,
                },
                Value::Name(name) => f.write_str(name)?,
                Value::Opcode(opcode) => write!(f, "{opcode}")?,
                Value::Queue(queue) => write!(f, "{queue}")?,
            }
        }
        write!(f, " : {}", self.action)
    }
}
