// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entries of a receive, for both faces and for both kinds of receive queues.
//!
//! A receive is a row of entries. Where it has fewer than its element has room for, an entry without memory ends it. An
//! empty entry is left out.

use super::Sge;
use super::data::DataLimits;
use core::sync::atomic::{AtomicU64, Ordering};
use uverbs_core::provider::{PostError, WireSge};
use uverbs_core::wr::Sge as RawSge;
use uverbs_mlx5_hw::wqe::MLX5_INVALID_LKEY;

/// An entry of either form: the wire's or C's.
pub(crate) trait WireEntry: Copy {
    /// The wire's; an error if it is too long.
    fn wire(self) -> Result<Sge, PostError>;
}

impl WireEntry for Sge {
    #[inline(always)]
    fn wire(self) -> Result<Sge, PostError> {
        Ok(self)
    }
}

impl WireEntry for RawSge {
    #[inline(always)]
    fn wire(self) -> Result<Sge, PostError> {
        Sge::new(self.addr, self.length, self.lkey)
    }
}

/// Ends a receive that has fewer entries than there is room for: no bytes of no memory.
const TERMINATOR: [u64; 2] = [(MLX5_INVALID_LKEY as u64).to_be(), 0];

/// What receives a queue takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvFormat {
    /// The bits of an entry's first word of which one is set in an entry that is neither empty nor of 2^31 bytes. 0 if the
    /// queue takes receives without entries only: so one test answers both.
    count_bits: u64,
    /// Entries of a receive.
    max_sge: u32,
    /// Bytes of a message; matters only from 2^31 on, below which the device judges.
    max_msg: u64,
}

impl RecvFormat {
    /// Of a queue whose elements have room for at least `max_sge` entries.
    pub(crate) fn new(max_sge: u32, max_msg: u64) -> Self {
        Self { count_bits: if max_sge == 0 { 0 } else { Sge::COUNT }, max_sge, max_msg }
    }

    /// Entries of a receive.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Writes a receive of one entry that is neither empty nor of 2^31 bytes. `false` for others, of which nothing is
    /// written. `units` are the first two of the element; where there is no second, it is the first.
    #[inline(always)]
    pub(crate) fn put_one<S: WireEntry>(&self, units: [&[AtomicU64; 2]; 2], sges: &[S]) -> bool {
        let [sge] = sges else { return false };
        let Ok(sge) = sge.wire() else { return false };
        if sge.words[0] & self.count_bits == 0 {
            return false;
        }
        let [first, second] = units;
        store(second.each_ref(), TERMINATOR);
        store(first.each_ref(), sge.words);
        true
    }

    /// Writes a receive of any entries to the words of its element.
    #[inline(never)]
    pub(crate) fn put<S: WireEntry>(&self, element: &[AtomicU64], sges: &[S]) -> Result<(), PostError> {
        if sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySge);
        }
        let mut units = element.as_chunks::<2>().0.iter().take(self.max_sge as usize);
        let mut length = 0_u64;
        for sge in sges {
            let sge = sge.wire()?;
            if sge.is_special() && sge.length() == 0 {
                continue;
            }
            length += u64::from(sge.length());
            let Some(unit) = units.next() else { return Err(PostError::TooManySge) };
            store(unit.each_ref(), sge.words);
        }
        DataLimits { max_sge: self.max_sge, max_inline: 0, max_msg: self.max_msg }.check(length)?;
        if let Some(unit) = units.next() {
            store(unit.each_ref(), TERMINATOR);
        }
        Ok(())
    }
}

#[inline(always)]
fn store([a, b]: [&AtomicU64; 2], words: [u64; 2]) {
    a.store(words[0], Ordering::Relaxed);
    b.store(words[1], Ordering::Relaxed);
}
