// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers that are given out, the lowest free one first, without a search.

use crate::map::Set;
use core::ops::Range;

/// The numbers of a range, each in use or free.
#[derive(Debug)]
pub struct Numbers {
    range: Range<u32>,
    /// The free numbers below those that have never been used.
    free: Set<u32>,
    /// The lowest number that has never been used.
    unused: u32,
}

impl Numbers {
    /// All numbers of the range, which are free.
    #[must_use]
    pub fn new(range: Range<u32>) -> Self {
        Self { unused: range.start, range, free: Set::new() }
    }

    /// The lowest free number, which is in use then; `None` if there is none.
    pub fn alloc(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop_first() {
            return Some(number);
        }
        let number = self.unused;
        if number >= self.range.end {
            return None;
        }
        self.unused += 1;
        Some(number)
    }

    /// Frees a number. Returns whether it was in use.
    pub fn free(&mut self, number: u32) -> bool {
        self.has(number) && self.free.insert(number)
    }

    /// Whether a number is in use.
    #[must_use]
    pub fn has(&self, number: u32) -> bool {
        (self.range.start..self.unused).contains(&number) && !self.free.contains(&number)
    }

    /// How many are in use.
    #[must_use]
    pub fn used(&self) -> usize {
        (self.unused - self.range.start) as usize - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_comes_first() {
        let mut numbers = Numbers::new(3..7);
        assert_eq!([(); 5].map(|()| numbers.alloc()), [Some(3), Some(4), Some(5), Some(6), None]);
        assert!(
            numbers.free(5) && numbers.free(4) && !numbers.free(4) && !numbers.free(7) && !numbers.free(2)
        );
        assert_eq!((numbers.used(), numbers.has(4), numbers.has(6)), (2, false, true));
        assert_eq!([(); 3].map(|()| numbers.alloc()), [Some(4), Some(5), None]);
        assert_eq!(Numbers::new(5..5).alloc(), None);
    }
}
