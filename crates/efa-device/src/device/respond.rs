// SPDX-License-Identifier: MIT OR Apache-2.0
//! The responder's side of SRD. Each packet gets an answer; a repeated one gets the same answer.
//!
//! The packets of a write are placed as they arrive, in any order. Its immediate data are delivered when all have arrived.

use super::deferred::lane;
use super::peer::Arrival;
use super::qp::{Qp, QpKind};
use super::recv::Delivery;
use super::script::answer_to;
use super::{Device, Port, trace};
use crate::packet::{Body, Packet, Remote};
use uverbs_efa_hw::io::{
    EFA_IO_COMP_STATUS_OK, EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN, EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH, EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER,
    EFA_IO_RDMA_WRITE, EFA_IO_SEND,
};
use uverbs_fabric::order::Side;

/// The outcome of a packet: done with this status, or more packets must arrive.
enum Outcome {
    Done(u8),
    More,
}

impl Device {
    /// A packet of a send, write or read arrives.
    pub(super) fn request(&mut self, port: &mut Port<'_>, packet: Packet) {
        if let Body::Read { qkey, remote, len } = packet.body {
            // A repeated read is executed again, so nothing is remembered.
            let body = match self
                .checked(port, &packet, qkey, |device, port, qp| device.read(port, qp, remote, len))
            {
                Ok(Ok(data)) => {
                    self.stats.read_resp_bytes += data.len() as u64;
                    Body::ReadData { data }
                }
                Ok(Err(status)) | Err(status) => Body::Ack { status },
            };
            return self.answer(port, &packet, body);
        }
        let peer = self.peers.get_or_default(packet.from);
        let Some(arrival) = peer.arrival(packet.place) else {
            self.stats.rx_drops += 1;
            return;
        };
        let window = match arrival {
            Arrival::Done(status) => {
                let status = *status;
                return self.answer(port, &packet, Body::Ack { status });
            }
            Arrival::Open(window) if window.has(packet.place.index) => {
                return self.answer(port, &packet, Body::Ack { status: EFA_IO_COMP_STATUS_OK });
            }
            // A sender keeps to the window.
            Arrival::Open(window) if !window.has_room(packet.place.index) => return,
            Arrival::Open(window) => {
                window.add(packet.place.index);
                window.low()
            }
        };
        let outcome = match &packet.body {
            Body::Send { qkey, imm, data } => {
                let delivery = Delivery { op: EFA_IO_SEND, data, length: data.len() as u32, imm: *imm };
                self.checked(port, &packet, *qkey, |device, port, qp| {
                    Outcome::Done(device.deliver(port, qp, &packet, &delivery))
                })
            }
            Body::Write { qkey, remote, count, imm, unsolicited, data } => {
                let all = window >= *count;
                let write = (*remote, &data[..]);
                self.checked(port, &packet, *qkey, |device, port, qp| {
                    device.write(port, qp, &packet, write, all, imm.map(|imm| (imm, *unsolicited)))
                })
            }
            _ => return,
        };
        let outcome = outcome.unwrap_or_else(Outcome::Done);
        let status = match outcome {
            Outcome::More => EFA_IO_COMP_STATUS_OK,
            Outcome::Done(status) => {
                if let Some(arrival) = self.peers.get_or_default(packet.from).arrival(packet.place) {
                    *arrival = Arrival::Done(status);
                }
                status
            }
        };
        self.answer(port, &packet, Body::Ack { status });
    }

    fn answer(&mut self, port: &mut Port<'_>, packet: &Packet, body: Body) {
        self.emit(port, packet.from, packet.dest_qpn, packet.src_qpn, packet.place, body);
    }

    /// Calls `f` with the QP that a packet is for, or returns why there is none.
    fn checked<R>(
        &mut self,
        port: &mut Port<'_>,
        packet: &Packet,
        qkey: u32,
        f: impl FnOnce(&mut Self, &mut Port<'_>, &mut Qp) -> R,
    ) -> Result<R, u8> {
        let is_send = matches!(packet.body, Body::Send { .. });
        let result = self.with_qp(packet.dest_qpn, |device, qp| {
            if qp.kind != QpKind::Srd || !qp.state.receives() {
                return Err(EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN);
            }
            if qp.qkey != qkey {
                device.stats.qkey_viol += 1;
                return Err(EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN);
            }
            let known = Self::gid_at(port, packet.from).and_then(|gid| device.ah_of(qp.pd, gid));
            if !is_send && known.is_none() {
                return Err(EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER);
            }
            Ok(f(device, port, qp))
        });
        result.unwrap_or(Err(EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN))
    }

    /// The data of a packet of a read.
    fn read(&self, port: &Port<'_>, qp: &Qp, remote: Remote, len: u32) -> Result<Vec<u8>, u8> {
        let Remote { addr, rkey, total, offset } = remote;
        if u64::from(offset) + u64::from(len) > u64::from(total) || len > self.caps.mtu {
            return Err(EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH);
        }
        self.begin_fetch(port);
        let mut data = vec![0; len as usize];
        if total > 0 {
            self.remote(qp.pd, rkey, addr, total.into(), false)
                .and_then(|(memory, at)| self.fetch(memory, at + u64::from(offset), 0, &mut data))
                .map_err(|_| EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS)?;
        }
        Ok(data)
    }

    /// Places a packet of a write. If `all` have arrived, its immediate data are delivered.
    fn write(
        &mut self,
        port: &mut Port<'_>,
        qp: &mut Qp,
        packet: &Packet,
        (remote, data): (Remote, &[u8]),
        all: bool,
        imm: Option<(u32, bool)>,
    ) -> Outcome {
        let Remote { addr, rkey, total, offset } = remote;
        if u64::from(offset) + data.len() as u64 > u64::from(total) {
            return Outcome::Done(EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH);
        }
        // Both sides must agree whether immediate data consume a receive.
        if imm.is_some_and(|(_, unsolicited)| unsolicited != qp.unsolicited) {
            return Outcome::Done(EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH);
        }
        if total > 0 {
            let memory = self.remote(qp.pd, rkey, addr, total.into(), true);
            if memory.and_then(|(memory, at)| self.store(memory, at + u64::from(offset), data)).is_err() {
                return Outcome::Done(EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS);
            }
            if self.stores_at_once() {
                trace::written(port, qp.qpn, rkey, addr.wrapping_add(offset.into()), data.len());
            }
            self.place_collected(port, lane(qp.qpn, Side::Responder, (packet.from, packet.place.message)));
        }
        self.stats.write_recv_bytes += data.len() as u64;
        if !all {
            return Outcome::More;
        }
        let Some((imm, unsolicited)) = imm else { return Outcome::Done(EFA_IO_COMP_STATUS_OK) };
        let delivery = Delivery { op: EFA_IO_RDMA_WRITE, data: &[], length: total, imm: Some(imm) };
        if unsolicited {
            let fate = Self::receive_by_script(port, qp, packet);
            if let Some(status) = fate.status {
                // There is no receive that could have the error.
                return Outcome::Done(answer_to(status));
            }
            self.report(port, qp, packet, &delivery, (0, EFA_IO_COMP_STATUS_OK, true), fate);
            return Outcome::Done(EFA_IO_COMP_STATUS_OK);
        }
        Outcome::Done(self.deliver(port, qp, packet, &delivery))
    }
}
