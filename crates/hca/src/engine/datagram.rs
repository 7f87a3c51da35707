// SPDX-License-Identifier: MIT OR Apache-2.0
//! Datagrams and the sending side of unreliable connections.

use super::packet::{Body, Data, Direct, Grh, Packet, Path, WrPart, psn_add};
use super::qp::{Qp, QpKind};
use super::reliable::{MAX_MESSAGE, peer};
use super::{Device, Port};
use crate::bytes::put;
use crate::cqe::{Cqe, Syndrome};
use crate::decode::{Av, Op, Request};
use crate::engine::net::Address;
use uverbs_fabric::order::Side;
use uverbs_mlx5_hw::cqe::{MLX5_CQE_RESP_SEND, MLX5_CQE_RESP_SEND_IMM};

/// The QP number of multicast packets.
const MULTICAST_QPN: u32 = 0xff_ffff;
/// Bytes in front of every datagram: a global route header, or unused space.
const GRH: usize = 40;
/// The partition of all ports.
const DEFAULT_PKEY: u32 = 0xffff;
/// UDP, the next header of RoCE version 2.
const UDP: u8 = 17;
/// InfiniBand's transport header, the next header of a GRH.
const IBA: u8 = 0x1b;

impl Device {
    /// Executes a send on an unreliable connection: sends at most `room` packets of the message, beginning with packet
    /// `first`. Returns the index of the next packet if the message is not complete.
    pub(crate) fn send_unreliable(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        request: &Request,
        first: u64,
        room: &mut u64,
    ) -> Result<Option<u64>, Syndrome> {
        let user = qp.user();
        match &request.op {
            Op::Nop => return Ok(None),
            Op::Umr(umr) => {
                return self.update_indirect(user, umr).map(|()| None).map_err(|_| Syndrome::MW_BIND);
            }
            Op::SetPsv(psv) => {
                let set = self.mkeys.psvs.set(user.pd, psv.index, psv.signature);
                return set.map(|()| None).map_err(|_| Syndrome::LOCAL_QP_OP);
            }
            _ => {}
        }
        let len = request.len();
        if len > MAX_MESSAGE {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        self.check_gather(user, &request.data)?;
        let mtu = u64::from(qp.attr.mtu.max(1));
        let count = len.div_ceil(mtu).max(1);
        for i in first..count {
            if *room == 0 {
                return Ok(Some(i));
            }
            *room -= 1;
            let (at, is_first, is_last) = (i * mtu, i == 0, i + 1 == count);
            let data = self.gather(user, &request.data, at, (len - at).min(mtu) as usize, cx.net.buffer())?;
            let body = match request.op {
                Op::Send { imm, invalidate } => Body::Send {
                    first: is_first,
                    last: is_last,
                    imm: imm.filter(|_| is_last),
                    invalidate: invalidate.filter(|_| is_last),
                    data,
                },
                Op::Write { addr, rkey, imm } => Body::Write {
                    start: is_first.then_some((addr, rkey, len as u32)),
                    last: is_last,
                    imm: imm.filter(|_| is_last),
                    data,
                },
                _ => return Err(Syndrome::LOCAL_QP_OP),
            };
            let psn = qp.req.take_psn();
            let wr = WrPart::new(qp.fetched, i as u32);
            let packet = Packet { solicited: request.solicited && is_last, wr, ..packet(cx, qp, psn, body) };
            let waits = self.waits(cx, user, Side::Requester, None);
            if let Some(to) = peer(cx, qp) {
                cx.net.send_when(cx.now, to, packet, waits);
            }
        }
        Ok(None)
    }

    /// Executes a send of a datagram.
    pub(crate) fn send_datagram(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        request: &Request,
    ) -> Result<(), Syndrome> {
        let (Op::Send { imm, .. }, Some(av)) = (&request.op, &request.av) else {
            return if request.op == Op::Nop { Ok(()) } else { Err(Syndrome::LOCAL_QP_OP) };
        };
        let len = request.len();
        if len > u64::from(qp.attr.mtu) {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        self.check_gather(qp.user(), &request.data)?;
        let data = self.gather(qp.user(), &request.data, 0, len as usize, cx.net.buffer())?;
        let qkey = (av.key >> 32) as u32;
        // If the top bit of the key is set, the QP's own Q_Key is used.
        let qkey = if qkey >> 31 == 0 { qkey } else { qp.attr.qkey };
        let path = self.path(cx, av);
        let psn = qp.req.take_psn();
        let body = Body::Datagram { qkey, imm: *imm, data };
        let packet = Packet { path, solicited: request.solicited, ..packet(cx, qp, psn, body) };
        let waits = self.waits(cx, qp.user(), Side::Requester, None);
        if av.dest == MULTICAST_QPN {
            for (to, dest_qpn) in cx.net.members(&av.rgid) {
                cx.net.send_when(cx.now, to, Packet { dest_qpn, ..packet.clone() }, waits.clone());
            }
        } else if let Some(to) = self.route(cx, av) {
            cx.net.send_when(cx.now, to, Packet { dest_qpn: av.dest, ..packet }, waits);
        }
        Ok(())
    }

    /// The address information for the receiver of a datagram.
    fn path(&self, cx: &Port<'_>, av: &Av) -> Path {
        let Some(port) = cx.net.ports.get(cx.me) else { return Path::default() };
        let (sgid, version_2) =
            port.gids.get(usize::from(av.sgid_index)).copied().unwrap_or(([0; 16], false));
        let grh = (self.ethernet || av.grh).then(|| {
            Box::new(Grh {
                sgid,
                dgid: av.rgid,
                flow_label: av.flow_label,
                tclass: av.tclass,
                hop_limit: av.hop_limit,
                ip: self.ethernet && version_2,
            })
        });
        Path {
            slid: port.lid | u16::from(av.path_bits),
            sl: if self.ethernet { av.sl >> 1 & 7 } else { av.sl },
            path_bits: 0,
            grh,
        }
    }

    /// Receives a datagram.
    pub(crate) fn datagram(&mut self, cx: &mut Port<'_>, qp: &mut Qp, packet: &Packet) {
        let Body::Datagram { qkey, imm, data } = &packet.body else { return };
        if *qkey != qp.attr.qkey {
            return;
        }
        let srqn = qp.srqn;
        let total = GRH + data.len();
        // A datagram that is longer than the next receive is dropped without a completion, and the receive stays (class D of
        // the InfiniBand specification's responder faults, chapter 9.9.6.3).
        let Some(taken) = self.take_receive_of(cx, qp, srqn, total as u64) else { return };
        let user = super::mkey::User {
            pd: srqn.and_then(|n| self.srqs.get(&n)).map_or(qp.pd, |srq| srq.pd),
            qpn: qp.qpn,
        };
        let segments = &taken.wqe.scatter;
        let grh = packet.path.grh.as_deref();
        let header = match grh {
            // Without a GRH, the first 40 bytes are not written.
            None => Ok(()),
            Some(grh) => self.scatter(user, segments, 0, Data::Bytes(&header(grh, data.len()))),
        };
        if let Err(syndrome) =
            header.and_then(|()| self.scatter(user, segments, GRH as u64, Data::Bytes(data)))
        {
            self.fail_receive(cx, qp, srqn, &taken, syndrome);
            self.fail_responder(cx, qp, None);
            return;
        }
        self.trace_scattered(cx, qp.qpn, segments, (GRH as u64, data.len()));
        let (cqn, cqe) = self.receive_cqe(qp, srqn, &taken);
        if let Some(syndrome) = self.receive_by_script(cx, qp, srqn, Some(&packet.body), cqn) {
            self.fail_receive(cx, qp, srqn, &taken, syndrome);
            self.fail_responder(cx, qp, None);
            return;
        }
        let level = match grh {
            // Ethernet: the kind of the header. The priority is in the VLAN tag.
            Some(grh) if self.ethernet => match (grh.ip, mapped(&grh.sgid)) {
                (false, _) => 0,
                (true, false) => 1,
                (true, true) => 2,
            },
            _ => u32::from(packet.path.sl),
        };
        let cqe = Cqe {
            kind: if imm.is_some() { MLX5_CQE_RESP_SEND_IMM } else { MLX5_CQE_RESP_SEND },
            // The management queue gets the packet's partition.
            imm: imm.unwrap_or(if qp.wire == qp.qpn { 0 } else { DEFAULT_PKEY }),
            byte_cnt: total as u32,
            solicited: packet.solicited,
            slid: packet.path.slid,
            ml_path: packet.path.path_bits,
            flags_rqpn: u32::from(grh.is_some()) << 28 | level << 24 | packet.src_qpn,
            ..cqe
        };
        self.complete(cx, cqn, cqe);
    }
}

/// A packet of a QP to its peer.
fn packet(cx: &Port<'_>, qp: &Qp, psn: u32, body: Body) -> Packet {
    debug_assert!(matches!(qp.kind, QpKind::Uc | QpKind::Ud));
    Packet {
        from: cx.me,
        transport: qp.kind.transport(),
        src_qpn: qp.wire,
        dest_qpn: qp.attr.dest_qpn,
        psn,
        ack: false,
        solicited: false,
        srqn: 0,
        msn: 0,
        dc: None,
        path: shown_path(cx, qp),
        wr: WrPart::new(qp.fetched, 0),
        direct: Direct::default(),
        body,
    }
}

/// The address information of a connected QP's packets. Only captures and packets to devices outside of the fabric need it; otherwise it
/// is empty.
pub(super) fn shown_path(cx: &Port<'_>, qp: &Qp) -> Path {
    let is_needed = |port: &&Address| port.outside.is_some() || cx.net.is_tapped();
    let Some(port) = cx.net.ports.get(cx.me).filter(is_needed) else { return Path::default() };
    let route = qp.attr.route;
    let (sgid, version_2) = port.gids.get(usize::from(route.sgid_index)).copied().unwrap_or_default();
    let grh = qp.attr.dgid.map(|dgid| {
        Box::new(Grh {
            sgid,
            dgid,
            flow_label: route.flow_label,
            tclass: route.tclass,
            hop_limit: route.hop_limit,
            ip: port.ethernet && version_2,
        })
    });
    Path { slid: port.lid, sl: qp.attr.sl, path_bits: 0, grh }
}

/// Whether a GID is an IPv4 address.
pub(crate) fn mapped(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

/// The 40 bytes in front of a datagram's data: a GRH, an IPv6 header, or an IPv4 header in the last 20 bytes.
fn header(grh: &Grh, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; GRH];
    if grh.ip && mapped(&grh.sgid) {
        let ip = &mut bytes[20..];
        // Transport headers and checksum are part of the packet: UDP 8, BTH 12, DETH 8, ICRC 4.
        let len = (20 + 32 + payload) as u16;
        put(ip, 0, &[0x45, grh.tclass]);
        put(ip, 2, &len.to_be_bytes());
        put(ip, 6, &[0x40, 0, grh.hop_limit, UDP]);
        put(ip, 12, &grh.sgid[12..]);
        put(ip, 16, &grh.dgid[12..]);
        let sum = super::checksum::checksum(ip);
        put(ip, 10, &sum.to_be_bytes());
        return bytes;
    }
    let word = 6 << 28 | u32::from(grh.tclass) << 20 | grh.flow_label & 0xf_ffff;
    put(&mut bytes, 0, &word.to_be_bytes());
    let (next, extra) = if grh.ip { (UDP, 32) } else { (IBA, 24) };
    put(&mut bytes, 4, &((payload + extra) as u16).to_be_bytes());
    put(&mut bytes, 6, &[next, grh.hop_limit]);
    put(&mut bytes, 8, &grh.sgid);
    put(&mut bytes, 24, &grh.dgid);
    bytes
}

impl super::requester::Requester {
    /// The next PSN of a queue without acknowledgements.
    fn take_psn(&mut self) -> u32 {
        let psn = self.next;
        self.next = psn_add(psn, 1);
        psn
    }
}
