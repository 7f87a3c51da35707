// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model's packets as transport packets of InfiniBand and RoCE, in both directions.
//!
//! The model's packets have the fields of the real headers, and three more: the port that a packet comes from, the sender's QP, which
//! only datagrams have on the wire, and the session of DC, which has no public format. [`Device::admit`] completes what arrives from
//! outside of the fabric by the QP that it is for.
//!
//! Sources: InfiniBand Architecture Specification volume 1, chapter 9; annex 14 (XRC); annex 17 (RoCE version 2).

use crate::engine::packet::{Atomic, Body, Direct, Grh, Nak, Packet, Path, Transport, WrPart};
use crate::engine::{Device, Port};
use uverbs_roce::frame;
use uverbs_roce::opcode::{Opcode, Operation, Service};
use uverbs_roce::transport as wire;

/// The default partition, without the bit of full membership. All ports are full members, so they accept limited ones, too.
const PARTITION: u16 = 0x7fff;

/// The transport packet, without its payload. DC is shown with the opcodes of RC.
pub(crate) fn transport_packet(packet: &Packet) -> Option<wire::Packet> {
    let Packet { transport, src_qpn, dest_qpn, psn, ack, solicited, srqn, msn, body, .. } = packet;
    let service = match transport {
        Transport::Rc | Transport::Dc => Service::Rc,
        Transport::Uc => Service::Uc,
        Transport::Ud => Service::Ud,
        Transport::Xrc => Service::Xrc,
        Transport::Ethernet => return None,
    };
    let operation = operation(body)?;
    let opcode = Opcode::new(service, operation)?;
    let mut headers = headers(body, *msn);
    if opcode.extended().xrceth {
        headers.xrc_srqn = Some(*srqn);
    }
    if let Some(deth) = &mut headers.deth {
        deth.src_qpn = *src_qpn;
    }
    let bth = wire::Bth {
        solicited: *solicited,
        dest_qpn: *dest_qpn,
        ack_req: *ack,
        psn: *psn,
        ..wire::Bth::new(opcode)
    };
    Some(wire::Packet { bth, headers, payload: Vec::new() })
}

/// The operation of a packet's opcode.
fn operation(body: &Body) -> Option<Operation> {
    use Operation as O;
    Some(match body {
        Body::Send { first, last, imm, invalidate, .. } => match (first, last, imm, invalidate) {
            (true, false, ..) => O::SendFirst,
            (false, false, ..) => O::SendMiddle,
            (false, true, Some(_), _) => O::SendLastImm,
            (false, true, _, Some(_)) => O::SendLastInv,
            (false, true, ..) => O::SendLast,
            (true, true, Some(_), _) => O::SendOnlyImm,
            (true, true, _, Some(_)) => O::SendOnlyInv,
            (true, true, ..) => O::SendOnly,
        },
        Body::Write { start, last, imm, .. } => match (start.is_some(), last, imm) {
            (true, false, _) => O::WriteFirst,
            (false, false, _) => O::WriteMiddle,
            (false, true, Some(_)) => O::WriteLastImm,
            (false, true, None) => O::WriteLast,
            (true, true, Some(_)) => O::WriteOnlyImm,
            (true, true, None) => O::WriteOnly,
        },
        Body::Read { .. } => O::ReadRequest,
        Body::Atomic { op: Atomic::CmpSwap { .. }, .. } => O::CmpSwap,
        Body::Atomic { op: Atomic::FetchAdd(_), .. } => O::FetchAdd,
        Body::ReadResponse { first, last, .. } => match (first, last) {
            (true, false) => O::ReadFirst,
            (false, false) => O::ReadMiddle,
            (false, true) => O::ReadLast,
            (true, true) => O::ReadOnly,
        },
        Body::AtomicResponse(_) => O::AtomicAck,
        Body::Ack | Body::Nak(_) | Body::Rnr(_) => O::Ack,
        Body::Datagram { imm, .. } => {
            if imm.is_some() {
                O::SendOnlyImm
            } else {
                O::SendOnly
            }
        }
        Body::Frame(_) => return None,
    })
}

