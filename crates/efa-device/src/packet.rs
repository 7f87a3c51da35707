// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets between devices, with the fields of SRD that are used here.
//!
//! SRD's packets are not published. What is modelled is its description (`SRD.txt` of Amazon's kernel driver): packets take different
//! paths, each is acknowledged, lost ones are repeated, and a message is delivered at most once.

use uverbs_fabric::order::{Label, Route};
use uverbs_fabric::script::{Opcode, PacketFacts};
use uverbs_fabric::wire::{Malformed, Reader, Writer};

/// Bytes of data in a packet at most; more than any MTU.
const MAX_DATA: usize = 1 << 14;

/// The place of a packet in the reliable exchange between two devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The lives of the sender: it is increased by a reset, after which messages are counted anew.
    pub(crate) epoch: u32,
    /// All messages before this one are settled.
    pub(crate) floor: u64,
    /// The message.
    pub(crate) message: u64,
    /// The packet of the message.
    pub(crate) index: u32,
}

/// The memory of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    /// Bytes of the message.
    pub(crate) total: u32,
    /// Where the packet's bytes are in it.
    pub(crate) offset: u32,
}

/// A packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Device that sent it, by number in the fabric.
    pub(crate) from: usize,
    pub(crate) src_qpn: u16,
    pub(crate) dest_qpn: u16,
    pub(crate) place: Place,
    pub(crate) body: Body,
}

/// The contents of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// An unreliable datagram.
    Datagram { qkey: u32, imm: Option<u32>, data: Vec<u8> },
    /// A send.
    Send { qkey: u32, imm: Option<u32>, data: Vec<u8> },
    /// A packet of a write: of so many. With immediate data, `unsolicited` says that they consume no receive.
    Write { qkey: u32, remote: Remote, count: u32, imm: Option<u32>, unsolicited: bool, data: Vec<u8> },
    /// A packet of a read: so many bytes.
    Read { qkey: u32, remote: Remote, len: u32 },
    /// The answer to a packet of a send or write, or the refusal of a read.
    Ack { status: u8 },
    /// The answer to a packet of a read.
    ReadData { data: Vec<u8> },
}

impl Body {
    /// The data of the packet.
    pub(crate) fn data(&self) -> &[u8] {
        match self {
            Self::Datagram { data, .. }
            | Self::Send { data, .. }
            | Self::Write { data, .. }
            | Self::ReadData { data } => data,
            Self::Read { .. } | Self::Ack { .. } => &[],
        }
    }
}

impl uverbs_fabric::Packet for Packet {
    const PROTOCOL: [u8; 8] = *b"uvefa\0\0\x01";

    fn source(&self) -> usize {
        self.from
    }

    fn route(&self) -> Option<Route> {
        let is_response = matches!(self.body, Body::Ack { .. } | Body::ReadData { .. });
        Some(Route { src: self.src_qpn.into(), dest: self.dest_qpn.into(), is_response })
    }

    fn is_unordered(&self) -> bool {
        true
    }

    fn data_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.body {
            Body::Datagram { data, .. }
            | Body::Send { data, .. }
            | Body::Write { data, .. }
            | Body::ReadData { data } => Some(data),
            Body::Read { .. } | Body::Ack { .. } => None,
        }
    }

    fn label(&self) -> Label {
        let op = match &self.body {
            Body::Datagram { .. } => "datagram",
            Body::Send { .. } => "SEND",
            Body::Write { .. } => "RDMA WRITE",
            Body::Read { .. } => "RDMA READ request",
            Body::Ack { .. } => "acknowledgement",
            Body::ReadData { .. } => "RDMA READ response",
        };
        Label { op, psn: self.place.message as u32 }
    }

    fn qpns(&self) -> (u32, u32) {
        (self.src_qpn.into(), self.dest_qpn.into())
    }

    fn words(&self) -> (String, String) {
        crate::device::trace::packet(self)
    }

    fn set_source(&mut self, source: usize) {
        self.from = source;
    }

    fn facts(&self) -> PacketFacts {
        let opcode = match &self.body {
            Body::Datagram { .. } | Body::Send { .. } => Opcode::Send,
            Body::Write { .. } => Opcode::Write,
            Body::Read { .. } => Opcode::Read,
            Body::Ack { .. } => Opcode::Ack,
            Body::ReadData { .. } => Opcode::ReadResponse,
        };
        let is_datagram = matches!(self.body, Body::Datagram { .. });
        PacketFacts {
            qp: Some(self.src_qpn.into()),
            dest: Some(self.dest_qpn.into()),
            opcode: Some(opcode),
            packet: if is_datagram { 1 } else { self.place.index.saturating_add(1) },
            bytes: self.body.data().len(),
            ..PacketFacts::default()
        }
    }

    fn cost(&self) -> usize {
        size_of::<Self>() + 64 + self.body.data().len()
    }

    fn encode(&self, w: &mut Writer) {
        w.u16(self.src_qpn);
        w.u16(self.dest_qpn);
        w.u32(self.place.epoch);
        w.u64(self.place.floor);
        w.u64(self.place.message);
        w.u32(self.place.index);
        let remote = |w: &mut Writer, remote: &Remote| {
            w.u64(remote.addr);
            w.u32(remote.rkey);
            w.u32(remote.total);
            w.u32(remote.offset);
        };
        match &self.body {
            Body::Datagram { qkey, imm, data } | Body::Send { qkey, imm, data } => {
                w.u8(u8::from(matches!(self.body, Body::Send { .. })));
                w.u32(*qkey);
                w.option(*imm);
                w.data(data);
            }
            Body::Write { qkey, remote: memory, count, imm, unsolicited, data } => {
                w.u8(2);
                w.u32(*qkey);
                remote(w, memory);
                w.u32(*count);
                w.option(*imm);
                w.u8((*unsolicited).into());
                w.data(data);
            }
            Body::Read { qkey, remote: memory, len } => {
                w.u8(3);
                w.u32(*qkey);
                remote(w, memory);
                w.u32(*len);
            }
            Body::Ack { status } => {
                w.u8(4);
                w.u8(*status);
            }
            Body::ReadData { data } => {
                w.u8(5);
                w.data(data);
            }
        }
    }

    fn decode(source: usize, r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (src_qpn, dest_qpn) = (r.u16()?, r.u16()?);
        let place = Place { epoch: r.u32()?, floor: r.u64()?, message: r.u64()?, index: r.u32()? };
        let remote = |r: &mut Reader<'_>| {
            Ok(Remote { addr: r.u64()?, rkey: r.u32()?, total: r.u32()?, offset: r.u32()? })
        };
        let body = match r.u8()? {
            0 => Body::Datagram { qkey: r.u32()?, imm: r.option()?, data: r.data(MAX_DATA)? },
            1 => Body::Send { qkey: r.u32()?, imm: r.option()?, data: r.data(MAX_DATA)? },
            2 => Body::Write {
                qkey: r.u32()?,
                remote: remote(r)?,
                count: r.u32()?,
                imm: r.option()?,
                unsolicited: r.bool()?,
                data: r.data(MAX_DATA)?,
            },
            3 => Body::Read { qkey: r.u32()?, remote: remote(r)?, len: r.u32()? },
            4 => Body::Ack { status: r.u8()? },
            5 => Body::ReadData { data: r.data(MAX_DATA)? },
            _ => return Err(Malformed),
        };
        match body {
            Body::Read { len, .. } if len as usize > MAX_DATA => Err(Malformed),
            body => Ok(Self { from: source, src_qpn, dest_qpn, place, body }),
        }
    }
}
