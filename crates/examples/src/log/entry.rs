// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of the log, and of the messages between a leader and a follower.
//!
//! The log has [`SLOTS`] slots of [`SLOT`] bytes. Slot 0 has the number of the last entry that is durable. Slot `n` has entry `n`: a checksum,
//! the term, the number, the length, and the bytes. All numbers are little-endian. An entry that was written in part has a wrong checksum.

use uverbs::RemoteRegion;
use uverbs::remote::REMOTE_REGION_LEN;

/// Bytes of a slot.
pub const SLOT: usize = 256;
/// The slots, one of which has no entry.
pub const SLOTS: usize = 64;
/// Bytes of a log.
pub const LOG: usize = SLOT * SLOTS;
/// Bytes before those of the entry: checksum, term, number, length.
pub const HEAD: usize = 32;
/// The most bytes of an entry.
pub const MAX_DATA: usize = SLOT - HEAD;
/// Bytes of the longest message.
pub const MESSAGE: usize = 9 + REMOTE_REGION_LEN;

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The term of the leader that made it.
    pub term: u64,
    /// Its number, from 1.
    pub number: u64,
    /// The bytes, at most [`MAX_DATA`].
    pub data: Vec<u8>,
}

/// FNV-1a, which finds what a write that was cut off leaves.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Entry {
    /// The bytes of its slot, without the unused ones behind them; `None` if there are more than a slot has.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        if self.data.len() > MAX_DATA {
            return None;
        }
        let mut bytes = vec![0; 8];
        for word in [self.term, self.number, self.data.len() as u64] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(&self.data);
        let sum = checksum(&bytes[8..]);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        Some(bytes)
    }

    /// The entry with this number; `None` if the slot has another one, or a part of one.
    #[must_use]
    pub fn decode(slot: &[u8], number: u64) -> Option<Self> {
        let len = usize::try_from(word(slot, 24)?).ok()?;
        let data = slot.get(HEAD..HEAD.checked_add(len)?)?;
        let entry = Self { term: word(slot, 8)?, number: word(slot, 16)?, data: data.to_vec() };
        (entry.number == number && word(slot, 0)? == checksum(&slot[8..HEAD + len])).then_some(entry)
    }
}

/// The entries of a log, from the first one on, up to a gap.
pub fn entries(log: &[u8]) -> impl Iterator<Item = Entry> {
    let slots = log.chunks_exact(SLOT).enumerate().skip(1);
    slots.map_while(|(number, slot)| Entry::decode(slot, number as u64))
}

/// The number of the last durable entry, as the log has it.
#[must_use]
pub fn durable(log: &[u8]) -> u64 {
    word(log, 0).unwrap_or(0)
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// From a candidate, which has swapped this value into the term: open the log.
    Open(u64),
    /// From the follower: the log is open.
    Opened(u64, RemoteRegion),
    /// From the follower: the term has another value by now.
    Refused(u64),
}

impl Message {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, term, region) = match self {
            Self::Open(term) => (0, term, None),
            Self::Opened(term, region) => (1, term, Some(region)),
            Self::Refused(term) => (2, term, None),
        };
        let mut bytes = vec![kind];
        bytes.extend(term.to_le_bytes());
        bytes.extend(region.into_iter().flat_map(RemoteRegion::encode));
        bytes
    }

    /// The message with these bytes; `None` if they are of none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let term = word(rest, 0)?;
        match (kind, rest.len()) {
            (0, 8) => Some(Self::Open(term)),
            (1, _) => Some(Self::Opened(term, RemoteRegion::decode(&rest[8..]).ok()?)),
            (2, 8) => Some(Self::Refused(term)),
            _ => None,
        }
    }
}
