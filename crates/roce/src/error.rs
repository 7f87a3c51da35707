// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a packet has no bytes, or bytes are no packet.

use core::fmt;

/// Why a packet can't be encoded, or bytes can't be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The bytes end before the header, or a length in a header is more than there are.
    Short(&'static str),
    /// A field has a value that this crate does not know, or that the specification does not permit.
    Field(&'static str, u64),
    /// The opcode needs another set of headers than the packet has.
    Headers(u8),
    /// The opcode's packets have no payload.
    Payload(u8),
    /// A number has more bits than its field.
    TooLarge(&'static str, u64),
    /// A CRC is not that of the bytes.
    Crc {
        /// Which one.
        name: &'static str,
        /// The packet's.
        found: u32,
        /// That of the bytes.
        expected: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(name) => write!(f, "{name}: the packet is too short"),
            Self::Field(name, value) => write!(f, "{name}: unexpected value {value:#x}"),
            Self::Headers(opcode) => write!(f, "opcode {opcode:#04x} has other headers"),
            Self::Payload(opcode) => write!(f, "opcode {opcode:#04x} has no payload"),
            Self::TooLarge(name, value) => write!(f, "{name}: {value:#x} is too large"),
            Self::Crc { name, found, expected } => write!(f, "{name}: {found:#x} instead of {expected:#x}"),
        }
    }
}

impl core::error::Error for Error {}

/// The result of encoding and decoding.
pub type Result<T> = core::result::Result<T, Error>;
