// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw packets: the Ethernet segment and the inline header in it. PRM 8.9.4.2.
//!
//! Some devices need the Ethernet header (with a VLAN tag, 18 bytes) in the WQE, because they steer by it before they fetch
//! the frame. It is copied from the frame's first entries, which then begin after it. The header of a TSO send is always
//! inline.
#![expect(unsafe_code)]
// UNSAFETY: reads the header from the memory of a WR's entries, which the contract of the post makes valid.

use super::{
    CTRL_UNITS, DataLimits, InlineWriter, WqeWriter, put_frame_entries, put_inline, put_inline_behind,
};
use uverbs_core::provider::op::TsoArgs;
use uverbs_core::provider::{Inline, PostError};
use uverbs_core::wr::Sge as RawSge;
use uverbs_mlx5_hw::wqe::{
    ETH_L2_INLINE_HEADER_SIZE, ETH_L2_MIN_HEADER_SIZE, MLX5_ETH_WQE_L3_CSUM, MLX5_ETH_WQE_L4_CSUM,
};

/// An inline Ethernet header.
pub(crate) type L2Header = [u8; ETH_L2_INLINE_HEADER_SIZE];
const L2: usize = ETH_L2_INLINE_HEADER_SIZE;

/// Writes the segment's first 16 bytes; the last two are the first two of the header.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_eth(writer: WqeWriter<'_>, csum: bool, mss: u16, header_len: u16, start: [u8; 2]) {
    let csum = if csum { MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM } else { 0 };
    let first = u64::from(csum) << 24 | u64::from(mss);
    let second = u64::from(header_len) << 16 | u64::from(u16::from_be_bytes(start));
    writer.put(CTRL_UNITS, [first.to_be(), second.to_be()]);
}

/// Writes the segment of a frame, with the header if there is one; returns the number of units.
pub(crate) fn put_frame(writer: WqeWriter<'_>, csum: bool, header: Option<&L2Header>) -> u32 {
    match header {
        None => {
            put_eth(writer, csum, 0, 0, [0; 2]);
            // The segment's second half. Data may overwrite it; otherwise it must not contain bytes of an old WQE.
            writer.put(CTRL_UNITS + 1, [0; 2]);
            1
        }
        Some([a, b, rest @ ..]) => {
            put_eth(writer, csum, 0, L2 as u16, [*a, *b]);
            writer.put(CTRL_UNITS + 1, zerocopy::transmute!(*rest));
            2
        }
    }
}

/// The units of a TSO segment; an error if the length of the header is invalid. This is checked before the room in the
/// queue: a header that is too long for the QP may need more room than the queue has, so the post would never succeed.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn tso_units(max_header: u32, args: TsoArgs<'_>) -> Result<u32, PostError> {
    let len = args.header.len();
    if len < ETH_L2_MIN_HEADER_SIZE || len > max_header as usize {
        return Err(PostError::InvalidArgument);
    }
    Ok(units(len))
}

/// Writes a TSO segment whose header [`tso_units`] has checked; returns the number of units.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_tso(writer: WqeWriter<'_>, csum: bool, args: TsoArgs<'_>) -> Result<u32, PostError> {
    let (Ok(header_len), [a, b, rest @ ..]) = (u16::try_from(args.header.len()), args.header) else {
        return Err(PostError::InvalidArgument);
    };
    put_eth(writer, csum, args.mss, header_len, [*a, *b]);
    match writer.segment(CTRL_UNITS + 1, rest.len()) {
        Some(mut segment) if rest.len() >= 16 => drop(segment.put(rest)),
        _ => {
            let mut header = InlineWriter::new(writer, CTRL_UNITS + 1);
            header.push(rest);
            // Clears the rest of the place for a header of up to 18 bytes.
            header.push(&[0; 16][rest.len().min(16)..]);
        }
    }
    Ok(1 + rest.len().div_ceil(16) as u32)
}

/// The units of a segment with a header of this length.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn units(header_len: usize) -> u32 {
    u32::try_from(header_len.saturating_sub(2).div_ceil(16)).unwrap_or(u32::MAX - 1) + 1
}

/// Copies the header from a frame's entries; `None` if they are shorter.
///
/// # Safety
/// The entries' memory must be valid for reads at their addresses.
unsafe fn header_of(sges: impl Iterator<Item = RawSge>) -> Option<L2Header> {
    let (mut header, mut at) = ([0; L2], 0);
    for sge in sges {
        let now = (sge.length as usize).min(L2 - at);
        if now != 0 {
            let from = core::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: the entry's memory is readable (the contract of this function), `now` is at most its length, and
            // entries of length 0 are skipped.
            let bytes = unsafe { core::slice::from_raw_parts(from, now) };
            header[at..at + now].copy_from_slice(bytes);
            at += now;
        }
        if at == L2 {
            return Some(header);
        }
    }
    None
}

/// Writes a raw packet with entries after the control segment, with an inline header if `l2`; returns the WQE's units.
///
/// # Safety
/// If `l2`, the entries' memory must be valid for reads at their addresses.
pub(crate) unsafe fn put_frame_sges(
    writer: WqeWriter<'_>,
    limits: &DataLimits,
    csum: bool,
    l2: bool,
    sges: impl ExactSizeIterator<Item = RawSge> + Clone,
) -> Result<u32, PostError> {
    let header = if l2 {
        // SAFETY: `l2` is set, so the entries' memory is readable (the contract of this function).
        Some(unsafe { header_of(sges.clone()) }.ok_or(PostError::InvalidArgument)?)
    } else {
        None
    };
    let at = CTRL_UNITS + put_frame(writer, csum, header.as_ref());
    let mut skip = if l2 { L2 as u32 } else { 0 };
    let behind = sges.map(|sge| {
        let now = skip.min(sge.length);
        skip -= now;
        RawSge { addr: sge.addr.wrapping_add(now.into()), length: sge.length - now, lkey: sge.lkey }
    });
    Ok(at + put_frame_entries(writer, at, limits, behind)?)
}

/// Writes a raw packet of inline data after the control segment, with the header in the Ethernet segment if `l2`; returns
/// the WQE's units.
pub(crate) fn put_frame_inline(
    writer: WqeWriter<'_>,
    limits: &DataLimits,
    csum: bool,
    l2: bool,
    data: &Inline<'_>,
) -> Result<u32, PostError> {
    if !l2 {
        let at = CTRL_UNITS + put_frame(writer, csum, None);
        return Ok(at + put_inline(writer, at, limits, data)?);
    }
    let (mut header, mut at) = ([0; L2], 0);
    data.for_each_buf(|bytes| {
        let now = bytes.len().min(L2 - at);
        header[at..at + now].copy_from_slice(&bytes[..now]);
        at += now;
    });
    if at < L2 {
        return Err(PostError::InvalidArgument);
    }
    let at = CTRL_UNITS + put_frame(writer, csum, Some(&header));
    Ok(at + put_inline_behind(writer, at, limits, L2, data)?)
}
