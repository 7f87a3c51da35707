// SPDX-License-Identifier: MIT OR Apache-2.0
//! Expands compressed entries.
//!
//! A block of compressed completions takes the place of as many entries ([`uverbs_mlx5_hw::mini`]), which are the poller's once
//! the title is. So a block is expanded where it is: each completion is written to an entry of its own, as the device would have
//! written it without compression. A poll, the removal of a QP's entries and a resize then handle plain entries only. The new
//! entries have the owner bit of their lap, also those that the device has left out, whose old ones would be valid in the next.
//!
//! A block is expanded when a poll or a control call finds its title, which no other thread does at the same time (see `shared`).

use super::cqe::{Kind, OpOwn};
use super::entry::{Tail, WORDS};
use super::ring::CqRing;
use core::sync::atomic::Ordering;
use uverbs_mlx5_hw::mini::{
    ARRAY, COMPRESSED, MLX5DV_CQE_RES_FORMAT_CSUM, MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX,
    MLX5DV_CQE_RES_FORMAT_HASH, array_of,
};

/// What a compressed completion of a receive has of its own besides its length (`enum mlx5dv_cqe_comp_res_format`). Completions
/// whose other fields differ are not compressed. Only programs that read the ring themselves see the difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CqeCompression {
    /// The hash of the packet.
    #[default]
    Hash,
    /// The checksum of the packet.
    Checksum,
    /// The checksum of the packet, and its stride in a striding receive queue.
    ChecksumAndStride,
}

impl CqeCompression {
    /// The formats.
    pub(crate) const ALL: [Self; 3] = [Self::Hash, Self::Checksum, Self::ChecksumAndStride];

    /// `MLX5DV_CQE_RES_FORMAT_*`.
    #[must_use]
    pub const fn bit(self) -> u8 {
        match self {
            Self::Hash => MLX5DV_CQE_RES_FORMAT_HASH,
            Self::Checksum => MLX5DV_CQE_RES_FORMAT_CSUM,
            Self::ChecksumAndStride => MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX,
        }
    }

    /// The format with this bit; `None` if it is not exactly one of the three.
    #[must_use]
    pub fn of_bit(bit: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.bit() == bit)
    }
}

impl OpOwn {
    /// Whether it has the format of a title, in a ring with compressed entries.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn has_format_of_title(self) -> bool {
        self.0 >> 2 & 3 == COMPRESSED
    }
}

/// The value in `bits` of `word` replaced by `value`, from bit `shift` on.
const fn put(word: u64, bits: u64, shift: u32, value: u64) -> u64 {
    word & !(bits << shift) | value << shift
}

/// The count of a title is less than 2, or larger than the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoBlock;

impl CqRing {
    /// Expands the block whose title is the valid entry at `position`. Does nothing if the ring has no compressed entries, or if
    /// the entry is no title.
    #[cold]
    #[inline(never)]
    pub(crate) fn expand(&self, position: u32) -> Result<(), NoBlock> {
        let Some(format) = self.compression() else { return Ok(()) };
        let tail = self.tail(position);
        let is_request = match tail.op_own().kind() {
            Kind::Requester => true,
            Kind::Responder => false,
            // Errors and marks are never compressed.
            _ => return Ok(()),
        };
        if !tail.op_own().has_format_of_title() {
            return Ok(());
        }
        let title = self.words(position);
        let count = title[5] as u32;
        // The first array is behind the title, so there is no block of one.
        if !(2..=self.entries()).contains(&count) {
            return Err(NoBlock);
        }
        let mut minis = [0; WORDS];
        for n in 0..count {
            // An array is read before the entry that it is in is written.
            if n % ARRAY == 0 {
                minis = self.words(position.wrapping_add(array_of(n)));
            }
            let mini = minis[(n % ARRAY) as usize];
            let info = mini >> 32;
            let mut words = title;
            words[5] = put(title[5], 0xffff_ffff, 0, mini & 0xffff_ffff);
            let tail = if is_request {
                tail.of_block((info >> 16) as u16).with_send_opcode((info >> 8) as u8)
            } else {
                own_values(&mut words, format, info, n == 0);
                // As in the kernel's driver. The entry of a striding receive queue has a stride there, and the driver has no such
                // queues.
                tail.of_block(tail.wqe_counter().wrapping_add(n as u16))
            };
            self.store(position.wrapping_add(n), words, tail);
        }
        Ok(())
    }

    /// The words of an entry, converted from big-endian.
    fn words(&self, position: u32) -> [u64; WORDS] {
        let entry = self.entry(position);
        core::array::from_fn(|i| u64::from_be(entry.raw_word(i)))
    }

    /// Writes an entry, with the owner bit of its position.
    fn store(&self, position: u32, words: [u64; WORDS], tail: Tail) {
        let entry = self.entry(position);
        for (to, word) in entry.0.iter().zip(words).take(WORDS - 1) {
            to.store(word.to_be(), Ordering::Relaxed);
        }
        entry.0[WORDS - 1].store(tail.word_in(self.phase(position)), Ordering::Relaxed);
    }
}

/// Writes what the mini entry of a receive has of its own. What it does not have is that of the first completion only, as in the
/// kernel's driver.
fn own_values(words: &mut [u64; WORDS], format: CqeCompression, info: u64, is_first: bool) {
    /// `rss_hash_result`, in the word 1.
    const HASH: (u64, u32) = (0xffff_ffff, 0);
    /// `rss_hash_type`, in the word 2.
    const HASH_TYPE: (u64, u32) = (0xff, 56);
    /// `check_sum`, in the word 2.
    const CHECKSUM: (u64, u32) = (0xffff, 16);
    match format {
        CqeCompression::Hash => {
            words[1] = put(words[1], HASH.0, HASH.1, info);
            if !is_first {
                words[2] = put(words[2], CHECKSUM.0, CHECKSUM.1, 0);
            }
        }
        CqeCompression::Checksum | CqeCompression::ChecksumAndStride => {
            words[2] = put(words[2], CHECKSUM.0, CHECKSUM.1, info >> 16);
            if !is_first {
                words[1] = put(words[1], HASH.0, HASH.1, 0);
                words[2] = put(words[2], HASH_TYPE.0, HASH_TYPE.1, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_one_bit() {
        let of = |bit| CqeCompression::of_bit(bit).map(CqeCompression::bit);
        assert_eq!([1, 2, 4].map(of), [Some(1), Some(2), Some(4)]);
        assert_eq!([0, 3, 5, 6, 7, 8].map(of), [None; 6]);
    }
}
