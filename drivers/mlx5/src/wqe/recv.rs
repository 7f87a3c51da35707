// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entries of a receive, for all interfaces and both kinds of receive queue.
//!
//! A receive WQE is an array of entries. If it has fewer entries than its element has room for, an entry without memory
//! ends it. Empty entries are skipped.

use super::Sge;
use super::data::DataLimits;
use core::sync::atomic::{AtomicU64, Ordering};
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{PostError, WireSge};
use uverbs_core::wr::Sge as RawSge;
use uverbs_mlx5_hw::wqe::MLX5_INVALID_LKEY;

/// An entry of a receive, in the format of the WQE or of C.
pub trait WireEntry: Copy {
    /// The entry in the WQE's format; an error if it is too long.
    fn wire(self) -> Result<Sge, PostError>;

    /// The words of the entry in the WQE's format, if its length is from 1 to 2^31 - 1 and `entries` allows entries.
    fn ordinary(self, entries: EntryTest) -> Option<[u64; 2]>;
}

/// Whether receives of a queue may have entries, in the forms that [`WireEntry::ordinary`] needs for the two formats: one
/// test checks this and the length.
#[derive(Clone, Copy, Debug)]
pub struct EntryTest {
    /// A mask for the first word of which an ordinary entry has at least one bit; 0 if no entry is allowed.
    bits: u64,
    /// The length of the longest ordinary entry; 0 if no entry is allowed.
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
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wire(self) -> Result<Sge, PostError> {
        Ok(self)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ordinary(self, entries: EntryTest) -> Option<[u64; 2]> {
        (self.words[0] & entries.bits != 0).then_some(self.words)
    }
}

impl WireEntry for RawSge {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wire(self) -> Result<Sge, PostError> {
        Sge::new(self.addr, self.length, self.lkey)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ordinary(self, entries: EntryTest) -> Option<[u64; 2]> {
        let words = [(u64::from(self.length) << 32 | u64::from(self.lkey)).to_be(), self.addr.to_be()];
        (self.length.wrapping_sub(1) < entries.longest).then_some(words)
    }
}

/// The entry that ends a receive with fewer entries than there is room for: 0 bytes, invalid key.
const TERMINATOR: [u64; 2] = [(MLX5_INVALID_LKEY as u64).to_be(), 0];

/// The limits of a receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvFormat {
    entries: EntryTest,
    /// The maximum number of entries of a receive.
    max_sge: u32,
    /// The device's longest message. Checked only from 2^31 bytes on; shorter messages are checked by the device.
    max_msg: u64,
}

impl RecvFormat {
    /// The format of a queue whose elements have room for at least `max_sge` entries.
    pub(crate) fn new(max_sge: u32, max_msg: u64) -> Self {
        Self { entries: EntryTest::new(max_sge != 0), max_sge, max_msg }
    }

    /// The maximum number of entries of a receive.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Writes a receive of one ordinary entry (see [`WireEntry::ordinary`]). Otherwise returns `false` and writes nothing.
    /// `units` are the first two of the element; if it has only one, both are that one.
    #[cfg_attr(not(debug_assertions), inline(always))]
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
        let limits = DataLimits {
            max_sge: self.max_sge,
            max_inline: 0,
            max_msg: self.max_msg,
            max_tso: 0,
            max_tso_header: 0,
        };
        limits.check(length)?;
        if let Some(unit) = units.next() {
            store(unit.each_ref(), TERMINATOR);
        }
        Ok(())
    }
}

#[cfg_attr(not(debug_assertions), inline(always))]
fn store([a, b]: [&AtomicU64; 2], words: [u64; 2]) {
    a.store(words[0], Ordering::Relaxed);
    b.store(words[1], Ordering::Relaxed);
}
