// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages between two processes of a fabric, as bytes: a length of 4 bytes, a type, fields in big-endian order.
//!
//! The other process may be of another build, or malicious: invalid messages are detected, every length has a limit,
//! and numbers that the engine uses are in their range.

use crate::engine::net::{Address, PortLocation};
use crate::engine::packet::{Atomic, Body, Dc, Grh, Nak, PSN, Packet, Path, Transport};
use core::fmt;

/// The first bytes of every connection, with the version of the protocol.
const MAGIC: [u8; 8] = *b"uvhca\0\0\x04";
/// Bytes of a message at most: a list of ports, or a frame with segments to cut.
pub(crate) const MAX: usize = 4 << 20;
/// Bytes of data of a packet at most; frames may be longer.
const MAX_DATA: usize = 1 << 16;
/// Bytes that a read may request: as many packets as may be in flight.
const MAX_READ: u32 = 1 << 20;
/// Ports, addresses of a port, and members of groups at most. A list of so many fits in a message.
pub(super) const MAX_PORTS: usize = 512;
const MAX_GIDS: usize = 256;
pub(super) const MAX_MEMBERS: usize = 1 << 14;

/// Bytes of a message of a connection manager at most.
const MAX_MANAGER: usize = 4096;

/// The bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a message of a fabric")
    }
}

impl core::error::Error for Malformed {}

/// A port, by its number in the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) number: u16,
    pub(crate) ethernet: bool,
    pub(crate) up: bool,
    pub(crate) lid: u16,
    pub(crate) mac: [u8; 6],
    pub(crate) gids: Vec<([u8; 16], bool)>,
}

impl Port {
    /// The description of a port for the peer.
    pub(crate) fn of(address: &Address) -> Self {
        let Address { ethernet, up, lid, mac, number, ref gids, .. } = *address;
        // Unused entries are left out, because a peer's entries are not used by index.
        let gids = gids.iter().filter(|(gid, _)| *gid != [0; 16]).take(MAX_GIDS).copied().collect();
        Self { number, ethernet, up, lid, mac, gids }
    }

    /// The address of the peer's port for the network of this process.
    pub(crate) fn address(self, location: PortLocation) -> Address {
        let Self { number, ethernet, up, lid, mac, gids } = self;
        Address { ethernet, lid, mac, gids, up, sent: 0, received: 0, location, number }
    }
}

/// A message.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// The first message of a connecting process: the number of its first device, if it already has one.
    Hello { base: Option<u16> },
    /// The answer: the number of the first device.
    Welcome { base: u16 },
    /// The number is in use, or there are no more numbers.
    Refused,
    /// All ports that are reached through the sender.
    Ports(Vec<Port>),
    /// All members of multicast groups at these ports: group, port, QP.
    Members(Vec<([u8; 16], u16, u32)>),
    /// A packet to a port. Its field `from` is the number of a port, too.
    Packet { to: u16, packet: Packet },
    /// Requests an answer with this number, which is sent after all earlier messages were processed.
    Sync(u32),
    /// The answer to `Sync`.
    Synced(u32),
    /// A message of a connection manager to that of a port; its bytes are those of `cm::away`.
    Manager { to: u16, bytes: Vec<u8> },
}

/// An encoder of fields.
struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    fn option(&mut self, value: Option<u32>) {
        self.u8(value.is_some().into());
        self.u32(value.unwrap_or(0));
    }

    fn data(&mut self, data: &[u8]) {
        self.u32(data.len() as u32);
        self.bytes(data);
    }
}

/// A decoder of fields.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[b]| b)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn option(&mut self) -> Result<Option<u32>, Malformed> {
        let (is_there, value) = (self.bool()?, self.u32()?);
        Ok(is_there.then_some(value))
    }

    /// A number of 24 bits: of a queue, a packet.
    fn u24(&mut self) -> Result<u32, Malformed> {
        self.u32().and_then(|n| if n <= PSN { Ok(n) } else { Err(Malformed) })
    }

    fn count(&mut self, max: usize) -> Result<usize, Malformed> {
        self.u32().and_then(|n| if n as usize <= max { Ok(n as usize) } else { Err(Malformed) })
    }

    fn data(&mut self, max: usize) -> Result<Vec<u8>, Malformed> {
        let len = self.count(max)?;
        let (data, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(data.to_vec())
    }
}

