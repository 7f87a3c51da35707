// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages of a lane, and the pattern by which the receiver checks the data. All numbers are big-endian.

use uverbs::RemoteRegion;
use uverbs::remote::REMOTE_REGION_LEN;

/// Bytes at the front of each block that identify its batch and block.
pub const STAMP: usize = 8;

/// Bytes of the longest message.
pub const MESSAGE: usize = 8 + REMOTE_REGION_LEN;

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// From the receiver: the lane may write one batch to an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of the area.
    pub area: u32,
    /// The batch that was in the area, and was taken.
    pub taken: Option<u32>,
    /// The memory.
    pub region: RemoteRegion,
}

impl Grant {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..4].copy_from_slice(&self.area.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.taken.map_or(0, |batch| batch + 1).to_be_bytes());
        bytes[8..].copy_from_slice(&self.region.encode());
        bytes
    }

    /// The grant with these bytes; `None` if they are of none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let region = RemoteRegion::decode(bytes.get(8..)?).ok()?;
        Some(Self { area: word(bytes, 0)?, taken: word(bytes, 4)?.checked_sub(1), region })
    }
}

/// From the sender, after the blocks: the batch is in the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The number of the area.
    pub area: u32,
    /// The number of the batch.
    pub batch: u32,
}

impl Finished {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.area.to_be_bytes());
        bytes[4..].copy_from_slice(&self.batch.to_be_bytes());
        bytes
    }

    /// The message with these bytes; `None` if they are of none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == 8).then_some(Self { area: word(bytes, 0)?, batch: word(bytes, 4)? })
    }
}

/// Writes the first bytes of a block: its batch, its number, and bytes that depend on both.
pub fn pattern(out: &mut [u8], batch: u32, block: u32) {
    let stamp = u64::from(batch) << 32 | u64::from(block);
    let mut number = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = stamp.to_be_bytes();
    let (words, rest) = out.as_chunks_mut();
    for word in words {
        *word = bytes;
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes = (number ^ number >> 33).to_be_bytes();
    }
    rest.copy_from_slice(&bytes[..rest.len()]);
}
