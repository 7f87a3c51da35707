// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages of the key-value store.
//!
//! A request and an answer begin with a header of 16 bytes in network byte order:
//!
//! | bytes | request | answer |
//! |---|---|---|
//! | 0 | version of the protocol | the same |
//! | 1 | operation | status |
//! | 2..4 | length of the key | 0 |
//! | 4..8 | number of the request | the same |
//! | 8..12 | length of the value | the same |
//! | 12..16 | slot or lease | slot count or lease |
//!
//! The key and the value of a request follow its header. An answer has the value after its header, or, if the value is
//! large, the description of the memory that the client reads.
//!
//! Nothing in a message is trusted: [`Request::decode`] checks every length against the bytes that arrived.

use uverbs::RemoteRegion;
use uverbs::remote::REMOTE_REGION_LEN;

/// Version of the protocol.
pub const VERSION: u8 = 1;
/// Bytes of a header.
pub const HEADER: usize = 16;
/// Bytes of the largest message by SEND. Both ends post receives of this size.
pub const MESSAGE: usize = 1024;
/// Bytes of the longest key.
pub const MAX_KEY: usize = 256;
/// The largest number of slots of a client: it keeps a list of those that are free.
pub const MAX_SLOTS: u32 = 4096;
/// The largest limit of a server for its values: a client allocates buffers of this size.
pub const MAX_VALUE: u32 = 16 << 20;
/// Bytes of the largest slot: a request with the largest value.
pub const MAX_SLOT: u32 = MAX_VALUE + (HEADER + MAX_KEY) as u32;
/// Bytes of the largest value that is sent in a message; the client reads and writes larger ones by RDMA.
pub const MAX_SMALL: usize = MESSAGE - HEADER - MAX_KEY;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// The limits of the server, and the client's slots. The first request of each client.
    Hello = 1,
    /// The value of a key.
    Get = 2,
    /// Stores the value in the request.
    Put = 3,
    /// Stores the value in a slot. The request in the slot has the key and the value.
    PutSlot = 4,
    /// Removes a key.
    Delete = 5,
    /// The client has read the value of this lease. It has no answer.
    Release = 6,
}

impl Op {
    fn decode(byte: u8) -> Option<Self> {
        [Self::Hello, Self::Get, Self::Put, Self::PutSlot, Self::Delete, Self::Release]
            .into_iter()
            .find(|op| *op as u8 == byte)
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done. The answer to a `Get` has the value.
    Ok = 0,
    /// The answer describes the memory of the value, which stays valid until the lease is released.
    Large = 1,
    /// There is no such key.
    NotFound = 2,
    /// The value is longer than the server's limit.
    TooLarge = 3,
    /// The server has no memory for the value.
    Full = 4,
    /// The client has too many leases.
    Busy = 5,
    /// The request is invalid.
    Malformed = 6,
}

impl Status {
    fn decode(byte: u8) -> Option<Self> {
        [Self::Ok, Self::Large, Self::NotFound, Self::TooLarge, Self::Full, Self::Busy, Self::Malformed]
            .into_iter()
            .find(|status| *status as u8 == byte)
    }
}

/// A header, of which only the length was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    version: u8,
    code: u8,
    key_len: u16,
    /// Number of the request.
    pub id: u32,
    /// Length of the value.
    pub value_len: u32,
    /// Slot or lease.
    pub arg: u32,
}

