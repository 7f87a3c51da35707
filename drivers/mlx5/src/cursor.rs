// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a batch of sends writes: past what is published, invisible until it is.
//!
//! Small, because it lives in registers: everything that forbids the next WR makes `head` reach `limit`, so the hot path has
//! one compare for all of it, and the reason is looked up where it is cold.

use crate::buf::{Done, Place, Record, Span, SqView};
use core::sync::atomic::Ordering;

/// A batch's place in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The next basic block.
    pub(crate) at: Place,
    /// The last WQE of several blocks: where it began and where it ends. All others are one block before `at`, so the short
    /// way keeps nothing of where they began.
    long: (Place, Place),
    /// WRs written so far, since the queue was reset; or one of the values below, which reach every limit.
    pub(crate) head: u64,
    /// The `head` from which there is no room, as far as is known.
    pub(crate) limit: u64,
    /// The longest WQE that is worth a BlueFlame burst.
    pub(crate) burst: Span,
}

impl Cursor {
    /// A `head` that says nothing yet: something must be looked at before the first WR.
    pub(crate) const CLOSED: u64 = u64::MAX;
    /// That of a batch which failed.
    pub(crate) const FAILED: u64 = u64::MAX - 1;

    /// At a place, with nothing written.
    #[inline(always)]
    pub(crate) const fn new(at: Place, head: u64, limit: u64, burst: Span) -> Self {
        Self { at, long: (Place::NEVER, Place::NEVER), head, limit, burst }
    }

    /// Where nothing can be written.
    pub(crate) const fn failed() -> Self {
        Self::new(Place::of(0), Self::FAILED, 0, Span::NONE)
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

    /// Where the last WQE began, if there is one.
    #[inline(always)]
    pub(crate) fn last(&self) -> Place {
        let (last, end) = self.long;
        if end == self.at { last } else { self.at.before(1) }
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
    pub(crate) fn finish(&mut self, view: SqView<'_>, wr_id: u64, ds: u32) {
        let (at, record) = (self.at, view.record(self.at));
        record.wr_id.store(wr_id, Ordering::Relaxed);
        self.finish_block(at, record);
        if ds > 4 {
            self.at = at.after(ds.div_ceil(4));
            self.long = (at, self.at);
        } else if ds == 1 {
            // It says no more than the 8 bytes of a doorbell.
            self.burst = Span::NONE;
        }
    }

    /// The same for a WQE of one block, of more than one unit, whose record has the `wr_id`. It is `at` the cursor's place,
    /// which the caller has at hand.
    #[inline(always)]
    pub(crate) fn finish_block(&mut self, at: Place, record: &Record) {
        let head = self.head.wrapping_add(1);
        (self.at, self.head) = (at.after(1), head);
        record.set_done(Done::new(head, 0));
    }
}
