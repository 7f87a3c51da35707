// SPDX-License-Identifier: MIT OR Apache-2.0
//! A transport packet: base transport header, extended headers, payload and its padding (IBA volume 1, chapter 9).

use crate::opcode::{Extended, Opcode};
use crate::{Error, Result};

/// The default partition, with full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// Bits of queue pair numbers and of sequence numbers.
const BITS_24: u32 = 0xff_ffff;

/// The base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The operation.
    pub opcode: Opcode,
    /// The receiver shall raise an event for solicited completions.
    pub solicited: bool,
    /// The migration state: migrated. It is set by QPs that do not use automatic path migration.
    pub migrated: bool,
    /// The partition.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// The destination's QP number, 24 bits.
    pub dest_qpn: u32,
    /// An acknowledgement is requested.
    pub ack_req: bool,
    /// The packet sequence number, 24 bits.
    pub psn: u32,
}

impl Bth {
    /// The header of a packet in the default partition to QP 0 with number 0.
    #[must_use]
    pub const fn new(opcode: Opcode) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: true,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qpn: 0,
            ack_req: false,
            psn: 0,
        }
    }
}

/// The datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The queue key of the destination.
    pub qkey: u32,
    /// The sender's QP number, 24 bits.
    pub src_qpn: u32,
}

/// The RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// The remote address.
    pub addr: u64,
    /// The remote key.
    pub rkey: u32,
    /// The length of the whole message.
    pub len: u32,
}

/// The atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// The remote address.
    pub addr: u64,
    /// The remote key.
    pub rkey: u32,
    /// The value to add, or to store.
    pub swap_add: u64,
    /// The value to compare with; 0 for FetchAdd.
    pub compare: u64,
}

/// Why a request was refused: the code of a NAK (IBA volume 1, table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// PSN sequence error.
    Sequence,
    /// Invalid request.
    Invalid,
    /// Remote access error.
    Access,
    /// Remote operational error.
    Operation,
}

/// The syndrome of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// ACK. The five bits are the code of the responder's credits; 31: it counts none.
    Ack(u8),
    /// RNR NAK, with the five bits of the timer's code.
    Rnr(u8),
    /// NAK.
    Nak(Nak),
}

impl Syndrome {
    /// An acknowledgement without a count of credits.
    pub const NO_CREDITS: Self = Self::Ack(31);

    fn bits(self) -> Result<u8> {
        let five = |name, code: u8| match code {
            0..=31 => Ok(code),
            _ => Err(Error::TooLarge(name, code.into())),
        };
        Ok(match self {
            Self::Ack(credits) => five("credits", credits)?,
            Self::Rnr(timer) => 0x20 | five("RNR timer", timer)?,
            Self::Nak(nak) => 0x60 | nak as u8,
        })
    }

    fn from_bits(bits: u8) -> Result<Self> {
        let low = bits & 0x1f;
        match (bits >> 5, low) {
            (0, _) => Ok(Self::Ack(low)),
            (1, _) => Ok(Self::Rnr(low)),
            (3, 0) => Ok(Self::Nak(Nak::Sequence)),
            (3, 1) => Ok(Self::Nak(Nak::Invalid)),
            (3, 2) => Ok(Self::Nak(Nak::Access)),
            (3, 3) => Ok(Self::Nak(Nak::Operation)),
            _ => Err(Error::Field("AETH syndrome", bits.into())),
        }
    }
}

/// The acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What is acknowledged.
    pub syndrome: Syndrome,
    /// The message sequence number, 24 bits.
    pub msn: u32,
}

/// The extended headers, of which the opcode determines those that a packet has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Of a datagram.
    pub deth: Option<Deth>,
    /// The number of the shared receive queue of an XRC request, 24 bits.
    pub xrc_srqn: Option<u32>,
    /// Of an RDMA read or write.
    pub reth: Option<Reth>,
    /// Of an atomic operation.
    pub atomic: Option<AtomicEth>,
    /// Of a response.
    pub aeth: Option<Aeth>,
    /// The value that an atomic operation has found.
    pub atomic_ack: Option<u64>,
    /// The immediate: the number of its big-endian bytes.
    pub imm: Option<u32>,
    /// The remote key to invalidate.
    pub ieth: Option<u32>,
}

impl Headers {
    /// Which headers there are.
    #[must_use]
    pub const fn present(&self) -> Extended {
        Extended {
            deth: self.deth.is_some(),
            xrceth: self.xrc_srqn.is_some(),
            reth: self.reth.is_some(),
            atomic: self.atomic.is_some(),
            aeth: self.aeth.is_some(),
            atomic_ack: self.atomic_ack.is_some(),
            imm: self.imm.is_some(),
            ieth: self.ieth.is_some(),
        }
    }
}

/// A transport packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The base transport header.
    pub bth: Bth,
    /// The extended headers.
    pub headers: Headers,
    /// The payload, without the bytes that fill its last word.
    pub payload: Vec<u8>,
}

/// A number of 24 bits.
fn bits_24(name: &'static str, value: u32) -> Result<u32> {
    if value <= BITS_24 { Ok(value) } else { Err(Error::TooLarge(name, value.into())) }
}

