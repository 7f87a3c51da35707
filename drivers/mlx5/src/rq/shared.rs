// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a receive queue's poster and the pollers of its completions share.

use crate::memory::dbrec::DbWord;
use crate::memory::{StrideRing, StrideView, Table};
use crate::qp::Published;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// A receive queue.
#[derive(Debug)]
pub struct RqShared {
    /// The WQEs.
    pub ring: StrideRing,
    pub(crate) wr_id: Table<AtomicU64>,
    /// Receives that completed before an earlier one.
    early: Table<AtomicU8>,
    early_count: AtomicU32,
    /// How many are done without a gap.
    tail: AtomicU32,
    /// How many were posted, where the doorbell record waits for RTR (raw packet QPs).
    posted: AtomicU32,
    published: Published,
}

impl RqShared {
    /// An empty queue.
    #[must_use]
    pub fn new(ring: StrideRing) -> Self {
        let count = ring.mask() + 1;
        Self {
            ring,
            wr_id: Table::new(count),
            early: Table::new(count),
            early_count: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            posted: AtomicU32::new(0),
            published: Published::default(),
        }
    }

    /// Names the word by which the device is told what was posted.
    pub fn published_by(&self, record: DbWord) {
        self.published.set(record);
    }

    /// Whether the receive at `wqe_counter` was shown to the device and is not done; for the poller of its CQ.
    pub(crate) fn is_outstanding(&self, wqe_counter: u16) -> bool {
        let Some(posted) = self.published.count() else { return false };
        let (at, tail) = (u32::from(wqe_counter), self.tail.load(Ordering::Relaxed));
        // No ring has more than 2^15 receives, so 16 bits tell full from empty.
        let there = u32::from((posted as u16).wrapping_sub(tail as u16));
        there <= self.ring.mask() + 1
            && at.wrapping_sub(tail) & self.ring.mask() < there
            && self.early.get(at).load(Ordering::Relaxed) == 0
    }

    /// The receive at `wqe_counter` is done: its `wr_id`. For the poller of its CQ, one at a time.
    #[inline(always)]
    pub fn retire(&self, wqe_counter: u16) -> u64 {
        let at = u32::from(wqe_counter);
        let wr_id = self.wr_id.get(at).load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        if (tail ^ at) & self.ring.mask() == 0 && self.early_count.load(Ordering::Relaxed) == 0 {
            // Release: pairs with `tail`, so the poster reuses the element after this load.
            self.tail.store(tail.wrapping_add(1), Ordering::Release);
        } else {
            self.retire_early(at, tail);
        }
        wr_id
    }

    /// Out of order: notes it, and moves the tail over all that is done in a row. An element is reused only then.
    #[cold]
    fn retire_early(&self, at: u32, mut tail: u32) {
        let mut count = self.early_count.load(Ordering::Relaxed);
        let done = self.early.get(at);
        if done.load(Ordering::Relaxed) == 0 {
            done.store(1, Ordering::Relaxed);
            count += 1;
        }
        while count != 0 && self.early.get(tail).load(Ordering::Relaxed) != 0 {
            self.early.get(tail).store(0, Ordering::Relaxed);
            (tail, count) = (tail.wrapping_add(1), count - 1);
        }
        self.early_count.store(count, Ordering::Relaxed);
        self.tail.store(tail, Ordering::Release);
    }

    /// The addresses that posting needs.
    #[inline(always)]
    pub(crate) fn view(&self, max_sge: u32) -> StrideView<'_> {
        StrideView::new(&self.ring, &self.wr_id, 0, max_sge)
    }

    /// How many receives are done, modulo 2^32. A device may make a poller store anything.
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Notes how many were posted, for [`posted`](Self::posted). The poster looks at the state after this, `modify_qp`
    /// at the number after it changed the state: one of the two writes the doorbell record.
    pub(crate) fn hold(&self, posted: u32) {
        self.posted.store(posted, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// How many receives a raw packet QP has posted before it was in RTR: what its doorbell record must say then.
    #[must_use]
    pub fn posted(&self) -> u32 {
        self.posted.load(Ordering::Acquire)
    }

    pub(crate) fn reset(&self) {
        self.early.iter().for_each(|done| done.store(0, Ordering::Relaxed));
        self.early_count.store(0, Ordering::Relaxed);
        self.posted.store(0, Ordering::Relaxed);
        self.tail.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::QueueBuf;

    fn rq(count: u32) -> RqShared {
        let buf = QueueBuf::new(count as usize * 64).unwrap();
        RqShared::new(StrideRing::new(buf, 0, count, 64).unwrap())
    }

    #[test]
    fn receives_out_of_order_free_only_what_is_done_in_a_row() {
        let rq = rq(8);
        (0..8).for_each(|i| rq.wr_id.get(i).store(100 + u64::from(i), Ordering::Relaxed));
        let step = |counter| (rq.retire(counter), rq.tail());
        assert_eq!([step(1), step(2), step(0)], [(101, 0), (102, 0), (100, 3)]);
        assert_eq!([step(3), step(5), step(4), step(6)], [(103, 4), (105, 4), (104, 6), (106, 7)]);
        // A counter that comes twice moves nothing twice.
        assert_eq!([step(9), step(9), step(7), step(8)], [(101, 7), (101, 7), (107, 8), (100, 10)]);
        rq.retire(12);
        rq.reset();
        assert_eq!([step(0), step(1)], [(100, 1), (101, 2)]);
    }

    #[test]
    fn a_device_that_lies_about_receives_ends_no_loop() {
        let rq = rq(4);
        for counter in (0..2000_u16).map(|i| i.wrapping_mul(40503)) {
            rq.retire(counter);
        }
        assert!(rq.tail() <= 2000);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::memory::QueueBuf;
    use loom::sync::Arc;
    use loom::thread;

    fn stride(count: u32) -> StrideRing {
        StrideRing::new(QueueBuf::new(4096).unwrap(), 0, count, 64).unwrap()
    }

    /// The poster reuses an entry only after the poller has read it.
    #[test]
    fn receive_entries_are_not_reused_before_they_are_read() {
        loom::model(|| {
            let rq = Arc::new(RqShared::new(stride(1)));
            rq.wr_id.get(0).store(1, Ordering::Relaxed);
            let poller = Arc::clone(&rq);
            let t = thread::spawn(move || poller.retire(0));
            if rq.tail() == 1 {
                rq.wr_id.get(1).store(2, Ordering::Relaxed);
            }
            assert_eq!(t.join().unwrap(), 1);
        });
    }
}
