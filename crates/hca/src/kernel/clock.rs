// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page with which programs convert completion timestamps to wall clock time (`struct mlx5_ib_clock_info`).
// UNSAFETY: lends a page as a mapping.
#![expect(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use uverbs_core::Errno;
use uverbs_core::kernel::{Mapping, page_size};

/// The page of a clock that counts nanoseconds and has the value `now`.
///
/// A kernel updates it so that the product of cycles and factor never overflows; with a factor of 1 this is not needed.
pub(super) fn map(now: u64, len: usize) -> Result<Mapping, Errno> {
    let page = page_size() as usize;
    if len == 0 || len > page {
        return Err(Errno::EINVAL);
    }
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
    let words: Arc<[AtomicU64]> = (0..page / 8).map(|_| AtomicU64::new(0)).collect();
    // In words of 8 bytes: the sequence (even: not being updated), time, cycles at that time, fraction, factor (lower
    // half) and shift, mask of the counter, period.
    for (i, value) in [(1, wall), (2, now), (4, first_half(1)), (5, u64::MAX >> 1)] {
        words[i].store(value, Ordering::Relaxed);
    }
    let ptr = NonNull::from(&*words).cast();
    // SAFETY: `len` bytes of the words (checked), which are atomics, alive while the owner holds them.
    Ok(unsafe { Mapping::new(ptr, len, words) })
}

/// A 32-bit field as the first half of a word in memory.
fn first_half(value: u32) -> u64 {
    let [a, b, c, d] = value.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}
