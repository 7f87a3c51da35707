// SPDX-License-Identifier: MIT OR Apache-2.0
//! A step, and its line in a file.

use core::fmt;
use core::str::FromStr;
use std::collections::HashMap;

/// What kind of step it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepKind {
    /// The device took a request from a send queue.
    Request,
    /// The device took a receive for a message.
    Receive,
    /// A packet was sent.
    Sent,
    /// A packet arrived.
    Received,
    /// A packet was lost.
    Lost,
    /// Data of a packet were read from registered memory: in a mode of order, where that is a step of its own.
    Fetched,
    /// Data were written to registered memory.
    Placed,
    /// A completion was written.
    Completion,
    /// An event was raised.
    Event,
    /// A timer expired.
    Timer,
    /// The state of a QP has changed.
    State,
}

impl StepKind {
    /// All.
    pub const ALL: [Self; 11] = [
        Self::Request,
        Self::Receive,
        Self::Sent,
        Self::Received,
        Self::Lost,
        Self::Fetched,
        Self::Placed,
        Self::Completion,
        Self::Event,
        Self::Timer,
        Self::State,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "wqe",
            Self::Receive => "receive",
            Self::Sent => "sent",
            Self::Received => "received",
            Self::Lost => "lost",
            Self::Fetched => "fetched",
            Self::Placed => "placed",
            Self::Completion => "cqe",
            Self::Event => "event",
            Self::Timer => "timer",
            Self::State => "state",
        }
    }
}

/// The way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The number of the packet: those of [`Sent`](StepKind::Sent) and [`Received`](StepKind::Received) are the same. 0 if it was lost.
    pub id: u64,
    /// The port at the other end.
    pub peer: u16,
    /// The QP at the other end.
    pub peer_qpn: u32,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The time of the fabric's clock, ns.
    pub at: u64,
    /// The number of the device's port in the fabric.
    pub port: u16,
    /// The QP. 0 is the device: an event of the port, for example.
    pub qpn: u32,
    /// What kind of step it is.
    pub kind: StepKind,
    /// The way, of a packet.
    pub hop: Option<Hop>,
    /// What happened. On a deterministic fabric they are the same in each run.
    pub words: String,
    /// What may differ from run to run: addresses in memory.
    pub detail: String,
}

impl Step {
    /// Whether it is of the QP, or of a packet from it or to it.
    pub(crate) fn concerns(&self, qpn: u32) -> bool {
        self.qpn == qpn || self.hop.is_some_and(|hop| hop.peer_qpn == qpn)
    }

    /// The line in a file, whose times are those of a clock that shows `epoch` at 0. `source` is the fabric.
    pub(crate) fn line(&self, epoch: u64, source: &str) -> String {
        let Self { at, port, qpn, kind, hop, words, detail } = self;
        let hop =
            hop.map_or("-".to_owned(), |Hop { id, peer, peer_qpn }| format!("{id}/{peer}/{peer_qpn:#08x}"));
        // A tab or the end of a line would end the column.
        let clean = |text: &str| text.replace(['\t', '\n', '\r'], " ");
        let (words, detail) = (clean(words), clean(detail));
        let at = epoch.saturating_add(*at);
        format!("{at}\t{source}\t{port}\t{qpn:#08x}\t{}\t{hop}\t{words}\t{detail}\n", kind.name())
    }

    /// Parses a line. Returns the fabric, too.
    fn parse(line: &str) -> Option<(&str, Self)> {
        let mut columns = line.split('\t');
        let mut next = || columns.next();
        let (at, source, port) = (next()?.parse().ok()?, next()?, next()?.parse().ok()?);
        let qpn = hexadecimal(next()?)?;
        let name = next()?;
        let kind = StepKind::ALL.into_iter().find(|kind| kind.name() == name)?;
        let hop = match next()? {
            "-" => None,
            hop => Some(hop.parse().ok()?),
        };
        let (words, detail) = (next()?.to_owned(), next()?.to_owned());
        columns.next().is_none().then_some((source, Self { at, port, qpn, kind, hop, words, detail }))
    }
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

impl FromStr for Hop {
    type Err = NotAStep;

    fn from_str(text: &str) -> Result<Self, NotAStep> {
        let parse = || {
            let mut parts = text.split('/');
            let (id, peer) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let peer_qpn = hexadecimal(parts.next()?)?;
            parts.next().is_none().then_some(Self { id, peer, peer_qpn })
        };
        parse().ok_or(NotAStep { line: 0 })
    }
}

impl fmt::Display for Step {
    /// Without the time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, qpn, kind, hop, words, detail, .. } = self;
        match qpn {
            0 => write!(f, "port {port} {:<11}", "")?,
            qpn => write!(f, "port {port} qp {qpn:#08x}")?,
        }
        write!(f, "  {:<8}  {words}", kind.name())?;
        if !detail.is_empty() {
            write!(f, " ({detail})")?;
        }
        let Some(Hop { peer, peer_qpn, .. }) = hop else { return Ok(()) };
        let way = if *kind == StepKind::Received { "from" } else { "to" };
        write!(f, " {way} port {peer} qp {peer_qpn:#08x}")
    }
}

/// A line that is not a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAStep {
    /// Its number, from 1.
    pub line: usize,
}

impl fmt::Display for NotAStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} is not one of a trace", self.line)
    }
}

impl core::error::Error for NotAStep {}

/// The steps of a file, which several fabrics and processes may have written, in the order of their times. The numbers of packets of
/// several fabrics are changed so that they differ. Lines that begin with `#` are left out, and a last line that has no end.
///
/// # Errors
/// A line is not a step.
pub fn read(text: &str) -> Result<Vec<Step>, NotAStep> {
    let mut steps = Vec::new();
    let mut ids: HashMap<(&str, u64), u64> = HashMap::new();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let Some(line) = line.strip_suffix('\n').filter(|line| !line.starts_with('#')) else { continue };
        let (source, mut step) = Step::parse(line).ok_or(NotAStep { line: number + 1 })?;
        if let Some(hop) = step.hop.as_mut().filter(|hop| hop.id != 0) {
            let next = ids.len() as u64 + 1;
            hop.id = *ids.entry((source, hop.id)).or_insert(next);
        }
        steps.push(step);
    }
    // Steps of a time stay in the order in which they were written.
    steps.sort_by_key(|step| step.at);
    Ok(steps)
}
