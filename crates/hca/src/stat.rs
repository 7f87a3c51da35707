// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a device is doing, for an operator.

use crate::engine::qp::{QpKind, State};
use crate::plugged::Plugged;
use core::fmt;

/// The port and the QPs of a device at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// Whether the port's link is up.
    pub up: bool,
    /// Packets that the port has sent.
    pub sent: u64,
    /// Packets that the port has received.
    pub received: u64,
    /// Repeated requests and responses, because packets were lost, duplicated or out of order.
    pub repairs: u64,
    /// The QPs, by number.
    pub qps: Vec<QpStat>,
}

/// A QP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpStat {
    /// Its number.
    pub qpn: u32,
    /// Its type.
    pub kind: QpKind,
    /// Its state.
    pub state: State,
    /// The number of the peer's QP, if it is connected.
    pub remote: Option<u32>,
    /// The number of the next packet that it sends, 24 bits.
    pub sq_psn: u32,
    /// The number of the packet that it expects, 24 bits.
    pub rq_psn: u32,
}

impl<F> Plugged<F> {
    /// The port and the QPs of the device.
    #[must_use]
    pub fn stat(&self) -> Stat {
        self.fabric().read(|world| {
            let port = &world.net.ports[self.index()];
            let device = &world.read(self.index()).expect("a device is never removed").device;
            let qps = device.qps.values().map(|qp| QpStat {
                qpn: qp.qpn,
                kind: qp.kind,
                state: qp.state,
                remote: (qp.attr.dest_qpn != 0 && qp.state.receives()).then_some(qp.attr.dest_qpn),
                sq_psn: qp.req.next_psn(),
                rq_psn: qp.resp.expected_psn(),
            });
            let (up, sent, received, repairs) = (port.up, port.sent, port.received, device.repairs);
            Stat { up, sent, received, repairs, qps: qps.collect() }
        })
    }
}

/// A line: whether the link is up, packets sent and received, repairs; then the QPs: number, type, state, peer, PSNs. [`Stat::parse`] reads
/// it.
impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { up, sent, received, repairs, qps } = self;
        write!(f, "{} {sent} {received} {repairs}", if *up { "up" } else { "down" })?;
        for QpStat { qpn, kind, state, remote, sq_psn, rq_psn } in qps {
            write!(f, " {qpn},{kind:?},{state:?},{},{sq_psn},{rq_psn}", remote.unwrap_or(0))?;
        }
        Ok(())
    }
}

const KINDS: [QpKind; 9] = [
    QpKind::Rc,
    QpKind::Uc,
    QpKind::Ud,
    QpKind::XrcSend,
    QpKind::XrcRecv,
    QpKind::Dci,
    QpKind::Dct,
    QpKind::Raw,
    QpKind::Keys,
];
const STATES: [State; 7] =
    [State::Reset, State::Init, State::Rtr, State::Rts, State::Sqd, State::Sqe, State::Err];

impl Stat {
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

impl QpStat {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(',');
        let qpn = words.next()?.parse().ok()?;
        let kind = words.next()?;
        let kind = KINDS.into_iter().find(|known| format!("{known:?}") == kind)?;
        let state = words.next()?;
        let state = STATES.into_iter().find(|known| format!("{known:?}") == state)?;
        let mut number = || words.next()?.parse().ok();
        let (remote, sq_psn, rq_psn) = (number()?, number()?, number()?);
        let stat = Self { qpn, kind, state, remote: (remote != 0).then_some(remote), sq_psn, rq_psn };
        words.next().is_none().then_some(stat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_read_back() {
        let qp =
            |qpn, kind, remote| QpStat { qpn, kind, state: State::Rts, remote, sq_psn: 5, rq_psn: 0xff_ffff };
        let mut stat = Stat { up: true, sent: u64::MAX, received: 2, repairs: 3, qps: Vec::new() };
        assert_eq!(Stat::parse(&stat.to_string()), Some(stat.clone()));
        stat.qps =
            KINDS.into_iter().zip(1..).map(|(kind, n)| qp(n, kind, (n % 2 == 0).then_some(n + 1))).collect();
        assert_eq!(Stat::parse(&stat.to_string()), Some(stat.clone()));
        for state in STATES {
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
