// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a WQE that all formats have: flags, entries, inline data. It accesses only the slot that is passed to it.

use crate::format::{Data, Format, SendSlot, WqeSlot};
use uverbs_core::provider::opcodes::is_atomic;
use uverbs_core::provider::wire::WireSge as _;
use uverbs_core::provider::{Inline, PostError};
use uverbs_core::wr::{SendFlags, Sge, WrOpcode};

/// The data of an operation without data.
pub(crate) const NO_DATA: Data = Data { num_sge: 0, length: 0, is_inline: false };

/// The flags that a WR may have, without `INLINE`, which is set from the kind of the payload instead.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn check_flags(flags: SendFlags) -> Result<SendFlags, PostError> {
    const KNOWN: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED).union(SendFlags::SOLICITED);
    if flags.bits() & !KNOWN.union(SendFlags::INLINE).bits() != 0 {
        return Err(PostError::IllegalFlag);
    }
    Ok(flags.intersection(KNOWN))
}

/// Writes the entries. Those of length 0 are skipped.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_sges(
    slot: &mut impl WqeSlot,
    max_sge: u32,
    too_long: u64,
    sges: &[Sge],
) -> Result<Data, PostError> {
    if sges.len() > max_sge as usize {
        return Err(PostError::TooManySge);
    }
    let (mut num_sge, mut length) = (0, 0_u64);
    for sge in sges {
        if sge.length() == 0 {
            continue;
        }
        if !slot.put_sge(num_sge as usize, *sge) {
            return Err(PostError::TooManySge);
        }
        num_sge += 1;
        length += u64::from(sge.length());
    }
    if length >= too_long {
        return Err(PostError::InvalidLength);
    }
    Ok(Data { num_sge, length: length as u32, is_inline: false })
}

/// Writes the entries of a send.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_send_sges<F: Format>(
    slot: &mut SendSlot<'_, F>,
    max_sge: u32,
    opcode: WrOpcode,
    sges: &[Sge],
) -> Result<Data, PostError> {
    let data = put_sges(slot, max_sge, F::TOO_LONG, sges)?;
    // The first entry that is not empty gets the whole response, as on other devices.
    let room = || sges.iter().map(|sge| sge.length).find(|length| *length != 0);
    if is_atomic(opcode) && room().is_none_or(|length| length < 8) {
        return Err(PostError::InvalidLength);
    }
    F::adapt_entries(slot, opcode, data)
}

/// Copies inline data.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_inline(
    slot: &mut impl WqeSlot,
    max_inline: u32,
    data: &Inline<'_>,
) -> Result<Data, PostError> {
    let (mut at, mut fits) = (0_usize, true);
    data.for_each_buf(|buf| {
        if fits && buf.len() <= max_inline as usize - at && slot.put_inline(at, buf) {
            at += buf.len();
        } else {
            fits = false;
        }
    });
    if !fits {
        return Err(PostError::InlineTooLong);
    }
    Ok(Data { num_sge: 0, length: at as u32, is_inline: true })
}
