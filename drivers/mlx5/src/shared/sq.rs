// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a send queue that its poster and the pollers of its completions share.
//!
//! A poller stores the tail with Release; the poster loads it with Acquire when the queue looks full. The poster stores the
//! data for completions in the records of the ring. Pollers index the records by values that the device wrote, so every
//! index is masked.

use super::published::Published;
use crate::memory::dbrec::DbWord;
use crate::memory::{BlockIndex, CompletedCount, Record, Records, SqRing};

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

/// The operation of a WQE that its completion does not contain: that of an opcode `UMR`, or that the program has written it.
pub mod umr_op {
    /// `IBV_WR_BIND_MW`
    pub const BIND_MW: u8 = 1;
    /// `IBV_WR_LOCAL_INV`
    pub const LOCAL_INV: u8 = 2;
    /// `mlx5dv_wr_raw_wqe`. Only queues with [`takes_raw_wqes`](crate::shared::QpShared::takes_raw_wqes) have such WQEs.
    pub const RAW: u8 = 3;
    /// `mlx5dv_wr_mkey_configure` and the like, and the signature values behind it.
    pub const MKEY: u8 = 4;
    /// WRs that were cancelled: their WQEs do nothing, and their completions have the opcodes that they had.
    pub const CANCELLED_SEND: u8 = 5;
    /// See [`CANCELLED_SEND`].
    pub const CANCELLED_WRITE: u8 = 6;
    /// See [`CANCELLED_SEND`].
    pub const CANCELLED_READ: u8 = 7;
    /// See [`CANCELLED_SEND`].
    pub const CANCELLED_CMP_SWP: u8 = 8;
    /// See [`CANCELLED_SEND`].
    pub const CANCELLED_FETCH_ADD: u8 = 9;
}

/// A completed send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetiredSend {
    /// The WR's `wr_id`.
    pub wr_id: u64,
    /// The [`umr_op`], 0 for a WQE without one.
    pub op: u8,
}

/// The shared part of a send queue.
#[derive(Debug)]
pub struct SqShared {
    /// The WQEs, and the records for their completions.
    pub ring: SqRing,
    /// The number of completed WRs.
    tail: AtomicU32,
    published: Published,
}

impl SqShared {
    /// An empty queue.
    #[must_use]
    pub fn new(ring: SqRing) -> Self {
        Self { ring, tail: AtomicU32::new(0), published: Published::default() }
    }

    /// Retires the WR whose WQE began at block `wqe_counter`, and all before it. For the poller of its CQ.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn retire(&self, wqe_counter: u16) -> RetiredSend {
        self.retire_by().retire(BlockIndex::of(wqe_counter.into()))
    }

    /// The references that retiring needs.
    // codegen: reload
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn retire_by(&self) -> RetireBy<'_> {
        RetireBy { records: self.ring.view().records(), tail: &self.tail }
    }

    /// The number of completed WRs, modulo 2^32. A faulty device can cause any value.
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Sets the doorbell record's word by which the poster publishes.
    pub fn published_by(&self, record: DbWord) {
        self.published.set(record);
    }

    /// Whether the WR whose WQE began at block `wqe_counter` was published and has not completed.
    pub(crate) fn is_outstanding(&self, wqe_counter: u16) -> bool {
        let Some(posted) = self.published.count() else { return false };
        let blocks = (posted as u16).wrapping_sub(wqe_counter);
        if !(1..=self.ring.mask() + 1).contains(&blocks.into()) {
            return false;
        }
        let done = self.ring.view().record(BlockIndex::of(wqe_counter.into())).done();
        done != CompletedCount::NO_WQE
            && (1..=self.ring.mask() + 1)
                .contains(&done.head().wrapping_sub(self.tail.load(Ordering::Relaxed)))
    }

    pub(crate) fn reset(&self) {
        self.tail.store(0, Ordering::Release);
    }
}

/// The references that retiring a queue's WRs needs.
#[derive(Clone, Copy)]
pub(crate) struct RetireBy<'q> {
    records: Records<'q>,
    tail: &'q AtomicU32,
}

impl RetireBy<'_> {
    /// [`SqShared::retire`] for a block index.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn retire(self, place: BlockIndex) -> RetiredSend {
        let record = self.records.at(place);
        let wr_id = record.wr_id.load(Ordering::Relaxed);
        let done = record.done();
        // Release: pairs with `SqShared::tail`, so the poster reuses blocks and records after these loads.
        self.tail.store(done.head(), Ordering::Release);
        RetiredSend { wr_id, op: done.op() }
    }
}

/// The send queue of no QP: retiring its WQEs has no effect.
#[derive(Debug, Default)]
pub(crate) struct NoSends {
    record: Record,
    tail: AtomicU32,
}

impl NoSends {
    pub(crate) fn retire_by(&self) -> RetireBy<'_> {
        RetireBy { records: Records::of_one(&self.record), tail: &self.tail }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::memory::QueueBuf;
    use loom::sync::Arc;
    use loom::thread;

    /// The poster reuses a record only after the poller has read it.
    #[test]
    fn send_records_are_not_reused_before_they_are_read() {
        loom::model(|| {
            let ring = SqRing::new(QueueBuf::new(4096).unwrap(), 0, 1).unwrap();
            let sq = Arc::new(SqShared::new(ring));
            sq.ring.view().wr_id(0).store(1, Ordering::Relaxed);
            sq.ring.view().record(BlockIndex::of(0)).set_done(CompletedCount::new(1, 0));
            let poller = Arc::clone(&sq);
            let t = thread::spawn(move || poller.retire(0).wr_id);
            if sq.tail() == 1 {
                sq.ring.view().wr_id(1).store(2, Ordering::Relaxed);
            }
            assert_eq!(t.join().unwrap(), 1);
        });
    }
}
