// SPDX-License-Identifier: MIT OR Apache-2.0
//! The position of a batch of sends, beyond the published WQEs.
//!
//! All reasons that forbid the next WR make `head` reach `limit`, so the fast
//! path has one compare for all of them, and the slow path finds the reason.

use crate::memory::{BlockCount, BlockIndex, CompletedCount, SqAddrs, SqView};
use crate::wqe::plain::{Carries, Written};
use core::sync::atomic::Ordering;

/// The position of a batch in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SqCursor {
    /// The next basic block.
    pub(crate) at: BlockIndex,
    /// WRs written so far, since the queue was reset; or one of the values below, which are above every limit.
    pub(crate) head: u64,
    /// The `head` at which there is no more room, as far as is known.
    pub(crate) limit: u64,
    last: LastWqe,
}

/// The length of the last WQE and, in the lowest bits, which are free there, the kind of its data.
// codegen: words
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastWqe(u32);

impl LastWqe {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn new(span: BlockCount, carries: Carries) -> Self {
        Self(span.bits() | carries as u32)
    }

    /// The length of the WQE.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn span(self) -> BlockCount {
        BlockCount::of_bits(self.0 & !15)
    }

    /// The number of the [`Carries`], below 4.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn carries(self) -> usize {
        (self.0 & 3) as usize
    }
}

impl SqCursor {
    /// The `head` of a queue in which something must be checked before the first WR.
    pub(crate) const CLOSED: u64 = u64::MAX;
    /// The `head` of a batch with an error.
    pub(crate) const FAILED: u64 = u64::MAX - 1;

    /// A cursor at a position, with nothing written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn new(at: BlockIndex, head: u64, limit: u64) -> Self {
        Self { at, head, limit, last: LastWqe::new(BlockCount::of(1), Carries::Entries) }
    }

    /// A cursor at which nothing can be written.
    pub(crate) const fn failed() -> Self {
        Self::new(BlockIndex::of(0), Self::FAILED, 0)
    }

    /// Whether the batch has an error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_failed(&self) -> bool {
        self.head == Self::FAILED
    }

    /// Whether there is room for one more WR, as far as is known.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn has_room(&self) -> bool {
        self.head < self.limit
    }

    /// The length of the last WQE, and the kind of its data.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn last(&self) -> LastWqe {
        self.last
    }

    /// Calls a function that is not inlined with a copy, and stores the copy again.
    // codegen: address
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn by_copy<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let mut copy = *self;
        let result = f(&mut copy);
        *self = copy;
        result
    }

    /// Moves past a WQE, and records the data for its completion.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn finish(&mut self, view: SqView<'_>, wr_id: u64, written: Written) {
        view.record(self.at).wr_id.store(wr_id, Ordering::Relaxed);
        self.finish_recorded(view, written);
    }

    /// [`finish`](Self::finish) for a WQE whose completion does not contain its operation `op` ([`umr_op`](crate::shared::umr_op)).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn finish_as(&mut self, view: SqView<'_>, wr_id: u64, written: Written, op: u8) {
        let at = self.at;
        let head = self.advance(written);
        let record = view.record(at);
        record.wr_id.store(wr_id, Ordering::Relaxed);
        record.set_done(CompletedCount::new(head, op));
        // The number of blocks is constant in each call.
        (1..(written.ds + 3) >> 2).for_each(|i| view.record(at.after(i)).set_done(CompletedCount::NO_WQE));
    }

    /// [`finish`](Self::finish) for a WQE whose `wr_id` is recorded. A completion that names another block of the WQE is
    /// that of no WR, even if a dropped batch had a WQE there.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn finish_recorded(&mut self, view: SqView<'_>, written: Written) {
        let at = self.at;
        let head = self.advance(written);
        record_end(view, at, head, written);
    }

    /// Moves past a WQE; returns the count of WRs including it. [`record_end`] must be called then.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn advance(&mut self, Written { ds, carries }: Written) -> u64 {
        // codegen: reload
        let (at, head, blocks) = (self.at, self.head.wrapping_add(1), (ds + 3) >> 2);
        (self.at, self.head) = (at.after(blocks), head);
        self.last = LastWqe::new(BlockCount::of(blocks), carries);
        head
    }

    /// [`finish_again`](Self::finish_again) for at most three blocks.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn finish_short(&mut self, view: SqView<'_>, at: BlockIndex, written: Written) {
        let blocks = (written.ds + 3) >> 2;
        self.at = at.after(blocks);
        self.last = LastWqe::new(BlockCount::of(blocks), written.carries);
        if blocks > 1 {
            // The last one is the second or the third.
            [1, blocks - 1]
                .into_iter()
                .for_each(|i| view.record(at.after(i)).set_done(CompletedCount::NO_WQE));
        }
    }

    /// Corrects the end of the last WQE, which begins at `at` and was finished with another length or other data.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn finish_again(&mut self, view: SqView<'_>, at: BlockIndex, written: Written) {
        let blocks = (written.ds + 3) >> 2;
        let end = at.after(blocks);
        self.at = end;
        self.last = LastWqe::new(BlockCount::of(blocks), written.carries);
        if blocks > 1 {
            mark_blocks(view, at, blocks);
        }
    }
}

/// Records the data for the completion of the WQE at `at`, except its `wr_id`; `head` is the count of WRs including it.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn record_end(view: SqView<'_>, at: BlockIndex, head: u64, Written { ds, .. }: Written) {
    let blocks = (ds + 3) >> 2;
    view.record(at).set_done(CompletedCount::new(head, 0));
    if blocks > 1 {
        mark_blocks(view, at, blocks);
    }
}

/// Records that no WQE begins at the second and later blocks of the WQE at `at`.
#[cfg_attr(not(debug_assertions), inline(always))]
fn mark_blocks(view: SqView<'_>, at: BlockIndex, blocks: u32) {
    view.record(at.after(1)).set_done(CompletedCount::NO_WQE);
    if blocks > 2 {
        mark_far(view, at, blocks);
    }
}

/// Records that no WQE begins at the third and later blocks of a long one. A record that is marked twice costs less than a
/// branch, so up to three records are marked by three stores.
#[cfg_attr(not(debug_assertions), inline(always))]
fn mark_far(view: SqView<'_>, at: BlockIndex, blocks: u32) {
    let mark = |i| view.record(at.after(i)).set_done(CompletedCount::NO_WQE);
    if blocks > 5 {
        return mark_groups(view.addrs_by_ref(), at, blocks);
    }
    [2, blocks.div_ceil(2), blocks - 1].into_iter().for_each(mark);
}

/// [`mark_far`] for more than five blocks.
#[inline(never)]
fn mark_groups(ring: &SqAddrs, at: BlockIndex, blocks: u32) {
    let records = ring.view().records();
    // If the records do not wrap at the ring's end, their addresses need no mask.
    if let Some(records) = records.some_from(at, blocks) {
        records.iter().skip(2).for_each(|record| record.set_done(CompletedCount::NO_WQE));
        return;
    }
    for i in 2..blocks {
        records.at(at.after(i)).set_done(CompletedCount::NO_WQE);
    }
}
