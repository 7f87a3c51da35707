// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a batch of sends writes: past what is published, invisible until it is.
//!
//! Small, because it lives in registers: everything that forbids the next WR makes `head` reach `limit`, so the hot path has
//! one compare for all of it, and the reason is looked up where it is cold.

use crate::doorbell::Burst;
use crate::memory::{BlockIndex, CompletedCount, Record, SqView};
use core::sync::atomic::Ordering;

/// A batch's place in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The next basic block.
    pub(crate) at: BlockIndex,
    /// WRs written so far, since the queue was reset; or one of the values below, which reach every limit.
    pub(crate) head: u64,
    /// The `head` from which there is no room, as far as is known.
    pub(crate) limit: u64,
    /// The last WQE that is not plain. All others have one block and more than one unit, and no inline data, so nothing is
    /// kept of them.
    pub(crate) odd: Odd,
}

/// A WQE that is not plain: where it begins, and in the bits that a place does not use, whether it is worth a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Odd(BlockIndex);

impl Odd {
    /// There was none.
    const NONE: Self = Self(BlockIndex::NEVER);

    /// Where the last of the WQEs before `end` begins, and whether it is worth a burst: this one, or a plain one after it.
    pub(crate) fn last(self, view: SqView<'_>, end: BlockIndex) -> (BlockIndex, Burst) {
        let (start, mark) = self.0.marked();
        // What stands in the ring is what was written there; if not, the device is told of another block of its ring.
        let ds = u64::from_be(view.at(start)[0].load(Ordering::Relaxed)) as u32 & 0x3f;
        if self == Self::NONE || start.after(ds.div_ceil(4)) != end {
            return (end.before(1), Burst::Usual);
        }
        (
            start,
            if ds == 1 {
                Burst::Never
            } else if mark == 1 {
                Burst::Inline
            } else {
                Burst::Usual
            },
        )
    }
}

impl Cursor {
    /// A `head` that says nothing yet: something must be looked at before the first WR.
    pub(crate) const CLOSED: u64 = u64::MAX;
    /// That of a batch which failed.
    pub(crate) const FAILED: u64 = u64::MAX - 1;

    /// At a place, with nothing written.
    #[inline(always)]
    pub(crate) const fn new(at: BlockIndex, head: u64, limit: u64) -> Self {
        Self { at, head, limit, odd: Odd::NONE }
    }

    /// Where nothing can be written.
    pub(crate) const fn failed() -> Self {
        Self::new(BlockIndex::of(0), Self::FAILED, 0)
    }

    /// Whether an error was found.
    #[inline(always)]
    pub(crate) fn is_failed(&self) -> bool {
        self.head == Self::FAILED
    }

    /// Whether there is room for one more WR, as far as is known.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.head < self.limit
    }

    /// Whether all WQEs are plain.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.odd == Odd::NONE
    }

    /// Where the last one began, being plain.
    #[inline(always)]
    pub(crate) fn last_plain(&self) -> BlockIndex {
        self.at.before(1)
    }

    /// Lets a function that is not inlined change the cursor. It gets a copy: the address of the cursor itself would
    /// keep it out of the registers, on the short way, too.
    #[inline(always)]
    pub(crate) fn lend<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let mut copy = *self;
        let result = f(&mut copy);
        *self = copy;
        result
    }

    /// Moves behind a WQE of `ds` units, and notes what its completion needs.
    #[inline(always)]
    pub(crate) fn finish(&mut self, view: SqView<'_>, wr_id: u64, ds: u32, inline: bool) {
        let (at, record) = (self.at, view.record(self.at));
        record.wr_id.store(wr_id, Ordering::Relaxed);
        if ds > 4 || ds == 1 || inline {
            self.odd = Odd(at.with_mark(inline.into()));
        }
        self.head = self.head.wrapping_add(1);
        self.at = at.after(ds.div_ceil(4));
        record.set_done(CompletedCount::new(self.head, 0));
    }

    /// The same for a plain one whose record has the `wr_id`. It is `at` the cursor's place, which the caller has at hand.
    #[inline(always)]
    pub(crate) fn finish_block(&mut self, at: BlockIndex, record: &Record) {
        let head = self.head.wrapping_add(1);
        (self.at, self.head) = (at.after(1), head);
        record.set_done(CompletedCount::new(head, 0));
    }
}
