// SPDX-License-Identifier: MIT OR Apache-2.0
//! Test data in which a byte depends on its seed and position, so missing, duplicated or misplaced bytes are detected.

/// Eight bytes of the pattern of `seed`, the first of which is at `8 * number`, from the least significant one on.
const fn word(seed: u64, number: u64) -> u64 {
    // A round of splitmix64 over both.
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 27)
}

/// The byte at `at` of the pattern of `seed`.
#[must_use]
pub const fn byte(seed: u64, at: usize) -> u8 {
    (word(seed, at as u64 >> 3) >> ((at & 7) * 8)) as u8
}

/// `len` bytes.
#[must_use]
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    part(seed, 0, len)
}

/// `len` bytes from a multiple of 8 on.
fn part(seed: u64, start: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    let mut number = start as u64 / 8;
    while bytes.len() < len {
        bytes.extend_from_slice(&word(seed, number).to_le_bytes());
        number += 1;
    }
    bytes.truncate(len);
    bytes
}

/// The index of the first byte of `data` that differs from the pattern.
#[must_use]
pub fn first_difference(seed: u64, data: &[u8]) -> Option<usize> {
    /// Bytes that are compared at once: without optimisation, single ones take ten times as long.
    const PART: usize = 1 << 12;
    let difference = |(number, data): (usize, &[u8])| {
        let start = number * PART;
        let expected = part(seed, start, data.len());
        if data == expected {
            return None;
        }
        let place = data.iter().zip(&expected).position(|(a, b)| a != b);
        place.map(|place| start + place)
    };
    data.chunks(PART).enumerate().find_map(difference)
}
