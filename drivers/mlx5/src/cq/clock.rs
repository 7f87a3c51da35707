// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wall clock time of a completion: the device's clock, by a page in which the kernel says how it runs.
//!
//! Facts: `struct mlx5_ib_clock_info` in `<rdma/mlx5-abi.h>`, the kernel's `mlx5_update_clock_info_page()`.
#![expect(unsafe_code)]
// UNSAFETY: reads a page that the kernel writes, volatile and inside the mapping.

use core::ptr::NonNull;
use std::sync::Arc;
use uverbs_core::kernel::Mapping;
use uverbs_core::sync::barrier;

/// How the device's clock runs: `struct mlx5_ib_clock_info` at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClockInfo {
    /// Nanoseconds since the epoch when the clock stood at `cycles`.
    pub nsec: u64,
    /// The clock then.
    pub cycles: u64,
    /// Parts of a nanosecond, in units of 2^-`shift`.
    pub frac: u64,
    /// Nanoseconds per tick, in units of 2^-`shift`.
    pub mult: u32,
    /// See `mult`.
    pub shift: u32,
    /// The bits that the clock has.
    pub mask: u64,
}

impl ClockInfo {
    /// Nanoseconds since the epoch when the clock stood at `ticks`. Of two moments that fit, one before and one after the
    /// page was written, the nearer.
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

/// The page, and what it said last.
#[derive(Debug)]
pub struct Clock {
    page: Arc<Mapping>,
    info: ClockInfo,
}

/// Words of 8 bytes that are read of the page.
const WORDS: usize = 6;
/// Bit of the first word: the kernel is writing (`MLX5_IB_CLOCK_INFO_KERNEL_UPDATING`).
const UPDATING: u32 = 1;

impl Clock {
    /// On the page that the kernel maps for it; `None` if it is too short.
    pub fn new(page: Arc<Mapping>) -> Option<Self> {
        let fits = page.len() >= WORDS * 8 && page.as_ptr().addr().get().is_multiple_of(8);
        let mut clock = fits.then(|| Self { page, info: ClockInfo::default() })?;
        clock.refresh();
        Some(clock)
    }

    /// What the page said last.
    pub(super) fn info(&self) -> &ClockInfo {
        &self.info
    }

    fn word(&self, index: usize) -> u64 {
        debug_assert!(index < WORDS);
        let page: NonNull<u64> = self.page.as_ptr().cast();
        // SAFETY: below `WORDS`, so inside the mapping (`new`).
        let at = unsafe { page.add(index) };
        // SAFETY: mapped, aligned to 8 (`new`).
        unsafe { at.read_volatile() }
    }

    /// Reads the page anew; keeps what it had if the kernel does not stop writing.
    pub(super) fn refresh(&mut self) {
        /// How often libmlx5 tries, too.
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
    fn before_and_after() {
        // Two nanoseconds per tick, and half a one.
        assert_eq!(INFO.wall_clock(5000), 1_000_000);
        assert_eq!(INFO.wall_clock(5010), 1_000_020);
        assert_eq!(INFO.wall_clock(4990), 1_000_000 - 19);
        assert_eq!(INFO.wall_clock(5000 + 0x1_0000 * 7), 1_000_000, "the clock wraps");
        // Whatever the page says, it is a number.
        let wild = ClockInfo { shift: u32::MAX, mult: u32::MAX, mask: u64::MAX, ..INFO };
        let _ = (wild.wall_clock(0), wild.wall_clock(u64::MAX), ClockInfo::default().wall_clock(1));
    }

    #[test]
    fn the_page_is_read_between_two_looks_at_its_sign() {
        let page: Arc<[AtomicU64; 7]> = Arc::default();
        let words = [2, INFO.nsec, INFO.cycles, INFO.frac, 20 << 32 | 2 << 20, INFO.mask, 0];
        for (word, value) in page.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        let ptr = NonNull::from(&page[..]).cast();
        // SAFETY: the array is alive while the `Arc` that is the owner is, and consists of atomics.
        let mapping = unsafe { Mapping::new(ptr, 56, Arc::clone(&page)) };
        let mut clock = Clock::new(Arc::new(mapping)).unwrap();
        assert_eq!(clock.info(), &INFO);
        page[0].store(3, Ordering::Relaxed);
        page[1].store(7, Ordering::Relaxed);
        clock.refresh();
        assert_eq!(clock.info(), &INFO, "the kernel is writing");
        page[0].store(4, Ordering::Relaxed);
        clock.refresh();
        assert_eq!(clock.info().nsec, 7);
    }
}
