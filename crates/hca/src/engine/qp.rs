// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs: their parts, their states, flushing.

use super::aside::Copying;
pub(crate) use super::attr::Route;
pub use super::attr::{Attr, QpKind, State};
use super::mkey::User;
use super::recv::{RecvRing, Taken};
use super::requester::Requester;
use super::responder::Responder;
use super::streams::Streams;
use super::table::Uses;
use super::{Device, Notice, Port, event, trace};
use crate::cqe::{Cqe, Syndrome};
use crate::decode::{Op, Request};
use crate::memory::Area;
use crate::violation::{Mistake, Object};
use uverbs_fabric::Timer;
use uverbs_fabric::map::Map;
use uverbs_mlx5_hw::cqe::{MLX5_CQE_REQ, MLX5_CQE_REQ_ERR};

/// A send queue.
#[derive(Debug)]
pub struct SendRing {
    /// Its memory.
    pub ring: Area,
    /// Number of basic blocks, a power of two.
    pub count: u32,
    /// The doorbell record; its second word counts the blocks posted, 16 bits.
    pub record: Area,
    /// Index of the next block to fetch, 16 bits.
    pub next: u16,
    /// Index of the block behind the last WQE that a doorbell published.
    pub posted: u16,
}

/// What the device at the other end of a connection is found by: the changes of the network, LID, GID.
type PeerKey = (u64, u16, Option<[u8; 16]>);

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Its number.
    pub qpn: u32,
    /// Its number in packets, which is different for management queues.
    pub wire: u32,
    /// Its type.
    pub kind: QpKind,
    /// Number of its protection domain.
    pub pd: u32,
    /// The user index in its completions.
    pub uidx: u32,
    /// The page of its doorbells, if it was created with one.
    pub page: Option<u32>,
    /// Its state.
    pub state: State,
    /// Its attributes.
    pub attr: Attr,
    /// Its send queue, if it has one.
    pub sq: Option<SendRing>,
    /// Its own receive queue, if it has one.
    pub rq: Option<RecvRing>,
    /// Number of its SRQ, if it has one.
    pub srqn: Option<u32>,
    /// Number of its XRC domain.
    pub xrcd: u32,
    /// Number of the CQ of its sends.
    pub send_cqn: u32,
    /// Number of the CQ of its receives.
    pub recv_cqn: u32,
    /// Answers of at most this length are written to the completion instead of memory.
    pub scatter_req: usize,
    /// Messages of at most this length are written to the completion instead of memory.
    pub scatter_resp: usize,
    /// The streams of a DC initiator, if it was created with streams.
    pub streams: Option<Streams>,
    /// The key that initiators must have, of a DC target.
    pub dc_key: u64,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
    /// Responders of a DC target, by device and QP of the initiator.
    pub(crate) sessions: Map<(usize, u32), Responder>,
    pub(crate) timer: Timer,
    /// The device at the other end of its connection, and what it was found by.
    pub(super) peer: Option<(PeerKey, Option<usize>)>,
    pub(crate) established: bool,
    /// Whether the event `LAST_WQE_REACHED` was raised.
    pub(crate) last_wqe: bool,
    /// What it used when it was added to the device.
    pub(super) uses: Uses,
    /// The WRs that were fetched from its send queue since the last reset.
    pub(crate) fetched: u32,
    /// Whether a send has failed since the last reset.
    pub(crate) send_failed: bool,
    /// Whether it is in the list of queues that wait for an exchange, or may not be, during a copy.
    pub(super) is_ready: bool,
    /// The copy of its data without the lock.
    pub(super) copying: Copying,
    /// Whether the first error of a signature moves it to SQD, with an event (`drain_sigerr`).
    pub(crate) drain_sigerr: bool,
}