impl Packet {
    /// Appends the packet, with padding and without CRC.
    ///
    /// # Errors
    /// The opcode has other headers or no payload; a number has more than its 24 or 5 bits.
    pub fn encode(&self, to: &mut Vec<u8>) -> Result<()> {
        let Self { bth, headers, payload } = self;
        let bits = bth.opcode.bits();
        if headers.present() != bth.opcode.extended() {
            return Err(Error::Headers(bits));
        }
        if !payload.is_empty() && !bth.opcode.has_payload() {
            return Err(Error::Payload(bits));
        }
        let pad = payload.len().wrapping_neg() % 4;
        to.push(bits);
        to.push(u8::from(bth.solicited) << 7 | u8::from(bth.migrated) << 6 | (pad as u8) << 4);
        to.extend(bth.pkey.to_be_bytes());
        let congestion = u32::from(bth.fecn) << 31 | u32::from(bth.becn) << 30;
        to.extend((congestion | bits_24("destination QP", bth.dest_qpn)?).to_be_bytes());
        to.extend((u32::from(bth.ack_req) << 31 | bits_24("PSN", bth.psn)?).to_be_bytes());
        if let Some(Deth { qkey, src_qpn }) = headers.deth {
            to.extend(qkey.to_be_bytes());
            to.extend(bits_24("source QP", src_qpn)?.to_be_bytes());
        }
        if let Some(srqn) = headers.xrc_srqn {
            to.extend(bits_24("XRC SRQ", srqn)?.to_be_bytes());
        }
        if let Some(Reth { addr, rkey, len }) = headers.reth {
            to.extend(addr.to_be_bytes());
            to.extend(rkey.to_be_bytes());
            to.extend(len.to_be_bytes());
        }
        if let Some(AtomicEth { addr, rkey, swap_add, compare }) = headers.atomic {
            to.extend(addr.to_be_bytes());
            to.extend(rkey.to_be_bytes());
            to.extend(swap_add.to_be_bytes());
            to.extend(compare.to_be_bytes());
        }
        if let Some(Aeth { syndrome, msn }) = headers.aeth {
            to.extend((u32::from(syndrome.bits()?) << 24 | bits_24("MSN", msn)?).to_be_bytes());
        }
        if let Some(value) = headers.atomic_ack {
            to.extend(value.to_be_bytes());
        }
        for word in [headers.imm, headers.ieth].into_iter().flatten() {
            to.extend(word.to_be_bytes());
        }
        to.extend(payload);
        to.extend(&[0; 3][..pad]);
        Ok(())
    }

    /// The packet that these bytes are, which have no CRC.
    ///
    /// # Errors
    /// The opcode is not known, the bytes are not whole words or end before a header does, a field has a value that is reserved.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader(bytes);
        let [bits, flags] = r.array("BTH")?;
        let opcode = Opcode::from_bits(bits).ok_or(Error::Field("BTH opcode", bits.into()))?;
        if flags & 0x0f != 0 {
            return Err(Error::Field("BTH version", (flags & 0x0f).into()));
        }
        let pkey = u16::from_be_bytes(r.array("BTH")?);
        let dest = r.u32("BTH")?;
        let sequence = r.u32("BTH")?;
        let bth = Bth {
            opcode,
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pkey,
            fecn: dest >> 31 != 0,
            becn: dest >> 30 & 1 != 0,
            dest_qpn: dest & BITS_24,
            ack_req: sequence >> 31 != 0,
            psn: sequence & BITS_24,
        };
        let has = opcode.extended();
        let headers = Headers {
            deth: has.deth.then(|| r.deth()).transpose()?,
            xrc_srqn: has.xrceth.then(|| r.bits_24("XRCETH")).transpose()?,
            reth: has.reth.then(|| r.reth()).transpose()?,
            atomic: has.atomic.then(|| r.atomic()).transpose()?,
            aeth: has.aeth.then(|| r.aeth()).transpose()?,
            atomic_ack: has.atomic_ack.then(|| r.u64("AtomicAckETH")).transpose()?,
            imm: has.imm.then(|| r.u32("ImmDt")).transpose()?,
            ieth: has.ieth.then(|| r.u32("IETH")).transpose()?,
        };
        let Reader(rest) = r;
        if !rest.len().is_multiple_of(4) {
            return Err(Error::Field("payload length", rest.len() as u64));
        }
        let pad = usize::from(flags >> 4 & 3);
        let len = rest.len().checked_sub(pad).ok_or(Error::Short("padding"))?;
        if len != 0 && !opcode.has_payload() {
            return Err(Error::Payload(bits));
        }
        Ok(Self { bth, headers, payload: rest[..len].to_vec() })
    }
}

/// The bytes that are not decoded yet.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self, name: &'static str) -> Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Error::Short(name))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u32(&mut self, name: &'static str) -> Result<u32> {
        self.array(name).map(u32::from_be_bytes)
    }

    fn u64(&mut self, name: &'static str) -> Result<u64> {
        self.array(name).map(u64::from_be_bytes)
    }

    /// A number of 24 bits after a reserved byte, which the receiver ignores.
    fn bits_24(&mut self, name: &'static str) -> Result<u32> {
        Ok(self.u32(name)? & BITS_24)
    }

    fn deth(&mut self) -> Result<Deth> {
        Ok(Deth { qkey: self.u32("DETH")?, src_qpn: self.bits_24("DETH")? })
    }

    fn reth(&mut self) -> Result<Reth> {
        Ok(Reth { addr: self.u64("RETH")?, rkey: self.u32("RETH")?, len: self.u32("RETH")? })
    }

    fn atomic(&mut self) -> Result<AtomicEth> {
        let (addr, rkey) = (self.u64("AtomicETH")?, self.u32("AtomicETH")?);
        Ok(AtomicEth { addr, rkey, swap_add: self.u64("AtomicETH")?, compare: self.u64("AtomicETH")? })
    }

    fn aeth(&mut self) -> Result<Aeth> {
        let word = self.u32("AETH")?;
        Ok(Aeth { syndrome: Syndrome::from_bits((word >> 24) as u8)?, msn: word & BITS_24 })
    }
}
