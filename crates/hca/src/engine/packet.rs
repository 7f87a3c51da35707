// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets between devices, with the fields of InfiniBand's headers that are used here.

use super::aside::Place;
use super::{packet_bytes, script};
use crate::memory::Memory;
use std::sync::Arc;
use uverbs_fabric::Captured;
use uverbs_fabric::net::Address;
use uverbs_fabric::order::{Label, Route};
use uverbs_fabric::process::Mapped;
use uverbs_fabric::script::{Answer, PacketFacts};
use uverbs_fabric::wire::{Malformed, Reader, Writer};
use uverbs_roce::{frame, transport};

/// Bits of a packet sequence number.
pub(crate) const PSN: u32 = 0xff_ffff;

/// `a - b` in sequence space: negative if `a` is before `b`.
pub(crate) fn psn_diff(a: u32, b: u32) -> i32 {
    ((a.wrapping_sub(b) << 8).cast_signed()) >> 8
}

/// `psn + n` in sequence space.
pub(crate) fn psn_add(psn: u32, n: u32) -> u32 {
    psn.wrapping_add(n) & PSN
}

/// The transport that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Rc,
    Uc,
    Ud,
    Xrc,
    Dc,
    Ethernet,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nak {
    /// A packet was missing; the answer has the expected PSN.
    Sequence,
    /// Invalid request.
    Invalid,
    /// Remote access error.
    Access,
    /// Remote operational error.
    Operation,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    CmpSwap { compare: u64, swap: u64 },
    FetchAdd(u64),
}

/// The address information for a datagram's receiver.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) path_bits: u8,
    pub(crate) grh: Option<Box<Grh>>,
}

/// A global route.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grh {
    pub(crate) sgid: [u8; 16],
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) tclass: u8,
    pub(crate) hop_limit: u8,
    /// On Ethernet: RoCE version 2, whose header is IP.
    pub(crate) ip: bool,
}

/// The session of a DC packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dc {
    pub(crate) key: u64,
    /// The number of the initiator's session; numbers increase.
    pub(crate) session: u32,
    /// Sequence number of its first packet.
    pub(crate) first: u32,
}

/// The WR that a packet belongs to, for scripts. Packets of another process have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WrPart {
    /// The number of the WR on its queue, from 1, or of the WR that the packet answers; 0 for none.
    pub(crate) number: u32,
    /// The number of the packet in its message, from 1; 0 for none.
    pub(crate) packet: u32,
}

/// A packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Device that sent it, by number in the fabric.
    pub(crate) from: usize,
    pub(crate) transport: Transport,
    pub(crate) src_qpn: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) psn: u32,
    /// The sender requests an acknowledgement.
    pub(crate) ack: bool,
    pub(crate) solicited: bool,
    /// The SRQ of an XRC request.
    pub(crate) srqn: u32,
    /// The message sequence number of an answer: the requests that the responder has completed.
    pub(crate) msn: u32,
    pub(crate) dc: Option<Dc>,
    pub(crate) path: Path,
    pub(crate) wr: WrPart,
    pub(crate) direct: Direct,
    pub(crate) body: Body,
}

/// What only a packet has that its receiver gets from the sender itself ([`near`](super::near)).
#[derive(Clone, Debug, Default)]
pub(crate) struct Direct {
    /// The packets of its message that it stands for besides itself, which follow it.
    pub(crate) more: u32,
    /// Its data. The body has none then.
    pub(crate) source: Option<Source>,
    /// Whether the sender takes an answer with data from the receiver itself.
    pub(crate) takes_answer: bool,
    /// Where its data are already, from the source: they were [copied](super::aside).
    pub(super) copied: Option<Box<Place>>,
}

/// Data in mapped memory.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    memory: Arc<dyn Memory>,
    offset: u64,
    len: usize,
}

impl Source {
    pub(super) fn new(memory: &Arc<dyn Memory>, offset: u64, len: usize) -> Self {
        Self { memory: Arc::clone(memory), offset, len }
    }

    /// Those of a place.
    pub(super) fn of((memory, offset): &Place, len: usize) -> Self {
        Self::new(memory, *offset, len)
    }

    /// Whether they are these.
    pub(super) fn is(&self, (memory, offset): &Place, len: usize) -> bool {
        Arc::ptr_eq(&self.memory, memory) && self.offset == *offset && self.len == len
    }

    /// The bytes; `None` if they are not mapped.
    pub(super) fn mapped(&self) -> Option<Mapped<'_>> {
        self.memory.mapped(self.offset, self.len)
    }
}

/// The data of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    Bytes(&'a [u8]),
    Mapped(Mapped<'a>),
}

impl<'a> Data<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Mapped(mapped) => mapped.len(),
        }
    }

    /// `len` of the bytes, from `at` on; `None` if there are fewer.
    pub(super) fn part(&self, at: usize, len: usize) -> Option<Self> {
        match self {
            Self::Bytes(bytes) => bytes.get(at..)?.get(..len).map(Self::Bytes),
            Self::Mapped(mapped) => mapped.part(at, len).map(Self::Mapped),
        }
    }

    /// Appends the bytes.
    pub(super) fn append_to(&self, to: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => to.extend_from_slice(bytes),
            Self::Mapped(mapped) => {
                let at = to.len();
                to.resize(at + mapped.len(), 0);
                // As many as there are.
                let _ = mapped.read(0, &mut to[at..]);
            }
        }
    }
}

impl Packet {
    /// The packets that it stands for.
    pub(super) fn count(&self) -> u32 {
        1 + self.direct.more
    }

