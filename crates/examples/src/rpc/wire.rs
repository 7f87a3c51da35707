// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of requests, answers, and of the private data of a connection. All numbers are little-endian.

use core::time::Duration;

/// Bytes of the longest message.
pub const MESSAGE: usize = 1024;
/// Bytes before those of the program: number, time limit or zeros, kind or status, three zeros.
pub const HEAD: usize = 16;
/// The most bytes of a request or an answer of the program.
pub const MAX_BODY: usize = MESSAGE - HEAD;
/// Bytes of [`Terms`].
pub const TERMS: usize = 8;
/// The first bytes of [`Terms`].
const VERSION: u32 = 0x7270_6301;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A call of the program.
    Call,
    /// An answer without bytes, at once: whether the server is alive.
    Ping,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The number of the call, which its answer has. The client chooses it.
    pub call: u64,
    /// The time that is left, in microseconds, at most 2^32 - 1 (71 minutes). The clocks of the two sides may differ, so it is no point in
    /// time.
    pub limit: Duration,
    /// What it asks for.
    pub kind: Kind,
    /// The bytes of the program.
    pub body: &'a [u8],
}

/// Why an answer has no bytes of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It has.
    Done,
    /// The time limit has passed at the server.
    Expired,
    /// The program's answer is longer than [`MAX_BODY`].
    TooLong,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The number of the call.
    pub call: u64,
    /// Whether the call was executed.
    pub status: Status,
    /// The bytes of the program.
    pub body: &'a [u8],
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Writes a message to the beginning of `to`. Returns its length; `None` if it has no room.
fn encode(to: &mut [u8], call: u64, number: u32, kind: u8, body: &[u8]) -> Option<usize> {
    let len = HEAD + body.len();
    let to = to.get_mut(..len)?;
    to[..8].copy_from_slice(&call.to_le_bytes());
    to[8..12].copy_from_slice(&number.to_le_bytes());
    to[12..HEAD].copy_from_slice(&[kind, 0, 0, 0]);
    to[HEAD..].copy_from_slice(body);
    Some(len)
}

/// The parts of a message.
fn decode(bytes: &[u8]) -> Option<(u64, u32, u8, &[u8])> {
    let number = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?);
    let [kind, 0, 0, 0] = *bytes.get(12..HEAD)? else { return None };
    Some((word(bytes, 0)?, number, kind, &bytes[HEAD..]))
}

impl<'a> Request<'a> {
    /// Writes it to the beginning of `to`. Returns its length; `None` if it has no room.
    #[must_use]
    pub fn encode(&self, to: &mut [u8]) -> Option<usize> {
        let micros = u32::try_from(self.limit.as_micros()).unwrap_or(u32::MAX);
        let kind = match self.kind {
            Kind::Call => 0,
            Kind::Ping => 1,
        };
        encode(to, self.call, micros, kind, self.body)
    }

    /// The request with these bytes; `None` if they are of none.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (call, micros, kind, body) = decode(bytes)?;
        let kind = match kind {
            0 => Kind::Call,
            1 if body.is_empty() => Kind::Ping,
            _ => return None,
        };
        Some(Self { call, limit: Duration::from_micros(micros.into()), kind, body })
    }
}

impl<'a> Answer<'a> {
    /// Writes it to the beginning of `to`. Returns its length; `None` if it has no room.
    #[must_use]
    pub fn encode(&self, to: &mut [u8]) -> Option<usize> {
        let status = match self.status {
            Status::Done => 0,
            Status::Expired => 1,
            Status::TooLong => 2,
        };
        encode(to, self.call, 0, status, self.body)
    }

    /// The answer with these bytes; `None` if they are of none.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (call, 0, status, body) = decode(bytes)? else { return None };
        let status = match status {
            0 => Status::Done,
            1 if body.is_empty() => Status::Expired,
            2 if body.is_empty() => Status::TooLong,
            _ => return None,
        };
        Some(Self { call, status, body })
    }
}

/// The private data of a connection: of the request, what the client wants; of the acceptance, what the server grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The calls that the client may have outstanding, besides a [`Kind::Ping`].
    pub credits: u16,
}

impl Terms {
    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; TERMS] {
        let mut bytes = [0; TERMS];
        bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.credits.to_le_bytes());
        bytes
    }

    /// The terms at the beginning of private data, which the connection manager pads with zeros; `None` if there are none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; TERMS] = bytes.first_chunk()?;
        let credits = u16::from_le_bytes([bytes[4], bytes[5]]);
        (bytes[..4] == VERSION.to_le_bytes() && credits > 0).then_some(Self { credits })
    }
}