impl Header {
    /// The header at the front of these bytes; `None` if they are shorter.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let b: &[u8; HEADER] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        Some(Self {
            version: b[0],
            code: b[1],
            key_len: u16::from_be_bytes([b[2], b[3]]),
            id: word(4),
            value_len: word(8),
            arg: word(12),
        })
    }

    fn encode(&self) -> [u8; HEADER] {
        let mut b = [0; HEADER];
        (b[0], b[1]) = (self.version, self.code);
        b[2..4].copy_from_slice(&self.key_len.to_be_bytes());
        b[4..8].copy_from_slice(&self.id.to_be_bytes());
        b[8..12].copy_from_slice(&self.value_len.to_be_bytes());
        b[12..].copy_from_slice(&self.arg.to_be_bytes());
        b
    }

    /// The operation, and the length of the key, if they are valid.
    #[must_use]
    pub fn request(&self) -> Option<(Op, usize)> {
        let key_len = usize::from(self.key_len);
        let op = Op::decode(self.code).filter(|_| self.version == VERSION && key_len <= MAX_KEY)?;
        Some((op, key_len))
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What it asks for.
    pub op: Op,
    /// Its number, which its answer repeats.
    pub id: u32,
    /// Slot or lease.
    pub arg: u32,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Request<'a> {
    /// Bytes of the message.
    #[must_use]
    pub const fn len(&self) -> usize {
        HEADER + self.key.len() + self.value.len()
    }

    /// Never: a request has a header.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the message to the front of `out`, which has at least [`len`](Self::len) bytes.
    ///
    /// # Panics
    /// If `out` is shorter, or the key is longer than [`MAX_KEY`].
    pub fn encode(&self, out: &mut [u8]) {
        let header = Header {
            version: VERSION,
            code: self.op as u8,
            key_len: u16::try_from(self.key.len()).expect("a key is short"),
            id: self.id,
            value_len: u32::try_from(self.value.len()).expect("a value has less than 4 GiB"),
            arg: self.arg,
        };
        let (front, rest) = out.split_at_mut(HEADER);
        front.copy_from_slice(&header.encode());
        let (key, rest) = rest.split_at_mut(self.key.len());
        key.copy_from_slice(self.key);
        rest[..self.value.len()].copy_from_slice(self.value);
    }

    /// The request in a message. The error is the number of the invalid request, if the message has one.
    ///
    /// # Errors
    /// An unknown version or operation, or lengths that do not add up to that of the message.
    pub fn decode(message: &'a [u8]) -> Result<Self, Option<u32>> {
        let header = Header::decode(message).ok_or(None)?;
        let (op, key_len) = header.request().ok_or(Some(header.id))?;
        let (key, value) = message[HEADER..].split_at_checked(key_len).ok_or(Some(header.id))?;
        if value.len() as u64 != u64::from(header.value_len) {
            return Err(Some(header.id));
        }
        Ok(Self { op, id: header.id, arg: header.arg, key, value })
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The result.
    pub status: Status,
    /// The number of the request.
    pub id: u32,
    /// Lease, or number of slots.
    pub arg: u32,
    /// The value, or what describes it.
    pub value: &'a [u8],
}

impl<'a> Answer<'a> {
    /// Bytes of the message.
    #[must_use]
    pub const fn len(&self) -> usize {
        HEADER + self.value.len()
    }

    /// Never: an answer has a header.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the message to the front of `out`, which has at least [`len`](Self::len) bytes.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn encode(&self, out: &mut [u8]) {
        let header = Header {
            version: VERSION,
            code: self.status as u8,
            key_len: 0,
            id: self.id,
            value_len: u32::try_from(self.value.len()).expect("a message is short"),
            arg: self.arg,
        };
        let (front, rest) = out.split_at_mut(HEADER);
        front.copy_from_slice(&header.encode());
        rest[..self.value.len()].copy_from_slice(self.value);
    }

    /// The answer in a message; `None` if it is invalid.
    #[must_use]
    pub fn decode(message: &'a [u8]) -> Option<Self> {
        let header = Header::decode(message).filter(|h| h.version == VERSION)?;
        let (status, value) = (Status::decode(header.code)?, &message[HEADER..]);
        let fits = value.len() as u64 == u64::from(header.value_len);
        fits.then_some(Self { status, id: header.id, arg: header.arg, value })
    }
}

/// The answer to [`Op::Hello`]: the server's limits, and the memory of the client's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Requests that the client may have outstanding.
    pub credits: u32,
    /// Bytes of the largest value.
    pub max_value: u32,
    /// Bytes of a slot.
    pub slot_size: u32,
    /// Bytes from one slot to the next.
    pub slot_stride: u32,
    /// Number of slots.
    pub slots: u32,
    /// Whether the server can receive immediate data.
    pub immediate: bool,
    /// The memory of all slots.
    pub region: RemoteRegion,
}

/// Bytes of an encoded [`Welcome`].
pub const WELCOME: usize = 24 + REMOTE_REGION_LEN;

impl Welcome {
    /// Its bytes in an answer.
    #[must_use]
    pub fn encode(&self) -> [u8; WELCOME] {
        let numbers = [
            self.credits,
            self.max_value,
            self.slot_size,
            self.slot_stride,
            self.slots,
            u32::from(self.immediate),
        ];
        let mut out = [0; WELCOME];
        for (word, number) in out.chunks_exact_mut(4).zip(numbers) {
            word.copy_from_slice(&number.to_be_bytes());
        }
        out[24..].copy_from_slice(&self.region.encode());
        out
    }

    /// What [`encode`](Self::encode) wrote; `None` for other bytes, for slots that are not inside the region, and for numbers above
    /// [`MAX_SLOTS`] or [`MAX_VALUE`], with which a client would run out of memory.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; WELCOME] = bytes.try_into().ok()?;
        let word = |n: usize| {
            u32::from_be_bytes([bytes[4 * n], bytes[4 * n + 1], bytes[4 * n + 2], bytes[4 * n + 3]])
        };
        let region = RemoteRegion::decode(&bytes[24..]).ok()?;
        let [credits, max_value, slot_size, slot_stride, slots, immediate] = [0, 1, 2, 3, 4, 5].map(word);
        let welcome =
            Self { credits, max_value, slot_size, slot_stride, slots, immediate: immediate == 1, region };
        let sound = credits > 0
            && slots <= MAX_SLOTS
            && slot_size <= slot_stride.min(MAX_SLOT)
            && u64::from(slots) * u64::from(slot_stride) <= region.len()
            && u64::from(slot_size) >= u64::from(max_value) + (HEADER + MAX_KEY) as u64;
        sound.then_some(welcome)
    }
}
