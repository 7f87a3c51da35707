// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data of a WQE: scatter/gather entries, or inline data.
//!
//! Empty entries are skipped. A message longer than the device's maximum is an error, as is an entry longer than that.

use super::{InlineWriter, Sge, WireEntry, WqeWriter};
use crate::memory::{BlockIndex, SqAddrs};
use core::hint::cold_path;
use core::sync::atomic::Ordering;
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{Inline, PostError, WireSge};
use uverbs_core::wr::Sge as RawSge;
use uverbs_mlx5_hw::wqe::MLX5_INLINE_SEG;

/// The limits of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataLimits {
    /// The maximum number of entries of a WR.
    pub(crate) max_sge: u32,
    /// The maximum number of inline bytes of a WR.
    pub(crate) max_inline: u32,
    /// The device's longest message. Checked only from 2^31 bytes on; shorter messages are checked by the device.
    pub(crate) max_msg: u64,
    /// The longest payload and the longest header of a TSO send.
    pub(crate) max_tso: u32,
    pub(crate) max_tso_header: u32,
}

impl DataLimits {
    /// Checks the length of a TSO send's payload.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn check_tso(&self, length: u64) -> Result<(), PostError> {
        if length > self.max_tso.into() { Err(PostError::InvalidLength) } else { Ok(()) }
    }

    /// Checks the length of a message.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn check(&self, length: u64) -> Result<(), PostError> {
        if length >= u64::from(MAX_SGE_LENGTH) && length > self.max_msg.min(u64::from(MAX_SGE_LENGTH)) {
            return Err(PostError::InvalidLength);
        }
        Ok(())
    }
}

/// The response that the device writes to the entries of a WR, in addition to the message's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// No response: not an atomic.
    None,
    /// The 8 bytes of an atomic (IBA 9.4.5), written to the first entry that is not empty, which must have at least 8
    /// bytes. Every entry is written with the count 8, as by libmlx5's `ibv_post_send`.
    CountEight,
    /// As `CountEight`, but the entries keep their counts, as with libmlx5's `wr_*` calls.
    KeepCount,
}

/// Bytes of an atomic's response.
const ANSWER: u32 = 8;

/// An entry of a send, in the format of the WQE or of C.
pub(crate) trait SendEntry: WireEntry {
    /// The length of the entry.
    fn length(self) -> u32;
    /// The entry in the format of C.
    fn raw(self) -> RawSge;
    /// A word that contains the length, in a form in which several lengths can be combined by a cheap `or`.
    fn size_bits(self) -> u64;
    /// The length in a value of [`size_bits`](Self::size_bits).
    fn size_of_bits(bits: u64) -> u32;
    /// The words of the entry in the WQE's format, if its length is from `min`, at least 1, to 2^31 - 1.
    fn ordinary_from(self, min: u32) -> Option<[u64; 2]>;
}

impl SendEntry for Sge {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn size_bits(self) -> u64 {
        self.words[0]
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn size_of_bits(bits: u64) -> u32 {
        (u64::from_be(bits) >> 32) as u32
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn length(self) -> u32 {
        WireSge::length(&self)
    }
    fn raw(self) -> RawSge {
        RawSge { addr: self.addr(), length: WireSge::length(&self), lkey: self.lkey() }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
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
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn size_bits(self) -> u64 {
        let [_, bits] = zerocopy::transmute!(self);
        bits
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn size_of_bits(bits: u64) -> u32 {
        let [length, _key]: [u32; 2] = zerocopy::transmute!(bits);
        length
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn length(self) -> u32 {
        self.length
    }
    fn raw(self) -> RawSge {
        self
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ordinary_from(self, min: u32) -> Option<[u64; 2]> {
        // Length and key are loaded together.
        let [addr, rest]: [u64; 2] = zerocopy::transmute!(self);
        let length_and_key = if cfg!(target_endian = "little") { rest.rotate_left(32) } else { rest };
        let length = Self::size_of_bits(rest);
        (length.wrapping_sub(min) < MAX_SGE_LENGTH - min).then(|| [length_and_key.to_be(), addr.to_be()])
    }
}

/// The words of an entry of C's format whose length is from 1 to 2^31 - 1.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn ordinary_words(RawSge { addr, length, lkey }: RawSge) -> [u64; 2] {
    [((length as u64) << 32 | lkey as u64).to_be(), addr.to_be()]
}

/// The words of an atomic's entry, with the count 8.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) const fn with_count_eight([count_key, addr]: [u64; 2]) -> [u64; 2] {
    const KEY: u64 = 0xffff_ffff_u64.to_be();
    [count_key & KEY | ((ANSWER as u64) << 32).to_be(), addr]
}

/// The words of the only entry of a WR, if its length is from 1, or from 8 with a response, to 2^31 - 1.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn one_entry<E: SendEntry>(answer: Answer, entry: E) -> Option<[u64; 2]> {
    match answer {
        Answer::None => entry.ordinary_from(1),
        Answer::CountEight => entry.ordinary_from(ANSWER).map(with_count_eight),
        Answer::KeepCount => entry.ordinary_from(ANSWER),
    }
}

/// Writes entries from `unit` on; returns the number of units.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_entries<E: SendEntry>(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    answer: Answer,
    entries: &[E],
) -> Result<u32, PostError> {
    match entries {
        // A message may have no entries; an atomic may not.
        [] if answer == Answer::None => Ok(0),
        [one] => {
            // codegen: address
            let one = [*one];
            put_many(writer.ring_and_place(), unit, limits, answer, &one)
        }
        many => {
            let is_ordinary = answer == Answer::None;
            if is_ordinary && let Some(units) = put_ordinary(writer, unit, limits, many) {
                return Ok(units);
            }
            put_many(writer.ring_and_place(), unit, limits, answer, many)
        }
    }
}

/// Writes entries of usual lengths that do not wrap at the ring's end and have no response; `None` for others.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_ordinary<E: SendEntry>(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    entries: &[E],
) -> Option<u32> {
    /// The sum of 63 lengths below this one is below 2^31.
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

/// Writes any entries.
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

/// Writes the entries of a raw packet, which the iterator has shortened by the header.
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

/// Copies inline data from `unit` on; returns the number of units, 0 if there are no bytes.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_inline(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    data: &Inline<'_>,
) -> Result<u32, PostError> {
    copy_inline(writer, unit, limits, data).map(|units| units as u32)
}

/// [`put_inline`] that returns the units in 64 bits, as they are needed for the control segment's first word.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn copy_inline(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    data: &Inline<'_>,
) -> Result<u64, PostError> {
    let len = data.len();
    if len > limits.max_inline as usize {
        cold_path();
        return Err(PostError::InlineTooLong);
    }
    if put_bytes(writer, unit, len, data) {
        return Ok(inline_units(len));
    }
    if len == 0 {
        return Ok(0);
    }
    if !put_bufs(writer.ring_and_place(), unit, len, 0, *data) {
        cold_path();
        return Err(PostError::InvalidLength);
    }
    Ok(inline_units(len))
}

