// SPDX-License-Identifier: MIT OR Apache-2.0
//! Test data in which a byte depends on its seed and position, so missing, duplicated or misplaced bytes are detected.

/// The byte at `at` of the pattern of `seed`.
#[must_use]
pub const fn byte(seed: u64, at: usize) -> u8 {
    // A round of splitmix64 over both.
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64 >> 3);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    (x >> ((at & 7) * 8)) as u8
}

/// `len` bytes.
#[must_use]
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(seed, at)).collect()
}

/// The index of the first byte of `data` that differs from the pattern.
#[must_use]
pub fn first_difference(seed: u64, data: &[u8]) -> Option<usize> {
    data.iter().enumerate().position(|(at, b)| *b != byte(seed, at))
}
