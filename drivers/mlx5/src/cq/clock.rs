// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wall clock time of a completion, computed from the device's clock and a page with conversion factors that the kernel
//! updates.
//!
//! Facts: `struct mlx5_ib_clock_info` in `<rdma/mlx5-abi.h>`, the kernel's `mlx5_update_clock_info_page()`.
#![expect(unsafe_code)]
// UNSAFETY: reads a page that the kernel writes, by volatile loads inside the mapping.

use core::ptr::NonNull;
use std::sync::Arc;
use uverbs_core::kernel::Mapping;
use uverbs_core::sync::barrier;

/// The conversion factors of the device's clock (`struct mlx5dv_clock_info`): a copy of `struct mlx5_ib_clock_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockInfo {
    /// Nanoseconds since the epoch when the clock had the value `cycles`.
    pub nsec: u64,
    /// The value of the clock at the last update.
    pub cycles: u64,
    /// Parts of a nanosecond, in units of 2^-`shift`.
    pub frac: u64,
    /// Nanoseconds per tick, in units of 2^-`shift`.
    pub mult: u32,
    /// The binary scale of `frac` and `mult`.
    pub shift: u32,
    /// Mask of the bits that the clock has.
    pub mask: u64,
}

impl ClockInfo {
    /// Nanoseconds since the epoch when the clock had the value `ticks`. The clock wraps, so `ticks` may be before or after
    /// the last update of the page; the nearer moment is used.
    pub(super) fn wall_clock(&self, ticks: u64) -> u64 {
        let shift = self.shift & 63;
        let scaled = |delta: u64| delta.wrapping_mul(self.mult.into());
        let after = ticks.wrapping_sub(self.cycles) & self.mask;
        if after <= self.mask / 2 {
            return self.nsec.wrapping_add(scaled(after).wrapping_add(self.frac) >> shift);
        }
        let before = self.cycles.wrapping_sub(ticks) & self.mask;
        self.nsec.wrapping_sub(scaled(before).wrapping_sub(self.frac) >> shift)
    }
}

/// The page and the last consistent copy of it.
#[derive(Debug)]
pub struct Clock {
    page: Arc<Mapping>,
    info: ClockInfo,
}

/// Words of 8 bytes that are read from the page.
const WORDS: usize = 7;
/// Bit 0 of the first word: an update by the kernel is in progress (`MLX5_IB_CLOCK_INFO_KERNEL_UPDATING`).
const UPDATING: u32 = 1;

impl Clock {
    /// A clock with the page that the kernel maps for it; `None` if the page is too short or not aligned to 8 bytes.
    pub fn new(page: Arc<Mapping>) -> Option<Self> {
        let fits = page.len() >= WORDS * 8 && page.as_ptr().addr().get().is_multiple_of(8);
        let mut clock = fits.then(|| Self { page, info: ClockInfo::default() })?;
        clock.refresh();
        Some(clock)
    }

    /// The last consistent copy of the page.
    pub(crate) fn info(&self) -> &ClockInfo {
        &self.info
    }

    /// The longest time between two updates of the page, in nanoseconds.
    pub(crate) fn update_period(&self) -> u64 {
        self.word(WORDS - 1)
    }

    fn word(&self, index: usize) -> u64 {
        debug_assert!(index < WORDS);
        let page: NonNull<u64> = self.page.as_ptr().cast();
        // SAFETY: `index` is below `WORDS`, and `new` checked that the mapping has `WORDS` words.
        let at = unsafe { page.add(index) };
        // SAFETY: inside the mapping and aligned to 8 bytes; `new` checked both.
        unsafe { at.read_volatile() }
    }

    /// Copies the page again. If no consistent copy can be read, the last one is kept.
    pub(super) fn refresh(&mut self) {
        /// The number of attempts, the same as in libmlx5.
        const TRIES: u32 = 10;
        for _ in 0..TRIES {
            let sign = self.word(0) as u32;
            if sign & UPDATING == 0 {
                barrier::from_device();
                let scale = self.word(4);
                let info = ClockInfo {
                    nsec: self.word(1),
                    cycles: self.word(2),
                    frac: self.word(3),
                    mult: scale as u32,
                    shift: (scale >> 32) as u32,
                    mask: self.word(5),
                };
                barrier::from_device();
                if self.word(0) as u32 == sign {
                    self.info = info;
                    return;
                }
            }
            core::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};

    const INFO: ClockInfo =
        ClockInfo { nsec: 1_000_000, cycles: 5000, frac: 1 << 19, mult: 2 << 20, shift: 20, mask: 0xffff };

    #[test]
    fn times_before_and_after_an_update_are_converted() {
        // Two nanoseconds per tick, and a fraction of half a nanosecond.
        assert_eq!(INFO.wall_clock(5000), 1_000_000);
        assert_eq!(INFO.wall_clock(5010), 1_000_020);
        assert_eq!(INFO.wall_clock(4990), 1_000_000 - 19);
        assert_eq!(INFO.wall_clock(5000 + 0x1_0000 * 7), 1_000_000, "the clock wraps");
        // Invalid values in the page must not panic.
        let wild = ClockInfo { shift: u32::MAX, mult: u32::MAX, mask: u64::MAX, ..INFO };
        let _ = (wild.wall_clock(0), wild.wall_clock(u64::MAX), ClockInfo::default().wall_clock(1));
    }

    #[test]
    fn the_page_is_copied_only_if_its_sequence_word_is_stable() {
        let page: Arc<[AtomicU64; 7]> = Arc::default();
        let words = [2, INFO.nsec, INFO.cycles, INFO.frac, 20 << 32 | 2 << 20, INFO.mask, 0];
        for (word, value) in page.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        let ptr = NonNull::from(&page[..]).cast();
        // SAFETY: the array consists of atomics and lives as long as the `Arc` that the mapping owns.
        let mapping = unsafe { Mapping::new(ptr, 56, Arc::clone(&page)) };
        let mut clock = Clock::new(Arc::new(mapping)).unwrap();
        assert_eq!(clock.info(), &INFO);
        page[0].store(3, Ordering::Relaxed);
        page[1].store(7, Ordering::Relaxed);
        clock.refresh();
        assert_eq!(clock.info(), &INFO, "no copy while the kernel updates the page");
        page[0].store(4, Ordering::Relaxed);
        clock.refresh();
        assert_eq!(clock.info().nsec, 7);
    }
}
