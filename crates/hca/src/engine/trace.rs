// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the device does, in words, for a trace. Without one, each of these costs one comparison.

use super::mkey::Kind;
use super::notice::{Notice, event};
use super::packet::{Atomic, Body, Nak, Packet, Transport};
use super::qp::{Qp, State};
use super::recv::Taken;
use super::{Device, Port};
use crate::cqe::Cqe;
use crate::decode::{QueueKind, Segment};
use core::fmt::Write as _;
use uverbs_decode::{Entry, mlx5};
use uverbs_fabric::trace::StepKind;

/// An entry: what it does, and its memory.
fn entry(entry: &Entry) -> (String, String) {
    let places: Vec<String> = entry.places.iter().map(ToString::to_string).collect();
    let words = match entry.problems.as_slice() {
        [] => entry.summary(),
        problems => format!("{}; problem: {}", entry.summary(), problems.join("; ")),
    };
    (words, places.join("; "))
}

/// The device has fetched a request.
pub(super) fn request(cx: &Port<'_>, qpn: u32, kind: QueueKind, wqe: &[u8]) {
    cx.trace(qpn, StepKind::Request, || entry(&mlx5::send(kind, wqe)));
}

/// The device has taken a receive for a message.
pub(super) fn receive(cx: &Port<'_>, qpn: u32, srqn: Option<u32>, taken: &Taken) {
    cx.trace(qpn, StepKind::Receive, || {
        let of = srqn.map_or(String::new(), |srqn| format!(" of SRQ {srqn:#08x}"));
        let words = format!("WQE {}{of} with room for {} bytes is taken", taken.index, taken.wqe.room());
        let memory = taken.wqe.scatter.iter().filter_map(|segment| match segment {
            Segment::Memory { length, lkey, addr } => {
                Some(format!("{length} bytes at {addr:#x} (lkey {lkey:#x})"))
            }
            Segment::Inline(_) => None,
        });
        (words, memory.collect::<Vec<_>>().join("; "))
    });
}

/// The device has written a completion.
pub(super) fn completion(cx: &Port<'_>, cqn: u32, cqe: &Cqe) {
    cx.trace(cqe.qpn, StepKind::Completion, || {
        let (words, detail) = match &cqe.inline {
            Some(data) if data.len() > 32 => entry(&mlx5::cqe(&cqe.encode::<128>(0))),
            _ => entry(&mlx5::cqe(&cqe.encode::<64>(0))),
        };
        let place = if detail.is_empty() { String::new() } else { format!(", {detail}") };
        (words, format!("CQ {cqn:#x}{place}"))
    });
}

/// A QP has another state.
pub(super) fn state(cx: &Port<'_>, qp: &Qp, from: State) {
    if from != qp.state {
        cx.trace(qp.qpn, StepKind::State, || (format!("{from:?} becomes {:?}", qp.state), String::new()));
    }
}

/// The timer of a QP has expired.
pub(super) fn timer(cx: &Port<'_>, qp: &Qp) {
    cx.trace(qp.qpn, StepKind::Timer, || {
        let words = match qp.req.waits_for_receiver() {
            true if qp.attr.rnr_retry == 7 => "the wait for a receiver is over, retries without limit".into(),
            true => {
                format!("the wait for a receiver is over, {} retries are left", qp.req.rnr_retries_left())
            }
            false if qp.is_reliable() => {
                format!("no answer came, {} retries are left", qp.req.retries_left())
            }
            false => "the queue goes on".into(),
        };
        (words, String::new())
    });
}

impl Device {
    /// `len` bytes were written to memory of a key.
    #[inline]
    pub(super) fn trace_placed(&self, cx: &Port<'_>, qpn: u32, key: u32, addr: u64, len: u64) {
        if cx.net.is_traced() && len > 0 && self.places_at_once() {
            self.show_placed(cx, qpn, key, addr, len);
        }
    }

    #[cold]
    fn show_placed(&self, cx: &Port<'_>, qpn: u32, key: u32, addr: u64, len: u64) {
        cx.trace(qpn, StepKind::Placed, || {
            let start = self.mkeys.get(key).and_then(|mkey| match mkey.kind {
                Kind::Region { iova, .. } => Some(iova),
                Kind::Indirect(_) | Kind::Null | Kind::Free => None,
            });
            let at = start.map_or(String::new(), |start| format!(" + {}", addr.wrapping_sub(start)));
            (
                format!("{len} bytes to key {key:#x}{at}"),
                format!("{addr:#x} to {:#x}", addr.wrapping_add(len)),
            )
        });
    }

    /// `len` bytes were written at `offset` of the memory of the segments.
    #[inline]
    pub(super) fn trace_scattered(&self, cx: &Port<'_>, qpn: u32, segments: &[Segment], part: (u64, usize)) {
        if cx.net.is_traced() && self.places_at_once() {
            self.show_scattered(cx, qpn, segments, part);
        }
    }

    #[cold]
    fn show_scattered(&self, cx: &Port<'_>, qpn: u32, segments: &[Segment], (offset, len): (u64, usize)) {
        // The walk does not fail, because each part succeeds.
        let _ = super::data::walk(segments, offset, len, |segment, at, n| {
            if let Segment::Memory { lkey, addr, .. } = segment {
                self.show_placed(cx, qpn, *lkey, addr.wrapping_add(at), n as u64);
            }
            Ok(())
        });
    }

