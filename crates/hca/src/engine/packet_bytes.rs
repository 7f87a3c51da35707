// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets as bytes, for the devices of other processes.
//!
//! The other process may be malicious: numbers that the engine uses are in their range, and every length has a limit.

use super::packet::{Atomic, Body, Dc, Direct, Grh, Nak, Packet, Path, Transport, WrPart};
use uverbs_fabric::wire::{Malformed, Reader, Writer};

/// Bytes of data of a packet at most; frames may be longer.
const MAX_DATA: usize = 1 << 16;
/// Bytes of a frame with segments to cut at most.
const MAX_FRAME: usize = 2 << 20;
/// Bytes that a read may request: as many packets as may be in flight.
const MAX_READ: u32 = 1 << 20;

const TRANSPORTS: [Transport; 6] =
    [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc, Transport::Dc, Transport::Ethernet];
const NAKS: [Nak; 4] = [Nak::Sequence, Nak::Invalid, Nak::Access, Nak::Operation];

/// The index of a value in a table of all values.
fn index<T: PartialEq>(table: &[T], value: &T) -> u8 {
    table.iter().position(|v| v == value).unwrap_or_default() as u8
}

fn entry<T: Copy>(table: &[T], index: u8) -> Result<T, Malformed> {
    table.get(usize::from(index)).copied().ok_or(Malformed)
}

/// Encodes a packet, without its source.
pub(super) fn encode(w: &mut Writer, packet: &Packet) {
    w.u8(index(&TRANSPORTS, &packet.transport));
    w.u32(packet.src_qpn);
    w.u32(packet.dest_qpn);
    w.u32(packet.psn);
    w.u8(u8::from(packet.ack) | u8::from(packet.solicited) << 1);
    w.u32(packet.srqn);
    w.u32(packet.msn);
    w.u8(packet.dc.is_some().into());
    if let Some(dc) = packet.dc {
        w.u64(dc.key);
        w.u32(dc.session);
        w.u32(dc.first);
    }
    let Path { slid, sl, path_bits, grh } = &packet.path;
    w.u16(*slid);
    w.u8(*sl);
    w.u8(*path_bits);
    w.u8(grh.is_some().into());
    if let Some(grh) = grh {
        w.bytes(&grh.sgid);
        w.bytes(&grh.dgid);
        w.u32(grh.flow_label);
        w.u8(grh.tclass);
        w.u8(grh.hop_limit);
        w.u8(grh.ip.into());
    }
    match &packet.body {
        Body::Send { first, last, imm, invalidate, data } => {
            w.u8(0);
            w.u8((*first).into());
            w.u8((*last).into());
            w.option(*imm);
            w.option(*invalidate);
            w.data(data);
        }
        Body::Write { start, last, imm, data } => {
            w.u8(1);
            w.u8(start.is_some().into());
            let (addr, rkey, len) = start.unwrap_or_default();
            w.u64(addr);
            w.u32(rkey);
            w.u32(len);
            w.u8((*last).into());
            w.option(*imm);
            w.data(data);
        }
        Body::Read { addr, rkey, len } => {
            w.u8(2);
            w.u64(*addr);
            w.u32(*rkey);
            w.u32(*len);
        }
        Body::Atomic { addr, rkey, op } => {
            let (kind, compare, value) = match *op {
                Atomic::CmpSwap { compare, swap } => (0, compare, swap),
                Atomic::FetchAdd(add) => (1, 0, add),
            };
            w.u8(3);
            w.u64(*addr);
            w.u32(*rkey);
            w.u8(kind);
            w.u64(compare);
            w.u64(value);
        }
        Body::ReadResponse { first, last, data } => {
            w.u8(4);
            w.u8((*first).into());
            w.u8((*last).into());
            w.data(data);
        }
        Body::AtomicResponse(value) => {
            w.u8(5);
            w.u64(*value);
        }
        Body::Ack => w.u8(6),
        Body::Nak(nak) => {
            w.u8(7);
            w.u8(index(&NAKS, nak));
        }
        Body::Rnr(timer) => {
            w.u8(8);
            w.u8(*timer);
        }
        Body::Datagram { qkey, imm, data } => {
            w.u8(9);
            w.u32(*qkey);
            w.option(*imm);
            w.data(data);
        }
        Body::Frame(frame) => {
            w.u8(10);
            w.data(frame);
        }
    }
}

/// Decodes a packet.
pub(super) fn decode(from: usize, r: &mut Reader<'_>) -> Result<Packet, Malformed> {
    let transport = entry(&TRANSPORTS, r.u8()?)?;
    let (src_qpn, dest_qpn, psn) = (r.u24()?, r.u24()?, r.u24()?);
    let flags = r.u8()?;
    let (srqn, msn) = (r.u24()?, r.u24()?);
    let dc = match r.bool()? {
        true => Some(Dc { key: r.u64()?, session: r.u32()?, first: r.u24()? }),
        false => None,
    };
    let (slid, sl, path_bits) = (r.u16()?, r.u8()?, r.u8()?);
    let grh = match r.bool()? {
        true => Some(Box::new(Grh {
            sgid: r.array()?,
            dgid: r.array()?,
            flow_label: r.u32()?,
            tclass: r.u8()?,
            hop_limit: r.u8()?,
            ip: r.bool()?,
        })),
        false => None,
    };
    let body = match r.u8()? {
        0 => Body::Send {
            first: r.bool()?,
            last: r.bool()?,
            imm: r.option()?,
            invalidate: r.option()?,
            data: r.data(MAX_DATA)?,
        },
        1 => {
            let (is_first, start) = (r.bool()?, (r.u64()?, r.u32()?, r.u32()?));
            let start = is_first.then_some(start);
            Body::Write { start, last: r.bool()?, imm: r.option()?, data: r.data(MAX_DATA)? }
        }
        2 => {
            let (addr, rkey, len) = (r.u64()?, r.u32()?, r.u32()?);
            if len > MAX_READ {
                return Err(Malformed);
            }
            Body::Read { addr, rkey, len }
        }
        3 => {
            let (addr, rkey) = (r.u64()?, r.u32()?);
            let (kind, compare, value) = (r.bool()?, r.u64()?, r.u64()?);
            let op = if kind { Atomic::FetchAdd(value) } else { Atomic::CmpSwap { compare, swap: value } };
            Body::Atomic { addr, rkey, op }
        }
        4 => Body::ReadResponse { first: r.bool()?, last: r.bool()?, data: r.data(MAX_DATA)? },
        5 => Body::AtomicResponse(r.u64()?),
        6 => Body::Ack,
        7 => Body::Nak(entry(&NAKS, r.u8()?)?),
        8 => Body::Rnr(r.u8()?),
        9 => Body::Datagram { qkey: r.u32()?, imm: r.option()?, data: r.data(MAX_DATA)? },
        10 => Body::Frame(r.data(MAX_FRAME)?),
        _ => return Err(Malformed),
    };
    // Frames have the transport Ethernet, and no other packets have it.
    if matches!(body, Body::Frame(_)) != (transport == Transport::Ethernet) {
        return Err(Malformed);
    }
    Ok(Packet {
        from,
        transport,
        src_qpn,
        dest_qpn,
        psn,
        ack: flags & 1 != 0,
        solicited: flags & 2 != 0,
        srqn,
        msn,
        dc,
        path: Path { slid, sl, path_bits, grh },
        wr: WrPart::default(),
        direct: Direct::default(),
        body,
    })
}
