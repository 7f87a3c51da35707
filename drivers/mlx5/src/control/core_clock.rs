// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device's clock, the source of completion timestamps: two big-endian words in a page that is mapped read-only.
#![expect(unsafe_code)]
// UNSAFETY: reads a page that the device writes, by volatile loads inside of the mapping.

use uverbs_core::kernel::Mapping;

/// The mapped page, and the offset of the clock in it.
#[derive(Debug)]
pub(super) struct CoreClock {
    page: Mapping,
    offset: usize,
}

impl CoreClock {
    /// The clock at `offset`; `None` if it is not inside of the page, or not aligned.
    pub(super) fn new(page: Mapping, offset: u64) -> Option<Self> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(8)?;
        let is_aligned = (page.as_ptr().addr().get() + offset).is_multiple_of(4);
        (end <= page.len() && is_aligned).then_some(Self { page, offset })
    }

    /// Reads 32-bit word `number`, 0 or 1.
    fn word(&self, number: usize) -> u32 {
        let place = self.page.as_ptr().as_ptr().wrapping_add(self.offset + 4 * number).cast::<u32>();
        // SAFETY: the two words are inside of the page and aligned (checked in `new`), which is mapped as long as this value
        // exists; no reference to them exists.
        u32::from_be(unsafe { place.read_volatile() })
    }

    /// Reads the clock, in ticks. If the lower half wrapped between the reads, the halves are read once more, but not a
    /// third time: an invalid page must not cause an endless loop.
    pub(super) fn read(&self) -> u64 {
        let (high, low, again) = (self.word(0), self.word(1), self.word(0));
        let low = if high == again { low } else { self.word(1) };
        u64::from(again) << 32 | u64::from(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::NonNull;

    fn page(words: Vec<u32>) -> Mapping {
        let words: Box<[u32]> = words.into_iter().map(u32::to_be).collect();
        let words = Box::leak(words);
        let len = size_of_val(words);
        // SAFETY: the memory is leaked, and nothing else refers to it.
        unsafe { Mapping::read_only(NonNull::from(words).cast(), len, ()) }
    }

    #[test]
    fn the_upper_half_comes_first() {
        let clock = CoreClock::new(page(vec![0, 0x12, 0x3456_789a]), 4).unwrap();
        assert_eq!(clock.read(), 0x12_3456_789a);
    }

    #[test]
    fn a_clock_outside_of_the_page_is_refused() {
        for offset in [2, 8, 12, u64::MAX] {
            assert!(CoreClock::new(page(vec![0; 3]), offset).is_none(), "{offset}");
        }
    }
}
