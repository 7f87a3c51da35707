// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receive queue, and what is placed in receives.

use super::cq::Received;
use super::deferred::lane;
use super::mr::Buffer;
use super::qp::{Qp, QpKind, State};
use super::script::{Fate, Late, answer_to};
use super::{Caps, Device, Port, trace};
use crate::packet::{Body, Packet};
use crate::violation::{Mistake, Object};
use uverbs_efa_hw::io::{
    CdescCommon, EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH, EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY,
    EFA_IO_COMP_STATUS_OK, EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT, EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR, EFA_IO_RECV_QUEUE, RxDesc, UNKNOWN_AH,
};
use uverbs_fabric::order::Side;
use zerocopy::FromBytes;

/// Bytes of the header that a datagram has in front of its data, as with other devices: a GRH, or the room for it.
const GRH: usize = 40;

/// A receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) req_id: u16,
    buffers: Vec<Buffer>,
}

impl Receive {
    fn room(&self) -> u64 {
        self.buffers.iter().map(|buffer| u64::from(buffer.len)).sum()
    }
}

/// The message that a receive gets.
pub(super) struct Delivery<'a> {
    pub(super) op: u8,
    pub(super) data: &'a [u8],
    /// Bytes in the completion.
    pub(super) length: u32,
    pub(super) imm: Option<u32>,
}

impl Device {
    /// The doorbell of a receive queue: the number of entries posted so far.
    pub fn rq_doorbell(&mut self, port: &mut Port<'_>, qpn: u16, value: u32) {
        let result = self.with_qp(qpn, |device, qp| {
            let Some(rq) = &mut qp.rq else { return Some((0, Mistake::NoSuchQueue)) };
            let (index, size) = (rq.next, rq.count);
            if qp.state == State::Reset {
                return rq.announces(value).then_some((index, Mistake::NotReady));
            }
            if !rq.post(value as u16) {
                let posted = (value as u16).wrapping_sub(rq.next);
                return Some((index, Mistake::RingOverrun { posted, size }));
            }
            if qp.state == State::Err {
                device.flush_receives(port, qp);
            }
            None
        });
        match result {
            None => self.blame(port.now, Object::Qp(qpn), 0, Mistake::NoSuchQueue),
            Some(Some((index, mistake))) => self.blame(port.now, Object::Qp(qpn), index, mistake),
            Some(None) => {}
        }
    }

    /// Takes the next receive; `None` if there is none.
    pub(super) fn take_receive(qp: &mut Qp) -> Result<Option<Receive>, Mistake> {
        let Some(rq) = &mut qp.rq else { return Ok(None) };
        if rq.waiting() == 0 {
            return Ok(None);
        }
        let mut receive = Receive { req_id: 0, buffers: Vec::new() };
        for ahead in 0..Caps::RECV_BUFFERS.min(rq.waiting()) {
            let mut bytes = [0; size_of::<RxDesc>()];
            rq.entry(ahead, &mut bytes).map_err(|_| Mistake::MemoryGone)?;
            let desc = RxDesc::read_from_bytes(&bytes).map_err(|_| Mistake::MemoryGone)?;
            if desc.first() != (ahead == 0) {
                return Err(Mistake::ReceiveMalformed);
            }
            if ahead == 0 {
                // Drivers leave the number of the others 0 (`efa_post_recv()`).
                receive.req_id = desc.req_id;
            }
            receive.buffers.push(Buffer { addr: desc.addr(), len: desc.length.into(), lkey: desc.lkey() });
            if desc.last() {
                rq.next = rq.next.wrapping_add(ahead + 1);
                return Ok(Some(receive));
            }
        }
        Err(Mistake::ReceiveMalformed)
    }