impl Qp {
    /// A QP in the state RESET without queues.
    #[must_use]
    pub fn new(qpn: u32, kind: QpKind) -> Self {
        Self {
            qpn,
            wire: qpn,
            kind,
            pd: 0,
            uidx: 0,
            page: None,
            state: State::Reset,
            attr: Attr::default(),
            sq: None,
            rq: None,
            srqn: None,
            xrcd: 0,
            send_cqn: 0,
            recv_cqn: 0,
            scatter_req: 0,
            scatter_resp: 0,
            streams: None,
            dc_key: 0,
            req: Requester::default(),
            resp: Responder::default(),
            sessions: Map::new(),
            timer: Timer::default(),
            peer: None,
            established: false,
            last_wqe: false,
            uses: Uses::default(),
            fetched: 0,
            send_failed: false,
            is_ready: false,
            copying: Copying::default(),
            drain_sigerr: false,
        }
    }

    pub(crate) fn user(&self) -> User {
        User { pd: self.pd, qpn: self.qpn }
    }

    /// Whether it can receive: it has a receive queue or an SRQ.
    pub(crate) fn takes_receives(&self) -> bool {
        self.rq.is_some() || self.srqn.is_some()
    }

    /// Whether its send queue has requests, or packets of a request, that are not sent.
    pub(super) fn has_more(&self) -> bool {
        let sq = self.sq.as_ref();
        self.req.has_more() || sq.is_some_and(|sq| sq.posted != sq.next)
    }

    /// Whether its transport is reliable.
    pub(crate) fn is_reliable(&self) -> bool {
        matches!(self.kind, QpKind::Rc | QpKind::XrcSend | QpKind::Dci | QpKind::Keys)
    }
}

impl Device {
    /// Moves the QP with this number to a state. The front has checked the transition. `false` if there is no such QP.
    pub fn move_qp(&mut self, port: &mut Port<'_>, qpn: u32, to: State) -> bool {
        self.with_qp(port, qpn, |device, port, qp| device.set_state(port, qp, to)).is_some()
    }

    /// Moves a QP to a state. The front has checked the transition.
    pub(crate) fn set_state(&mut self, cx: &mut Port<'_>, qp: &mut Qp, to: State) {
        debug_assert!(!qp.copying.runs, "a queue is moved whose data are being copied");
        let from = qp.state;
        qp.state = to;
        trace::state(cx, qp, from);
        match to {
            State::Reset => {
                qp.req = Requester { sessions: qp.req.sessions, ..Requester::default() };
                qp.resp = Responder::default();
                self.sessions -= qp.sessions.len();
                qp.sessions.clear();
                qp.timer.deadline = None;
                (qp.established, qp.last_wqe, qp.send_failed) = (false, false, false);
                qp.drain_sigerr = false;
                qp.streams.iter_mut().for_each(Streams::forget);
                qp.fetched = 0;
                if let Some(sq) = &mut qp.sq {
                    (sq.next, sq.posted) = (0, 0);
                }
                if let Some(rq) = &mut qp.rq {
                    rq.taken = 0;
                }
            }
            State::Rtr if from == State::Init => qp.resp = Responder::new(qp.attr.rq_psn),
            State::Rts if from == State::Rtr => {
                let sessions = qp.req.sessions;
                qp.req = Requester { sessions, ..Requester::new(qp.attr.sq_psn, &qp.attr) };
                self.transmit(cx, qp);
            }
            State::Rts => self.transmit(cx, qp),
            State::Sqd => self.drained(qp),
            State::Sqe => self.flush_sends(cx, qp),
            State::Err => {
                if qp.rq.is_some() {
                    self.failed.insert(qp.qpn);
                }
                self.flush_sends(cx, qp);
                self.flush_receives(cx, qp);
                self.last_wqe(qp);
            }
            State::Init | State::Rtr => {}
        }
    }

    /// Raises the event that the send queue is drained, if the driver has requested it.
    pub(crate) fn drained(&mut self, qp: &mut Qp) {
        if qp.state == State::Sqd && qp.req.is_idle() && qp.attr.notify_drained {
            qp.attr.notify_drained = false;
            self.notices.push(Notice::Qp { qpn: qp.qpn, event: event::SQ_DRAINED });
        }
    }

