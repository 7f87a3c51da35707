// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults by script: completions with an error, late ones, and lost ones.

use super::cq::Received;
use super::qp::Qp;
use super::transmit::{Key, Message};
use super::{Device, Port};
use crate::packet::{Body, Packet};
use uverbs_efa_hw::io::{
    CdescCommon, EFA_IO_COMP_STATUS_FLUSHED, EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY, EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE, EFA_IO_COMP_STATUS_OK,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT, EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN, EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_STATUS, EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER, EFA_IO_RDMA_READ, EFA_IO_RDMA_WRITE,
};
use uverbs_fabric::order::Lane;
use uverbs_fabric::script::{Completed, Failure, Opcode, Point, Queue, Seen, Status};

/// Late completions of a QP at most; further ones are written at once.
const MAX_LATE: usize = 1 << 12;
/// A status that no version of the device has: drivers report another error.
const UNKNOWN: u8 = 0xff;

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(super) enum Late {
    /// Of a send, read or write, and whether it has to wait until its data were read.
    Send(CdescCommon, bool),
    /// Of a receive.
    Receive(Received),
}

/// What becomes of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    /// The error that it has.
    pub(super) status: Option<u8>,
    /// How much later it is written, ns.
    delay: u64,
    is_lost: bool,
}

impl From<Completed> for Fate {
    fn from(completed: Completed) -> Self {
        let mut fate = Self { delay: completed.delay, ..Self::default() };
        match completed.failure {
            Some(Failure::Status(status)) => fate.status = Some(code(status)),
            // A CQ without room has no event on this device.
            Some(Failure::Full | Failure::Lost) => fate.is_lost = true,
            None => {}
        }
        fate
    }
}

/// The status of the device that drivers report as this one, or as the most similar one that they report.
fn code(status: Status) -> u8 {
    match status {
        Status::LocLen => EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH,
        Status::LocProt | Status::LocAccess => EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY,
        Status::WrFlush => EFA_IO_COMP_STATUS_FLUSHED,
        Status::BadResp => EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_STATUS,
        Status::RemInvReq => EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH,
        Status::RemInvRdReq => EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN,
        Status::RemAccess => EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS,
        Status::RemOp => EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER,
        Status::RemAbort => EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT,
        Status::RetryExc | Status::RespTimeout => EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE,
        Status::RnrRetryExc => EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR,
        Status::General => UNKNOWN,
        // Of windows, which the device does not have; and the enum may get more of them.
        _ => EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR,
    }
}

/// What a sender is told whose peer's receive has this error.
pub(super) const fn answer_to(status: u8) -> u8 {
    match status {
        EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH => EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH,
        _ => EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT,
    }
}

impl Device {
    /// A request has been executed: its completion, or what a script makes of it. The state of the QP does not change.
    pub(super) fn succeed(&mut self, port: &mut Port<'_>, qp: &mut Qp, message: &Message, key: Option<Key>) {
        let mut fate = Fate::default();
        if port.net.is_scripted() {
            let opcode = match message.meta.op_type() {
                EFA_IO_RDMA_READ => Opcode::Read,
                EFA_IO_RDMA_WRITE => Opcode::Write,
                _ => Opcode::Send,
            };
            let event = Seen {
                qp: Some(qp.qpn.into()),
                opcode: Some(opcode),
                wr: Some(message.number),
                queue: Some(Queue::Send),
                ..Seen::new(Point::Completion, port.me)
            };
            fate = port.net.script_completion(port.now, event).into();
        }
        let status = fate.status.unwrap_or(EFA_IO_COMP_STATUS_OK);
        if let Some(common) = Self::sent(qp, &message.meta, status) {
            let (lane, after_reads) = Self::lane_of_send(qp, status, key);
            self.complete_by_script(port, qp, fate, lane, Late::Send(common, after_reads));
        }
    }

    /// What a script makes of a receive that a packet has filled, or of a write that consumes none.
    pub(super) fn receive_by_script(port: &mut Port<'_>, qp: &Qp, packet: &Packet) -> Fate {
        if !port.net.is_scripted() {
            return Fate::default();
        }
        let opcode = if matches!(packet.body, Body::Write { .. }) { Opcode::Write } else { Opcode::Send };
        let event = Seen {
            qp: Some(qp.qpn.into()),
            opcode: Some(opcode),
            wr: port.net.script_number(port.me, qp.qpn.into()),
            queue: Some(Queue::Recv),
            ..Seen::new(Point::Completion, port.me)
        };
        port.net.script_completion(port.now, event).into()
    }

    /// Writes a completion, now or later, or not at all.
    pub(super) fn complete_by_script(
        &mut self,
        port: &mut Port<'_>,
        qp: &mut Qp,
        fate: Fate,
        lane: Lane,
        completion: Late,
    ) {
        if !fate.is_lost && (fate.delay == 0 || qp.late.len() >= MAX_LATE) {
            return self.put(port, qp, lane, completion);
        }
        // The data become visible in any case.
        self.place_collected(port, lane);
        if fate.is_lost {
            return;
        }
        qp.late.push((port.now.saturating_add(fate.delay), lane, completion));
        self.set_timer(port, qp);
    }

    fn put(&mut self, port: &mut Port<'_>, qp: &Qp, lane: Lane, completion: Late) {
        match completion {
            Late::Send(common, after_reads) => {
                self.complete_send(port, qp.send_queue(), lane, common, after_reads);
            }
            Late::Receive(received) => self.complete_receive(port, qp.recv_queue(), lane, received),
        }
    }

    /// Writes the late completions whose time has come.
    pub(super) fn write_late(&mut self, port: &mut Port<'_>, qp: &mut Qp) {
        let now = port.now;
        let due: Vec<_> = qp.late.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, lane, completion) in due {
            self.put(port, qp, lane, completion);
        }
    }
}
