// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data of a WQE: entries that name registered memory, or bytes.
//!
//! An empty entry is left out. An entry, or all of them, of more than the device's longest message can't be.

use super::{InlineWriter, Sge, WireEntry, WqeWriter};
use crate::memory::{BlockIndex, SqAddrs};
use core::hint::cold_path;
use core::sync::atomic::Ordering;
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{Payload, PostError, WireSge};
use uverbs_core::wr::Sge as RawSge;
use uverbs_mlx5_hw::wqe::MLX5_INLINE_SEG;

/// What data a queue takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataLimits {
    /// Entries of a WR.
    pub(crate) max_sge: u32,
    /// Inline bytes of a WR.
    pub(crate) max_inline: u32,
    /// Bytes of a message; matters only from 2^31 on, below which the device judges.
    pub(crate) max_msg: u64,
}

impl DataLimits {
    /// Whether a message may have so many bytes.
    #[inline(always)]
    pub(super) fn check(&self, length: u64) -> Result<(), PostError> {
        if length >= u64::from(MAX_SGE_LENGTH) && length > self.max_msg.min(u64::from(MAX_SGE_LENGTH)) {
            return Err(PostError::InvalidLength);
        }
        Ok(())
    }
}

/// What the device writes to the entries of a WR besides what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing: not an atomic.
    None,
    /// The 8 bytes of an atomic (IBA 9.4.5), to the first entry that is not empty, which must have room for them. Every
    /// entry is given the count 8, as libmlx5's `ibv_post_send` does.
    CountEight,
    /// The same, and the entries keep their counts, as with libmlx5's `wr_*` calls.
    KeepCount,
}

/// Bytes of an atomic's answer.
const ANSWER: u32 = 8;

/// An entry of a send, of either form.
pub(crate) trait SendEntry: WireEntry {
    /// Its bytes.
    fn length(self) -> u32;
    /// C's form.
    fn raw(self) -> RawSge;
    /// Its bytes, in a form that makes an `or` over several cheap; and the bytes back from that.
    fn size_bits(self) -> u64;
    /// See [`size_bits`](Self::size_bits).
    fn size_of_bits(bits: u64) -> u32;
    /// The wire's words, if it has from `min` bytes, at least 1, to fewer than 2^31.
    fn ordinary_from(self, min: u32) -> Option<[u64; 2]>;
}

impl SendEntry for Sge {
    #[inline(always)]
    fn size_bits(self) -> u64 {
        self.words[0]
    }
    #[inline(always)]
    fn size_of_bits(bits: u64) -> u32 {
        (u64::from_be(bits) >> 32) as u32
    }
    #[inline(always)]
    fn length(self) -> u32 {
        WireSge::length(&self)
    }
    fn raw(self) -> RawSge {
        RawSge { addr: self.addr(), length: WireSge::length(&self), lkey: self.lkey() }
    }
    #[inline(always)]
    fn ordinary_from(self, min: u32) -> Option<[u64; 2]> {
        // The count of an empty entry is 2^31, and that of 2^31 bytes is 0.
        let fits = if min == 1 {
            !self.is_special()
        } else {
            ((u64::from_be(self.words[0]) >> 32) as u32).wrapping_sub(min) < MAX_SGE_LENGTH - min
        };
        fits.then_some(self.words)
    }
}

impl SendEntry for RawSge {
    #[inline(always)]
    fn size_bits(self) -> u64 {
        let [_, bits] = zerocopy::transmute!(self);
        bits
    }
    #[inline(always)]
    fn size_of_bits(bits: u64) -> u32 {
        let [length, _key]: [u32; 2] = zerocopy::transmute!(bits);
        length
    }
    #[inline(always)]
    fn length(self) -> u32 {
        self.length
    }
    fn raw(self) -> RawSge {
        self
    }
    #[inline(always)]
    fn ordinary_from(self, min: u32) -> Option<[u64; 2]> {
        // Length and key by one load.
        let [addr, rest]: [u64; 2] = zerocopy::transmute!(self);
        let length_and_key = if cfg!(target_endian = "little") { rest.rotate_left(32) } else { rest };
        let length = Self::size_of_bits(rest);
        (length.wrapping_sub(min) < MAX_SGE_LENGTH - min).then(|| [length_and_key.to_be(), addr.to_be()])
    }
}

/// The words of an entry of C's form, neither empty nor of 2^31 bytes or more.
#[inline(always)]
pub(crate) const fn ordinary_words(RawSge { addr, length, lkey }: RawSge) -> [u64; 2] {
    [((length as u64) << 32 | lkey as u64).to_be(), addr.to_be()]
}

/// The words of an atomic's entry: the same memory with a count of 8.
#[inline(always)]
pub(super) const fn with_count_eight([count_key, addr]: [u64; 2]) -> [u64; 2] {
    const KEY: u64 = 0xffff_ffff_u64.to_be();
    [count_key & KEY | ((ANSWER as u64) << 32).to_be(), addr]
}

/// The words of an entry that alone is all data of a WR, and neither empty nor, with an answer, too short for it, nor of 2^31
/// bytes.
#[inline(always)]
pub(crate) fn one_entry<E: SendEntry>(answer: Answer, entry: E) -> Option<[u64; 2]> {
    match answer {
        Answer::None => entry.ordinary_from(1),
        Answer::CountEight => entry.ordinary_from(ANSWER).map(with_count_eight),
        Answer::KeepCount => entry.ordinary_from(ANSWER),
    }
}