    /// Places a message in the next receive of a QP. Returns the status for the sender.
    pub(super) fn deliver(
        &mut self,
        port: &mut Port<'_>,
        qp: &mut Qp,
        packet: &Packet,
        delivery: &Delivery<'_>,
    ) -> u8 {
        let receive = match Self::take_receive(qp) {
            Ok(Some(receive)) => receive,
            Ok(None) => return EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR,
            Err(mistake) => {
                let index = qp.rq.as_ref().map_or(0, |rq| rq.next);
                self.fatal(port, qp, index, mistake);
                return EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT;
            }
        };
        let mut result = if delivery.data.len() as u64 > receive.room() {
            (EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH, EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH)
        } else if self.check_local(qp.pd, &receive.buffers, true).is_err()
            || self.scatter(qp.pd, &receive.buffers, 0, delivery.data).is_err()
        {
            (EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY, EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT)
        } else {
            (EFA_IO_COMP_STATUS_OK, EFA_IO_COMP_STATUS_OK)
        };
        let mut fate = Fate::default();
        if result.0 == EFA_IO_COMP_STATUS_OK {
            fate = Self::receive_by_script(port, qp, packet);
            result = fate.status.map_or(result, |status| (status, answer_to(status)));
        }
        let (status, answer) = result;
        if status == EFA_IO_COMP_STATUS_OK {
            if self.stores_at_once() {
                trace::placed(port, qp.qpn, &receive.buffers, (0, delivery.data.len()));
            }
            self.stats.recv_wrs += 1;
            self.stats.recv_bytes += u64::from(delivery.length);
        }
        self.report(port, qp, packet, delivery, (receive.req_id, status, false), fate);
        answer
    }

    /// Writes the completion of a receive, or of a write that consumes none.
    pub(super) fn report(
        &mut self,
        port: &mut Port<'_>,
        qp: &mut Qp,
        packet: &Packet,
        delivery: &Delivery<'_>,
        (req_id, status, unsolicited): (u16, u8, bool),
        fate: Fate,
    ) {
        let gid = Self::gid_at(port, packet.from);
        let ah = gid.and_then(|gid| self.ah_of(qp.pd, gid));
        let flags =
            CdescCommon::pack(false, EFA_IO_RECV_QUEUE, delivery.imm.is_some(), delivery.op, unsolicited);
        let received = Received {
            common: CdescCommon { req_id, status, flags, qp_num: qp.qpn },
            length: delivery.length,
            ah: ah.unwrap_or(UNKNOWN_AH),
            src_qpn: packet.src_qpn,
            imm: delivery.imm.unwrap_or(0),
            gid: if ah.is_none() { gid } else { None },
        };
        let message = lane(qp.qpn, Side::Responder, (packet.from, packet.place.message));
        self.complete_by_script(port, qp, fate, message, Late::Receive(received));
    }

    /// The GID of a port.
    pub(super) fn gid_at(port: &Port<'_>, slot: usize) -> Option<[u8; 16]> {
        port.net.ports.get(slot)?.gids.first().map(|(gid, _)| *gid)
    }

    /// An unreliable datagram arrives.
    pub(super) fn datagram(&mut self, port: &mut Port<'_>, packet: Packet) {
        let Body::Datagram { qkey, imm, data } = &packet.body else { return };
        let own = self.gid;
        let delivered = self.with_qp(packet.dest_qpn, |device, qp| {
            if qp.kind != QpKind::Ud || !qp.state.receives() {
                return false;
            }
            if qp.qkey != *qkey {
                device.stats.qkey_viol += 1;
                return false;
            }
            let mut bytes = grh(Self::gid_at(port, packet.from).unwrap_or_default(), own, data.len());
            bytes.extend_from_slice(data);
            let length = bytes.len() as u32;
            let delivery = Delivery { op: uverbs_efa_hw::io::EFA_IO_SEND, data: &bytes, length, imm: *imm };
            device.deliver(port, qp, &packet, &delivery) == EFA_IO_COMP_STATUS_OK
        });
        if delivered != Some(true) {
            self.stats.rx_drops += 1;
        }
    }
}

/// A global route header (InfiniBand specification, 8.3).
fn grh(source: [u8; 16], destination: [u8; 16], len: usize) -> Vec<u8> {
    let mut bytes = vec![0; GRH];
    bytes[0] = 6 << 4;
    bytes[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    // The next header is that of InfiniBand; the hop limit.
    (bytes[6], bytes[7]) = (0x1b, 0xff);
    bytes[8..24].copy_from_slice(&source);
    bytes[24..].copy_from_slice(&destination);
    bytes
}