/// Copies inline data from `unit` on; returns the number of units. `None` if they are empty or too long, if they wrap at the
/// ring's end, or if the buffers' lengths change.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_ordinary_inline(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    data: &Inline<'_>,
) -> Option<u64> {
    let len = data.len();
    (len <= limits.max_inline as usize && put_bytes(writer, unit, len, data)).then(|| inline_units(len))
}

/// [`put_ordinary_inline`] for one buffer of at most [`SHORT_INLINE`] bytes.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_short_inline(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    bytes: &[u8],
) -> Option<u64> {
    let len = bytes.len();
    if len == 0 || len > SHORT_INLINE || len > limits.max_inline as usize {
        return None;
    }
    let mut segment = writer.segment(unit, 4 + len)?;
    segment.put_u32(inline_head(len));
    segment.put(bytes).then(|| inline_units(len))
}

/// The longest inline data of the short path.
pub(crate) const SHORT_INLINE: usize = 64;

/// Copies inline data of `len` bytes from `unit` on. Returns `false` if they are empty, if they wrap at the ring's end, or if
/// their total length is another one.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_bytes(writer: WqeWriter<'_>, unit: u32, len: usize, data: &Inline<'_>) -> bool {
    if len == 0 {
        return false;
    }
    let Some(mut segment) = writer.segment(unit, 4 + len) else { return false };
    segment.put_u32(inline_head(len));
    match data.one_buf() {
        Some(bytes) => bytes.len() == len && segment.put_long(bytes),
        None => {
            // No more bytes than the WQE has room for, whatever the buffers' lengths are now.
            let mut is_exact = true;
            data.for_each_buf(|bytes| is_exact &= segment.put(bytes));
            is_exact && segment.is_full()
        }
    }
}

/// The first four bytes of an inline segment, as in memory.
#[cfg_attr(not(debug_assertions), inline(always))]
const fn inline_head(len: usize) -> u32 {
    (len as u32 | MLX5_INLINE_SEG).to_be()
}

/// The units of an inline segment; `len` is within a queue's limit.
#[cfg_attr(not(debug_assertions), inline(always))]
const fn inline_units(len: usize) -> u64 {
    (len as u64 + 19) / 16
}

/// Copies inline data behind their first `skip` bytes, which they have, from `unit` on; returns the number of units, 0 if
/// there are no more bytes.
pub(crate) fn put_inline_behind(
    writer: WqeWriter<'_>,
    unit: u32,
    limits: &DataLimits,
    skip: usize,
    data: &Inline<'_>,
) -> Result<u32, PostError> {
    let len = data.len().saturating_sub(skip);
    if len > limits.max_inline as usize {
        return Err(PostError::InlineTooLong);
    }
    if len != 0 && !put_bufs(writer.ring_and_place(), unit, len, skip, *data) {
        return Err(PostError::InvalidLength);
    }
    Ok(if len == 0 { 0 } else { inline_units(len) as u32 })
}

/// Copies buffers of `len` bytes in total behind their first `skip` bytes; `len` is not 0. Returns `false` if their total
/// length is another one. They may wrap at the ring's end.
#[inline(never)]
fn put_bufs(
    (ring, place): (&SqAddrs, BlockIndex),
    unit: u32,
    len: usize,
    mut skip: usize,
    data: Inline<'_>,
) -> bool {
    let mut writer = InlineWriter::new(WqeWriter::new(ring.view(), place), unit);
    writer.push(&inline_head(len).to_ne_bytes());
    let mut left = len;
    data.for_each_buf(|bytes| {
        let now = skip.min(bytes.len());
        skip -= now;
        let bytes = &bytes[now..];
        // No more bytes than the WQE has room for, whatever the buffers' lengths are now.
        if bytes.len() <= left {
            writer.push(bytes);
            left -= bytes.len();
        } else {
            left = usize::MAX;
        }
    });
    left == 0
}