    /// Bytes of data.
    pub(super) fn len(&self) -> usize {
        match &self.direct.source {
            Some(source) => source.len,
            None => self.body.data().map_or(0, Vec::len),
        }
    }

    /// Its data, which are `bytes` unless they are elsewhere.
    pub(super) fn data<'a>(&'a self, bytes: &'a [u8]) -> Data<'a> {
        let mapped = self.direct.source.as_ref().and_then(Source::mapped);
        mapped.map_or(Data::Bytes(bytes), Data::Mapped)
    }
}

impl uverbs_fabric::Packet for Packet {
    const IS_PUBLIC: bool = true;
    const PROTOCOL: [u8; 8] = *b"uvhca\0\0\x05";

    fn source(&self) -> usize {
        self.from
    }

    fn captured(&self, from: &Address, to: &Address) -> Option<Captured> {
        crate::capture::captured(self, from, to)
    }

    fn qpns(&self) -> (u32, u32) {
        (self.src_qpn, self.dest_qpn)
    }

    fn words(&self) -> (String, String) {
        super::trace::packet(self)
    }

    fn set_source(&mut self, source: usize) {
        self.from = source;
    }

    fn cost(&self) -> usize {
        const RECORD: usize = size_of::<Packet>() + 64;
        RECORD + self.body.data().map_or(0, Vec::len)
    }

    fn route(&self) -> Option<Route> {
        let is_response = self.body.is_response();
        let route = Route { src: self.src_qpn, dest: self.dest_qpn, is_response };
        (self.transport != Transport::Ethernet).then_some(route)
    }

    fn data_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.body {
            Body::Send { data, .. }
            | Body::Write { data, .. }
            | Body::ReadResponse { data, .. }
            | Body::Datagram { data, .. } => Some(data),
            _ => None,
        }
    }

    fn is_atomic(&self) -> bool {
        matches!(self.body, Body::Atomic { .. })
    }

    fn label(&self) -> Label {
        Label { op: self.body.name(), psn: self.psn }
    }

    fn facts(&self) -> PacketFacts {
        script::facts(self)
    }

    fn refused(&self, answer: Answer) -> Option<Self> {
        script::refused(self, answer)
    }

    fn into_datagram(self) -> Option<(frame::Grh, transport::Packet)> {
        crate::roce::into_datagram(self)
    }

    fn of_datagram(source: usize, route: frame::Grh, packet: transport::Packet) -> Option<Self> {
        crate::roce::of_datagram(source, route, packet)
    }

    fn encode(&self, to: &mut Writer) {
        packet_bytes::encode(to, self);
    }

    fn decode(source: usize, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        packet_bytes::decode(source, from)
    }
}

/// The contents of a packet.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Send {
        first: bool,
        last: bool,
        imm: Option<u32>,
        invalidate: Option<u32>,
        data: Vec<u8>,
    },
    /// `start`, in the first packet: address, key, length of the message.
    Write {
        start: Option<(u64, u32, u32)>,
        last: bool,
        imm: Option<u32>,
        data: Vec<u8>,
    },
    Read {
        addr: u64,
        rkey: u32,
        len: u32,
    },
    Atomic {
        addr: u64,
        rkey: u32,
        op: Atomic,
    },
    ReadResponse {
        first: bool,
        last: bool,
        data: Vec<u8>,
    },
    AtomicResponse(u64),
    Ack,
    Nak(Nak),
    /// Receiver not ready, with the timer's code.
    Rnr(u8),
    Datagram {
        qkey: u32,
        imm: Option<u32>,
        data: Vec<u8>,
    },
    Frame(Vec<u8>),
}

impl Body {
    /// Its data.
    pub(crate) fn data(&self) -> Option<&Vec<u8>> {
        match self {
            Self::Send { data, .. }
            | Self::Write { data, .. }
            | Self::ReadResponse { data, .. }
            | Self::Datagram { data, .. }
            | Self::Frame(data) => Some(data),
            _ => None,
        }
    }

    /// As [`data`](Self::data), for another use of its memory.
    pub(crate) fn into_data(self) -> Option<Vec<u8>> {
        match self {
            Self::Send { data, .. }
            | Self::Write { data, .. }
            | Self::ReadResponse { data, .. }
            | Self::Datagram { data, .. }
            | Self::Frame(data) => Some(data),
            _ => None,
        }
    }

    /// The operation.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Send { .. } | Self::Datagram { .. } => "SEND",
            Self::Write { .. } => "RDMA WRITE",
            Self::Read { .. } => "RDMA READ",
            Self::Atomic { op: Atomic::CmpSwap { .. }, .. } => "ATOMIC CMP AND SWP",
            Self::Atomic { op: Atomic::FetchAdd(_), .. } => "ATOMIC FETCH AND ADD",
            Self::ReadResponse { .. } => "response to an RDMA READ",
            Self::AtomicResponse(_) => "response to an ATOMIC",
            Self::Ack => "acknowledgement",
            Self::Nak(_) => "NAK",
            Self::Rnr(_) => "RNR NAK",
            Self::Frame(_) => "frame",
        }
    }

    /// Whether it answers a request.
    pub(crate) fn is_response(&self) -> bool {
        matches!(
            self,
            Self::ReadResponse { .. } | Self::AtomicResponse(_) | Self::Ack | Self::Nak(_) | Self::Rnr(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        assert_eq!(psn_add(PSN, 1), 0);
        assert_eq!(psn_diff(0, PSN), 1);
        assert_eq!(psn_diff(PSN, 0), -1);
        assert_eq!(psn_diff(5, 5), 0);
        assert_eq!(psn_diff(0x80_0000, 0), -0x80_0000);
    }
}
