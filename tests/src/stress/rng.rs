// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random choices that a seed repeats.

/// SplitMix64: one word of state, any seed.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// The choices of one thread of one round.
    pub(super) const fn new(seed: u64, round: u64, thread: u64) -> Self {
        let mut rng = Self(seed ^ (round << 32) ^ (thread << 24));
        rng.next();
        rng
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub(super) const fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True once in `n` times.
    pub(super) const fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
