// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data of a WQE: entries that name registered memory, or bytes.
//!
//! An empty entry is left out. An entry, or all of them, of more than the device's longest message can't be.

use super::{InlineWriter, Sge, WqeWriter};
use crate::memory::{BlockIndex, SqAddrs};
use core::hint::cold_path;
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
    pub(super) fn check(self, length: u64) -> Result<(), PostError> {
        if length >= u64::from(MAX_SGE_LENGTH) && length > self.max_msg.min(u64::from(MAX_SGE_LENGTH)) {
            return Err(PostError::InvalidLength);
        }
        Ok(())
    }
}

/// Units that a payload takes at most.
#[inline(always)]
pub(crate) fn units_of<P: Payload<Sge>>(data: &P) -> u32 {
    let units = if P::INLINE { (data.inline_len() + 19) / 16 } else { data.sges().len() };
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// Writes entries from `unit` on; how many units they took.
#[inline(always)]
pub(crate) fn put_sges(
    slot: WqeWriter<'_>,
    unit: u32,
    limits: DataLimits,
    atomic: bool,
    sges: &[Sge],
) -> Result<u32, PostError> {
    if sges.is_empty() && !atomic { Ok(0) } else { put_many(slot.lend(), unit, limits, atomic, sges) }
}

#[inline(never)]
fn put_many(
    (ring, place): (&SqAddrs, BlockIndex),
    unit: u32,
    limits: DataLimits,
    atomic: bool,
    sges: &[Sge],
) -> Result<u32, PostError> {
    let slot = WqeWriter::new(ring.view(), place);
    if sges.len() > limits.max_sge as usize {
        return Err(PostError::TooManySge);
    }
    let (mut units, mut length) = (0, 0_u64);
    for sge in sges {
        if sge.is_special() && sge.length() == 0 {
            continue;
        }
        check_first(atomic, units, sge.length())?;
        length += u64::from(sge.length());
        let words = if atomic { Sge::from_host(sge.addr(), 8, sge.lkey()).words } else { sge.words };
        slot.put_far(unit + units, words);
        units += 1;
    }
    limits.check(length)?;
    check_any(atomic, units)?;
    Ok(units)
}

/// The answer of an atomic is 8 bytes (IBA 9.4.5). The device writes them at the first entry, whose byte count is 8
/// whatever its length: the entry must have room for them.
#[inline(always)]
fn check_first(atomic: bool, units: u32, length: u32) -> Result<(), PostError> {
    if atomic && units == 0 && length < 8 { Err(PostError::InvalidLength) } else { Ok(()) }
}

/// An atomic has an entry.
#[inline(always)]
fn check_any(atomic: bool, units: u32) -> Result<(), PostError> {
    if atomic && units == 0 { Err(PostError::InvalidLength) } else { Ok(()) }
}

/// Writes C's entries. As the `wr_*` setters do it, an atomic's entry keeps its length.
#[inline]
pub(crate) fn put_raw_sges(
    slot: WqeWriter<'_>,
    unit: u32,
    limits: DataLimits,
    atomic: bool,
    sges: impl ExactSizeIterator<Item = RawSge>,
) -> Result<u32, PostError> {
    if sges.len() > limits.max_sge as usize {
        return Err(PostError::TooManySge);
    }
    let (mut units, mut length) = (0, 0_u64);
    for sge in sges {
        if sge.length == 0 {
            continue;
        }
        check_first(atomic, units, sge.length)?;
        length += u64::from(sge.length);
        slot.put_far(unit + units, Sge::new(sge.addr, sge.length, sge.lkey)?.words);
        units += 1;
    }
    limits.check(length)?;
    check_any(atomic, units)?;
    Ok(units)
}

/// Copies inline data from `unit` on; how many units they took, none if there is not a byte.
#[inline(always)]
pub(crate) fn put_inline<P: Payload<Sge>>(
    slot: WqeWriter<'_>,
    unit: u32,
    limits: DataLimits,
    data: &P,
) -> Result<u32, PostError> {
    let len = data.inline_len();
    if len > limits.max_inline as usize {
        cold_path();
        return Err(PostError::InlineTooLong);
    }
    if len == 0 {
        return Ok(0);
    }
    let head = (len as u32 | MLX5_INLINE_SEG).swap_bytes();
    let is_whole = match data.one_buf() {
        Some(bytes) if bytes.len() == len => {
            slot.put_bytes(unit * 2, head, bytes);
            true
        }
        _ => put_bufs(slot, unit, head, len, data),
    };
    if is_whole {
        Ok((len as u32 + 19) / 16)
    } else {
        cold_path();
        Err(PostError::InvalidLength)
    }
}

/// Copies buffers of `len` bytes; `false` if they have another length.
fn put_bufs<P: Payload<Sge>>(slot: WqeWriter<'_>, unit: u32, head: u32, len: usize, data: &P) -> bool {
    let mut writer = InlineWriter::new(slot, unit * 2, head.into(), 4);
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
    if left == 0 {
        writer.finish();
    }
    left == 0
}
