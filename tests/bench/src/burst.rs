// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replaces the write-combining memory of a doorbell register, which a user process can't have without a device.
//!
//! After each post, non-temporal stores write as many words as the register gets, and the fence that pushes them out waits for
//! them, as on hardware. The post's own stores to its register, which is ordinary memory here, come on top of it on every side.
#![expect(unsafe_code)]
// UNSAFETY: non-temporal stores take a pointer.

use core::arch::x86_64::{_mm_sfence, _mm_stream_si64};
use core::cell::UnsafeCell;

/// The two halves of a register.
#[derive(Debug, Default)]
#[repr(align(256))]
pub struct Burst([UnsafeCell<[i64; 32]>; 2]);

impl Burst {
    /// Writes so many words to a half and pushes them out.
    #[inline(always)]
    pub fn write<const WORDS: usize>(&self, i: usize) {
        const { assert!(WORDS <= 32) };
        let half = self.0[i % 2].get().cast::<i64>();
        for word in 0..WORDS {
            // SAFETY: inside the half, which is never borrowed; the type is not `Sync`, so this is the only thread.
            unsafe { _mm_stream_si64(half.wrapping_add(word), word as i64) };
        }
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_sfence() };
    }
}