impl Message {
    /// Encodes the message, with its length in front.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut w = Writer(vec![0; 4]);
        match self {
            Self::Hello { base } => {
                w.u8(1);
                w.bytes(&MAGIC);
                w.option(base.map(u32::from));
            }
            Self::Welcome { base } => {
                w.u8(2);
                w.bytes(&MAGIC);
                w.u16(*base);
            }
            Self::Refused => w.u8(3),
            Self::Ports(ports) => {
                w.u8(4);
                w.u32(ports.len() as u32);
                for port in ports {
                    w.u16(port.number);
                    w.u8(port.ethernet.into());
                    w.u8(port.up.into());
                    w.u16(port.lid);
                    w.bytes(&port.mac);
                    w.u32(port.gids.len() as u32);
                    for (gid, version_2) in &port.gids {
                        w.bytes(gid);
                        w.u8((*version_2).into());
                    }
                }
            }
            Self::Members(members) => {
                w.u8(5);
                w.u32(members.len() as u32);
                for (group, number, qpn) in members {
                    w.bytes(group);
                    w.u16(*number);
                    w.u32(*qpn);
                }
            }
            Self::Packet { to, packet } => {
                w.u8(6);
                w.u16(*to);
                packet_out(&mut w, packet);
            }
            Self::Sync(number) => {
                w.u8(7);
                w.u32(*number);
            }
            Self::Synced(number) => {
                w.u8(8);
                w.u32(*number);
            }
            Self::Manager { to, bytes } => {
                w.u8(9);
                w.u16(*to);
                w.data(bytes);
            }
        }
        let len = (w.0.len() - 4) as u32;
        w.0[..4].copy_from_slice(&len.to_be_bytes());
        w.0
    }

    /// Decodes the bytes behind the length.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let message = match r.u8()? {
            1 if r.array()? == MAGIC => {
                let base = r.option()?.map(u16::try_from).transpose().map_err(|_| Malformed)?;
                Self::Hello { base }
            }
            2 if r.array()? == MAGIC => Self::Welcome { base: r.u16()? },
            3 => Self::Refused,
            4 => {
                let mut ports = Vec::new();
                for _ in 0..r.count(MAX_PORTS)? {
                    let (number, ethernet, up) = (r.u16()?, r.bool()?, r.bool()?);
                    let (lid, mac) = (r.u16()?, r.array()?);
                    let mut gids = Vec::new();
                    for _ in 0..r.count(MAX_GIDS)? {
                        gids.push((r.array()?, r.bool()?));
                    }
                    ports.push(Port { number, ethernet, up, lid, mac, gids });
                }
                Self::Ports(ports)
            }
            5 => {
                let count = r.count(MAX_MEMBERS)?;
                let members = (0..count).map(|_| Ok((r.array()?, r.u16()?, r.u24()?)));
                Self::Members(members.collect::<Result<_, _>>()?)
            }
            6 => Self::Packet { to: r.u16()?, packet: packet_in(&mut r)? },
            7 => Self::Sync(r.u32()?),
            8 => Self::Synced(r.u32()?),
            9 => Self::Manager { to: r.u16()?, bytes: r.data(MAX_MANAGER)? },
            _ => return Err(Malformed),
        };
        if r.0.is_empty() { Ok(message) } else { Err(Malformed) }
    }
}

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

fn packet_out(w: &mut Writer, packet: &Packet) {
    w.u16(packet.from as u16);
    w.u8(index(&TRANSPORTS, &packet.transport));
    w.u32(packet.src_qpn);
    w.u32(packet.dest_qpn);
    w.u32(packet.psn);
    w.u8(u8::from(packet.ack) | u8::from(packet.solicited) << 1);
    w.u32(packet.srqn);
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
        Body::ReadResponse { data } => {
            w.u8(4);
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

fn packet_in(r: &mut Reader<'_>) -> Result<Packet, Malformed> {
    let from = usize::from(r.u16()?);
    let transport = entry(&TRANSPORTS, r.u8()?)?;
    let (src_qpn, dest_qpn, psn) = (r.u24()?, r.u24()?, r.u24()?);
    let flags = r.u8()?;
    let srqn = r.u24()?;
    let dc = match r.bool()? {
        true => Some(Dc { key: r.u64()?, session: r.u32()?, first: r.u24()? }),
        false => None,
    };
    let (slid, sl, path_bits) = (r.u16()?, r.u8()?, r.u8()?);
    let grh = match r.bool()? {
        true => Some(Grh {
            sgid: r.array()?,
            dgid: r.array()?,
            flow_label: r.u32()?,
            tclass: r.u8()?,
            hop_limit: r.u8()?,
            ip: r.bool()?,
        }),
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
        4 => Body::ReadResponse { data: r.data(MAX_DATA)? },
        5 => Body::AtomicResponse(r.u64()?),
        6 => Body::Ack,
        7 => Body::Nak(entry(&NAKS, r.u8()?)?),
        8 => Body::Rnr(r.u8()?),
        9 => Body::Datagram { qkey: r.u32()?, imm: r.option()?, data: r.data(MAX_DATA)? },
        10 => Body::Frame(r.data(MAX / 2)?),
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
        dc,
        path: Path { slid, sl, path_bits, grh },
        body,
    })
}
