// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults by script: what a rule may select a packet by, the answers that it gives, and WRs that complete with an error instead.

use super::packet::{Atomic, Body, Nak, Packet, Path, Transport, WrPart};
use super::qp::Qp;
use super::{Device, Notice, Port};
use crate::cqe::Syndrome;
use crate::decode::{Op, Request};
use uverbs_fabric::script::{
    Answer, Completed, Failure, Opcode, PacketFacts, Point, Queue, Refusal, Seen, Status,
};

/// What a packet is.
fn opcode(body: &Body) -> Opcode {
    match body {
        Body::Send { .. } | Body::Datagram { .. } => Opcode::Send,
        Body::Write { .. } => Opcode::Write,
        Body::Read { .. } => Opcode::Read,
        Body::Atomic { op: Atomic::CmpSwap { .. }, .. } => Opcode::CmpSwap,
        Body::Atomic { op: Atomic::FetchAdd(_), .. } => Opcode::FetchAdd,
        Body::ReadResponse { .. } => Opcode::ReadResponse,
        Body::AtomicResponse(_) => Opcode::AtomicResponse,
        Body::Ack => Opcode::Ack,
        Body::Nak(_) => Opcode::Nak,
        Body::Rnr(_) => Opcode::Rnr,
        Body::Frame(_) => Opcode::Frame,
    }
}

/// What a WR does.
fn opcode_of(op: &Op) -> Opcode {
    match op {
        Op::Send { .. } => Opcode::Send,
        Op::Write { .. } => Opcode::Write,
        Op::Read { .. } => Opcode::Read,
        Op::CmpSwap { .. } => Opcode::CmpSwap,
        Op::FetchAdd { .. } => Opcode::FetchAdd,
        Op::Frame(_) => Opcode::Frame,
        Op::Nop | Op::Umr(_) | Op::SetPsv(_) | Op::KeyUpdate(_) => Opcode::Local,
    }
}

fn syndrome(status: Status) -> Syndrome {
    match status {
        Status::LocLen => Syndrome::LOCAL_LENGTH,
        Status::LocProt => Syndrome::LOCAL_PROT,
        Status::WrFlush => Syndrome::FLUSH,
        Status::MwBind => Syndrome::MW_BIND,
        Status::BadResp => Syndrome::BAD_RESP,
        Status::LocAccess => Syndrome::LOCAL_ACCESS,
        Status::RemInvReq => Syndrome::REMOTE_INVALID,
        Status::RemAccess => Syndrome::REMOTE_ACCESS,
        Status::RemOp => Syndrome::REMOTE_OP,
        // The device has no other error for a peer that does not answer.
        Status::RetryExc | Status::RespTimeout => Syndrome::RETRY,
        Status::RnrRetryExc => Syndrome::RNR,
        Status::RemInvRdReq => Syndrome::REMOTE_INVALID,
        Status::RemAbort => Syndrome::REMOTE_ABORTED,
        Status::General => Syndrome::UNKNOWN,
        // The enum may get more of them.
        _ => Syndrome::LOCAL_QP_OP,
    }
}

/// What a script may select a packet by.
pub(super) fn facts(packet: &Packet) -> PacketFacts {
    let has_qps = packet.transport != Transport::Ethernet;
    PacketFacts {
        qp: Some(packet.src_qpn),
        dest: has_qps.then_some(packet.dest_qpn),
        opcode: Some(opcode(&packet.body)),
        wr: packet.wr.number,
        packet: packet.wr.packet,
        psn: has_qps.then_some(packet.psn),
        bytes: packet.body.data().map_or(0, Vec::len),
    }
}

/// The answer of the receiver that refuses a request. Only reliable transports have one.
pub(super) fn refused(packet: &Packet, answer: Answer) -> Option<Packet> {
    let is_reliable = matches!(packet.transport, Transport::Rc | Transport::Xrc | Transport::Dc);
    if !is_reliable || packet.body.is_response() {
        return None;
    }
    let body = match answer {
        Answer::Rnr(timer) => Body::Rnr(timer),
        Answer::Nak(Refusal::Sequence) => Body::Nak(Nak::Sequence),
        Answer::Nak(Refusal::Access) => Body::Nak(Nak::Access),
        Answer::Nak(Refusal::Operation) => Body::Nak(Nak::Operation),
        Answer::Nak(_) => Body::Nak(Nak::Invalid),
    };
    // The path of the request, in the other direction.
    let mut path = Path { slid: 0, ..packet.path.clone() };
    if let Some(grh) = &mut path.grh {
        core::mem::swap(&mut grh.sgid, &mut grh.dgid);
    }
    Some(Packet {
        src_qpn: packet.dest_qpn,
        dest_qpn: packet.src_qpn,
        ack: false,
        solicited: false,
        srqn: 0,
        msn: 0,
        path,
        body,
        ..packet.clone()
    })
}

impl Device {
    /// What becomes of a WR of a send queue that has completed without an error: the error that it has instead.
    pub(super) fn send_by_script(
        &mut self,
        cx: &mut Port<'_>,
        qp: &Qp,
        request: &Request,
        number: u32,
    ) -> Option<Syndrome> {
        if !cx.net.is_scripted() {
            return None;
        }
        let event = Seen {
            qp: Some(qp.qpn),
            opcode: Some(opcode_of(&request.op)),
            wr: Some(number),
            queue: Some(Queue::Send),
            ..Seen::new(Point::Completion, cx.me)
        };
        let completed = cx.net.script_completion(cx.now, event);
        self.failed_by_script(completed, qp.send_cqn)
    }

    /// As [`send_by_script`](Self::send_by_script), of a receive that a packet has filled, or a frame if there is no body.
    pub(super) fn receive_by_script(
        &mut self,
        cx: &mut Port<'_>,
        qp: &Qp,
        srqn: Option<u32>,
        body: Option<&Body>,
        cqn: u32,
    ) -> Option<Syndrome> {
        if !cx.net.is_scripted() {
            return None;
        }
        // Receives of an SRQ are counted together: all numbers of queues are different.
        let event = Seen {
            qp: Some(qp.qpn),
            opcode: Some(body.map_or(Opcode::Frame, opcode)),
            wr: cx.net.script_number(cx.me, srqn.unwrap_or(qp.qpn)),
            queue: Some(Queue::Recv),
            ..Seen::new(Point::Completion, cx.me)
        };
        let completed = cx.net.script_completion(cx.now, event);
        self.failed_by_script(completed, cqn)
    }

    /// The error of a WR. A full CQ gets no completion, and its QPs go to ERR as after an overrun.
    fn failed_by_script(&mut self, completed: Completed, cqn: u32) -> Option<Syndrome> {
        match completed.failure? {
            // Only a script of the environment, for all models, has such a rule: `refuses`.
            Failure::Lost => None,
            Failure::Status(status) => Some(syndrome(status)),
            Failure::Full => {
                if self.cqs.get_mut(&cqn).is_some_and(|cq| !cq.replace_broken()) {
                    self.notices.push(Notice::CqError { cqn });
                    self.overrun.push(cqn);
                }
                None
            }
        }
    }
}

impl WrPart {
    /// The packet with this index of a WR with this number.
    pub(super) const fn new(number: u32, index: u32) -> Self {
        Self { number, packet: index.saturating_add(1) }
    }
}