/// Writes entries from `unit` on; how many units they took.
#[inline(always)]
pub(crate) fn put_entries<E: SendEntry>(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    answer: Answer,
    entries: &[E],
) -> Result<u32, PostError> {
    match entries {
        // No memory is what some messages carry, and no atomic.
        [] if answer == Answer::None => Ok(0),
        [one] => {
            // What is lent out is a copy: the entry itself stays in registers.
            let one = [*one];
            put_many(writer.lend(), unit, limits, answer, &one)
        }
        many => {
            let is_ordinary = answer == Answer::None;
            if is_ordinary && let Some(units) = put_ordinary(writer, unit, limits, many) {
                return Ok(units);
            }
            put_many(writer.lend(), unit, limits, answer, many)
        }
    }
}

/// Entries that are neither empty nor long, that do not go over the ring's end, and no atomic's; `None` for others.
#[inline(always)]
pub(crate) fn put_ordinary<E: SendEntry>(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    entries: &[E],
) -> Option<u32> {
    /// So many entries of fewer bytes have fewer than 2^31 together.
    const SHORT: u32 = MAX_SGE_LENGTH / 64;
    if entries.len() > limits.max_sge as usize || entries.len() > 63 {
        return None;
    }
    let units = writer.units(unit, entries.len())?;
    let mut sizes = 0;
    for ([first, second], entry) in units.iter().zip(entries) {
        let [a, b] = entry.ordinary_from(1)?;
        sizes |= entry.size_bits();
        first.store(a, Ordering::Relaxed);
        second.store(b, Ordering::Relaxed);
    }
    (E::size_of_bits(sizes) < SHORT).then_some(entries.len() as u32)
}

/// Any entries.
#[inline(never)]
fn put_many<E: SendEntry>(
    (ring, place): (&SqAddrs, BlockIndex),
    unit: u32,
    limits: &DataLimits,
    answer: Answer,
    entries: &[E],
) -> Result<u32, PostError> {
    if entries.len() > limits.max_sge as usize {
        return Err(PostError::TooManySge);
    }
    let writer = WqeWriter::new(ring.view(), place);
    let (mut end, mut length) = (unit, 0_u64);
    for entry in entries {
        let words = match entry.ordinary_from(1) {
            Some(words) => words,
            None if entry.length() == 0 => continue,
            None => entry.wire()?.words,
        };
        length += u64::from(entry.length());
        if answer != Answer::None && end == unit && entry.length() < ANSWER {
            return Err(PostError::InvalidLength);
        }
        writer.put_far(end, if answer == Answer::CountEight { with_count_eight(words) } else { words });
        end += 1;
    }
    limits.check(length)?;
    if answer != Answer::None && end == unit {
        return Err(PostError::InvalidLength);
    }
    Ok(end - unit)
}

/// Writes a frame's entries, which are changed on their way.
pub(crate) fn put_frame_entries(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    entries: impl ExactSizeIterator<Item = RawSge>,
) -> Result<u32, PostError> {
    if entries.len() > limits.max_sge as usize {
        return Err(PostError::TooManySge);
    }
    let (mut units, mut length) = (0, 0_u64);
    for entry in entries.filter(|entry| entry.length != 0) {
        length += u64::from(entry.length);
        writer.put_far(unit + units, entry.wire()?.words);
        units += 1;
    }
    limits.check(length)?;
    Ok(units)
}

/// Copies inline data from `unit` on; how many units they took, none if there is not a byte.
#[inline(always)]
pub(crate) fn put_inline<P: Payload<Sge>>(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    data: &P,
) -> Result<u32, PostError> {
    copy_inline(writer, unit, limits, data).map(|units| units as u32)
}

/// [`put_inline`] with units of 64 bits, as the control segment's first word takes them.
#[inline(always)]
pub(super) fn copy_inline<P: Payload<Sge>>(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    data: &P,
) -> Result<u64, PostError> {
    let len = data.inline_len();
    if len > limits.max_inline as usize {
        cold_path();
        return Err(PostError::InlineTooLong);
    }
    if let Some(units) = put_one_inline(writer, unit, limits, data) {
        return Ok(units);
    }
    if len == 0 {
        return Ok(0);
    }
    if !put_bufs(writer.lend(), unit, len, *data) {
        cold_path();
        return Err(PostError::InvalidLength);
    }
    Ok(inline_units(len))
}

/// Copies the only buffer of inline data, which is not empty, from `unit` on; how many units it took. `None` for others, for
/// what is too long, and for what goes over the ring's end.
#[inline(always)]
pub(crate) fn put_one_inline<P: Payload<Sge>>(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    data: &P,
) -> Option<u64> {
    let len = data.inline_len();
    if len == 0 || len > limits.max_inline as usize {
        return None;
    }
    let bytes = data.one_buf().filter(|bytes| bytes.len() == len)?;
    writer.put_segment(unit, inline_head(len), bytes).then(|| inline_units(len))
}

/// The first bytes of an inline segment, as they stand in memory.
#[inline(always)]
const fn inline_head(len: usize) -> u32 {
    (len as u32 | MLX5_INLINE_SEG).to_be()
}

/// The units of an inline segment; `len` is within a queue's limit.
#[inline(always)]
const fn inline_units(len: usize) -> u64 {
    (len as u64 + 19) / 16
}

/// Copies buffers of `len` bytes, one at least; `false` if they have another length.
#[inline(never)]
fn put_bufs<P: Payload<Sge>>((ring, place): (&SqAddrs, BlockIndex), unit: u32, len: usize, data: P) -> bool {
    let mut writer = InlineWriter::new(WqeWriter::new(ring.view(), place), unit);
    writer.push(&inline_head(len).to_ne_bytes());
    let mut left = len;
    data.for_each_buf(|bytes| {
        // What a payload gives is not more than what it said.
        if bytes.len() <= left {
            writer.push(bytes);
            left -= bytes.len();
        } else {
            left = usize::MAX;
        }
    });
    left == 0
}
