// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a device is doing, for an operator.

use crate::state::State;
use core::fmt;

/// The types of QPs of a model.
pub trait QpKind: Copy + fmt::Debug + 'static {
    /// All of them. The words that `Debug` writes differ.
    const ALL: &'static [Self];

    /// Its number in `enum ib_qp_type` (`<rdma/ib_verbs.h>`), as the kernel reports it.
    fn ib_type(self) -> u8;
}

/// The port and the QPs of a device at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat<K> {
    /// Whether the port's link is up.
    pub up: bool,
    /// Packets that the port has sent.
    pub sent: u64,
    /// Packets that the port has received.
    pub received: u64,
    /// Packets that the device has repeated, because packets were lost, duplicated or out of order.
    pub repairs: u64,
    /// The QPs, by number.
    pub qps: Vec<QpStat<K>>,
}

/// A QP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpStat<K> {
    /// Its number.
    pub qpn: u32,
    /// Its type.
    pub kind: K,
    /// Its state.
    pub state: State,
    /// The number of the peer's QP, if it is connected.
    pub remote: Option<u32>,
    /// The number of the next packet that it sends, 24 bits.
    pub sq_psn: u32,
    /// The number of the packet that it expects, 24 bits.
    pub rq_psn: u32,
}

impl<K> QpStat<K> {
    /// A QP that is not connected, and counts no packets.
    #[must_use]
    pub fn new(qpn: u32, kind: K, state: State) -> Self {
        Self { qpn, kind, state, remote: None, sq_psn: 0, rq_psn: 0 }
    }
}

/// A line: whether the link is up, packets sent and received, repairs; then the QPs: number, type, state, peer, PSNs. [`Stat::parse`] reads
/// it.
impl<K: QpKind> fmt::Display for Stat<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { up, sent, received, repairs, qps } = self;
        write!(f, "{} {sent} {received} {repairs}", if *up { "up" } else { "down" })?;
        for QpStat { qpn, kind, state, remote, sq_psn, rq_psn } in qps {
            write!(f, " {qpn},{kind:?},{state:?},{},{sq_psn},{rq_psn}", remote.unwrap_or(0))?;
        }
        Ok(())
    }
}

impl<K: QpKind> Stat<K> {
    /// With the type of each QP as its number in `enum ib_qp_type`, which devices of all models have.
    #[must_use]
    pub fn by_ib_type(self) -> Stat<u8> {
        let Self { up, sent, received, repairs, qps } = self;
        let qp = |QpStat { qpn, kind, state, remote, sq_psn, rq_psn }: QpStat<K>| QpStat {
            qpn,
            kind: kind.ib_type(),
            state,
            remote,
            sq_psn,
            rq_psn,
        };
        Stat { up, sent, received, repairs, qps: qps.into_iter().map(qp).collect() }
    }

    /// Reads what `Display` writes; `None` for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let up = match words.next()? {
            "up" => true,
            "down" => false,
            _ => return None,
        };
        let mut number = || words.next()?.parse().ok();
        let (sent, received, repairs) = (number()?, number()?, number()?);
        Some(Self { up, sent, received, repairs, qps: words.map(QpStat::parse).collect::<Option<_>>()? })
    }
}

/// The value that `Debug` writes as this word.
fn named<T: Copy + fmt::Debug>(all: &[T], word: &str) -> Option<T> {
    all.iter().copied().find(|known| format!("{known:?}") == word)
}

impl<K: QpKind> QpStat<K> {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(',');
        let qpn = words.next()?.parse().ok()?;
        let kind = named(K::ALL, words.next()?)?;
        let state = named(&State::ALL, words.next()?)?;
        let mut number = || words.next()?.parse().ok();
        let (remote, sq_psn, rq_psn) = (number()?, number()?, number()?);
        let stat = Self { qpn, kind, state, remote: (remote != 0).then_some(remote), sq_psn, rq_psn };
        words.next().is_none().then_some(stat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind {
        Rc,
        Srd,
    }

    impl QpKind for Kind {
        const ALL: &'static [Self] = &[Self::Rc, Self::Srd];

        fn ib_type(self) -> u8 {
            if self == Self::Rc { 2 } else { 0xff }
        }
    }

    type Stat = super::Stat<Kind>;

    #[test]
    fn the_line_is_read_back() {
        let qp =
            |qpn, kind, remote| QpStat { qpn, kind, state: State::Rts, remote, sq_psn: 5, rq_psn: 0xff_ffff };
        let mut stat = Stat { up: true, sent: u64::MAX, received: 2, repairs: 3, qps: Vec::new() };
        assert_eq!(Stat::parse(&stat.to_string()), Some(stat.clone()));
        stat.qps = vec![qp(1, Kind::Rc, Some(2)), qp(2, Kind::Srd, None)];
        assert_eq!(Stat::parse(&stat.to_string()), Some(stat.clone()));
        for state in State::ALL {
            stat.qps[0].state = state;
            assert_eq!(Stat::parse(&stat.to_string()), Some(stat.clone()));
        }
    }

    #[test]
    fn another_text_is_none() {
        for text in [
            "",
            "up",
            "up 1 2",
            "on 1 2 3",
            "up 1 2 x",
            "up 1 2 3 4",
            "up 1 2 3 1,Rc,Rts,0,1",
            "up 1 2 3 1,Rc,Rts,0,1,2,3",
            "up 1 2 3 1,Tcp,Rts,0,1,2",
            "up 1 2 3 -1,Rc,Rts,0,1,2",
        ] {
            assert_eq!(Stat::parse(text), None, "{text}");
        }
    }
}