    fn last_wqe(&mut self, qp: &mut Qp) {
        if qp.srqn.is_some() && !qp.last_wqe && self.raises_last_wqe {
            qp.last_wqe = true;
            self.notices.push(Notice::Qp { qpn: qp.qpn, event: event::QP_LAST_WQE_REACHED });
        }
    }

    /// Moves the QP to the error state, once.
    pub(crate) fn fail(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        // Datagram and unreliable QPs still receive in SQE.
        let to = if matches!(qp.kind, QpKind::Ud | QpKind::Uc) { State::Sqe } else { State::Err };
        if qp.state != State::Err && qp.state != to {
            self.set_state(cx, qp, to);
        }
    }

    /// Moves the QP to the error state after an error of the receiving side.
    pub(crate) fn fail_responder(&mut self, cx: &mut Port<'_>, qp: &mut Qp, event: Option<u32>) {
        if let Some(event) = event {
            self.notices.push(Notice::Qp { qpn: qp.qpn, event });
        }
        if qp.state != State::Err {
            self.set_state(cx, qp, State::Err);
        }
    }

    /// Records a violation after which the QP can't continue.
    pub(crate) fn fatal(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        object: Object,
        index: u32,
        mistake: Mistake,
    ) {
        self.blame(cx.now, object, index, mistake);
        self.notices.push(Notice::Qp { qpn: qp.qpn, event: event::QP_FATAL });
        if qp.state != State::Err {
            self.set_state(cx, qp, State::Err);
        }
    }

    /// Completes a send. An unsignaled send that succeeds has no completion.
    pub(crate) fn complete_send(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        request: &Request,
        result: Result<Option<Vec<u8>>, Syndrome>,
    ) {
        let byte_cnt = match request.op {
            // The response to an atomic has 8 bytes, independent of the size of the list.
            Op::CmpSwap { .. } | Op::FetchAdd { .. } => 8,
            _ => request.len() as u32,
        };
        let mut has_failed = false;
        if result.is_err() {
            has_failed = qp.send_failed || self.flushed(qp, request).is_some();
            // The first error of a stream is its own.
            qp.send_failed |= qp.streams.is_none() || qp.state == State::Err;
        }
        let cqe = match result {
            Ok(_) if !request.signaled => return,
            Err(_) if request.first_error && has_failed => return,
            Ok(inline) => {
                Cqe { kind: MLX5_CQE_REQ, opcode: request.opcode, byte_cnt, inline, ..Cqe::default() }
            }
            Err(syndrome) => Cqe {
                kind: MLX5_CQE_REQ_ERR,
                opcode: request.opcode,
                syndrome: Some(syndrome),
                ..Cqe::default()
            },
        };
        let srqn_uidx = self.srqn_uidx(None, qp.uidx);
        self.complete(cx, qp.send_cqn, Cqe { srqn_uidx, qpn: qp.qpn, wqe_counter: request.index, ..cqe });
    }

    /// Flushes the send queue.
    pub(crate) fn flush_sends(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        qp.timer.deadline = None;
        for request in qp.req.drain() {
            self.complete_send(cx, qp, &request, Err(Syndrome::FLUSH));
        }
        while let Some(fetched) = self.fetch(cx, qp) {
            match fetched {
                Ok(request) => self.complete_send(cx, qp, &request, Err(Syndrome::FLUSH)),
                Err(_) => break,
            }
        }
    }

    /// Flushes the receive queue.
    pub(crate) fn flush_receives(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        let mut open: Vec<(Option<u32>, Taken)> = qp.resp.abort().into_iter().collect();
        open.extend(qp.sessions.values_mut().filter_map(Responder::abort));
        for (srqn, taken) in open {
            self.fail_receive(cx, qp, srqn, &taken, Syndrome::FLUSH);
        }
        while qp.srqn.is_none() {
            let Some(taken) = self.take_receive(cx, qp, None) else { break };
            self.fail_receive(cx, qp, None, &taken, Syndrome::FLUSH);
        }
    }
}
