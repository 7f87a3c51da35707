// SPDX-License-Identifier: MIT OR Apache-2.0
//! Big-endian fields of byte arrays, by offset. Bytes out of range read as 0, and writes to them are ignored, so that
//! no input causes a panic. Callers for which the length matters check it first.

/// The field of 2 bytes at an offset.
#[must_use]
pub fn be16(bytes: &[u8], at: usize) -> u16 {
    array(bytes, at).map_or(0, u16::from_be_bytes)
}

/// The field of 4 bytes at an offset.
#[must_use]
pub fn be32(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_be_bytes)
}

/// The field of 8 bytes at an offset.
#[must_use]
pub fn be64(bytes: &[u8], at: usize) -> u64 {
    array(bytes, at).map_or(0, u64::from_be_bytes)
}

/// The bytes at an offset; `None` if they are out of range.
#[must_use]
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Whether every byte of the range is 0.
pub(crate) fn zero(bytes: &[u8], range: core::ops::Range<usize>) -> bool {
    bytes.get(range).is_some_and(|b| b.iter().all(|b| *b == 0))
}

/// Stores bytes at an offset.
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|b| b.get_mut(..value.len())) {
        place.copy_from_slice(value);
    }
}
