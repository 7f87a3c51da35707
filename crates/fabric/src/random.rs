// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers that a seed selects: faults, orders, pauses.

/// The sequence of numbers of a seed (SplitMix64). The same seed has the same sequence.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// The next number, below `end`; 0 if `end` is 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        let number = self.draw();
        if end == 0 { 0 } else { number % end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        // The first numbers of the reference implementation for the seed 0.
        let mut random = Random::new(0);
        assert_eq!([random.draw(), random.draw()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        assert_eq!(random.below(0), 0);
        assert!((0..100).all(|_| random.below(7) < 7));
    }
}