    /// The notices that the front gets next.
    pub(super) fn trace_notices(&self, cx: &Port<'_>) {
        if !cx.net.is_traced() {
            return;
        }
        for notice in &self.notices {
            let (qpn, words) = match *notice {
                Notice::Completion { cqn } => (0, format!("completion event of CQ {cqn:#x}")),
                Notice::CqError { cqn } => (0, format!("CQ {cqn:#x}: {}", event_name(event::CQ_ERR))),
                Notice::Qp { qpn, event } => (qpn, event_name(event).to_owned()),
                Notice::Srq { srqn, event } => (0, format!("SRQ {srqn:#x}: {}", event_name(event))),
                Notice::Wq { wqn, event } => (0, format!("WQ {wqn:#x}: {}", event_name(event))),
                Notice::Port { event } => (0, event_name(event).to_owned()),
            };
            cx.trace(qpn, StepKind::Event, || (words, String::new()));
        }
    }
}

/// The name in `enum ibv_event_type`.
const fn event_name(number: u32) -> &'static str {
    match number {
        event::CQ_ERR => "IBV_EVENT_CQ_ERR",
        event::QP_FATAL => "IBV_EVENT_QP_FATAL",
        event::QP_REQ_ERR => "IBV_EVENT_QP_REQ_ERR",
        event::QP_ACCESS_ERR => "IBV_EVENT_QP_ACCESS_ERR",
        event::COMM_EST => "IBV_EVENT_COMM_EST",
        event::SQ_DRAINED => "IBV_EVENT_SQ_DRAINED",
        event::DEVICE_FATAL => "IBV_EVENT_DEVICE_FATAL",
        event::PORT_ACTIVE => "IBV_EVENT_PORT_ACTIVE",
        event::PORT_ERR => "IBV_EVENT_PORT_ERR",
        event::LID_CHANGE => "IBV_EVENT_LID_CHANGE",
        event::SRQ_ERR => "IBV_EVENT_SRQ_ERR",
        event::SRQ_LIMIT_REACHED => "IBV_EVENT_SRQ_LIMIT_REACHED",
        event::QP_LAST_WQE_REACHED => "IBV_EVENT_QP_LAST_WQE_REACHED",
        event::GID_CHANGE => "IBV_EVENT_GID_CHANGE",
        event::WQ_FATAL => "IBV_EVENT_WQ_FATAL",
        _ => "an event without a name",
    }
}

/// The place of a packet in its message.
const fn part(first: bool, last: bool) -> &'static str {
    match (first, last) {
        (true, true) => "only",
        (true, false) => "first",
        (false, false) => "middle",
        (false, true) => "last",
    }
}

/// A packet in words, and the addresses in it.
pub(super) fn packet(packet: &Packet) -> (String, String) {
    let Packet { transport, psn, ack, solicited, msn, body, .. } = packet;
    let mut detail = String::new();
    let mut at = |addr: u64, rkey: u32| detail = format!("{addr:#x}, rkey {rkey:#x}");
    let mut words = match body {
        Body::Send { first, last, data, .. } => format!("SEND {}, {} bytes", part(*first, *last), data.len()),
        Body::Write { start, last, data, .. } => {
            if let Some((addr, rkey, _)) = start {
                at(*addr, *rkey);
            }
            format!("RDMA WRITE {}, {} bytes", part(start.is_some(), *last), data.len())
        }
        Body::Read { addr, rkey, len } => {
            at(*addr, *rkey);
            format!("RDMA READ request for {len} bytes")
        }
        Body::Atomic { addr, rkey, op } => {
            at(*addr, *rkey);
            match op {
                Atomic::CmpSwap { compare, swap } => {
                    format!("compare and swap, {compare:#x} becomes {swap:#x}")
                }
                Atomic::FetchAdd(add) => format!("fetch and add of {add:#x}"),
            }
        }
        Body::ReadResponse { first, last, data } => {
            format!("RDMA READ response {}, {} bytes", part(*first, *last), data.len())
        }
        Body::AtomicResponse(value) => format!("atomic answer {value:#x}"),
        Body::Ack => "ACK".into(),
        Body::Nak(nak) => match nak {
            Nak::Sequence => "NAK: a packet is missing".into(),
            Nak::Invalid => "NAK: invalid request".into(),
            Nak::Access => "NAK: remote access error".into(),
            Nak::Operation => "NAK: remote operational error".into(),
        },
        Body::Rnr(timer) => {
            let delay = super::reliable::rnr_delay(*timer);
            format!("RNR NAK: no receive, wait {}.{:02} ms", delay / 1_000_000, delay / 10_000 % 100)
        }
        Body::Datagram { data, .. } => format!("datagram of {} bytes", data.len()),
        Body::Frame(data) => format!("frame of {} bytes", data.len()),
    };
    if *transport != Transport::Ethernet {
        let _ = write!(words, ", PSN {psn}");
    }
    if body.is_response() && !matches!(body, Body::Nak(_) | Body::Rnr(_)) {
        let _ = write!(words, ", MSN {msn}");
    }
    let (imm, invalidate) = match body {
        Body::Send { imm, invalidate, .. } => (*imm, *invalidate),
        Body::Write { imm, .. } | Body::Datagram { imm, .. } => (*imm, None),
        _ => (None, None),
    };
    if let Some(imm) = imm {
        let _ = write!(words, ", imm {imm:#x}");
    }
    if let Some(key) = invalidate {
        let _ = write!(words, ", invalidates {key:#x}");
    }
    for (is_set, word) in [(*ack && !body.is_response(), "asks for an ACK"), (*solicited, "solicited")] {
        if is_set {
            let _ = write!(words, ", {word}");
        }
    }
    (words, detail)
}
