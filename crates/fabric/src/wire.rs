// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages between two processes of a fabric, as bytes: a length of 4 bytes, a type, fields in big-endian order.
//!
//! The other process may be of another build, or malicious: invalid messages are detected, every length has a limit,
//! and numbers that the engine uses are in their range.

use crate::model::Packet;
use crate::net::{Address, PortLocation};
use core::fmt;

/// Bytes of a message at most: a list of ports, or a frame with segments to cut.
pub(crate) const MAX: usize = 4 << 20;
/// Ports, addresses of a port, and members of groups at most. A list of so many fits in a message.
pub(crate) const MAX_PORTS: usize = 512;
const MAX_GIDS: usize = 256;
pub(crate) const MAX_MEMBERS: usize = 1 << 14;

/// Bytes of a message between hosts at most.
pub const MAX_HOST: usize = 4096;

/// The bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a message of a fabric")
    }
}

impl core::error::Error for Malformed {}

/// A port, by its number in the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number.
    pub number: u16,
    /// Whether the link layer is Ethernet.
    pub ethernet: bool,
    /// Whether the link is up.
    pub up: bool,
    /// LID, of an InfiniBand port.
    pub lid: u16,
    /// MAC address, of an Ethernet port.
    pub mac: [u8; 6],
    /// GIDs, with `true` for RoCE version 2.
    pub gids: Vec<([u8; 16], bool)>,
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
        Address { lid, mac, gids, up, location, ..Address::new(number, ethernet) }
    }
}

/// A message.
#[derive(Clone, Debug)]
pub enum Message<P> {
    /// The first message of a connecting process: the number of its first device, if it already has one.
    Hello {
        /// The number.
        base: Option<u16>,
    },
    /// The answer: the number of the first device.
    Welcome {
        /// The number.
        base: u16,
    },
    /// The number is in use, or there are no more numbers.
    Refused,
    /// All ports that are reached through the sender.
    Ports(Vec<Port>),
    /// All members of multicast groups at these ports: group, port, QP.
    Members(Vec<([u8; 16], u16, u32)>),
    /// A packet to a port. Its source is the number of a port, too.
    Packet {
        /// The number of the port.
        to: u16,
        /// The packet.
        packet: P,
    },
    /// Requests an answer with this number, which is sent after all earlier messages were processed.
    Sync(u32),
    /// The answer to `Sync`.
    Synced(u32),
    /// A message to the host of a port.
    Host {
        /// The number of the port.
        to: u16,
        /// The message.
        bytes: Vec<u8>,
    },
}

/// An encoder of fields.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a number of 1 byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Appends a number of 2 bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    /// Appends a number of 4 bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    /// Appends a number of 8 bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    /// Appends an optional number, which takes as many bytes if it is missing.
    pub fn option(&mut self, value: Option<u32>) {
        self.u8(value.is_some().into());
        self.u32(value.unwrap_or(0));
    }

    /// Appends bytes with their length.
    pub fn data(&mut self, data: &[u8]) {
        self.u32(data.len() as u32);
        self.bytes(data);
    }
}

/// A decoder of fields.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// Bytes.
    ///
    /// # Errors
    /// There are too few bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    /// A number of 1 byte.
    ///
    /// # Errors
    /// There are too few bytes.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[b]| b)
    }

    /// A number of 2 bytes.
    ///
    /// # Errors
    /// There are too few bytes.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// A number of 4 bytes.
    ///
    /// # Errors
    /// There are too few bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// A number of 8 bytes.
    ///
    /// # Errors
    /// There are too few bytes.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    /// There is no byte, or it is another number.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    /// An optional number.
    ///
    /// # Errors
    /// There are too few bytes, or the first one is not 0 or 1.
    pub fn option(&mut self) -> Result<Option<u32>, Malformed> {
        let (is_there, value) = (self.bool()?, self.u32()?);
        Ok(is_there.then_some(value))
    }

    /// A number of 24 bits: of a queue, a packet.
    ///
    /// # Errors
    /// There are too few bytes, or the number is larger.
    pub fn u24(&mut self) -> Result<u32, Malformed> {
        self.u32().and_then(|n| if n < 1 << 24 { Ok(n) } else { Err(Malformed) })
    }

    /// A number of 4 bytes up to `max`.
    ///
    /// # Errors
    /// There are too few bytes, or the number is larger.
    pub fn count(&mut self, max: usize) -> Result<usize, Malformed> {
        self.u32().and_then(|n| if n as usize <= max { Ok(n as usize) } else { Err(Malformed) })
    }

    /// Bytes with their length, which is at most `max`.
    ///
    /// # Errors
    /// There are too few bytes, or the length is larger.
    pub fn data(&mut self, max: usize) -> Result<Vec<u8>, Malformed> {
        let len = self.count(max)?;
        let (data, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(data.to_vec())
    }
}

impl<P: Packet> Message<P> {
    /// Encodes the message, with its length in front.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut w = Writer(vec![0; 4]);
        match self {
            Self::Hello { base } => {
                w.u8(1);
                w.bytes(&P::PROTOCOL);
                w.option(base.map(u32::from));
            }
            Self::Welcome { base } => {
                w.u8(2);
                w.bytes(&P::PROTOCOL);
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
                w.u16(packet.source() as u16);
                packet.encode(&mut w);
            }
            Self::Sync(number) => {
                w.u8(7);
                w.u32(*number);
            }
            Self::Synced(number) => {
                w.u8(8);
                w.u32(*number);
            }
            Self::Host { to, bytes } => {
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
    ///
    /// # Errors
    /// They are not a message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let message = match r.u8()? {
            1 if r.array()? == P::PROTOCOL => {
                let base = r.option()?.map(u16::try_from).transpose().map_err(|_| Malformed)?;
                Self::Hello { base }
            }
            2 if r.array()? == P::PROTOCOL => Self::Welcome { base: r.u16()? },
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
            6 => {
                let (to, source) = (r.u16()?, usize::from(r.u16()?));
                Self::Packet { to, packet: P::decode(source, &mut r)? }
            }
            7 => Self::Sync(r.u32()?),
            8 => Self::Synced(r.u32()?),
            9 => Self::Host { to: r.u16()?, bytes: r.data(MAX_HOST)? },
            _ => return Err(Malformed),
        };
        if r.0.is_empty() { Ok(message) } else { Err(Malformed) }
    }
}