/// The extended headers. That of datagrams has no sender yet.
fn headers(body: &Body, msn: u32) -> wire::Headers {
    let none = wire::Headers::default();
    let aeth = |syndrome| Some(wire::Aeth { syndrome, msn });
    let acknowledged = aeth(wire::Syndrome::NO_CREDITS);
    match *body {
        Body::Send { last, imm, invalidate, .. } => {
            let imm = imm.filter(|_| last);
            wire::Headers { imm, ieth: invalidate.filter(|_| last && imm.is_none()), ..none }
        }
        Body::Write { start, last, imm, .. } => {
            let reth = start.map(|(addr, rkey, len)| wire::Reth { addr, rkey, len });
            wire::Headers { reth, imm: imm.filter(|_| last), ..none }
        }
        Body::Read { addr, rkey, len } => {
            wire::Headers { reth: Some(wire::Reth { addr, rkey, len }), ..none }
        }
        Body::Atomic { addr, rkey, op } => {
            let (swap_add, compare) = match op {
                Atomic::CmpSwap { compare, swap } => (swap, compare),
                Atomic::FetchAdd(add) => (add, 0),
            };
            wire::Headers { atomic: Some(wire::AtomicEth { addr, rkey, swap_add, compare }), ..none }
        }
        // A middle response has no header.
        Body::ReadResponse { first, last, .. } => {
            wire::Headers { aeth: acknowledged.filter(|_| first || last), ..none }
        }
        Body::AtomicResponse(value) => wire::Headers { aeth: acknowledged, atomic_ack: Some(value), ..none },
        Body::Ack => wire::Headers { aeth: acknowledged, ..none },
        Body::Nak(nak) => {
            let nak = match nak {
                Nak::Sequence => wire::Nak::Sequence,
                Nak::Invalid => wire::Nak::Invalid,
                Nak::Access => wire::Nak::Access,
                Nak::Operation => wire::Nak::Operation,
            };
            wire::Headers { aeth: aeth(wire::Syndrome::Nak(nak)), ..none }
        }
        Body::Rnr(timer) => wire::Headers { aeth: aeth(wire::Syndrome::Rnr(timer & 31)), ..none },
        Body::Datagram { qkey, imm, .. } => {
            wire::Headers { deth: Some(wire::Deth { qkey, src_qpn: 0 }), imm, ..none }
        }
        Body::Frame(_) => none,
    }
}

/// The packet as a datagram: its route, and the transport packet. `None` for frames, DC, and packets without a route of version 2.
pub(crate) fn into_datagram(packet: Packet) -> Option<(frame::Grh, wire::Packet)> {
    let grh = packet.path.grh.as_ref().filter(|grh| grh.ip && packet.transport != Transport::Dc)?;
    let Grh { sgid, dgid, flow_label, tclass, hop_limit, .. } = **grh;
    let route = frame::Grh { sgid, dgid, tclass, flow_label: flow_label & 0xf_ffff, hop_limit };
    let transport = transport_packet(&packet)?;
    Some((route, wire::Packet { payload: packet.body.into_data().unwrap_or_default(), ..transport }))
}

/// The packet of a datagram, without what the wire does not have. `None` if it is of another partition, or an answer with a syndrome that
/// its opcode can't have.
pub(crate) fn of_datagram(from: usize, route: frame::Grh, packet: wire::Packet) -> Option<Packet> {
    let wire::Packet { bth, headers, payload } = packet;
    if bth.pkey & PARTITION != PARTITION {
        return None;
    }
    let transport = match bth.opcode.service() {
        Service::Rc => Transport::Rc,
        Service::Uc => Transport::Uc,
        Service::Ud => Transport::Ud,
        Service::Xrc => Transport::Xrc,
    };
    let frame::Grh { sgid, dgid, tclass, flow_label, hop_limit } = route;
    let grh = Grh { sgid, dgid, flow_label, tclass, hop_limit, ip: true };
    Some(Packet {
        from,
        transport,
        src_qpn: headers.deth.map_or(0, |deth| deth.src_qpn),
        dest_qpn: bth.dest_qpn,
        psn: bth.psn,
        ack: bth.ack_req,
        solicited: bth.solicited,
        srqn: headers.xrc_srqn.unwrap_or(0),
        msn: headers.aeth.map_or(0, |aeth| aeth.msn),
        dc: None,
        wr: WrPart::default(),
        direct: Direct::default(),
        path: Path { grh: Some(Box::new(grh)), ..Path::default() },
        body: body(bth.opcode, &headers, payload)?,
    })
}

