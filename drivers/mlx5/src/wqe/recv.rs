// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entries of a receive, for both faces and for both kinds of receive queues.
//!
//! A receive is a row of entries. Where it has fewer than its element has room for, an entry without memory ends it. An
//! empty entry is left out.

use super::Sge;
use super::data::DataLimits;
use core::sync::atomic::{AtomicU64, Ordering};
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{PostError, WireSge};
use uverbs_core::wr::Sge as RawSge;
use uverbs_mlx5_hw::wqe::MLX5_INVALID_LKEY;

/// An entry of either form: the wire's or C's.
pub trait WireEntry: Copy {
    /// The wire's; an error if it is too long.
    fn wire(self) -> Result<Sge, PostError>;

    /// The wire's words of an entry that is neither empty nor has 2^31 bytes or more, where `entries` allow one.
    fn ordinary(self, entries: EntryTest) -> Option<[u64; 2]>;
}

/// Whether a receive may have entries, in the form that [`WireEntry::ordinary`] needs for either kind: so one test answers
/// both.
#[derive(Clone, Copy, Debug)]
pub struct EntryTest {
    /// The bits of the wire's first word of which an ordinary entry has at least one; or 0.
    bits: u64,
    /// The bytes of the longest ordinary entry; or 0.
    longest: u32,
}

impl EntryTest {
    fn new(allowed: bool) -> Self {
        if allowed {
            Self { bits: Sge::COUNT, longest: MAX_SGE_LENGTH - 1 }
        } else {
            Self { bits: 0, longest: 0 }
        }
    }
}

impl WireEntry for Sge {
    #[inline(always)]
    fn wire(self) -> Result<Sge, PostError> {
        Ok(self)
    }

    #[inline(always)]
    fn ordinary(self, entries: EntryTest) -> Option<[u64; 2]> {
        (self.words[0] & entries.bits != 0).then_some(self.words)
    }
}

impl WireEntry for RawSge {
    #[inline(always)]
    fn wire(self) -> Result<Sge, PostError> {
        Sge::new(self.addr, self.length, self.lkey)
    }

    #[inline(always)]
    fn ordinary(self, entries: EntryTest) -> Option<[u64; 2]> {
        let words = [(u64::from(self.length) << 32 | u64::from(self.lkey)).to_be(), self.addr.to_be()];
        (self.length.wrapping_sub(1) < entries.longest).then_some(words)
    }
}

/// Ends a receive that has fewer entries than there is room for: no bytes of no memory.
const TERMINATOR: [u64; 2] = [(MLX5_INVALID_LKEY as u64).to_be(), 0];

/// What receives a queue takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvFormat {
    entries: EntryTest,
    /// Entries of a receive.
    max_sge: u32,
    /// Bytes of a message; matters only from 2^31 on, below which the device judges.
    max_msg: u64,
}

impl RecvFormat {
    /// Of a queue whose elements have room for at least `max_sge` entries.
    pub(crate) fn new(max_sge: u32, max_msg: u64) -> Self {
        Self { entries: EntryTest::new(max_sge != 0), max_sge, max_msg }
    }

    /// Entries of a receive.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Writes a receive of one entry that is neither empty nor has 2^31 bytes. `false` for others, of which nothing is
    /// written. `units` are the first two of the element; where there is no second, it is the first.
    #[inline(always)]
    pub(crate) fn put_one<S: WireEntry>(&self, units: [&[AtomicU64; 2]; 2], sge: S) -> bool {
        let Some(words) = sge.ordinary(self.entries) else { return false };
        let [first, second] = units;
        store(second.each_ref(), TERMINATOR);
        store(first.each_ref(), words);
        true
    }

    /// Writes a receive of any entries to the words of its element.
    pub(crate) fn put_any<S: WireEntry>(&self, element: &[AtomicU64], sges: &[S]) -> Result<(), PostError> {
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