/// The contents of a packet.
fn body(opcode: Opcode, headers: &wire::Headers, data: Vec<u8>) -> Option<Body> {
    use Operation as O;
    let operation = opcode.operation();
    let first = matches!(
        operation,
        O::SendFirst
            | O::SendOnly
            | O::SendOnlyImm
            | O::SendOnlyInv
            | O::WriteFirst
            | O::WriteOnly
            | O::WriteOnlyImm
            | O::ReadFirst
            | O::ReadOnly
    );
    let last = !matches!(
        operation,
        O::SendFirst | O::SendMiddle | O::WriteFirst | O::WriteMiddle | O::ReadFirst | O::ReadMiddle
    );
    let wire::Headers { deth, reth, atomic, aeth, atomic_ack, imm, ieth, .. } = *headers;
    // The acknowledgement of an answer with data. A middle packet has none.
    let acknowledges = aeth.is_none_or(|aeth| matches!(aeth.syndrome, wire::Syndrome::Ack(_)));
    Some(match operation {
        O::SendOnly | O::SendOnlyImm if opcode.service() == Service::Ud => {
            Body::Datagram { qkey: deth?.qkey, imm, data }
        }
        O::SendFirst
        | O::SendMiddle
        | O::SendLast
        | O::SendLastImm
        | O::SendOnly
        | O::SendOnlyImm
        | O::SendLastInv
        | O::SendOnlyInv => Body::Send { first, last, imm, invalidate: ieth, data },
        O::WriteFirst | O::WriteMiddle | O::WriteLast | O::WriteLastImm | O::WriteOnly | O::WriteOnlyImm => {
            Body::Write { start: reth.map(|reth| (reth.addr, reth.rkey, reth.len)), last, imm, data }
        }
        O::ReadRequest => {
            let wire::Reth { addr, rkey, len } = reth?;
            Body::Read { addr, rkey, len }
        }
        O::CmpSwap | O::FetchAdd => {
            let wire::AtomicEth { addr, rkey, swap_add, compare } = atomic?;
            let op = match operation {
                O::CmpSwap => Atomic::CmpSwap { compare, swap: swap_add },
                _ => Atomic::FetchAdd(swap_add),
            };
            Body::Atomic { addr, rkey, op }
        }
        O::ReadFirst | O::ReadMiddle | O::ReadLast | O::ReadOnly => {
            acknowledges.then_some(Body::ReadResponse { first, last, data })?
        }
        O::AtomicAck => acknowledges.then_some(Body::AtomicResponse(atomic_ack?))?,
        O::Ack => match aeth?.syndrome {
            wire::Syndrome::Ack(_) => Body::Ack,
            wire::Syndrome::Rnr(timer) => Body::Rnr(timer),
            wire::Syndrome::Nak(nak) => Body::Nak(match nak {
                wire::Nak::Sequence => Nak::Sequence,
                wire::Nak::Invalid => Nak::Invalid,
                wire::Nak::Access => Nak::Access,
                wire::Nak::Operation => Nak::Operation,
            }),
        },
    })
}

impl Device {
    /// Completes a packet from outside of the fabric by the QP that it is for. `false`: there is no such QP, or it is connected to another
    /// address, or the packet has another length than its place in a message permits.
    pub(crate) fn admit(&self, cx: &Port<'_>, packet: &mut Packet) -> bool {
        let special = self.special.get(packet.dest_qpn as usize);
        let qpn = special.copied().flatten().unwrap_or(packet.dest_qpn);
        let (Some(qp), Some(grh), Some(port)) = (self.qps.get(&qpn), &packet.path.grh, cx.address()) else {
            return false;
        };
        let is_ours = port.gids.contains(&(grh.dgid, true));
        if !is_ours || qp.kind.transport() != packet.transport || !qp.state.receives() {
            return false;
        }
        let len = packet.body.data().map_or(0, Vec::len);
        let mtu = qp.attr.mtu as usize;
        if packet.transport == Transport::Ud {
            return len <= mtu;
        }
        packet.src_qpn = qp.attr.dest_qpn;
        let has_right_length = match packet.body {
            Body::Send { last, .. } | Body::Write { last, .. } | Body::ReadResponse { last, .. } => {
                if last {
                    len <= mtu
                } else {
                    len == mtu
                }
            }
            _ => true,
        };
        has_right_length && qp.attr.dgid == Some(grh.sgid)
    }
}

#[cfg(test)]
mod tests;
